package core

import (
	"context"
	"fmt"
	"maps"

	"github.com/headgate/headgate/internal/backend"
	old "github.com/headgate/headgate/internal/old/core"
)

// A Limiter counts units of keys: one store and name, so that limiters of the same store and name share what was
// used. It is safe for concurrent use.
type Limiter struct {
	root    *root
	backend *backend.Limiter
}

// A root is what the plans of a limiter share. It does not change, but for the plans that a function has made.
type root struct {
	standard *Limiter
	plans    map[string]*Limiter
	made     *made // by a function; nil: there is none
	book     *documented
}

// NewLimiter returns a limiter with 1 to 8 policies, which are charged together or not at all. The name has 1 to 64
// characters of printable ASCII; clients see it. It panics if an argument is wrong: for policies that are data, see
// [Policy.Validate].
func NewLimiter(s Store, name string, policies ...Policy) *Limiter {
	if s == nil {
		panic("headgate: the store is nil: use new(core.MemoryStore), or redisstore.Open")
	}
	l := must(newConstant(s.Backend().Rates, name, policies))
	r := &root{}
	r.standard = &Limiter{r, backend.Constant(l)}
	return r.standard
}

func newConstant(s old.Store, name string, policies []Policy) (*old.Limiter, error) {
	all, err := inner(policies)
	if err != nil {
		return nil, fmt.Errorf("headgate: limiter %q: %w", name, err)
	}
	return old.New(s, name, all...)
}

// with returns a limiter of the same name with other policies. What was used is kept where both count alike.
func (r *root) with(policies []Policy) (*old.Limiter, error) {
	standard := must(r.standard.backend.Now(""))
	all, err := inner(policies)
	if err != nil {
		return nil, fmt.Errorf("headgate: limiter %q: %w", standard.Name(), err)
	}
	if l, err := standard.With(all...); err == nil {
		return l, nil
	}
	return old.New(standard.Store(), standard.Name(), all...) // of which nothing is kept
}

// clone returns a root to which plans can be added.
func (r *root) clone() *root {
	if r.book != nil {
		panic("headgate: a document has the plans of the limiter")
	}
	c := &root{plans: make(map[string]*Limiter, len(r.plans)+1)}
	if r.made != nil {
		c.made = &made{find: r.made.find} // limiters that are remembered know the plans of r only
	}
	c.standard = &Limiter{c, r.standard.backend}
	for name, p := range r.plans {
		c.plans[name] = &Limiter{c, p.backend}
	}
	return c
}

// WithPlan returns the limiter with a plan, by which other policies apply: see [Limiter.Plan]. Windows and logs of
// equal period keep what a key has used when its plan changes; a bucket, or another period, starts fresh, so what
// plans of different kinds admit together is at most the sum of them. It panics if an argument is wrong.
func (l *Limiter) WithPlan(plan string, policies ...Policy) *Limiter {
	if plan == "" {
		panic(`headgate: the plan "" is the default: give it to NewLimiter`)
	}
	r := l.root.clone()
	r.plans[plan] = &Limiter{r, backend.Constant(must(r.with(policies)))}
	return r.standard
}

// WithPlanFunc returns the limiter with a function that returns the policies of a plan, such as from a database, or nil
// if there is no such plan: then the default applies. It is asked about plans that WithPlan has not named; 1,024 answers
// are remembered, so that it is not asked for each request. It must be safe for concurrent use. Policies that are
// wrong make calls under that plan fail with [ErrInvalid].
func (l *Limiter) WithPlanFunc(find func(plan string) []Policy) *Limiter {
	if find == nil {
		panic("headgate: the function is nil")
	}
	r := l.root.clone()
	r.made = &made{find: find}
	return r.standard
}

// Plan returns the limiter whose policies are those of a plan. "" and a plan that is unknown are the default.
func (l *Limiter) Plan(plan string) *Limiter {
	switch r := l.root; {
	case plan == "":
		return r.standard
	case r.book != nil:
		return r.book.plan(r, plan)
	case r.plans[plan] != nil:
		return r.plans[plan]
	case r.made != nil:
		return r.made.plan(r, plan)
	default:
		return r.standard
	}
}

// Name returns the name.
func (l *Limiter) Name() string { return l.backend.Name() }

// String describes the limiter.
func (l *Limiter) String() string { return fmt.Sprintf("limiter %q", l.Name()) }

