package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// Slots limit how many of something each key holds at once: open sockets, streams,
// running jobs; in this process or, if the store is shared, in all processes together.
// Slots are safe for concurrent use. Slots of one store with the same name share their
// counts.
//
// If a process is killed or cut off, its slots are freed after a delay that depends on
// the store. On an orderly shutdown, call [Slots.Close].
type Slots struct {
	store SlotStore
	name  string
	limit func(key string) int64
	state *slotsState // shared by all that With made of each other
}

type slotsState struct {
	closed   atomic.Bool // Acquire fails
	returned atomic.Bool // the store has closed them
}

// NewSlots returns slots of which each key may hold limit at once, from 0 to [NoLimit],
// which counts and never refuses. The name, 1 to 64 printable ASCII characters, is part
// of every stored key.
//
// The error joins a [ConfigError] for each fault found.
func NewSlots(store SlotStore, name string, limit int64) (*Slots, error) {
	var err error
	if limit < 0 || limit > NoLimit {
		err = fmt.Errorf("a limit of %d slots is not 0 to %d", limit, int64(NoLimit))
	}
	return newSlots(store, name, func(string) int64 { return limit }, err)
}

// NewSlotsFunc is NewSlots with a limit for each key. The function is called for each
// acquire, by many goroutines, so it should be fast. A result below 0 means 0, and one
// above [NoLimit] means NoLimit. Lowering a limit takes no slots from a key that holds
// more.
func NewSlotsFunc(store SlotStore, name string, limit func(key string) int64) (*Slots, error) {
	var err error
	if limit == nil {
		err = errors.New("the function that returns the limit is nil")
	}
	return newSlots(store, name, limit, err)
}

// newSlots returns slots unless there is a fault in the limit or elsewhere.
func newSlots(store SlotStore, name string, limit func(key string) int64, fault error) (*Slots, error) {
	f := faults{limiter: name, slots: true}
	f.add("", fault)
	f.add("", checkName(name))
	f.add("", checkStore(store))
	if err := f.err(); err != nil {
		return nil, err
	}
	return &Slots{store, name, limit, new(slotsState)}, nil
}

// With returns slots of the same store and name with another limit, for plans: slots
// that a key holds count for both. Make such slots once, not for each request. Closing
// either closes both.
func (s *Slots) With(limit int64) (*Slots, error) {
	w, err := NewSlots(s.store, s.name, limit)
	if err == nil {
		w.state = s.state
	}
	return w, err
}

// Name returns the name.
func (s *Slots) Name() string { return s.name }

// String returns a description for people.
func (s *Slots) String() string { return fmt.Sprintf("slots %q", s.name) }

// Store returns the slots' store. [AcquireAll] needs slots whose stores are equal.
func (s *Slots) Store() SlotStore { return s.store }

// Limit returns how many slots the key may hold at once, 0 to [NoLimit].
func (s *Slots) Limit(key string) int64 { return min(max(s.limit(key), 0), NoLimit) }

// Acquire takes a slot of the key. Release it when what it stands for is over. If the
// key holds as many as it may, the error is [ErrFull], as a [FullError]. After any other
// error it is unknown whether a slot was free. After any error none is held.
//
// The context bounds the wait for the store's answer, not how long the slot is held.
func (s *Slots) Acquire(ctx context.Context, key string) (*Slot, error) {
	return AcquireAll(ctx, Claim{s, key})
}

// Count returns how many slots the key holds in all processes.
func (s *Slots) Count(ctx context.Context, key string) (int64, error) {
	return s.store.CountSlots(ctx, s, key)
}

// Close frees every slot of this name that this process holds, and makes Acquire fail
// with [ErrClosed] from now on. Close the sockets first, since they are no longer
// counted. After an error, other processes may count the slots for as long as if this
// process had been killed; Acquire fails nevertheless, and Close may be called again to
// retry. After a Close without an error, another does nothing.
func (s *Slots) Close(ctx context.Context) error {
	s.state.closed.Store(true)
	if s.state.returned.Load() {
		return nil
	}
	if err := s.store.CloseSlots(ctx, s); err != nil {
		return err
	}
	s.state.returned.Store(true)
	return nil
}

// A Claim asks for a slot of the key.
type Claim struct {
	Slots *Slots
	Key   string
}

// AcquireAll takes a slot for each claim, or none, and returns them as one Slot, to be
// released together: for example, a socket counts for its user, its address and the
// whole service. There are 1 to 8 claims, of slots with equal stores, and no two of them
// have the same name and key; otherwise the error is [ErrQuestion].
//
// A shared store may take the claims one after the other and give them back if one is
// refused, so for a moment other calls may be refused although there is room. Put the
// claim first that is most often refused.
func AcquireAll(ctx context.Context, claims ...Claim) (*Slot, error) {
	if err := checkTogether("claim", claims); err != nil {
		return nil, err
	}
	closed := func(c Claim) bool { return c.Slots.state.closed.Load() }
	if slices.ContainsFunc(claims, closed) {
		return nil, ErrClosed
	}
	g, err := claims[0].Slots.store.AcquireSlots(ctx, claims)
	if err != nil {
		return nil, err
	}
	slot := &Slot{grant: g}
	if slices.ContainsFunc(claims, closed) { // meanwhile
		slot.Release()
		return nil, ErrClosed
	}
	return slot, nil
}

// A Slot is held until it is released. It is safe for concurrent use.
type Slot struct {
	grant    Grant
	released atomic.Bool
}

// Release frees the slot. It does not wait, cannot fail, and may be called any number
// of times.
func (s *Slot) Release() {
	if !s.released.Swap(true) {
		s.grant.Hold.Release()
	}
}

// Lost returns a channel that is closed if the store declared this process dead while
// it was only paused or partitioned. In the meantime another process may have taken the
// slot. The slot counts again by then, and must still be released. To keep strictly to
// the limit, close the socket.
//
// The channel is nil if the store never loses a slot. It is not closed merely because
// the store is unreachable.
func (s *Slot) Lost() <-chan struct{} { return s.grant.Hold.Lost() }

// Source returns what granted the slot: [SourceStore] or, while the store is
// unreachable, [SourceLocal] or [SourceOpen].
func (s *Slot) Source() Source { return s.grant.Source }

// Occupancies returns what was known of each claim, in order, when the slot was granted,
// including this slot. The caller must not modify the slice.
func (s *Slot) Occupancies() []Occupancy { return s.grant.Occupancies }

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
}

// Error returns the name and the numbers, without the key.
func (e *FullError) Error() string {
	return fmt.Sprintf("headgate: all slots %q are taken: %d of %d", e.Slots, e.Held, e.Limit)
}

// Is reports whether target is [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }
