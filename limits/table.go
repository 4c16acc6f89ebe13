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

	keys     map[string]*entry[T]
	hashes   map[[hashSize]byte]*entry[T]
	prefixes map[string]*entry[T]
	lengths  []int // of the prefixes, the longest first
}

// An entry is an override.
type entry[T any] struct {
	override *override
	only     T
	byPlan   *choices[T] // nil: only
	dated    bool
	matched  atomic.Bool
}

// choices are what an override makes of each plan. Overrides with the same policies share it.
type choices[T any] struct {
	plans    map[string]T
	standard T
}

// holds reports whether the override is in force.
func (e *entry[T]) holds() bool {
	if !e.dated {
		return true
	}
	now, o := time.Now(), e.override
	return (o.from.IsZero() || !now.Before(o.from)) && (o.until.IsZero() || now.Before(o.until))
}

// add adds an override. There is none for the same yet.
func (t *table[T]) add(e *entry[T]) {
	o := e.override
	e.dated = !o.from.IsZero() || !o.until.IsZero()
	switch o.kind {
	case forKey:
		set(&t.keys, o.value, e)
	case forPrefix:
		set(&t.prefixes, o.value, e)
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

// find returns the override that applies to a key, or nil.
func (t *table[T]) find(key string, h *hasher) *entry[T] {
	if e := t.keys[key]; e != nil && e.holds() {
		return e
	}
	if len(t.hashes) > 0 {
		if e := t.hashes[h.sum(key)]; e != nil && e.holds() {
			return e
		}
	}
	for _, n := range t.lengths {
		if n <= len(key) {
			if e := t.prefixes[key[:n]]; e != nil && e.holds() {
				return e
			}
		}
	}
	return nil
}

// choose returns what applies, and whether there is such a plan, if that matters.
func (t *table[T]) choose(plan, key string, h *hasher) (v T, known bool) {
	plans, standard := t.plans, t.standard
	if e := t.find(key, h); e != nil {
		if !e.matched.Load() {
			e.matched.Store(true)
		}
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
	collect := func(e *entry[T]) {
		if !e.matched.Load() {
			all = append(all, e.override)
		}
	}
	for _, e := range t.keys {
		collect(e)
	}
	for _, e := range t.hashes {
		collect(e)
	}
	for _, e := range t.prefixes {
		collect(e)
	}
	return all
}