// Backend is for package headgate itself.
func (l *Limiter) Backend() *backend.Limiter { return l.backend }

// Allow charges the key with one unit, if all policies admit it. It does not wait.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN charges the key with n units, if all policies admit all of them. With n = 0 it charges nothing, and says
// whether the key is within its limits.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	at, err := l.backend.Now(key)
	if err == nil {
		err = at.AllowTo(ctx, key, n, d.backend.Decided())
	}
	d.Backend(nil)
	return d, err
}

// Peek returns the decision that Allow would make, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	at, err := l.backend.Now(key)
	if err != nil {
		return Decision{}, err
	}
	return decision(at.Peek(ctx, key))
}

// AllowAtMost charges the key with as many of n units as all policies admit, and returns how many. If none fits, the
// decision refuses. Under a MinInterval that is one unit.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (Decision, int64, error) {
	at, err := l.backend.Now(key)
	if err != nil {
		return Decision{}, 0, err
	}
	n = min(n, max(at.Most(), 1)) // a MinInterval admits any number of units as one call
	inner, units, err := at.AllowAtMost(ctx, key, n)
	d, err := decision(inner, err)
	return d, units, err
}

// Wait charges the key with one unit as soon as all policies admit it. Callers in this process that wait for one key
// are served in their order. It is [ErrNever] if the policies never admit it, and [context.DeadlineExceeded] at once
// if the context ends before.
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN is Wait for n units, at least 1.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Decision, error) {
	at, err := l.backend.Now(key)
	if err != nil {
		return Decision{}, err
	}
	return decision(at.WaitN(ctx, key, n))
}

// Report counts n units that the key has used, whether they fit or not: work that nobody asked about. The decision
// says how many did not fit, and what is left; it holds no charge.
func (l *Limiter) Report(ctx context.Context, key string, n int64) (Decision, error) {
	at, err := l.backend.Now(key)
	if err != nil {
		return Decision{}, err
	}
	inner, uncovered, err := at.Report(ctx, key, n)
	d, err := decision(inner, err)
	d.Uncovered = uncovered
	return d, err
}

// Reset forgets what the key has used, under all plans that the limiter knows.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	for _, of := range l.root.all(key) {
		if err := of.Reset(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// all returns the limiters of all plans.
func (r *root) all(key string) []*old.Limiter {
	if r.book != nil {
		return r.book.all(key)
	}
	limiters := []*Limiter{r.standard}
	for p := range maps.Values(r.plans) {
		limiters = append(limiters, p)
	}
	if r.made != nil {
		limiters = append(limiters, r.made.all()...)
	}
	var all []*old.Limiter
	for _, l := range limiters {
		if at, err := l.backend.Now(key); err == nil {
			all = append(all, at)
		}
	}
	return all
}

// A Charge is units of a limiter for a key.
type Charge struct {
	Limiter *Limiter
	Key     string `json:"-"`
	Units   int64  // 0 means 1
}

// Format implements [fmt.Formatter]: it prints the charge without its key.
func (c Charge) Format(s fmt.State, _ rune) {
	name := ""
	if c.Limiter != nil {
		name = c.Limiter.Name()
	}
	_, _ = fmt.Fprintf(s, "%d of limiter %q", max(c.Units, 1), name)
}

// AllowAll charges several limiters together, each for its own key: all are charged or none is. There are 1 to 64
// charges, with at most 64 policies, of limiters of one store; no two have the same limiter and key. For example, it
// limits a session, and with a larger number the address that many sessions share.
func AllowAll(ctx context.Context, charges ...Charge) (Decision, error) {
	all := make([]backend.Charge, len(charges))
	for i, c := range charges {
		if c.Limiter == nil {
			return Decision{}, backend.Invalid("the Limiter of charge %d is nil", i)
		}
		all[i] = backend.Charge{Limiter: c.Limiter.backend, Key: c.Key, Units: c.Units}
		if c.Units == 0 {
			all[i].Units = 1
		}
	}
	if len(all) == 0 {
		return Decision{}, backend.Invalid("there is no charge")
	}
	var d Decision
	err := backend.Decide(ctx, all, &d.backend)
	d.Backend(nil)
	return d, err
}

// decision returns the result of a call of today's core.
func decision(inner old.Decision, err error) (d Decision, _ error) {
	of := backend.Of(inner)
	d.Backend(&of)
	return d, err
}
