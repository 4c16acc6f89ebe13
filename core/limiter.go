package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
)

// A Limiter counts units of keys: one store and name, so that limiters of the same store and name share what was
// used. It is safe for concurrent use.
type Limiter struct {
	root    *root
	backend *backend.Limiter
	found   []Policy // what a function of plans has returned, if that has made the limiter
}

// A root is what the plans of a limiter share. It does not change, but for the plans that a function has made.
type root struct {
	shared   backend.Shared
	standard *Limiter
	plans    map[string]*Limiter
	find     func(plan string) ([]Policy, error) // makes plans; nil: there is none
	made     made[Limiter]                       // by find
	document *documented                         // nil: the program has the policies
}

// NewLimiter returns a limiter with 1 to 8 policies, which are charged together or not at all. The name has 1 to 64
// characters of printable ASCII; clients see it. Limiters of one store and name count together: with other policies,
// that is told once by [slog.Default]. It panics if an argument is wrong: for policies that are data, see
// [Policy.Validate].
func NewLimiter(store Store, name string, policies ...Policy) *Limiter {
	if store == nil {
		panic("headgate: the store is nil: use new(core.MemoryStore), or redisstore.Open")
	}
	r := &root{shared: backend.NewShared(store.Backend(), name)}
	r.standard = must(r.limiter(policies))
	store.Backend().Named("limiters", name, textOf(name, policies))
	return r.standard
}

// textOf returns a text that is the same if policies are, in whatever order.
func textOf(limiter string, policies []Policy) string {
	texts := make([]string, len(policies))
	for i, policy := range policies {
		if policy.name == "" {
			policy = policy.Named(limiter)
		}
		texts[i] = policy.String()
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// limiter returns one with these policies.
func (r *root) limiter(policies []Policy) (*Limiter, error) {
	name := r.shared.Name()
	ps, err := prepare(name, policies)
	if err != nil {
		return nil, err
	}
	if err := r.shared.Stores().Rates.Prepare(ps.List); err != nil {
		return nil, fmt.Errorf("headgate: limiter %q: %w", name, err)
	}
	return &Limiter{root: r, backend: r.shared.Constant(ps)}, nil
}

// make makes the limiter of a plan by the function. It is one of the known, if the policies are those of before.
func (r *root) make(plan string, known []*Limiter) (*Limiter, error) {
	policies, err := r.find(plan)
	if err != nil {
		return nil, err
	}
	if policies == nil {
		return r.standard, nil
	}
	for _, limiter := range known {
		if limiter != r.standard && slices.Equal(limiter.found, policies) {
			return limiter, nil
		}
	}
	l, err := r.limiter(policies)
	if err != nil {
		l = r.faulty(&invalid{fmt.Errorf("headgate: a plan of WithPlanFunc: %w", err)})
	}
	l.found = slices.Clone(policies)
	return l, nil
}

// faulty returns a limiter whose calls fail.
func (r *root) faulty(err error) *Limiter { return &Limiter{root: r, backend: r.shared.Faulty(err)} }

// clone returns a root to which plans can be added.
func (r *root) clone() *root {
	if r.document != nil {
		panic("headgate: a document has the plans of the limiter")
	}
	c := &root{shared: r.shared, plans: make(map[string]*Limiter, len(r.plans)+1), find: r.find}
	c.made.owner = r.standard.String()
	c.made.ask = c.make // limiters that r has made know the plans of r only
	c.standard = &Limiter{root: c, backend: r.standard.backend}
	for name, limiter := range r.plans {
		c.plans[name] = &Limiter{root: c, backend: limiter.backend}
	}
	return c
}

// WithPlan returns the limiter with a plan, by which other policies apply: see [Limiter.Plan]. Windows and logs of
// equal period keep what a key has used when its plan changes; a bucket, another period, another day or zone of a
// Calendar, or a FixedWindow with a limit on the other side of an eighth of its period in microseconds, starts fresh,
// so what plans of different kinds admit together is at most the sum of them. It panics if an argument is wrong.
func (l *Limiter) WithPlan(plan string, policies ...Policy) *Limiter {
	if plan == "" {
		panic(`headgate: the plan "" is the default: give it to NewLimiter`)
	}
	r := l.root.clone()
	r.plans[plan] = must(r.limiter(policies))
	return r.standard
}

// WithPlanFunc returns the limiter with a function that returns the policies of a plan, such as from a database, or nil
// if there is no such plan: then the default applies. It is asked about plans that WithPlan has not named. An answer
// applies for a minute; then one call asks again, while others use the old one. 1,024 plans are remembered. After an
// error a plan stays as it was for another minute; if it is not remembered, each call under it asks, and fails with the
// error. [slog.Default] gets the errors, at most once a minute, so they should have no keys. Policies that are wrong
// make calls fail with [ErrInvalid]. The function must be safe for concurrent use, and bound its own time.
func (l *Limiter) WithPlanFunc(find func(plan string) ([]Policy, error)) *Limiter {
	if find == nil {
		panic("headgate: the function is nil")
	}
	r := l.root.clone()
	r.find = find
	return r.standard
}

// Plan returns the limiter whose policies are those of a plan. "" and a plan that is unknown are the default.
func (l *Limiter) Plan(plan string) *Limiter {
	r := l.root
	switch {
	case plan == "":
		return r.standard
	case r.document != nil:
		return r.document.plan(r, plan)
	case r.plans[plan] != nil:
		return r.plans[plan]
	case r.find != nil:
		limiter, err := r.made.plan(plan)
		if err != nil {
			return r.faulty(err)
		}
		return limiter
	default:
		return r.standard
	}
}

// Name returns the name.
func (l *Limiter) Name() string { return l.backend.Name() }

// String describes the limiter.
func (l *Limiter) String() string { return fmt.Sprintf("limiter %q", l.Name()) }

// Allow charges the key with one unit, if all policies admit it. It does not wait.
func (l *Limiter) Allow(ctx context.Context, key string) (decision Decision, err error) {
	err = l.decide(ctx, step.Allow, key, 1, &decision)
	return
}

// AllowN charges the key with n units, if all policies admit all of them. With n = 0 it charges nothing, and says
// whether the key is within its limits.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (decision Decision, err error) {
	err = l.decide(ctx, step.Allow, key, n, &decision)
	return
}

// decide is the part of these methods that is not inlined, so that a decision is not copied.
func (l *Limiter) decide(ctx context.Context, mode step.Mode, key string, n int64, decision *Decision) error {
	err := l.backend.Decide(ctx, mode, key, n, &decision.backend)
	decision.total(err)
	return err
}

// Peek returns the decision that Allow would make, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (decision Decision, err error) {
	err = l.decide(ctx, step.Peek, key, 1, &decision)
	return
}

