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
	minDemand   = 2                     // units in a life
	roundTrips  = 2                     // that a lease must last at least
	partsOfLife = 20                    // a refusal holds for one of them, and a sweep comes after each
	maxLifePart = 50 * time.Millisecond // but each is no longer
)

// A borrow is a call of the store for a charge, and for units to lease.
type borrow struct {
	leases        *Leases
	entry         *entry
	store         store.Rates
	n             int64 // units of the charge; 0: of none
	extra         int64 // more, to lease
	resets        int   // of the entry when it began
	decisionStart instant
	done          chan struct{} // callDone of the entry, if this is the call
}

// newBorrow returns what to ask the store for, for a decision that began at an instant, and makes others wait for it if
// it leases. The shard is locked.
func (s *Leases) newBorrow(e *entry, began, now instant, n int64) *borrow {
	b := &borrow{leases: s, entry: e, store: s.uncached, n: n, resets: e.resets, decisionStart: began}
	b.extra = s.extra(e, now, n)
	if !e.mayComeBack(now, s.life) {
		b.store = s.next
	}
	if b.extra > 0 {
		b.done = make(chan struct{})
		e.callDone = b.done
	}
	return b
}

// mayComeBack reports whether others may give back what the store has refused, so that refusals are asked for again.
// After two lives all that they had leased is back, and a refusal that is remembered is as good as another.
func (e *entry) mayComeBack(now instant, life int64) bool {
	return e.firstRefusalByMonotonic == 0 || now.monotonic-e.firstRefusalByMonotonic <= 2*life
}

// extra returns how many units to lease beside n: what the demand of late takes until the lease ends. Units that are
// not used here are missing elsewhere, so it is at most a quarter of what is left, and for at most a quarter of a
// period.
func (s *Leases) extra(e *entry, now instant, n int64) int64 {
	// One call at a time leases for a key. The first answer of the store says how much there is to lease.
	if e.callDone != nil || e.readAtStore == 0 {
		return 0
	}
	// What the clock of the store shows now, about.
	nowAtStore := e.readAtStore + e.sinceAnswer(now)
	life := min(s.life, (partEnd(e.cells, nowAtStore)-nowAtStore)*1000)
	left := int64(step.MaxInt)
	// All policies are leased together, so the least that one of them has left counts.
	for i := range e.cells {
		cell := &e.cells[i]
		life = min(life, cell.Policy.Period*1000/4)
		if cell.Policy.Kind != step.SlidingWindow && nowAtStore >= cell.Policy.LeaseEnd(e.readAtStore) {
			left = min(left, cell.Policy.Capacity()) // the reading is of the window before
		} else {
			left = min(left, cell.Remaining)
		}
	}
	// A lease that saves no call is not made.
	demand := e.demand.units(now.monotonic, s.life)
	if demand < minDemand || life < roundTrips*e.roundTrip {
		return 0
	}
	units := demand * float64(life) / float64(s.life)
	if units*8 < float64(left) {
		units += math.Sqrt(units) // a margin, as requests come by chance
	}
	units -= float64(n + e.liveUnits(now))
	return max(min(int64(units), left/4, left-n), 0)
}

