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
		p := pair{was.counts(was.policiesOf(name)), is.counts(is.policiesOf(is.planOf(name)))}
		add(Change{What: "plan " + name}, p.before, p.after)
		pairs = append(pairs, p)
	}
	none := pair{was.counts(was.policiesOf(was.standard)), is.counts(is.policiesOf(is.standard))}
	if was.standard != is.standard {
		add(Change{What: wordDefault}, none.before, none.after)
	}
	moved := mover{was: was, is: is, known: make(map[move]pair)}
	moved.pairs = distinct(append(pairs, none, pair{})) // the plans that every limit has count nothing
	for _, p := range moved.pairs {
		if len(p.before) == 0 || len(without(p.before, p.after))+len(without(p.after, p.before)) > 0 {
			moved.changed = append(moved.changed, p)
		}
	}
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

// A mover finds what moves lose.
type mover struct {
	was, is *section
	pairs   []pair // of the plans of requests
	changed []pair // of these, and of none that counts
	known   map[move]pair
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
	var lost pair
	pairs := m.pairs
	if from.plan == "" && to.plan == "" { // over a plan that stays, no more ends or begins than by itself
		pairs = m.changed
	}
	for _, p := range pairs {
		p = pair{m.was.meets(from, p.before), m.is.meets(to, p.after)}
		if was, _ := losing(p.before, p.after); was != "" {
			lost = p
			break
		}
	}
	m.known[id] = lost
	return lost
}

// meets returns what counts of an override over what counts of a request's plan.
func (s *section) meets(o *override, plan []counted) []counted {
	if o.plan != "" {
		plan = s.counts(s.policiesOf(o.plan))
	}
	switch own := s.counts(o.policies); {
	case len(o.policies) == 0:
		return plan
	case len(own) == 0: // it counts nothing, and applies instead
		return nil
	default:
		return append(without(plan, own), own...)
	}
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
// which nothing but a prefix is known. Which key has a hash is not known: no prefix is that of one.
func (x reach) find(id [2]string) *override {
	if o := x.exact[id]; o != nil || id[0] == forHash {
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
