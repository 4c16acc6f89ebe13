package core

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

const (
	maxName     = 64
	maxPolicies = 8
)

// A Store keeps the state of limiters. It is a store of package memstore or redisstore, or one that
// was made with package store, which describes it to authors of stores.
type Store = store.Store

// A Limiter applies policies to keys. It is safe for concurrent use. Limiters of one store with the
// same name share their state. If processes share the store, their limiters do too.
type Limiter struct {
	store    Store
	name     string
	policies []Policy
	windows  []time.Duration // of the policies
	spec     store.Spec
	prepared *store.Limiter // by the store, of the spec
	observer *Observer      // of the store; nil if there is none
	max      int64          // the largest charge that all policies can grant
	constant bool           // Unlimited or Blocked: the store is never called
	turns    *turns         // of all plans; a pointer, so that printing a limiter shows no keys

	// counting has, for each name, a policy that counts: of the limiter, or of those that it was
	// made from by With. All policies of one name have one algorithm.
	counting []Policy
}

// New returns a limiter with 1 to 8 policies, which are charged together or not at
// all. The name, 1 to 64 printable ASCII characters, is part of every stored key:
// limiters that must not share state need different names. If there are several
// policies, each must be [Policy.Named], differently.
//
// The error joins a [ConfigError] for each fault found.
func New(s Store, name string, policies ...Policy) (*Limiter, error) {
	l, err := assemble(s, name, policies)
	if err != nil {
		return nil, err
	}
	l.counting = slices.DeleteFunc(slices.Clone(l.policies), Policy.alone)
	return l.prepare()
}

