package backend

import (
	"context"
	"errors"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Slots are one plan of slots: a number, or what a document gives to their keys.
type Slots struct {
	name  string
	fixed *core.Slots // nil: the document has them

	book Book
	plan string
}

// ConstantSlots returns slots whose number does not change.
func ConstantSlots(s *core.Slots) *Slots { return &Slots{name: s.Name(), fixed: s} }

// DocumentedSlots returns slots of a document.
func DocumentedSlots(b Book, name, plan string) *Slots {
	return &Slots{name: name, book: b, plan: plan}
}

// Name returns the name of the slots.
func (s *Slots) Name() string { return s.name }

// Book returns the document that has the slots, or nil.
func (s *Slots) Book() Book { return s.book }

// Now returns what applies to a key as of now.
func (s *Slots) Now(key string) *core.Slots {
	if s.fixed != nil {
		return s.fixed
	}
	return s.book.View().Slots(s.name, s.plan, key)
}

// A Claim asks for a slot.
type Claim struct {
	Slots   *Slots
	Key     string
	OneMore bool // one above the limit, for who will evict another
	Queue   int  // how many of the key may wait; 0: it is refused at once
}

// A Slot is what claims hold until it is released.
type Slot struct{ held *core.Slot }

// Release gives the slots back. Further calls do nothing.
func (s *Slot) Release() { s.held.Release() }

// Lost is closed when the store has taken this process for dead.
func (s *Slot) Lost() <-chan struct{} { return s.held.Lost() }

// Take acquires a slot for each claim, at once or not at all. If one has a Queue, it is the only one, and waits.
// A refusal has the answer of the slots that are full.
func Take(ctx context.Context, claims []Claim) (*Slot, []Answer, *Answer, error) {
	asked, acquire := make([]core.Claim, len(claims)), core.AcquireAll
	for i, c := range claims {
		asked[i] = core.Claim{Slots: c.Slots.Now(c.Key), Key: c.Key, OneMore: c.OneMore, Queue: c.Queue}
		if c.Queue > 0 {
			acquire = core.AcquireAllWait
		}
	}
	s, err := acquire(ctx, asked...)
	var full *core.FullError
	if errors.As(err, &full) {
		return nil, nil, &Answer{Limiter: full.Slots, Policy: full.Slots, Limit: full.Limit}, err
	} else if err != nil {
		return nil, nil, nil, err
	}
	occupied := s.Occupancies()
	answers := make([]Answer, len(occupied))
	for i, o := range occupied {
		answers[i] = Answer{Limiter: o.Slots, Policy: o.Slots, Allowed: true, Limit: o.Limit, Remaining: o.Limit - o.Held}
		if s.Source() == core.SourceOpen {
			answers[i].Remaining = core.NoLimit
		}
	}
	return &Slot{s}, answers, nil, nil
}

// The notices of slots, which reach all processes that hold some of a key.
type (
	Notice       = store.Notice
	Heard        = store.Heard
	NoticeAnswer = store.Answer
	Noticer      = store.Noticer
)

// MaxNotice is the most bytes of a notice.
const MaxNotice = store.MaxNotice

// Notices returns what sends and hears the notices of the slots.
func (s *Slots) Notices() Noticer {
	n, _ := s.Now("").Store().(store.Noticer)
	return n
}

// Count returns how many slots a key holds in all processes.
func (s *Slots) Count(ctx context.Context, key string) (int64, error) {
	return s.Now(key).Count(ctx, key)
}

// Limit returns how many slots a key may hold as of now.
func (s *Slots) Limit(key string) int64 { return s.Now(key).Limit() }
