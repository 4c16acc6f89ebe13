package backend

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// begin returns when a call began, if an observer asks how long it takes.
func (s *Stores) begin() (start time.Time) {
	// To look at the clock takes about as long as a decision in memory.
	if s.Observer != nil && s.Observer.Timed {
		start = time.Now()
	}
	return start
}

// took returns how long a call has taken since then, or 0 if nobody asked.
func took(start time.Time) time.Duration {
	if start.IsZero() {
		return 0
	}
	return time.Since(start)
}

// tell tells an observer of each charge of a decision, or with an error that there is none. All charges of a call took
// as long as the call.
func (d *Decision) tell(ctx context.Context, observer *store.Observer, start time.Time, err error) {
	if observer.Decided == nil {
		return
	}
	took := took(start)
	for charge := range d.eachCharge {
		event := store.DecisionEvent{Limiter: charge[0].Policy.Limiter, Units: unitsOf(charge), Took: took, Err: err}
		if err == nil {
			event.Allowed = d.Allowed
			event.Source = charge[0].Source
			event.ObserveOnly = !d.Allowed && ctxmark.IsObserveOnly(ctx)
			// Of a refusal, a limiter that would have admitted its units has no policy that decided, and tells no key.
			refuses := uncoveredBy(charge) > 0
			if d.Allowed || refuses {
				event.Policy = totals(charge, d.Allowed).Decider.Name
			}
			if !d.Allowed && event.Policy != "" {
				event.Key = charge[0].Key
			}
		}
		observer.Decided(ctx, event)
	}
}

// eachCharge calls a function with the cells of each charge: they end with the last policy of a limiter.
func (d *Decision) eachCharge(yield func(charge []step.Cell) bool) {
	cells := d.cells()
	first := 0
	for i := range cells {
		if !cells[i].Policy.Last {
			continue
		}
		if !yield(cells[first : i+1]) {
			return
		}
		first = i + 1
	}
}

// tellReported tells an observer of each charge of a report.
func (d *Decision) tellReported(ctx context.Context, observer *store.Observer, err error) {
	if observer.Settled == nil {
		return
	}
	for charge := range d.eachCharge {
		event := store.SettleEvent{Limiter: charge[0].Policy.Limiter, Actual: unitsOf(charge), Err: err}
		if err == nil {
			event.Uncovered = uncoveredBy(charge)
		}
		observer.Settled(ctx, event)
	}
}

// tellSettled tells an observer of each charge that was corrected by these cells, which are in the order of the
// charges. A charge of which no cell changed was right, and nobody is told.
func (d *Decision) tellSettled(
	ctx context.Context, observer *store.Observer, corrected []step.Cell, actual []int64, err error,
) {
	if observer == nil || observer.Settled == nil {
		return
	}
	next := 0
	for charge := range d.eachCharge {
		event := store.SettleEvent{Limiter: charge[0].Policy.Limiter, Charged: unitsOf(charge), Err: err}
		changed := false
		for i := range charge {
			cell := &charge[i]
			event.Actual = max(event.Actual, cell.Policy.Counted(min(actual[next], step.MaxInt)))
			// A cell that did not change was not asked about.
			if len(corrected) == 0 || corrected[0].Policy != cell.Policy || corrected[0].Key != cell.Key {
				continue
			}
			changed = true
			if err == nil {
				event.Uncovered = max(event.Uncovered, corrected[0].Shortfall)
			}
			corrected = corrected[1:]
		}
		if changed {
			observer.Settled(ctx, event)
		}
		next++
	}
}
