package lease

import (
	"context"
	"slices"

	"github.com/headgate/headgate/core/store"
)

// A part of a question to several limiters.
type share struct {
	charge store.Charge
	e      *entry // nil: the key is not asked for often
	held   bool   // by a lease
	at     int64  // when it was charged: that lease, or else this charge
	resets int
	answer store.Result // the readings, if it is held
}

// decideAll decides about several charges. What is leased is spent, all in one step. What is missing
// is charged in one call of the store; if that is refused, what was spent is put back.
func (s *Store) decideAll(ctx context.Context, q *store.Question) (err error) {
	shares, places := s.divide(q.Charges)
	q.Result, err = s.decideShares(ctx, shares, places)
	return err
}

func (s *Store) divide(cs []store.Charge) (shares []share, places []place) {
	shares, places = make([]share, len(cs)), make([]place, len(cs))
	for i, c := range cs {
		places[i] = s.place(s.prepared(c.Limiter), c.Key)
		shares[i].charge = c
	}
	return shares, places
}

func (s *Store) decideShares(ctx context.Context, shares []share, places []place) (r store.Result, err error) {
	counted, waited, refused := false, false, false
	for {
		now := s.now()
		unlock := lockAll(places)
		missing, known, flight := s.look(shares, places, now, counted)
		counted = true
		switch {
		case flight != nil && (!waited || known):
			unlock()
			waited = true
			select {
			case <-flight:
				continue
			case <-ctx.Done():
				return r, ctx.Err()
			}
		case known && missing > 0:
			r = refuseAll(shares, now)
			unlock()
			return r, nil
		}
		s.spendAll(shares, places, now) //nolint:contextcheck // what it leases outlives the call
		var b borrowing
		alone := -1 // the share that is missing, if it is one that may be leased
		for i := range shares {
			if !shares[i].held && shares[i].e != nil && missing == 1 {
				alone = i
				b = s.depart(&places[i], shares[i].e, shares[i].charge.N, shares[i].charge.N, now)
			}
		}
		unlock()
		switch {
		case missing == 0:
			return joined(shares, &store.Result{Allowed: true, Source: store.SourceLease}), nil
		case alone >= 0:
			err = s.borrow(ctx, b, &r)
		default:
			r, err = s.askAll(ctx, shares, places)
		}
		if err != nil || !r.Allowed {
			s.putBack(ctx, shares, places)
		}
		if err != nil {
			return store.Result{}, err
		}
		if !r.Allowed && !refused && s.mayHelp(shares, places) {
			waited, refused = false, true
			continue
		}
		return joined(shares, &r), nil
	}
}

// mayHelp reports whether others have leased, or do so now, what was missing in the store. To
// ask again would count a refusal twice where they count.
func (s *Store) mayHelp(shares []share, places []place) (may bool) {
	now := s.now()
	for i := range shares {
		p := &places[i]
		if slices.ContainsFunc(p.limiter.Spec().Policies, func(p store.Policy) bool { return p.Step.Numbers().CountDenied }) {
			return false
		}
		if !shares[i].held {
			p.mu.Lock()
			e := p.find()
			may = may || e != nil && (e.flight != nil || e.find(now, shares[i].charge.N) != nil)
			p.mu.Unlock()
		}
	}
	return may
}

// look finds out which charges leases cover, how many they do not, whether all of those were
// refused a moment ago, and a call for a lease that may help. The shards are locked.
func (s *Store) look(shares []share, places []place, now instant, again bool) (missing int, known bool, flight chan struct{}) {
	known = true
	for i := range shares {
		h, p := &shares[i], &places[i]
		s.endOthersLocked(p)
		h.e = nil
		switch {
		case !p.limiter.leasable:
		case again:
			h.e = p.find()
		default:
			h.e = s.entry(p, now, h.charge.N)
		}
		if h.e != nil {
			h.resets = h.e.resets
		}
		if h.held = h.e != nil && h.e.find(now, h.charge.N) != nil; h.held {
			continue
		}
		missing++
		known = known && h.e != nil && h.e.refused(now, h.charge.N)
		if h.e != nil && h.e.flight != nil {
			flight = h.e.flight
		}
	}
	return missing, known, flight
}

