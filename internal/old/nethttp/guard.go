package nethttp

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/keyfuncs"
)

// A Config configures a [Guard].
type Config struct {
	Rules       []Rule
	Observe     func(*http.Request, Verdict)
	ObserveOnly bool
}

// A Rule limits the keys of a Limiter.
type Rule struct {
	Key     keyfuncs.Func
	Limiter *core.Limiter
	Plan    func(r *http.Request, key string) *core.Limiter
	Cost    func(*http.Request) int64
	Settle  func(*http.Request, Outcome) int64
	Service bool
}

// An Outcome describes the response to an admitted request.
type Outcome struct {
	Status  int
	Written int64
	Cost    int64 // as SetCost set it, or else the units charged
}

// StatedCost is a [Rule].Settle for handlers that call [SetCost].
func StatedCost(_ *http.Request, o Outcome) int64 { return o.Cost }

// FailuresOnly is a [Rule].Settle that charges only requests whose status is 400 or more.
func FailuresOnly(_ *http.Request, o Outcome) int64 {
	if o.Status < http.StatusBadRequest {
		return 0
	}
	return o.Cost
}

// A Guard decides which requests to admit.
type Guard struct {
	config  Config
	settles bool // at least one rule has Settle
}

// New returns a guard. It checks nothing.
func New(c Config) *Guard {
	g := &Guard{config: c}
	for i := range c.Rules {
		g.settles = g.settles || c.Rules[i].Settle != nil
	}
	return g
}

// Handler returns a handler that calls next for requests that are admitted.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := Verdict{guard: g}
		g.decide(&v, r)
		if g.config.Observe != nil && (v.Decision.Len() > 0 || !v.admitted || v.charges != nil) {
			g.config.Observe(r, v)
		}
		if g.config.ObserveOnly {
			if !v.admitted {
				v.charges = nil // nothing is charged
			}
			v.admitted, v.silent = true, true
		}
		v.SetFields(w.Header())
		if !v.admitted {
			h := w.Header()
			h.Set("Content-Type", ProblemType)
			h.Set("Content-Length", v.document().Length)
			h.Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(v.status)
			w.Write(v.document().Body) //nolint:errcheck // the client may have disconnected
			return
		}
		v.serve(w, r, next)
	})
}

// decide finds all keys, and asks the limiters.
func (g *Guard) decide(v *Verdict, r *http.Request) {
	var charges []core.Charge
	for i := range g.config.Rules {
		rule := &g.config.Rules[i]
		n := int64(1)
		if rule.Cost != nil {
			n = rule.Cost(r)
		}
		if n == 0 {
			continue
		}
		key, err := rule.Key(r)
		if err != nil {
			v.Err, v.status = err, http.StatusBadRequest
			return
		}
		l := rule.Limiter
		if rule.Plan != nil {
			if p := rule.Plan(r, key); p != nil {
				l = p
			}
		}
		charges = append(charges, core.Charge{Limiter: l, Key: key, N: n})
		v.charges = append(v.charges, charged{rule: rule, units: n, cost: n})
	}
	if len(charges) > 0 {
		if v.ask(r, charges); !v.admitted {
			return
		}
	}
	v.admitted = true
}

// ask asks the limiters.
func (v *Verdict) ask(r *http.Request, charges []core.Charge) {
	ctx := r.Context()
	if v.guard.config.ObserveOnly {
		ctx = ontrial.Mark(ctx)
	}
	if v.Decision, v.Err = core.AllowAll(ctx, charges...); v.Err != nil {
		v.status = http.StatusServiceUnavailable
		return
	}
	if v.admitted = v.Decision.Allowed; !v.admitted {
		v.status = http.StatusServiceUnavailable // if only limits of the service have refused
		for i := range v.Decision.Len() {
			if a := v.Decision.Answer(i); !a.Allowed && !v.hides(a.Limiter) {
				v.status = http.StatusTooManyRequests
			}
		}
	}
}

// hides reports whether the response does not show a limiter.
func (v *Verdict) hides(limiter string) bool {
	return slices.ContainsFunc(v.guard.config.Rules, func(rule Rule) bool {
		return rule.Service && rule.Limiter != nil && rule.Limiter.Name() == limiter
	})
}

// serve calls next for a request that is admitted.
func (v *Verdict) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !v.guard.settles || len(v.charges) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	c := &costs{charges: v.charges}
	r = r.WithContext(context.WithValue(r.Context(), costsKey{}, c))
	rec := &record.Recorder{ResponseWriter: w}
	next.ServeHTTP(rec.Writer(), r)
	c.mu.Lock()
	defer c.mu.Unlock()
	actual := make([]int64, len(c.charges))
	for i := range c.charges {
		charge := &c.charges[i]
		if actual[i] = charge.cost; charge.rule.Settle != nil {
			actual[i] = charge.rule.Settle(r, Outcome{Status: rec.Final(true), Written: rec.Written, Cost: charge.cost})
		}
	}
	v.settle(r, actual)
}

// settle corrects the charges to their costs.
func (v *Verdict) settle(r *http.Request, actual []int64) {
	if slices.EqualFunc(v.charges, actual, func(c charged, n int64) bool { return c.units == n }) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Second)
	defer cancel()
	_, _ = v.Decision.Settle(ctx, actual...)
}

type charged struct {
	rule        *Rule
	units, cost int64
}

// costsKey is the key of costs in a context.
type costsKey struct{}

// costs are the charges of an admitted request.
type costs struct {
	mu      sync.Mutex
	charges []charged
}

// SetCost sets the number of units that the request cost under the rule with Settle whose Limiter has the name.
func SetCost(ctx context.Context, limiter string, units int64) {
	c, _ := ctx.Value(costsKey{}).(*costs)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.charges {
		if rule := c.charges[i].rule; rule.Settle != nil && rule.Limiter.Name() == limiter {
			c.charges[i].cost = units
		}
	}
}
