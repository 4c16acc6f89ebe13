package nethttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/holds"
	"github.com/headgate/headgate/internal/old/keywatch"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/keyfuncs"
)

// A Guard decides which requests to admit. Make one with [New]; the zero Guard refuses
// every request with status 500. A Guard is safe for concurrent use. One handler may be
// behind several guards, such as one for the whole server and one for a route.
type Guard struct {
	config  Config
	faults  *keywatch.Watch
	sheet   *sheet
	slots   []int // the rules that take slots
	settles bool  // at least one rule has Settle or Report
	reports bool  // at least one has Report
	service bool  // at least one rule for a rate has Service
	retry   pauses
}

var (
	errZero     = errors.New("headgate: guard: make one with nethttp.New")
	errEmptyKey = returned("Key", "an empty key without an error")
)

// A ruleError says which rule an error is about. Clients can cause errors of keys as
// often as they like, so its text is formatted only when it is used.
type ruleError struct {
	rule       int
	name, what string // of the limiter or slots
	err        error
}

func (g *Guard) ruleError(rule int, err error) error {
	name, what := g.config.Rules[rule].name()
	return &ruleError{rule, name, what, err}
}

func (e *ruleError) Error() string {
	return fault.Text(fmt.Sprintf("guard: Rules[%d] (%s %q)", e.rule, e.what, e.name), e.err)
}

func (e *ruleError) Unwrap() error { return e.err }

// returned describes an invalid result of a rule's function.
func returned(function, format string, args ...any) error {
	return errors.New(function + " returned " + fmt.Sprintf(format, args...))
}

// New returns a guard. The error joins a [ConfigError] for each fault of the Config.
func New(c Config) (*Guard, error) {
	if err := c.validate(false); err != nil {
		return nil, err
	}
	return newGuard(c, pauses{1, 5}, "guard"), nil
}

// NewForSockets is New for package websocketmw.
func NewForSockets(c Config) (*Guard, error) {
	if err := c.validate(true); err != nil {
		return nil, err
	}
	return newGuard(c, pauses{5, 10}, "websocketmw"), nil
}

func newGuard(c Config, retry pauses, what string) *Guard {
	g := &Guard{config: c, faults: newFaults(&c, what), sheet: newSheet(c.Rules), retry: retry}
	g.config.Rules = slices.Clone(c.Rules)
	for i := range c.Rules {
		rule := &c.Rules[i]
		if rule.takesSlots() {
			g.slots = append(g.slots, i)
		}
		g.reports = g.reports || rule.Report != nil
		g.settles = g.settles || rule.Settle != nil || rule.Report != nil
		g.service = g.service || rule.Service && !rule.takesSlots()
	}
	return g
}

// Check decides whether to admit a request. If so, it charges the request and acquires its slots,
// for which it may wait. It writes nothing and does not read the body. The store is called with the
// request's context.
//
// An admitting verdict may hold slots or have a charge to settle ([Verdict.Ends]). Then it must be
// ended by [Verdict.End] when the request has been handled, also after a panic. [Guard.Handler]
// does all that; Check is for adapters to frameworks.
func (g *Guard) Check(r *http.Request) (v Verdict) {
	g.check(&v, r, nil)
	return v
}

// CheckFor is Check for package websocketmw.
func (g *Guard) CheckFor(r *http.Request, a holds.Attempt) (v Verdict) {
	g.check(&v, r, a)
	return v
}

// check fills in the zero verdict v, which is too large to be copied without need. The attempt is nil
// for requests.
func (g *Guard) check(v *Verdict, r *http.Request, a holds.Attempt) {
	if g.config.Skip != nil && g.config.Skip(r) {
		v.admitted, v.silent = true, true
		return
	}
	g.decide(v, r, a)
	if g.config.Observe != nil && (v.asked() || !v.admitted || v.stay != nil) {
		g.observe(v, r)
	}
	if g.config.ObserveOnly {
		v.spare(a)
	}
}

// observe calls Observe. If that panics, the request is not handled, so its slots are released.
func (g *Guard) observe(v *Verdict, r *http.Request) {
	if v.stay != nil {
		returned := false
		defer func() {
			if !returned {
				v.stay.release()
			}
		}()
		g.config.Observe(r, *v)
		returned = true
		return
	}
	g.config.Observe(r, *v)
}

