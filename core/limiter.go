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
	maxCharges  = maxReadings / maxPolicies
)

// A Limiter applies policies to keys. It is safe for concurrent use. Limiters of
// one store with the same name share their state, in this process and, if the
// store is shared, in all others.
type Limiter struct {
	store    Store
	name     string
	policies []Policy
	cells    []Cell
	max      int64  // the largest charge that all policies can grant
	constant bool   // Unlimited or Blocked: the store is never asked
	turns    *turns // a pointer, so that printing a limiter shows no keys
}

// New makes a limiter with 1 to 8 policies, which are charged together or not at
// all. The name, 1 to 64 printable ASCII characters, is part of every stored key:
// limiters that must not share state need different names. If there are several
// policies, each is Named, differently.
//
// The error joins a [ConfigError] for everything that is wrong.
func New(store Store, name string, policies ...Policy) (*Limiter, error) {
	return newLimiter(store, name, policies, nil)
}

// newLimiter makes a limiter, and a plan if it is of another.
func newLimiter(store Store, name string, policies []Policy, of *Limiter) (*Limiter, error) {
	l := &Limiter{store: store, name: name, policies: slices.Clone(policies), max: NoLimit, turns: new(turns)}
	var faults []error
	fault := func(policy string, err error) {
		faults = append(faults, &ConfigError{Limiter: name, Policy: policy, Err: err})
	}

	if err := checkStore(store); err != nil {
		fault("", err)
	}
	if err := checkName(name); err != nil {
		fault("", err)
	}
	if n := len(policies); n == 0 || n > maxPolicies {
		fault("", fmt.Errorf("a limiter has 1 to %d policies, not %d", maxPolicies, n))
	}
	if len(policies) == 1 && policies[0].name == "" {
		l.policies[0].name = name
	}
	seen := make(map[string]bool)
	for i, p := range l.policies {
		where := strconv.Quote(p.name)
		switch {
		case p.name == "":
			where = "#" + strconv.Itoa(i+1)
		case p.name == name && len(policies) == 1: // the limiter's says it
			where = ""
		}
		if len(policies) > 1 && p.name == "" {
			fault(where, errors.New("each of several policies needs a name: use Named"))
		} else if p.name != name { // the limiter's own was checked
			if err := checkName(p.name); err != nil {
				fault(where, err)
			}
		}
		if p.name != "" && seen[p.name] {
			fault(where, errors.New("two policies have this name"))
		}
		seen[p.name] = true
		if p.coarse {
			fault(where, errors.New("a period must be a whole number of microseconds"))
		}
		if p.alone() {
			l.constant = true
			if len(policies) > 1 {
				fault(where, errors.New("Unlimited and Blocked stand alone: remove the other policies"))
			}
		}
		s, err := step.New(p.numbers)
		if err != nil {
			for _, e := range unjoin(err) {
				fault(where, e)
			}
			continue
		}
		l.max = min(l.max, s.Max())
		l.cells = append(l.cells, newCell(name, p.name, s))
	}
	if of != nil && len(faults) == 0 && strangers(of, l) {
		fault("", fmt.Errorf("no policy has the name of one it had, %s, so nothing that was used would count on: use Named", names(of.policies)))
	}
	if s, ok := store.(interface{ Prepare(*Limiter) error }); ok && len(faults) == 0 {
		if err := s.Prepare(l); err != nil {
			fault("", err)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return l, nil
}

// alone reports whether the policy must be a limiter's only one.
func (p Policy) alone() bool {
	return p.numbers.Algorithm == step.Unlimited || p.numbers.Algorithm == step.Blocked
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
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

// checkName accepts what a string of RFC 9651 can hold, for names travel in
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

// With returns a limiter of the same store and name with other policies, for
// plans: what a key has used counts on, for each policy that has the same name
// and algorithm in both. Make such limiters once, not for each request.
//
// If either limiter has several policies, some name must be in both, or With
// returns a [ConfigError]: remember that a sole policy which is not Named has the
// limiter's name. Unlimited and Blocked need no name.
func (l *Limiter) With(policies ...Policy) (*Limiter, error) {
	return newLimiter(l.store, l.name, policies, l)
}

// strangers reports whether two plans have no policy's name in common although one
// has several, so that its names were chosen.
func strangers(a, b *Limiter) bool {
	if a.constant || b.constant || len(a.policies) == 1 && len(b.policies) == 1 {
		return false
	}
	return !slices.ContainsFunc(b.policies, func(p Policy) bool {
		return slices.ContainsFunc(a.policies, func(q Policy) bool { return p.name == q.name })
	})
}

// names lists the policies' names.
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

// String describes the limiter for people. It shows neither state nor keys.
func (l *Limiter) String() string { return fmt.Sprintf("limiter %q", l.name) }

// Store returns the store. Limiters are asked together only if theirs are equal.
func (l *Limiter) Store() Store { return l.store }

// Policies returns the policies, in the order given to New.
func (l *Limiter) Policies() []Policy { return slices.Clone(l.policies) }

// Cells returns the policies as stores see them. Only a store's Prepare may change
// them.
func (l *Limiter) Cells() []Cell { return l.cells }

// Allow asks for one unit. It is short for AllowN with 1.
//
// An empty key is a key like any other, shared by all who pass it. The guards of the
// other packages refuse it.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, key, 1, false, &d)
	return
}

// AllowN asks for n units, n >= 1, all or none of them. A number that a policy
// can never grant is refused with RetryAfter [Never], without asking the store and
// with Remaining 0. An error means that no decision was made.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = l.decide(ctx, key, n, false, &d)
	return
}

// Peek tells what Allow would answer and changes nothing. Remaining is what is
// left.
func (l *Limiter) Peek(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, key, 1, true, &d)
	return
}

