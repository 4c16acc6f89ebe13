package lease

import (
	"context"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// Ask implements [store.Store].
func (s *Store) Ask(ctx context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	switch {
	case q.Mode == store.Settle:
		return s.settle(ctx, q.Charges)
	case q.Mode == store.Reset:
		return s.reset(ctx, q)
	case q.Mode == store.Peek && len(q.Charges) == 1:
		return s.peek(ctx, q)
	case q.Mode == store.Peek:
		return s.peekAll(ctx, q)
	case q.Mode == store.Refuse: // what counts that is not leased
		return s.next.Ask(ctx, q)
	case len(q.Charges) == 1:
		return s.decide(ctx, q)
	default:
		return s.decideAll(ctx, q)
	}
}

// decide decides about one charge.
func (s *Store) decide(ctx context.Context, q *store.Question) error {
	c := &q.Charges[0]
	l := s.prepared(c.Limiter)
	p := s.place(l, c.Key)
	if !l.leasable || q.Extra > 0 {
		s.endOthers(&p)
		if l.leasable {
			_ = s.giveBackNow(ctx, need{p, step.MaxInt}) // so that the store sees all that is left
		}
		return s.next.Ask(ctx, q)
	}
	now := s.now()
	p.mu.Lock()
	if e := p.find(); e != nil && e.spend(&q.Result, now, c.N) {
		e.ask(s, now, c.N)
		if now.mono >= e.soon || e.leases[0].left <= e.low && e.held(now) <= e.low {
			s.refill(&p, e, now) //nolint:contextcheck // it outlives the call
		}
		p.mu.Unlock()
		return nil
	}
	return s.ask(ctx, &p, c.N, now, &q.Result)
}

// peek asks the store too: what is left in a lease is known, and what others did since it was
// opened is not.
func (s *Store) peek(ctx context.Context, q *store.Question) error {
	c, r := &q.Charges[0], &q.Result
	l := s.prepared(c.Limiter)
	if !l.leasable {
		return s.next.Ask(ctx, q)
	}
	p := s.place(l, c.Key)
	p.mu.Lock()
	e := p.find()
	if e != nil && e.flight != nil { // what it brings is in neither of the two
		flight := e.flight
		p.mu.Unlock()
		select {
		case <-flight:
		case <-ctx.Done():
			return ctx.Err()
		}
		p.mu.Lock()
		e = p.find()
	}
	now := s.now()
	if r.Start(0, store.SourceNone); e != nil && e.refuse(r, now, c.N) {
		p.mu.Unlock()
		return nil
	}
	left := int64(0)
	if e != nil {
		left = e.held(now)
	}
	p.mu.Unlock()
	if err := s.next.Ask(ctx, q); left == 0 || err != nil {
		return err
	}
	extra := r.Extra
	if *r = beside(r, left, c.N); r.Allowed {
		r.Extra = min(extra+left, q.Extra)
	}
	return nil
}

// peekAll is peek for several charges.
func (s *Store) peekAll(ctx context.Context, q *store.Question) error {
	if err := s.next.Ask(ctx, q); err != nil {
		return err
	}
	all := store.Result{At: q.Result.At, Source: q.Result.Source, Allowed: true}
	first := 0
	for i := range q.Charges {
		c := &q.Charges[i]
		p := s.place(s.prepared(c.Limiter), c.Key)
		p.mu.Lock()
		left := int64(0)
		if e := p.find(); e != nil {
			left = e.held(s.now())
		}
		p.mu.Unlock()
		own := store.Result{Allowed: true}
		for range c.Limiter.Spec().Policies {
			own.Add(q.Result.Admitted(first), *q.Result.Reading(first))
			first++
		}
		own = beside(&own, left, c.N)
		all.Allowed = all.Allowed && own.Allowed
		all.AddAll(&own)
	}
	q.Result = all
	return nil
}

// ask decides about n units with a call of the store, or with what another call has leased
// meanwhile. The shard is locked until then.
func (s *Store) ask(ctx context.Context, p *place, n int64, now instant, r *store.Result) error {
	s.endOthersLocked(p)
	e := s.entry(p, now, n)
	for waited := false; ; waited = true {
		if waited {
			now = s.now()
			p.mu.Lock()
			s.endOthersLocked(p)
			e = p.find()
		}
		if e == nil {
			p.mu.Unlock()
			if err := s.call(ctx, p.charge(n), 0, now, r); err != nil || r.Allowed {
				return err
			}
			return s.reconsider(ctx, p, n, r)
		}
		if e.spend(r, now, n) {
			p.mu.Unlock()
			return nil
		}
		if flight := e.flight; flight != nil && (!waited || e.refused(now, n)) {
			p.mu.Unlock()
			select {
			case <-flight:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if r.Start(0, store.SourceNone); e.refuse(r, now, n) {
			p.mu.Unlock()
			return nil
		}
		b := s.depart(p, e, n, n, now)
		p.mu.Unlock()
		return s.borrow(ctx, b, r)
	}
}
