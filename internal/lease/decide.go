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
	switch charge := first(cells); {
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

// first returns the first charge: the cells of one limiter and key.
func first(cells []step.Cell) (charge []step.Cell) {
	c, n := &cells[0], 1
	for n < len(cells) && cells[n].Policy.Limiter == c.Policy.Limiter && cells[n].Hash == c.Hash {
		n++
	}
	return cells[:n]
}

// Answer answers a charge without a call, if it can: if the lease has the units, or the store has refused them a moment
// ago. The cells stay on the stack of the caller. It makes the receipt, unless that is nil.
func (s *Leases) Answer(mode step.Mode, cells []step.Cell, receipt *store.Receipt) (allowed, answered bool) {
	now := s.now() // before the lock, which is then held for a shorter time
	sh := s.lock(cells)
	if e := sh.of(cells); e != nil {
		allowed, answered = e.answer(mode, cells, now)
		if answered && mode == step.Allow {
			e.demand.add(now.mono, s.life, cells[0].Units)
		}
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

func (e *entry) answer(mode step.Mode, charge []step.Cell, now instant) (allowed, answered bool) {
	n, held := charge[0].Units, e.held(now)
	allowed = held > 0 && n <= held
	if !allowed && (n != e.refused || now.mono >= e.pause) {
		return false, false
	}
	if allowed && mode == step.Allow {
		e.left -= n
	}
	e.read(charge, now)
	for i := range charge {
		if c, last := &charge[i], &e.cells[i]; !allowed && last.Shortfall > 0 {
			c.Instant, c.Shortfall = e.as, last.Shortfall
			c.RetryAfter = less(last.RetryAfter, (now.mono-e.said)/1000)
		}
	}
	if !allowed {
		e.hold(charge, now)
	}
	return allowed, true
}

// read answers a charge by what the store last said and what the lease has.
func (e *entry) read(charge []step.Cell, now instant) {
	passed, held := (now.mono-e.said)/1000, e.held(now)
	for i := range charge {
		c, r := &charge[i], &e.cells[i].Reading
		c.Instant, c.Source, c.Shortfall, c.RetryAfter = e.at, step.SourceLease, 0, 0
		c.Remaining = min(r.Remaining+held, c.Policy.Capacity())
		c.NextAfter, c.ResetAfter = less(r.NextAfter, passed), less(r.ResetAfter, passed)
	}
}

// less returns a span that began a while ago. It is 0 only if it was.
func less(span, passed int64) int64 { return max(span-passed, min(span, 1)) }

// decide decides about one charge.
func (s *Leases) decide(ctx context.Context, charge []step.Cell) (allowed bool, err error) {
	began := s.now()
	for now, waited := began, false; ; now, waited = s.now(), true {
		sh := s.lock(charge)
		e := s.entry(sh, charge, now)
		if e == nil {
			sh.mu.Unlock()
			return s.next.Ask(ctx, step.Allow, charge)
		}
		if !waited {
			e.demand.add(now.mono, s.life, charge[0].Units)
		}
		if allowed, answered := e.answer(step.Allow, charge, now); answered {
			sh.mu.Unlock()
			return allowed, nil
		}
		call := e.call
		if call == nil || waited {
			b := s.borrow(e, began, now, charge[0].Units)
			sh.mu.Unlock()
			return b.run(s.within(ctx, began), charge)
		}
		sh.mu.Unlock()
		select {
		case <-call:
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
	return ctxmark.DecideBy(ctx, s.begin.Add(time.Duration(began.mono)).Add(s.timeout))
}