// spare makes the verdict admit, in shadow mode.
func (v *Verdict) spare(a holds.Attempt) {
	if a != nil && !v.admitted {
		held, status, err := a.Spare()
		if err != nil {
			v.Err, v.status = err, status
			return
		}
		v.staying().held = held
	}
	if !v.admitted && v.stay != nil {
		v.stay.charges = nil // nothing is charged
	}
	v.admitted, v.silent = true, true
}

func (g *Guard) decide(v *Verdict, r *http.Request, a holds.Attempt) {
	v.guard, v.sheet = g, g.sheet
	switch {
	case len(g.config.Rules) == 0:
		v.Err, v.status = errZero, http.StatusInternalServerError
	case a != nil:
		v.staying().tried = a
		if v.status, v.Err = a.Begin(); v.Err == nil {
			g.decideAll(v, r, a)
		} else {
			v.retry = g.retry.random()
		}
	case len(g.config.Rules) == 1 && len(g.slots) == 0:
		var (
			one  [1]core.Charge
			view limits.View
		)
		if g.charge(v, r, 0, &view, &one[0]) {
			v.ask(r, one[:])
		} else {
			v.admitted = v.Err == nil
		}
	default:
		g.decideAll(v, r, nil)
	}
}

// decideAll is decide for several rules, slots or an attempt: first all keys, then the rates, then
// the slots.
func (g *Guard) decideAll(v *Verdict, r *http.Request, a holds.Attempt) {
	var (
		room   [maxRules]core.Charge
		view   limits.View
		claims []core.Claim
	)
	n := 0
	for i := range g.config.Rules {
		if g.config.Rules[i].takesSlots() {
			claims = append(claims, g.claim(v, r, i, &view))
		} else if g.charge(v, r, i, &view, &room[n]) {
			n++
		}
		if v.Err != nil {
			return
		}
	}
	if a != nil {
		if v.status, v.Err = a.Claim(claims); v.Err != nil {
			g.faults.Unkeyed(-1, v.status, v.Err)
			return
		}
	}
	if n > 0 {
		if v.ask(r, room[:n]); !v.admitted {
			return
		}
	}
	v.admitted = true
	if a != nil || len(claims) > 0 {
		g.take(v, r, a, claims)
	}
}

// ask asks the limiters, and completes the verdict.
func (v *Verdict) ask(r *http.Request, charges []core.Charge) {
	ctx := r.Context()
	if v.guard.config.ObserveOnly {
		ctx = ontrial.Mark(ctx)
	}
	switch c := &charges[0]; {
	case v.guard.reports:
		v.Decision, v.Err = v.checkAndCharge(ctx, slices.Clone(charges))
	case len(charges) == 1:
		v.Err = c.Limiter.AllowTo(ctx, c.Key, c.N, &v.Decision)
	default: // a copy, so that the room of the charges does not escape
		v.Decision, v.Err = core.AllowAll(ctx, slices.Clone(charges)...)
	}
	v.conclude(r)
}

// conclude completes the verdict from its Decision and Err, as the limiters returned them.
func (v *Verdict) conclude(r *http.Request) {
	if v.Err != nil {
		v.guard.fail(v, r, -1, http.StatusServiceUnavailable, v.Err)
	}
	v.admitted = v.Err == nil && v.Decision.Allowed
	if !v.admitted && v.Err == nil {
		v.status = http.StatusTooManyRequests
		if v.guard.service && v.isOfService() {
			v.status = http.StatusServiceUnavailable
		}
	}
}

// isOfService reports whether only limits of the service have refused.
func (v *Verdict) isOfService() bool {
	for i := range v.Decision.Len() {
		if a := v.Decision.Answer(i); !a.Allowed && !v.hides(a.Limiter) {
			return false
		}
	}
	return true
}

// hides reports whether the response does not show a limiter.
func (v *Verdict) hides(limiter string) bool {
	if v.guard == nil || !v.guard.service {
		return false
	}
	i := v.guard.ruleOf(limiter)
	return i >= 0 && v.guard.config.Rules[i].Service
}

// ruleOf returns the index of the rule whose limiters have that name, or -1.
func (g *Guard) ruleOf(limiter string) int {
	return slices.IndexFunc(g.config.Rules, func(rule Rule) bool {
		name, what := rule.name()
		return name == limiter && what == ofLimiter
	})
}

// fail makes the verdict refuse with a status, for an error of a rule, or of all if that is -1. The
// error has no key.
func (g *Guard) fail(v *Verdict, r *http.Request, rule, status int, err error) {
	if r.Context().Err() == nil { // otherwise nobody reads the answer
		g.faults.Undecided(rule, status, err)
	}
	if rule >= 0 {
		err = g.ruleError(rule, err)
	}
	v.Err, v.status = err, status
}

