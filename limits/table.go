package limits

import (
	"encoding/hex"
	"slices"
	"sync/atomic"
	"time"
)

// A table finds what applies to a plan and a key. T is a limiter or slots.
type table[T any] struct {
	plans    map[string]T
	standard T

	keys     map[string]entry[T]
	hashes   map[[hashSize]byte]entry[T]
	prefixes map[string]entry[T]
	lengths  []int     // of the prefixes, the longest first
	begins   [256]bool // by the first byte of prefixes

	overrides []override
	matched   []atomic.Uint32 // a bit for each override
}

// An entry is an override. It is in the map itself, and what changes is elsewhere, so that a
// look-up misses the caches once less.
type entry[T any] struct {
	only   T
	byPlan *choices[T] // nil: only
	index  int32       // of the override
	dated  bool
}

// choices are what an override makes of each plan. Overrides with the same policies share it.
type choices[T any] struct {
	plans    map[string]T
	standard T
}

// holds reports whether an override is in force.
func (t *table[T]) holds(e entry[T]) bool {
	if !e.dated {
		return true
	}
	now, o := time.Now(), &t.overrides[e.index]
	return (o.from.IsZero() || !now.Before(o.from)) && (o.until.IsZero() || now.Before(o.until))
}

// match notes that an override has matched a key.
func (t *table[T]) match(e entry[T]) {
	word, bit := &t.matched[e.index/32], uint32(1)<<(e.index%32)
	if word.Load()&bit == 0 {
		word.Or(bit)
	}
}

// start prepares for these overrides, which are then added.
func (t *table[T]) start(overrides []override) {
	t.overrides = overrides
	t.matched = make([]atomic.Uint32, (len(overrides)+31)/32)
}

// add adds an override. There is none for the same yet.
func (t *table[T]) add(e entry[T]) {
	o := &t.overrides[e.index]
	e.dated = !o.from.IsZero() || !o.until.IsZero()
	switch o.kind {
	case forKey:
		set(&t.keys, o.value, e)
	case forPrefix:
		set(&t.prefixes, o.value, e)
		t.begins[o.value[0]] = true
		if !slices.Contains(t.lengths, len(o.value)) {
			t.lengths = append(t.lengths, len(o.value))
		}
	case forHash:
		var sum [hashSize]byte
		_, _ = hex.Decode(sum[:], []byte(o.value)) // it was checked
		set(&t.hashes, sum, e)
	}
}

func set[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

// find returns the override that applies to a key, if there is one.
func (t *table[T]) find(key string, h *hasher) (e entry[T], found bool) {
	if e, found = t.keys[key]; found && t.holds(e) {
		return e, true
	}
	if len(t.hashes) > 0 {
		if e, found = t.hashes[h.sum(key)]; found && t.holds(e) {
			return e, true
		}
	}
	if key == "" || !t.begins[key[0]] {
		return e, false
	}
	for _, n := range t.lengths {
		if n <= len(key) {
			if e, found = t.prefixes[key[:n]]; found && t.holds(e) {
				return e, true
			}
		}
	}
	return e, false
}

// choose returns what applies, and whether there is such a plan, if that matters.
func (t *table[T]) choose(plan, key string, h *hasher) (v T, known bool) {
	plans, standard := t.plans, t.standard
	if e, found := t.find(key, h); found {
		t.match(e)
		if e.byPlan == nil {
			return e.only, true
		}
		plans, standard = e.byPlan.plans, e.byPlan.standard
	}
	if plan == "" {
		return standard, true
	}
	if v, known = plans[plan]; known {
		return v, true
	}
	return standard, false
}

// unmatched appends the overrides that have matched no key.
func (t *table[T]) unmatched(all []*override) []*override {
	for i := range t.overrides {
		if t.matched[i/32].Load()&(1<<(i%32)) == 0 {
			all = append(all, &t.overrides[i])
		}
	}
	return all
}
