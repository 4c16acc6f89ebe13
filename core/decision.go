package core

import (
	"context"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/headgate/headgate/core/step"
)

// Never is the RetryAfter that no waiting satisfies: more was asked than a policy
// can ever grant.
const Never time.Duration = math.MaxInt64

// A Source says who made a decision.
type Source uint8

const (
	// SourcePolicy: the policies alone decided, without the store: a charge above
	// what they can ever grant, Unlimited, Blocked.
	SourcePolicy Source = iota
	// SourceStore: the store decided.
	SourceStore
	// SourceCache: the store refused the same request before, and this process
	// remembers that the refusal still holds.
	SourceCache
	// SourceLocal: the store is unreachable, and this process decided by itself.
	SourceLocal
	// SourceOpen: the store is unreachable, and everything is admitted.
	SourceOpen
)

// String returns a short name for logs and metrics.
func (s Source) String() string {
	names := [...]string{"policy", "store", "cache", "local", "open"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// A Decision is the answer to a question. Its numbers are the strictest of all
// policies that were asked, as they were just after the answer. The zero Decision
// refuses.
//
// A decision that was charged carries the receipt, for Settle and Refund. Copies
// share it: settle or refund one of them, once.
type Decision struct {
	Allowed bool
	Source  Source

	// Policy is the name of the policy that decided: of those that refused, the
	// one to be waited for longest; otherwise the one with the least remaining.
	Policy string

	// Limit is the limit of that policy.
	Limit int64

	// Remaining is the smallest number of units that any policy has left.
	Remaining int64

	// ResetAfter is the time until no policy remembers any use.
	ResetAfter time.Duration

	// RetryAfter is the time until the same question would be admitted, if nobody
	// else charges the key: 0 if it was admitted, [Never] if no waiting helps.
	RetryAfter time.Duration

	// Decisions are copied, so they are kept small: hence the pointer.
	result Result
	first  receipt
	more   *[]receipt // of the other charges; nil: there is one
}

// An Answer is what one policy said.
type Answer struct {
	Policy     string        // its name
	Allowed    bool          // this policy by itself would have admitted the charge
	Limit      int64         // its limit
	Remaining  int64         // units left
	NextAfter  time.Duration // until one more unit than Remaining; 0 when nothing is used
	ResetAfter time.Duration // until nothing is used
	RetryAfter time.Duration // until the charge fits; 0 if it does or did
}

// A receipt is a charge whose key does not show when a Decision is printed, even
// deep inside another struct, where package fmt asks no String method.
type receipt struct {
	limiter *Limiter
	key     *byte
	keyLen  int
	n       int64
}

func newReceipt(c Charge) receipt {
	return receipt{c.Limiter, unsafe.StringData(c.Key), len(c.Key), c.N}
}

func (r receipt) charge() Charge {
	return Charge{r.limiter, unsafe.String(r.key, r.keyLen), r.n}
}

// charges returns the number of receipts.
func (d *Decision) charges() int {
	if d.more == nil {
		return 1
	}
	return 1 + len(*d.more)
}

func (d *Decision) receipt(i int) *receipt {
	if i == 0 {
		return &d.first
	}
	return &(*d.more)[i-1]
}

// Len returns the number of answers: one for each policy of each limiter asked.
func (d *Decision) Len() int { return d.result.Len() }

// Answer returns what the i-th policy said, 0 <= i < Len: in the order in which
// limiters were asked, and policies given to New.
func (d *Decision) Answer(i int) Answer {
	if i < 0 || i >= d.Len() {
		panic(fmt.Sprintf("headgate: answer %d of %d", i, d.Len()))
	}
	l, local := d.first.limiter, i
	for next := 1; local >= len(l.policies); next++ {
		local -= len(l.policies)
		l = d.receipt(next).limiter
	}
	p, x := &l.policies[local], d.result.reading(i)
	a := Answer{
		Policy:     p.name,
		Allowed:    d.result.admitted&(1<<i) != 0,
		Limit:      limit(&p.numbers),
		Remaining:  x.Remaining,
		NextAfter:  span(x.NextAfter),
		ResetAfter: span(x.ResetAfter),
	}
	if !d.Allowed {
		a.RetryAfter = span(x.RetryAfter)
	}
	return a
}

// conclude fills the strictest numbers in from the readings. The i-th reading
// belongs to the i-th policy of the receipts' limiters.
func (d *Decision) conclude() {
	d.Allowed, d.Source = d.result.Allowed, d.result.Source
	var reset, retry int64
	i := 0
	for c := range d.charges() {
		l := d.receipt(c).limiter
		for j := range l.policies {
			p, x := &l.policies[j], d.result.reading(i)
			reset = max(reset, x.ResetAfter)
			if d.decides(x, i, retry) {
				d.Policy, d.Limit = p.name, limit(&p.numbers)
			}
			if i == 0 || x.Remaining < d.Remaining {
				d.Remaining = x.Remaining
			}
			if !d.Allowed {
				retry = max(retry, x.RetryAfter)
			}
			i++
		}
	}
	d.ResetAfter, d.RetryAfter = span(reset), span(retry)
}

// decides reports whether reading x is stricter than the i before it.
func (d *Decision) decides(x *step.Reading, i int, retry int64) bool {
	switch {
	case i == 0:
		return true
	case d.Allowed:
		return x.Remaining < d.Remaining
	default:
		return x.RetryAfter > retry
	}
}

// Refund gives the whole charge back: what was asked for did not happen. It is
// Settle with 0 for each charge.
func (d *Decision) Refund(ctx context.Context) error {
	_, err := d.Settle(ctx, make([]int64, d.charges())...)
	return err
}

// Settle corrects the charge to what it turned out to cost: reserve an estimate,
// settle the true number. It takes one number for each charge of the question, so
// a single one after [Limiter.AllowN], and each is 0 or more.
//
// Below the estimate, units are given back as far as they still count: a token
// bucket that has been refilling meanwhile gets back less, a window that has
// passed gets nothing, and neither does a policy whose rate or period another
// limiter of the name has changed since. Above it, the rest is charged as far as
// there is room, and never into debt; uncovered is what found none.
//
// A charge is settled once; the second time is [ErrSettled]. The context should
// not be the request's if that may be cancelled, or a client that hangs up keeps
// its reservation. After any other error it is unknown whether the charge was
// corrected, and it must not be tried again: the limit would be exceeded.
func (d *Decision) Settle(ctx context.Context, actual ...int64) (uncovered int64, err error) {
	if d.first.n == 0 {
		return 0, ErrSettled
	}
	if len(actual) != d.charges() {
		return 0, fmt.Errorf("headgate: %d numbers to settle %d charges", len(actual), d.charges())
	}
	ss := make([]Settlement, 0, len(actual))
	for i, n := range actual {
		r := d.receipt(i)
		if n < 0 {
			return 0, fmt.Errorf("headgate: cannot settle to %d units", n)
		}
		if n != r.n && !r.limiter.constant {
			ss = append(ss, Settlement{Charge: r.charge(), At: d.result.At, Source: d.Source, Actual: min(n, step.MaxInt)})
		}
	}
	store := d.first.limiter.store
	d.spend()
	if len(ss) == 0 {
		return 0, nil
	}
	if err := store.Settle(ctx, ss); err != nil {
		return 0, err
	}
	for _, s := range ss {
		uncovered = max(uncovered, s.Uncovered)
	}
	return uncovered, nil
}

// spend makes the receipt worthless and leaves the limiters for Answer.
func (d *Decision) spend() {
	d.first = receipt{limiter: d.first.limiter}
	if d.more == nil {
		return
	}
	more := make([]receipt, len(*d.more)) // copies of the decision have the other
	for i, r := range *d.more {
		more[i].limiter = r.limiter
	}
	d.more = &more
}

// String describes the decision for people, without the key. It tells if the store
// was away.
func (d Decision) String() string {
	var away string
	if d.Source == SourceLocal {
		away = ", without the store"
	}
	switch {
	case d.Allowed && d.Source == SourceOpen: // nobody has looked what is left
		return "allowed without the store"
	case d.Allowed:
		return fmt.Sprintf("allowed by %q: %d of %d left%s", d.Policy, d.Remaining, d.Limit, away)
	case d.RetryAfter == Never:
		return fmt.Sprintf("refused by %q for ever%s", d.Policy, away)
	default:
		return fmt.Sprintf("refused by %q: retry after %v%s", d.Policy, d.RetryAfter, away)
	}
}
