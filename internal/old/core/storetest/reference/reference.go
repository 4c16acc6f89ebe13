// Package reference has a store that is plainly right, in one page: the model for authors of stores, and what
// tests compare other stores with. It has a map of states, decides one question at a time with package
// step, and is told the instant. Its memory is not bounded.
package reference

import (
	"context"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A Store is the reference. It is not safe for concurrent use.
type Store struct {
	// Forgets makes questions change nothing, as those do that are answered from memory.
	Forgets bool

	now    func() int64
	states map[cellOf][]step.Variant // the one that was used last first
}

// cellOf is what identifies a state.
type cellOf struct {
	limiter, key, policy string
	algorithm            step.Algorithm
}

// New returns a Store without states.
func New(now func() int64) *Store {
	return &Store{now: now, states: make(map[cellOf][]step.Variant)}
}

func identity(c store.Charge, p *store.Policy) cellOf {
	return cellOf{c.Limiter.Spec().Name, c.Key, p.Name, p.Step.Numbers().Algorithm}
}

// cells returns the cells of charges, of copies of the states.
func (r *Store) cells(cs []store.Charge) (cells []step.Cell, ids []cellOf) {
	for _, c := range cs {
		policies := c.Limiter.Spec().Policies
		for i := range policies {
			id := identity(c, &policies[i])
			cell := step.NewCell(policies[i].Step, c.N, r.states[id])
			cell.Anyway = c.Anyway
			cells, ids = append(cells, cell), append(ids, id)
		}
	}
	return cells, ids
}

// save keeps the states of cells that have changed.
func (r *Store) save(cells []step.Cell, ids []cellOf) {
	for i := range cells {
		if c := &cells[i]; c.Changed && !r.Forgets {
			r.states[ids[i]] = c.Variants()
		}
	}
}

// Observer implements [store.Store]. It returns nil.
func (*Store) Observer() *store.Observer { return nil }

// Prepare implements [store.Store].
func (*Store) Prepare(*store.Limiter) error { return nil }

// Ask implements [store.Store].
func (r *Store) Ask(_ context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	switch q.Mode {
	case store.Settle:
		for i := range q.Charges {
			c := &q.Charges[i]
			cells, ids := r.cells(q.Charges[i : i+1])
			for j := range cells {
				c.Uncovered = max(c.Uncovered, cells[j].Settle(r.now(), c.At, c.N, c.Actual))
			}
			r.save(cells, ids)
		}
	case store.Reset:
		_, ids := r.cells(q.Charges)
		for _, id := range ids {
			delete(r.states, id)
		}
	default:
		cells, ids := r.cells(q.Charges)
		q.Result.Start(r.now(), store.SourceStore)
		q.Result.Allowed, q.Result.Extra = step.Decide(cells, q.Result.At, step.Mode(q.Mode), q.Extra)
		next := 0
		for i := range q.Charges {
			c := &q.Charges[i]
			c.Uncovered = 0
			for range c.Limiter.Spec().Policies {
				q.Result.Add(cells[next].Admitted, cells[next].Reading)
				c.Uncovered = max(c.Uncovered, cells[next].Uncovered)
				next++
			}
		}
		r.save(cells, ids)
	}
	return nil
}
