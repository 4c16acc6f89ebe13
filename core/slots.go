package core

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// maxClaims is the number of slots that are acquired together.
const maxClaims = 8

// Slots bound how many of something are held at once for each key: open sockets,
// streams, running jobs; in this process or, if the store is shared, in all of
// them together. They are safe for concurrent use. Slots of one store with the
// same name share their counts.
//
// Who is killed, or loses the network, holds nothing any more after a while, which
// the store tells; who ends in order calls [Slots.Close].
type Slots struct {
	store  SlotStore
	name   string
	limit  func(key string) int64
	closed *atomic.Bool // of all that With made of each other
}

// NewSlots makes slots of which each key may hold limit at once, 0 or more; up to
// [NoLimit], which counts and never refuses. The name, 1 to 64 printable ASCII
// characters, is part of every stored key.
//
// The error joins a [ConfigError] for everything that is wrong.
func NewSlots(store SlotStore, name string, limit int64) (*Slots, error) {
	s := &Slots{store, name, func(string) int64 { return limit }, new(atomic.Bool)}
	var err error
	if limit < 0 || limit > NoLimit {
		err = fmt.Errorf("a limit of %d slots is not 0 to %d", limit, int64(NoLimit))
	}
	return s.checked(err)
}

// NewSlotsFunc is NewSlots with a limit for each key. The function is called by
// many goroutines, each time that somebody acquires, so it should be quick; what
// it returns beyond 0 and [NoLimit] means these. A limit that has become smaller
// takes nothing from those who hold more.
func NewSlotsFunc(store SlotStore, name string, limit func(key string) int64) (*Slots, error) {
	s := &Slots{store, name, limit, new(atomic.Bool)}
	var err error
	if limit == nil {
		err = errors.New("the function that tells the limit is nil")
	}
	return s.checked(err)
}

func (s *Slots) checked(faults ...error) (*Slots, error) {
	faults = append(faults, checkName(s.name), checkStore(s.store))
	var all []error
	for _, err := range faults {
		if err != nil {
			all = append(all, &ConfigError{Limiter: s.name, Err: err, slots: true})
		}
	}
	if len(all) > 0 {
		return nil, errors.Join(all...)
	}
	return s, nil
}

// With returns slots of the same store and name with another limit, for plans: what
// a key holds counts for both. Make such slots once, not for each request. To
// close one is to close both.
func (s *Slots) With(limit int64) (*Slots, error) {
	w, err := NewSlots(s.store, s.name, limit)
	if err == nil {
		w.closed = s.closed
	}
	return w, err
}

// Name returns the name.
func (s *Slots) Name() string { return s.name }

// String describes the slots for people.
func (s *Slots) String() string { return fmt.Sprintf("slots %q", s.name) }

// Store returns the store. Slots are acquired together only if theirs are equal.
func (s *Slots) Store() SlotStore { return s.store }

// Limit returns how many the key may hold at once, 0 to [NoLimit].
func (s *Slots) Limit(key string) int64 { return min(max(s.limit(key), 0), NoLimit) }

// Acquire takes a slot of the key, to be released when what it stands for is over.
// If the key holds as many as it may, the error is [ErrFull], as a [FullError]. Any
// other error means that it is not known whether there was one; none is held.
//
// The context bounds the wait for the store's answer, and not how long the slot
// is held.
func (s *Slots) Acquire(ctx context.Context, key string) (*Slot, error) {
	return AcquireAll(ctx, Claim{s, key})
}

// Count returns how many the key holds, in all processes.
func (s *Slots) Count(ctx context.Context, key string) (int64, error) {
	return s.store.CountSlots(ctx, s, key)
}

// Close gives back every slot of this name that this process holds, whoever holds
// it, and from then on Acquire fails with [ErrClosed]. Close the sockets first: they
// are not counted any more. After an error, others may see them counted for as long
// as if the process had been killed. A second Close does nothing.
func (s *Slots) Close(ctx context.Context) error {
	if s.closed.Swap(true) {
		return nil
	}
	return s.store.CloseSlots(ctx, s)
}

