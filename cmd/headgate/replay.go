package main

import (
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// A replay decides about requests as of their own times, by the arithmetic of all stores.
type replay struct {
	cells map[cell][]step.Variant
	now   int64 // the newest instant
}

// A cell is one policy for one key.
type cell struct {
	policy    string
	algorithm step.Algorithm
	key       string
}

// decide charges the key of the limiter with a unit, or as a Peek only checks, or returns which policy
// refuses and for how long. Time does not go back.
func (r *replay) decide(l *core.Limiter, key string, at time.Time, mode step.Mode) (refused string, wait time.Duration) {
	r.now = max(r.now, at.UnixMicro())
	if p := l.Prepared().Spec().Policies[0]; p.Step.Numbers().Algorithm == step.Blocked {
		return p.Name, core.Never
	}
	ids, cells := r.find(l, key, 1)
	admitted, _ := step.Decide(cells, r.now, mode, 0)
	if mode != step.Peek {
		r.keep(ids, cells)
	}
	if admitted {
		return "", 0
	}
	var longest, until int64 // of those that refuse, and of all
	for i := range cells {
		c := &cells[i]
		until = max(until, c.Reading.RetryAfter)
		if !c.Admitted && c.Reading.RetryAfter > longest {
			longest, refused = c.Reading.RetryAfter, ids[i].policy
		}
	}
	return refused, time.Duration(until) * time.Microsecond
}

// report counts units that the key has used, now, and returns for how many there was no room.
func (r *replay) report(l *core.Limiter, key string, units int64) (uncovered int64) {
	ids, cells := r.find(l, key, units)
	for i := range cells {
		cells[i].Anyway = true
	}
	step.Decide(cells, r.now, step.Allow, 0)
	r.keep(ids, cells)
	for i := range cells {
		uncovered = max(uncovered, cells[i].Uncovered)
	}
	return uncovered
}

// find returns the cells of a key, of those policies that have a state.
func (r *replay) find(l *core.Limiter, key string, units int64) (ids []cell, cells []step.Cell) {
	for _, p := range l.Prepared().Spec().Policies {
		if algorithm := p.Step.Numbers().Algorithm; algorithm < step.Unlimited {
			id := cell{p.Name, algorithm, key}
			ids, cells = append(ids, id), append(cells, step.NewCell(p.Step, units, r.cells[id]))
		}
	}
	return ids, cells
}

// keep keeps the cells that have changed.
func (r *replay) keep(ids []cell, cells []step.Cell) {
	for i := range cells {
		if cells[i].Changed {
			r.cells[ids[i]] = cells[i].Variants()
		}
	}
}

// forget drops what decides as nothing would, so that memory is that of the keys in use.
func (r *replay) forget() {
	for c, kept := range r.cells {
		fresh := true
		for _, k := range kept {
			until := k.Until
			if len(kept) == 1 {
				until = k.Step.FreshAt(k.State)
			}
			fresh = fresh && until <= r.now
		}
		if fresh {
			delete(r.cells, c)
		}
	}
}

// anyStore is a store that only prepares limiters.
type anyStore struct{ store.Store }

// Prepare implements [store.Store].
func (anyStore) Prepare(*store.Limiter) error { return nil }

func (anyStore) Observer() *core.Observer { return nil }

// anySlots is a store that slots can be made with.
type anySlots struct{ store.SlotStore }

func (anySlots) Observer() *core.Observer { return nil }
