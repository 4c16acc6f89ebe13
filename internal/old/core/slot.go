package core

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A Slot is held until it is released. It is safe for concurrent use. The zero Slot stands
// for nothing, and there is nothing to release.
type Slot struct {
	hold   store.Hold
	source Source

	state   atomic.Uint32
	tickets uint8 // a bit for each claim: see line

	first  place
	others []place // of the other claims
}

// A place is what a claim was granted.
type place struct {
	slots       *Slots
	key         hidden.Text
	limit, held int64
}

func newSlot(g store.Grant, claims []Claim) *Slot {
	s := &Slot{hold: g.Hold, source: g.Source}
	if len(claims) > 1 {
		s.others = make([]place, 0, len(claims)-1)
	}
	for i, c := range claims {
		p := place{c.Slots, hidden.Of(c.Key), g.Occupancies[i].Limit, g.Occupancies[i].Held}
		if i == 0 {
			s.first = p
		} else {
			s.others = append(s.others, p)
		}
	}
	return s
}

// places calls f for each claim.
func (s *Slot) places(f func(*place)) {
	if s.hold == nil {
		return
	}
	f(&s.first)
	for i := range s.others {
		f(&s.others[i])
	}
}

// String returns a description for people, without the keys.
func (s *Slot) String() string {
	text := "no slot"
	s.places(func(p *place) {
		if p == &s.first {
			text = fmt.Sprintf("a slot of %q", p.slots.name)
		} else {
			text += fmt.Sprintf(" and %q", p.slots.name)
		}
	})
	return text
}

// The states of a Slot.
const (
	held uint32 = iota
	released
)

// Release frees the slot. It does not wait, cannot fail, and may be called any number
// of times.
func (s *Slot) Release() {
	if s.state.Swap(released) == held && s.hold != nil {
		s.free()
		s.over()
	}
}

// free gives the slot back to the store.
func (s *Slot) free() {
	s.hold.Release()
	s.freed()
}

// freed wakes who waits for what was given back.
func (s *Slot) freed() {
	tickets := s.tickets
	s.places(func(p *place) {
		p.slots.state.queue.freed(p.key.Reveal(), tickets&1 != 0)
		tickets >>= 1
	})
}

// over tells the Observers that the slot is held no more.
func (s *Slot) over() {
	s.places(func(p *place) {
		if o := p.slots.observer; o != nil && o.SlotReleased != nil {
			o.SlotReleased(p.slots.name)
		}
	})
}

// Lost returns a channel that is closed if the store declared this process dead while it was only
// paused or partitioned. In the meantime another process may have taken the slot. The slot is
// counted again without delay, and must still be released.
//
// The channel is nil if the store never loses a slot. It is not closed merely because
// the store is unreachable.
func (s *Slot) Lost() <-chan struct{} {
	if s.hold == nil {
		return nil
	}
	return s.hold.Lost()
}

// Source returns the source of the grant. It is [SourceStore] or, while the store is unreachable,
// [SourceLocal] or [SourceOpen]. It is [SourceNone] for the zero Slot.
func (s *Slot) Source() Source { return s.source }

// Occupancies returns the Occupancy of each claim, in order. It is as of when the slot was granted,
// including this slot.
func (s *Slot) Occupancies() (all []Occupancy) {
	if s.hold != nil {
		all = make([]Occupancy, 0, 1+len(s.others))
	}
	s.places(func(p *place) { all = append(all, Occupancy{p.slots.name, p.limit, p.held}) })
	return all
}

// An Occupancy is the number of slots that a key holds and may hold.
type Occupancy struct {
	Slots string // the name
	Limit int64
	Held  int64 // by all processes
}

// Remaining returns how many more slots the key may hold.
func (o Occupancy) Remaining() int64 { return max(o.Limit-o.Held, 0) }

// A FullError is an [ErrFull] that names the slots that refused. The state of the other
// claims is not known.
type FullError struct {
	Occupancy

	Claim  int // the index of the claim that was refused
	Source Source

	again time.Duration // after which time a caller that waits should ask; 0: no matter
}

// Error returns the name and the numbers, without the key.
func (e *FullError) Error() string {
	return fmt.Sprintf("headgate: all slots %q are taken: %d of %d", e.Slots, e.Held, e.Limit)
}

// Is reports whether target is [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }
