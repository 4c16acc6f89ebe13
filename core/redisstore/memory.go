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
	memorySize = 1 << 14 // refusals that can be remembered: about 10 MB at most
	memoryKeys = 256     // bytes that the keys of one may have
	stripes    = 1 << 10
)

// A memory holds refusals until they end, so that a question that was just refused
// is refused again without a call. That is sound because others can only take; what
// this process gives back or resets is forgotten.
//
// Each question has one place, and a newer refusal replaces an older. Places and
// generations are shared by questions whose hashes fall together: then a refusal
// is forgotten too early, which costs a call.
type memory struct {
	max    time.Duration
	seed   maphash.Seed
	start  time.Time
	places [memorySize]atomic.Pointer[refusal]
	given  [stripes]atomic.Uint32 // generations: how often a key was given back or reset
}

// A refusal is never changed.
type refusal struct {
	charges []core.Charge
	age     uint64        // the sum of its keys' generations
	from    time.Duration // since start: when the answer came, by which its spans count
	until   time.Duration // its end, counted from when the question was sent
	result  core.Result
}

// A sighting is what is known of a question before it is sent.
type sighting struct {
	place *atomic.Pointer[refusal]
	age   uint64
	at    time.Duration // since start
}

func newMemory(limit time.Duration, seed maphash.Seed) *memory {
	return &memory{max: limit, seed: seed, start: time.Now()}
}

// hash is the same for all limiters of a name, whatever their policies: they share
// what is given back.
func (m *memory) hash(c *core.Charge) uint64 {
	return maphash.String(m.seed, c.Key) ^ planOf(c.Limiter).hash
}

func (m *memory) stripe(hash uint64) *atomic.Uint32 { return &m.given[hash%stripes] }

// recall returns the remembered answer, if there is one, and what remember needs
// if there is none.
func (m *memory) recall(cs []core.Charge) (s sighting, r core.Result, known bool) {
	var place, age uint64
	for i := range cs {
		h := m.hash(&cs[i])
		age += uint64(m.stripe(h).Load())
		place = place*31 + h + uint64(cs[i].N)
	}
	s = sighting{&m.places[place>>50], age, time.Since(m.start)}
	old := s.place.Load()
	if old == nil || s.at >= old.until || old.age != age || !slices.Equal(old.charges, cs) {
		return s, r, false
	}
	r = core.Result{At: old.result.At, Source: core.SourceCache}
	for i := range old.result.Len() { // a copy of its own: Age writes
		r.Add(old.result.Reading(i))
	}
	r.Age(int64((s.at - old.from) / time.Microsecond))
	return s, r, true
}

// remember keeps a refusal, unless a key was given back since it was sent.
func (m *memory) remember(s sighting, cs []core.Charge, r *core.Result) {
	var retry int64
	for i := range r.Len() {
		_, x := r.Reading(i)
		retry = max(retry, x.RetryAfter)
	}
	size := 0
	for i := range cs {
		if !planOf(cs[i].Limiter).remember {
			return // an attempt that is refused must be counted
		}
		if size += len(cs[i].Key); size > memoryKeys {
			return
		}
	}
	span := m.max
	if retry != step.Never {
		span = min(span, time.Duration(retry)*time.Microsecond)
	}
	var age uint64
	for i := range cs {
		age += uint64(m.stripe(m.hash(&cs[i])).Load())
	}
	if age != s.age {
		return
	}
	own := slices.Clone(cs)
	for i := range own {
		own[i].Key = strings.Clone(own[i].Key) // it may be a part of a long header
	}
	s.place.Store(&refusal{own, age, time.Since(m.start), s.at + span, *r})
}

// forget drops what is remembered of the keys. A nil memory has nothing to forget.
func (m *memory) forget(cs []core.Charge) {
	if m == nil {
		return
	}
	for i := range cs {
		m.stripe(m.hash(&cs[i])).Add(1)
	}
}
