package redisstore

import (
	"context"
	"slices"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

// A reference is a store that is plainly right: a map of states, one question at
// a time, package step for the arithmetic, and an instant that it is told.
type reference struct {
	now    func() int64
	states map[cellOf]kept
}

// cellOf is what identifies a state.
type cellOf struct {
	limiter, key, policy string
	algorithm            step.Algorithm
}

type kept struct {
	numbers step.Numbers
	words   []int64
}

func newReference(now func() int64) *reference {
	return &reference{now: now, states: make(map[cellOf]kept)}
}

func identity(c core.Charge, cell *core.Cell) cellOf {
	return cellOf{c.Limiter.Name(), c.Key, cell.Name, cell.Step.Numbers().Algorithm}
}

// load returns a copy of a state under the numbers of the cell's step, those that it
// was kept under, and whether the one depends on the instant.
func (r *reference) load(c core.Charge, cell *core.Cell) (state []int64, from step.Numbers, dated bool) {
	k, ok := r.states[identity(c, cell)]
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
	r.states[identity(c, cell)] = kept{cell.Step.Numbers(), state}
}

func (r *reference) Decide(_ context.Context, c core.Charge, peek bool) (core.Result, error) {
	if peek {
		return r.decide([]core.Charge{c}, modePeek), nil
	}
	return r.decide([]core.Charge{c}, modeAsk), nil
}

func (r *reference) DecideAll(_ context.Context, cs []core.Charge) (core.Result, error) {
	return r.decide(cs, modeAsk), nil
}

func (r *reference) decide(cs []core.Charge, mode byte) core.Result {
	now := r.now()
	result := core.Result{At: now, Allowed: mode != modeDeny, Source: core.SourceStore}
	var admits []bool
	for _, c := range cs {
		cells := c.Limiter.Cells()
		for i := range cells {
			state, _, _ := r.load(c, &cells[i])
			ok := cells[i].Step.Admits(state, now, c.N)
			admits = append(admits, ok)
			result.Allowed = result.Allowed && ok
		}
	}
	for _, c := range cs {
		cells := c.Limiter.Cells()
		for i := range cells {
			cell, need := &cells[i], c.N
			state, _, dated := r.load(c, cell)
			if result.Allowed {
				need = 0
			}
			if mode != modePeek && (result.Allowed || cell.CountDenied || dated) {
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

func (r *reference) Settle(_ context.Context, ss []core.Settlement) error {
	for i := range ss {
		t := &ss[i]
		cells := t.Limiter.Cells()
		for j := range cells {
			state, from, _ := r.load(t.Charge, &cells[j])
			state, changed, uncovered := step.Settle(cells[j].Step, state, from, r.now(), t.At, t.N, t.Actual)
			t.Uncovered = max(t.Uncovered, uncovered)
			if changed {
				r.save(t.Charge, &cells[j], state)
			}
		}
	}
	return nil
}

func (r *reference) Reset(_ context.Context, l *core.Limiter, key string) error {
	c := core.Charge{Limiter: l, Key: key}
	for i := range l.Cells() {
		delete(r.states, identity(c, &l.Cells()[i]))
	}
	return nil
}
