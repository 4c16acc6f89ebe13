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

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// The operations of a store. Each is of charges of limiters that share a name.
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
	at      int64 // settle: the instant of the charge
	actual  int64 // settle
}

// An output is what it returned.
type output struct {
	result    store.Result // ask, peek
	uncovered int64        // settle
	now       int64        // settle: the store's instant; 0 if it is not known
}

// A state is that of a store. It is never changed.
type state struct {
	now   map[string]int64 // the instant of the latest operation of each key
	cells map[cellOf][]step.Kept
}

type cellOf struct {
	key, policy string
	algorithm   step.Algorithm
}

// model is a store that makes one operation at a time.
var model = porcupine.Model{
	Init: func() any { return &state{map[string]int64{}, map[cellOf][]step.Kept{}} },
	Step: func(s, in, out any) (bool, any) {
		i, o := in.(*input), out.(*output)
		next := s.(*state).clone()
		switch i.kind {
		case ask, peek:
			return next.decides(i, &o.result), next
		case settle:
			key := i.charges[0].Key
			next.now[key] = max(next.now[key], o.now)
			return next.settle(i) == o.uncovered, next
		default:
			for _, p := range i.charges[0].Limiter.Spec().Policies {
				delete(next.cells, identity(i.charges[0], &p))
			}
			return true, next
		}
	},
	Equal: func(a, b any) bool {
		x, y := a.(*state), b.(*state)
		if !maps.Equal(x.now, y.now) || len(x.cells) != len(y.cells) {
			return false
		}
		for id, k := range x.cells {
			if !slices.EqualFunc(k, y.cells[id], same) {
				return false
			}
		}
		return true
	},
	DescribeOperation: func(in, out any) string { return describe(in.(*input), out.(*output)) },
}

func (s *state) clone() *state {
	return &state{maps.Clone(s.now), maps.Clone(s.cells)}
}

func identity(c store.Charge, p *store.Policy) cellOf {
	return cellOf{c.Key, p.Name, p.Step.Numbers().Algorithm}
}

// same reports whether two states of a key under one policy's numbers are equal.
func same(a, b step.Kept) bool {
	return a.Step.Numbers() == b.Step.Numbers() && a.Until == b.Until && slices.Equal(a.State, b.State)
}

// A loaded is a copy of the states of a cell.
type loaded struct {
	id     cellOf
	own    step.Kept
	others []step.Kept
	beside bool // there were others
}

func (s *state) load(c store.Charge, p *store.Policy, now int64) *loaded {
	x := &loaded{id: identity(c, p)}
	kept := slices.Clone(s.cells[x.id])
	for i := range kept {
		kept[i].State = slices.Clone(kept[i].State)
	}
	if len(kept) == 1 && step.Alike(kept[0].Step, p.Step) {
		x.own = step.Kept{Step: step.Larger(p.Step, kept[0].Step), State: kept[0].State}
		return x
	}
	if len(kept) == 1 && kept[0].Step.FreshAt(kept[0].State) <= now {
		kept = nil
	} else if len(kept) == 1 {
		kept[0] = step.Keep(kept[0].Step, kept[0].State, now, nil)
	}
	x.own, x.others = step.Take(kept, p.Step, now)
	x.beside = len(kept) > 0
	return x
}

// save keeps the states, after n units were charged.
func (s *state) save(x *loaded, now, n int64) {
	own := step.Keep(x.own.Step, slices.Clone(x.own.State), now, x.others)
	if n > 0 {
		step.Count(x.others, own, now, n)
	}
	s.cells[x.id] = append([]step.Kept{own}, x.others...)
}

// decides reports whether the result is that of the state, which becomes that after it. The
// instants of a key never go back. A cached refusal has that of its process.
func (s *state) decides(i *input, r *store.Result) bool {
	cached := r.Source == store.SourceCache
	allowed := true
	var admits []bool
	for _, c := range i.charges {
		if !cached {
			if r.At < s.now[c.Key] {
				return false
			}
			s.now[c.Key] = r.At
		}
		for _, p := range c.Limiter.Spec().Policies {
			admits = append(admits, p.Step.Admits(s.load(c, &p, r.At).own.State, r.At, c.N))
			allowed = allowed && admits[len(admits)-1]
		}
	}
	if allowed != r.Allowed || r.Len() != len(admits) || cached && allowed {
		return false
	}
	if c := i.charges[0]; c.Extra > 0 { // there is no other
		extra := c.Extra
		for _, p := range c.Limiter.Spec().Policies {
			extra = min(extra, step.Room(p.Step, s.load(c, &p, r.At).own.State, r.At)-c.N)
		}
		if r.Extra != max(extra, 0) {
			return false
		}
	}
	reading := 0
	for _, c := range i.charges {
		for _, p := range c.Limiter.Spec().Policies {
			need, charged := c.N, int64(0)
			x := s.load(c, &p, r.At)
			if allowed {
				need, charged = 0, c.N+r.Extra
			}
			words := x.own.State
			switch {
			case i.kind == peek && allowed || cached:
			case allowed || p.Step.Numbers().CountDenied:
				if words == nil {
					words = make([]int64, p.Step.Words())
				}
				if allowed {
					words = p.Step.Charge(words, r.At, charged)
				} else {
					words = p.Step.Refuse(words, r.At, c.N)
				}
				if x.own.State = words; i.kind == ask {
					s.save(x, r.At, charged)
				}
			case i.kind == ask && x.beside && words != nil:
				s.save(x, r.At, 0)
			}
			admitted, got := r.Admitted(reading), *r.Reading(reading)
			want := p.Step.Read(words, r.At, need)
			if cached && got.Remaining < want.Remaining { // the units that time has freed are not in it
				got.Remaining, got.NextAfter, got.ResetAfter = want.Remaining, want.NextAfter, want.ResetAfter
			}
			if admitted != admits[reading] || got != want {
				return false
			}
			reading++
		}
	}
	return true
}

func (s *state) settle(i *input) (uncovered int64) {
	c := i.charges[0]
	now := s.now[c.Key]
	for _, p := range c.Limiter.Spec().Policies {
		x := s.load(c, &p, now)
		words, changed, missing := step.Settle(p.Step, x.own.State, now, i.at, c.N, i.actual)
		uncovered = max(uncovered, missing)
		if changed {
			x.own.State = words
			s.save(x, now, max(i.actual-c.N-missing, 0))
		}
	}
	return uncovered
}

func describe(i *input, o *output) string {
	var b strings.Builder
	for _, c := range i.charges {
		fmt.Fprintf(&b, "%d and %d extra of %s", c.N, c.Extra, c.Key)
		for _, p := range c.Limiter.Spec().Policies {
			fmt.Fprintf(&b, ", %+v", p.Step.Numbers())
		}
		b.WriteString("; ")
	}
	switch i.kind {
	case settle:
		fmt.Fprintf(&b, "charged at %d, settled to %d at %d, %d uncovered", i.at, i.actual, o.now, o.uncovered)
	case reset:
		b.WriteString("reset")
	default:
		r := &o.result
		fmt.Fprintf(&b, "%s: %v, %d extra, at %d by the %v", [...]string{"asked", "peeked"}[i.kind], r.Allowed, r.Extra, r.At, r.Source)
		for j := range r.Len() {
			fmt.Fprintf(&b, ", %v %+v", r.Admitted(j), *r.Reading(j))
		}
	}
	return b.String()
}
