package limits

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headgate/headgate/core"
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
	table[*core.Limiter]

	root   *core.Limiter            // of which the others were made
	made   map[string]*core.Limiter // by their fingerprints
	shadow *core.Limiter            // nil: none
	shape  string                   // the fingerprint of shadow
}

type slotsTable struct {
	table[*core.Slots]

	root *core.Slots
	made map[int64]*core.Slots
}

// fingerprint tells policies apart that apply differently.
func fingerprint(s *section, policies []policy) string {
	var b strings.Builder
	for _, p := range policies {
		b.WriteString(nameOf(s, p))
		b.WriteByte(0) // names are printable
		b.WriteString(p.Named("").String())
		b.WriteByte(0)
	}
	return b.String()
}

// limiter checks policies that are put together of several.
func (r *reader) limiter(s *section, policies []policy, at place) {
	base, err := core.New(paper{}, s.name, bare(s.policiesOf(s.standard))...)
	if err == nil {
		_, err = base.With(bare(policies)...)
	}
	if err != nil {
		r.configFaults(err, at, nil)
	}
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
		if err != nil { // of what the store knows, and perhaps of usage under earlier documents
			t, err = b.limitTable(s, nil)
		}
		if err != nil {
			r.collect(err)
			continue
		}
		e.limits[name] = t
	}
	for _, name := range slices.Sorted(maps.Keys(d.slots)) {
		t, err := b.slotsTable(d.slots[name], before.slots[name])
		if err != nil {
			r.collect(err)
			continue
		}
		e.slots[name] = t
	}
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
// makes the lists of what it uses.
func (b *Book) require(e *edition, r *reader) {
	for _, l := range b.limits {
		e.limitsUsed = append(e.limitsUsed, e.limits[l.name])
	}
	for _, s := range b.slots {
		e.slotsUsed = append(e.slotsUsed, e.slots[s.name])
	}
	var limits, slots []string
	for _, l := range b.limits {
		limits = append(limits, l.name)
	}
	for _, s := range b.slots {
		slots = append(slots, s.name)
	}
	if b.initial != nil {
		limits = slices.AppendSeq(limits, maps.Keys(b.initial.limits))
		slots = slices.AppendSeq(slots, maps.Keys(b.initial.slots))
	}
	for _, used := range []struct {
		word  string
		names []string
		has   map[string]*section
	}{{wordLimits, limits, e.document.limits}, {wordSlots, slots, e.document.slots}} {
		slices.Sort(used.names)
		for _, name := range slices.Compact(used.names) {
			if used.has[name] == nil {
				r.add(&Fault{Path: used.word, Err: missing(used.word, name)})
			}
		}
	}
}

// A limitMaker makes the limiters of one limit.
type limitMaker struct {
	*limitTable

	section *section
	before  *limitTable
	r       *reader
}

// limitTable returns the table of a limit. The limiters are made of those before, if any, so
// that calls that wait are served in one order.
func (b *Book) limitTable(s *section, before *limitTable) (*limitTable, error) {
	m := limitMaker{&limitTable{made: make(map[string]*core.Limiter)}, s, before, &reader{}}
	standard := s.policiesOf(s.standard)
	id := fingerprint(s, standard)
	var err error
	switch {
	case before == nil:
		m.root, err = core.New(b.store, s.name, bare(standard)...)
	case before.made[id] != nil:
		m.root = before.made[id]
	default:
		m.root, err = before.root.With(bare(standard)...)
	}
	if err != nil {
		m.r.configFaults(err, s.planPlace(s.standard), standard)
		return nil, m.r.err()
	}
	m.made[id] = m.root
	m.standard, m.plans = m.root, make(map[string]*core.Limiter)
	for _, name := range append(s.planNames(), planBlocked, planUnlimited) {
		m.plans[name] = m.make(s.policiesOf(name), s.planPlace(name))
	}
	m.override(b)
	m.shadows(b)
	if err := m.r.err(); err != nil {
		return nil, err
	}
	return m.limitTable, nil
}

