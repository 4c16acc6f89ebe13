package lease

import (
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// An entry is what this process knows of a key that is asked for often. It is guarded by the
// lock of its shard.
type entry struct {
	limiter *limiter
	key     string
	next    *entry // of the same hash: another plan, mostly

	demand  demand
	room    int64         // what the store last said was left
	flight  chan struct{} // closed when the call for a lease has returned; nil if there is none
	calls   int           // for leases, that have not returned
	resets  int           // a charge that one of them may have erased is not leased
	others  int           // calls under other plans: nor is one that was made before
	refusal refusal

	// The lease. The units were charged between start and end, on the store's clock, at
	// several instants, of which at is the newest.
	left    int64
	charged int64
	start   int64
	end     int64
	at      int64
	until   instant      // its end, on the clocks of this machine
	answer  store.Result // of the store, at that instant
	from    int64        // when it came, in monotonic nanoseconds
}

// A refusal is what the store last refused.
type refusal struct {
	n      int64 // 0: nothing
	result store.Result
	from   int64 // when it came, in monotonic nanoseconds
	until  int64 // until when the store is not asked for n again
}

// spend answers from the lease, if that holds n units.
func (e *entry) spend(r *store.Result, now instant, n int64, peek bool) bool {
	if e.left < n || !now.before(e.until) {
		return false
	}
	if !peek {
		e.left -= n
	}
	r.At, r.Source, r.Allowed = e.at, store.SourceLease, true
	age := (now.mono - e.from) / 1000
	for i := range e.answer.Len() {
		x := *e.answer.Reading(i)
		x.Remaining += e.left
		x.NextAfter, x.ResetAfter, x.RetryAfter = older(x.NextAfter, age), older(x.ResetAfter, age), 0
		r.Add(true, x)
	}
	return true
}

// older shortens a span, but not to 0.
func older(span, age int64) int64 {
	if span <= 0 || span == step.Never {
		return span
	}
	return max(span-age, 1)
}

// refuse answers with the last refusal, while the store is not to be asked again.
func (e *entry) refuse(r *store.Result, now instant, n int64) bool {
	f := &e.refusal
	if f.n != n || now.mono >= f.until {
		return false
	}
	age, rest := (now.mono-f.from)/1000, (f.until-now.mono+999)/1000
	r.At, r.Source = f.result.At, store.SourceLease
	for i := range f.result.Len() {
		x, admitted := *f.result.Reading(i), f.result.Admitted(i)
		x.NextAfter, x.ResetAfter = older(x.NextAfter, age), older(x.ResetAfter, age)
		if !admitted {
			x.RetryAfter = max(older(x.RetryAfter, age), rest)
		}
		r.Add(admitted, x)
	}
	return true
}

// take takes what is left in the lease, to be given back.
func (e *entry) take(t *store.Settlement) bool {
	*t = store.Settlement{
		Charge: store.Charge{Limiter: e.limiter, Key: e.key, N: e.left},
		At:     e.at, Source: store.SourceStore,
	}
	e.left, e.charged = 0, 0
	return t.N > 0
}

// beside returns a result of the store as it is with the units that are leased here. If they
// fit, a refusal of n units becomes an admission: for a peek, as the units that are given
// back are admitted again.
func beside(r *store.Result, left, n int64) store.Result {
	with := store.Result{At: r.At, Source: r.Source, Allowed: true}
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
