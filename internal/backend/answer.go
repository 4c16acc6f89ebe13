package backend

import (
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// never is core.Never.
const never time.Duration = math.MaxInt64

// Span converts microseconds to a duration.
func Span(us int64) time.Duration {
	if us > step.MaxInt {
		return never
	}
	return time.Duration(us) * time.Microsecond
}

// Len returns the number of answers of rates, and At returns one.
func (d *Decision) Len() int { return int(d.count) }

// At is described with Len.
func (d *Decision) At(i int) PolicyAnswer {
	c := &d.cells()[i]
	a := described(c.Policy)
	if d.Dated(i) && c.At > 0 {
		a.Window = Span(c.Policy.WindowAt(c.At))
	}
	a.Allowed, a.Remaining = c.Short == 0, c.Remaining
	a.NextAfter, a.ResetAfter, a.RetryAfter = Span(c.NextAfter), Span(c.ResetAfter), Span(c.RetryAfter)
	return a
}

// Dated reports whether the windows of the i-th policy have several lengths, as months have.
func (d *Decision) Dated(i int) bool { return d.cells()[i].Policy.Algorithm == step.Calendar }

// described returns an answer without numbers of a key.
func described(p *step.Policy) PolicyAnswer {
	return PolicyAnswer{Limiter: p.Limiter, Policy: p.Name, Limit: p.Capacity(), Window: Span(p.Window())}
}

// Left returns what the i-th policy has left, and the time until one more unit is.
func (d *Decision) Left(i int) (units int64, next time.Duration) {
	c := &d.cells()[i]
	return c.Remaining, Span(c.NextAfter)
}

// Totals are the strictest numbers of all policies.
type Totals struct {
	Decider                           *step.Policy // nil: nothing was decided
	Remaining, ResetAfter, RetryAfter int64        // in units, and in microseconds
	Degraded                          bool         // the server of the store is away
}

// Only returns the answer of the only cell, or nil if there are several.
func (d *Decision) Only() *step.Cell {
	if d.count == 1 {
		return &d.first[0]
	}
	return nil
}

// Totals returns the strictest numbers, and the policy that decided: after a refusal the refusing one with the longest
// wait, else the one with the least left.
func (d *Decision) Totals() Totals { return totals(d.cells(), d.Allowed) }

func totals(cells []step.Cell, allowed bool) (t Totals) {
	if len(cells) == 1 {
		c := &cells[0]
		return Totals{c.Policy, c.Remaining, c.ResetAfter, c.RetryAfter, c.Source.Degraded()}
	}
	longest := int64(0) // of those that refuse
	for i := range cells {
		c := &cells[i]
		switch {
		case t.Decider == nil, allowed && c.Remaining < t.Remaining:
			t.Decider = c.Policy
		case !allowed && c.Short > 0 && c.RetryAfter > longest:
			t.Decider = c.Policy
		}
		if !allowed && c.Short > 0 {
			longest = max(longest, c.RetryAfter)
		}
		if i == 0 || c.Remaining < t.Remaining {
			t.Remaining = c.Remaining
		}
		t.ResetAfter, t.RetryAfter = max(t.ResetAfter, c.ResetAfter), max(t.RetryAfter, c.RetryAfter)
		t.Degraded = t.Degraded || c.Source.Degraded()
	}
	return t
}

// Part returns the answer of the policy that decided among n from the i-th on, with the strictest numbers of these, and the
// units for which there was no room.
func (d *Decision) Part(i, n int) (part PolicyAnswer, short int64) {
	cells := d.cells()[i : i+n]
	short = uncoveredBy(cells)
	t := totals(cells, short == 0)
	decider := slices.IndexFunc(cells, func(c step.Cell) bool { return c.Policy == t.Decider })
	part = d.At(i + decider)
	part.Allowed, part.Remaining = short == 0, t.Remaining
	part.ResetAfter, part.RetryAfter = Span(t.ResetAfter), Span(t.RetryAfter)
	return part, short
}

// RetryAfter returns the time until the same call would be admitted.
func (d *Decision) RetryAfter() time.Duration { return Span(d.Totals().RetryAfter) }

// Uncovered returns the number of units of the i-th policy for which there was no room: of a report.
func (d *Decision) Uncovered(i int) int64 { return d.cells()[i].Short }

// MostUncovered returns the largest of these.
func (d *Decision) MostUncovered() int64 { return uncoveredBy(d.cells()) }

// uncoveredBy returns the number of units for which any one policy had no room.
func uncoveredBy(cells []step.Cell) (most int64) {
	for i := range cells {
		most = max(most, cells[i].Short)
	}
	return most
}

// unitsOf returns the units of a charge: a MinInterval counts one, whatever they are.
func unitsOf(charge []step.Cell) (most int64) {
	for i := range charge {
		most = max(most, charge[i].N)
	}
	return most
}

// Source returns what decided: if several did, this process or nobody, while a server is away, and else the store.
func (d *Decision) Source() (s step.Source) {
	for i := range d.cells() {
		if c := &d.cells()[i]; i == 0 || s == step.SourcePolicy || c.Source.Degraded() {
			s = c.Source
		}
	}
	return s
}

// Known reports whether the answers have the units left: not if the store was not asked. A limit of 0 has none even so.
func (d *Decision) Known() bool {
	s := d.Source()
	return s != step.SourceOpen && s != step.SourcePolicy
}

// Slots returns the answers of slots. AddSlots adds some, and ClearSlots forgets them.
func (d *Decision) Slots() []PolicyAnswer {
	if d.slots == nil {
		return nil
	}
	return *d.slots
}

// AddSlots is described with Slots.
func (d *Decision) AddSlots(all ...PolicyAnswer) {
	all = append(d.Slots(), all...)
	d.slots = &all
}

// ClearSlots is described with Slots.
func (d *Decision) ClearSlots() { d.slots = nil }