// refuseAll answers with what the store last refused. The shards are locked.
func refuseAll(shares []share, now instant) (r store.Result) {
	for i := range shares {
		if h := &shares[i]; h.held {
			h.e.read(&r, now)
		} else {
			h.e.refuse(&r, now, h.charge.N)
		}
	}
	return r
}

// spendAll spends what leases cover. The shards are locked.
func (s *Store) spendAll(shares []share, places []place, now instant) {
	for i := range shares {
		h := &shares[i]
		if !h.held {
			continue
		}
		h.answer = store.Result{}
		h.e.spend(&h.answer, now, h.charge.N)
		h.at = h.answer.At
		if now.mono >= h.e.soon || h.e.held(now) <= h.e.low {
			s.refill(&places[i], h.e, now)
		}
	}
}

// putBack puts back what was spent: into the lease, or else into the store.
func (s *Store) putBack(ctx context.Context, shares []share, places []place) {
	var rests []store.Charge
	now := s.now()
	for i := range shares {
		h, p := &shares[i], &places[i]
		if !h.held {
			continue
		}
		p.mu.Lock()
		e, rest := p.find(), h.charge.N
		switch {
		case e == h.e && e.resets != h.resets:
			rest = 0 // it is forgotten
		case e != nil:
			rest -= e.put(now, h.at, rest)
		}
		p.mu.Unlock()
		if rest > 0 {
			c := p.charge(rest)
			c.At, c.Source = h.at, store.SourceStore
			rests = append(rests, c)
		}
		for j := range h.answer.Len() {
			h.answer.Reading(j).Remaining += h.charge.N
		}
	}
	_ = s.settleBelow(context.WithoutCancel(ctx), rests) // or less is admitted
}

// askAll charges what leases do not cover in one call of the store. Keys that are asked for
// often are leased from then on.
func (s *Store) askAll(ctx context.Context, shares []share, places []place) (r store.Result, err error) {
	missing, partly := make([]store.Charge, 0, len(shares)), make([]need, 0, len(shares))
	for i := range shares {
		if h := &shares[i]; !h.held {
			missing = append(missing, h.charge)
			if h.e != nil {
				partly = append(partly, need{places[i], h.charge.N})
			}
		}
	}
	_ = s.giveBackNow(ctx, partly...) // or less is admitted
	sent := s.now()
	q := &store.Question{Mode: store.Allow, Charges: missing}
	if err = s.next.Ask(ctx, q); err != nil {
		return r, err
	}
	r = q.Result
	s.note(sent, &r)
	if r.Source != store.SourceStore {
		return r, nil
	}
	next, now := 0, s.now()
	for i := range shares {
		h, p := &shares[i], &places[i]
		if h.held {
			continue
		}
		own := store.Result{At: r.At, Source: r.Source, Allowed: true}
		for range p.limiter.Spec().Policies {
			own.Allowed = own.Allowed && r.Admitted(next)
			own.Add(r.Admitted(next), *r.Reading(next))
			next++
		}
		p.mu.Lock()
		if e := p.find(); e != nil && e == h.e && e.resets == h.resets {
			e.room = least(&own)
			if r.Allowed {
				s.refill(p, e, now) //nolint:contextcheck // before the key pauses again
			}
			s.remember(e, &own, h.charge.N, now)
		}
		p.mu.Unlock()
	}
	return r, nil
}

// joined returns the readings of all charges in their order, those that leases cover and
// those of the store's answer. It has the earliest instant: what is given back as of then is
// never too much.
func joined(shares []share, r *store.Result) store.Result {
	all := store.Result{At: r.At, Source: r.Source, Allowed: r.Allowed}
	next := 0 // reading of r
	for i := range shares {
		h := &shares[i]
		if !h.held {
			h.at = r.At
			for range h.charge.Limiter.Spec().Policies {
				all.Add(r.Admitted(next), *r.Reading(next))
				next++
			}
			continue
		}
		if all.At == 0 || h.at < all.At {
			all.At = h.at
		}
		for j := range h.answer.Len() {
			all.Add(true, *h.answer.Reading(j))
		}
	}
	return all
}
