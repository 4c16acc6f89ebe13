package redisstore

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

const (
	cacheBits       = 14 // of the hash that chooses an entry
	cacheSize       = 1 << cacheBits
	generationCount = 1 << 10

	// What an entry holds is bounded, so that all of them take at most 16 MB: those of 8
	// charges of a policy each. Those of one charge take 4 MB.
	maxCachedKey      = 256 // bytes of its keys
	maxCachedReadings = 8
)

// A refusalCache holds refusals until they end, so that a question that was just refused
// is refused again without a call. That is sound because other processes can only take
// more; what this process gives back or resets is invalidated.
//
// Each question has one entry, where a newer refusal replaces an older one. Entries and
// generations are shared by questions whose hashes collide: then a refusal is dropped
// too early, which costs a call.
type refusalCache struct {
	max     time.Duration
	seed    maphash.Seed
	start   time.Time
	entries [cacheSize]atomic.Pointer[refusal]

	// generations count, by the hash of the key, how often one was given back or reset.
	generations [generationCount]atomic.Uint32
}

// A refusal is never changed.
type refusal struct {
	charges    []core.Charge
	generation uint64        // the sum of those of the keys
	from       time.Duration // since start: when the answer came, from which its spans count
	until      time.Duration // its end, counted from when the question was sent
	result     core.Result
}

// A lookup is what get found out about a question that is not cached, for put.
type lookup struct {
	entry      *atomic.Pointer[refusal]
	generation uint64
	at         time.Duration // since start
}

func newRefusalCache(limit time.Duration, seed maphash.Seed) *refusalCache {
	return &refusalCache{max: limit, seed: seed, start: time.Now()}
}

// hash is the same for all limiters of a name, whatever their policies: they share
// what is given back.
func (c *refusalCache) hash(charge *core.Charge) uint64 {
	return maphash.String(c.seed, charge.Key) ^ noteOf(charge.Limiter).hash
}

func (c *refusalCache) generation(hash uint64) *atomic.Uint32 {
	return &c.generations[hash%generationCount]
}

// get returns the cached answer if there is one, and otherwise what put needs.
func (c *refusalCache) get(cs []core.Charge) (l lookup, r core.Result, found bool) {
	var hash, generation uint64
	for i := range cs {
		h := c.hash(&cs[i])
		generation += uint64(c.generation(h).Load())
		hash = hash*31 + h + uint64(cs[i].N)
	}
	l = lookup{&c.entries[hash>>(64-cacheBits)], generation, time.Since(c.start)}
	old := l.entry.Load()
	if old == nil || l.at >= old.until || old.generation != generation || !slices.Equal(old.charges, cs) {
		return l, r, false
	}
	r = core.Result{At: old.result.At, Source: core.SourceCache}
	for i := range old.result.Len() { // a copy, as Age writes
		r.Add(old.result.Reading(i))
	}
	r.Age(int64((l.at - old.from) / time.Microsecond))
	return l, r, true
}

// put caches a refusal, unless a key was given back since the lookup.
func (c *refusalCache) put(l lookup, cs []core.Charge, r *core.Result) {
	if r.Len() > maxCachedReadings {
		return
	}
	var retry int64
	for i := range r.Len() {
		_, x := r.Reading(i)
		retry = max(retry, x.RetryAfter)
	}
	size := 0
	for i := range cs {
		if !noteOf(cs[i].Limiter).cacheable {
			return // an attempt that is refused must be counted
		}
		if size += len(cs[i].Key); size > maxCachedKey {
			return
		}
	}
	span := c.max
	if retry != step.Never {
		span = min(span, time.Duration(retry)*time.Microsecond)
	}
	var generation uint64
	for i := range cs {
		generation += uint64(c.generation(c.hash(&cs[i])).Load())
	}
	if generation != l.generation {
		return
	}
	own := slices.Clone(cs)
	for i := range own {
		own[i].Key = strings.Clone(own[i].Key) // it may be a part of a long header
	}
	l.entry.Store(&refusal{own, generation, time.Since(c.start), l.at + span, *r})
}

// invalidate drops all refusals of the keys. A nil cache has none.
func (c *refusalCache) invalidate(cs []core.Charge) {
	if c == nil {
		return
	}
	for i := range cs {
		c.generation(c.hash(&cs[i])).Add(1)
	}
}
