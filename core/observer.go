package core

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// An Observer is told of what limiters and slots decide, for metrics, logs and traces. Functions that are nil are
// skipped. They are called in the goroutine of the call, which waits for them, by many goroutines at once, and must
// return quickly. An Observer must not change after its store has been used.
//
// No event prints a key.
type Observer struct {
	// Decided is told of each charge of a decision, not of Peek.
	Decided func(context.Context, DecisionEvent)

	// Settled is told of each charge that was corrected or given back, and of reports.
	Settled func(context.Context, SettleEvent)

	// Acquired is told of each slot that was granted or refused. A wait is told when it ends.
	Acquired func(context.Context, SlotEvent)

	// Released is told of each slot that was released, with the name of its slots.
	Released func(slots string)

	// Changed is told when the store's server is away, with the reason, and when it is back, with nil.
	Changed func(error)

	backend *backend.Observer // of package stats
}

// Backend is for package headgate itself. It returns the observer of package stats, after it was set if from is not nil.
func (o *Observer) Backend(from *backend.Observer) *backend.Observer {
	if from != nil {
		o.backend = from
	}
	return o.backend
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

	key *string
}

// Key returns the key that was refused, else "". It may be a secret, and have any bytes and length: bound the memory
// for keys, and show a keyed hash.
func (e DecisionEvent) Key() string { return reveal(e.key) }

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

	key *string
}

// Key returns the key that was refused, else "": see [DecisionEvent.Key].
func (e SlotEvent) Key() string { return reveal(e.key) }

func reveal(key *string) string {
	if key == nil {
		return ""
	}
	return *key
}

// JoinObservers returns what a store tells of, for the observers. It is for package redisstore.
func JoinObservers(all []*Observer) *backend.Observer {
	var told []*store.Observer
	var memories []func(*memory.Store)
	for _, o := range all {
		switch {
		case o == nil:
		case o.backend != nil:
			told, memories = append(told, o.backend.Told), append(memories, o.backend.Memory)
		default:
			told = append(told, o.told())
		}
	}
	return &backend.Observer{Told: store.Observers(told...), Memory: func(m *memory.Store) {
		for _, f := range memories {
			f(m)
		}
	}}
}

// told returns what the store tells the observer of.
func (o *Observer) told() *store.Observer {
	told := &store.Observer{
		Timed:        o.Decided != nil || o.Acquired != nil,
		SlotReleased: o.Released, Changed: o.Changed,
	}
	if o.Decided != nil {
		told.Refused = func(ctx context.Context, e store.DecisionEvent, key string) { o.Decided(ctx, decisionEvent(e, &key)) }
		told.Decided = func(ctx context.Context, e store.DecisionEvent) {
			if e.Allowed || e.Err != nil || e.Policy == "" { // others have been told with the key
				o.Decided(ctx, decisionEvent(e, nil))
			}
		}
	}
	if o.Settled != nil {
		told.Settled = func(ctx context.Context, e store.SettleEvent) {
			o.Settled(ctx, SettleEvent{e.Limiter, e.Units, e.Actual, e.Uncovered, e.Err})
		}
	}
	if o.Acquired != nil {
		told.SlotRefused = func(ctx context.Context, e store.SlotEvent, key string) { o.Acquired(ctx, slotEvent(e, &key)) }
		told.SlotAcquired = func(ctx context.Context, e store.SlotEvent) {
			if e.Granted || e.Err != nil {
				o.Acquired(ctx, slotEvent(e, nil))
			}
		}
	}
	return told
}

func decisionEvent(e store.DecisionEvent, key *string) DecisionEvent {
	return DecisionEvent{e.Limiter, e.Policy, e.Units, e.Allowed, e.Trial, source(e.Source, e.Err), e.Took, e.Err, key}
}

func slotEvent(e store.SlotEvent, key *string) SlotEvent {
	return SlotEvent{e.Slots, e.Granted, e.Trial, source(e.Source, e.Err), e.Took, e.Err, key}
}

func source(s step.Source, err error) string {
	if err != nil {
		return ""
	}
	return s.String()
}
