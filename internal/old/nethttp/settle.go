package nethttp

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// settleTimeout bounds how long a response waits for each call that corrects or counts.
const settleTimeout = time.Second

// An Outcome describes the response to an admitted request, for [Rule].Settle and [Rule].Report.
type Outcome struct {
	// Status is the final status of the response. It is 500 if the handler panicked
	// before it wrote one, whatever status is sent in the end.
	Status int

	// Written is the number of bytes that the handler wrote to the body.
	Written int64

	// Hijacked reports whether the handler hijacked the connection. If so, Settle is not called:
	// the units passed to [SetCost] are charged, or else the charge stands. Report is called, and
	// does not know the traffic of the connection.
	Hijacked bool

	// Cost is the number of units passed to [SetCost], or else the number charged: 0 for Report.
	Cost int64
}

// StatedCost is a [Rule].Settle or [Rule].Report for handlers that call [SetCost]. If they do not, the
// charge stands, and nothing is reported.
func StatedCost(_ *http.Request, o Outcome) int64 { return o.Cost }

// BytesWritten is a [Rule].Report for limits on bandwidth: the bytes that the handler wrote to the body.
// They count when the response has been written, so a limit in bytes should be larger than most
// responses.
func BytesWritten(_ *http.Request, o Outcome) int64 { return o.Written }

// FailuresOnly is a [Rule].Settle that charges only requests whose status is 400 or more, for
// logins: a successful login is charged nothing. It is not only for 401, because clients can cause
// other errors with a password that is right or wrong.
func FailuresOnly(_ *http.Request, o Outcome) int64 {
	if o.Status < http.StatusBadRequest {
		return 0
	}
	return o.Cost
}

// SetCost sets the number of units that the request cost under the rule whose Limiter has the given
// name. The last call counts. When the handler is done, [Rule].Settle corrects the charge, or
// [Rule].Report returns the units to count. ctx is the context of the handler's request, or derived
// from it.
//
// SetCost does nothing and returns false if units is negative, or the handler is done. It does so
// too if no rule of that name with Settle or Report admitted the request. It is safe for concurrent
// use.
func SetCost(ctx context.Context, limiter string, units int64) bool {
	b, _ := ctx.Value(stayKey{}).(*stay)
	for ; b != nil; b = b.outer {
		for i := range b.charges {
			c := &b.charges[i]
			rule := b.rule(c)
			if name, _ := rule.name(); name == limiter && (rule.Settle != nil || rule.Report != nil) {
				return units >= 0 && b.setCost(c, units)
			}
		}
	}
	return false
}

// setCost sets the cost of a charge unless the stay is over.
func (s *stay) setCost(c *charged, units int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	c.cost = units
	return true
}

// settle corrects the charge of a stay that has begun; further calls do nothing.
func (s *stay) settle(o Outcome) {
	s.mu.Lock()
	over := s.closed
	s.closed = true
	s.mu.Unlock()
	if over || s.begun == nil {
		return
	}
	actual, used := make([]int64, len(s.charges)), make([]int64, len(s.charges))
	var err error
	for i := range s.charges {
		c := &s.charges[i]
		rule := s.rule(c)
		o.Cost, actual[i] = c.cost, c.cost
		var negative error
		switch {
		case rule.Report != nil:
			actual[i] = 0 // as was charged
			if used[i] = rule.Report(s.begun, o); used[i] < 0 {
				negative = returned("Report", "%d; it must be 0 or more: nothing is counted", used[i])
			}
		case rule.Settle != nil && !o.Hijacked:
			if actual[i] = rule.Settle(s.begun, o); actual[i] < 0 {
				negative = returned("Settle", "%d; it must be 0 or more: the charge stands", actual[i])
				actual[i] = c.units
			}
		}
		if negative != nil {
			err = errors.Join(err, s.guard.ruleError(c.rule, negative))
		}
	}
	s.correct(&s.decision, s.begun, actual, used, err)
}

// giveBack gives the units back of a request that slots have refused.
func (s *stay) giveBack(d *core.Decision, r *http.Request) {
	s.correct(d, r, make([]int64, len(s.charges)), nil, nil)
	s.charges = nil
}

// correct corrects the charges to their costs, and counts what rules with Report have used, if
// that is not nil: once, even if the client has disconnected. The error is what was wrong before.
func (s *stay) correct(d *core.Decision, r *http.Request, actual, used []int64, err error) {
	changed := false
	for i := range s.charges {
		changed = changed || actual[i] != s.charges[i].units
	}
	reports := s.reports(used)
	var uncovered int64
	if len(reports) > 0 {
		within(r, func(ctx context.Context) {
			var failed error
			_, uncovered, failed = core.ReportAll(ctx, reports...)
			err = errors.Join(err, failed)
		})
	}
	if changed {
		within(r, func(ctx context.Context) {
			more, failed := d.Settle(ctx, actual...)
			uncovered, err = max(uncovered, more), errors.Join(err, failed)
		})
	}
	if (changed || len(reports) > 0 || err != nil) && s.guard.config.OnSettled != nil {
		s.guard.config.OnSettled(r, uncovered, err)
	}
}

// within calls the store, with a time of its own, even if the client has disconnected.
func within(r *http.Request, call func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTimeout)
	defer cancel()
	call(ctx)
}
