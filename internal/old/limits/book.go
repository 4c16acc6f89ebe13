package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core"
)

// Config configures a [Book]. Its zero value is ready to use. Literals must name the fields.
type Config struct {
	_ struct{}

	// Initial is the text of the document that applies until the source has given one. With
	// it, a source that is away or at fault does not keep the program from starting; without
	// it, Open returns the error. Later documents must have each limit that it has.
	Initial []byte `json:"-"`

	// Decode is the language of the documents. Nil is [DecodeJSON]; package yamldoc has one
	// for YAML.
	Decode Decoder

	// Every is how often the source is asked. 0 means every second; otherwise it is 10 ms or
	// more.
	Every time.Duration

	// Timeout bounds how long a Load may take. 0 means 2 seconds. One that takes longer is an
	// error, and there is no other until it has returned.
	Timeout time.Duration

	// Accept decides whether a valid document may take the place of another: an error refuses
	// it. It is also asked about documents that lose usage, which are refused if Accept is
	// nil, except in the place of Initial. It may use the book, whose limits are those before,
	// but must not call Reload or Close, which wait for it.
	Accept func(Diff) error

	// Changed, if not nil, is called after a document was applied or refused, and when the source
	// is away or back. It is for logs and metrics. The calls are one after the other, in the order
	// of the events. During a call, the limits are there as always, but the book does not ask its
	// source. Changed may use the book, also call Reload, but must not call Close, which waits for
	// it.
	Changed func(Event)
}

// Format implements [fmt.Formatter]: it prints the configuration without
// the Initial document, which may have keys.
func (c Config) Format(s fmt.State, verb rune) {
	type plain Config
	c.Initial = nil
	hidden.Print(s, verb, plain(c))
}

const (
	defaultEvery   = time.Second
	leastEvery     = 10 * time.Millisecond
	defaultTimeout = 2 * time.Second
)

// A State is the state of a book.
type State struct {
	// Version is the version of the document in force, see [Document.Version]. Since is the time
	// when it was applied here.
	Version string
	Since   time.Time

	// Initial reports whether it is Config.Initial.
	Initial bool

	// Err, if not nil, is why the document of the source is not the one in force, since ErrSince.
	// It is [Faults], or the error of Load or of Accept.
	Err      error
	ErrSince time.Time

	// Notes are the notes of the document: see [Document.Notes].
	Notes Faults

	// Program describes the program, as far as it has used the book.
	Program Program
}

// An Event is a change of a book's state.
type Event struct {
	State State
	Diff  Diff // the changes, if a document was applied
}

// A Book has the limits of a document, and keeps them up to date. Make one with [Open]. It is
// safe for concurrent use.
type Book struct {
	config  Config
	store   core.Store
	noSlots bool
	source  Source
	needs   Program // of which only the names count: those of Config.Initial
	initial *Document

	current atomic.Pointer[edition]

	mu     sync.Mutex // held while an edition takes the place of another, or a program names what it uses
	limits []*Limit
	slots  []*Slots

	loading sync.Mutex  // held while a document is loaded and applied: before mu
	text    *[]byte     // that was looked at last; nil if none was. It is not printed, as it has keys
	result  error       // of that
	flying  chan loaded // the Load that is under way; nil if there is none

	stateMu sync.Mutex
	state   State
	untold  []Event // in order
	telling bool    // somebody calls Changed

	stop context.CancelFunc
	done sync.WaitGroup
}

// Format implements [fmt.Formatter]: it prints the version of the document that is in force. What
// the book keeps has keys.
func (b *Book) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprintf(s, "limits of version %s", b.State().Version)
}

// loaded is the result of a Load.
type loaded struct {
	text []byte
	err  error
}