// run borrows for a caller. The caller may leave, but what is to be leased must not be lost then: a borrow that leases
// does not end with the context.
func (b *borrow) run(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	// Without a lease there is nothing to lose, and a context that never ends needs no goroutine.
	if b.extra == 0 || ctx.Done() == nil {
		return b.ask(ctx, cells)
	}
	type answer struct {
		allowed bool
		err     error
	}
	// Cells of its own, since those of a caller that leaves are used again.
	own := append([]step.Cell(nil), cells...)
	answers := make(chan answer, 1)
	ask := func() {
		allowed, err := b.ask(context.WithoutCancel(ctx), own)
		answers <- answer{allowed, err}
	}
	if !b.leases.start(ask) { // it is closed
		return b.ask(ctx, cells)
	}
	select {
	case answered := <-answers:
		copy(cells, own)
		return answered.allowed, answered.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// ask asks for the charge and more; if that is refused, for the charge. If that is refused too, what the lease has goes
// back, and the store is asked once more: so a key that is asked for here only is refused when the store would refuse
// it.
func (b *borrow) ask(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	defer b.end() // also if an observer panics
	var asked []step.Cell
	var sent instant
	askFor := func(extra int64) {
		b.extra = extra // which land leases
		asked = withUnits(cells, b.n+extra)
		sent = b.leases.now()
		allowed, err = b.store.Ask(ctx, step.Allow, asked)
	}
	refused := func() bool { return err == nil && !allowed && b.n > 0 }

	more := b.extra > 0
	askFor(b.extra)
	if more && refused() {
		askFor(0)
	}
	// Once, since others may lease again before the store is asked: a loop might have no end.
	if refused() && b.leases.returnLease(ctx, cells, b.decisionStart) {
		askFor(0)
	}
	// After an error nobody knows what was charged. It counts until its window has passed.
	if err == nil {
		b.land(allowed, asked, sent)
	}
	// The caller is told of its charge alone: what is leased is left.
	copy(cells, asked)
	for i := range cells {
		cell := &cells[i]
		cell.Units = b.n
		if allowed && cell.Source != step.SourceOpen { // which has charged nothing
			cell.Remaining += b.extra
		}
	}
	return allowed, err
}

// end lets those go on who wait for the call.
func (b *borrow) end() {
	if b.done != nil {
		sh := b.leases.lock(b.entry.cells)
		b.entry.callDone = nil
		sh.mu.Unlock()
		close(b.done)
	}
}

// land notes an answer to a question that was sent at an instant. What was charged beyond what is needed is leased. A
// refusal says to wait until this process asks the store again.
func (b *borrow) land(allowed bool, answered []step.Cell, sent instant) {
	e := b.entry
	now := b.leases.now()
	sh := b.leases.lock(answered)
	defer sh.mu.Unlock()
	switch {
	case e.resets != b.resets: // what was charged may be forgotten, or count until it expires
	case answered[0].Source != step.SourceStore || sh.entryFor(answered) != e:
		// Only the store leases, and not what it remembers, or decides while the server is away; and only to the entry
		// that asked, which may be dropped meanwhile. Without a reading, the next call leases nothing either.
		e.readAtStore = 0
		if allowed {
			b.leases.giveBack(withUnits(answered, -b.extra))
		}
	default:
		isNewest := e.learn(answered, now, sent)
		if allowed {
			e.firstRefusalByMonotonic = 0
			b.leases.giveBack(e.addUnits(b.extra, answered, sent, b.leases.life))
		} else if isNewest && b.n > 0 {
			// It holds from the sending: the store may have refused right after it.
			e.refusalEndByMonotonic = sent.monotonic + b.leases.refusalSpan(answered)
			e.refusedUnits = b.n
			e.firstRefusalByMonotonic = cmp.Or(e.firstRefusalByMonotonic, sent.monotonic)
			e.waitForRefusalEnd(answered, now)
		}
	}
}

// waitForRefusalEnd has who was refused wait until the store is asked again, too.
func (e *entry) waitForRefusalEnd(charge []step.Cell, now instant) {
	for i := range charge {
		cell := &charge[i]
		if cell.Shortfall > 0 {
			cell.RetryAfter = max(cell.RetryAfter, (e.refusalEndByMonotonic-now.monotonic)/1000+1)
		}
	}
}

// learn notes an answer of the store, and reports whether it is the newest: of two calls, the first may be answered
// last.
func (e *entry) learn(answered []step.Cell, now, sent instant) (isNewest bool) {
	if answered[0].Instant < e.readAtStore {
		return false
	}
	e.readAtStore = answered[0].Instant
	e.readByMonotonic = now.monotonic
	e.roundTrip = now.monotonic - sent.monotonic
	e.refusalEndByMonotonic = 0
	// What the lease has is added when the reading is shown: see read.
	for i := range answered {
		e.cells[i].Shortfall = answered[i].Shortfall
		e.cells[i].Reading = answered[i].Reading
	}
	return true
}

// addUnits adds units that the store has charged to the lease, if that is of the same part of time, or else begins a
// lease and returns what was left. The part lasts from the charge, which came after the sending, so a lease that counts
// from the sending ends before it.
func (e *entry) addUnits(units int64, answered []step.Cell, sent instant, life int64) (back []step.Cell) {
	if units == 0 {
		return nil
	}
	chargedAt := answered[0].Instant
	end := partEnd(answered, chargedAt)
	// A microsecond less, as the store's instants are rounded down, and a thousandth less, as clocks drift: in
	// nanoseconds.
	endsHere := sent.add(min(life, (end-chargedAt-1)*999))
	if e.chargedAtStore > 0 && e.partEndAtStore == end {
		// Of the same part. All may be spent until the later end, and all goes back to the earlier charge.
		e.chargedAtStore = min(e.chargedAtStore, chargedAt)
		e.endsHere.monotonic = max(e.endsHere.monotonic, endsHere.monotonic)
		e.endsHere.wall = max(e.endsHere.wall, endsHere.wall)
	} else {
		back = e.finish()
		e.chargedAtStore = chargedAt
		e.partEndAtStore = end
		e.endsHere = endsHere
	}
	e.units += units
	return back
}

// pause returns for how long a refusal holds at most, in nanoseconds.
func (s *Leases) pause() int64 { return min(s.life/partsOfLife, int64(maxLifePart)) }

// refusalSpan returns for how long a refusal holds, in nanoseconds: never into the next part of time, where more may be
// left. In a sliding window, units expire all the time.
func (s *Leases) refusalSpan(charge []step.Cell) int64 {
	// A microsecond less, as the store's instants are rounded down.
	instant := charge[0].Instant
	span := min(s.pause(), (partEnd(charge, instant)-instant-1)*1000)
	for i := range charge {
		policy := charge[i].Policy
		if policy.Kind == step.SlidingWindow {
			span = min(span, policy.Period*1000/50)
		}
	}
	return span
}

// withUnits returns copies of cells with so many units.
func withUnits(cells []step.Cell, n int64) []step.Cell {
	copies := append([]step.Cell(nil), cells...)
	for i := range copies {
		copies[i].Units = n
	}
	return copies
}