// AllowAtMost charges the key with as many of n units as all policies admit, and returns how many. If none fits, the
// decision refuses. Under a MinInterval that is one unit.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (decision Decision, units int64, err error) {
	units, err = l.backend.AtMost(ctx, key, n, &decision.backend)
	decision.total(err)
	return
}

// Wait charges the key with one unit as soon as all policies admit it. Callers in this process that wait for one key
// are served in their order. It is [ErrNever] if the policies never admit it, and [context.DeadlineExceeded] at once
// if the context ends before.
func (l *Limiter) Wait(ctx context.Context, key string) (Decision, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN is Wait for n units, at least 1.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (decision Decision, err error) {
	err = l.backend.Wait(ctx, key, n, &decision.backend)
	decision.total(err)
	return
}

// Report counts n units that the key has used, whether they fit or not: work that nobody asked about. The decision
// says how many did not fit, and what is left; it holds no charge.
func (l *Limiter) Report(ctx context.Context, key string, n int64) (decision Decision, err error) {
	decision.Uncovered, err = l.backend.Report(ctx, key, n, &decision.backend)
	decision.total(err)
	return
}

// Reset forgets what the key has used, under all plans that the limiter knows, and the policies that a function has
// returned for them before.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	r := l.root
	all := r.standard.backend.All(key)
	for limiter := range maps.Values(r.plans) {
		all = append(all, limiter.backend.All(key)...)
	}
	for _, p := range r.made.all() {
		all = append(all, p.backend.All(key)...)
	}
	return l.backend.Reset(ctx, key, all)
}

// A Charge is units of a limiter for a key. Make one with [Limiter.Charge].
type Charge struct {
	limiter *Limiter
	key     hidden.Text
	units   int64
}

// Charge returns a charge of n units for [AllowAll]. With n = 0 it charges nothing, and asks whether the key is within
// its limits.
func (l *Limiter) Charge(key string, n int64) Charge { return Charge{l, hidden.Of(key), n} }

// Format implements [fmt.Formatter]: it prints the charge without its key.
func (c Charge) Format(state fmt.State, _ rune) {
	name := ""
	if c.limiter != nil {
		name = c.limiter.Name()
	}
	_, _ = fmt.Fprintf(state, "%d of limiter %q", c.units, name)
}

// AllowAll charges several limiters together, each for its own key: all are charged or none is. There are 1 to 64
// charges, with at most 64 policies, of limiters of one store; no two have the same limiter and key. For example, it
// limits a session, and with a larger number the address that many sessions share.
func AllowAll(ctx context.Context, charges ...Charge) (decision Decision, err error) {
	var room [8]backend.Charge
	all := room[:0]
	for i, c := range charges {
		if c.limiter == nil {
			return decision, backend.Invalid("charge %d has no limiter", i)
		}
		all = append(all, backend.Charge{Limiter: c.limiter.backend, Key: c.key.Reveal(), Units: c.units})
	}
	err = backend.Decide(ctx, step.Allow, all, &decision.backend)
	decision.total(err)
	return
}
