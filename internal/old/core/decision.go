package core

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Never is the RetryAfter of a refusal that waiting cannot change: a policy can never
// admit that many units.
const Never time.Duration = math.MaxInt64

// A Source is what made a decision. Its String is a short name for logs and metrics.
type Source = store.Source

const (
	// SourceNone means that there is no decision.
	SourceNone = store.SourceNone
	// SourcePolicy means that the policies decided without the store: a charge above
	// what they can ever admit, Unlimited or Blocked.
	SourcePolicy = store.SourcePolicy
	// SourceStore means that the store decided.
	SourceStore = store.SourceStore
	// SourceCache means that the store refused the same call before, and that this
	// process remembers that the refusal still holds.
	SourceCache = store.SourceCache
	// SourceLocal means that the store is unreachable, and that this process decided alone.
	SourceLocal = store.SourceLocal
	// SourceOpen means that the store is unreachable, and that everything is admitted.
	SourceOpen = store.SourceOpen
	// SourceLease means that this process decided with units leased from the store, or with a
	// refusal by it: see package lease.
	SourceLease = store.SourceLease
)

// A Decision is the result of a call. Its numbers are the strictest of all policies of
// the call, just after the decision. The zero Decision refuses.
//
// A decision that was charged can be corrected with Settle or Refund, once: a second
// time is [ErrSettled], also for a copy. All methods may be called at the same time.
type Decision struct {
	Allowed bool
	Source  Source
	bit     uint8 // of spent

	// Policy is the name of the policy that decided. After a refusal, that is the refusing policy
	// with the longest RetryAfter. Otherwise it is the policy with the least remaining. Limiter is
	// the name of its limiter.
	Limiter, Policy string

	// Limit is the limit of that policy.
	Limit int64

	// Remaining is the smallest number of units that any policy has left.
	Remaining int64

	// ResetAfter is the time until the key is as if it had never been charged.
	ResetAfter time.Duration

	// RetryAfter is the time until the same call would be admitted, if the key is not charged in
	// the meantime. It is 0 if the call was admitted, and [Never] if waiting cannot help.
	RetryAfter time.Duration

	// Decisions are copied, so they are kept small: hence the pointers.
	result store.Result
	first  receipt
	more   *[]receipt     // of the other charges; nil: there is one
	anyway uint64         // a bit for each charge that was counted anyway
	spent  *atomic.Uint32 // has a bit that copies share: the charges were settled; nil: there are none
}

// An Answer is the result of one policy.
type Answer struct {
	Limiter    string        // the name of its limiter
	Policy     string        // its name
	Allowed    bool          // whether this policy alone would have admitted the charge
	Limit      int64         // its limit
	Window     time.Duration // its [Policy.Window], over which Limit units are admitted
	Remaining  int64         // units left
	NextAfter  time.Duration // until one more unit than Remaining is left; 0 if none is used
	ResetAfter time.Duration // until no unit is used
	RetryAfter time.Duration // until the charge fits; 0 if it does or did; of one counted anyway, until one unit is left
}

// A receipt is a charge that can be corrected. It hides the key, since package fmt would print a
// string that is deep inside another struct, where it does not call String.
type receipt struct {
	limiter *Limiter
	key     hidden.Text
	n       int64
}

