package main

import (
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A replay decides about requests as of their own times, by the arithmetic of all stores.
type replay struct {
	cells map[cell][]step.Kept
	now   int64 // the newest instant
}

// A cell is one policy for one key.
type cell struct {
	policy    string
	algorithm step.Algorithm
	key       string
}

// A part is one policy of a decision.
type part struct {
	cell     cell
	step     step.Step
	own      step.Kept
	others   []step.Kept
	admitted bool
}

// decide charges the key of the limiter with a unit, or returns which policy refuses and for how
// long. Time does not go back.
func (r *replay) decide(l *core.Limiter, key string, at time.Time) (refused string, wait time.Duration) {
	r.now = max(r.now, at.UnixMicro())
	var parts []part
	admitted := true
	for _, p := range l.Prepared().Spec().Policies {
		numbers := p.Step.Numbers()
		if numbers.Algorithm >= step.Unlimited {
			if numbers.Algorithm == step.Blocked {
				return p.Name, core.Never
			}
			continue
		}
		one := part{cell: cell{p.Name, numbers.Algorithm, key}, step: p.Step}
		one.own, one.others = step.Take(r.kept(one.cell, p.Step), p.Step, r.now)
		one.admitted = p.Step.Admits(one.own.State, r.now, 1)
		admitted = admitted && one.admitted
		parts = append(parts, one)
	}
	var longest, until int64 // of those that refuse, and of all
	for _, p := range parts {
		if p.own.State == nil && (admitted || p.step.Numbers().CountDenied) {
			p.own.State = make([]int64, p.step.Words())
		}
		switch {
		case admitted:
			p.own.State = p.step.Charge(p.own.State, r.now, 1)
			step.Count(p.others, p.own, r.now, 1)
		case p.step.Numbers().CountDenied:
			p.own.State = p.step.Refuse(p.own.State, r.now, 1)
		}
		if p.own.State != nil {
			r.cells[p.cell] = append([]step.Kept{step.Keep(p.own.Step, p.own.State, r.now, p.others)}, p.others...)
		}
		if admitted {
			continue
		}
		left := p.step.Read(p.own.State, r.now, 1) // after the refusal, which may count
		until = max(until, left.RetryAfter)
		if !p.admitted && left.RetryAfter > longest {
			longest, refused = left.RetryAfter, p.cell.policy
		}
	}
	return refused, time.Duration(until) * time.Microsecond
}

// kept returns the states of a cell that a step can use. How long one that is alone is kept, if
// another takes its place, counts from then.
func (r *replay) kept(c cell, p step.Step) []step.Kept {
	all := r.cells[c]
	if len(all) != 1 {
		return all
	}
	one := all[0]
	switch {
	case step.Alike(one.Step, p):
		one.Until = r.now + 1
	case one.Step.FreshAt(one.State) > r.now:
		one = step.Keep(one.Step, one.State, r.now, nil)
	default:
		return nil
	}
	return []step.Kept{one}
}

// forget drops what decides as nothing would, so that memory is that of the keys in use.
func (r *replay) forget() {
	for c, kept := range r.cells {
		fresh := true
		for _, k := range kept {
			fresh = fresh && (k.Until <= r.now || len(kept) == 1 && k.Step.FreshAt(k.State) <= r.now)
		}
		if fresh {
			delete(r.cells, c)
		}
	}
}

// anyStore is a store that only prepares limiters.
type anyStore struct{ store.Store }

type preparedLimiter store.Spec

func (l *preparedLimiter) Spec() *store.Spec { return (*store.Spec)(l) }

func (anyStore) Prepare(s store.Spec) (store.Limiter, error) { return (*preparedLimiter)(&s), nil }

func (anyStore) Observer() *core.Observer { return nil }

// anySlots is a store that slots can be made with.
type anySlots struct{ store.SlotStore }

func (anySlots) Observer() *core.Observer { return nil }