// With returns a limiter of the same store and name with other policies, for plans. Usage carries
// over for each policy that has the same name in both. Make such limiters once, not for each
// request. Limiters that [New] makes with one name share usage in the same way, for example in an
// old release and a new one.
//
// From its first call for a key on, a plan counts the admitted units of all plans of the name.
// Whenever it admits a charge, its own promise holds for all of them. It also takes over the usage
// before its first call, as far as that is known, dated as late as possible. A plan per day does
// not learn from a plan per second about the usage of this morning. Plans of different periods may
// together admit more than each alone: while one waits for its window to end, another may admit.
// They admit at most the sum of what each would admit. There are four exceptions:
//
//   - A TokenBucket may admit more than the burst of another that refills more slowly. Then the
//     slower one becomes empty, and goes into debt only for as long as the faster one needs to
//     fill. In any time no more is admitted than one of the plans alone would have admitted in
//     that time.
//   - Refund and Settle give units back to the plan that was charged. Under the others these units
//     count until they expire.
//   - Plans may differ in their limit or burst only. Then a larger one counts from the first charge
//     that it admits. It does not count yet if AllowAll has refused all its calls for another
//     limiter.
//   - For each policy and key, the parameters of eight plans are remembered. Plans that differ in
//     their limit only count as one. Of more, the ones used longest ago are forgotten.
//
// A plan is forgotten if it was not used for a key for as long as a unit counts under any plan. The
// others go on as if it had never been.
//
// If either limiter has several policies, they must have at least one name in common. Policies of
// one name must have one algorithm, also in the plans that l was made from, because algorithms
// cannot use each other's counts. Otherwise With returns a [ConfigError]. Give a policy another
// name to make it count alone. An only policy that is not Named has the limiter's name. Unlimited
// and Blocked are exempt: they count nothing, and the counts of the others stay.
func (l *Limiter) With(policies ...Policy) (*Limiter, error) {
	plan, err := assemble(l.store, l.name, policies)
	if err != nil {
		return nil, err
	}
	f := faults{limiter: l.name}
	if strangers(l, plan) {
		f.add("", fmt.Errorf("none of the policies is named %s, so existing usage would be lost: give one that name with Named", names(l.policies)))
	}
	plan.counting = slices.Clone(l.counting)
	for i, p := range plan.policies {
		j := slices.IndexFunc(l.counting, func(q Policy) bool { return q.name == p.name })
		switch {
		case p.alone():
		case j < 0:
			plan.counting = append(plan.counting, p)
		case p.numbers.Algorithm != l.counting[j].numbers.Algorithm:
			f.add(plan.where(i), fmt.Errorf("existing usage would be lost, as it counts otherwise than %v: keep the algorithm, or give it another name with Named", l.counting[j]))
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	plan.turns = l.turns
	return plan.prepare()
}

// assemble returns a limiter that the store does not know of yet.
func assemble(s Store, name string, policies []Policy) (*Limiter, error) {
	l := &Limiter{store: s, name: name, policies: slices.Clone(policies), turns: new(turns)}
	if len(l.policies) == 1 && l.policies[0].name == "" {
		l.policies[0].name = name
	}
	f := faults{limiter: name}
	f.add("", checkStore(s))
	f.add("", CheckName(name))
	if n := len(policies); n == 0 || n > maxPolicies {
		f.add("", fmt.Errorf("a limiter has 1 to %d policies, not %d", maxPolicies, n))
	}
	for i, p := range l.policies {
		where := l.where(i)
		f.add(where, l.checkPolicyName(i))
		if p.alone() && len(policies) > 1 {
			f.add(where, errors.New("Unlimited and Blocked must be the only policy: remove the others"))
		}
		st, err := p.step()
		if err != nil {
			f.add(where, err)
			continue
		}
		l.constant = l.constant || p.alone()
		l.windows = append(l.windows, p.Window())
		l.spec.Policies = append(l.spec.Policies, store.Policy{Name: p.name, Step: st})
	}
	l.spec.Name, l.max = name, l.spec.Most()
	return l, f.err()
}

// where returns the Policy of a ConfigError about the i-th policy. It is empty if the
// policy is the only one and has the limiter's name.
func (l *Limiter) where(i int) string {
	switch name := l.policies[i].name; {
	case name == "":
		return "#" + strconv.Itoa(i+1)
	case name == l.name && len(l.policies) == 1:
		return ""
	default:
		return strconv.Quote(name)
	}
}

// checkPolicyName checks the name of the i-th policy, alone and against those before it.
func (l *Limiter) checkPolicyName(i int) error {
	var err error
	name := l.policies[i].name
	switch {
	case name == "" && len(l.policies) > 1:
		return errors.New("each of several policies needs a name: use Named")
	case name == l.name: // which is checked
	default:
		err = CheckName(name)
	}
	if slices.ContainsFunc(l.policies[:i], func(p Policy) bool { return p.name == name }) {
		err = errors.Join(err, errors.New("two policies have this name"))
	}
	return err
}

// prepare shows the limiter to its store.
func (l *Limiter) prepare() (*Limiter, error) {
	l.prepared = store.NewLimiter(l.spec)
	if err := l.store.Prepare(l.prepared); err != nil {
		f := faults{limiter: l.name}
		f.add("", err)
		return nil, f.err()
	}
	l.observer = l.store.Observer()
	return l, nil
}

func checkStore(s any) error {
	if s == nil {
		return errors.New("the store is nil")
	}
	v := reflect.ValueOf(s)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("the store is a nil %T", s)
	}
	if !v.Comparable() {
		return fmt.Errorf("the store, a %T, cannot be compared: use a pointer", s)
	}
	return nil
}

// checkName accepts what a String of RFC 9651 can hold, since names are sent in
// header fields.
// CheckName returns what is wrong with the name of a limiter, a policy or slots.
func CheckName(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("the name has %d characters, more than %d", len(name), maxName)
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' {
			return fmt.Errorf("the name has the byte %#02x: only printable ASCII is allowed", name[i])
		}
	}
	return nil
}

// strangers reports whether two plans have no policy's name in common although one has
// several, so that its names were chosen deliberately.
func strangers(a, b *Limiter) bool {
	if a.constant || b.constant || len(a.policies) == 1 && len(b.policies) == 1 {
		return false
	}
	return !slices.ContainsFunc(b.policies, func(p Policy) bool {
		return slices.ContainsFunc(a.policies, func(q Policy) bool { return p.name == q.name })
	})
}

