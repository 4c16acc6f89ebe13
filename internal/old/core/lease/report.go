package lease

import (
	"context"
	"slices"

	"github.com/headgate/headgate/internal/old/core/store"
)

// report answers a question with charges that count anyway. What this process has leased of their keys
// is used first, or it would go on admitting from that; the store counts the rest. What other
// processes have leased may be spent to its end.
func (s *Store) report(ctx context.Context, q *store.Question) error {
	leased := func(c store.Charge) bool { return !c.Anyway && s.prepared(c.Limiter).leasable }
	if !slices.ContainsFunc(q.Charges, leased) {
		return s.count(ctx, q, q.Charges)
	}
	// The others are decided as if they were alone: what counts anyway has no part in that.
	own := &store.Question{Mode: q.Mode, Fresh: q.Fresh}
	var told []store.Charge
	for _, c := range q.Charges {
		if c.Anyway {
			told = append(told, c)
		} else {
			own.Charges = append(own.Charges, c)
		}
	}
	if err := s.Ask(ctx, own); err != nil {
		return err
	}
	reported := &store.Question{Mode: q.Mode}
	if err := s.count(ctx, reported, told); err != nil {
		return err
	}
	r := &q.Result
	r.Start(own.Result.At, own.Result.Source)
	r.Allowed, r.Aged = own.Result.Allowed, own.Result.Aged
	var next [2]int // readings of own, and of reported
	for i := range q.Charges {
		c := &q.Charges[i]
		from, at := &own.Result, &next[0]
		if c.Anyway {
			from, at = &reported.Result, &next[1]
			c.Uncovered, told = told[0].Uncovered, told[1:]
		}
		for range c.Limiter.Spec().Policies {
			r.Add(from.Admitted(*at), *from.Reading(*at))
			*at++
		}
	}
	return nil
}

// count asks the store about charges that are not leased, and those that count anyway and are not
// covered by leases. It sets the result of the question, and of each charge what is uncovered.
func (s *Store) count(ctx context.Context, q *store.Question, cs []store.Charge) error {
	below := &store.Question{Mode: q.Mode, Fresh: q.Fresh}
	covered := make([]store.Result, len(cs)) // of what leases have covered, or empty
	for i := range cs {
		c := &cs[i]
		c.Uncovered = 0
		rest := *c
		if p := s.place(s.prepared(c.Limiter), c.Key); c.Anyway {
			rest.N = p.cover(s, c.N, &covered[i])
		} else {
			s.endOthers(&p)
		}
		if covered[i].Len() == 0 {
			below.Charges = append(below.Charges, rest)
		}
	}
	below.Result.Start(0, store.SourceLease)
	below.Result.Allowed = true
	if len(below.Charges) > 0 {
		if err := s.charge(ctx, below); err != nil {
			return err
		}
	}
	r, next := &q.Result, 0
	r.Start(below.Result.At, below.Result.Source)
	r.Allowed, r.Aged = below.Result.Allowed, below.Result.Aged
	asked := below.Charges
	for i := range cs {
		if covered[i].Len() > 0 {
			r.AddAll(&covered[i])
			continue
		}
		cs[i].Uncovered, asked = asked[0].Uncovered, asked[1:]
		first := next
		for range cs[i].Limiter.Spec().Policies {
			r.Add(below.Result.Admitted(next), *below.Result.Reading(next))
			next++
		}
		if p := s.place(s.prepared(cs[i].Limiter), cs[i].Key); below.Result.Source == store.SourceStore {
			p.learnRoom(&below.Result, first, next)
		}
	}
	return nil
}

// cover uses up to n units that are leased of the key, for what has been used, and returns how many it
// lacks. If it lacks none, the result has the readings after it.
func (p *place) cover(s *Store, n int64, r *store.Result) (rest int64) {
	now := s.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.endOthersLocked(p)
	e := p.find()
	if e == nil {
		return n
	}
	if rest = e.cover(now, n); rest == 0 && n > 0 {
		e.read(r, now)
		for i := range r.Len() {
			if x := r.Reading(i); x.Remaining == 0 {
				x.RetryAfter = x.NextAfter
			}
		}
	}
	return rest
}

// cover uses units of the leases for n that are charged, and returns how many these lack.
func (e *entry) cover(now instant, n int64) (rest int64) {
	for i := range e.leases {
		if b := &e.leases[i]; b.live(now) {
			more := min(n, b.left)
			b.left, n = b.left-more, n-more
		}
	}
	return n
}

// learnRoom takes over what the store has left of the key, by its readings from first to before end.
func (p *place) learnRoom(r *store.Result, first, end int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.find(); e != nil {
		for i := first; i < end; i++ {
			e.room = min(e.room, r.Reading(i).Remaining)
		}
	}
}

// check decides about a charge of nothing. Who could spend a lease is within the limit.
func (s *Store) check(ctx context.Context, q *store.Question) error {
	c := &q.Charges[0]
	if l := s.prepared(c.Limiter); l.leasable {
		p, now := s.place(l, c.Key), s.now()
		p.mu.Lock()
		if e := p.find(); e != nil && e.held(now) > 0 && e.spend(&q.Result, now, 0, 0) {
			p.mu.Unlock()
			return nil
		}
		p.mu.Unlock()
	}
	return s.next.Ask(ctx, q)
}
