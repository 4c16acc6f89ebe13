package lease

import (
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// An entry is what this process knows of a key that is asked for often. It is guarded by the
// lock of its shard.
type entry struct {
	limiter *limiter
	key     string
	next    *entry // of the same hash: another plan, mostly

	demand  demand
	asked   int64         // when, in monotonic nanoseconds
	room    int64         // what the store last said was left in it
	flight  chan struct{} // closed when the call for a lease has returned; nil if there is none
	waiting int64         // units that callers want who wait for that call
	calls   int           // for leases, that have not returned
	resets  int           // a charge that one of them may have erased is not leased
	others  int           // calls under other plans: nor is one that was made before
	refusal refusal

	// More is leased in the background when no more than low units are left, or at the time
	// soon, in monotonic nanoseconds.
	low  int64
	soon int64

	// The first is spent first, since it ends first. There is a second when units of a
	// bucket are leased before the first is used up.
	leases [2]lease
	answer store.Result // of the store, to the newest charge
	from   int64        // when it came, in monotonic nanoseconds
}

// A lease is units that were charged in one part, at several instants.
type lease struct {
	left    int64
	charged int64
	part
	at    int64   // the instant of the receipts: any of a window's, the first of a bucket's
	until instant // its end, on the clocks of this machine
}

func (b *lease) live(now instant) bool { return now.before(b.until) }

// A refusal is what the store has refused, of all that was refused lately the most units: fewer are
// refused alike, as long as they are more than are left.
type refusal struct {
	n      int64 // 0: nothing
	result store.Result
	came   int64 // when that came, in monotonic nanoseconds
	last   int64 // when the last refusal came
	until  int64 // until when the store is not asked again for what is refused, nor for leases ahead
}

// held returns how many units the live leases hold.
func (e *entry) held(now instant) (n int64) {
	for i := range e.leases {
		if b := &e.leases[i]; b.left > 0 && b.live(now) {
			n += b.left
		}
	}
	return n
}

// ready returns how many units a call can spend: of a window all are of one lease, since they are
// to be put back where they came from.
func (e *entry) ready(now instant) (n int64) {
	if e.limiter.bucket() {
		return e.held(now)
	}
	for i := range e.leases {
		if b := &e.leases[i]; b.left > n && b.live(now) {
			n = b.left
		}
	}
	return n
}

// spend answers from leases, if they hold n units, and takes as many of extra as they have.
func (e *entry) spend(r *store.Result, now instant, n, extra int64) bool {
	ready := e.ready(now)
	if ready < n {
		return false
	}
	extra = min(extra, ready-n)
	at, rest := int64(step.MaxInt), n+extra
	for i := range e.leases {
		b := &e.leases[i]
		if b.left == 0 || !b.live(now) || b.left < rest && !e.limiter.bucket() {
			continue
		}
		take := min(rest, b.left)
		if b.left, rest, at = b.left-take, rest-take, min(at, b.at); rest == 0 {
			break
		}
	}
	r.Start(at, store.SourceLease)
	r.Allowed, r.Extra = true, extra
	e.read(r, now)
	return true
}

// topUp adds up to n units that leases hold to what the store has just charged. All of a window
// count as of the newest instant, of a bucket as of the oldest.
func (e *entry) topUp(r *store.Result, now instant, n int64) {
	for i := range e.leases {
		b := &e.leases[i]
		at := min(r.At, b.at)
		if !e.limiter.bucket() {
			if at = max(r.At, e.answer.At); r.At < b.start || b.end <= at {
				continue
			}
		}
		if more := min(n-r.Extra, b.left); more > 0 && b.live(now) {
			b.left -= more
			r.At, r.Extra = at, r.Extra+more
		}
	}
}

// read adds the readings of the store's last answer, with what the leases hold.
func (e *entry) read(r *store.Result, now instant) {
	age, held := (now.mono-e.from)/1000, e.leases[0].left+e.leases[1].left
	for i := range e.answer.Len() {
		x := *e.answer.Reading(i)
		x.Remaining += held
		x.NextAfter, x.ResetAfter, x.RetryAfter = older(x.NextAfter, age), older(x.ResetAfter, age), 0
		r.Add(true, x)
	}
}

// older shortens a span, but not to 0.
func older(span, age int64) int64 {
	if span <= 0 || span == step.Never {
		return span
	}
	return max(span-age, 1)
}

// paused reports whether the store has refused units a moment ago.
func (e *entry) paused(now instant) bool { return e.refusal.n > 0 && now.mono < e.refusal.until }

// scarce reports whether the store has refused units lately.
func (e *entry) scarce(s *Store, now instant) bool {
	return e.refusal.n > 0 && now.mono-e.refusal.last < s.span
}

// refused reports whether the store is not to be asked for n units: it has refused as many, and
// that was a moment ago, or after the caller began to wait.
func (e *entry) refused(now instant, n, began int64) bool {
	f := &e.refusal
	return n <= f.n && n > e.room+e.held(now) && (now.mono < f.until || f.last >= began)
}

// refuse answers with what the store refused. It adds the readings to what r has.
func (e *entry) refuse(r *store.Result, now instant) {
	f := &e.refusal
	age, rest := (now.mono-f.came)/1000, (f.until-now.mono+999)/1000
	r.At, r.Source, r.Allowed = f.result.At, store.SourceLease, false
	for i := range f.result.Len() {
		x, admitted := *f.result.Reading(i), f.result.Admitted(i)
		x.NextAfter, x.ResetAfter = older(x.NextAfter, age), older(x.ResetAfter, age)
		if !admitted {
			x.RetryAfter = max(older(x.RetryAfter, age), rest)
		}
		r.Add(admitted, x)
	}
}

// put puts units back that were spent from a lease of that instant, as many as it takes.
func (e *entry) put(now instant, at, n int64) (back int64) {
	for i := range e.leases {
		if b := &e.leases[i]; b.live(now) && b.start <= at && at < b.end {
			back = min(n, b.charged-b.left)
			b.left += back
			return back
		}
	}
	return 0
}

// take takes what is left in a lease, to be given back.
func (e *entry) take(b *lease, t *store.Charge) bool {
	*t = store.Charge{Limiter: e.limiter.Limiter, Key: e.key, N: b.left, At: b.at, Source: store.SourceStore}
	*b = lease{}
	return t.N > 0
}

// beside returns a result of the store as it is with the units that are leased here. If they
// fit, a refusal of n units becomes an admission: for a peek, as the units that are given
// back are admitted again.
func beside(r *store.Result, left, n int64) store.Result {
	with := store.Result{At: r.At, Source: r.Source, Allowed: true, Extra: r.Extra}
	for i := range r.Len() {
		x, admitted := *r.Reading(i), r.Admitted(i)
		x.Remaining += left
		if !admitted && x.Remaining >= n {
			admitted, x.RetryAfter = true, 0
		}
		with.Allowed = with.Allowed && admitted
		with.Add(admitted, x)
	}
	return with
}

// least returns what every policy has left.
func least(r *store.Result) int64 {
	n := int64(step.MaxInt)
	for i := range r.Len() {
		n = min(n, r.Reading(i).Remaining)
	}
	return n
}
