package remote

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// Refusals is a store that remembers the refusals of the store below. So a question that was just
// refused is refused again without a call. A remembered refusal is the answer of the store below,
// as far as this process can know. Changes by other processes are seen when it ends. It says how
// old it is, and a Fresh question passes it by.
//
// Each question has one entry, where a newer refusal replaces an older one. Questions and keys
// whose hashes collide share entries and marks. Then a refusal is dropped too early, or is not
// used, which costs a call.
type Refusals struct {
	next    store.Store
	place   store.Place // of what is kept with limiters
	timeout time.Duration
	max     time.Duration
	seed    maphash.Seed
	start   time.Time
	entries [cacheSize]atomic.Pointer[refusal]

	// marks say, by the hash of the key, what this process does with it.
	//
	// An operation in flight may have been executed, and others may have seen what it did,
	// so a refusal is used only while there is none, but for peeks. One that has ended is a
	// change, unless it was a refusal that was not counted. As a refusal may store a state of
	// the numbers that it was asked with, it is a change too that another plan begins, and
	// that an operation ends while there were several in flight.
	marks [markCount]atomic.Uint64
}

// NewRefusals returns a Refusals. It remembers a refusal for at most that time. A decision
// that needs two calls makes both within the timeout.
func NewRefusals(next store.Store, limit, timeout time.Duration) *Refusals {
	return &Refusals{next: next, timeout: timeout, max: limit, seed: maphash.MakeSeed(), start: time.Now()}
}

// A refusable is what a Refusals keeps with a limiter.
type refusable struct {
	hash      uint64 // of the limiter's name
	plan      uint64 // a hash of the policies' numbers, of planBits
	cacheable bool   // no policy counts what is refused
}

// Prepare implements [store.Store].
func (c *Refusals) Prepare(l *store.Limiter) error {
	if err := c.next.Prepare(l); err != nil {
		return err
	}
	own := &refusable{hash: maphash.String(c.seed, l.Spec().Name), cacheable: true}
	var numbers strings.Builder
	for _, p := range l.Spec().Policies {
		m := p.Step.Numbers()
		fmt.Fprintln(&numbers, m)
		own.cacheable = own.cacheable && !m.CountDenied
	}
	own.plan = maphash.String(c.seed, numbers.String()) % (1 << planBits)
	l.Keep(&c.place, own)
	return nil
}

// Observer implements [store.Store].
func (c *Refusals) Observer() *store.Observer { return c.next.Observer() }

// prepared returns what a Refusals keeps with a limiter.
func (c *Refusals) prepared(l *store.Limiter) *refusable {
	return l.Kept(&c.place).(*refusable)
}

// Ask implements [store.Store].
func (c *Refusals) Ask(ctx context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	counts := q.Counts()
	switch {
	case q.Mode == store.Peek && counts:
		return c.next.Ask(ctx, q)
	case q.Mode != store.Allow && q.Mode != store.Peek || counts:
		return c.change(ctx, q)
	}
	l := c.get(q.Charges)
	if q.Fresh {
		l.cached = nil
	}
	switch {
	case l.cached != nil && !l.busy:
		l.answer(&q.Result)
		return nil
	case q.Mode == store.Peek:
		err := c.next.Ask(ctx, q)
		if err == nil && !q.Result.Allowed && c.isPlan(q.Charges) {
			c.put(&l, q)
		}
		return err
	}
	return c.decide(ctx, q, &l)
}

// isPlan reports whether the keys were last used under the plans of these charges, as far as this
// process knows. Under others, what a peek shows is taken over from them at that moment, and is not stored.
func (c *Refusals) isPlan(cs []store.Charge) bool {
	for i := range cs {
		mark := c.mark(&cs[i]).Load()
		if mark != 0 && version(mark)%(1<<planBits) != c.prepared(cs[i].Limiter).plan {
			return false
		}
	}
	return true
}

// decide decides what no cached refusal does.
func (c *Refusals) decide(ctx context.Context, q *store.Question, l *lookup) error {
	if l.cached != nil {
		ctx = until{ctx, deadline(ctx, c.timeout)}
		q.Mode = store.Peek
		err := c.next.Ask(ctx, q)
		q.Mode = store.Allow
		if err != nil || c.confirmed(l, q) {
			return err
		}
	}
	answered := false
	for i := range q.Charges {
		c.begin(&q.Charges[i])
	}
	defer func() { c.decided(l, q, answered) }()
	err := c.next.Ask(ctx, q)
	answered = err == nil
	return err
}

// confirmed reports whether a peek has shown that a cached refusal still holds, while
// operations were in flight that may change the keys. The question is peeked first because
// it is probably refused, and one that may charge would keep others from the cache. A peek
// stores nothing, which is the same unless another plan has begun, and changed the version.
func (c *Refusals) confirmed(l *lookup, q *store.Question) bool {
	if q.Result.Allowed || c.version(q.Charges) != l.version {
		return false
	}
	c.put(l, q)
	return true
}

// decided notes that a decision has ended, and remembers a refusal. One that was not
// answered, because of an error or a panic, may have written as well.
func (c *Refusals) decided(l *lookup, q *store.Question, answered bool) {
	refused := answered && !q.Result.Allowed
	for i := range q.Charges {
		c.end(&q.Charges[i], !refused || !c.prepared(q.Charges[i].Limiter).cacheable)
	}
	if refused {
		c.put(l, q)
	}
}

// change passes on what changes keys whatever is decided. A counted refusal that was answered is
// the store's like any other.
func (c *Refusals) change(ctx context.Context, q *store.Question) error {
	wrote := true
	for i := range q.Charges {
		c.begin(&q.Charges[i])
	}
	defer func() {
		for i := range q.Charges {
			c.end(&q.Charges[i], wrote || !c.prepared(q.Charges[i].Limiter).cacheable)
		}
	}()
	err := c.next.Ask(ctx, q)
	wrote = err != nil || q.Mode != store.Refuse || q.Counts()
	return err
}
