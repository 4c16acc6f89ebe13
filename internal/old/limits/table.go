package limits

import (
	"slices"
	"sync/atomic"
	"time"
)

// A table finds what applies to a plan and a key. T is a limiter or slots.
type table[T any] struct {
	names    []string // of the plans, and of those that every limit has
	plans    map[string]int32
	standard int32
	base     *choices[T]                 // of keys without an override
	make     func(*choices[T], int32) *T // what is used first

	keys     map[string]entry[T]
	prefixes map[string]entry[T]
	lengths  []int     // of the prefixes, the longest first
	begins   [256]bool // by the first byte of prefixes

	overrides []override
}

// An entry is an override. It is in the map itself, and what changes is elsewhere, so that a
// look-up misses the caches once less.
type entry[T any] struct {
	of    *choices[T]
	plan  int32 // anyPlan: that of the request
	index int32 // of the override
	dated bool
}

const anyPlan = -1

// choices are what an override makes of each plan. Overrides with the same policies share it. Of a
// document with many kinds of overrides and many plans, few pairs meet a key; so each is made when
// it is used first.
type choices[T any] struct {
	policies []policy                            // of the override; nil: the plans as they are
	cells    atomic.Pointer[[]atomic.Pointer[T]] // by plan; nil if none was used
}

// get returns what applies to a plan.
func (t *table[T]) get(c *choices[T], plan int32) *T {
	if cells := c.cells.Load(); cells != nil {
		if v := (*cells)[plan].Load(); v != nil {
			return v
		}
	}
	return t.make(c, plan)
}

// cell returns where what applies to a plan is kept. Whoever calls it has a lock.
func (t *table[T]) cell(c *choices[T], plan int32) *atomic.Pointer[T] {
	cells := c.cells.Load()
	if cells == nil {
		all := make([]atomic.Pointer[T], len(t.names))
		cells = &all
		c.cells.Store(cells)
	}
	return &(*cells)[plan]
}

// holds reports whether an override is in force.
func (t *table[T]) holds(e entry[T]) bool {
	if !e.dated {
		return true
	}
	now, o := time.Now(), &t.overrides[e.index]
	return (o.from.IsZero() || !now.Before(o.from)) && (o.until.IsZero() || now.Before(o.until))
}

// start prepares for the plans and overrides of a section; the overrides are then added.
func (t *table[T]) start(s *section) {
	t.names = append(s.planNames(), planBlocked, planUnlimited)
	t.plans = make(map[string]int32, len(t.names))
	for i, name := range t.names {
		t.plans[name] = int32(i)
	}
	t.standard, t.base = t.plans[s.standard], new(choices[T])
	t.overrides = s.overrides
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
	}
}

func set[V any](m *map[string]V, k string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[k] = v
}

// find returns the override that applies to a key, if there is one.
func (t *table[T]) find(key string) (e entry[T], found bool) {
	if e, found = t.keys[key]; found && t.holds(e) {
		return e, true
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
func (t *table[T]) choose(plan, key string) (v *T, known bool) {
	of, at := t.base, int32(anyPlan)
	if e, found := t.find(key); found {
		of, at = e.of, e.plan
	}
	if at != anyPlan {
		return t.get(of, at), true
	}
	if at, known = t.plans[plan]; !known {
		at, known = t.standard, plan == ""
	}
	return t.get(of, at), known
}