// A Claim is what is acquired: a slot of the key.
type Claim struct {
	Slots *Slots
	Key   string
}

// AcquireAll takes a slot for each claim, all or none of them, and makes one of
// them, to be released together: a socket counts for its user, its address and
// the whole service. There are 1 to 8 claims, of slots with one store, and no two
// of the same name and key.
//
// With a shared store the claims are taken one after the other and given back if
// one is refused, so for a moment others may be refused too much. Put first the one
// that is most often refused.
func AcquireAll(ctx context.Context, claims ...Claim) (*Slot, error) {
	if err := checkClaims(claims); err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.Slots.closed.Load() {
			return nil, ErrClosed
		}
	}
	g, err := claims[0].Slots.store.AcquireSlots(ctx, claims)
	if err != nil {
		return nil, err
	}
	slot := &Slot{grant: g}
	for _, c := range claims {
		if c.Slots.closed.Load() { // meanwhile
			slot.Release()
			return nil, ErrClosed
		}
	}
	return slot, nil
}

func checkClaims(claims []Claim) error {
	if len(claims) == 0 || len(claims) > maxClaims {
		return fmt.Errorf("%w: %d claims, not 1 to %d", ErrQuestion, len(claims), maxClaims)
	}
	for i, c := range claims {
		if c.Slots == nil {
			return fmt.Errorf("%w: the slots of claim %d are nil", ErrQuestion, i+1)
		}
		if c.Slots.store != claims[0].Slots.store {
			return fmt.Errorf("%w: slots %q and %q have different stores", ErrQuestion, claims[0].Slots.name, c.Slots.name)
		}
		for _, b := range claims[:i] {
			if b.Slots.name == c.Slots.name && b.Key == c.Key {
				return fmt.Errorf("%w: slots %q are claimed twice for the same key", ErrQuestion, c.Slots.name)
			}
		}
	}
	return nil
}

// A Slot is held until it is released. It is safe for concurrent use.
type Slot struct {
	grant    Grant
	released atomic.Bool
}

// Release gives the slot back. It does not wait, cannot fail, and may be called
// any number of times.
func (s *Slot) Release() {
	if !s.released.Swap(true) {
		s.grant.Hold.Release()
	}
}

// Lost returns a channel that is closed if others were told that this process is
// dead, while it was only cut off or stopped: for a time the slot did not count,
// and somebody else may have taken its place. It counts again since, and is still
// to be released. To hold to the limit strictly, close the socket.
//
// The channel is nil if that cannot be. That the store does not answer is no loss.
func (s *Slot) Lost() <-chan struct{} { return s.grant.Hold.Lost() }

// Source tells who granted the slot: [SourceStore], or while the store is away
// [SourceLocal] or [SourceOpen].
func (s *Slot) Source() Source { return s.grant.Source }

// Occupancies returns what was known of each claim, in order, when the slot was
// granted, this one included. The slice is not to be changed.
func (s *Slot) Occupancies() []Occupancy { return s.grant.Occupancies }

// An Occupancy is how full slots are for a key.
type Occupancy struct {
	Slots string // the name
	Limit int64
	Held  int64 // by all processes
}

// Remaining is how many more the key may hold.
func (o Occupancy) Remaining() int64 { return max(o.Limit-o.Held, 0) }

// A FullError is the [ErrFull] that tells which slots refused. Nothing is known of
// the other claims.
type FullError struct {
	Occupancy

	Claim  int // its index
	Source Source
}

// Error tells the name and the numbers, and not the key.
func (e *FullError) Error() string {
	return fmt.Sprintf("headgate: all slots %q are taken: %d of %d", e.Slots, e.Held, e.Limit)
}

// Is makes a FullError an [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }
