package core

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/ontrial"
)

// An Observer has functions to call when something happens, for metrics, logs and traces.
// It is set in the configuration of a store.
type Observer = store.Observer

// What an [Observer] is told.
type (
	// A DecisionEvent is a decision about one charge.
	DecisionEvent = store.DecisionEvent
	// A SettleEvent is the correction of one charge by Settle or Refund.
	SettleEvent = store.SettleEvent
	// A SlotEvent is the result of one claim.
	SlotEvent = store.SlotEvent
	// A CallEvent is a call of a store to its server.
	CallEvent = store.CallEvent
)

// Observers returns an observer that tells each of several, in order, or nil if there is
// none. Nil ones are left out.
func Observers(observers ...*Observer) *Observer { return store.Observers(observers...) }

// begin returns when a call began, for took, if the observer asks how long it takes.
func begin(o *Observer) (start time.Time) {
	if o != nil && o.Timed {
		start = time.Now()
	}
	return start
}

func took(start time.Time) time.Duration {
	if start.IsZero() {
		return 0
	}
	return time.Since(start)
}

// decided reports a decision, or with an error that there is none.
func decided(ctx context.Context, o *Observer, start time.Time, r *store.Result, err error, charges ...Charge) {
	if o.Decided == nil && (o.Refused == nil || r.Allowed) {
		return
	}
	e := DecisionEvent{Allowed: r.Allowed, Source: r.Source, Took: took(start)}
	e.Trial = !r.Allowed && ontrial.Is(ctx)
	if err != nil {
		e = DecisionEvent{Err: err, Took: e.Took}
	}
	first := 0 // reading of the charge
	for _, c := range charges {
		if c.Anyway {
			first += len(c.Limiter.policies)
			continue
		}
		e.Limiter, e.Units = c.Limiter.name, c.N
		if err == nil {
			e.Policy = deciding(c.Limiter.policies, r, first)
			if o.Shares {
				e.Used = used(c.Limiter.policies, r, first)
			}
		}
		if o.Refused != nil && !e.Allowed && e.Policy != "" {
			o.Refused(ctx, e, c.Key)
		}
		if o.Decided != nil {
			o.Decided(ctx, e)
		}
		first += len(c.Limiter.policies)
	}
}

// deciding returns the policy of a DecisionEvent. The first of the limiter's readings has
// that index.
func deciding(policies []Policy, r *store.Result, first int) (policy string) {
	var strictest int64
	for i := range policies {
		x := r.Reading(first + i)
		switch {
		case r.Allowed && (i == 0 || x.Remaining < strictest):
			policy, strictest = policies[i].name, x.Remaining
		case !r.Allowed && !r.Admitted(first+i) && x.RetryAfter > strictest:
			policy, strictest = policies[i].name, x.RetryAfter
		}
	}
	return policy
}

// used returns the Used of a DecisionEvent.
func used(policies []Policy, r *store.Result, first int) (percent int) {
	for i := range policies {
		switch {
		case r.Allowed:
			percent = max(percent, usedOf(policies[i].Limit(), r.Reading(first+i).Remaining))
		case !r.Admitted(first + i):
			percent = 100
		}
	}
	return percent
}

// reported reports what was counted anyway, as a settlement of 0 units.
func reported(ctx context.Context, o *Observer, start time.Time, q *question, err error) {
	for i := range q.Charges {
		if c := q.Charges[i]; c.Anyway && c.N > 0 {
			c.N, c.Actual, c.Source = 0, c.N, q.Result.Source
			settled(ctx, o, start, []store.Charge{c}, err)
		}
	}
}

// settled reports settlements.
func settled(ctx context.Context, o *Observer, start time.Time, cs []store.Charge, err error) {
	if o == nil || o.Settled == nil {
		return
	}
	t := took(start)
	for i := range cs {
		c := &cs[i]
		e := SettleEvent{Limiter: c.Limiter.Spec().Name, Units: c.N, Actual: c.Actual, Source: c.Source, Took: t, Err: err}
		if err == nil {
			e.Uncovered = c.Uncovered
		}
		o.Settled(ctx, e)
	}
}
