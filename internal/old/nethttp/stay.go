package nethttp

import (
	"context"
	"net/http"
	"sync"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/holds"
	"github.com/headgate/headgate/internal/record"
)

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

// End releases the slots of an admitted request, and if Begin was called, counts what it has used and
// settles its charge. If a rule has Report, the slots are released last, so the next request sees the
// use. It is to be called when the handler has returned or panicked. Further calls do nothing. It ignores
// Outcome.Cost. It does not release the slots of a socket that [Verdict.Serve] has served.
func (v Verdict) End(o Outcome) {
	switch {
	case v.stay == nil:
		return
	case v.stay.guard.reports:
		defer v.stay.release() // also if a function of a rule panics
	default:
		v.stay.release()
	}
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
