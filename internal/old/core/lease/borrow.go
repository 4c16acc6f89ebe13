package lease

import (
	"context"
	"math"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// arrival returns about what the store's clock says when a call arrives that is sent now.
func (s *Store) arrival(now instant) int64 { return s.calls.lead.Load() + now.mono/1000 }

// pause is for how long a refusal of the store holds, in nanoseconds from when its call was sent.
func (s *Store) pause(l *limiter) int64 { return min(s.span/20, l.pause) }

// want returns how many units to lease, beside n that are spent at once.
func (s *Store) want(e *entry, now instant, n int64) int64 {
	if s.closed.Load() {
		return 0
	}
	at := s.arrival(now)
	life, trip := min((e.limiter.family.part(at).over-at)*1000, s.span), s.calls.trip.Load()
	if life <= late(trip) {
		return 0
	}
	asked := e.demand.units(now.mono, s.span) // in a span
	units := (asked - float64(n)) * float64(life) / float64(s.span)
	if units < float64(n) && e.waiting == 0 {
		return 0
	}
	spread := math.Sqrt(max(units, 0)) // of a demand that comes by chance
	scarce := e.scarce(s, now)
	if e.limiter.bucket() {
		// What is held is spent first, as far as there is time for it. What is leased too much
		// is lost, as it would have refilled: half the time is enough.
		units /= 2
		for i := range e.leases {
			if b := &e.leases[i]; b.left > 0 && b.live(now) {
				units -= min(float64(b.left), asked*float64(b.until.mono-now.mono)/float64(s.span))
			}
		}
		if scarce {
			units -= spread
		}
	} else {
		// What is leased too much is given back when the lease ends, and too little is another call.
		units -= float64(e.held(now))
		if !scarce {
			units += units/8 + 2*spread + asked*2*float64(trip)/float64(s.span)
		}
	}
	// What is spent in about the time of a pause is missing elsewhere no longer than that.
	most := int64(asked * float64(s.pause(e.limiter)+trip) / float64(s.span))
	if !scarce {
		most = max(most, e.room/4)
	}
	return max(min(int64(units), most), e.waiting, 0)
}

// hold returns for how long to hold a call back, in nanoseconds, so that it arrives in the next part
// of time: it is nearly there, or what a call brings now would come too late, and many wait for it.
func (s *Store) hold(e *entry, now instant) int64 {
	at, trip := s.arrival(now), s.calls.trip.Load()
	p := e.limiter.family.part(at)
	rest, length := (p.over-at)*1000, (p.end-p.start)*1000
	if e.limiter.bucket() || rest <= 0 || length <= late(trip) {
		return 0
	}
	most := trip/8 + min(s.span, length, int64(time.Second))/500
	asked := e.demand.units(now.mono, s.span) / float64(s.span)
	if asked*float64(trip) >= many {
		most = max(most, late(trip))
	}
	if rest > most || asked*float64(most) < 1 {
		return 0
	}
	return rest + min(2*s.calls.jitter.Load()*1000, trip/2)
}

// many is how many calls in a round trip are too many to be made one by one.
const many = 8

// late is how much of its life a lease must have when it is sent for, in nanoseconds.
func late(trip int64) int64 { return trip + trip/4 }

// refill leases more in the background, if the demand says so. The shard is locked.
func (s *Store) refill(p *place, e *entry, now instant) {
	e.low, e.soon = -1, math.MaxInt64 // until there is a lease again
	if e.flight != nil || e.paused(now) {
		return
	}
	units := s.want(e, now, 1)
	if units < 2 || !s.reserve(callBytes, s.maxBytes) { // then the next caller asks
		return
	}
	b := s.depart(p, e, 1, 0, now)
	b.extra, b.flight = units-1, make(chan struct{})
	e.flight = b.flight
	go func() {
		defer s.used.Add(-callBytes)
		ctx, cancel := context.WithTimeout(context.Background(), sendFor)
		defer cancel()
		_ = s.borrow(ctx, b, new(store.Result)) // what fails is asked for by the next caller
	}()
}

// call asks the store, and notes how long that takes, and what its clock says.
func (s *Store) call(ctx context.Context, q *store.Question, flight bool, sent instant, r *store.Result) error {
	if err := s.charge(ctx, q); err != nil {
		return err
	}
	r.CopyFrom(&q.Result)
	s.note(sent, r, flight)
	return nil
}

func (s *Store) note(sent instant, r *store.Result, flight bool) {
	if r.Source == store.SourceStore { // a clock may go back while the machine is suspended
		s.calls.note(max(s.now().mono-sent.mono, 0), r.At-sent.mono/1000, flight)
	}
}

// A borrowing is a call of the store for a key, which may lease units.
type borrowing struct {
	place

	e      *entry
	units  int64 // to be charged
	extra  int64 // and as many more as fit
	need   int64 // of these, those that are spent at once
	most   int64 // and of the extra, as many as there are
	hold   int64 // nanoseconds before it is sent
	sent   instant
	resets int
	others int
	flight chan struct{}
}

// depart begins a call for units, of which it needs n at once, and leases more if there is a
// demand. The shard is locked.
func (s *Store) depart(p *place, e *entry, units, n int64, now instant) borrowing {
	b := borrowing{place: *p, e: e, units: units, need: n, sent: now, resets: e.resets, others: e.others}
	b.key = e.key
	if n > 0 && e.flight == nil {
		b.hold = s.hold(e, now)
		b.extra = s.want(e, now.add(b.hold), n)
		if b.extra > 0 || e.scarce(s, now) { // others wait for what it brings, or are refused alike
			b.flight = make(chan struct{})
			e.flight = b.flight
		}
	}
	e.calls++
	return b
}

// land ends a call. The shard is locked.
func (b *borrowing) land() {
	b.e.calls--
	if b.flight != nil {
		close(b.flight)
		b.e.flight = nil
	}
}

// borrow asks the store for what is needed, and more.
func (s *Store) borrow(ctx context.Context, b borrowing, r *store.Result) error {
	landed := false
	defer func() {
		if !landed { // a panic
			b.mu.Lock()
			defer b.mu.Unlock()
			b.land()
		}
	}()
	err := b.wait(ctx)
	if err == nil {
		if b.hold > 0 {
			b.sent = s.now()
		}
		err = s.call(ctx, b.allow(b.units, b.extra, true), b.flight != nil, b.sent, r)
	}
	b.mu.Lock()
	landed = true
	b.land()
	if err == nil {
		s.learn(&b, r)
	}
	b.mu.Unlock()
	if err != nil || r.Allowed || b.need == 0 {
		return err
	}
	return s.reconsider(ctx, &b.place, b.units, b.most, r)
}

// wait waits until the call is to be sent.
func (b *borrowing) wait(ctx context.Context) error {
	if b.hold == 0 {
		return nil
	}
	timer := time.NewTimer(time.Duration(b.hold))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reconsider decides again what the store has refused, with the result r: what others have
// leased meanwhile was missing there.
func (s *Store) reconsider(ctx context.Context, p *place, n, extra int64, r *store.Result) error {
	p.mu.Lock()
	e := p.find()
	if e == nil {
		p.mu.Unlock()
		return nil
	}
	if flight := e.flight; flight != nil {
		p.mu.Unlock()
		select {
		case <-flight:
		case <-ctx.Done():
			return nil
		}
		p.mu.Lock()
	}
	now := s.now()
	if e.spend(r, now, n, extra) {
		p.mu.Unlock()
		return nil
	}
	left := e.leases[0].left + e.leases[1].left + s.waiting(p)
	p.mu.Unlock()
	if left == 0 || least(r)+left < n {
		return nil
	}
	// What is left here, and what is left there, may be enough together.
	if err := s.giveBackNow(ctx, need{*p, n}); err != nil {
		return nil //nolint:nilerr // it is refused
	}
	return s.call(ctx, p.allow(n, extra, true), false, s.now(), r)
}

// learn takes over what the store answered, of which what is not needed at once is leased: or
// returned, if it cannot be. It adds what is leased to the result. The shard is locked.
func (s *Store) learn(b *borrowing, r *store.Result) {
	e, now := b.e, s.now()
	if r.Source == store.SourceStore {
		e.room = least(r)
	}
	if e.resets == b.resets {
		s.remember(b, r, now)
	}
	surplus := r.Extra
	if r.Extra = min(r.Extra, b.most); r.Allowed {
		surplus += b.units - b.need - r.Extra
		if e.demand.add(now.mono, s.span, r.Extra); r.Extra < b.most && r.Source == store.SourceStore {
			e.topUp(r, now, b.most)
		}
	}
	switch {
	case surplus == 0, e.resets != b.resets: // what may be forgotten, or count until it expires
	case r.Source != store.SourceStore || e.others != b.others:
		s.giveBack(store.Charge{
			Limiter: e.limiter.Limiter, Key: e.key, N: b.need + surplus,
			At: r.At, Source: r.Source, Actual: b.need,
		})
	default:
		s.open(e, r, b.sent, now, surplus)
	}
	if r.Allowed && r.Source == store.SourceStore {
		if held := e.held(now); held > 0 {
			*r = beside(r, held, 0)
		}
	}
}

// remember notes what the store has refused: the units, or what is beyond all that it had. What
// it refused lately of more units stays: its numbers suffice for fewer.
func (s *Store) remember(b *borrowing, r *store.Result, now instant) {
	e := b.e
	f := refusal{n: b.units, result: *r, came: now.mono, last: now.mono}
	switch {
	case r.Source != store.SourceStore && r.Source != store.SourceCache:
		return
	case r.Allowed && e.room > 0:
		return
	case r.Allowed: // the next unit would be refused
		f.n, f.result = 1, nextRefused(r)
	}
	if old := &e.refusal; old.n > f.n && now.mono-old.came < s.span {
		f.n, f.result, f.came = old.n, old.result, old.came
	}
	// It holds from when the call was sent, but not in another part of time, where more may be left.
	// A key that is asked for less often than that is asked for each time.
	over := (e.limiter.family.part(r.At).over - r.At) * 1000
	pause := min(s.pause(e.limiter), over-over/500)
	if e.demand.units(now.mono, s.span)*float64(pause) >= float64(b.units)*float64(s.span) {
		f.until = b.sent.mono + pause - r.Aged*1000
	}
	e.refusal = f
}

// nextRefused returns the refusal of a unit, by the result of a charge that left none.
func nextRefused(r *store.Result) store.Result {
	refused := store.Result{At: r.At, Source: r.Source}
	for i := range r.Len() {
		x := *r.Reading(i)
		if x.Remaining == 0 {
			x.RetryAfter = x.NextAfter
		}
		refused.Add(x.Remaining > 0, x)
	}
	return refused
}

// open leases units that the store charged at r.At, by a call that was sent at that time. The
// shard is locked.
func (s *Store) open(e *entry, r *store.Result, sent, now instant, units int64) {
	p := e.limiter.family.part(r.At)
	span := min(life(p.over-r.At), s.span)
	until := sent.add(span)
	if s.closed.Load() || !now.before(until) {
		s.giveBack(store.Charge{Limiter: e.limiter.Limiter, Key: e.key, N: units, At: r.At, Source: store.SourceStore})
		return
	}
	b := s.vacant(e, &p, now)
	if !b.live(now) || b.part != p && b.left == 0 {
		*b = lease{part: p, at: r.At, until: until}
	}
	if e.limiter.bucket() {
		b.at, b.start, b.end = min(b.at, r.At), min(b.start, p.start), max(b.end, p.end)
		b.until = b.until.earlier(until)
	} else {
		b.until = b.until.later(until)
	}
	b.left, b.charged = b.left+units, b.charged+units
	if one := &e.leases[0]; one.left == 0 || e.leases[1].left > 0 && e.leases[1].until.mono < one.until.mono {
		e.leases[0], e.leases[1] = e.leases[1], e.leases[0]
	}
	if r.At >= e.answer.At {
		e.answer, e.from = *r, now.mono
	}

	rate := e.demand.units(now.mono, s.span) / float64(s.span) // units a nanosecond
	ahead := 3 * s.calls.trip.Load()
	e.low = min(int64(rate*float64(ahead)), (e.leases[0].left+e.leases[1].left)/2)
	e.soon = math.MaxInt64
	if e.limiter.bucket() || span == s.span { // the next may begin before this one ends
		e.soon = max(e.leases[0].until.mono, e.leases[1].until.mono) - max(ahead, span/16)
	}
}

// vacant returns where to put units that were charged in a part: a lease of that part, or one
// that is over or used up, or else the one of a bucket that ends last.
func (s *Store) vacant(e *entry, p *part, now instant) *lease {
	for i := range e.leases {
		if b := &e.leases[i]; b.left > 0 && !b.live(now) {
			s.giveBackLease(e, b)
		}
	}
	for i := range e.leases {
		if b := &e.leases[i]; b.live(now) && b.part == *p {
			return b
		}
	}
	for i := range e.leases {
		if b := &e.leases[i]; b.left == 0 {
			return b
		}
	}
	if e.limiter.bucket() {
		return &e.leases[1]
	}
	s.giveBackLease(e, &e.leases[0])
	return &e.leases[0]
}

// finish ends the leases of a key.
func (s *Store) finish(e *entry) {
	for i := range e.leases {
		s.giveBackLease(e, &e.leases[i])
	}
	e.low, e.soon = -1, math.MaxInt64
}

func (s *Store) giveBackLease(e *entry, b *lease) {
	var t store.Charge
	if e.take(b, &t) {
		s.giveBack(t)
	}
}