// names returns the policies' names, quoted.
func names(ps []Policy) string {
	var b []byte
	for i, p := range ps {
		if i > 0 {
			b = append(b, " or "...)
		}
		b = strconv.AppendQuote(b, p.name)
	}
	return string(b)
}

// Name returns the limiter's name.
func (l *Limiter) Name() string { return l.name }

// String returns a description for people, without state or keys.
func (l *Limiter) String() string { return fmt.Sprintf("limiter %q", l.name) }

// Store returns the limiter's store. [AllowAll] needs limiters whose stores are equal.
func (l *Limiter) Store() Store { return l.store }

// Prepared returns the limiter as its store has prepared it, for tests of stores.
func (l *Limiter) Prepared() *store.Limiter { return l.prepared }

// Most returns the most units that all policies admit at once; under a MinInterval that is 1.
func (l *Limiter) Most() int64 {
	most := int64(NoLimit)
	for i := range l.policies {
		most = min(most, l.policies[i].Limit())
	}
	return most
}

// Policies returns a copy of the policies, in the order given to New.
func (l *Limiter) Policies() []Policy { return slices.Clone(l.policies) }

// Allow charges the key with one unit if the policies admit it. It is short for AllowN
// with n = 1.
//
// An empty key is a key like any other, shared by all calls that pass it. The guards of
// the other packages refuse it.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, store.Allow, Charge{Limiter: l, Key: key, N: 1}, &d)
	return
}

// AllowN charges the key with n units if all policies admit all of them. A number that a policy can
// never admit is refused without calling the store, with RetryAfter [Never] and Remaining 0.
// [Limiter.Report] counts used units, whatever their number. With n = 0 it only checks: see
// [Charge]. An error means that no decision was made.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = l.decide(ctx, store.Allow, Charge{Limiter: l, Key: key, N: n}, &d)
	return
}

// AllowTo is AllowN that writes the decision to d, whatever it held, and after an error
// the zero Decision. It saves a copy, for code around every request.
func (l *Limiter) AllowTo(ctx context.Context, key string, n int64, d *Decision) error {
	return l.decide(ctx, store.Allow, Charge{Limiter: l, Key: key, N: n}, d)
}

// Peek returns the decision that Allow would make, and changes nothing. If Allow would admit,
// Remaining and the spans are the values before the charge. The store's clock may have been far
// ahead, and be right again. Then the wait of a key that was charged meanwhile begins with the next
// Allow, not with a Peek.
func (l *Limiter) Peek(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, store.Peek, Charge{Limiter: l, Key: key, N: 1}, &d)
	return
}

// AllowAtMost charges the key with as many of n units, n >= 1, as all policies admit, and returns
// their number. They are one charge, and Settle gives unused units back. If not even one unit is
// admitted, the number is 0, and the decision is the refusal of one unit.
//
// While a store that is shared cannot be reached, it may be 1 although more would fit.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (d Decision, units int64, err error) {
	switch {
	case ctx == nil:
		return Decision{}, 0, errContext
	case n <= 0:
		return Decision{}, 0, ErrCost
	case l.constant: // all or nothing
		d, err = l.AllowN(ctx, key, n)
		return d, d.held(), err
	}
	d, _, err = l.allowExtra(ctx, Charge{Limiter: l, Key: key, N: 1}, min(n, l.max)-1, true)
	return d, d.held(), err
}

// Reset forgets the key's usage. It costs no more than a decision. A charge that was made
// before should not be settled or refunded after it: see [Decision.Settle].
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if ctx == nil {
		return errContext
	}
	if l.constant {
		return nil
	}
	q := newQuestion()
	defer q.free()
	q.about(store.Reset, &Charge{Limiter: l, Key: key})
	return l.store.Ask(ctx, &q.Question)
}
