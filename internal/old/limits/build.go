package limits

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// An edition is a document with all that it needs to decide. It does not change.
type edition struct {
	book     *Book
	document *Document
	limits   map[string]*limitTable
	slots    map[string]*slotsTable

	// Those that the program uses, by their index.
	limitsUsed []*limitTable
	slotsUsed  []*slotsTable
}

type limitTable struct {
	table[core.Limiter]

	section *section
	root    *core.Limiter                     // of all that this limit has had; it counts nothing
	kinds   map[string]*choices[core.Limiter] // by the fingerprints of the overrides' policies

	mu   sync.Mutex
	made map[string]*core.Limiter // by their fingerprints
}

type slotsTable struct{ table[int64] }

// fingerprint tells policies apart that apply differently.
func fingerprint(s *section, policies []policy) string {
	var b strings.Builder
	if lifts(policies) { // without the name, it applies otherwise
		b.WriteByte(0)
	}
	for _, p := range policies {
		b.WriteString(nameOf(s, p))
		b.WriteByte(0) // names are printable
		b.WriteString(p.Named("").String())
		b.WriteByte(0)
	}
	return b.String()
}

// edition returns the edition of a document. What is in the one before stays the same
// pointer, so that what is remembered for a limiter survives. before may be nil.
func (b *Book) edition(d *Document, before *edition) (*edition, error) {
	e := &edition{book: b, document: d, limits: make(map[string]*limitTable), slots: make(map[string]*slotsTable)}
	if before == nil {
		before = &edition{}
	}
	r := &reader{}
	for _, name := range slices.Sorted(maps.Keys(d.limits)) {
		s := d.limits[name]
		t, err := b.limitTable(s, before.limits[name])
		if err != nil {
			r.collect(err)
			continue
		}
		e.limits[name] = t
	}
	for _, name := range slices.Sorted(maps.Keys(d.slots)) {
		t, err := b.slotsTable(d.slots[name])
		if err != nil {
			r.collect(err)
			continue
		}
		e.slots[name] = t
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.require(e, r)
	if err := r.err(); err != nil {
		return nil, err
	}
	return e, nil
}

// collect adds faults that were collected elsewhere.
func (r *reader) collect(err error) {
	for _, f := range faultsOf(err) {
		r.add(f)
	}
}

// require adds a fault for all that the document has not although the program uses it, and
// makes the lists of what it uses. mu is held.
func (b *Book) require(e *edition, r *reader) {
	e.limitsUsed, e.slotsUsed = nil, nil
	for _, l := range b.limits {
		e.limitsUsed = append(e.limitsUsed, e.limits[l.name])
	}
	for _, s := range b.slots {
		e.slotsUsed = append(e.slotsUsed, e.slots[s.name])
	}
	p := b.uses()
	for _, used := range []struct {
		word  string
		names []string
		has   map[string]*section
	}{{wordLimits, p.Limits, e.document.limits}, {wordSlots, p.Slots, e.document.slots}} {
		for _, name := range used.names {
			if used.has[name] == nil {
				r.add(&Fault{Path: used.word, Err: missing(used.word, name)})
			}
		}
	}
}

// limitTable returns the table of a limit. The limiters are made of one root, so that calls that
// wait are served in one order, whatever the document says.
//
// Those of each plan, and of each override's policies by themselves, are made at once: a store may
// refuse them, and one that leases must know all policies of the name. What an override makes of a
// plan has no other policies.
func (b *Book) limitTable(s *section, before *limitTable) (*limitTable, error) {
	t := &limitTable{section: s, made: make(map[string]*core.Limiter), kinds: make(map[string]*choices[core.Limiter])}
	r := &reader{}
	if before != nil {
		t.root = before.root
	} else {
		var err error
		if t.root, err = core.New(b.store, s.name, core.Unlimited()); err != nil {
			r.configFaults(err, s.planPlace(s.standard), nil)
			return nil, r.err()
		}
	}
	t.start(s)
	t.make = t.first
	t.override()
	if before != nil {
		t.inherit(before)
	}
	try := func(policies []policy) error {
		_, err := t.root.With(bare(policies)...)
		return err
	}
	keep := func(policies []policy) error {
		_, err := t.limiter(policies)
		return err
	}
	r.fitPlans(s, keep)
	everywhere := r.fitOverrides(s, keep, try)
	f := &fitter{b.store, s.name, func(plan, o member) bool {
		err := try(s.merged(plan.policies, o.policies))
		if err != nil {
			r.configFaults(err, o.override.place, nil)
		}
		return err != nil
	}, make(map[*override]bool)}
	f.fit(t.members(everywhere))
	if err := r.err(); err != nil {
		return nil, err
	}
	return t, nil
}

// override adds the overrides.
func (t *limitTable) override() {
	for i := range t.section.overrides {
		o, e := &t.section.overrides[i], entry[core.Limiter]{of: t.base, plan: anyPlan, index: int32(i)}
		if o.plan != "" {
			e.plan = t.plans[o.plan]
		}
		if len(o.policies) > 0 {
			if t.kinds[o.id] == nil {
				t.kinds[o.id] = &choices[core.Limiter]{policies: o.policies}
			}
			e.of = t.kinds[o.id]
		}
		t.add(e)
	}
	sortLengths(t.lengths)
}

func sortLengths(lengths []int) {
	slices.Sort(lengths)
	slices.Reverse(lengths)
}

// inherit takes over the limiters of an earlier table that this one has too, so that what is
// remembered for them survives.
func (t *limitTable) inherit(before *limitTable) {
	before.mu.Lock()
	defer before.mu.Unlock()
	take := func(policies []policy) {
		id := fingerprint(t.section, policies)
		if l := before.made[id]; l != nil {
			t.made[id] = l
		}
	}
	for _, name := range t.names {
		take(t.section.policiesOf(name))
	}
	for id, c := range t.kinds {
		take(c.policies)
		if before.kinds[id] == nil {
			continue
		}
		cells := before.kinds[id].cells.Load()
		for i := 0; cells != nil && i < len(*cells); i++ {
			if name := before.names[i]; (*cells)[i].Load() != nil && t.section.has(name) {
				take(t.section.over(name, c.policies))
			}
		}
	}
}

// limiter returns the limiter of these policies. t.mu is held, or nobody has the table yet.
func (t *limitTable) limiter(policies []policy) (*core.Limiter, error) {
	id := fingerprint(t.section, policies)
	if l := t.made[id]; l != nil {
		return l, nil
	}
	l, err := t.root.With(bare(policies)...)
	if err == nil {
		t.made[id] = l
	}
	return l, err
}

// first makes what an override makes of a plan, when it is used first.
func (t *limitTable) first(c *choices[core.Limiter], plan int32) *core.Limiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	cell := t.cell(c, plan)
	if l := cell.Load(); l != nil {
		return l
	}
	l, err := t.limiter(t.section.over(t.names[plan], c.policies))
	if err != nil { // see fitter
		panic(fmt.Sprintf("headgate: limits: the store refuses together what it took apart: %v", err))
	}
	cell.Store(l)
	return l
}

