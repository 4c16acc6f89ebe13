package lease

import (
	"context"

	"github.com/headgate/headgate/internal/old/core/store"
)

// settle corrects charges. What was spent from a lease that is not over goes back to
// it, and what it holds covers units that are charged later.
func (s *Store) settle(ctx context.Context, ss []store.Charge) error {
	rest := make([]store.Charge, 0, len(ss))
	from := make([]int, 0, len(ss)) // of the rest
	for i, t := range ss {
		if l := s.prepared(t.Limiter); l.leasable || t.Actual > t.N {
			s.settleHere(l, &t)
		}
		if t.Source == store.SourceLease {
			t.Source = store.SourceStore
		}
		if t.Actual != t.N {
			rest, from = append(rest, t), append(from, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	err := s.charge(ctx, &store.Question{Mode: store.Settle, Charges: rest})
	for i := range rest {
		ss[from[i]].Uncovered = rest[i].Uncovered
	}
	return err
}

// settleHere settles in the lease what can be. What cannot is left in t.
func (s *Store) settleHere(l *limiter, t *store.Charge) {
	p, now := s.place(l, t.Key), s.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.Actual > t.N {
		s.endOthersLocked(&p)
	}
	e := p.find()
	if e == nil {
		return
	}
	e.refusal = refusal{}
	switch {
	case t.Actual > t.N:
		t.Actual = t.N + e.cover(now, t.Actual-t.N)
	case t.Source == store.SourceLease:
		t.Actual += e.put(now, t.At, t.N-t.Actual)
	}
}

// reset forgets keys. Other servers keep what they have leased.
func (s *Store) reset(ctx context.Context, q *store.Question) error {
	for i := range q.Charges {
		l, key := s.prepared(q.Charges[i].Limiter), q.Charges[i].Key
		p := s.place(l, key)
		p.reset()
		defer p.reset() // what was charged meanwhile may be forgotten, or not
		s.unqueue(&p)   // it counts no more
	}
	return s.next.Ask(ctx, q)
}

// reset ends the leases of all plans.
func (p *place) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := p.entries[p.hash]; e != nil; e = e.next {
		if e.limiter.family == p.limiter.family && e.key == p.key {
			e.resets++
			e.refusal, e.leases, e.room = refusal{}, [2]lease{}, 0
		}
	}
}
