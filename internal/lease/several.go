package lease

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// ask answers the charges of a question here, as far as that is possible, and asks the store for the others. It returns
// these, too.
func (s *Leases) ask(ctx context.Context, mode step.Mode, cells []step.Cell, here func(charge []step.Cell) bool) (allowed bool, far []step.Cell, err error) {
	var from []int // of each that is asked for, its index in the question
	for i := 0; i < len(cells); {
		charge := first(cells[i:])
		if here(charge) {
			i += len(charge)
			continue
		}
		for range charge {
			far, from = append(far, cells[i]), append(from, i)
			i++
		}
	}
	if len(far) == 0 {
		return true, nil, nil
	}
	allowed, err = s.next.Ask(ctx, mode, far)
	for i, at := range from {
		cells[at] = far[i]
	}
	return allowed, far, err
}

// together decides about several charges. It spends what leases have, and asks the store for the others in one question.
// If that is refused, it puts back what it spent. It waits for no call of others. A peek spends nothing.
func (s *Leases) together(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	var spent [][]step.Cell
	defer func() { // also if an observer panics: then it is not allowed
		for _, charge := range spent {
			if n := charge[0].Units; !allowed && !s.restore(charge, n) {
				s.giveBack(withUnits(charge, -n))
			}
		}
	}()
	sent := s.now()
	answer, far, err := s.ask(ctx, mode, cells, func(charge []step.Cell) bool {
		covered, _ := s.Answer(mode, charge, nil)
		if covered && mode == step.Allow {
			spent = append(spent, charge)
		}
		return covered
	})
	if err != nil || mode == step.Peek || !leasable(cells) {
		return answer && err == nil, err
	}
	busy := true
	for i := 0; i < len(far); i += len(first(far[i:])) {
		busy = s.isBusy(first(far[i:]), answer, sent) && busy
	}
	for i := 0; busy && i < len(far); i += len(first(far[i:])) {
		s.leaseBeside(first(far[i:]))
	}
	return answer, nil
}

// isBusy notes what the store has answered in a question of several charges, and reports whether leases of this one save
// calls. For a while after a refusal the memory of refusals saves more.
func (s *Leases) isBusy(charge []step.Cell, allowed bool, sent instant) bool {
	now := s.now()
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := s.entry(sh, charge, now)
	if e == nil {
		return false
	}
	e.demand.add(now.mono, s.life, charge[0].Units)
	if !allowed {
		e.pause, e.refused = now.mono+s.pause(charge), -1 // no other question
	}
	if now.mono < e.pause || charge[0].Source != step.SourceStore {
		return false
	}
	e.learn(charge, now, sent)
	return e.demand.units(now.mono, s.life) >= minDemand
}

// leaseBeside leases units of a charge in the background: a question of several charges asks the store for no more than
// it needs.
func (s *Leases) leaseBeside(charge []step.Cell) {
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := sh.of(charge)
	if e == nil {
		return
	}
	now := s.now()
	b, cells := s.borrow(e, now, now, 0), withUnits(e.cells, 0)
	if b.want > 0 && !s.start(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = b.run(ctx, cells) // or the next question asks the store
	}) {
		e.call = nil
	}
}

// restore puts units that the store counts in the same part of time into a lease that is not over.
func (s *Leases) restore(charge []step.Cell, n int64) bool {
	now := s.now()
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := sh.find(&charge[0])
	if e == nil {
		return false
	}
	e.pause = 0 // also under another plan
	if at := charge[0].Instant; !e.is(charge) || at < e.at || at >= e.end || !e.live(now) {
		return false
	}
	e.left += n
	e.demand.count = max(e.demand.count-n, 0)
	e.read(charge, now)
	return true
}

// settle corrects charges, without a call where it can. A report ends the lease of its key, so that it says what is left.
func (s *Leases) settle(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	began := s.now()
	ctx = s.within(ctx, began)
	allowed, _, err = s.ask(ctx, step.Settle, cells, func(charge []step.Cell) (done bool) {
		switch c := &charge[0]; {
		case c.Instant == 0:
			s.returnLease(ctx, charge, began)
		case c.Source != step.SourceStore && c.Source != step.SourceLease: // it goes back where it was made
		case c.Units < 0:
			done = s.restore(charge, -c.Units)
		default:
			done, _ = s.Answer(step.Allow, charge, nil)
		}
		return done
	})
	return allowed, err
}
