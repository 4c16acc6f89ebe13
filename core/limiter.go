package core

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/headgate/headgate/core/step"
)

const (
	maxName     = 64
	maxPolicies = 8
	maxTogether = maxReadings / maxPolicies // charges of an AllowAll, claims of an AcquireAll
)

// A Limiter applies policies to keys. It is safe for concurrent use. Limiters of one
// store with the same name share their state; if the store is shared, so do those of
// other processes.
type Limiter struct {
	store    Store
	name     string
	policies []Policy
	cells    []Cell
	max      int64  // the largest charge that all policies can grant
	constant bool   // Unlimited or Blocked: the store is never called
	turns    *turns // of all plans; a pointer, so that printing a limiter shows no keys
}

// New returns a limiter with 1 to 8 policies, which are charged together or not at
// all. The name, 1 to 64 printable ASCII characters, is part of every stored key:
// limiters that must not share state need different names. If there are several
// policies, each must be [Policy.Named], differently.
//
// The error joins a [ConfigError] for each fault found.
func New(store Store, name string, policies ...Policy) (*Limiter, error) {
	l, err := assemble(store, name, policies)
	if err != nil {
		return nil, err
	}
	return l.prepared()
}

// With returns a limiter of the same store and name with other policies, for plans:
// usage carries over for each policy that has the same name and algorithm in both. Make
// such limiters once, not for each request.
//
// If either limiter has several policies, they must have at least one name in common,
// or With returns a [ConfigError]; remember that an only policy which is not Named has
// the limiter's name. Unlimited and Blocked are exempt.
func (l *Limiter) With(policies ...Policy) (*Limiter, error) {
	plan, err := assemble(l.store, l.name, policies)
	if err != nil {
		return nil, err
	}
	if strangers(l, plan) {
		f := faults{limiter: l.name}
		f.add("", fmt.Errorf("none of the policies is named %s, so existing usage would be lost: give one that name with Named", names(l.policies)))
		return nil, f.err()
	}
	plan.turns = l.turns
	return plan.prepared()
}

// assemble returns a limiter that the store does not know of yet.
func assemble(store Store, name string, policies []Policy) (*Limiter, error) {
	l := &Limiter{store: store, name: name, policies: slices.Clone(policies), max: NoLimit, turns: new(turns)}
	if len(l.policies) == 1 && l.policies[0].name == "" {
		l.policies[0].name = name
	}
	f := faults{limiter: name}
	f.add("", checkStore(store))
	f.add("", checkName(name))
	if n := len(policies); n == 0 || n > maxPolicies {
		f.add("", fmt.Errorf("a limiter has 1 to %d policies, not %d", maxPolicies, n))
	}
	for i, p := range l.policies {
		where := l.where(i)
		f.add(where, l.checkPolicyName(i))
		if p.alone() && len(policies) > 1 {
			f.add(where, errors.New("Unlimited and Blocked must be the only policy: remove the others"))
		}
		s, err := p.step()
		if err != nil {
			f.add(where, err)
			continue
		}
		l.constant = l.constant || p.alone()
		l.max = min(l.max, s.Max())
		l.cells = append(l.cells, newCell(name, p.name, s))
	}
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
		err = checkName(name)
	}
	if slices.ContainsFunc(l.policies[:i], func(p Policy) bool { return p.name == name }) {
		err = errors.Join(err, errors.New("two policies have this name"))
	}
	return err
}

// prepared shows the limiter to a store that wants to see it.
func (l *Limiter) prepared() (*Limiter, error) {
	if s, ok := l.store.(Preparer); ok {
		f := faults{limiter: l.name}
		f.add("", s.Prepare(l))
		if err := f.err(); err != nil {
			return nil, err
		}
	}
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
func checkName(name string) error {
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

// Policies returns a copy of the policies, in the order given to New.
func (l *Limiter) Policies() []Policy { return slices.Clone(l.policies) }

// Cells returns the policies in the form that stores use. Only [Preparer.Prepare] may
// modify them.
func (l *Limiter) Cells() []Cell { return l.cells }

// Allow charges the key with one unit if the policies admit it. It is short for AllowN
// with n = 1.
//
// An empty key is a key like any other, shared by all calls that pass it. The guards of
// the other packages refuse it.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, key, 1, false, &d)
	return
}

// AllowN charges the key with n units, n >= 1, if all policies admit all of them. A
// number that a policy can never admit is refused without calling the store, with
// RetryAfter [Never] and Remaining 0. An error means that no decision was made.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = l.decide(ctx, key, n, false, &d)
	return
}

// Peek returns the decision that Allow would make, and changes nothing. Remaining is
// what is left now.
func (l *Limiter) Peek(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, key, 1, true, &d)
	return
}

// Reset forgets the key's usage. It costs no more than a decision. A charge that was made
// before should not be settled or refunded after it: see [Decision.Settle].
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if l.constant {
		return nil
	}
	return l.store.Reset(ctx, l, key)
}

