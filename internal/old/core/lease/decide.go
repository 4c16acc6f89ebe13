package lease

import (
	"context"
	"math"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
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
	case q.Mode == store.Peek:
		return s.peek(ctx, q)
	case q.Counts():
		return s.report(ctx, q)
	case q.Mode == store.Refuse: // what counts that is not leased
		return s.next.Ask(ctx, q)
	case len(q.Charges) > 1:
		return s.decideAll(ctx, q)
	case q.Charges[0].N == 0:
		return s.check(ctx, q)
	default:
		return s.decide(ctx, q)
	}
}

// decide decides about one charge.
func (s *Store) decide(ctx context.Context, q *store.Question) error {
	c := &q.Charges[0]
	l := s.prepared(c.Limiter)
	p := s.place(l, c.Key)
	if !l.leasable {
		s.endOthers(&p)
		return s.charge(ctx, q)
	}
	extra := min(q.Extra, step.MaxInt-c.N)
	now := s.now()
	p.mu.Lock()
	if e := p.find(); e != nil && e.spend(&q.Result, now, c.N+extra, 0) {
		q.Result.Extra = extra
		e.ask(s, now, c.N+extra)
		if now.mono >= e.soon || e.leases[0].left <= e.low && e.held(now) <= e.low {
			s.refill(&p, e, now)
		}
		p.mu.Unlock()
		return nil
	}
	return s.ask(ctx, &p, c.N, extra, now, &q.Result)
}

// peek asks the store too: what is left in leases is known, and what others did since they were
// opened is not.
func (s *Store) peek(ctx context.Context, q *store.Question) error {
	lefts := make([]int64, len(q.Charges)) // before the store is asked, or units would be in both
	leased := false
	for i := range q.Charges {
		c := &q.Charges[i]
		l := s.prepared(c.Limiter)
		if !l.leasable {
			continue
		}
		p := s.place(l, c.Key)
		e, err := p.lockLanded(ctx)
		if err != nil {
			return err
		}
		now := s.now()
		if len(lefts) == 1 && e != nil {
			if e.refused(now, c.N, math.MaxInt64) {
				q.Result.Start(0, store.SourceNone)
				e.refuse(&q.Result, now)
				p.mu.Unlock()
				return nil
			}
		}
		if e != nil {
			lefts[i] = e.held(now)
			leased = leased || lefts[i] > 0
		}
		p.mu.Unlock()
	}
	if err := s.next.Ask(ctx, q); err != nil || !leased {
		return err
	}
	besideAll(q, lefts)
	return nil
}

// landed waits for a call.
func landed(ctx context.Context, flight chan struct{}) error {
	select {
	case <-flight:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait counts units that are waited for.
func (p *place) wait(e *entry, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.waiting += n
}

// lockLanded locks the shard of a key while no call is in flight that brings units of it, which
// would be neither in a lease nor in the store. It returns the entry of the key, or nil. After an
// error nothing is locked.
func (p *place) lockLanded(ctx context.Context) (*entry, error) {
	p.mu.Lock()
	e := p.find()
	if e == nil || e.flight == nil {
		return e, nil
	}
	flight := e.flight
	p.mu.Unlock()
	if err := landed(ctx, flight); err != nil {
		return nil, err
	}
	p.mu.Lock()
	return p.find(), nil
}

// besideAll adds to the result of a peek what is left in the leases of each charge.
func besideAll(q *store.Question, lefts []int64) {
	r := &q.Result
	all := store.Result{At: r.At, Source: r.Source, Allowed: true}
	next := 0
	for i := range q.Charges {
		own := store.Result{}
		for range q.Charges[i].Limiter.Spec().Policies {
			own.Add(r.Admitted(next), *r.Reading(next))
			next++
		}
		own = beside(&own, lefts[i], q.Charges[i].N)
		all.Allowed = all.Allowed && own.Allowed
		all.AddAll(&own)
	}
	if all.Allowed && q.Extra > 0 { // of the only charge
		all.Extra = min(r.Extra+lefts[0], q.Extra)
	}
	*r = all
}

// patient is for how many calls of others a caller waits, before it makes its own.
const patient = 8

// ask decides about n units, and as many of extra as there are, with a call of the store, or with
// what another call has leased meanwhile. The shard is locked until then.
func (s *Store) ask(ctx context.Context, p *place, n, extra int64, now instant, r *store.Result) error {
	s.endOthersLocked(p)
	e, began := s.entry(p, now, n), int64(math.MaxInt64)
	for waits := 0; ; waits++ {
		if waits > 0 {
			began = min(began, now.mono)
			now = s.now()
			p.mu.Lock()
			s.endOthersLocked(p)
			e = p.find()
		}
		if e == nil {
			p.mu.Unlock()
			if err := s.call(ctx, p.allow(n, extra, false), false, now, r); err != nil || r.Allowed {
				return err
			}
			return s.reconsider(ctx, p, n, extra, r)
		}
		refused := e.refused(now, n, began)
		switch {
		case e.spend(r, now, n+extra, 0):
			r.Extra = extra
			p.mu.Unlock()
			return nil
		case e.flight != nil && (waits < patient || refused):
			flight := e.flight
			e.waiting += n
			p.mu.Unlock()
			err := landed(ctx, flight)
			p.wait(e, -n)
			if err != nil {
				return err
			}
			continue
		case extra > 0 && e.paused(now) && e.room == 0 && e.spend(r, now, n, extra):
			p.mu.Unlock()
			return nil
		case refused:
			r.Start(0, store.SourceNone)
			e.refuse(r, now)
			p.mu.Unlock()
			return nil
		}
		b := s.depart(p, e, n, n, now)
		b.most = extra
		b.extra += extra
		p.mu.Unlock()
		return s.borrow(ctx, b, r)
	}
}
