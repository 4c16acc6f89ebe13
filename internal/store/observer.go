package store

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// An Observer has functions to call when something happens, for metrics, logs and traces.
// A store gets it in its configuration, and reports what it does itself; package backend
// reports decisions and slots, the same over every store. Any function may be nil. A store's
// Observer must not be changed after the store was made.
//
// The functions are called by many goroutines at once. Most are called in the goroutine of the
// reported call, which waits for them, so they should return quickly. They get the context of the
// call, where there is one. No lock of a store is held meanwhile.
//
// If a function panics, so does that call. A charge stays; a slot is released. A store may call
// SlotsLost, SlotsRestated, Called and Changed in a goroutine of its own, where a panic ends the
// process.
//
// No event contains a key, nor does an error in it. Only Refused and SlotRefused get one. Zero
// values mean none, or unknown.
type Observer struct {
	// Timed asks for the Took of decisions, settlements and acquires, which is otherwise
	// 0. To measure it takes about as long as a decision in memory.
	Timed bool

	// Decided is called for each decision, once for each charge. That includes decisions that the
	// policies make without the store, and calls without a decision. A call that waits reports each
	// of its attempts, and an error if it ended before the first. Neither peeks are reported, nor
	// malformed calls, whose error is [ErrInvalid].
	Decided func(context.Context, DecisionEvent)

	// Refused is called before Decided, with the same event and the key, for each charge that its
	// own limiter refused. It is for finding out who is refused. A key can be of any bytes and of
	// any length, and may be a secret. If you keep keys, bound their memory, and show a keyed hash.
	// Nobody gets the keys of admitted charges.
	Refused func(ctx context.Context, e DecisionEvent, key string)

	// Settled is called for each charge that was given back or corrected, or could not be. Charges
	// that had the right number of units are not reported. Nor are charges of Unlimited, which
	// counts nothing.
	Settled func(context.Context, SettleEvent)

	// SlotAcquired is called for each slot that was granted or refused, and when that is unknown.
	// It is called once for each claim of a call, or only for the claim that was refused. A call
	// that waits is reported when it ends, as a refusal if it waited in vain. Malformed calls are
	// not reported.
	SlotAcquired func(context.Context, SlotEvent)

	// SlotRefused is called before SlotAcquired, with the same event and the key, for each
	// claim that was refused, as Refused is.
	SlotRefused func(ctx context.Context, e SlotEvent, key string)

	// SlotReleased is called when a granted slot is released, with the name of the slots. It is
	// called once for each claim, also after the slots were closed or lost.
	SlotReleased func(slots string)

	// SlotsLost is called when the store has declared this process dead while it held that
	// many slots. It keeps them: see Lost of core.Slot.
	SlotsLost func(held int64)

	// SlotsRestated is called when the store may have lost the statements of this process. It gets
	// the number of keys that are stated again.
	SlotsRestated func(keys int)

	// Called is called after each call to a server. There is no context, since several
	// callers may share a call, and it may outlive them. Heartbeats, resets and notices are not
	// reported. A store in this process makes no calls.
	Called func(CallEvent)

	// Changed is called when a server becomes unavailable, with the reason, and when it is
	// available again, with nil.
	Changed func(reason error)
}

// A DecisionEvent is a decision about one charge.
type DecisionEvent struct {
	Limiter string // the name
	Units   int64  // of the charge

	// Policy is the name of the limiter's policy that decided. After a refusal, that is the
	// refusing policy with the longest wait. If the charge was admitted, it is the policy with the
	// least remaining. It is empty if only other limiters of the same decision refused.
	Policy string

	Allowed bool
	Source  step.Source

	// Trial is set if the refusal affects nobody. Such refusals are of rules that only observe.
	Trial bool

	// Err, if not nil, is why no decision was made: [ErrUnavailable], or the error of the
	// context if the caller gave up. Then Policy, Allowed and Source are zero.
	Err error

	Took time.Duration // the call of the store; 0 unless [Observer].Timed
}

// A SettleEvent is the correction of one charge that had been admitted, or a report of used units.
// A report looks like the correction of a charge of 0 units.
type SettleEvent struct {
	Limiter   string      // the name
	Units     int64       // that were charged; 0 of a report
	Actual    int64       // units, of which less may have been given back, as they no longer count
	Uncovered int64       // units above those charged, which count too, although there was no room for them
	Source    step.Source // of the decision
	Err       error       // then it is unknown whether the charge was corrected
	Took      time.Duration
}

// A SlotEvent is the result of one claim.
type SlotEvent struct {
	Slots   string // the name
	Granted bool
	Source  step.Source

	// Trial is set if the claim was refused and nobody was: by a rule that only observes.
	Trial bool

	// Err, if not nil, is why there is neither a grant nor a refusal. It is core.ErrClosed,
	// [ErrUnavailable], or the error of the context if the caller gave up. Then Granted and Source
	// are zero.
	Err error

	Took time.Duration // the call of the store, or the whole wait; 0 unless [Observer].Timed
}

// A CallEvent is a call to a server.
type CallEvent struct {
	Questions int // decisions, settlements, or keys of slots that it was about
	Took      time.Duration
	Err       error // of the call as a whole
}
