package core

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A question is what a store is asked, with room for the charges of most.
type question struct {
	store.Question

	room [8]store.Charge

	// The bits of the next decisions that hold charges, and how many are taken: see Decision. Many
	// decisions share an allocation, or each would be garbage.
	bits  *[16]atomic.Uint32
	taken uint16
}

// hold gives a decision its bit.
func (q *question) hold(d *Decision) {
	i := q.taken % uint16(32*len(q.bits))
	if i == 0 {
		q.bits = new([len(q.bits)]atomic.Uint32)
	}
	q.taken = i + 1
	d.spent, d.bit = &q.bits[i/32], uint8(i%32)
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
	to := &q.Charges[i]
	to.Limiter, to.Key, to.N, to.Anyway = c.Limiter.prepared, c.Key, min(c.N, step.MaxInt), c.Anyway
	to.Uncovered = 0
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
	case c.N < 0:
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
		d.first, d.more, d.anyway, d.spent = newReceipt(c), nil, 0, nil
		if d.conclude(&q.Result); d.Allowed && mode == store.Allow {
			q.hold(d)
		} else {
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

// decideAll asks about charges. Their store gets those that the parameters alone do not decide, and
// what is to be counted anyway. The question has all of them afterwards, and is to be freed also after
// an error.
func decideAll(ctx context.Context, mode store.Mode, charges []Charge) (q *question, err error) {
	q = newQuestion()
	q.Mode, q.Extra = mode, 0
	if q.Charges = q.room[:min(len(charges), len(q.room))]; len(charges) > len(q.room) {
		q.Charges = make([]store.Charge, len(charges))
	}
	never := false // whether a charge can never be granted
	for i := range charges {
		c := &charges[i]
		q.set(i, c)
		never = never || c.N > c.Limiter.max && !c.Anyway
	}
	asked := make([]int, 0, len(charges))
	for i := range charges {
		if c := &charges[i]; !c.Limiter.constant && (!never || c.Anyway && mode == store.Allow) {
			asked = append(asked, i)
		}
	}
	switch len(asked) {
	case 0:
		byNumbers(&q.Result, charges...)
	case len(charges):
		return q, charges[0].Limiter.store.Ask(ctx, &q.Question)
	default:
		err = q.askSome(ctx, charges, asked, never)
	}
	for i := range charges {
		if c := &charges[i]; c.Anyway && c.Limiter.constant {
			q.Charges[i].Uncovered = max(c.N-c.Limiter.max, 0)
		}
	}
	return q, err
}

// askSome asks the store about some of the charges, and decides the others by their numbers.
func (q *question) askSome(ctx context.Context, charges []Charge, asked []int, never bool) error {
	some := store.Question{Mode: q.Mode, Charges: make([]store.Charge, len(asked))}
	for i, at := range asked {
		some.Charges[i] = q.Charges[at]
	}
	if err := charges[0].Limiter.store.Ask(ctx, &some); err != nil {
		return err
	}
	byNumbers(&q.Result, charges...)
	numbers := q.Result
	if q.Result.Start(some.Result.At, some.Result.Source); never {
		q.Result.Source = SourcePolicy // which has refused
	}
	q.Result.Allowed = some.Result.Allowed && !never
	reading, told := 0, 0 // of all, and of those of the store
	for i := range charges {
		from, next := &numbers, &reading
		if len(asked) > 0 && asked[0] == i {
			q.Charges[i].Uncovered = some.Charges[len(some.Charges)-len(asked)].Uncovered
			asked = asked[1:]
			from, next = &some.Result, &told
		}
		for j := range charges[i].Limiter.policies {
			q.Result.Add(from.Admitted(*next+j), *from.Reading(*next + j))
		}
		reading += len(charges[i].Limiter.policies)
		if from == &some.Result {
			told += len(charges[i].Limiter.policies)
		}
	}
	return nil
}

// byNumbers decides without the store: every charge is of a constant limiter, or at
// least one can never be granted. Remaining is 0 for the other limiters, whose usage is
// not known.
func byNumbers(r *store.Result, charges ...Charge) {
	r.Start(0, SourcePolicy)
	r.Allowed = true
	for _, c := range charges {
		need := c.N
		if c.Anyway {
			need = 1
		}
		for _, p := range c.Limiter.spec.Policies {
			admitted := c.N <= p.Step.Max()
			r.Allowed = r.Allowed && (admitted || c.Anyway)
			var x step.Reading
			if c.Limiter.constant {
				x = p.Step.Read(nil, 0, need)
			} else if !admitted {
				x.RetryAfter = step.Never
			}
			r.Add(admitted, x)
		}
	}
}
