package nethttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/carried"
	"github.com/headgate/headgate/internal/fault"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
)

// A Guard decides which requests to admit. Make one with [New]; the zero Guard refuses
// every request with status 500. A Guard is safe for concurrent use. One handler may be
// behind several guards, such as one for the whole server and one for a route.
type Guard struct {
	config  Config
	sheet   *sheet
	settles bool // at least one rule has Settle
}

// ErrForbidden is the Err of the [Verdict] about a request that [Config].Permit refused.
var ErrForbidden = errors.New("headgate: guard: Config.Permit returned false")

var (
	errZero     = errors.New("headgate: guard: make one with nethttp.New")
	errEmptyKey = returned("Key", "an empty key without an error")
)

// A ruleError says which rule an error is about. Clients can cause errors of keys as
// often as they like, so its text is formatted only when it is used.
type ruleError struct {
	rule    int
	limiter string // its name
	err     error
}

func (g *Guard) ruleError(rule int, err error) error {
	return &ruleError{rule, g.config.Rules[rule].name(), err}
}

func (e *ruleError) Error() string {
	return fault.Text(fmt.Sprintf("guard: Rules[%d] (limiter %q)", e.rule, e.limiter), e.err)
}

func (e *ruleError) Unwrap() error { return e.err }

// returned describes an invalid result of a rule's function.
func returned(function, format string, args ...any) error {
	return errors.New(function + " returned " + fmt.Sprintf(format, args...))
}

// New returns a guard. The error joins a [ConfigError] for each fault of the Config.
func New(c Config) (*Guard, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	g := &Guard{config: c, sheet: newSheet(c.Rules)}
	g.config.Rules = slices.Clone(c.Rules)
	if c.KeyErrorStatus == 0 {
		g.config.KeyErrorStatus = http.StatusBadRequest
	}
	for _, rule := range c.Rules {
		g.settles = g.settles || rule.Settle != nil
	}
	return g, nil
}

// Check decides whether to admit a request, and charges it if so. It writes nothing and
// does not read the body. The store is called with the request's context.
func (g *Guard) Check(r *http.Request) (v Verdict) {
	g.check(&v, r)
	return v
}

// CheckTo is Check, but writes to v, whatever it held, which saves a copy. It is for adapters
// to frameworks.
func (g *Guard) CheckTo(v *Verdict, r *http.Request) {
	*v = Verdict{}
	g.check(v, r)
}

// Mount is for adapters, which call it once, where a guard is mounted. It panics if the guard is
// nil. It reports whether requests should carry the framework's context: for all
// functions of the Config, except those that are known not to use it.
func (g *Guard) Mount() (carries bool) {
	if g == nil {
		panic("headgate: guard: the guard is nil: see the error of nethttp.New")
	}
	c := &g.config
	carries = !carried.IsUnused(c.Skip) || !carried.IsUnused(c.Permit) || c.Preflight != nil || c.OnRefused != nil || c.Observe != nil || c.OnSettled != nil
	for _, rule := range c.Rules {
		carries = carries || !carried.IsUnused(rule.Key) || rule.Plan != nil || rule.PlanName != nil || !carried.IsUnused(rule.Cost) || rule.Settle != nil
	}
	return carries
}

// check fills in the zero verdict v, which is too large to be copied without need.
func (g *Guard) check(v *Verdict, r *http.Request) {
	if g.config.Skip != nil && g.config.Skip(r) {
		v.admitted = true
		return
	}
	switch {
	case g.config.Permit != nil && !g.config.Permit(r):
		v.Err, v.status = ErrForbidden, http.StatusForbidden
	case g.config.Preflight != nil && isPreflight(r):
		v.status = statusPreflight
	default:
		g.decide(v, r)
	}
	if g.config.Observe != nil && (v.asked() || !v.admitted) {
		g.config.Observe(r, *v)
	}
	if g.config.ObserveOnly {
		v.admitted, v.silent = true, true
	}
}

// isPreflight reports whether a request looks like a CORS preflight (Fetch Standard,
// section 3.3.2). Nothing proves that a browser sent it.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

func (g *Guard) decide(v *Verdict, r *http.Request) {
	v.guard, v.sheet = g, g.sheet
	switch len(g.config.Rules) {
	case 0:
		v.Err, v.status = errZero, http.StatusInternalServerError
	case 1:
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
		g.decideAll(v, r)
	}
}

// decideAll is decide for several rules.
func (g *Guard) decideAll(v *Verdict, r *http.Request) {
	var (
		room [maxRules]core.Charge
		view limits.View
	)
	n := 0
	for i := range g.config.Rules {
		if g.charge(v, r, i, &view, &room[n]) {
			n++
		} else if v.Err != nil {
			return
		}
	}
	if n == 0 {
		v.admitted = true
		return
	}
	v.ask(r, room[:n])
}

// ask asks the limiters, and completes the verdict.
func (v *Verdict) ask(r *http.Request, charges []core.Charge) {
	ctx := r.Context()
	if v.guard.config.ObserveOnly {
		ctx = ontrial.Mark(ctx)
	}
	switch c := &charges[0]; {
	case v.trial != nil:
		v.Decision, v.Err = v.trial.decide(ctx, charges)
		if v.bill != nil {
			v.bill.trial = v.trial
		}
	case len(charges) == 1:
		v.Err = c.Limiter.AllowTo(ctx, c.Key, c.N, &v.Decision)
	default: // a copy, so that the room of the charges does not escape
		v.Decision, v.Err = core.AllowAll(ctx, slices.Clone(charges)...)
	}
	if v.Err != nil {
		v.status = http.StatusServiceUnavailable
		return
	}
	v.admitted = v.Decision.Allowed
	if !v.admitted {
		v.bill, v.status = nil, http.StatusTooManyRequests
	}
}

