package backend

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// A SlotLimit is one plan of slots, and says how many a key may hold: a number, or what a document gives to the key.
type SlotLimit struct {
	name   string
	store  *Stores
	limit  int64        // unless there is a book
	closed *atomic.Bool // of all plans
	fault  error        // why nothing can be acquired; nil: none

	book   Book
	inBook int
	plan   string
}

// NewSlotLimit returns slots of a number.
func NewSlotLimit(s *Stores, name string, limit int64) *SlotLimit {
	return &SlotLimit{name: name, store: s, limit: limit, closed: new(atomic.Bool)}
}

// NewDocumentedSlotLimit returns slots of a document, by their number there.
func NewDocumentedSlotLimit(s *Stores, b Book, inBook int, name string) *SlotLimit {
	return &SlotLimit{name: name, store: s, closed: new(atomic.Bool), book: b, inBook: inBook}
}

// WithLimit returns the same slots with another number, WithPlan with that of another plan of the document, and Faulty
// such that acquires fail.
func (s *SlotLimit) WithLimit(limit int64) *SlotLimit { c := *s; c.limit = limit; return &c }
func (s *SlotLimit) WithPlan(plan string) *SlotLimit  { c := *s; c.plan = plan; return &c }
func (s *SlotLimit) Faulty(err error) *SlotLimit      { c := *s; c.fault = err; return &c }

// Name returns the name of the slots.
func (s *SlotLimit) Name() string { return s.name }

// Book returns the document that has the slots, or nil.
func (s *SlotLimit) Book() Book { return s.book }

// Limit returns how many slots a key may hold as of now.
func (s *SlotLimit) Limit(key string) int64 {
	if s.book != nil {
		return s.book.View().Number(s.inBook, s.plan, key)
	}
	return s.limit
}

// Count returns how many slots a key holds in all processes.
func (s *SlotLimit) Count(ctx context.Context, key string) (int64, error) {
	if ctx == nil {
		return 0, ErrNoContext
	}
	return s.store.Slots.Count(ctx, s.name, key)
}

// Close frees the slots of this name, and lets nobody acquire any more.
func (s *SlotLimit) Close(ctx context.Context) error {
	if ctx == nil {
		return ErrNoContext
	}
	s.closed.Store(true)
	return s.store.Slots.Close(ctx, s.name)
}

func (s *SlotLimit) isClosed() bool { return s.closed.Load() || s.store.closed.Load() }

// A Claim asks for a slot.
type Claim struct {
	Slots   *SlotLimit
	Key     string
	OneMore bool // one above the limit, for who will evict another
	Queue   int  // how many of the key may wait; 0: it is refused at once
}

// A Slot is what claims hold until it is released. The zero Slot holds nothing.
type Slot struct {
	first    held
	others   []held
	released atomic.Bool
}

// held is what one claim was granted.
type held struct {
	slots.Grant

	of   *SlotLimit
	took time.Duration // the call; 0 unless the observer is Timed
}

func (s *Slot) at(i int) *held {
	if i == 0 {
		return &s.first
	}
	return &s.others[i-1]
}

// Release gives the slots back. Further calls do nothing.
func (s *Slot) Release() {
	if s.released.Swap(true) || s.first.of == nil {
		return
	}
	s.giveBack()
	for i := range len(s.others) + 1 {
		of := s.at(i).of
		if o := of.store.Observer; o != nil && o.Released != nil {
			o.Released(of.name)
		}
	}
}

// giveBack releases what is held, and tells nobody.
func (s *Slot) giveBack() {
	for i := range len(s.others) + 1 {
		if h := s.at(i); h.Hold != nil {
			h.Hold.Release()
		}
	}
}

// Lost is closed when the store has taken this process for dead. It is nil if that cannot be.
func (s *Slot) Lost() <-chan struct{} {
	for i := range len(s.others) + 1 {
		if h := s.at(i); h.Hold != nil && h.Lost() != nil {
			return h.Lost()
		}
	}
	return nil
}

// Answers returns the answer to each claim, as of when it was granted. Of a claim with OneMore, less than 0 may remain.
func (s *Slot) Answers() []PolicyAnswer {
	all := make([]PolicyAnswer, len(s.others)+1)
	for i := range all {
		h := s.at(i)
		all[i] = PolicyAnswer{Limiter: h.of.name, Policy: h.of.name, Allowed: true, Limit: h.Limit, Remaining: h.Limit - h.Held}
		if h.Source == step.SourceOpen {
			all[i].Remaining = step.MaxInt
		}
	}
	return all
}

// Full returns the answer of the slots that are full, if that is what an error of Take says.
func Full(err error) (PolicyAnswer, bool) {
	var full *slots.FullError
	if !errors.As(err, &full) {
		return PolicyAnswer{}, false
	}
	return PolicyAnswer{Limiter: full.Name, Policy: full.Name, Limit: full.Limit}, true
}

// Take acquires a slot for each claim, in their order, at once or not at all, and s, which must be zero, holds them. If a
// claim has a Queue, it is the only one, and waits. After an error s holds nothing, and need not be released.
func (s *Slot) Take(ctx context.Context, claims []Claim) (err error) {
	if ctx == nil {
		return ErrNoContext
	}
	if len(claims) > 1 {
		s.others = make([]held, len(claims)-1)
	}
	done := false
	defer func() {
		if !done { // also if an observer panics
			s.giveBack()
			s.first.of = nil // to release it would tell the observer of slots that nobody holds
		}
	}()
	from := 0 // of those that are told of
	for i := range claims {
		if err = claims[i].take(ctx, s.at(i)); err == nil {
			continue
		}
		if _, full := Full(err); full {
			from, claims = i, claims[:i+1]
		}
		break
	}
	for i := from; i < len(claims); i++ {
		claims[i].tell(ctx, s.at(i), err)
	}
	done = err == nil
	return err
}

// take acquires one slot.
func (c *Claim) take(ctx context.Context, h *held) (err error) {
	if h.of = c.Slots; h.of.isClosed() {
		return slots.ErrClosed
	}
	if h.of.fault != nil {
		return h.of.fault
	}
	claim := slots.Acquisition{Name: h.of.name, Key: c.Key, Limit: h.of.Limit(c.Key), OneMore: c.OneMore, Queue: c.Queue}
	start := h.of.store.begin()
	h.Grant, err = h.of.store.Slots.Acquire(ctx, claim)
	h.took = took(start)
	if err == nil && h.of.isClosed() { // meanwhile
		return slots.ErrClosed
	}
	return err
}

// tell tells the store's observer what became of a claim.
func (c *Claim) tell(ctx context.Context, h *held, err error) {
	o := c.Slots.store.Observer
	if o == nil || o.Acquired == nil {
		return
	}
	e := store.SlotEvent{Slots: c.Slots.name, Granted: err == nil, Source: h.Source, Took: h.took}
	var full *slots.FullError
	if errors.As(err, &full) {
		e.Source, e.ObserveOnly, e.Key = full.Source, ctxmark.IsObserveOnly(ctx), hidden.Of(c.Key)
	} else if err != nil {
		e.Source, e.Err = step.SourceNone, err
	}
	o.Acquired(ctx, e)
}

// The notices of slots, which reach all processes that hold some of a key.
type (
	Notice       = slots.Notice
	Heard        = slots.Heard
	NoticeAnswer = slots.NoticeAnswer
)

// Notices returns what sends and hears the notices of the slots.
func (s *SlotLimit) Notices() slots.Noticer { return s.store.Slots }
