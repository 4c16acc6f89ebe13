// Package reference is a store for tests that is plainly right: a map of states, one
// question at a time, package step for the arithmetic, and an instant that it is told.
package reference

import (
	"context"
	"slices"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A Store is the reference. It is not safe for concurrent use.
type Store struct {
	// Forgets makes questions change nothing, as those do that are answered from memory.
	Forgets bool

	now    func() int64
	states map[cellOf][]step.Kept // the one that was used last first
}

// cellOf is what identifies a state.
type cellOf struct {
	limiter, key, policy string
	algorithm            step.Algorithm
}

// New returns a Store without states.
func New(now func() int64) *Store {
	return &Store{now: now, states: make(map[cellOf][]step.Kept)}
}

func identity(c store.Charge, p *store.Policy) cellOf {
	return cellOf{c.Limiter.Spec().Name, c.Key, p.Name, p.Step.Numbers().Algorithm}
}

// A loaded is a copy of the states of a cell.
type loaded struct {
	id      cellOf
	own     step.Kept
	others  []step.Kept
	changed bool // there were others, or it was brought back
}

func (r *Store) load(c store.Charge, p *store.Policy) *loaded {
	x := &loaded{id: identity(c, p)}
	kept := slices.Clone(r.states[x.id])
	for i := range kept {
		kept[i].State = slices.Clone(kept[i].State)
	}
	if len(kept) == 1 && step.Alike(kept[0].Step, p.Step) {
		x.own = step.Kept{Step: step.Larger(p.Step, kept[0].Step), State: kept[0].State}
		x.changed = step.Redate(p.Step, &x.own, nil, r.now())
		return x
	}
	if len(kept) == 1 && kept[0].Step.FreshAt(kept[0].State) <= r.now() {
		kept = nil
	} else if len(kept) == 1 {
		kept[0] = step.Keep(kept[0].Step, kept[0].State, r.now(), nil)
	}
	x.own, x.others = step.Take(kept, p.Step, r.now())
	x.changed = len(kept) > 0
	step.Redate(p.Step, &x.own, x.others, r.now())
	return x
}

// save keeps the states, after n units were charged.
func (r *Store) save(x *loaded, n int64) {
	if r.Forgets {
		return
	}
	x.own = step.Keep(x.own.Step, x.own.State, r.now(), x.others)
	if n > 0 {
		step.Count(x.others, x.own, r.now(), n)
	}
	r.states[x.id] = append([]step.Kept{x.own}, x.others...)
}

// A spec is a limiter as the reference has prepared it.
type spec store.Spec

// Spec implements [store.Limiter].
func (s *spec) Spec() *store.Spec { return (*store.Spec)(s) }

// Observer implements [store.Store]. It returns nil.
func (*Store) Observer() *store.Observer { return nil }

// Prepare implements [store.Store].
func (r *Store) Prepare(s store.Spec) (store.Limiter, error) { return (*spec)(&s), nil }

// What is asked for.
const (
	ask = iota
	peek
	deny
)

// Decide implements [store.Store].
func (r *Store) Decide(_ context.Context, c store.Charge, peeks bool, result *store.Result) error {
	mode := ask
	if peeks {
		mode = peek
	}
	return r.decide([]store.Charge{c}, mode, result)
}

// DecideAll implements [store.Store].
func (r *Store) DecideAll(_ context.Context, cs []store.Charge, result *store.Result) error {
	return r.decide(cs, ask, result)
}

// PeekAll is DecideAll, but changes nothing.
func (r *Store) PeekAll(_ context.Context, cs []store.Charge, result *store.Result) error {
	return r.decide(cs, peek, result)
}

// DenyAll counts an attempt that is refused elsewhere, where policies count that.
func (r *Store) DenyAll(_ context.Context, cs []store.Charge, result *store.Result) error {
	return r.decide(cs, deny, result)
}

func (r *Store) decide(cs []store.Charge, mode int, result *store.Result) error {
	now := r.now()
	*result = store.Result{At: now, Allowed: mode != deny, Source: store.SourceStore}
	var admits []bool
	for _, c := range cs {
		policies := c.Limiter.Spec().Policies
		for i := range policies {
			ok := policies[i].Step.Admits(r.load(c, &policies[i]).own.State, now, c.N)
			admits = append(admits, ok)
			result.Allowed = result.Allowed && ok
		}
	}
	if result.Allowed && len(cs) == 1 {
		result.Extra = cs[0].Extra
		for _, p := range cs[0].Limiter.Spec().Policies {
			result.Extra = min(result.Extra, step.Room(p.Step, r.load(cs[0], &p).own.State, now)-cs[0].N)
		}
	}
	for _, c := range cs {
		policies := c.Limiter.Spec().Policies
		for i := range policies {
			p, need, charged := &policies[i], c.N, int64(0)
			if result.Allowed {
				need, charged = 0, c.N+result.Extra
			}
			x := r.load(c, p)
			s := &x.own.State
			switch {
			case mode == peek && (result.Allowed || !p.Step.Numbers().CountDenied):
			case result.Allowed || p.Step.Numbers().CountDenied:
				if *s == nil {
					*s = make([]int64, p.Step.Words())
				}
				if result.Allowed {
					*s = p.Step.Charge(*s, now, charged)
				} else {
					*s = p.Step.Refuse(*s, now, c.N)
				}
				if mode != peek {
					r.save(x, charged)
				}
			case x.changed && *s != nil:
				r.save(x, 0)
			}
			result.Add(admits[0], p.Step.Read(*s, now, need))
			admits = admits[1:]
		}
	}
	return nil
}

// Settle implements [store.Store].
func (r *Store) Settle(_ context.Context, ss []store.Settlement) error {
	for i := range ss {
		t := &ss[i]
		policies := t.Limiter.Spec().Policies
		for j := range policies {
			x := r.load(t.Charge, &policies[j])
			state, changed, uncovered := step.Settle(policies[j].Step, x.own.State, r.now(), t.At, t.N, t.Actual)
			t.Uncovered = max(t.Uncovered, uncovered)
			if changed {
				x.own.State = state
				r.save(x, max(t.Actual-t.N-uncovered, 0))
			}
		}
	}
	return nil
}

// Reset implements [store.Store].
func (r *Store) Reset(_ context.Context, l store.Limiter, key string) error {
	c := store.Charge{Limiter: l, Key: key}
	for i := range l.Spec().Policies {
		delete(r.states, identity(c, &l.Spec().Policies[i]))
	}
	return nil
}
