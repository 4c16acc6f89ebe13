package lease

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
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
	next := s.next
	if mode == step.Allow {
		next = s.storeFor(asked)
	}
	allowed, err = next.Ask(ctx, mode, asked)
	for i, index := range indexes {
		cells[index] = asked[i]
	}
	return allowed, asked, err
}

// storeFor returns whom to ask about several charges: as a borrow does, if one of them is busy. While a refusal holds,
// it is not asked for again.
func (s *Leases) storeFor(cells []step.Cell) store.Rates {
	now := s.now()
	next := s.next
	for i := 0; i < len(cells); i += len(firstCharge(cells[i:])) {
		sh := s.lock(cells[i:])
		e := sh.entryFor(firstCharge(cells[i:]))
		remembered := e != nil && (now.monotonic < e.refusalEndByMonotonic || !e.mayComeBack(now, s.life))
		sh.mu.Unlock()
		switch {
		case remembered:
			return s.next
		case e != nil:
			next = s.uncached
		}
	}
	return next
}

// together decides about several charges. It spends what leases have, and asks the store for the others in one
// question. If that is refused, what it spent goes back to the leases, and these yield to other processes. It waits for
// no call of others. A peek spends nothing.
func (s *Leases) together(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	var spent [][]step.Cell
	refused := false // by the store, and not by what is remembered
	// Also if an observer panics: then it is not allowed.
	defer func() {
		for _, charge := range spent {
			n := charge[0].Units
			if !allowed && !s.restore(charge, n) {
				s.giveBack(withUnits(charge, -n))
			}
		}
		for i := 0; refused && i < len(cells); i += len(firstCharge(cells[i:])) {
			s.yield(firstCharge(cells[i:]))
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
	refused = !answer && asked[0].Source == step.SourceStore
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
	if charge[0].Source != step.SourceStore { // a refusal that is remembered, or the store is away
		return false
	}
	// Only those wait that were refused. The others may fit with another key.
	if !allowed {
		if slices.ContainsFunc(charge, func(cell step.Cell) bool { return cell.Shortfall > 0 }) {
			e.refusalEndByMonotonic = now.monotonic + s.refusalSpan(charge)
			e.refusedUnits = -1 // of no other question
			e.firstRefusalByMonotonic = cmp.Or(e.firstRefusalByMonotonic, now.monotonic)
		}
		return false
	}
	e.firstRefusalByMonotonic = 0
	if now.monotonic < e.refusalEndByMonotonic {
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