// key returns the key that a rule charges, or sets the verdict's Err.
func (g *Guard) key(v *Verdict, r *http.Request, i int) string {
	key, err := g.config.Rules[i].Key(r)
	if err == nil && key == "" {
		err = errEmptyKey
	}
	g.faults.See(i, r, key, err)
	if err != nil {
		v.Err, v.status = g.ruleError(i, err), http.StatusBadRequest
		if errors.Is(err, keyfuncs.ErrProgram) {
			v.status = http.StatusInternalServerError
		}
		g.faults.Unkeyed(i, v.status, err)
	}
	return key
}

// charge sets c to what a rule charges, and adds that to what the verdict holds. It returns
// false if the rule does not take part, or if a function of the rule returns an error or an
// invalid value, which is the verdict's Err then. The view is that of all rules.
func (g *Guard) charge(v *Verdict, r *http.Request, i int, view *limits.View, c *core.Charge) bool {
	rule := &g.config.Rules[i]
	c.N = 1
	if rule.Cost != nil {
		c.N = rule.Cost(r)
	}
	if c.N < 0 {
		g.fail(v, r, i, http.StatusInternalServerError, returned("Cost", "%d; it must be 0 or more", c.N))
		return false
	}
	if c.N == 0 {
		v.sheet = nil
		return false
	}
	if rule.Report != nil {
		c.N = 0 // which is known only afterwards
	}
	if c.Key = g.key(v, r, i); v.Err != nil {
		return false
	}
	c.Limiter = rule.Limiter
	if rule.Limit != nil || rule.Plan != nil {
		var err error
		if c.Limiter, err = rule.chooseLimiter(view, r, c.Key); err != nil {
			g.fail(v, r, i, http.StatusInternalServerError, err)
			return false
		}
	}
	if c.Limiter != rule.Limiter {
		v.sheet = nil
	}
	if g.settles || len(g.slots) > 0 {
		v.staying().add(i, *c)
	}
	return true
}

// Reset forgets the charges of the key of a request, under the rule whose limiters have that name.
// An example is the failed logins of an address that has signed in. Other rules and other keys keep
// their charges. The key is the one that [Guard.Handler] charges, whatever its form.
//
// It returns an error if no rule has that name, or if the request has no key. Other errors come
// from [core.Limiter.Reset].
func (g *Guard) Reset(r *http.Request, limiter string) error {
	i := g.ruleOf(limiter)
	if i < 0 {
		return fmt.Errorf("headgate: guard: Reset: no rule has a limiter named %q", limiter)
	}
	var v Verdict
	key := g.key(&v, r, i)
	if v.Err != nil {
		return v.Err
	}
	var view limits.View
	l, err := g.config.Rules[i].chooseLimiter(&view, r, key)
	if err != nil {
		return g.ruleError(i, err)
	}
	return l.Reset(r.Context(), key)
}

// Handler returns a handler that sets the fields of the response and calls next for
// requests that [Guard.Check] admits, and answers the others with [Guard.Refuse]. When next
// returns or panics, the handler releases the slots, settles the charge by [Rule].Settle and counts
// what [Rule].Report says. With a Report, the slots are released last. It does not recover the panic.
//
// If next hijacks a connection, later requests on it are not charged, and the slots are released
// when next returns. So next must not upgrade to HTTP/2, as h2c.NewHandler of golang.org/x/net
// does. Let http.Server read HTTP/2 without TLS, with UnencryptedHTTP2 in its Protocols. Package
// websocketmw limits WebSockets.
//
// If a rule has Settle or Report, next gets a wrapped ResponseWriter. It has ReadFrom, and Unwrap
// for [http.ResponseController]. It has Flush and Hijack if the original has them, and CloseNotify if
// the original has that and Flush. It does not have Push.
//
// Handler panics if the guard or next is nil.
func (g *Guard) Handler(next http.Handler) http.Handler {
	if g == nil {
		panic("headgate: guard: the guard is nil: see the error of nethttp.New")
	}
	if next == nil {
		panic("headgate: guard: the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v Verdict
		g.check(&v, r, nil)
		switch {
		case !v.admitted:
			g.refuse(w, r, &v)
		case v.stay != nil:
			v.serve(w, r, next)
		default:
			v.setLimits(w.Header(), nil)
			next.ServeHTTP(w, r)
		}
	})
}
