package lease

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

const (
	minDemand  = 2                     // units in a life
	roundTrips = 2                     // that a lease must last at least
	pauses     = 20                    // of a life, a part for which a refusal holds
	maxPause   = 50 * time.Millisecond // for which it holds at most
)

// A borrow is a call of the store for a charge, and for units to lease.
type borrow struct {
	s      *Leases
	e      *entry
	from   store.Rates
	n      int64 // units of the charge; 0: of none
	want   int64 // more, to lease
	resets int
	began  instant       // of the decision
	call   chan struct{} // e.call, if this is it
}

// borrow returns what to ask the store for. The shard is locked.
func (s *Leases) borrow(e *entry, began, now instant, n int64) *borrow {
	b := &borrow{s: s, e: e, n: n, want: s.want(e, now, n), resets: e.resets, began: began, from: s.fresh}
	if e.since > 0 && now.mono-e.since > 2*s.life {
		b.from = s.next // all that others had leased is back, so a refusal that is remembered is as good as another
	}
	if b.want > 0 {
		b.call = make(chan struct{})
		e.call = b.call
	}
	return b
}

// want returns how many units to lease beside n: what the demand of late takes until the lease ends. Units that are not
// used here are missing elsewhere, so it is at most a quarter of what is left, and for at most a quarter of a period.
func (s *Leases) want(e *entry, now instant, n int64) int64 {
	if e.call != nil || e.as == 0 {
		return 0
	}
	at, space := e.as+(now.mono-e.said)/1000, int64(step.MaxInt)
	life := min(s.life, (end(e.cells, at)-at)*1000)
	for i := range e.cells {
		c := &e.cells[i]
		life = min(life, c.Policy.Period*1000/4)
		left := c.Remaining
		if c.Policy.Kind != step.SlidingWindow && at >= c.Policy.LeaseEnd(e.as) {
			left = c.Policy.Capacity() // a new window
		}
		space = min(space, left)
	}
	asked := e.demand.units(now.mono, s.life)
	if asked < minDemand || life < roundTrips*e.roundTrip {
		return 0
	}
	units := asked * float64(life) / float64(s.life)
	if units*8 < float64(space) {
		units += math.Sqrt(units) // a margin, as requests come by chance
	}
	units -= float64(n + e.held(now))
	return max(min(int64(units), space/4, space-n), 0)
}

// run borrows for a caller. The caller may leave, but what is to be leased must not be lost then: a borrow that leases
// does not end with the context.
func (b *borrow) run(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	if b.want == 0 || ctx.Done() == nil {
		return b.ask(ctx, cells)
	}
	type answer struct {
		allowed bool
		err     error
	}
	own := append([]step.Cell(nil), cells...)
	answers := make(chan answer, 1)
	ask := func() {
		allowed, err := b.ask(context.WithoutCancel(ctx), own)
		answers <- answer{allowed, err}
	}
	if !b.s.start(ask) { // it is closed
		return b.ask(ctx, cells)
	}
	select {
	case a := <-answers:
		copy(cells, own)
		return a.allowed, a.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// ask asks for the charge and more; if that is refused, for the charge. If that is refused too, what the lease has goes
// back, and the store is asked once more: so a key that is asked for here only is refused when the store would refuse it.
func (b *borrow) ask(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	defer b.end()
	far := withUnits(cells, b.n+b.want)
	sent := b.s.now()
	allowed, err = b.from.Ask(ctx, step.Allow, far)
	for leased := b.want > 0; err == nil && !allowed && b.n > 0; leased = false {
		if !leased && !b.s.returnLease(ctx, cells, b.began) {
			break
		}
		b.want = 0
		far = withUnits(cells, b.n)
		sent = b.s.now()
		allowed, err = b.from.Ask(ctx, step.Allow, far)
	}
	if err == nil {
		b.land(allowed, far, sent)
	}
	for i := range cells {
		if cells[i] = far[i]; allowed {
			cells[i].Units, cells[i].Remaining = b.n, far[i].Remaining+b.want
		}
	}
	return allowed, err
}

// end lets those go on who wait for the call.
func (b *borrow) end() {
	if b.call != nil {
		sh := b.s.lock(b.e.cells)
		b.e.call = nil
		sh.mu.Unlock()
		close(b.call)
	}
}

// land notes an answer. What was charged beyond what is needed is leased. A refusal says to wait until this process
// asks the store again.
func (b *borrow) land(allowed bool, far []step.Cell, sent instant) {
	e, now := b.e, b.s.now()
	sh := b.s.lock(far)
	defer sh.mu.Unlock()
	switch {
	case e.resets != b.resets: // what was charged may be forgotten, or count until it expires
	case far[0].Source != step.SourceStore || sh.of(far) != e: // only the store leases, to who asked
		e.as = 0
		if allowed {
			b.s.giveBack(withUnits(far, -b.want))
		}
	default:
		if e.learn(far, now, sent); allowed {
			e.since = 0
			b.s.giveBack(e.lease(b.want, far, sent, b.s.life))
		} else if b.n > 0 {
			e.pause = sent.mono + b.s.pause(far)
			e.refused = b.n
			e.since = cmp.Or(e.since, sent.mono)
			e.hold(far, now)
		}
	}
}

// hold has who was refused wait until the pause is over, too.
func (e *entry) hold(charge []step.Cell, now instant) {
	for i := range charge {
		if c := &charge[i]; c.Shortfall > 0 {
			c.RetryAfter = max(c.RetryAfter, (e.pause-now.mono)/1000+1)
		}
	}
}

// learn notes an answer of the store.
func (e *entry) learn(far []step.Cell, now, sent instant) {
	if far[0].Instant < e.as {
		return // of two calls, this was the first
	}
	e.said, e.as, e.roundTrip, e.pause = now.mono, far[0].Instant, now.mono-sent.mono, 0
	for i := range far {
		e.cells[i].Shortfall, e.cells[i].Reading = far[i].Shortfall, far[i].Reading
	}
}

// lease adds units that the store has charged to the lease, if that is of the same part of time, or else begins a lease
// and returns what was left. The part lasts from the charge, which came after the sending, so a lease that counts from
// the sending ends before it. A microsecond less, as the store's instants are rounded down, and a thousandth less, as
// clocks drift.
func (e *entry) lease(units int64, far []step.Cell, sent instant, life int64) (back []step.Cell) {
	if units == 0 {
		return nil
	}
	at, part := far[0].Instant, end(far, far[0].Instant)
	until := sent.add(min(life, (part-at-1)*999))
	if e.at > 0 && e.end == part {
		e.at, e.until = min(e.at, at), instant{max(e.until.mono, until.mono), max(e.until.wall, until.wall)}
	} else {
		back = e.finish()
		e.at, e.end, e.until = at, part, until
	}
	e.left += units
	return back
}

// pause returns for how long a refusal holds, in nanoseconds: never into the next part of time, where more may be left.
// In a sliding window, units expire all the time.
func (s *Leases) pause(charge []step.Cell) int64 {
	at := charge[0].Instant
	span := min(s.life/pauses, int64(maxPause), (end(charge, at)-at-1)*1000)
	for i := range charge {
		if p := charge[i].Policy; p.Resolution > 0 {
			span = min(span, p.Period*1000/50)
		}
	}
	return span
}

// withUnits returns copies of cells with so many units.
func withUnits(cells []step.Cell, n int64) []step.Cell {
	far := append([]step.Cell(nil), cells...)
	for i := range far {
		far[i].Units = n
	}
	return far
}
