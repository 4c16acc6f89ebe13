package core

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
)

// A Decision is the result of a call, just after it. Its numbers are the strictest of all policies; after a call with
// an error they are zero. No store is asked about a charge above a limit: Remaining and ResetAfter are 0 then. It is a
// receipt as well: Settle or Refund correct what was charged, once. A copy is the same receipt.
type Decision struct {
	// Allowed reports whether the units were admitted, and charged. After a Report: whether they fitted.
	Allowed bool

	// Limiter and Policy name the policy that decided: after a refusal the one with the longest wait, else the one
	// with the least left. Limit is its limit, NoLimit if it has none.
	Limiter, Policy string
	Limit           int64

	// Remaining is the smallest number of units that any policy has left.
	Remaining int64

	// Uncovered is the number of units of a Report or a Settle for which there was no room.
	Uncovered int64

	// RetryAfter is the time until the same call would be admitted, if nobody else charges the key: 0 if it was, and
	// Never if waiting cannot help. After a Report it is the time until one unit is left.
	RetryAfter time.Duration

	// ResetAfter is the time until the key is as if it had never been charged.
	ResetAfter time.Duration

	// Degraded reports that the store's server is away, and that the store decided by its Failure.
	Degraded bool

	backend backend.Decision
}

// An Answer is the result of one policy, or of slots.
type Answer struct {
	Limiter, Policy string // of slots, both are their name
	Allowed         bool   // whether it alone would have admitted the units
	Limit           int64  // the most units, NoLimit if there is none
	Remaining       int64  // units that are left

	Window     time.Duration // over which Limit units are admitted: of a Calendar, the present one; 0 of slots
	NextAfter  time.Duration // until one more unit is left; 0 if none is used
	ResetAfter time.Duration // until no unit is used
	RetryAfter time.Duration // until the units fit; 0 if they did
}

// total sets the numbers, unless there is no decision.
func (d *Decision) total(err error) {
	if err != nil {
		d.backend = backend.Decision{}
		return
	}
	c := d.backend.Only()
	if c != nil {
		d.set(c.Policy, c.Remaining, c.RetryAfter, c.ResetAfter)
		d.Degraded = c.Source.Degraded()
		return
	}
	t := d.backend.Totals()
	if t.Decider != nil {
		d.set(t.Decider, t.Remaining, t.RetryAfter, t.ResetAfter)
		d.Degraded = d.backend.Degraded()
	}
}

func (d *Decision) set(decider *step.Policy, remaining, retryAfter, resetAfter int64) {
	d.Allowed, d.Limiter, d.Policy, d.Limit = d.backend.Allowed, decider.Limiter, decider.Name, decider.Capacity()
	d.Remaining, d.RetryAfter, d.ResetAfter = remaining, backend.Span(retryAfter), backend.Span(resetAfter)
}

// Answers returns the answer of each policy, in the order of the charges and of their policies, and then of slots, if
// a guard has asked for some.
func (d *Decision) Answers() iter.Seq[Answer] {
	return func(yield func(Answer) bool) {
		for i := range d.backend.Len() {
			if !yield(Answer(d.backend.At(i))) {
				return
			}
		}
		for _, answer := range d.backend.Slots() {
			if !yield(Answer(answer)) {
				return
			}
		}
	}
}

// Settle corrects the charge to the units that were used, one number for each charge of the call: charge an estimate,
// then settle what it was. Units that were not used are given back, as far as they still count: a token bucket that
// has refilled meanwhile gets back less, and a window that has passed nothing. Units beyond the charge are counted
// whether they fit or not, and Uncovered says how many did not.
//
// It can be called once: then, and after a refusal, a Report or a Peek, it is [ErrSettled]. Wrong numbers are
// [ErrInvalid] and change nothing. After another error nobody knows whether the charge was corrected. The context's
// end does not keep units from being given back.
func (d *Decision) Settle(ctx context.Context, actual ...int64) error {
	uncovered, err := d.backend.Settle(ctx, actual...)
	d.Uncovered = uncovered
	return err
}

// Refund gives the whole charge back, as Settle with zeros does.
func (d *Decision) Refund(ctx context.Context) error { return d.backend.Refund(ctx) }

// String describes the decision for people, without the key.
func (d Decision) String() string {
	without := ""
	if d.Degraded {
		without = ", without the store"
	}
	switch {
	case d.Limiter == "":
		return "no decision"
	case d.Uncovered > 0:
		return fmt.Sprintf("%d beyond %q: retry after %v%s", d.Uncovered, d.Policy, d.RetryAfter, without)
	case d.Allowed && !d.backend.Known():
		return "allowed" + without // what is left is not known
	case d.Allowed:
		return fmt.Sprintf("allowed by %q: %d of %d left%s", d.Policy, d.Remaining, d.Limit, without)
	case d.RetryAfter == Never:
		return fmt.Sprintf("refused by %q forever%s", d.Policy, without)
	}
	return fmt.Sprintf("refused by %q: retry after %v%s", d.Policy, d.RetryAfter, without)
}

// Format implements [fmt.Formatter], so that no verb prints the key of the receipt.
func (d Decision) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, d.String()) }
