package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A SlotStore counts slots. It is a store of package memstore or redisstore, or one that was made
// with package store, which describes it to authors of stores.
type SlotStore = store.SlotStore

// Slots limit how many of something each key holds at once, such as open sockets, streams or
// running jobs. They count in this process or, if the store is shared, in all processes together.
// Slots are safe for concurrent use. Slots of one store with the same name share their counts.
//
// If a process is killed or cut off, its slots are freed after a delay that depends on
// the store. On an orderly shutdown, call [Slots.Close].
type Slots struct {
	store SlotStore
	name  string
	limit int64
	state *slotsState // shared by all that With made of each other

	observer *Observer // of the store; nil if there is none
}

type slotsState struct {
	closed   atomic.Bool // Acquire fails
	returned atomic.Bool // the store has closed them
	queue    queue
}

// NewSlots returns slots. Each key may hold limit of them at once, from 0 to [NoLimit], which
// counts and never refuses. The name, 1 to 64 printable ASCII characters, is part of every stored
// key.
//
// The error joins a [ConfigError] for each fault found.
func NewSlots(s SlotStore, name string, limit int64) (*Slots, error) {
	var err error
	if limit < 0 || limit > NoLimit {
		err = fmt.Errorf("a limit of %d slots is not 0 to %d", limit, int64(NoLimit))
	}
	f := faults{limiter: name, slots: true}
	f.add("", err)
	f.add("", CheckName(name))
	f.add("", checkStore(s))
	if err := f.err(); err != nil {
		return nil, err
	}
	return &Slots{s, name, limit, new(slotsState), s.Observer()}, nil
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

// Store returns the slots' store.
func (s *Slots) Store() SlotStore { return s.store }

// Limit returns how many slots a key may hold at once, 0 to [NoLimit].
func (s *Slots) Limit() int64 { return s.limit }

// Acquire acquires a slot of the key. Release it when its socket or job is over. If the key holds
// as many as it may, the error is [ErrFull], as a [FullError]. After any other error it is unknown
// whether a slot was free. After any error none is held.
//
// The context bounds the wait for the store's answer, not how long the slot is held.
func (s *Slots) Acquire(ctx context.Context, key string) (*Slot, error) {
	return AcquireAll(ctx, Claim{Slots: s, Key: key})
}

// Count returns how many slots the key holds in all processes.
func (s *Slots) Count(ctx context.Context, key string) (int64, error) {
	if ctx == nil {
		return 0, errContext
	}
	return s.store.CountSlots(ctx, s.name, key)
}

// Close frees every slot of this name that this process holds, and makes Acquire fail with
// [ErrClosed] from now on. Close the sockets first, since they are no longer counted. After an
// error, other processes may count the slots for as long as if this process had been killed.
// Acquire fails nevertheless, and Close may be called again to retry. After a Close without an
// error, another does nothing. With a nil context, Close returns [ErrQuestion] and closes nothing.
func (s *Slots) Close(ctx context.Context) error {
	if ctx == nil {
		return errContext
	}
	s.state.closed.Store(true)
	s.state.queue.closed()
	if s.state.returned.Load() {
		return nil
	}
	if err := s.store.CloseSlots(ctx, s.name); err != nil {
		return err
	}
	s.state.returned.Store(true)
	return nil
}

// A Claim asks for a slot of the key.
type Claim struct {
	Slots *Slots
	Key   string `json:"-"`

	// OneMore lets the key hold one slot above the limit, unless the limit is 0. It is for a claim
	// that replaces the holder of another slot, if that holder ends only when the claim is granted.
	// All such claims together may hold one slot above the limit, so of several one is granted at a
	// time. Its [Occupancy] shows a slot above the limit: Held is then larger than Limit.
	OneMore bool

	// Queue is how many callers in this process may wait in the line of the claim: see
	// [AcquireAllWait]. 0 or less means that none waits.
	Queue int
}

// Format implements [fmt.Formatter]: it prints the claim without its key.
func (c Claim) Format(s fmt.State, verb rune) {
	type plain Claim
	c.Key = hidden.Mark
	hidden.Print(s, verb, plain(c))
}

// AcquireAll acquires a slot for each claim, or none, and returns them as one Slot, to be released
// together. For example, a socket counts for its user, its address and the whole service. There are
// 1 to 8 claims, and no two of them have the same name and key. Slots that processes share must all
// have one store. Slots of this process alone may have any stores, such as memstores, for a limit
// of this process. Otherwise the error is [ErrQuestion].
//
// A shared store may grant the claims one after the other, and give them back if one is refused. So
// other calls may be refused for a moment although there is room. The same holds for several
// stores; stores of this process go first. Put the claim first that is most often refused.
func AcquireAll(ctx context.Context, claims ...Claim) (*Slot, error) {
	if ctx == nil {
		return nil, errContext
	}
	if err := checkTogether("claim", claims, maxClaims); err != nil {
		return nil, err
	}
	start := beginAll(claims)
	slot, err := acquireAll(ctx, claims, ask(claims))
	acquired(ctx, start, claims, slot, err)
	return slot, err
}

// acquireAll is AcquireAll for claims that can be made in one call, as they are asked of stores.
func acquireAll(ctx context.Context, claims []Claim, asked []store.Claim) (*Slot, error) {
	if anyClosed(claims) {
		return nil, ErrClosed
	}
	g, err := askAll(ctx, claims, asked)
	if err != nil {
		return nil, named(err, claims)
	}
	slot := newSlot(g, claims)
	if anyClosed(claims) { // meanwhile
		slot.free()
		return nil, ErrClosed
	}
	return slot, nil
}

func anyClosed(claims []Claim) bool {
	return slices.ContainsFunc(claims, func(c Claim) bool { return c.Slots.state.closed.Load() })
}

// ask returns the claims as they are asked of stores.
func ask(claims []Claim) []store.Claim {
	asked := make([]store.Claim, len(claims))
	for i, c := range claims {
		asked[i] = store.Claim{Name: c.Slots.name, Key: c.Key, Limit: c.Slots.Limit(), OneMore: c.OneMore}
	}
	return asked
}

// askAll asks the stores of the claims.
func askAll(ctx context.Context, claims []Claim, asked []store.Claim) (store.Grant, error) {
	first := claims[0].Slots.store
	for _, c := range claims[1:] {
		if c.Slots.store != first {
			return askStores(ctx, claims, asked)
		}
	}
	return first.AcquireSlots(ctx, asked)
}

// named returns the error of a store, with the name of the slots if they are full.
func named(err error, claims []Claim) error {
	var full *store.FullError
	if !errors.As(err, &full) {
		return err
	}
	o := full.Occupancy
	return &FullError{Occupancy{claims[full.Claim].Slots.name, o.Limit, o.Held}, full.Claim, full.Source, full.Again}
}
