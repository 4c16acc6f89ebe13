package remote

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

const (
	cacheBits = 14 // of the hash that chooses an entry
	cacheSize = 1 << cacheBits
	markCount = 1 << 16

	// What an entry holds is bounded, so that all of them take at most 16 MB: those of 8
	// charges of a policy each. Those of one charge take 4 MB. The marks take 512 kB.
	maxCachedKey      = 256 // bytes of its keys
	maxCachedReadings = 8

	// A mark has, from its low bits: how many operations are in flight; whether they are of
	// several plans; the plan that began last, as a hash; and the number of changes.
	flightBits = 20
	mixed      = 1 << flightBits
	planBits   = 16
)

// A refusal is never changed.
type refusal struct {
	charges []asked
	version uint64        // the sum of those of the keys
	from    time.Duration // since start: when the answer came, from which its spans count
	until   time.Duration // its end, counted from when the question was sent
	result  store.Result
}

// An asked is a charge as it was refused.
type asked struct {
	limiter *store.Limiter
	key     string
	n       int64
}

// A lookup is what get found out about a question.
type lookup struct {
	entry   *atomic.Pointer[refusal]
	hash    uint64
	version uint64        // of the keys
	at      time.Duration // since start
	cached  *refusal      // that still holds, as far as is known; nil if there is none
	busy    bool          // an operation that may change that is in flight
}

// hash is the same for all limiters of a name, whatever their policies: they share
// the state.
func (c *Refusals) hash(charge *store.Charge) uint64 {
	return maphash.String(c.seed, charge.Key) ^ c.prepared(charge.Limiter).hash
}

func (c *Refusals) mark(charge *store.Charge) *atomic.Uint64 {
	return &c.marks[c.hash(charge)%markCount]
}

// version returns a number that grows with each change, and ends with the plan.
func version(mark uint64) uint64 { return mark >> (flightBits + 1) }

// changed returns the mark after a change by a plan.
func changed(mark, plan uint64) uint64 {
	changes := version(mark)>>planBits + 1
	return (changes<<planBits|plan)<<(flightBits+1) | mark%(mixed<<1)
}

// version returns the sum of those of the keys.
func (c *Refusals) version(cs []store.Charge) (sum uint64) {
	for i := range cs {
		sum += version(c.mark(&cs[i]).Load())
	}
	return sum
}

// get looks a question up.
func (c *Refusals) get(cs []store.Charge) (l lookup) {
	for i := range cs {
		c.see(&l, &cs[i])
	}
	c.find(&l, len(cs))
	for i := range cs {
		if l.cached != nil && !l.cached.charges[i].is(&cs[i]) {
			l.cached = nil
		}
	}
	return l
}

// see adds a charge to what is looked up.
func (c *Refusals) see(l *lookup, charge *store.Charge) {
	h := c.hash(charge)
	mark := c.marks[h%markCount].Load()
	l.version += version(mark)
	l.busy = l.busy || mark%mixed > 0
	l.hash = (l.hash + h + uint64(charge.N)) * 0x9e3779b97f4a7c15 // spreads n to the high bits
}

// find sets cached to what is in the place of a question of so many charges.
func (c *Refusals) find(l *lookup, charges int) {
	l.entry, l.at = &c.entries[l.hash>>(64-cacheBits)], time.Since(c.start)
	old := l.entry.Load()
	if old != nil && l.at < old.until && old.version == l.version && len(old.charges) == charges {
		l.cached = old
	}
}

// is reports whether a charge is refused alike: an Extra has no part in that.
func (a *asked) is(c *store.Charge) bool {
	return a.limiter == c.Limiter && a.n == c.N && a.key == c.Key
}

// answer writes the cached answer, as of the lookup, to r.
func (l *lookup) answer(r *store.Result) {
	old := l.cached
	r.Start(old.result.At, store.SourceCache)
	r.AddAll(&old.result) // a copy, as Age writes
	r.Age(int64((l.at - old.from) / time.Microsecond))
}

// put caches a refusal, unless a key has changed since the lookup.
func (c *Refusals) put(l *lookup, q *store.Question) {
	cs, r := q.Charges, &q.Result
	if r.Len() > maxCachedReadings {
		return
	}
	span := c.max // until the first of the policies that refuse admits it
	for i := range r.Len() {
		if x := r.Reading(i); !r.Admitted(i) && x.RetryAfter != step.Never {
			span = min(span, time.Duration(x.RetryAfter)*time.Microsecond)
		}
	}
	size := 0
	for i := range cs {
		if !c.prepared(cs[i].Limiter).cacheable {
			return // an attempt that is refused must be counted
		}
		if size += len(cs[i].Key); size > maxCachedKey {
			return
		}
	}
	if c.version(cs) != l.version {
		return
	}
	own := make([]asked, len(cs))
	for i := range cs { // a key may be a part of a long header
		own[i] = asked{cs[i].Limiter, strings.Clone(cs[i].Key), cs[i].N}
	}
	l.entry.Store(&refusal{own, l.version, time.Since(c.start), l.at + span, *r})
}

// begin notes that an operation which may change the key is about to be sent.
func (c *Refusals) begin(charge *store.Charge) {
	plan, mark := c.prepared(charge.Limiter).plan, c.mark(charge)
	for {
		old := mark.Load()
		now := old + 1
		if version(old)%(1<<planBits) != plan {
			if now = changed(now, plan); old%mixed > 0 {
				now |= mixed
			}
		}
		if mark.CompareAndSwap(old, now) {
			return
		}
	}
}

// end notes that it has ended, and whether it wrote or may have.
func (c *Refusals) end(charge *store.Charge, wrote bool) {
	plan, mark := c.prepared(charge.Limiter).plan, c.mark(charge)
	for {
		old := mark.Load()
		now := old - 1
		if wrote || old&mixed != 0 {
			now = changed(now, plan)
		}
		if now%mixed == 0 {
			now &^= mixed
		}
		if mark.CompareAndSwap(old, now) {
			return
		}
	}
}