// Open returns a book whose limits are in the store. It asks the source for its document now and from then on, until
// [Book.Close]. Without slots, no document may have any. The context bounds only Open.
//
// Without [Config].Initial, a source that is away or has an invalid document is an error. A
// document's error is [Faults].
func Open(ctx context.Context, store core.Store, slots bool, source Source, c Config) (*Book, error) {
	if err := c.check(source); err != nil {
		return nil, err
	}
	b := &Book{config: c, store: store, noSlots: !slots, source: source}
	var initial *edition
	if c.Initial != nil {
		d, err := Parse(c.Initial, c.Decode)
		if err == nil {
			initial, err = b.edition(d, nil)
		}
		if err != nil {
			return nil, fault.Wrap("limits: Initial", err)
		}
		b.initial, b.config.Initial = d, nil
		b.needs = Program{Limits: d.Limits(), Slots: d.Slots()}
	}
	if err := b.load(ctx, true); err != nil {
		if initial == nil {
			b.abandon()
			return nil, fault.Wrap("limits", err)
		}
		now := time.Now()
		b.current.Store(initial)
		b.set(State{Version: b.initial.version, Since: now, Initial: true, Err: err, ErrSince: now, Notes: b.initial.notes}, Diff{})
		b.announce()
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.done.Go(func() { b.watch(ctx) })
	return b, nil
}

func (c *Config) check(source Source) error {
	var errs []error
	if source == nil {
		errs = append(errs, errors.New("headgate: limits: the source is nil"))
	}
	if c.Every == 0 {
		c.Every = defaultEvery
	}
	if c.Every < leastEvery {
		errs = append(errs, fmt.Errorf("headgate: limits: Every is %v: it must be 0 or at least %v", c.Every, leastEvery))
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("headgate: limits: Timeout is %v: it must not be negative", c.Timeout))
	}
	return errors.Join(errs...)
}

// Close ends the watch of the source. The limits stay as they are.
func (b *Book) Close() {
	b.stop()
	b.done.Wait()
	b.abandon()
}

// abandon leaves a Load that does not return to itself.
func (b *Book) abandon() {
	b.loading.Lock()
	defer b.loading.Unlock()
	b.flying = nil
}

// watch asks the source until ctx is done.
func (b *Book) watch(ctx context.Context) {
	wake := make(chan struct{}, 1)
	if w, ok := b.source.(Waker); ok {
		b.done.Go(func() {
			w.Wake(ctx, func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			})
		})
	}
	ticker := time.NewTicker(b.config.Every)
	defer ticker.Stop()
	b.tell(ctx)
	for {
		select {
		case <-ticker.C:
		case <-wake:
		case <-ctx.Done():
			return
		}
		_ = b.load(ctx, false) // the state has it
		b.tell(ctx)
	}
}

// tell tells the source of the state.
func (b *Book) tell(ctx context.Context) {
	if l, ok := b.source.(Listener); ok {
		ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
		defer cancel()
		l.Loaded(ctx, b.State())
	}
}

// Reload asks the source now. The error is the new [State].Err.
func (b *Book) Reload(ctx context.Context) error { return b.load(ctx, true) }

// load asks the source, and applies its document if that has changed, or in any case.
func (b *Book) load(ctx context.Context, anyway bool) error {
	defer b.announce() // without the lock
	b.loading.Lock()
	defer b.loading.Unlock()
	text, err := b.ask(ctx)
	if ctx.Err() != nil && b.current.Load() != nil {
		return ctx.Err() // the caller gave up, not the source
	}
	switch {
	case err != nil:
		b.text = nil
		b.fail(err)
		return err
	case anyway || b.text == nil || !bytes.Equal(text, *b.text):
		b.text = &text
		b.result = b.apply(text)
	case b.result == nil:
		b.recover()
	}
	return b.result
}

// ask calls Load. If that does not return in time, the next ask waits for it.
func (b *Book) ask(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	if b.flying == nil {
		result := make(chan loaded, 1)
		b.flying = result
		go func() {
			defer cancel()
			text, err := b.source.Load(ctx)
			result <- loaded{text, err}
		}()
	} else {
		defer cancel()
	}
	select {
	case r := <-b.flying:
		b.flying = nil
		return r.text, r.err
	case <-ctx.Done():
	}
	select { // one that heeds its context returns at the same time
	case r := <-b.flying:
		b.flying = nil
		return r.text, r.err
	default:
		return nil, fmt.Errorf("the source does not answer: %w", ctx.Err())
	}
}

