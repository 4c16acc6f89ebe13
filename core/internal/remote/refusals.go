package remote

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core/store"
)

// Refusals is a store that remembers what the store below has refused, so that a question
// that was just refused is refused again without a call. A cached refusal is what the store
// below would answer, as far as this process can know: what other processes do in the
// meantime is seen when it ends.
//
// Each question has one entry, where a newer refusal replaces an older one. Entries and
// marks are shared by questions and keys whose hashes collide: then a refusal is dropped
// too early, or is not used, which costs a call.
type Refusals struct {
	next    refusing
	timeout time.Duration
	max     time.Duration
	seed    maphash.Seed
	start   time.Time
	entries [cacheSize]atomic.Pointer[refusal]

	// marks say, by the hash of the key, what this process does with it.
	//
	// An operation in flight may have been executed, and others may have seen what it did,
	// so a refusal is used only while there is none, but for peeks. One that has ended is a
	// change, unless it was a refusal that wrote nothing. As a refusal may store a state of
	// the numbers that it was asked with, it is a change too that another plan begins, and
	// that an operation ends while there were several in flight.
	marks [markCount]atomic.Uint64
}

// refusing is the store below.
type refusing interface {
	Denier

	PeekAll(ctx context.Context, cs []store.Charge, r *store.Result) error
}

// NewRefusals returns a Refusals. It remembers a refusal for at most that time. A decision
// that needs two calls makes both within the timeout.
func NewRefusals(next refusing, limit, timeout time.Duration) *Refusals {
	return &Refusals{next: next, timeout: timeout, max: limit, seed: maphash.MakeSeed(), start: time.Now()}
}

// A refusable is a limiter as a Refusals has prepared it.
type refusable struct {
	store.Limiter

	hash      uint64 // of the limiter's name
	plan      uint64 // a hash of the policies' numbers, of planBits
	cacheable bool   // no policy counts what is refused
}

// Prepare implements [store.Store].
func (c *Refusals) Prepare(spec store.Spec) (store.Limiter, error) {
	next, err := c.next.Prepare(spec)
	if err != nil {
		return nil, err
	}
	l := &refusable{Limiter: next, hash: maphash.String(c.seed, spec.Name), cacheable: true}
	var numbers strings.Builder
	for _, p := range spec.Policies {
		m := p.Step.Numbers()
		fmt.Fprintln(&numbers, m)
		l.cacheable = l.cacheable && !m.CountDenied
	}
	l.plan = maphash.String(c.seed, numbers.String()) % (1 << planBits)
	return l, nil
}

// Observer implements [store.Store].
func (c *Refusals) Observer() *store.Observer { return c.next.Observer() }

func refusableOf(l store.Limiter) *refusable {
	return l.(*refusable) //nolint:forcetypeassert // it is what Prepare has returned
}

// below returns the charge for the store below.
func (*Refusals) below(c store.Charge) store.Charge {
	c.Limiter = refusableOf(c.Limiter).Limiter
	return c
}

// Decide implements [store.Store].
func (c *Refusals) Decide(ctx context.Context, charge store.Charge, peek bool, r *store.Result) error {
	if peek {
		return c.next.Decide(ctx, c.below(charge), true, r)
	}
	var l lookup
	if c.getOne(&l, &charge); l.cached != nil && !l.busy {
		l.answer(r)
		return nil
	}
	return c.decide(ctx, charge, &l, r)
}

// decide decides what no cached refusal does.
func (c *Refusals) decide(ctx context.Context, charge store.Charge, l *lookup, r *store.Result) error {
	one, below := [1]store.Charge{charge}, c.below(charge)
	if l.cached != nil {
		ctx = until{ctx, deadline(ctx, c.timeout)}
		if err := c.next.Decide(ctx, below, true, r); err != nil || c.confirmed(l, one[:], r) {
			return err
		}
	}
	answered := false
	c.begin(&one[0])
	defer func() { c.decided(l, one[:], r, answered) }()
	err := c.next.Decide(ctx, below, false, r)
	answered = err == nil
	return err
}

// DecideAll implements [store.Store].
func (c *Refusals) DecideAll(ctx context.Context, cs []store.Charge, r *store.Result) error {
	if err := noExtra(cs); err != nil {
		return err
	}
	l := c.get(cs)
	if l.cached != nil && !l.busy {
		l.answer(r)
		return nil
	}
	below := make([]store.Charge, len(cs))
	for i := range cs {
		below[i] = c.below(cs[i])
	}
	if l.cached != nil {
		ctx = until{ctx, deadline(ctx, c.timeout)}
		if err := c.next.PeekAll(ctx, below, r); err != nil || c.confirmed(&l, cs, r) {
			return err
		}
	}
	answered := false
	for i := range cs {
		c.begin(&cs[i])
	}
	defer func() { c.decided(&l, cs, r, answered) }()
	err := c.next.DecideAll(ctx, below, r)
	answered = err == nil
	return err
}

// confirmed reports whether a peek has shown that a cached refusal still holds, while
// operations were in flight that may change the keys. The question is peeked first because
// it is probably refused, and one that may charge would keep others from the cache. A peek
// stores nothing, which is the same unless another plan has begun, and changed the version.
func (c *Refusals) confirmed(l *lookup, cs []store.Charge, r *store.Result) bool {
	if r.Allowed || c.version(cs) != l.version {
		return false
	}
	c.put(l, cs, r)
	return true
}

// decided notes that a decision has ended, and remembers a refusal. One that was not
// answered, because of an error or a panic, may have written as well.
func (c *Refusals) decided(l *lookup, cs []store.Charge, r *store.Result, answered bool) {
	refused := answered && !r.Allowed
	for i := range cs {
		c.end(&cs[i], !refused)
	}
	if refused {
		c.put(l, cs, r)
	}
}

// Deny is that of the store below.
func (c *Refusals) Deny(ctx context.Context, charge store.Charge, r *store.Result) error {
	wrote := true
	c.begin(&charge)
	defer func() { c.end(&charge, wrote) }()
	err := c.next.Deny(ctx, c.below(charge), r)
	wrote = err != nil
	return err
}

// Settle implements [store.Store].
func (c *Refusals) Settle(ctx context.Context, ss []store.Settlement) error {
	all := slices.Clone(ss)
	for i := range all {
		c.begin(&ss[i].Charge)
		all[i].Charge = c.below(ss[i].Charge)
	}
	defer func() {
		for i := range ss {
			ss[i].Uncovered = all[i].Uncovered
			c.end(&ss[i].Charge, true)
		}
	}()
	return c.next.Settle(ctx, all)
}

// Reset implements [store.Store].
func (c *Refusals) Reset(ctx context.Context, l store.Limiter, key string) error {
	charge := store.Charge{Limiter: l, Key: key}
	c.begin(&charge)
	defer c.end(&charge, true)
	return c.next.Reset(ctx, c.below(charge).Limiter, key)
}
