package stats

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	places   = 128              // of keys, for each name: more than so many keys cannot each have 1/128 of the refusals
	period   = 15 * time.Minute // of a list
	hashSize = 12               // bytes of a hash that are shown
	maxShown = 128              // bytes of a key that are shown
)

// newHash returns a function that returns the beginning of the HMAC-SHA-256 of a key, under a random secret: nobody can
// look one up, and those of two processes differ. The secret is inside the function, so that printing a Stats does not
// show it.
func newHash() func(key string) string {
	secret := make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // it never fails
	pool := sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
	return func(key string) string {
		sum := pool.Get().(hash.Hash)
		defer pool.Put(sum)
		sum.Reset()
		sum.Write([]byte(key))
		var room [sha256.Size]byte
		return base64.RawURLEncoding.EncodeToString(sum.Sum(room[:0])[:hashSize])
	}
}

// shown returns what stands for a key. A key is cloned: it may be a part of a request, which would stay in memory with
// it.
func (s *Stats) shown(key string) string {
	if !s.config.ShowKeys {
		return s.hash(key)
	}
	if len(key) > maxShown {
		return strings.Clone(key[:maxShown]) + "…"
	}
	return strings.Clone(key)
}

// A top counts the keys that are refused most, in periods that begin with a refusal: what was refused long ago must not
// hide what is refused now. Whoever looks ends a period that is over: a refusal, or a reader. Keys are told apart by
// hashes of 64 bits with a random seed: nobody can choose keys that share a place.
type top struct {
	mu                sync.Mutex
	current, previous *sketch
}

// add counts a refusal of a key.
func (t *top) add(seen *Stats, now time.Time, key string) {
	hash := maphash.String(seen.seed, key)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	if t.current == nil {
		t.current = newSketch(now)
	}
	place, taken := t.current.find(hash)
	if taken {
		place.First = now
		place.Name = seen.shown(key) // only now, as a hash takes longer than all the rest
	}
	place.Refusals++
	place.Last = now
}

// turn ends a period that is over.
func (t *top) turn(now time.Time) {
	if t.current != nil && now.Sub(t.current.from) >= period {
		t.previous = t.current
		t.current = nil
	}
	if t.previous != nil && now.Sub(t.previous.from) >= 2*period {
		t.previous = nil
	}
}

// read returns what is counted in this period, and in the one before.
func (t *top) read(now time.Time) (current, last *topKeys) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	if t.current != nil {
		current = t.current.read(now)
	}
	if t.previous != nil {
		last = t.previous.read(t.previous.from.Add(period))
	}
	return current, last
}

// A sketch is the algorithm Space-Saving of Metwally, Agrawal and El Abbadi. A key that has no place takes the one with
// the smallest count, with that count, which is its error: it may have been refused so often before, or never. So a
// count is never too small, and too large by at most its error.
type sketch struct {
	from   time.Time
	places []place
	index  map[uint64]int // by hash
	total  uint64
}

// A place is one key, and its count.
type place struct {
	hash uint64
	refusedKey
}

// newSketch returns a sketch of a period that begins now.
func newSketch(now time.Time) *sketch { return &sketch{from: now, index: make(map[uint64]int)} }

// find returns the place of a key, and whether it is new there. The caller counts.
func (k *sketch) find(hash uint64) (p *place, taken bool) {
	k.total++
	// Most refusals are of keys that have a place. To look for the smallest count takes longer than to count.
	i, ok := k.index[hash]
	switch {
	case ok:
		return &k.places[i], false
	case len(k.places) < places:
		i = len(k.places)
		k.places = append(k.places, place{})
	// All places are looked at, which only refusals of keys without a place pay for.
	default:
		for j := range k.places {
			if k.places[j].Refusals < k.places[i].Refusals {
				i = j
			}
		}
		delete(k.index, k.places[i].hash)
	}
	p = &k.places[i]
	k.index[hash] = i
	*p = place{hash, refusedKey{Refusals: p.Refusals, Error: p.Refusals}}
	return p, true
}

// read returns the keys with the largest counts first.
func (k *sketch) read(until time.Time) *topKeys {
	t := &topKeys{From: k.from, Until: until, Refusals: k.total}
	for _, place := range k.places {
		t.Keys = append(t.Keys, place.refusedKey)
	}
	slices.SortFunc(t.Keys, func(a, b refusedKey) int {
		mostFirst := cmp.Compare(b.Refusals, a.Refusals)
		return cmp.Or(mostFirst, cmp.Compare(a.Error, b.Error), cmp.Compare(a.Name, b.Name))
	})
	return t
}