// named returns the faults of a document, after the name of its file if it has one.
func (b *Book) named(err error) error {
	if f, ok := b.source.(*file); ok {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return err
}

// apply makes a document the one in force, or returns why not.
func (b *Book) apply(text []byte) error {
	d, err := Parse(text, b.config.Decode)
	if err != nil {
		err = b.named(err)
		b.fail(err)
		return err
	}
	before := b.current.Load()
	if before != nil && before.document.version == d.version && !b.State().Initial {
		b.recover()
		return nil
	}
	e, err := b.edition(d, before)
	if err != nil {
		err = b.named(err)
		b.fail(err)
		return err
	}
	var diff Diff
	if before != nil {
		diff = Compare(before.document, d)
		if err := b.accept(diff); err != nil {
			b.fail(err)
			return err
		}
	}
	if err := b.enact(e); err != nil {
		err = b.named(err)
		b.fail(err)
		return err
	}
	b.set(State{Version: d.version, Since: time.Now(), Notes: d.notes}, diff)
	return nil
}

// enact makes an edition the one in force, unless the program has meanwhile named what it has not.
func (b *Book) enact(e *edition) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &reader{}
	b.require(e, r)
	if err := r.err(); err != nil {
		return err
	}
	b.current.Store(e)
	return nil
}

// accept returns why a document must not take the place of the one in force.
func (b *Book) accept(diff Diff) error {
	if b.config.Accept != nil {
		return b.config.Accept(diff)
	}
	if lost := diff.Lost(); len(lost) > 0 && !b.State().Initial {
		return fmt.Errorf("headgate: limits: %v: keep the names and the algorithms, or set Config.Accept", lost[0])
	}
	return nil
}

// State returns the state of the book.
func (b *Book) State() State {
	b.stateMu.Lock()
	s := b.state
	b.stateMu.Unlock()
	s.Program = b.program()
	return s
}

// set changes the state. Announce tells of it.
func (b *Book) set(s State, d Diff) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.state = s
	if s.Program = b.program(); b.config.Changed != nil {
		b.untold = append(b.untold, Event{s, d})
	}
}

// announce calls Changed with what is untold, unless somebody does, who then calls it with that too.
// No lock is held.
func (b *Book) announce() {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if b.telling {
		return
	}
	b.telling = true
	defer func() { b.telling = false }()
	for len(b.untold) > 0 {
		next := b.untold[0]
		b.untold = b.untold[1:]
		b.call(next)
	}
}

// call calls Changed. stateMu is held before and after it.
func (b *Book) call(e Event) {
	b.stateMu.Unlock()
	defer b.stateMu.Lock()
	b.config.Changed(e)
}

// fail sets the error of the state. It tells of it once.
func (b *Book) fail(err error) {
	s := b.State()
	if b.current.Load() == nil || s.Err != nil && s.Err.Error() == err.Error() {
		return
	}
	if s.Err == nil {
		s.ErrSince = time.Now()
	}
	s.Err = err
	b.set(s, Diff{})
}

// recover ends the error of the state: the source has the document that is in force.
func (b *Book) recover() {
	if s := b.State(); s.Err != nil {
		s.Err, s.ErrSince = nil, time.Time{}
		b.set(s, Diff{})
	}
}

// Document returns the document that is in force.
func (b *Book) Document() *Document { return b.current.Load().document }

// A Limit is one limit of a book. It is safe for concurrent use.
type Limit struct {
	book    *Book
	name    string
	index   int
	unknown atomic.Int64
}

// Limit returns the limit of that name. From then on, a document without it is refused. That the
// document in force has none is an error.
func (b *Book) Limit(name string) (*Limit, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.limits {
		if l.name == name {
			return l, nil
		}
	}
	e := *b.current.Load()
	t := e.limits[name]
	if t == nil {
		return nil, fmt.Errorf("headgate: limits: %w", missing(wordLimits, name))
	}
	l := &Limit{book: b, name: name, index: len(b.limits)}
	b.limits = append(b.limits, l)
	e.limitsUsed = append(e.limitsUsed[:l.index:l.index], t)
	b.current.Store(&e)
	return l, nil
}

// Name returns the name.
func (l *Limit) Name() string { return l.name }

