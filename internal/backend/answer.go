package backend

import (
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// never is core.Never.
const never time.Duration = math.MaxInt64

// Span converts microseconds to a duration. The wait of what never fits is step.Never, which is above 2^53.
func Span(microseconds int64) time.Duration {
	if microseconds > step.MaxInt {
		return never
	}
	return time.Duration(microseconds) * time.Microsecond
}

// Len returns the number of answers of rates.
func (d *Decision) Len() int { return int(d.count) }

// At returns the i-th answer.
func (d *Decision) At(i int) PolicyAnswer {
	cell := &d.cells()[i]
	answer := described(cell.Policy)
	if d.Dated(i) && cell.Instant > 0 { // at 0 no store was asked, so nobody knows which window it is
		answer.Window = Span(cell.Policy.WindowAt(cell.Instant))
	}
	answer.Allowed = cell.Shortfall == 0
	answer.Remaining = cell.Remaining
	answer.NextAfter = Span(cell.NextAfter)
	answer.ResetAfter = Span(cell.ResetAfter)
	answer.RetryAfter = Span(cell.RetryAfter)
	return answer
}

// Dated reports whether the windows of the i-th policy have several lengths, as months have.
func (d *Decision) Dated(i int) bool { return d.cells()[i].Policy.Kind == step.Calendar }

// described returns an answer without numbers of a key.
func described(policy *step.Policy) PolicyAnswer {
	return PolicyAnswer{
		Limiter: policy.Limiter, Policy: policy.Name, Limit: policy.Capacity(), Window: Span(policy.Window()),
	}
}

// Left returns what the i-th policy has left, and the time until one more unit is.
func (d *Decision) Left(i int) (units int64, next time.Duration) {
	cell := &d.cells()[i]
	return cell.Remaining, Span(cell.NextAfter)
}

// Totals are the strictest numbers of all policies: four, which the compiler keeps in registers.
//
//	Remaining    the least: so many units pass all policies
//	ResetAfter   the longest: by then nothing is used any more under any
//	RetryAfter   the longest: by then all admit
type Totals struct {
	Decider                           *step.Policy // nil: nothing was decided
	Remaining, ResetAfter, RetryAfter int64        // in units, and in microseconds
}

// Only returns the answer of the only cell, or nil if there are several.
func (d *Decision) Only() *step.Cell {
	if d.count == 1 {
		return &d.cells()[0]
	}
	return nil
}

// Totals returns the strictest numbers, and the policy that decided: after a refusal the refusing one with the longest
// wait, else the one with the least left.
func (d *Decision) Totals() Totals { return totals(d.cells(), d.Allowed) }

func totals(cells []step.Cell, allowed bool) Totals {
	if len(cells) == 0 {
		return Totals{}
	}
	first := &cells[0]
	t := Totals{first.Policy, first.Remaining, first.ResetAfter, first.RetryAfter}
	longestWait := int64(0) // of those that refuse
	if first.Shortfall > 0 {
		longestWait = first.RetryAfter
	}
	for i := range cells[1:] {
		cell := &cells[1+i]
		refuses := !allowed && cell.Shortfall > 0
		switch {
		case allowed && cell.Remaining < t.Remaining:
			t.Decider = cell.Policy
		case refuses && cell.RetryAfter > longestWait:
			t.Decider = cell.Policy
			longestWait = cell.RetryAfter
		}
		t.Remaining = min(t.Remaining, cell.Remaining)
		t.ResetAfter = max(t.ResetAfter, cell.ResetAfter)
		t.RetryAfter = max(t.RetryAfter, cell.RetryAfter)
	}
	return t
}

// Part returns the answer of the policy that decided among n from the i-th on, with the strictest numbers of these, and
// the units for which there was no room. It is what a rule of a guard tells of its own limiter, whose cells are these.
func (d *Decision) Part(i, n int) (part PolicyAnswer, uncovered int64) {
	cells := d.cells()[i : i+n]
	uncovered = uncoveredBy(cells)
	strictest := totals(cells, uncovered == 0)
	decider := slices.IndexFunc(cells, func(cell step.Cell) bool { return cell.Policy == strictest.Decider })
	part = d.At(i + decider)
	part.Allowed = uncovered == 0
	part.Remaining = strictest.Remaining
	part.ResetAfter = Span(strictest.ResetAfter)
	part.RetryAfter = Span(strictest.RetryAfter)
	return part, uncovered
}

// RetryAfter returns the time until the same call would be admitted.
func (d *Decision) RetryAfter() time.Duration { return Span(d.Totals().RetryAfter) }

// Uncovered returns the number of units of the i-th policy for which there was no room: of a report.
func (d *Decision) Uncovered(i int) int64 { return d.cells()[i].Shortfall }

// MostUncovered returns the largest of these.
func (d *Decision) MostUncovered() int64 { return uncoveredBy(d.cells()) }

// uncoveredBy returns the number of units for which any one policy had no room. Of a charge it is 1 if one refuses.
func uncoveredBy(cells []step.Cell) (most int64) {
	for i := range cells {
		most = max(most, cells[i].Shortfall)
	}
	return most
}

// unitsOf returns the units of a charge: a MinInterval counts one, whatever they are.
func unitsOf(charge []step.Cell) (most int64) {
	for i := range charge {
		most = max(most, charge[i].Units)
	}
	return most
}

// Source returns what decided: if several did, this process or nobody, while a server is away, and else the store.
func (d *Decision) Source() (decided step.Source) {
	for i := range d.cells() {
		source := d.cells()[i].Source
		if i == 0 || decided == step.SourcePolicy || source.Degraded() {
			decided = source
		}
	}
	return decided
}

// Degraded reports whether the server of the store is away.
func (d *Decision) Degraded() bool {
	cells := d.cells()
	for i := range cells {
		if cells[i].Source.Degraded() {
			return true
		}
	}
	return false
}

// Known reports whether the answers have the units left: not if the store was not asked. A limit of 0 has none even so.
func (d *Decision) Known() bool {
	source := d.Source()
	return source != step.SourceOpen && source != step.SourcePolicy
}

// Slots returns the answers of slots.
func (d *Decision) Slots() []PolicyAnswer {
	if d.slots == nil {
		return nil
	}
	return *d.slots
}

// SetSlots sets the answers of slots. A decision about rates has room for them, so that fields and observers of a guard
// get one value.
func (d *Decision) SetSlots(all ...PolicyAnswer) { d.slots = &all }