// members returns the plans, and these overrides, that are merged and have no fault by themselves.
func (t *limitTable) members(everywhere []*override) (plans, overrides []member) {
	add := func(to *[]member, o *override, policies []policy) {
		if l := t.made[fingerprint(t.section, policies)]; l != nil && !alone(policies[0]) {
			*to = append(*to, member{o, policies, l.Prepared().Spec().Policies})
		}
	}
	for _, name := range t.section.planNames() {
		add(&plans, nil, t.section.plans[name].policies)
	}
	for _, o := range everywhere {
		add(&overrides, o, o.policies)
	}
	return plans, overrides
}

// slotsTable returns the table of slots.
func (b *Book) slotsTable(s *section) (*slotsTable, error) {
	if b.noSlots {
		r := &reader{}
		r.add(s.place.fault("Open was given no store for slots"))
		return nil, r.err()
	}
	t := &slotsTable{}
	t.start(s)
	for i, name := range t.names {
		n := s.slotsOf(name)
		t.cell(t.base, int32(i)).Store(&n)
	}
	own := make(map[int64]*choices[int64]) // what overrides have instead of a plan
	for i := range s.overrides {
		o, e := &s.overrides[i], entry[int64]{of: t.base, index: int32(i)}
		switch {
		case o.slots < 0:
			e.plan = t.plans[o.plan]
		default:
			if own[o.slots] == nil {
				cells := make([]atomic.Pointer[int64], 1)
				cells[0].Store(&o.slots)
				own[o.slots] = new(choices[int64])
				own[o.slots].cells.Store(&cells)
			}
			e.of = own[o.slots]
		}
		t.add(e)
	}
	sortLengths(t.lengths)
	return t, nil
}

// uses returns the names that a document must have. mu is held.
func (b *Book) uses() (p Program) {
	p = Program{Limits: slices.Clone(b.needs.Limits), Slots: slices.Clone(b.needs.Slots)}
	for _, l := range b.limits {
		p.Limits = append(p.Limits, l.name)
	}
	for _, s := range b.slots {
		p.Slots = append(p.Slots, s.name)
	}
	for _, names := range []*[]string{&p.Limits, &p.Slots} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return p
}

// program returns what the program has and uses.
func (b *Book) program() Program {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.uses()
	p.Store, p.NoSlots = store.KindOf(b.store), b.noSlots
	return p
}

// missing is the error about what a document has not.
func missing(word, name string) error {
	return fmt.Errorf("there is no %q among the %s, which the program uses", name, word)
}
