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

// decide charges the key of the limiter with a unit, or returns which policy refuses and for how
// long. Time does not go back.
func (r *replay) decide(l *core.Limiter, key string, at time.Time) (refused string, wait time.Duration) {
	r.now = max(r.now, at.UnixMicro())
	var ids []cell
	var cells []step.Cell
	for _, p := range l.Prepared().Spec().Policies {
		switch algorithm := p.Step.Numbers().Algorithm; algorithm {
		case step.Unlimited:
		case step.Blocked:
			return p.Name, core.Never
		default:
			id := cell{p.Name, algorithm, key}
			ids, cells = append(ids, id), append(cells, step.NewCell(p.Step, 1, r.cells[id]))
		}
	}
	admitted, _ := step.Decide(cells, r.now, step.Allow, 0)
	var longest, until int64 // of those that refuse, and of all
	for i := range cells {
		c := &cells[i]
		if c.Changed {
			r.cells[ids[i]] = c.Variants()
		}
		if admitted {
			continue
		}
		until = max(until, c.Reading.RetryAfter)
		if !c.Admitted && c.Reading.RetryAfter > longest {
			longest, refused = c.Reading.RetryAfter, ids[i].policy
		}
	}
	return refused, time.Duration(until) * time.Microsecond
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