// make returns the limiter of these policies.
func (m *limitMaker) make(policies []policy, at place) *core.Limiter {
	id := fingerprint(m.section, policies)
	if l := m.made[id]; l != nil {
		return l
	}
	if m.before != nil && m.before.made[id] != nil {
		m.made[id] = m.before.made[id]
		return m.made[id]
	}
	l, err := m.root.With(bare(policies)...)
	if err != nil {
		m.r.configFaults(err, at, policies)
		return nil
	}
	m.made[id] = l
	return l
}

// override makes the overrides.
func (m *limitMaker) override(b *Book) {
	s := m.section
	all := make(map[string]*choices[*core.Limiter])
	m.start(s.overrides)
	for i := range s.overrides {
		o, e := &s.overrides[i], entry[*core.Limiter]{index: int32(i)}
		switch {
		case o.kind == forHash && b.hasher == nil:
			m.r.add(o.place.fault("it is for a hash: set the Secret of limits.Config"))
			continue
		case o.plan != "":
			e.only = m.make(s.over(o.plan, o.policies), o.place)
		default:
			id := fingerprint(s, o.policies)
			if all[id] == nil {
				all[id] = m.choices(o)
			}
			e.byPlan = all[id]
		}
		m.add(e)
	}
	sortLengths(m.lengths)
}

func sortLengths(lengths []int) {
	slices.Sort(lengths)
	slices.Reverse(lengths)
}

// choices returns what the policies of an override make of each plan.
func (m *limitMaker) choices(o *override) *choices[*core.Limiter] {
	c := &choices[*core.Limiter]{plans: make(map[string]*core.Limiter)}
	for _, name := range append(m.section.planNames(), planBlocked, planUnlimited) {
		c.plans[name] = m.make(m.section.over(name, o.policies), o.place)
	}
	c.standard = c.plans[m.section.standard]
	return c
}

// shadows makes the limiter of the shadow policies.
func (m *limitMaker) shadows(b *Book) {
	s := m.section
	if s.shadow == nil {
		return
	}
	m.shape = fingerprint(s, s.shadow.policies)
	if m.before != nil && m.before.shadow != nil && m.before.shape == m.shape {
		m.shadow = m.before.shadow
		return
	}
	var err error
	if m.shadow, err = core.New(b.store, s.name+shadowSuffix, bare(s.shadow.policies)...); err != nil {
		m.r.configFaults(err, s.shadow.place, s.shadow.policies)
	}
}

// slotsTable returns the table of slots.
func (b *Book) slotsTable(s *section, before *slotsTable) (*slotsTable, error) {
	t := &slotsTable{made: make(map[int64]*core.Slots)}
	r := &reader{}
	var err error
	if before != nil {
		t.root = before.root
	} else if b.slotStore == nil {
		r.add(s.place.fault("Open was given no store for slots"))
		return nil, r.err()
	} else if t.root, err = core.NewSlots(b.slotStore, s.name, s.slotsOf(s.standard)); err != nil {
		r.configFaults(err, s.place, nil)
		return nil, r.err()
	}
	made := func(n int64) *core.Slots {
		if before != nil && before.made[n] != nil {
			t.made[n] = before.made[n]
		}
		if t.made[n] == nil {
			if t.made[n], err = t.root.With(n); err != nil {
				r.configFaults(err, s.place, nil)
			}
		}
		return t.made[n]
	}
	t.plans = make(map[string]*core.Slots)
	for _, name := range append(s.planNames(), planBlocked, planUnlimited) {
		t.plans[name] = made(s.slotsOf(name))
	}
	t.standard = t.plans[s.standard]
	t.start(s.overrides)
	for i := range s.overrides {
		o, e := &s.overrides[i], entry[*core.Slots]{index: int32(i)}
		switch {
		case o.kind == forHash && b.hasher == nil:
			r.add(o.place.fault("it is for a hash: set the Secret of limits.Config"))
			continue
		case o.slots >= 0:
			e.only = made(o.slots)
		default:
			e.only = made(s.slotsOf(o.plan))
		}
		t.add(e)
	}
	sortLengths(t.lengths)
	return t, r.err()
}

// missing is the error about what a document has not.
func missing(word, name string) error {
	return fmt.Errorf("there is no %q among the %s, which the program uses", name, word)
}
