package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

// A reference is a store that is obviously correct: a map of states, one call at a time,
// the arithmetic of package step, and a clock that is passed in.
type reference struct {
	now    func() int64
	states map[identity]kept
}

// An identity identifies a state.
type identity struct {
	limiter, key, policy string
	algorithm            step.Algorithm
}

type kept struct {
	numbers step.Numbers
	words   []int64
}

func newReference(now func() int64) *reference {
	return &reference{now: now, states: make(map[identity]kept)}
}

func identify(c core.Charge, cell *core.Cell) identity {
	return identity{c.Limiter.Name(), c.Key, cell.Name, cell.Step.Numbers().Algorithm}
}

// load returns a copy of a state, converted to the parameters of the cell's step; the
// parameters that it was stored with; and whether the copy depends on the instant.
func (r *reference) load(c core.Charge, cell *core.Cell) (state []int64, from step.Numbers, dated bool) {
	k, ok := r.states[identify(c, cell)]
	if !ok {
		return nil, cell.Step.Numbers(), false
	}
	state = slices.Clone(k.words)
	if k.numbers != cell.Step.Numbers() {
		state, dated = cell.Step.Adopt(state, r.now(), k.numbers)
	}
	return state, k.numbers, dated
}

func (r *reference) save(c core.Charge, cell *core.Cell, state []int64) {
	r.states[identify(c, cell)] = kept{cell.Step.Numbers(), state}
}

func (r *reference) decide(cs []core.Charge, peek bool) core.Result {
	now := r.now()
	result := core.Result{At: now, Allowed: true, Source: core.SourceStore}
	var admits []bool
	for _, c := range cs {
		for i := range c.Limiter.Cells() {
			cell := &c.Limiter.Cells()[i]
			state, _, _ := r.load(c, cell)
			ok := cell.Step.Admits(state, now, c.N)
			admits = append(admits, ok)
			result.Allowed = result.Allowed && ok
		}
	}
	for _, c := range cs {
		for i := range c.Limiter.Cells() {
			cell, need := &c.Limiter.Cells()[i], c.N
			state, _, dated := r.load(c, cell)
			if result.Allowed {
				need = 0
			}
			if !peek && (result.Allowed || cell.CountDenied || dated) {
				if state == nil {
					state = make([]int64, cell.Step.Words())
				}
				if result.Allowed {
					state = cell.Step.Charge(state, now, c.N)
				} else if cell.CountDenied {
					state = cell.Step.Refuse(state, now, c.N)
				}
				r.save(c, cell, state)
			}
			result.Add(admits[0], cell.Step.Read(state, now, need))
			admits = admits[1:]
		}
	}
	return result
}

func (r *reference) settle(s core.Settlement) (uncovered int64) {
	for i := range s.Limiter.Cells() {
		cell := &s.Limiter.Cells()[i]
		state, from, _ := r.load(s.Charge, cell)
		state, changed, missing := step.Settle(cell.Step, state, from, r.now(), s.At, s.N, s.Actual)
		uncovered = max(uncovered, missing)
		if changed {
			r.save(s.Charge, cell, state)
		}
	}
	return uncovered
}

// compared is a store that calls another one and the reference, and fails the test if
// their results differ.
type compared struct {
	suite     *suite
	store     core.Store
	reference *reference
	calls     int
}

func (c *compared) check(cs []core.Charge, got, want core.Result) {
	c.calls++
	describe := func(r *core.Result) string {
		var b strings.Builder
		fmt.Fprintf(&b, "at %d, allowed %t, from the %v", r.At, r.Allowed, r.Source)
		for i := range r.Len() {
			admitted, x := r.Reading(i)
			fmt.Fprintf(&b, "\n    %t %+v", admitted, x)
		}
		return b.String()
	}
	if a, b := describe(&got), describe(&want); a != b {
		c.suite.Fatalf("call %d, of %d units to %v:\n  the store returned: %s\n  it should return:   %s", c.calls, cs[0].N, cs[0].Limiter.Policies(), a, b)
	}
}

// Prepare calls that of the store, if it has one.
func (c *compared) Prepare(l *core.Limiter) error {
	if s, ok := c.store.(core.Preparer); ok {
		return s.Prepare(l)
	}
	return nil
}

func (c *compared) Decide(ctx context.Context, charge core.Charge, peek bool) (core.Result, error) {
	got, err := c.store.Decide(ctx, charge, peek)
	if err == nil {
		c.check([]core.Charge{charge}, got, c.reference.decide([]core.Charge{charge}, peek))
	}
	return got, err
}

func (c *compared) DecideAll(ctx context.Context, cs []core.Charge) (core.Result, error) {
	got, err := c.store.DecideAll(ctx, cs)
	if err == nil {
		c.check(cs, got, c.reference.decide(cs, false))
	}
	return got, err
}

func (c *compared) Settle(ctx context.Context, ss []core.Settlement) error {
	if err := c.store.Settle(ctx, ss); err != nil {
		return err
	}
	for _, s := range ss {
		if want := c.reference.settle(s); s.Uncovered != want {
			c.suite.Fatalf("%d units settled to %d: %d uncovered, want %d", s.N, s.Actual, s.Uncovered, want)
		}
	}
	return nil
}

func (c *compared) Reset(ctx context.Context, l *core.Limiter, key string) error {
	for i := range l.Cells() {
		delete(c.reference.states, identify(core.Charge{Limiter: l, Key: key}, &l.Cells()[i]))
	}
	return c.store.Reset(ctx, l, key)
}
