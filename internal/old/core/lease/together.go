package lease

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/old/core/store"
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
	counted, again, waits, began := false, false, 0, int64(math.MaxInt64)
	for {
		now := s.now()
		unlock := lockAll(places)
		missing, refused, flight := s.look(shares, places, now, began, counted)
		counted = true
		switch {
		case flight != nil && (waits < patient || refused):
			waitAll(shares, 1)
			unlock()
			waits, began = waits+1, min(began, now.mono)
			err = landed(ctx, flight)
			unlock = lockAll(places)
			waitAll(shares, -1)
			unlock()
			if err != nil {
				return r, err
			}
			continue
		case refused:
			r = s.refuseAll(shares, now, began)
			unlock()
			return r, nil
		}
		s.spendAll(shares, places, now)
		bs := s.departAll(shares, places, now)
		unlock()
		switch {
		case missing == 0:
			return joined(shares, &store.Result{Allowed: true, Source: store.SourceLease}), nil
		case missing == 1 && bs[0].e != nil:
			err = s.borrow(ctx, bs[0], &r)
		default:
			r, err = s.borrowAll(ctx, bs)
		}
		if err == nil && r.Allowed && missing < len(shares) && r.Source != store.SourceStore {
			return s.decideBelow(ctx, shares, places, &r)
		}
		if err != nil || !r.Allowed {
			s.putBack(ctx, shares, places)
		}
		if err != nil {
			return store.Result{}, err
		}
		if !r.Allowed && !again && s.mayHelp(shares, places) {
			waits, again = 0, true
			continue
		}
		return joined(shares, &r), nil
	}
}

// decideBelow is for an answer that is not of the store itself, as while its servers are away. Units of a
// decision go back to its one source. So what leases cover is put back, and all is decided there.
func (s *Store) decideBelow(ctx context.Context, shares []share, places []place, r *store.Result) (store.Result, error) {
	s.putBack(ctx, shares, places)
	q := &store.Question{Mode: store.Allow, Charges: make([]store.Charge, 0, len(shares))}
	var charged []store.Charge
	for i := range shares {
		c := shares[i].charge
		q.Charges = append(q.Charges, c)
		if !shares[i].held {
			c.At, c.Source = r.At, r.Source
			charged = append(charged, c)
		}
	}
	_ = s.settleBelow(context.WithoutCancel(ctx), charged) // or less is admitted
	err := s.charge(ctx, q)
	return q.Result, err
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
		if !shares[i].held && shares[i].charge.N > 0 {
			p.mu.Lock()
			e := p.find()
			may = may || e != nil && (e.flight != nil || e.ready(now) >= shares[i].charge.N)
			p.mu.Unlock()
		}
	}
	return may
}

// waitAll counts the units that are waited for. The shards are locked.
func waitAll(shares []share, sign int64) {
	for i := range shares {
		if h := &shares[i]; h.e != nil && !h.held {
			h.e.waiting += sign * h.charge.N
		}
	}
}

// look finds out which charges leases cover, how many they do not, whether one of those was
// refused a moment ago, and a call for a lease that may help. The shards are locked.
func (s *Store) look(shares []share, places []place, now instant, began int64, again bool) (missing int, refused bool, flight chan struct{}) {
	known := true // what the policies of those that are missing last said
	for i := range shares {
		h, p := &shares[i], &places[i]
		s.endOthersLocked(p)
		h.e = nil
		switch {
		case !p.limiter.leasable, h.charge.N == 0: // the store checks
		case again:
			h.e = p.find()
		default:
			h.e = s.entry(p, now, h.charge.N)
		}
		if h.e != nil {
			h.resets = h.e.resets
		}
		if h.held = h.e != nil && h.e.ready(now) >= h.charge.N; h.held {
			continue
		}
		missing++
		known = known && h.e != nil && (h.e.answer.Len() > 0 || h.e.refusal.n > 0)
		refused = refused || h.e != nil && h.e.refused(now, h.charge.N, began)
		if h.e != nil && h.e.flight != nil {
			flight = h.e.flight
		}
	}
	return missing, known && refused, flight
}

// refuseAll answers with what the store last refused. The shards are locked.
func (s *Store) refuseAll(shares []share, now instant, began int64) (r store.Result) {
	for i := range shares {
		switch h := &shares[i]; {
		case !h.held && (h.e.refused(now, h.charge.N, began) || h.e.answer.Len() == 0):
			h.e.refuse(&r, now)
		default:
			h.e.read(&r, now)
			h.e.demand.take(h.charge.N)
		}
	}
	return r
}

// spendAll spends what leases cover. The shards are locked.
func (s *Store) spendAll(shares []share, places []place, now instant) {
	scarce := s.anyScarce(shares, now)
	for i := range shares {
		h := &shares[i]
		if !h.held {
			continue
		}
		h.answer = store.Result{}
		h.e.spend(&h.answer, now, h.charge.N, 0)
		h.at = h.answer.At
		if !scarce && (now.mono >= h.e.soon || h.e.held(now) <= h.e.low) {
			s.refill(&places[i], h.e, now)
		}
	}
}