// decide makes a decision of one limiter. It is separate from AllowAll so that it does
// not allocate. It fills in the zero decision d, so that the methods above are small
// enough to be inlined, and no decision is copied.
func (l *Limiter) decide(ctx context.Context, key string, n int64, peek bool, d *Decision) error {
	c := Charge{l, key, n}
	switch {
	case n <= 0:
		return ErrCost
	case n > l.max || l.constant:
		d.result = byNumbers(c)
	default:
		var err error
		if d.result, err = l.store.Decide(ctx, c, peek); err != nil {
			*d = Decision{}
			return err
		}
	}
	d.first.limiter = l
	d.conclude()
	if d.Allowed && !peek {
		d.first = newReceipt(c)
	}
	return nil
}

// AllowAll charges several limiters together, each for its own key and number of units:
// all are charged or none is. There are 1 to 8 charges, of limiters with equal stores,
// and no two of them have the same limiter's name and the same key; otherwise the error
// is [ErrQuestion].
//
// For example, it limits a session, and with a larger number the address that many
// sessions share.
func AllowAll(ctx context.Context, charges ...Charge) (Decision, error) {
	if err := checkTogether("charge", charges); err != nil {
		return Decision{}, err
	}
	if slices.ContainsFunc(charges, func(c Charge) bool { return c.N <= 0 }) {
		return Decision{}, ErrCost
	}
	if len(charges) == 1 {
		return charges[0].Limiter.AllowN(ctx, charges[0].Key, charges[0].N)
	}
	more := make([]receipt, 0, len(charges)-1)
	for _, c := range charges[1:] {
		more = append(more, newReceipt(c))
	}
	d := Decision{first: newReceipt(charges[0]), more: &more}
	var err error
	if d.result, err = decideAll(ctx, charges); err != nil {
		return Decision{}, err
	}
	d.conclude()
	if !d.Allowed {
		d.spend()
	}
	return d, nil
}

// decideAll calls the store with those charges that the parameters alone do not decide.
func decideAll(ctx context.Context, charges []Charge) (Result, error) {
	if slices.ContainsFunc(charges, func(c Charge) bool { return c.N > c.Limiter.max }) {
		return byNumbers(charges...), nil
	}
	store := charges[0].Limiter.store
	constant := func(c Charge) bool { return c.Limiter.constant }
	if !slices.ContainsFunc(charges, constant) {
		return store.DecideAll(ctx, charges)
	}
	others := slices.DeleteFunc(slices.Clone(charges), constant)
	if len(others) == 0 {
		return byNumbers(charges...), nil
	}
	r, err := store.DecideAll(ctx, others)
	if err != nil {
		return Result{}, err
	}
	return withUnlimited(r, charges), nil
}

// withUnlimited inserts the readings of Unlimited into the store's result for the
// other charges. There is no Blocked among the charges, since its max is 0.
func withUnlimited(r Result, charges []Charge) Result {
	all := Result{At: r.At, Allowed: r.Allowed, Source: r.Source}
	next := 0 // reading of r
	for _, c := range charges {
		if c.Limiter.constant {
			all.Add(true, c.Limiter.cells[0].Step.Read(nil, r.At, c.N))
			continue
		}
		for range c.Limiter.cells {
			all.Add(r.Reading(next))
			next++
		}
	}
	return all
}

// byNumbers decides without the store: every charge is of a constant limiter, or at
// least one can never be granted. Remaining is 0 for the other limiters, whose usage is
// not known.
func byNumbers(charges ...Charge) Result {
	r := Result{Allowed: true}
	for _, c := range charges {
		for _, cell := range c.Limiter.cells {
			admitted := c.N <= cell.Step.Max()
			r.Allowed = r.Allowed && admitted
			var x step.Reading
			if c.Limiter.constant {
				x = cell.Step.Read(nil, 0, c.N)
			} else if !admitted {
				x.RetryAfter = step.Never
			}
			r.Add(admitted, x)
		}
	}
	return r
}

// A member is a charge or a claim, as far as all of one call are checked together.
type member struct {
	of    string // what the name is of
	name  string
	store any
	key   string
}

func (c Charge) member() (m member, ok bool) {
	if c.Limiter == nil {
		return member{of: "limiter"}, false
	}
	return member{"limiter", c.Limiter.name, c.Limiter.store, c.Key}, true
}

func (c Claim) member() (m member, ok bool) {
	if c.Slots == nil {
		return member{of: "slots"}, false
	}
	return member{"slots", c.Slots.name, c.Slots.store, c.Key}, true
}

// checkTogether reports why these charges or claims cannot be made in one call.
func checkTogether[T interface{ member() (member, bool) }](what string, parts []T) error {
	if len(parts) == 0 || len(parts) > maxTogether {
		return fmt.Errorf("%w: %d %ss, not 1 to %d", ErrQuestion, len(parts), what, maxTogether)
	}
	var room [maxTogether]member
	before := room[:0]
	for i, p := range parts {
		m, ok := p.member()
		if !ok {
			return fmt.Errorf("%w: nil %s in %s %d", ErrQuestion, m.of, what, i+1)
		}
		if i > 0 && m.store != before[0].store {
			return fmt.Errorf("%w: %s %q and %q have different stores", ErrQuestion, m.of, before[0].name, m.name)
		}
		for _, b := range before {
			if b.name == m.name && b.key == m.key {
				return fmt.Errorf("%w: two %ss of %s %q have the same key", ErrQuestion, what, m.of, m.name)
			}
		}
		before = append(before, m)
	}
	return nil
}
