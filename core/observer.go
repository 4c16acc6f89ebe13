package core

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// An Observer is told of what limiters and slots decide, for metrics, logs and traces. Functions that are nil are
// skipped. They are called in the goroutine of the call, which waits for them, by many goroutines at once, and must
// return quickly. An Observer must not change after its store has been used.
//
// No event prints a key.
type Observer struct {
	// Decided is told of each charge of a decision, not of Peek. A Wait is told of each attempt, and of its error if it
	// ends before the first.
	Decided func(context.Context, DecisionEvent)

	// Settled is told of each charge that was corrected or given back, not if its units were right, and of reports.
	Settled func(context.Context, SettleEvent)

	// Acquired is told of each slot that was granted or refused. A wait is told when it ends.
	Acquired func(context.Context, SlotEvent)

	// Released is told of each slot that was released, with the name of its slots: once, also if it was lost before.
	Released func(slots string)

	// Changed is told when the store's server is away, with the reason, and when it is back, with nil.
	Changed func(error)

	backend *store.Observer // of package stats
}

func source(s step.Source, err error) string {
	if err != nil {
		return ""
	}
	return s.String()
}

// A DecisionEvent is a decision about one charge.
type DecisionEvent struct {
	// Limiter and Policy are names: of the policy that decided. Policy is empty if only other limiters of the call
	// refused.
	Limiter, Policy string

	Units   int64
	Allowed bool

	// ObserveOnly reports that a refusal affects nobody: it is of a rule that only observes.
	ObserveOnly bool

	// Source is what decided: "store"; "policy", without the store; "cache", a refusal that is remembered; "lease";
	// "local" or "open", while the server is away. It is empty with an Err.
	Source string

	Took time.Duration // the call of the store
	Err  error         // why there is no decision

	key hidden.Text
}

// Key returns the key that was refused, else "". It may be a secret, and have any bytes and length: bound the memory
// for keys, and show a keyed hash.
func (e DecisionEvent) Key() string { return e.key.Reveal() }

// A SettleEvent is the correction of one charge, or a report, which charged 0 units.
type SettleEvent struct {
	Limiter         string
	Charged, Actual int64
	Uncovered       int64 // units for which there was no room
	Err             error // then nobody knows whether the charge was corrected
}

// A SlotEvent is the result of asking for one slot.
type SlotEvent struct {
	Slots       string
	Granted     bool
	ObserveOnly bool          // a refusal affects nobody
	Source      string        // as of a DecisionEvent
	Took        time.Duration // the call of the store, or the whole wait
	Err         error         // why there is neither a grant nor a refusal

	key hidden.Text
}

// Key returns the key that was refused, else "": see [DecisionEvent.Key].
func (e SlotEvent) Key() string { return e.key.Reveal() }