// anyScarce reports whether the store has lately refused one of the keys. Then what is leased of
// one alone is of no use: it is leased of all alike.
func (s *Store) anyScarce(shares []share, now instant) bool {
	return slices.ContainsFunc(shares, func(h share) bool { return h.e != nil && h.e.scarce(s, now) })
}

// departAll begins a call for what leases do not cover. If all of that can be leased, it is, for
// as many times the question as there is demand for all of it. The shards are locked.
func (s *Store) departAll(shares []share, places []place, now instant) []borrowing {
	bs := make([]borrowing, 0, len(shares))
	times, hold, scarce := int64(math.MaxInt64), int64(0), s.anyScarce(shares, now)
	for i := range shares {
		h := &shares[i]
		n := h.charge.N
		switch {
		case h.held && scarce:
			times = min(times, h.e.held(now)/n)
		case h.held:
		case h.e == nil:
			bs, times = append(bs, borrowing{place: places[i], units: n, need: n, sent: now}), 0
		default:
			b := s.depart(&places[i], h.e, n, n, now)
			bs, times, hold = append(bs, b), min(times, b.extra/n), max(hold, b.hold)
		}
	}
	for i := range bs {
		b := &bs[i]
		if b.hold = hold; b.e != nil && len(bs) > 1 { // all or nothing
			times = min(times, b.e.room/b.units)
		}
	}
	for i := range bs {
		if b := &bs[i]; scarce || len(bs) > 1 {
			b.extra = times * b.units
		}
	}
	return bs
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
		if e != nil {
			e.demand.take(h.charge.N) // it was of no use alone
		}
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

// borrowAll charges in one call of the store what leases do not cover, and leases more if it fits.
func (s *Store) borrowAll(ctx context.Context, bs []borrowing) (r store.Result, err error) {
	landed := 0
	defer func() {
		for i := range bs[landed:] { // after an error
			s.landAlone(&bs[landed+i])
		}
	}()
	q, needs := &store.Question{Mode: store.Allow, Charges: make([]store.Charge, len(bs)), Fresh: true}, make([]need, 0, len(bs))
	for i := range bs {
		if b := &bs[i]; b.e != nil {
			needs = append(needs, need{b.place, b.units})
		} else {
			q.Fresh = false
		}
	}
	_ = s.giveBackNow(ctx, needs...) // or less is admitted
	if err = bs[0].wait(ctx); err != nil {
		return r, err
	}
	sent := s.now()
	for tries := 0; ; tries++ {
		for i := range bs {
			q.Charges[i] = bs[i].charge(bs[i].units + bs[i].extra)
		}
		if err = s.charge(ctx, q); err != nil {
			return r, err
		}
		if q.Result.Allowed || bs[0].extra == 0 {
			break
		}
		fewer(bs, &q.Result, tries)
		sent = s.now()
	}
	s.note(sent, &q.Result, bs[0].flight != nil)
	r.Start(q.Result.At, q.Result.Source)
	r.Allowed = q.Result.Allowed
	for next := 0; landed < len(bs); landed++ {
		b := &bs[landed]
		b.sent = sent
		s.landOne(b, q, landed, next, &r)
		next += len(b.limiter.Spec().Policies)
	}
	return r, nil
}

// fewer makes the extra so small that all charges fit, or none after another try.
func fewer(bs []borrowing, r *store.Result, tries int) {
	times, next := bs[0].extra/bs[0].units, 0
	for i := range bs {
		for range bs[i].limiter.Spec().Policies {
			times = min(times, r.Reading(next).Remaining/bs[i].units-1)
			next++
		}
	}
	if tries > 0 {
		times = 0
	}
	for i := range bs {
		bs[i].extra = max(times, 0) * bs[i].units
	}
}

func (s *Store) landAlone(b *borrowing) {
	if b.e != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.land()
	}
}

// landOne takes over what the store answered to one of several charges, the i-th, of which the readings are
// those from next on, and adds them to the result. If the charges are mixed, with some that cannot be
// leased, the others are leased one by one.
func (s *Store) landOne(b *borrowing, q *store.Question, i, next int, r *store.Result) {
	all, mixed := &q.Result, !q.Fresh
	own := store.Result{At: cmp.Or(q.Charges[i].At, all.At), Source: all.Source, Allowed: true, Aged: all.Aged}
	for range b.limiter.Spec().Policies {
		own.Allowed = own.Allowed && all.Admitted(next)
		own.Add(all.Admitted(next), *all.Reading(next))
		next++
	}
	if b.e != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.land()
		switch {
		case all.Allowed:
			own.Extra = b.extra
			s.learn(b, &own)
			if now := s.now(); b.extra == 0 && (mixed || !b.e.scarce(s, now)) {
				s.refill(&b.place, b.e, now)
			}
		case own.Allowed: // others refused
			b.e.room = least(&own)
			b.e.demand.take(b.units)
		default:
			s.learn(b, &own)
		}
	}
	r.AddAll(&own)
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
