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
//	      - {prefix: "acme:", policies: {minute: sliding-log 900/minute, day: fixed-window 100000/day}}
//	      - {network: 203.0.113.0/28, policies: unlimited}
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
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/plans"
)

// A Source returns the text of a document. It is asked each second, and must be safe for concurrent use. Its context
// ends with the book. If the text has not changed it should return the same slice, which costs nothing to compare. An
// error means that the source is away: the limits stay as they are.
type Source func(context.Context) ([]byte, error)

// Config configures a [Book]. Its zero value is ready to use.
type Config struct {
	// Initial applies until the source has given a document. With it, a source that is away or has a document with
	// faults does not keep the program from starting.
	Initial []byte `json:"-"`

	// OnChange is called when a document was applied or refused, and when the source is away or back: one call at a
	// time, the last with core.ErrClosed. It must not call Reload or Close, which wait for it.
	OnChange func(State)
}

// Format implements [fmt.Formatter]: it prints no document, which may have keys.
func (c Config) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, "limits.Config{}") }

// A State is the state of a book.
type State struct {
	Version  string    // of the document in force: a hash of its text
	Since    time.Time // when it was applied here
	Err      error     // why the source's document is not in force: all faults, with lines; or the error of the source
	Changes  []string  // what the document has changed, for people, without keys
	Warnings []string  // what is valid and may be a mistake
}

// A Book has the limits of a document, and keeps them up to date. It is safe for concurrent use.
type Book struct {
	store  core.Store
	source Source
	config Config
	ctx    context.Context // ends with the book
	stop   context.CancelFunc
	done   chan struct{}

	current atomic.Pointer[backend.Snapshot]
	state   atomic.Pointer[State]

	loading  sync.Mutex                // one document at a time: held before mu
	lastText []byte                    // that was applied or refused
	lastErr  error                     // why it was refused
	askedAt  atomic.Pointer[time.Time] // when the source was, which has not answered yet; nil: it has

	// It is held while a document takes the place of another, or the program names what it uses. The document is
	// written under both locks, so either suffices to read it.
	mu       sync.Mutex
	document *document.Document
	places   [2]map[string]int // the index of each name that a document has had: of limits, of slots
	limiters map[string]*core.Limiter
	slots    map[string]*core.Slots
}

// every is how often a source is asked.
const every = time.Second

// Open returns a book whose counts are in the store. The context bounds only Open. Without Initial, a source that is
// away and a document with faults are an error.
func Open(ctx context.Context, store core.Store, source Source, config Config) (*Book, error) {
	if store == nil || source == nil {
		return nil, errors.New("headgate: limits: the store and the source must not be nil")
	}
	b := &Book{
		store: store, source: source, config: config, done: make(chan struct{}), places: [2]map[string]int{{}, {}},
		limiters: map[string]*core.Limiter{}, slots: map[string]*core.Slots{},
	}
	b.ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.state.Store(&State{})
	var err error
	if config.Initial != nil {
		err = b.apply(config.Initial)
	}
	if err == nil {
		err = b.Reload(ctx)
		if config.Initial != nil {
			err = nil // the state has it
		}
	}
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("headgate: limits: %w", err)
	}
	go b.watch()
	return b, nil
}

// Close ends the watch of the source, and tells OnChange of [core.ErrClosed]. The limits stay as they are.
func (b *Book) Close() {
	b.stop()
	<-b.done
	b.loading.Lock()
	defer b.loading.Unlock()
	b.setErr(core.ErrClosed, false)
}

// watch asks the source until the book is closed.
func (b *Book) watch() {
	defer close(b.done)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = b.Reload(b.ctx) // the state has the error
		case <-b.ctx.Done():
			return
		}
	}
}

// Reload asks the source now. The error is that of the new state.
func (b *Book) Reload(ctx context.Context) error {
	b.loading.Lock()
	defer b.loading.Unlock()
	if b.ctx.Err() != nil {
		return core.ErrClosed
	}
	either, cancel := context.WithCancel(b.ctx) // ends with the book, or with the caller
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	now := time.Now()
	b.askedAt.Store(&now)
	text, err := b.source(either)
	b.askedAt.Store(nil)
	isRefused := false
	switch {
	case b.ctx.Err() != nil:
		return core.ErrClosed
	case ctx.Err() != nil && b.document != nil:
		return ctx.Err() // the caller gave up, not the source
	case err == nil && !same(text, b.lastText):
		err = b.apply(text)
		b.lastText = text
		b.lastErr = err
		isRefused = err != nil
	case err == nil:
		err = b.lastErr
	}
	// A document that is in force now was told of by apply, and needs no more. Each that is refused is told of, also if
	// the last one had the same faults: a push waits for it.
	b.setErr(err, isRefused)
	return err
}