func newReceipt(c Charge) receipt {
	return receipt{c.Limiter, hidden.Of(c.Key), c.N}
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

// Len returns the number of answers: one for each policy of each limiter of the call.
//
// Like the other methods it has a pointer receiver, since Settle changes the Decision.
// String is the exception, so that a Decision is printed without its internals.
func (d *Decision) Len() int { return d.result.Len() }

// Answer returns the result of the i-th policy, 0 <= i < Len. The order is the charges' and, within
// a charge, the policies' in New. It panics if i is out of range.
func (d *Decision) Answer(i int) (a Answer) {
	d.answer(i, &a)
	return
}

// answer is Answer, which is so small that it is inlined, and its result not copied.
func (d *Decision) answer(i int, a *Answer) {
	if i < 0 || i >= d.Len() {
		panic(fmt.Sprintf("headgate: answer %d of %d", i, d.Len()))
	}
	l, local, charge := d.first.limiter, i, 0
	for local >= len(l.policies) {
		local -= len(l.policies)
		charge++
		l = d.receipt(charge).limiter
	}
	p, x := &l.policies[local], d.result.Reading(i)
	a.Limiter, a.Policy = l.name, p.name
	a.Allowed = d.result.Admitted(i)
	a.Limit, a.Window = limit(&p.numbers), l.windows[local]
	a.Remaining = x.Remaining
	a.NextAfter, a.ResetAfter = span(x.NextAfter), span(x.ResetAfter)
	if !d.Allowed || d.counted(charge) {
		a.RetryAfter = span(x.RetryAfter)
	}
}

// Used returns how much of a limit is used after the decision, in percent, rounded down. It takes
// the policy of the call of which most is used. So a caller can warn before it refuses. It is 100
// after a refusal, and after each call that a MinInterval admits. It is 0 if only Unlimited
// decided.
func (d *Decision) Used() int {
	if !d.Allowed {
		return 100
	}
	most := 0
	for i := range d.Len() {
		a := d.Answer(i)
		most = max(most, usedOf(a.Limit, a.Remaining))
	}
	return most
}

// usedOf returns how much of a limit is used, in percent. Limits are below 2^53.
func usedOf(limit, remaining int64) int {
	if limit <= 0 {
		return 0
	}
	return int(min(max(limit-remaining, 0), limit) * 100 / limit)
}

// decisionOf returns the decision about charges. One that refuses, or is a report, holds none.
func decisionOf(r *store.Result, charges ...Charge) (d Decision) {
	for i, c := range charges {
		if c.Anyway {
			d.anyway |= 1 << i
		}
	}
	d.first = newReceipt(charges[0])
	if len(charges) > 1 {
		more := make([]receipt, 0, len(charges)-1)
		for _, c := range charges[1:] {
			more = append(more, newReceipt(c))
		}
		d.more = &more
	}
	if d.conclude(r); d.Allowed && !d.isReport() {
		d.spent = new(atomic.Uint32)
	}
	return d
}

// held returns how many units the first charge holds.
func (d *Decision) held() int64 {
	if d.spent == nil {
		return 0
	}
	return d.first.n
}

// counted returns whether the i-th charge was counted anyway.
func (d *Decision) counted(i int) bool { return d.anyway&(1<<i) != 0 }

// isReport returns whether all charges were.
func (d *Decision) isReport() bool {
	return d.anyway != 0 && d.anyway == 1<<d.charges()-1
}

// conclude takes over the result, and sets the strictest numbers from its readings. The i-th
// reading belongs to the i-th policy of the receipts' limiters.
func (d *Decision) conclude(r *store.Result) {
	d.result.CopyFrom(r)
	d.Allowed, d.Source = r.Allowed, r.Source
	d.Limiter, d.Policy, d.Limit, d.Remaining = "", "", 0, 0
	report := d.isReport()
	for i := 0; report && i < r.Len(); i++ {
		d.Allowed = d.Allowed && r.Admitted(i)
	}
	var reset, retry, longest int64 // longest: of those that refused
	i := 0
	for c := range d.charges() {
		l := d.receipt(c).limiter
		waits := report || !d.Allowed && !d.counted(c)
		for j := range l.policies {
			p, x := &l.policies[j], d.result.Reading(i)
			refused := waits && !d.result.Admitted(i)
			reset = max(reset, x.ResetAfter)
			if i == 0 || d.Allowed && x.Remaining < d.Remaining || !d.Allowed && refused && x.RetryAfter > longest {
				d.Limiter, d.Policy, d.Limit = l.name, p.name, limit(&p.numbers)
			}
			if i == 0 || x.Remaining < d.Remaining {
				d.Remaining = x.Remaining
			}
			if waits {
				retry = max(retry, x.RetryAfter)
			}
			if refused {
				longest = max(longest, x.RetryAfter)
			}
			i++
		}
	}
	d.ResetAfter, d.RetryAfter = span(reset), span(retry)
}

// Refund gives the whole charge back because the event did not happen. It is Settle with 0 for each
// charge.
func (d *Decision) Refund(ctx context.Context) error {
	_, err := d.Settle(ctx, make([]int64, d.charges())...)
	return err
}

// Settle corrects the charge to its actual cost: charge an estimate, then settle the
// true number of units. It takes one number, 0 or more, for each charge of the call:
// one after [Limiter.AllowN], and as many as there were charges after [AllowAll]. Charges that were
// counted Anyway stay as they are, whatever their number.
//
// If the actual cost is lower, units are given back as far as they still count. A token bucket that
// has been refilling in the meantime gets back less. A window that has passed gets back nothing.
// Nothing is given back to the other plans of [Limiter.With]. If the cost is higher, the rest has
// been used. It is counted as by [Limiter.Report], whether there is room or not. The result
// uncovered is the number of units for which there was no room.
//
// A state does not tell charges apart. The key may have been Reset after the charge, or a full
// store may have dropped its state. Then later charges are given back instead, at most the units of
// this charge. If the store's clock has gone back since, a token bucket may get back units that had
// been refilled. A memstore's clock does not go back.
//
// A decision that holds no charge, or was settled before, is [ErrSettled]. Wrong numbers and a nil
// context are an error and change nothing. After any other error it is unknown whether the charge
// was corrected, and the decision counts as settled. The context may be the request's. Every store
// settles even if the context has ended, so a client that hangs up does not keep its reservation.
func (d *Decision) Settle(ctx context.Context, actual ...int64) (uncovered int64, err error) {
	if ctx == nil {
		return 0, errContext
	}
	if d.spent == nil {
		return 0, ErrSettled
	}
	if len(actual) != d.charges() {
		return 0, fmt.Errorf("%w: %d numbers to settle %d charges", ErrQuestion, len(actual), d.charges())
	}
	for _, n := range actual {
		if n < 0 {
			return 0, fmt.Errorf("%w: cannot settle to %d units", ErrQuestion, n)
		}
	}
	l := d.first.limiter
	q := &store.Question{Mode: store.Settle, Charges: make([]store.Charge, 0, len(actual))}
	for i, n := range actual {
		if r := d.receipt(i); n != r.n && !r.limiter.constant && !d.counted(i) {
			q.Charges = append(q.Charges, store.Charge{
				Limiter: r.limiter.prepared, Key: r.key.Reveal(), N: r.n,
				At: d.result.At, Source: d.Source, Actual: min(n, step.MaxInt),
			})
		}
	}
	if d.spent.Or(1<<d.bit)&(1<<d.bit) != 0 {
		return 0, ErrSettled
	}
	if len(q.Charges) == 0 {
		return 0, nil
	}
	start := begin(l.observer)
	err = l.store.Ask(ctx, q)
	settled(ctx, l.observer, start, q.Charges, err)
	if err != nil {
		return 0, err
	}
	for i := range q.Charges {
		uncovered = max(uncovered, q.Charges[i].Uncovered)
	}
	return uncovered, nil
}

// String returns a description for people, without the key. It says whether the
// decision was made without the store.
func (d Decision) String() string {
	var without string
	if d.Source == SourceLocal {
		without = ", without the store"
	}
	switch {
	case d.isReport() && !d.Allowed:
		return fmt.Sprintf("counted beyond %q: retry after %v%s", d.Policy, d.RetryAfter, without)
	case d.Allowed && d.Source == SourceOpen: // what is left is unknown
		return "allowed without the store"
	case d.Allowed:
		return fmt.Sprintf("allowed by %q: %d of %d left%s", d.Policy, d.Remaining, d.Limit, without)
	case d.RetryAfter == Never:
		return fmt.Sprintf("refused by %q forever%s", d.Policy, without)
	default:
		return fmt.Sprintf("refused by %q: retry after %v%s", d.Policy, d.RetryAfter, without)
	}
}
