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
	if s.Observer != nil && s.Observer.Timed {
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

// tell tells an observer of each charge of a decision, or with an error that there is none.
func (d *Decision) tell(ctx context.Context, o *store.Observer, start time.Time, err error) {
	if o.Decided == nil {
		return
	}
	cells, first, took := d.cells(), 0, took(start)
	for i := range cells {
		if !cells[i].Policy.Last {
			continue
		}
		charge := cells[first : i+1]
		first = i + 1
		e := store.DecisionEvent{Limiter: charge[0].Policy.Limiter, Units: unitsOf(charge), Took: took, Err: err}
		if err == nil {
			e.Allowed, e.Source, e.ObserveOnly = d.Allowed, charge[0].Source, !d.Allowed && ctxmark.IsObserveOnly(ctx)
			if d.Allowed || uncoveredBy(charge) > 0 {
				e.Policy = totals(charge, d.Allowed).Decider.Name
			}
			if !d.Allowed && e.Policy != "" {
				e.Key = charge[0].Key
			}
		}
		o.Decided(ctx, e)
	}
}

// tellReported tells an observer of each charge of a report.
func (d *Decision) tellReported(ctx context.Context, o *store.Observer, err error) {
	if o.Settled == nil {
		return
	}
	cells, first := d.cells(), 0
	for i := range cells {
		if !cells[i].Policy.Last {
			continue
		}
		charge := cells[first : i+1]
		first = i + 1
		e := store.SettleEvent{Limiter: charge[0].Policy.Limiter, Actual: unitsOf(charge), Err: err}
		if err == nil {
			e.Uncovered = uncoveredBy(charge)
		}
		o.Settled(ctx, e)
	}
}

// tellSettled tells an observer of each charge that was corrected by these cells.
func (d *Decision) tellSettled(ctx context.Context, o *store.Observer, corrected []step.Cell, actual []int64, err error) {
	if o == nil || o.Settled == nil {
		return
	}
	cells, first, charge, changed, used, uncovered := d.cells(), 0, 0, false, int64(0), int64(0)
	for i := range cells {
		c := &cells[i]
		used = max(used, c.Policy.Counted(min(actual[charge], step.MaxInt)))
		if len(corrected) > 0 && corrected[0].Policy == c.Policy && corrected[0].Key == c.Key {
			changed, uncovered, corrected = true, max(uncovered, corrected[0].Short), corrected[1:]
		}
		if !c.Policy.Last {
			continue
		}
		if changed {
			e := store.SettleEvent{Limiter: c.Policy.Limiter, Charged: unitsOf(cells[first : i+1]), Actual: used, Err: err}
			if err == nil {
				e.Uncovered = uncovered
			}
			o.Settled(ctx, e)
		}
		first, charge, changed, used, uncovered = i+1, charge+1, false, 0, 0
	}
}
