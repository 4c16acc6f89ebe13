// Package linearizability tests that stores are linearizable: each operation takes effect at
// one moment between its call and its return, as if the store made one at a time. The
// sequential model is package step.
package linearizability

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// The operations of a store. Each is of charges of limiters that share a name. Those of ask and peek
// may be of 0 units, or anyway.
const (
	ask = iota
	peek
	settle // one charge
	reset  // one key
)

// An input is what an operation was called with.
type input struct {
	kind    int
	charges []store.Charge
	extra   int64 // ask, peek
}

// An output is what it returned.
type output struct {
	result    store.Result // ask, peek
	uncovered []int64      // of each charge that is settled, or anyway
	now       int64        // settle: the store's instant; 0 if it is not known
	ofPeek    bool         // a cached refusal is that of a peek before
}

// A state is that of a store. It is never changed.
type state struct {
	now  map[string]int64 // the instant of the latest operation of each key
	kept map[cellOf][]step.Variant
}

type cellOf struct {
	key, policy string
	algorithm   step.Algorithm
}

// model is a store that makes one operation at a time.
var model = porcupine.Model{
	Init: func() any { return &state{map[string]int64{}, map[cellOf][]step.Variant{}} },
	Step: func(s, in, out any) (bool, any) {
		i, o := in.(*input), out.(*output)
		next := s.(*state).clone()
		switch i.kind {
		case ask, peek:
			return next.decides(i, o), next
		case settle:
			key := i.charges[0].Key
			next.now[key] = max(next.now[key], o.now)
			return next.settle(i) == o.uncovered[0], next
		default:
			for _, p := range i.charges[0].Limiter.Spec().Policies {
				delete(next.kept, identity(i.charges[0], &p))
			}
			return true, next
		}
	},
	Equal: func(a, b any) bool {
		x, y := a.(*state), b.(*state)
		if !maps.Equal(x.now, y.now) || len(x.kept) != len(y.kept) {
			return false
		}
		for id, k := range x.kept {
			if !slices.EqualFunc(k, y.kept[id], same) {
				return false
			}
		}
		return true
	},
	DescribeOperation: func(in, out any) string { return describe(in.(*input), out.(*output)) },
}

func (s *state) clone() *state {
	return &state{maps.Clone(s.now), maps.Clone(s.kept)}
}

func identity(c store.Charge, p *store.Policy) cellOf {
	return cellOf{c.Key, p.Name, p.Step.Numbers().Algorithm}
}

// same reports whether two states of a key under one policy's numbers are equal.
func same(a, b step.Variant) bool {
	return a.Step.Numbers() == b.Step.Numbers() && a.Until == b.Until && slices.Equal(a.State, b.State)
}

// cells returns the cells of charges, of copies of the states.
func (s *state) cells(cs []store.Charge) (cells []step.Cell, ids []cellOf) {
	for _, c := range cs {
		for _, p := range c.Limiter.Spec().Policies {
			id := identity(c, &p)
			cell := step.NewCell(p.Step, c.N, s.kept[id])
			cell.Anyway = c.Anyway
			cells, ids = append(cells, cell), append(ids, id)
		}
	}
	return cells, ids
}

// save keeps the states of cells that have changed.
func (s *state) save(cells []step.Cell, ids []cellOf) {
	for i := range cells {
		if c := &cells[i]; c.Changed {
			s.kept[ids[i]] = c.Variants()
		}
	}
}

// decides reports whether the output is that of the state, which becomes that after it. The
// instants of a key never go back. A cached refusal has that of its process, and counts nothing.
func (s *state) decides(i *input, o *output) bool {
	r := &o.result
	if o.ofPeek {
		return true
	}
	cached := r.Source == store.SourceCache
	if cached && i.counts() {
		return false
	}
	mode := step.Allow
	if cached || i.kind == peek {
		mode = step.Peek
	}
	for _, c := range i.charges {
		if cached {
			continue
		}
		if r.At < s.now[c.Key] {
			return false
		}
		s.now[c.Key] = r.At
	}
	cells, ids := s.cells(i.charges)
	allowed, extra := step.Decide(cells, r.At, mode, i.extra)
	if allowed != r.Allowed || extra != r.Extra || r.Len() != len(cells) || cached && allowed {
		return false
	}
	for j := range cells {
		got, want := *r.Reading(j), cells[j].Reading
		if cached && got.Remaining < want.Remaining { // the units that time has freed are not in it
			got.Remaining, got.NextAfter, got.ResetAfter = want.Remaining, want.NextAfter, want.ResetAfter
		}
		if r.Admitted(j) != cells[j].Admitted || got != want {
			return false
		}
	}
	s.save(cells, ids)
	return uncovered(i, cells, o)
}

// uncovered reports whether the output has what of the charges had no room.
func uncovered(i *input, cells []step.Cell, o *output) bool {
	for j, c := range i.charges {
		var most int64
		for range c.Limiter.Spec().Policies {
			most, cells = max(most, cells[0].Uncovered), cells[1:]
		}
		if c.Anyway && o.uncovered[j] != most {
			return false
		}
	}
	return true
}

// counts reports whether it counts units that have been used.
func (i *input) counts() bool {
	return slices.ContainsFunc(i.charges, func(c store.Charge) bool { return c.Anyway })
}

func (s *state) settle(i *input) (uncovered int64) {
	c := i.charges[0]
	cells, ids := s.cells(i.charges)
	for j := range cells {
		uncovered = max(uncovered, cells[j].Settle(s.now[c.Key], c.At, c.N, c.Actual))
	}
	s.save(cells, ids)
	return uncovered
}

func describe(i *input, o *output) string {
	var b strings.Builder
	for _, c := range i.charges {
		fmt.Fprintf(&b, "%d (anyway: %t) and %d extra of %s", c.N, c.Anyway, i.extra, c.Key)
		for _, p := range c.Limiter.Spec().Policies {
			fmt.Fprintf(&b, ", %+v", p.Step.Numbers())
		}
		b.WriteString("; ")
	}
	switch i.kind {
	case settle:
		fmt.Fprintf(&b, "charged at %d, settled to %d at %d, %v uncovered", i.charges[0].At, i.charges[0].Actual, o.now, o.uncovered)
	case reset:
		b.WriteString("reset")
	default:
		r := &o.result
		fmt.Fprintf(&b, "%s: %v, %d extra, %v uncovered, at %d by the %v", [...]string{"asked", "peeked"}[i.kind], r.Allowed, r.Extra, o.uncovered, r.At, r.Source)
		for j := range r.Len() {
			fmt.Fprintf(&b, ", %v %+v", r.Admitted(j), *r.Reading(j))
		}
	}
	return b.String()
}
