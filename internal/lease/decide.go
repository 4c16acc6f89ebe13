package lease

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// Ask implements [store.Rates].
func (s *Leases) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	// Most questions are one charge of some units. Checks and several charges spend leases, but lease nothing at once.
	charge := firstCharge(cells)
	switch {
	case mode == step.Settle:
		return s.settle(ctx, cells)
	case mode == step.Reset:
		s.forget(cells)
		defer s.forget(cells) // what was charged meanwhile may be forgotten, or not
	case mode == step.Peek, len(charge) < len(cells), charge[0].Units == 0:
		return s.together(ctx, mode, cells)
	case leasable(charge):
		return s.decide(ctx, charge)
	}
	return s.next.Ask(ctx, mode, cells)
}

// firstCharge returns the first charge: the cells of one limiter and key. Policy.Last does not tell where it ends, as a
// correction has only the cells that change.
func firstCharge(cells []step.Cell) (charge []step.Cell) {
	first := &cells[0]
	n := 1
	for n < len(cells) && cells[n].Policy.Limiter == first.Policy.Limiter && cells[n].Hash == first.Hash {
		n++
	}
	return cells[:n]
}

// Answer answers a charge without a call, if it can: if the lease has the units, or the store has refused them a moment
// ago. Several charges match no entry. The cells stay on the stack of the caller. It makes the receipt, unless that is
// nil.
func (s *Leases) Answer(mode step.Mode, cells []step.Cell, receipt *store.Receipt) (allowed, answered bool) {
	now := s.now() // before the lock, which is then held for a shorter time
	sh := s.lock(cells)
	e := sh.entryFor(cells)
	if e != nil {
		allowed, answered = e.answer(mode, cells, now)
		if answered && mode == step.Allow {
			e.demand.add(now.monotonic, s.life, cells[0].Units)
		}
		// A charge can be corrected once, by its receipt. They are made many at once.
		if allowed && receipt != nil {
			if sh.calls%store.Many == 0 {
				sh.receipts = new(store.Receipts)
			}
			*receipt = sh.receipts.Receipt(sh.calls)
			sh.calls++
		}
	}
	sh.mu.Unlock()
	return allowed, answered
}

// answer is Answer with the shard locked.
func (e *entry) answer(mode step.Mode, charge []step.Cell, now instant) (allowed, answered bool) {
	n := charge[0].Units // of all cells: no policy that counts otherwise is leased
	left := e.liveUnits(now)
	// Only the number of units that was refused is refused here: fewer may fit.
	allowed = left > 0 && n <= left
	if !allowed && (n != e.refusedUnits || now.monotonic >= e.refusalEndByMonotonic) {
		return false, false
	}
	if allowed && mode == step.Allow {
		e.units -= n
	}
	// Also a refusal says what is left and when all is: by the store's last answer, and the lease.
	e.read(charge, now)
	if !allowed {
		e.repeatRefusal(charge, now)
	}
	return allowed, true
}

// read answers a charge by what the store last said and what the lease has.
func (e *entry) read(charge []step.Cell, now instant) {
	passed := e.sinceAnswer(now)
	left := e.liveUnits(now)
	for i := range charge {
		cell := &charge[i]
		reading := &e.cells[i].Reading
		cell.Instant = e.chargedAtStore // to which a refund goes back
		cell.Source = step.SourceLease
		cell.Shortfall = 0
		cell.Remaining = min(reading.Remaining+left, cell.Policy.Capacity())
		cell.NextAfter = shorter(reading.NextAfter, passed)
		cell.ResetAfter = shorter(reading.ResetAfter, passed)
		cell.RetryAfter = 0
	}
}

// repeatRefusal refuses a charge by the policies by which the store last did, and has it wait for the end of that.
func (e *entry) repeatRefusal(charge []step.Cell, now instant) {
	for i := range charge {
		cell := &charge[i]
		last := &e.cells[i]
		if last.Shortfall > 0 {
			cell.Instant = e.readAtStore
			cell.Shortfall = last.Shortfall
			cell.RetryAfter = shorter(last.RetryAfter, e.sinceAnswer(now))
		}
	}
	e.waitForRefusalEnd(charge, now)
}

// sinceAnswer returns the time since the latest answer of the store, in microseconds.
func (e *entry) sinceAnswer(now instant) int64 { return (now.monotonic - e.readByMonotonic) / 1000 }

// shorter returns a span that began a while ago. It is 0 only if it was.
func shorter(span, passed int64) int64 { return max(span-passed, min(span, 1)) }

// decide decides about one charge.
func (s *Leases) decide(ctx context.Context, charge []step.Cell) (allowed bool, err error) {
	began := s.now()
	now := began
	for waited := false; ; waited = true {
		sh := s.lock(charge)
		e := s.busyEntry(sh, charge, now)
		if e == nil { // the key is not busy
			sh.mu.Unlock()
			return s.next.Ask(ctx, step.Allow, charge)
		}
		if !waited {
			e.demand.add(now.monotonic, s.life, charge[0].Units)
		}
		allowed, answered := e.answer(step.Allow, charge, now)
		if answered {
			sh.mu.Unlock()
			return allowed, nil
		}
		// Whoever has waited once for a call of another asks now: the next call may leave nothing over for it, either.
		call := e.callDone
		if call == nil || waited {
			b := s.newBorrow(e, began, now, charge[0].Units)
			sh.mu.Unlock()
			return b.run(s.within(ctx, began), charge)
		}
		sh.mu.Unlock()
		select {
		case <-call:
			now = s.now()
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// within lets all calls of a decision share one timeout.
func (s *Leases) within(ctx context.Context, began instant) context.Context {
	if _, ok := ctxmark.DecisionEnd(ctx); ok {
		return ctx
	}
	// Alone, the store would count its timeout anew with each call.
	return ctxmark.DecideBy(ctx, s.origin.Add(time.Duration(began.monotonic)).Add(s.timeout))
}
