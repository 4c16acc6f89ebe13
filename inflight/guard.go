package inflight

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/occupancy"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
)

// A Guard decides which requests are handled now, later or not at all. Make one with [New].
// It is safe for concurrent use.
type Guard struct{ config Config }

var (
	errPlan     = errors.New("its Plan returned slots that were not made with Slots.With")
	errEmptyKey = errors.New("its Key returned an empty key without an error")
)

// New returns a guard. If the Config is invalid, the error joins a [ConfigError] for each
// fault.
func New(c Config) (*Guard, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Rules = slices.Clone(c.Rules)
	if c.KeyErrorStatus == 0 {
		c.KeyErrorStatus = http.StatusBadRequest
	}
	return &Guard{c}, nil
}

// Handler returns a handler that calls next for requests that get their slots, at once or in
// time, and refuses the others. The slots are released when next returns or panics.
//
// Handler panics if the guard or next is nil, or if a key is from the context of a framework, which
// only the middleware of an adapter has.
func (g *Guard) Handler(next http.Handler) http.Handler {
	g.Mount()
	for i, rule := range g.config.Rules {
		if carried.IsRequired(rule.Key) {
			panic(fmt.Sprintf("headgate: inflight: Rules[%d].Key (slots %q) is from a framework's context: use the InFlight of its adapter", i, rule.name()))
		}
	}
	if next == nil {
		panic("headgate: inflight: the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := g.Check(r)
		if v.Status() != 0 {
			g.Refuse(w, r, v)
			return
		}
		defer v.Release()
		v.SetFields(w.Header())
		next.ServeHTTP(w, r)
	})
}

// Check decides whether a request is admitted. If so, it takes the slots, for which it may
// wait for [Config].Wait or until the request's context ends. It writes nothing.
//
// The caller must call [Verdict.Release] on a verdict whose Status is 0 when the request has
// been handled, also after a panic. [Guard.Handler] does all that; Check is for framework
// adapters.
func (g *Guard) Check(r *http.Request) Verdict {
	v := Verdict{guard: g}
	if g.config.Skip != nil && g.config.Skip(r) {
		v.admitted, v.silent = true, true
		return v
	}
	g.decide(&v, r)
	v.admitted = v.status == 0
	if !v.admitted {
		v.wait = wait()
	}
	if g.config.Observe != nil {
		g.observe(r, v)
	}
	if g.config.ObserveOnly {
		v.admitted, v.silent = true, true
	}
	return v
}

// Mount is for adapters, which call it once, where a guard is mounted. It panics if the guard is
// nil. It reports whether requests should carry the framework's context: for all
// functions of the Config, except those that are known not to use it.
func (g *Guard) Mount() (carries bool) {
	if g == nil {
		panic("headgate: inflight: the guard is nil: see the error of inflight.New")
	}
	c := &g.config
	carries = !carried.IsUnused(c.Skip) || c.OnRefused != nil || c.Observe != nil
	for _, rule := range c.Rules {
		carries = carries || !carried.IsUnused(rule.Key) || rule.Plan != nil || rule.PlanName != nil
	}
	return carries
}

// observe calls Observe. If that panics, the request is not handled, so observe releases its
// slots.
func (g *Guard) observe(r *http.Request, v Verdict) {
	returned := false
	defer func() {
		if !returned {
			v.Release()
		}
	}()
	g.config.Observe(r, v)
	returned = true
}

// decide fills in v.
func (g *Guard) decide(v *Verdict, r *http.Request) {
	claims := make([]core.Claim, len(g.config.Rules))
	for i := range g.config.Rules {
		rule := &g.config.Rules[i]
		k, err := rule.Key(r)
		if err == nil && k == "" {
			err = errEmptyKey
		}
		if err != nil {
			v.Err, v.status = rule.fault(i, err), g.config.KeyErrorStatus
			if errors.Is(err, keyfuncs.ErrProgram) {
				v.status = http.StatusInternalServerError
			}
			return
		}
		claims[i].Key = k
	}
	if err := g.choose(r, claims); err != nil {
		v.Err, v.status = err, http.StatusInternalServerError
		return
	}
	start := time.Now()
	slot, err := g.acquire(r, claims)
	if g.config.Queue > 0 {
		v.Waited = time.Since(start)
	}
	if err != nil {
		g.refuse(v, r, err, claims)
		return
	}
	v.slot, v.limits = slot, occupancy.Of(slot)
}

// choose sets the slots of claims that have keys, all of one instant.
func (g *Guard) choose(r *http.Request, claims []core.Claim) (err error) {
	var view limits.View
	for i := range claims {
		rule, c := &g.config.Rules[i], &claims[i]
		if rule.Limit != nil {
			c.Slots = rule.fromBook(&view, r, c.Key)
		} else if c.Slots, err = rule.slots(r, c.Key); err != nil {
			return rule.fault(i, err)
		}
	}
	return nil
}

// acquire takes the slots, and waits for them if requests may wait. The slots of the claims become
// those that apply when the wait is over.
func (g *Guard) acquire(r *http.Request, claims []core.Claim) (*core.Slot, error) {
	switch {
	case g.config.ObserveOnly:
		return core.AcquireAll(ontrial.Mark(r.Context()), claims...)
	case g.config.Queue == 0:
		return core.AcquireAll(r.Context(), claims...)
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.config.Wait)
	defer cancel()
	chosen := true // just now
	return core.AcquireAllWaitFunc(ctx, g.config.Queue, func() []core.Claim {
		again := slices.Clone(claims)
		if !chosen && g.choose(r, again) == nil {
			copy(claims, again)
		}
		chosen = false
		return again
	})
}

// refuse fills in v for an error of acquire.
func (g *Guard) refuse(v *Verdict, r *http.Request, err error, claims []core.Claim) {
	var full *core.FullError
	switch gone := r.Context().Err(); {
	case gone != nil: // nobody reads the answer
		v.Err, v.status = gone, http.StatusServiceUnavailable
	case errors.As(err, &full):
		v.status = http.StatusTooManyRequests
		if g.config.Rules[full.Claim].Service {
			v.status = http.StatusServiceUnavailable
		}
		v.limits = occupancy.Refused(full, claims)
	case errors.Is(err, core.ErrQuestion):
		v.Err, v.status = err, http.StatusInternalServerError
	default:
		v.Err, v.status = err, http.StatusServiceUnavailable
	}
}

// fault says which rule an error is about, never whom.
func (rule *Rule) fault(i int, err error) error {
	return fault.Wrap(fmt.Sprintf("inflight: Rules[%d] (slots %q)", i, rule.name()), err)
}

// fromBook returns the slots of a rule with a Limit. The view is that of all rules.
func (rule *Rule) fromBook(view *limits.View, r *http.Request, key string) *core.Slots {
	if *view == (limits.View{}) {
		*view = rule.Limit.Book().View()
	}
	plan := ""
	if rule.PlanName != nil {
		plan = rule.PlanName(r)
	}
	return view.Slots(rule.Limit, plan, key)
}

// slots returns the slots of the plan of a request with the key.
func (rule *Rule) slots(r *http.Request, key string) (*core.Slots, error) {
	if rule.Plan == nil {
		return rule.Slots, nil
	}
	s := rule.Plan(r, key)
	switch {
	case s == nil || s == rule.Slots:
		return rule.Slots, nil
	case s.Name() != rule.Slots.Name():
		return nil, fmt.Errorf("%w: they are named %q", errPlan, s.Name())
	case s.Store() != rule.Slots.Store():
		return nil, fmt.Errorf("%w: they have another store", errPlan)
	}
	return s, nil
}