// Reset forgets what the key has used. It costs nothing more than a decision.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if l.constant {
		return nil
	}
	return l.store.Reset(ctx, l, key)
}

// decide is the primitive for one limiter, apart from AllowAll so that it does
// not allocate. It fills in the zero decision d, so that the methods above are
// small enough to be part of their callers, and no decision is copied.
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

// AllowAll asks several limiters together, each for its own key and number: all
// are charged or none is. The limiters have one store and there are 1 to 8 of
// them; no two charges are of limiters with the same name for the same key.
//
// It is how a session is limited and, with a larger number, the address that many
// sessions share.
func AllowAll(ctx context.Context, charges ...Charge) (Decision, error) {
	if err := checkQuestion(charges); err != nil {
		return Decision{}, err
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

// decideAll leaves out of the store's question what the numbers decide.
func decideAll(ctx context.Context, charges []Charge) (Result, error) {
	asked := charges
	for i, c := range charges {
		if c.N > c.Limiter.max {
			return byNumbers(charges...), nil
		}
		if c.Limiter.constant && len(asked) == len(charges) {
			asked = slices.Clone(charges[:i])
		} else if !c.Limiter.constant && len(asked) < len(charges) {
			asked = append(asked, c)
		}
	}
	if len(asked) == 0 {
		return byNumbers(charges...), nil
	}
	r, err := charges[0].Limiter.store.DecideAll(ctx, asked)
	if err != nil || len(asked) == len(charges) {
		return r, err
	}
	all := Result{At: r.At, Allowed: r.Allowed, Source: r.Source}
	from := 0
	for _, c := range charges {
		if c.Limiter.constant { // and not Blocked, whose max is 0
			all.Add(true, c.Limiter.cells[0].Step.Read(nil, r.At, c.N))
			continue
		}
		for range c.Limiter.cells {
			all.Add(r.Reading(from))
			from++
		}
	}
	return all, nil
}

// byNumbers answers without the store: every charge is of a constant limiter, or
// at least one can never be granted. Nothing is known of what is left of the
// others, so nothing is claimed.
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

func checkQuestion(charges []Charge) error {
	if len(charges) == 0 || len(charges) > maxCharges {
		return fmt.Errorf("%w: %d charges, not 1 to %d", ErrQuestion, len(charges), maxCharges)
	}
	for i, c := range charges {
		if c.Limiter == nil {
			return fmt.Errorf("%w: the limiter of charge %d is nil", ErrQuestion, i+1)
		}
		if c.N <= 0 {
			return ErrCost
		}
		if c.Limiter.store != charges[0].Limiter.store {
			return fmt.Errorf("%w: limiters %q and %q have different stores", ErrQuestion, charges[0].Limiter.name, c.Limiter.name)
		}
		for _, b := range charges[:i] {
			if b.Limiter.name == c.Limiter.name && b.Key == c.Key {
				return fmt.Errorf("%w: limiter %q is asked twice for the same key", ErrQuestion, c.Limiter.name)
			}
		}
	}
	return nil
}
