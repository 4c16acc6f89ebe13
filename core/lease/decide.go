package lease

import (
	"context"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// Decide implements [store.Store].
func (s *Store) Decide(ctx context.Context, c store.Charge, peek bool, r *store.Result) error {
	l := below(c.Limiter)
	c.Limiter = l.Limiter
	p := s.place(l, c.Key)
	if !l.leasable {
		if !peek {
			s.endOthers(&p)
		}
		return s.next.Decide(ctx, c, peek, r)
	}
	if peek || c.Extra > 0 {
		return s.decideRest(ctx, &p, c, peek, r)
	}
	now := s.now()
	p.mu.Lock()
	if e := p.find(); e != nil && e.spend(r, now, c.N) {
		e.ask(s, now, c.N)
		if now.mono >= e.soon || e.leases[0].left <= e.low && e.held(now) <= e.low {
			s.refill(&p, e, now) //nolint:contextcheck // it outlives the call
		}
		p.mu.Unlock()
		return nil
	}
	return s.ask(ctx, &p, c, now, r)
}

// decideRest decides what opens no lease. A peek asks the store too: what is left in a lease
// is known, and what others did since it was opened is not.
func (s *Store) decideRest(ctx context.Context, p *place, c store.Charge, peek bool, r *store.Result) error {
	if !peek {
		s.endOthers(p)
		_ = s.giveBackNow(ctx, need{*p, step.MaxInt}) // so that the store sees all that is left
		return s.next.Decide(ctx, c, false, r)
	}
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
	if err := s.next.Decide(ctx, c, true, r); left == 0 || err != nil {
		return err
	}
	extra := r.Extra
	if *r = beside(r, left, c.N); r.Allowed {
		r.Extra = min(extra+left, c.Extra)
	}
	return nil
}

// ask decides with a call of the store, or with what another call has leased meanwhile. The
// shard is locked until then.
func (s *Store) ask(ctx context.Context, p *place, c store.Charge, now instant, r *store.Result) error {
	s.endOthersLocked(p)
	e := s.entry(p, now, c.N)
	for waited := false; ; waited = true {
		if waited {
			now = s.now()
			p.mu.Lock()
			s.endOthersLocked(p)
			e = p.find()
		}
		if e == nil {
			p.mu.Unlock()
			if err := s.call(ctx, c, now, r); err != nil || r.Allowed {
				return err
			}
			return s.reconsider(ctx, p, c, r)
		}
		if e.spend(r, now, c.N) {
			p.mu.Unlock()
			return nil
		}
		if flight := e.flight; flight != nil && (!waited || e.refused(now, c.N)) {
			p.mu.Unlock()
			select {
			case <-flight:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if r.Start(0, store.SourceNone); e.refuse(r, now, c.N) {
			p.mu.Unlock()
			return nil
		}
		b := s.depart(p, e, c, c.N, now)
		p.mu.Unlock()
		return s.borrow(ctx, b, r)
	}
}
