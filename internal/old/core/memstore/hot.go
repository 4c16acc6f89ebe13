package memstore

import (
	"math"
	"sync/atomic"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A hot has the state of a key that is asked for again and again, and nothing else of its
// shard, under a token bucket. It is decided about without the lock: the state is one
// integer, which is compared and swapped.
//
// A shard has one hot at most, and only while nobody holds its lock to read or write states: whoever
// does first moves the state back to its entry, so that all else in this package knows nothing of
// this. A hot that is over stays so. Whoever still has it finds that, and takes the lock.
type hot struct {
	policy  *policy
	hash    uint64
	base    int64         // the instant that the state counts from
	refused atomic.Uint32 // that of the entry
	_       [36]byte      // keeps what each charge writes on a cache line of its own
	state   atomic.Int64  // of policy.level, or over
	_       [56]byte
}

const (
	over = math.MinInt64

	// So many calls in a row about one key of a shard make it hot. That takes an allocation,
	// for which as many calls without the lock save enough.
	hotAfter = 32
)

// is reports whether h is of the policy and key.
func (h *hot) is(p *policy, hash uint64) bool {
	return h != nil && h.hash == hash && h.policy == p
}

// answer answers a question of one charge if h is of its policy and key, unless it is over. h may
// be nil.
func (h *hot) answer(s *Store, q *store.Question, p *policy, key uint64) bool {
	if !h.is(p, mix(key, p.hash)) {
		return false
	}
	at, x, admitted, ok := h.take(s, q.Charges[0].N)
	if ok {
		q.Result.Start(at, store.SourceStore)
		q.Result.Allowed = admitted
		q.Result.Add(admitted, x)
	}
	return ok
}

// take decides about a charge of n units, unless h is over.
//
// A refusal must load the state first, then the time; an admission need not. So the state is
// loaded before only if a refusal is likely: otherwise processors that charge the key would take
// it from each other once more.
func (h *hot) take(s *Store, n int64) (now int64, x step.Reading, admitted, ok bool) {
	seen := int64(over) // none: decide does not refuse
	if h.refused.Load() > 0 {
		seen = h.state.Load()
	}
	for {
		now = s.now()
		at := now - h.base
		if uint64(at) > uint64(h.policy.level.Most()) {
			break
		}
		if x, admitted, ok = h.decide(seen, at, n); ok {
			if now%sweepEvery == 0 { // about as often as other calls do
				s.sweep(now)
			}
			return now, x, admitted, true
		}
		if seen = h.state.Load(); seen == over {
			break
		}
	}
	return 0, x, false, false
}

// decide decides at a time after the base that was read when the state had been seen. It fails
// if h is over, or n units do not fit into a state that was not seen, or has changed since: as
// of an instant before the latest charge, more seems to be in use than there ever was. For what
// fits that makes no difference: it fits at every later instant.
func (h *hot) decide(seen, at, n int64) (x step.Reading, admitted, ok bool) {
	l := &h.policy.level
	for v := h.state.Load(); v != over; v = h.state.Load() {
		used := l.Used(v, at)
		next, after, fits := l.Charge(used, at, n)
		switch {
		case fits:
			if noted := h.refused.Load(); noted > 0 {
				h.lapse(noted, used, at)
			}
			if h.state.CompareAndSwap(v, next) {
				return l.Read(after, 0), true, true
			}
		case v != seen:
			return x, false, false
		default:
			h.refuse(n)
			return l.Read(used, n), false, true
		}
	}
	return x, false, false
}

// lapse is that of a work, if a refusal is noted. That another call may be about to refuse does
// not matter: what is noted says only which key to evict.
func (h *hot) lapse(noted uint32, used step.Span, at int64) {
	if _, _, fits := h.policy.level.Charge(used, at, min(int64(noted), h.policy.step.Max())); fits {
		h.refused.CompareAndSwap(noted, 0)
	}
}

// refuse is that of an entry.
func (h *hot) refuse(n int64) {
	if n := uint32(min(n, math.MaxUint32)); n > h.refused.Load() {
		h.refused.Store(n)
	}
}

// warm notes a call about an entry that has a short state of the policy, and makes its key
// hot if no other is asked for, so many times.
func (sh *shard) warm(p *policy, e *entry, now int64, after uint32) {
	if sh.last != e.hash {
		sh.last, sh.row = e.hash, 0
	}
	if sh.row++; sh.row < after {
		return
	}
	v, ok := p.level.Of(e.words[:], now)
	if !ok {
		return
	}
	h := &hot{policy: p, hash: e.hash, base: now}
	h.refused.Store(e.refused)
	h.state.Store(v)
	sh.hot.Store(h)
}

// cool moves the state of a hot key back to its entry, and reports whether there was one.
// Then decisions may have been made at later instants than the caller has read.
func (sh *shard) cool() bool {
	h := sh.hot.Load()
	if h == nil {
		return false
	}
	v := h.state.Swap(over)
	sh.hot.Store(nil)
	sh.row = 0
	e := sh.table.find(h.hash)
	h.policy.level.Words(e.words[:], v, h.base)
	e.refused = h.refused.Load()
	return true
}