// charge sets c to what a rule charges, and adds that to the verdict's bill. It returns
// false if the rule does not take part, or if a function of the rule returns an error or an
// invalid value, which is the verdict's Err then. The view is that of all rules.
func (g *Guard) charge(v *Verdict, r *http.Request, i int, view *limits.View, c *core.Charge) bool {
	rule := &g.config.Rules[i]
	c.N = 1
	if rule.Cost != nil {
		c.N = rule.Cost(r)
	}
	if c.N < 0 {
		err := returned("Cost", "%d; it must be 0 or more", c.N)
		v.Err, v.status = g.ruleError(i, err), http.StatusInternalServerError
		return false
	}
	if c.N == 0 {
		v.sheet = nil
		return false
	}
	var err error
	c.Key, err = rule.Key(r)
	if err == nil && c.Key == "" {
		err = errEmptyKey
	}
	if err != nil {
		v.Err, v.status = g.ruleError(i, err), g.config.KeyErrorStatus
		if errors.Is(err, keyfuncs.ErrProgram) {
			v.status = http.StatusInternalServerError
		}
		return false
	}
	c.Limiter = rule.Limiter
	switch {
	case rule.Limit != nil:
		var shadow *core.Limiter
		if c.Limiter, shadow = rule.fromBook(view, r, c.Key); shadow != nil {
			v.trial = v.trial.add(i, core.Charge{Limiter: shadow, Key: c.Key, N: c.N})
		}
	case rule.Plan != nil:
		if c.Limiter, err = rule.plan(r, c.Key); err != nil {
			v.Err, v.status = g.ruleError(i, err), http.StatusInternalServerError
			return false
		}
	}
	if c.Limiter != rule.Limiter {
		v.sheet = nil
	}
	if g.settles {
		v.bill = v.bill.add(g, i, c.N)
	}
	return true
}

// plan returns the limiter that decides about a request that is charged to the key.
func (rule *Rule) plan(r *http.Request, key string) (*core.Limiter, error) {
	l := rule.Plan(r, key)
	switch {
	case l == nil || l == rule.Limiter:
		return rule.Limiter, nil
	case l.Name() != rule.Limiter.Name():
		return nil, returned("Plan", "a limiter of another name, %q; make it with Limiter.With", l.Name())
	case l.Store() != rule.Limiter.Store():
		return nil, returned("Plan", "a limiter of another store; make it with Limiter.With")
	}
	return l, nil
}

// fromBook returns the limiter of a rule with a Limit, and that of its shadow policies if it has
// any. The view is that of all rules.
func (rule *Rule) fromBook(view *limits.View, r *http.Request, key string) (l, shadow *core.Limiter) {
	if *view == (limits.View{}) {
		*view = rule.Limit.Book().View()
	}
	plan := ""
	if rule.PlanName != nil {
		plan = rule.PlanName(r)
	}
	return view.Limiter(rule.Limit, plan, key), view.Shadow(rule.Limit)
}

// Reset forgets what the rule whose limiters have that name has charged the key of a request: say,
// the failed logins of an address that has signed in. Other rules, and other keys, keep theirs.
// The key is the one that [Guard.Handler] charges, whatever its form.
//
// The error says if no rule has that name, or if the request has no key; otherwise it is that of
// [core.Limiter.Reset].
func (g *Guard) Reset(r *http.Request, limiter string) error {
	i := slices.IndexFunc(g.config.Rules, func(rule Rule) bool { return rule.name() == limiter })
	if i < 0 {
		return fmt.Errorf("headgate: guard: Reset: no rule has a limiter named %q", limiter)
	}
	rule := &g.config.Rules[i]
	key, err := rule.Key(r)
	if err == nil && key == "" {
		err = errEmptyKey
	}
	if err != nil {
		return g.ruleError(i, err)
	}
	l := rule.Limiter
	switch {
	case rule.Limit != nil:
		var view limits.View
		l, _ = rule.fromBook(&view, r, key)
	case rule.Plan != nil:
		if l, err = rule.plan(r, key); err != nil {
			return g.ruleError(i, err)
		}
	}
	return l.Reset(r.Context(), key)
}

// Handler returns a handler that sets the fields of the response and calls next for
// requests that [Guard.Check] admits, and answers the others with [Guard.Refuse]. When next
// returns or panics, the handler settles the charge by [Rule].Settle. It does not recover
// the panic.
//
// If next hijacks a connection, what is sent on it later is not charged. So next must not
// upgrade to HTTP/2 by itself, as golang.org/x/net's h2c.NewHandler does. HTTP/2 without TLS is
// for http.Server to read, with UnencryptedHTTP2 in its Protocols. Package websocketmw limits
// WebSockets.
//
// If a rule has Settle, next gets a wrapped ResponseWriter, which has Flush and Hijack if
// the original has them, ReadFrom, and Unwrap for [http.ResponseController], but not Push.
//
// Handler panics if the guard or next is nil, or if a key is from the context of a framework, which
// only the middleware of an adapter has.
func (g *Guard) Handler(next http.Handler) http.Handler {
	g.Mount()
	for i, rule := range g.config.Rules {
		if carried.IsRequired(rule.Key) {
			panic(fmt.Sprintf("headgate: guard: Rules[%d].Key (limiter %q) is from a framework's context: use the middleware of its adapter", i, rule.name()))
		}
	}
	if next == nil {
		panic("headgate: guard: the handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var v Verdict
		g.check(&v, r)
		if !v.admitted {
			g.refuse(w, r, &v)
			return
		}
		v.setLimits(w.Header(), nil)
		if v.bill == nil {
			next.ServeHTTP(w, r)
		} else {
			v.serve(next, w, r)
		}
	})
}
