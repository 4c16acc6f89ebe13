package backend

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// A SlotLimit is one plan of slots, and says how many a key may hold: a number, or what a document gives to the key. It
// does not change, and is safe for concurrent use. Plans of one name share the flag that they are closed.
type SlotLimit struct {
	name   string
	stores *Stores
	number int64        // unless there is a book
	closed *atomic.Bool // of all plans
	fault  error        // why nothing can be acquired; nil: none

	book        Book
	slotsInBook int
	plan        string
}

// NewSlotLimit returns slots of a number.
func NewSlotLimit(stores *Stores, name string, number int64) *SlotLimit {
	return &SlotLimit{name: name, stores: stores, number: number, closed: new(atomic.Bool)}
}

// NewDocumentedSlotLimit returns slots of a document, by their number there.
func NewDocumentedSlotLimit(stores *Stores, book Book, slots int, name string) *SlotLimit {
	return &SlotLimit{name: name, stores: stores, closed: new(atomic.Bool), book: book, slotsInBook: slots}
}

// WithLimit returns the same slots with another number, WithPlan with that of another plan of the document, and Faulty
// such that acquires fail.
func (s *SlotLimit) WithLimit(number int64) *SlotLimit { c := *s; c.number = number; return &c }
func (s *SlotLimit) WithPlan(plan string) *SlotLimit   { c := *s; c.plan = plan; return &c }
func (s *SlotLimit) Faulty(err error) *SlotLimit       { c := *s; c.fault = err; return &c }

// Name returns the name of the slots.
func (s *SlotLimit) Name() string { return s.name }

// Book returns the document that has the slots, or nil.
func (s *SlotLimit) Book() Book { return s.book }

// Limit returns how many slots a key may hold as of now.
func (s *SlotLimit) Limit(key string) int64 {
	if s.book != nil {
		return s.book.Load().Slots[s.slotsInBook].Find(s.plan, key)
	}
	return s.number
}

// Count returns how many slots a key holds in all processes. Those of this process count as they are, and those of
// others as they have stated them.
func (s *SlotLimit) Count(ctx context.Context, key string) (int64, error) {
	if ctx == nil {
		return 0, ErrNoContext
	}
	return s.stores.Slots.Count(ctx, s.name, key)
}

// Close frees the slots of this name, and lets nobody acquire any more.
func (s *SlotLimit) Close(ctx context.Context) error {
	if ctx == nil {
		return ErrNoContext
	}
	s.closed.Store(true)
	return s.stores.Slots.Close(ctx, s.name)
}

func (s *SlotLimit) isClosed() bool { return s.closed.Load() || s.stores.closed.Load() }

// A Claim asks for a slot.
type Claim struct {
	Slots   *SlotLimit
	Key     string
	OneMore bool // one above the limit, for who will evict another
	Queue   int  // how many of the key may wait; 0: it is refused at once
}

// A Slot is what claims hold until it is released. The zero Slot holds nothing.
type Slot struct {
	all      []granted
	room     [1]granted // so that one claim allocates nothing more
	released atomic.Bool
}

// granted is what one claim was granted.
type granted struct {
	slots.Grant

	slots *SlotLimit
	took  time.Duration // the call; 0 unless the observer is Timed
}

// Release gives the slots back. Further calls do nothing. Others may have acquired what is released before an observer
// hears of it.
func (s *Slot) Release() {
	if s.released.Swap(true) {
		return
	}
	// All are given back before anybody is told: an observer may panic.
	giveBack(s.all)
	for i := range s.all {
		limit := s.all[i].slots
		observer := limit.stores.Observer
		if observer != nil && observer.Released != nil {
			observer.Released(limit.name)
		}
	}
}

// giveBack releases what was granted, and tells nobody.
func giveBack(all []granted) {
	for i := range all {
		if all[i].Hold != nil {
			all[i].Release()
		}
	}
}

// Lost is closed when the store has taken this process for dead. It is nil if that cannot be. One channel stands for
// all, the first: a store takes a process for dead as a whole.
func (s *Slot) Lost() <-chan struct{} {
	for i := range s.all {
		if lost := s.all[i].Lost(); lost != nil {
			return lost
		}
	}
	return nil
}

// Above returns the index of the claim with OneMore whose slot is the one above the limit, or -1. There is one at most.
func (s *Slot) Above() int {
	return slices.IndexFunc(s.all, func(g granted) bool { return g.Held > g.Limit && g.Source != step.SourceOpen })
}

// Answers returns the answer to each claim, as of when it was granted.
func (s *Slot) Answers() []PolicyAnswer {
	all := make([]PolicyAnswer, len(s.all))
	for i := range all {
		granted := &s.all[i]
		name := granted.slots.name
		all[i] = PolicyAnswer{
			Limiter: name, Policy: name, Allowed: true,
			Limit: granted.Limit, Remaining: max(granted.Limit-granted.Held, 0),
		}
		if granted.Source == step.SourceOpen {
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

// Take acquires a slot for each claim, in their order, at once or not at all, and adds them to what s holds, which was
// not released yet. If a claim has a Queue, it is the only one, and waits. After an error s holds what it held before.
func (s *Slot) Take(ctx context.Context, claims []Claim) (err error) {
	if ctx == nil {
		return ErrNoContext
	}
	if s.all == nil {
		s.all = s.room[:0]
	}
	before := len(s.all)
	s.all = append(s.all, make([]granted, len(claims))...)
	taken := s.all[before:]
	done := false
	defer func() {
		if !done { // also if an observer panics
			giveBack(taken)
			s.all = s.all[:before]
		}
	}()
	// If slots are full, only they have refused. Of any other error it does not matter which claim met it: nobody has
	// decided about any of them.
	told := claims
	firstTold := 0
	for i := range claims {
		err = claims[i].take(ctx, &taken[i])
		if err == nil {
			continue
		}
		if _, full := Full(err); full {
			told = claims[i : i+1]
			firstTold = i
		}
		break
	}
	for i := range told {
		told[i].tell(ctx, &taken[firstTold+i], err)
	}
	done = err == nil
	return err
}

// take acquires one slot. Slots that are closed while it waits are given back by Take.
func (c *Claim) take(ctx context.Context, granted *granted) (err error) {
	limit := c.Slots
	granted.slots = limit
	if limit.isClosed() {
		return slots.ErrClosed
	}
	if limit.fault != nil {
		return limit.fault
	}
	start := limit.stores.begin()
	granted.Grant, err = limit.stores.Slots.Acquire(ctx, slots.Acquisition{
		Name: limit.name, Key: c.Key, Limit: limit.Limit(c.Key), OneMore: c.OneMore, Queue: c.Queue,
	})
	granted.took = took(start)
	if err == nil && limit.isClosed() { // meanwhile
		return slots.ErrClosed
	}
	return err
}

// tell tells the store's observer what became of a claim.
func (c *Claim) tell(ctx context.Context, granted *granted, err error) {
	observer := c.Slots.stores.Observer
	if observer == nil || observer.Acquired == nil {
		return
	}
	event := store.SlotEvent{Slots: c.Slots.name, Granted: err == nil, Source: granted.Source, Took: granted.took}
	var full *slots.FullError
	switch {
	case errors.As(err, &full):
		event.Source = full.Source
		event.ObserveOnly = ctxmark.IsObserveOnly(ctx)
		event.Key = hidden.Of(c.Key)
	case err != nil:
		event.Source = step.SourceNone
		event.Err = err
	}
	observer.Acquired(ctx, event)
}

// Notices returns what sends and hears the notices of slots.
func (s *SlotLimit) Notices() slots.Noticer { return s.stores.Slots }
