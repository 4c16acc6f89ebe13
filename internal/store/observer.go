package store

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
)

// An Observer is what is behind a core.Observer. Functions that are nil are skipped.
//
// No lock of a store is held while one is called. If one panics, so does the call that it is told of: a charge stays, a
// slot is released. Called, Changed, SlotsLost and SlotsRestated may be called by a goroutine of the store, where a
// panic ends the process. Nobody is told of a malformed call.
type Observer struct {
	// Timed asks for the Took of decisions and slots, which is otherwise 0: to measure it takes about as long as a
	// decision in memory.
	Timed bool

	Decided  func(context.Context, DecisionEvent)
	Settled  func(context.Context, SettleEvent)
	Acquired func(context.Context, SlotEvent)
	Released func(slots string)
	Changed  func(reason error)

	// Package stats is told of these, too: of calls to servers; that this process was taken for dead while it held so
	// many slots, and that a server may have lost so many keys of slots; and of a store in memory when it is made, with
	// a function that says how much it uses.
	Called        func(Call)
	SlotsLost     func(held int64)
	SlotsRestated func(keys int)
	Memory        func(use func() MemoryUse)
}

// A Call is a call of a store to its server: about decisions, settlements, or keys of slots. Heartbeats, resets and
// notices are none.
type Call struct {
	Questions int
	Took      time.Duration
	Err       error // of the call as a whole
}

// MemoryUse is how much memory a store in this process uses.
type MemoryUse struct {
	Keys    int // states
	Bytes   int64
	Evicted uint64 // states that were dropped while they still counted
}

// A DecisionEvent is a core.DecisionEvent.
type DecisionEvent struct {
	Limiter, Policy      string
	Units                int64
	Allowed, ObserveOnly bool
	Source               step.Source
	Took                 time.Duration
	Err                  error
	Key                  hidden.Text // of a refusal by this limiter
}

// A SettleEvent is a core.SettleEvent.
type SettleEvent struct {
	Limiter                    string
	Charged, Actual, Uncovered int64
	Err                        error
}

// A SlotEvent is a core.SlotEvent.
type SlotEvent struct {
	Slots                string
	Granted, ObserveOnly bool
	Source               step.Source
	Took                 time.Duration
	Err                  error
	Key                  hidden.Text // of a refusal
}

// And returns an observer that tells o and then another. Either may be nil.
func (o *Observer) And(other *Observer) *Observer {
	if o == nil {
		return other
	}
	if other == nil {
		return o
	}
	return &Observer{
		Timed:         o.Timed || other.Timed,
		Decided:       bothWith(o.Decided, other.Decided),
		Settled:       bothWith(o.Settled, other.Settled),
		Acquired:      bothWith(o.Acquired, other.Acquired),
		Released:      both(o.Released, other.Released),
		Changed:       both(o.Changed, other.Changed),
		Called:        both(o.Called, other.Called),
		SlotsLost:     both(o.SlotsLost, other.SlotsLost),
		SlotsRestated: both(o.SlotsRestated, other.SlotsRestated),
		Memory:        both(o.Memory, other.Memory),
	}
}

// both returns a function that calls two, or the one that is not nil, or nil.
func both[T any](first, second func(T)) func(T) {
	if first == nil {
		return second
	}
	if second == nil {
		return first
	}
	return func(event T) {
		first(event)
		second(event)
	}
}

// bothWith is both for functions with a context.
func bothWith[T any](first, second func(context.Context, T)) func(context.Context, T) {
	if first == nil {
		return second
	}
	if second == nil {
		return first
	}
	return func(ctx context.Context, event T) {
		first(ctx, event)
		second(ctx, event)
	}
}
