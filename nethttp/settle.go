package nethttp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/holds"
	"github.com/headgate/headgate/internal/record"
)

// settleTimeout bounds how long a response waits for the correction of a charge.
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

// Ends reports whether a verdict that admits must be ended by [Verdict.End].
func (v Verdict) Ends() bool { return v.admitted && v.stay != nil }

// Upgrades reports whether a verdict that admits is to be served by [Verdict.Serve] or [Verdict.Upgrade],
// because it holds slots for a socket.
func (v Verdict) Upgrades() bool { return v.admitted && v.stay != nil && v.stay.held != nil }

// Attempt is for package websocketmw: it returns the attempt that the verdict is about, or nil.
func (v Verdict) Attempt() holds.Attempt {
	if v.stay == nil {
		return nil
	}
	return v.stay.tried
}

// Begin returns the request to pass to the handler of a request that is admitted, in whose context
// [SetCost] works. It reports whether the Outcome matters that End gets: not unless a rule has
// Settle or Report.
func (v Verdict) Begin(r *http.Request) (begun *http.Request, watch bool) {
	s := v.stay
	if s == nil || !v.guard.settles || len(s.charges) == 0 {
		return r, false
	}
	outer, _ := r.Context().Value(stayKey{}).(*stay)
	if outer == s { // it has begun
		return r, true
	}
	s.decision, s.outer = v.Decision, outer
	s.begun = r.WithContext(context.WithValue(r.Context(), stayKey{}, s))
	return s.begun, true
}

// End releases the slots of an admitted request, and if Begin was called, settles its charge and
// counts what it has used. It is
// to be called when the handler has returned or panicked. Further calls do nothing. It ignores
// Outcome.Cost. It does not release the slots of a socket that [Verdict.Serve] has served.
func (v Verdict) End(o Outcome) {
	if v.stay == nil {
		return
	}
	v.stay.release()
	v.stay.settle(o)
}

// Serve sets the verdict's fields, calls next for a request that is admitted, and ends the verdict.
// For a socket, next gets a writer that wraps the hijacked connection. If next panics, the panic
// continues.
func (v Verdict) Serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	switch {
	case !v.Ends():
		v.setLimits(w.Header(), nil)
		next.ServeHTTP(w, r)
	case v.Upgrades():
		v.upgrade(w, r, next, nil)
	default:
		v.serve(w, r, next)
	}
}

// Upgrade is [Verdict.Serve] for a socket, see [Verdict.Upgrades]. It is for frameworks that may
// write a response after the handler has returned, such as the response to an error. next returns
// the status that will be sent, or 0 for the one that was written. Upgrade notices a panic of the
// handler without help.
func (v Verdict) Upgrade(w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) (status int)) {
	var later int
	v.upgrade(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { later = next(w, r) }), &later)
}

// upgrade is Upgrade with a status that will be sent later, if it is not nil and not 0.
func (v *Verdict) upgrade(w http.ResponseWriter, r *http.Request, next http.Handler, later *int) {
	begun, _ := v.Begin(r)
	stay := v.stay
	stay.held.Serve(w, begun, next, v.SetFields, func(status int, written int64, hijacked bool) {
		if later != nil && *later != 0 {
			status = *later
		}
		stay.settle(Outcome{Status: status, Written: written, Hijacked: hijacked})
	})
}

// serve is Serve for a request whose verdict must be ended.
func (v *Verdict) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v.setLimits(w.Header(), nil)
	begun, watch := v.Begin(r)
	if !watch {
		defer v.End(Outcome{})
		next.ServeHTTP(w, begun)
		return
	}
	rec := &record.Recorder{ResponseWriter: w}
	returned := false
	defer func() {
		v.End(Outcome{Status: rec.Final(returned), Written: rec.Written, Hijacked: rec.Hijacked})
	}()
	next.ServeHTTP(rec.Writer(), begun)
	returned = true
}

// stayKey is the key of the innermost stay in a context.
type stayKey struct{}

// A stay is what a verdict holds until it ends: slots, and charges that may be corrected.
type stay struct {
	guard    *Guard
	occupied []core.Occupancy // of the rules that take slots, with Held -1 where it is unknown
	slot     *core.Slot       // nil: none
	held     holds.Held       // which has the slot then; nil: the request has it
	trial    *trial           // nil: no shadow policies
	tried    holds.Attempt    // nil: it is a request

	decision core.Decision // from Begin on
	begun    *http.Request // nil: it has not begun
	charges  []charged     // one for each charge of the decision
	outer    *stay         // of the guard around this one

	mu     sync.Mutex // guards charges[].cost and closed
	closed bool
}

type charged struct {
	rule  int // its index
	units int64
	cost  int64        // as SetCost set it, or else the units
	check *core.Charge // of a rule with Report, for 0 units; a pointer, so that its key is not printed
}

func (s *stay) rule(c *charged) *Rule { return &s.guard.config.Rules[c.rule] }

// staying returns what the verdict holds, and first makes it if there is nothing yet.
func (v *Verdict) staying() *stay {
	if v.stay == nil {
		v.stay = &stay{guard: v.guard}
	}
	return v.stay
}

// add adds a charge of a rule.
func (s *stay) add(rule int, charge core.Charge) {
	if s.charges == nil {
		s.charges = make([]charged, 0, len(s.guard.config.Rules))
	}
	c := charged{rule: rule, units: charge.N, cost: charge.N}
	if s.guard.config.Rules[rule].Report != nil {
		check := charge
		c.check = &check
	}
	s.charges = append(s.charges, c)
}

// release releases the slots.
func (s *stay) release() {
	switch {
	case s.held != nil:
		s.held.End()
	case s.slot != nil:
		s.slot.Release()
	}
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
	actual := make([]int64, len(s.charges))
	for i := range s.charges {
		if c := &s.charges[i]; s.rule(c).Attempts {
			actual[i] = c.units
		}
	}
	s.correct(d, r, actual, nil, nil)
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
	if changed || len(reports) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTimeout)
		defer cancel()
		if changed {
			var failed error
			uncovered, failed = d.Settle(ctx, actual...)
			s.trial.settle(ctx, s.charges, actual)
			err = errors.Join(err, failed)
		}
		if len(reports) > 0 {
			_, more, failed := core.ReportAll(ctx, reports...)
			s.trial.report(ctx, s.charges, used)
			uncovered, err = max(uncovered, more), errors.Join(err, failed)
		}
	}
	if (changed || len(reports) > 0 || err != nil) && s.guard.config.OnSettled != nil {
		s.guard.config.OnSettled(r, uncovered, err)
	}
}
