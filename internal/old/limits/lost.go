package limits

import (
	"maps"
	"slices"
	"strings"
)

// A counted policy is one that counts, as far as it decides what becomes of usage.
type counted struct{ name, algorithm string }

// counts returns the policies that count of those that apply to a key.
func (s *section) counts(policies []policy) (all []counted) {
	for _, p := range policies {
		if !alone(p) {
			all = append(all, counted{nameOf(s, p), algorithm(p.Policy)})
		}
	}
	return all
}

// countsOf returns what counts of a plan.
func (s *section) countsOf(plan string) []counted { return s.counts(s.policiesOf(plan)) }

// without returns the policies that are not among others.
func without(all, others []counted) (rest []counted) {
	for _, c := range all {
		if !slices.Contains(others, c) {
			rest = append(rest, c)
		}
	}
	return rest
}

// losing returns what loses usage where some policies take the place of others, if anything does:
// one ends, and another begins, which counts anew. Nothing else shows that a name was changed. What
// only ends was removed, and what only begins was added.
func losing(before, after []counted) (was, is string) {
	gone, begun := without(before, after), without(after, before)
	if len(gone) == 0 || len(begun) == 0 {
		return "", ""
	}
	return listOf(gone), listOf(begun)
}

func listOf(all []counted) string {
	var texts []string
	for _, c := range all {
		texts = append(texts, c.name+" ("+c.algorithm+")")
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// lost adds what loses usage: of each plan, of requests of none, and of each override that changes.
// An override that stays as it is loses only what its plan does.
func (d *differ) lost(was, is *section) {
	add := func(c Change, before, after []counted) {
		if c.Was, c.Is = losing(before, after); c.Was != "" {
			c.What, c.Lost = c.What+", what counts", true
			d.add(is, c)
		}
	}
	var pairs []pair
	for _, name := range was.planNames() {
		p := pair{was.countsOf(name), is.countsOf(is.planOf(name))}
		add(Change{What: "plan " + name}, p.before, p.after)
		pairs = append(pairs, p)
	}
	none := pair{was.countsOf(was.standard), is.countsOf(is.standard)}
	if was.standard != is.standard {
		add(Change{What: wordDefault}, none.before, none.after)
	}
	moved := newMover(was, is, append(pairs, none, pair{})) // over unlimited, it is the override that counts
	before, after := d.reach(was), d.reach(is)
	for _, o := range changed(before, after) {
		id := [2]string{o.kind, o.value}
		p := moved.worst(before.find(id), after.find(id))
		add(Change{What: "override of a " + o.kind, Key: o.value, Line: o.place.line}, p.before, p.after)
	}
}

// changed returns the overrides that are others, the later of two, or are there no more.
func changed(before, after reach) []*override {
	var all []override
	for id, o := range after.exact {
		if was := before.exact[id]; was == nil || was.plan != o.plan || was.id != o.id {
			all = append(all, *o)
		}
	}
	for id, o := range before.exact {
		if after.exact[id] == nil {
			all = append(all, *o)
		}
	}
	return inOrder(all)
}

// planOf returns the plan of requests of that one.
func (s *section) planOf(name string) string {
	if s.has(name) {
		return name
	}
	return s.standard
}

// A pair is what counts before and after a change.
type pair struct{ before, after []counted }

// distinct returns each pair once.
func distinct(pairs []pair) (some []pair) {
	seen := make(map[[2]string]bool)
	for _, p := range pairs {
		if id := [2]string{listOf(p.before), listOf(p.after)}; !seen[id] {
			seen[id] = true
			some = append(some, p)
		}
	}
	return some
}

// A move is from an override to another, as far as it matters.
type move struct{ fromPlan, fromID, toPlan, toID string }

// A mover finds what moves lose. Each list has no pair twice, as there may be thousands of plans and
// of moves.
type mover struct {
	was, is         *section
	pairs           []pair // of the plans of requests
	changed         []pair // of these, without plans that stay; with unlimited
	befores, afters []pair // of which only that side matters
	known           map[move]pair
	before, after   []counted // memory
}

func newMover(was, is *section, pairs []pair) *mover {
	m := &mover{was: was, is: is, pairs: distinct(pairs), known: make(map[move]pair)}
	for _, p := range m.pairs {
		if len(p.before) == 0 || more(p.before, p.after) || more(p.after, p.before) {
			m.changed = append(m.changed, p)
		}
		m.befores = append(m.befores, pair{before: p.before})
		m.afters = append(m.afters, pair{after: p.after})
	}
	m.befores, m.afters = distinct(m.befores), distinct(m.afters)
	return m
}

// worst returns what counts before and after a move, of that plan of which it loses usage, if there
// is one.
func (m *mover) worst(from, to *override) pair {
	nothing := new(override)
	if from == nil {
		from = nothing
	}
	if to == nil {
		to = nothing
	}
	id := move{from.plan, from.id, to.plan, to.id}
	if id.fromPlan == id.toPlan && id.fromID == id.toID {
		return pair{}
	}
	if p, known := m.known[id]; known {
		return p
	}
	pairs := m.pairs
	switch {
	case from.plan != "" && to.plan != "":
		pairs = []pair{{}} // the request's plan does not matter
	case from.plan != "":
		pairs = m.afters
	case to.plan != "":
		pairs = m.befores
	case !lifts(from.policies) || !lifts(to.policies): // over a plan that stays, no more ends or begins than by itself
		pairs = m.changed
	}
	var lost pair
	a, b := m.was.layer(from), m.is.layer(to)
	for _, p := range pairs {
		m.before, m.after = a.over(m.before[:0], p.before), b.over(m.after[:0], p.after)
		if more(m.before, m.after) && more(m.after, m.before) {
			lost = pair{slices.Clone(m.before), slices.Clone(m.after)}
			break
		}
	}
	m.known[id] = lost
	return lost
}

// more reports whether a policy is not among others.
func more(all, others []counted) bool {
	return slices.ContainsFunc(all, func(c counted) bool { return !slices.Contains(others, c) })
}

// A layer is an override, as far as it decides what counts.
type layer struct {
	instead  bool      // its plan applies instead of the request's
	plan     []counted // of that plan
	policies bool      // it has some
	counts   []counted // of these
	lifts    string    // the name of the policy that it takes away
}

func (s *section) layer(o *override) layer {
	l := layer{policies: len(o.policies) > 0, counts: s.counts(o.policies)}
	if o.plan != "" {
		l.instead, l.plan = true, s.countsOf(o.plan)
	}
	if lifts(o.policies) {
		l.lifts = o.policies[0].Name()
	}
	return l
}

// over appends what counts of an override over a plan.
func (l *layer) over(all, plan []counted) []counted {
	if l.instead {
		plan = l.plan
	}
	switch {
	case !l.policies:
		return append(all, plan...)
	case len(l.counts) == 0 && l.lifts == "": // it applies instead
		return all
	}
	for _, c := range plan {
		if c.name != l.lifts && !slices.Contains(l.counts, c) {
			all = append(all, c)
		}
	}
	return append(all, l.counts...)
}

// over reports whether an override applies no more.
func (d *differ) over(o *override) bool { return !o.until.IsZero() && !o.until.After(d.now) }

// A reach is which override applies to whom. Those that begin later apply.
type reach struct {
	exact   map[[2]string]*override // by kind and value
	lengths []int                   // of the prefixes, the longest first
}

func (d *differ) reach(s *section) reach {
	x, lengths := reach{exact: make(map[[2]string]*override)}, make(map[int]bool)
	for i := range s.overrides {
		o := &s.overrides[i]
		if d.over(o) {
			continue
		}
		x.exact[[2]string{o.kind, o.value}] = o
		if o.kind == forPrefix {
			lengths[len(o.value)] = true
		}
	}
	x.lengths = slices.Collect(maps.Keys(lengths))
	sortLengths(x.lengths)
	return x
}

// find returns the override that applies to whom another is for, or nil: to a key, or to keys of
// which nothing but a prefix is known.
func (x reach) find(id [2]string) *override {
	if o := x.exact[id]; o != nil {
		return o
	}
	for _, n := range x.lengths {
		if n <= len(id[1]) {
			if o := x.exact[[2]string{forPrefix, id[1][:n]}]; o != nil {
				return o
			}
		}
	}
	return nil
}