// For returns the limiter that applies to a key: the limiter of its override, or else of the plan.
// An empty plan is the default. So is an unknown plan, which [Limit.Unknown] counts. An override's
// policies apply over the plan. For does not allocate.
//
// Use a limiter for one decision, and then ask again.
func (l *Limit) For(plan, key string) *core.Limiter { return l.book.View().Limiter(l, plan, key) }

// Unknown returns how often For was asked for a plan that the document did not have.
func (l *Limit) Unknown() int64 { return l.unknown.Load() }

// Slots are slots of one name of a book. They are safe for concurrent use.
type Slots struct {
	book    *Book
	name    string
	index   int
	unknown atomic.Int64
}

// Slots returns the slots of that name. From then on, a document without them is refused. That
// the document in force has none is an error.
func (b *Book) Slots(name string) (*Slots, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.slots {
		if s.name == name {
			return s, nil
		}
	}
	e := *b.current.Load()
	t := e.slots[name]
	if t == nil {
		return nil, fmt.Errorf("headgate: limits: %w", missing(wordSlots, name))
	}
	s := &Slots{book: b, name: name, index: len(b.slots)}
	b.slots = append(b.slots, s)
	e.slotsUsed = append(e.slotsUsed[:s.index:s.index], t)
	b.current.Store(&e)
	return s, nil
}

// Name returns the name.
func (s *Slots) Name() string { return s.name }

// For returns how many slots a key may hold, as [Limit.For] does.
func (s *Slots) For(plan, key string) int64 { return s.book.View().Slots(s, plan, key) }

// Unknown returns how often For was asked for a plan that the document did not have.
func (s *Slots) Unknown() int64 { return s.unknown.Load() }

// A View is a book as of one moment, for several limits that shall be of one document.
type View struct{ edition *edition }

// View returns the book as of now.
func (b *Book) View() View { return View{b.current.Load()} }

// Version returns the version of the document.
func (v View) Version() string { return v.edition.document.version }

// Limiter is [Limit.For] of a limit of this book, as of the view.
func (v View) Limiter(l *Limit, plan, key string) *core.Limiter {
	t := v.limit(l)
	limiter, known := t.choose(plan, key)
	if !known {
		l.unknown.Add(1)
	}
	return limiter
}

// Find is Limiter for a limit that a request names. If the document has no limit of
// that name, the limiter is nil. If the limit has no such plan, it is the limiter of the default
// plan. In both cases, known is false. A later document may lack the limit.
func (v View) Find(limit, plan, key string) (l *core.Limiter, known bool) {
	t := v.edition.limits[limit]
	if t == nil {
		return nil, false
	}
	return t.choose(plan, key)
}

// Limiters returns the limiters of all plans, in the order of the names, without blocked and unlimited,
// which every limit has.
func (v View) Limiters() []*core.Limiter {
	var all []*core.Limiter
	for _, name := range v.edition.document.Limits() {
		t := v.edition.limits[name]
		for i := range t.section.planNames() {
			all = append(all, t.get(t.base, int32(i)))
		}
	}
	return all
}

// limit returns the table of a limit.
func (v View) limit(l *Limit) *limitTable {
	if l.book == v.edition.book && l.index < len(v.edition.limitsUsed) {
		return v.edition.limitsUsed[l.index]
	}
	if t := v.edition.limits[l.name]; t != nil && l.book == v.edition.book {
		return t // the limit is newer than the view
	}
	panic("headgate: limits: the limit is of another book")
}

// Slots is [Slots.For] of slots of this book, as of the view.
func (v View) Slots(s *Slots, plan, key string) int64 {
	slots, known := v.slots(s).choose(plan, key)
	if !known {
		s.unknown.Add(1)
	}
	return *slots
}

// slots returns the table of slots.
func (v View) slots(s *Slots) *slotsTable {
	if s.book == v.edition.book && s.index < len(v.edition.slotsUsed) {
		return v.edition.slotsUsed[s.index]
	}
	if t := v.edition.slots[s.name]; t != nil && s.book == v.edition.book {
		return t
	}
	panic("headgate: limits: the slots are of another book")
}
