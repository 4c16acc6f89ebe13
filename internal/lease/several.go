package lease

import (
	"context"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// askForOthers answers the charges of a question here, as far as that is possible, and asks the store for the others.
// It returns these, too.
func (s *Leases) askForOthers(
	ctx context.Context, mode step.Mode, cells []step.Cell, answerHere func(charge []step.Cell) bool,
) (allowed bool, asked []step.Cell, err error) {
	var indexes []int // in the question, of each cell that is asked for
	for i := 0; i < len(cells); {
		charge := firstCharge(cells[i:])
		if answerHere(charge) {
			i += len(charge)
			continue
		}
		for range charge {
			asked = append(asked, cells[i])
			indexes = append(indexes, i)
			i++
		}
	}
	if len(asked) == 0 {
		return true, nil, nil
	}
	allowed, err = s.next.Ask(ctx, mode, asked)
	for i, index := range indexes {
		cells[index] = asked[i]
	}
	return allowed, asked, err
}

// together decides about several charges. It spends what leases have, and asks the store for the others in one
// question. If that is refused, it gives back what it spent. It waits for no call of others. A peek spends nothing.
func (s *Leases) together(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	var spent [][]step.Cell
	defer func() { // also if an observer panics: then it is not allowed
		for _, charge := range spent {
			n := charge[0].Units
			if !allowed && !s.restore(charge, n) {
				s.giveBack(withUnits(charge, -n))
			}
		}
	}()
	sent := s.now()
	answer, asked, err := s.askForOthers(ctx, mode, cells, func(charge []step.Cell) bool {
		covered, _ := s.Answer(mode, charge, nil)
		if covered && mode == step.Allow {
			spent = append(spent, charge)
		}
		return covered
	})
	if err != nil || mode == step.Peek || !leasable(cells) {
		return answer && err == nil, err
	}
	// Only if all that were asked for are busy does leasing them save the next call. Each notes the answer.
	busy := true
	for i := 0; i < len(asked); i += len(firstCharge(asked[i:])) {
		busy = s.isBusy(firstCharge(asked[i:]), answer, sent) && busy
	}
	for i := 0; busy && i < len(asked); i += len(firstCharge(asked[i:])) {
		s.leaseBeside(firstCharge(asked[i:]))
	}
	return answer, nil
}

// isBusy notes what the store has answered in a question of several charges, and reports whether leases of this one
// save calls. For a while after a refusal the memory of refusals saves more.
func (s *Leases) isBusy(charge []step.Cell, allowed bool, sent instant) bool {
	now := s.now()
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := s.busyEntry(sh, charge, now)
	if e == nil {
		return false
	}
	e.demand.add(now.monotonic, s.life, charge[0].Units)
	// All charges wait, also those that would have fitted: the same question would be refused again.
	if !allowed {
		e.refusalEndByMonotonic = now.monotonic + s.refusalSpan(charge)
		e.refusedUnits = -1 // of no other question
	}
	if now.monotonic < e.refusalEndByMonotonic || charge[0].Source != step.SourceStore {
		return false
	}
	e.learn(charge, now, sent)
	return e.demand.units(now.monotonic, s.life) >= minDemand
}

// leaseBeside leases units of a charge in the background: a question of several charges asks the store for no more than
// it needs.
func (s *Leases) leaseBeside(charge []step.Cell) {
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := sh.entryFor(charge)
	if e == nil {
		return
	}
	// Of no units itself: what it is answered is all leased.
	now := s.now()
	b := s.newBorrow(e, now, now, 0)
	cells := withUnits(e.cells, 0)
	run := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = b.run(ctx, cells) // or the next question asks the store
	}
	if b.extra > 0 && !s.start(run) { // it is closed
		e.callDone = nil
	}
}

// restore gives units back to a lease that is not over, if the store counts them in the same part of time. It reports
// whether it did.
func (s *Leases) restore(charge []step.Cell, n int64) bool {
	now := s.now()
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := sh.find(&charge[0])
	if e == nil {
		return false
	}
	e.refusalEndByMonotonic = 0 // also under another plan
	chargedAt := charge[0].Instant
	samePart := e.chargedAtStore <= chargedAt && chargedAt < e.partEndAtStore
	if !samePart || !e.live(now) || !e.isFor(charge) {
		return false
	}
	e.units += n
	// Who gives back has not used them: a lease of that size is not wanted again.
	e.demand.current = max(e.demand.current-n, 0)
	e.read(charge, now)
	return true
}

// settle corrects charges, without a call where it can. A report ends the lease of its key, so that it says what is
// left.
func (s *Leases) settle(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	began := s.now()
	ctx = s.within(ctx, began)
	allowed, _, err = s.askForOthers(ctx, step.Settle, cells, func(charge []step.Cell) (done bool) {
		first := &charge[0]
		switch {
		case first.Instant == 0: // a report
			s.returnLease(ctx, charge, began)
		case first.Source != step.SourceStore && first.Source != step.SourceLease: // it goes back where it was made
		case first.Units < 0:
			done = s.restore(charge, -first.Units)
		default:
			// About copies: a refusal here is none of the correction, which goes to the store as it is.
			own := append([]step.Cell(nil), charge...)
			done, _ = s.Answer(step.Allow, own, nil)
			if done {
				copy(charge, own)
			}
		}
		return done
	})
	return allowed, err
}
