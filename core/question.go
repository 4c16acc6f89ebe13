package core

import (
	"context"
	"slices"
	"sync"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A question is what a store is asked, with room for its charges.
type question struct {
	store.Question

	room [maxTogether]store.Charge
}

// questions are reused: what is passed to a store is on the heap. Those in the pool have one charge,
// as most questions do.
var questions = sync.Pool{New: func() any {
	q := new(question)
	q.Charges = q.room[:1]
	return q
}}

// newQuestion returns a question that may hold anything, and is to be freed.
func newQuestion() *question { return questions.Get().(*question) }

// about makes the question one about a charge.
func (q *question) about(mode store.Mode, c *Charge) {
	q.Mode, q.Extra = mode, 0
	q.set(0, c)
}

// set sets the i-th charge.
func (q *question) set(i int, c *Charge) {
	to := &q.room[i]
	to.Limiter, to.Key, to.N = c.Limiter.prepared, c.Key, c.N
}

// free takes a question back, without its keys.
func (q *question) free() {
	q.room[0].Limiter, q.room[0].Key = nil, ""
	if len(q.Charges) > 1 {
		clear(q.Charges)
		q.Charges = q.room[:1]
	}
	questions.Put(q)
}

// decide makes a decision of one limiter. It fills in d, so that the methods that call it are
// small enough to be inlined, and only their caller copies the decision.
func (l *Limiter) decide(ctx context.Context, mode store.Mode, c Charge, d *Decision) error {
	switch {
	case ctx == nil:
		*d = Decision{}
		return errContext
	case c.N <= 0:
		*d = Decision{}
		return ErrCost
	}
	start, q := begin(l.observer), newQuestion()
	q.about(mode, &c)
	var err error
	if c.N > l.max || l.constant {
		byNumbers(&q.Result, c)
	} else {
		err = l.store.Ask(ctx, &q.Question)
	}
	if l.observer != nil && mode != store.Peek {
		decided(ctx, l.observer, start, &q.Result, err, c)
	}
	if err != nil {
		*d = Decision{}
	} else {
		d.first, d.more = newReceipt(c), nil
		if d.conclude(&q.Result); !d.Allowed || mode == store.Peek {
			d.first = receipt{limiter: l}
		}
	}
	q.free()
	return err
}

// allowExtra allows a charge, and as many of extra units more as fit, which it returns. They are
// of the decision only if it is for all.
func (l *Limiter) allowExtra(ctx context.Context, c Charge, extra int64, forAll bool) (d Decision, granted int64, err error) {
	start, q := begin(l.observer), newQuestion()
	defer q.free()
	q.about(store.Allow, &c)
	q.Extra = extra
	err = l.store.Ask(ctx, &q.Question)
	granted, q.Result.Extra = q.Result.Extra, 0
	if forAll && err == nil {
		c.N += granted
	}
	if l.observer != nil {
		decided(ctx, l.observer, start, &q.Result, err, c)
	}
	if err != nil {
		return Decision{}, 0, err
	}
	return decisionOf(&q.Result, c), granted, nil
}

// decideAll asks about charges. Their store gets those that the parameters alone do not decide.
// The question is to be freed also after an error.
func decideAll(ctx context.Context, charges []Charge) (q *question, err error) {
	q = newQuestion()
	q.about(store.Allow, &charges[0])
	q.Charges = q.room[:len(charges)]
	for i := range charges[1:] {
		q.set(i+1, &charges[i+1])
	}
	if slices.ContainsFunc(charges, func(c Charge) bool { return c.N > c.Limiter.max }) {
		byNumbers(&q.Result, charges...)
		return q, nil
	}
	constant := func(i int) bool { return charges[i].Limiter.constant }
	counted := 0
	for i := range charges {
		if !constant(i) {
			q.room[counted] = q.room[i]
			counted++
		}
	}
	all := q.Charges
	defer func() { q.Charges = all }() // to be cleared
	if q.Charges = all[:counted]; counted == 0 {
		byNumbers(&q.Result, charges...)
		return q, nil
	}
	if err = charges[0].Limiter.store.Ask(ctx, &q.Question); err == nil && counted < len(charges) {
		some := q.Result
		withUnlimited(&q.Result, &some, charges)
	}
	return q, err
}

// withUnlimited adds the readings of Unlimited to those of the store, which are for the
// other charges. There is no Blocked among the charges, since its max is 0.
func withUnlimited(all, some *store.Result, charges []Charge) {
	all.Start(some.At, some.Source)
	all.Allowed = some.Allowed
	next := 0 // reading of some
	for _, c := range charges {
		if c.Limiter.constant {
			all.Add(true, c.Limiter.spec.Policies[0].Step.Read(nil, some.At, c.N))
			continue
		}
		for range c.Limiter.policies {
			all.Add(some.Admitted(next), *some.Reading(next))
			next++
		}
	}
}

// byNumbers decides without the store: every charge is of a constant limiter, or at
// least one can never be granted. Remaining is 0 for the other limiters, whose usage is
// not known.
func byNumbers(r *store.Result, charges ...Charge) {
	r.Start(0, SourcePolicy)
	r.Allowed = true
	for _, c := range charges {
		for _, p := range c.Limiter.spec.Policies {
			admitted := c.N <= p.Step.Max()
			r.Allowed = r.Allowed && admitted
			var x step.Reading
			if c.Limiter.constant {
				x = p.Step.Read(nil, 0, c.N)
			} else if !admitted {
				x.RetryAfter = step.Never
			}
			r.Add(admitted, x)
		}
	}
}
