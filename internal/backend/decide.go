package backend

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// A Charge is units of a limiter for a key; at least 1.
type Charge struct {
	Limiter *Limiter
	Key     string
	Units   int64
}

// An Answer is the result of one policy. Package core explains it.
type Answer struct {
	Limiter, Policy                           string
	Allowed                                   bool
	Limit, Remaining                          int64
	Window, NextAfter, ResetAfter, RetryAfter time.Duration
}

// A Decision is the result of a call, and the receipt of its charges.
type Decision struct {
	decided core.Decision
	slots   []Answer
}

// Decide charges all or none, and writes the decision to d, which must be zero.
func Decide(ctx context.Context, charges []Charge, d *Decision) error {
	if len(charges) == 1 {
		c := &charges[0]
		l, err := c.Limiter.Now(c.Key)
		if err != nil {
			return err
		}
		return l.AllowTo(ctx, c.Key, c.Units, &d.decided)
	}
	all := make([]core.Charge, len(charges))
	views := make(map[Book]View)
	for i, c := range charges {
		b := c.Limiter.book
		if b != nil && views[b] == nil {
			views[b] = b.View()
		}
		l, err := c.Limiter.At(views[b], c.Key)
		if err != nil {
			return err
		}
		all[i] = core.Charge{Limiter: l, Key: c.Key, N: c.Units}
	}
	var err error
	d.decided, err = core.AllowAll(ctx, all...)
	return err
}

// Of returns the decision of a call of a limiter.
func Of(d core.Decision) Decision { return Decision{decided: d} }

// Decided returns the decision about rates.
func (d *Decision) Decided() *core.Decision { return &d.decided }

// Degraded reports that the server of the store is away.
func (d *Decision) Degraded() bool {
	return d.decided.Source == core.SourceLocal || d.decided.Source == core.SourceOpen
}

// Len returns the number of answers of rates, and At returns one.
func (d *Decision) Len() int { return d.decided.Len() }

// At is described with Len.
func (d *Decision) At(i int) Answer {
	a := d.decided.Answer(i)
	return Answer{a.Limiter, a.Policy, a.Allowed, a.Limit, a.Remaining, a.Window, a.NextAfter, a.ResetAfter, a.RetryAfter}
}

// Left returns what the i-th policy has left, and the time until one more unit is.
func (d *Decision) Left(i int) (units int64, next time.Duration) {
	a := d.decided.Answer(i)
	return a.Remaining, a.NextAfter
}

// Known reports whether the answers have the units left: not if the store was not asked. A limit of 0 has none even so.
func (d *Decision) Known() bool {
	return d.decided.Source != core.SourceOpen && d.decided.Source != core.SourcePolicy
}

// Slots returns the answers of slots. AddSlots adds some, and ClearSlots forgets them.
func (d *Decision) Slots() []Answer { return d.slots }

// AddSlots is described with Slots.
func (d *Decision) AddSlots(all ...Answer) { d.slots = append(d.slots, all...) }

// ClearSlots is described with Slots.
func (d *Decision) ClearSlots() { d.slots = nil }

// Settle corrects the charges to the units that were used.
func (d *Decision) Settle(ctx context.Context, actual ...int64) (uncovered int64, err error) {
	return d.decided.Settle(ctx, actual...)
}

// Refund gives the charges back.
func (d *Decision) Refund(ctx context.Context) error { return d.decided.Refund(ctx) }
