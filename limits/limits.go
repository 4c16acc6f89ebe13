// Package limits keeps limits in a document, in YAML or JSON, that can change while the program runs:
//
//	limits:
//	  api:
//	    default: free
//	    plans:
//	      free: {minute: sliding-log 60/minute, day: fixed-window 1000/day}
//	      gold: {minute: sliding-log 600/minute, day: fixed-window 50000/day}
//	    overrides:
//	      - {key: user-42, plan: gold, until: 2030-12-01T00:00:00Z, note: ticket 815}
//	      - {prefix: "acme:", policies: {minute: sliding-log 6000/minute}}
//	slots:
//	  ws: {default: free, plans: {free: 3, gold: 20}}
//	...
//
// A [Book] has the document, and its limiters and slots are as any others:
//
//	book, err := limits.Open(ctx, store, limits.File("limits.yaml"), limits.Config{})
//	...
//	api, err := book.Limiter("api")
//
// Whoever can write the document can switch limits off.
package limits

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	oldcore "github.com/headgate/headgate/internal/old/core"
	old "github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
)

// A Source returns the text of a document. It is asked each second, and must be safe for concurrent use. Its context
// ends with the book. If the text has not changed it should return the same slice, which costs nothing to compare. An
// error means that the source is away: the limits stay as they are.
type Source func(context.Context) ([]byte, error)

// File returns a source of a file. It may be replaced by renaming another over it, or written in place.
func File(path string) Source {
	file := old.File(path)
	return file.Load
}

// Config configures a [Book]. Its zero value is ready to use.
type Config struct {
	// Initial applies until the source has given a document. With it, a source that is away or has a document with
	// faults does not keep the program from starting.
	Initial []byte `json:"-"`

	// OnChange is called when a document was applied or refused, and when the source is away or back: one call at a
	// time, the last with core.ErrClosed. It must not call Reload or Close.
	OnChange func(State)
}

// Format implements [fmt.Formatter]: it prints no document, which may have keys.
func (c Config) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, "limits.Config{}") }

// A State is the state of a book.
type State struct {
	Version  string    // of the document in force: a hash of its text
	Since    time.Time // when it was applied here
	Err      error     // why the source's document is not in force: all faults, with lines; or the error of the source
	Changes  []string  // what the document has changed, for people
	Warnings []string  // what is valid and may be a mistake
}

// A Book has the limits of a document, and keeps them up to date. It is safe for concurrent use.
type Book struct {
	store core.Store
	book  *old.Book
	told  func(State)

	mu       sync.Mutex
	limits   map[string]*old.Limit
	slots    map[string]*old.Slots
	changes  []string // of the last document that was applied
	limiters map[string]*core.Limiter
	places   map[string]*core.Slots

	telling sync.Mutex  // held while OnChange is called
	closed  atomic.Bool // it is told of core.ErrClosed, or was
}

// Format implements [fmt.Formatter]: it prints nothing of the book, which changes meanwhile.
func (*Book) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, "limits.Book") }

// Open returns a book whose counts are in the store. The context bounds only Open. Without Initial, a source that is
// away and a document with faults are an error.
func Open(ctx context.Context, s core.Store, source Source, c Config) (*Book, error) {
	if source == nil {
		return nil, fmt.Errorf("headgate: limits: the source is nil")
	}
	return OpenSource(ctx, s, old.SourceFunc(source), c)
}

// OpenSource is Open for package redisdoc.
func OpenSource(ctx context.Context, s core.Store, source old.Source, c Config) (*Book, error) {
	if s == nil {
		return nil, fmt.Errorf("headgate: limits: the store is nil")
	}
	b := &Book{
		store: s, told: c.OnChange, limits: map[string]*old.Limit{}, slots: map[string]*old.Slots{},
		limiters: map[string]*core.Limiter{}, places: map[string]*core.Slots{},
	}
	opened, err := old.Open(ctx, s.Backend().Rates, true, source, old.Config{
		Initial: c.Initial, Decode: yamldoc.Decode,
		Accept:  func(old.Diff) error { return nil },
		Changed: b.changed,
	})
	if err != nil {
		return nil, err
	}
	b.book = opened
	return b, nil
}

// changed is told of each change of the state.
func (b *Book) changed(e old.Event) {
	b.mu.Lock()
	if e.State.Err == nil || len(e.Diff.Changes) > 0 {
		b.changes = nil
		for _, c := range e.Diff.Changes {
			b.changes = append(b.changes, c.String())
		}
	}
	changes := b.changes
	b.mu.Unlock()
	b.tell(stateOf(e.State, changes), false)
}

// tell calls OnChange, and no more after the last.
func (b *Book) tell(s State, last bool) {
	b.telling.Lock()
	defer b.telling.Unlock()
	if b.closed.Load() {
		return
	}
	b.closed.Store(last)
	if b.told != nil {
		b.told(s)
	}
}

func stateOf(s old.State, changes []string) State {
	state := State{Version: s.Version, Since: s.Since, Err: s.Err, Changes: changes}
	for _, note := range s.Notes {
		state.Warnings = append(state.Warnings, note.Error())
	}
	return state
}

// State returns the state as of now.
func (b *Book) State() State {
	b.mu.Lock()
	changes := b.changes
	b.mu.Unlock()
	return stateOf(b.book.State(), changes)
}

// Reload asks the source now. The error is that of the new state, or core.ErrClosed after Close.
func (b *Book) Reload(ctx context.Context) error {
	if b.closed.Load() {
		return core.ErrClosed
	}
	return b.book.Reload(ctx)
}

// Close ends the watch of the source, and then tells OnChange of core.ErrClosed. The limits stay as they are. Further
// calls do nothing.
func (b *Book) Close() {
	b.book.Close()
	state := b.State()
	state.Err = core.ErrClosed
	b.tell(state, true)
}

// Limiter returns the limiter of that name, with the document's plans and overrides. From then on a document without it
// is a fault. An error means that the document has none.
func (b *Book) Limiter(name string) (*core.Limiter, error) {
	of, err := b.book.Limit(name)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limiters[name] == nil {
		b.limits[name] = of
		b.limiters[name] = core.Documented((*inner)(b), name)
	}
	return b.limiters[name], nil
}

// Slots returns the slots of that name, as Limiter does.
func (b *Book) Slots(name string) (*core.Slots, error) {
	of, err := b.book.Slots(name)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.places[name] == nil {
		b.slots[name] = of
		b.places[name] = core.DocumentedSlots(b.store, (*inner)(b), name)
	}
	return b.places[name], nil
}

// inner is a book as limiters and slots see it.
type inner Book

// View implements [backend.Book].
func (b *inner) View() backend.View { return view{b, b.book.View()} }

type view struct {
	book *inner
	at   old.View
}

// Limiter implements [backend.View].
func (v view) Limiter(name, plan, key string) *oldcore.Limiter {
	l, _ := v.at.Find(name, plan, key)
	return l
}

// Slots implements [backend.View].
func (v view) Slots(name, plan, key string) int64 {
	v.book.mu.Lock()
	of := v.book.slots[name]
	v.book.mu.Unlock()
	return v.at.Slots(of, plan, key)
}

// Limiters implements [backend.View].
func (v view) Limiters(name string) []*oldcore.Limiter {
	var all []*oldcore.Limiter
	for _, l := range v.at.Limiters() {
		if l.Name() == name {
			all = append(all, l)
		}
	}
	return all
}