// same reports whether a text is the last one, at once if it is the same slice.
func same(text, last []byte) bool {
	if last == nil || len(text) != len(last) {
		return false
	}
	isSlice := len(text) > 0 && &text[0] == &last[0]
	return isSlice || bytes.Equal(text, last)
}

// setErr puts an error into the state, or ends one. One that the state has already is told of only if that is wanted.
// Without a document there is no state: Open returns the error.
func (b *Book) setErr(err error, tellAgain bool) {
	state := *b.state.Load()
	isSame := fmt.Sprint(err) == fmt.Sprint(state.Err)
	if b.document == nil || isSame && !tellAgain {
		return
	}
	state.Err = err
	state.Changes = nil
	b.publish(state)
}

// publish puts a state in the place of the one before, and tells OnChange of it. Only Open and Reload get here, one at
// a time.
func (b *Book) publish(state State) {
	b.state.Store(&state)
	if b.config.OnChange != nil {
		b.config.OnChange(state)
	}
}

// apply makes a document the one in force, and publishes its state, or returns why not.
func (b *Book) apply(text []byte) error {
	parsed, err := document.Parse(text)
	if err != nil {
		return err
	}
	if err := parsed.Attach(b.store.Backend().Rates.Prepare); err != nil {
		return err
	}
	state, changed, err := b.swap(parsed)
	if changed {
		b.publish(state)
	}
	return err
}

// swap makes a document the one in force, if it has all that the program uses. Nothing changes if the same version is
// in force already.
func (b *Book) swap(parsed *document.Document) (state State, changed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.document != nil && parsed.Version == b.document.Version {
		return state, false, nil
	}
	for name := range b.limiters {
		if parsed.Limits[name] == nil {
			err = errors.Join(err, lacks("limit", name))
		}
	}
	for name := range b.slots {
		if parsed.Slots[name] == nil {
			err = errors.Join(err, lacks("slots", name))
		}
	}
	if err != nil {
		return state, false, err
	}
	// Nothing fails from here on: a document is in force as a whole, or not at all.
	state = State{Version: parsed.Version, Since: time.Now()}
	for _, change := range document.Diff(b.document, parsed) {
		state.Changes = append(state.Changes, change.Text)
	}
	for _, warning := range parsed.Warnings {
		state.Warnings = append(state.Warnings, warning.String())
	}
	b.document = parsed
	limits, slots := parsed.Tables()
	b.current.Store(&backend.Snapshot{Limits: indexed(b.places[0], limits), Slots: indexed(b.places[1], slots)})
	return state, true, nil
}

func lacks(kind, name string) error {
	return fmt.Errorf("line 1, column 1: the program uses a %s %q, which the document does not have", kind, name)
}

// indexed returns tables by the indexes of their names. A name keeps its index.
func indexed[T any](places map[string]int, tables map[string]*plans.Table[T]) []*plans.Table[T] {
	for name := range tables {
		_, known := places[name]
		if !known {
			places[name] = len(places)
		}
	}
	all := make([]*plans.Table[T], len(places))
	for name, table := range tables {
		all[places[name]] = table
	}
	return all
}

// Limiter returns the limiter of that name, with the document's plans and overrides. From then on a document without it
// is a fault. An error means that the document has none.
func (b *Book) Limiter(name string) (*core.Limiter, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.document.Limits[name] == nil {
		return nil, fmt.Errorf("headgate: limits: the document has no limit %q", name)
	}
	if b.limiters[name] == nil {
		b.limiters[name] = core.Documented(b.store, &b.current, b.places[0][name], name)
	}
	return b.limiters[name], nil
}

// Slots returns the slots of that name, as Limiter does.
func (b *Book) Slots(name string) (*core.Slots, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.document.Slots[name] == nil {
		return nil, fmt.Errorf("headgate: limits: the document has no slots %q", name)
	}
	if b.slots[name] == nil {
		b.slots[name] = core.DocumentedSlots(b.store, &b.current, b.places[1][name], name)
	}
	return b.slots[name], nil
}

// State returns the state.
func (b *Book) State() State {
	state := *b.state.Load()
	askedAt := b.askedAt.Load()
	if askedAt != nil && time.Since(*askedAt) > 10*every {
		state.Err = fmt.Errorf("the source was asked at %v and has not answered", askedAt.Format(time.TimeOnly))
	}
	return state
}

// Format implements [fmt.Formatter]: what a book keeps has keys.
func (b *Book) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "limits %s", b.State().Version)
}
