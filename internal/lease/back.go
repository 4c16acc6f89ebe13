package lease

import (
	"context"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// What a lease has left is given back in two steps: finish ends the lease and returns the units, and send has the store
// correct its charge. giveBack does the second in the background, also for who holds a lock. returnLease does both, for
// a decision that waits. Units of a decision that is refused or refunded are given to the lease again by restore, in
// several.go. If the store forgets the key, forget ends the lease alone. drop, in lease.go, removes the entry.

// start runs a function in the background, unless the store is closed.
func (s *Leases) start(run func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(run)
	}
	return !s.closed
}

// sweepSoon sweeps after a twentieth of a life, and then as long as there are entries, unless the store is closed.
func (s *Leases) sweepSoon() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !s.sweepPlanned {
		s.sweepPlanned = true
		wait := max(time.Duration(s.pause()), time.Millisecond)
		time.AfterFunc(wait, func() {
			s.start(func() { s.sweep(false) })
		})
	}
	return !s.closed
}

// sweep gives back what is left of leases that are over, or of all, and drops entries of keys that are not busy.
func (s *Leases) sweep(all bool) {
	// One shard after the other, so that no call waits for all of them.
	var back []step.Cell
	now := s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			if e.live(now) && !all {
				continue
			}
			back = append(back, e.finish()...)
			// A call that is under way would lease for an entry that nobody finds.
			if all || e.callDone == nil && now.monotonic-e.demand.startByMonotonic >= 2*s.life {
				s.drop(sh, e)
			}
		}
		sh.mu.Unlock()
	}
	s.send(context.Background(), back) // without a lock, since it takes a call
	s.mu.Lock()
	s.sweepPlanned = false
	s.mu.Unlock()
	if s.bytes.Load() > 0 {
		s.sweepSoon()
	}
}

// finish ends a lease, and returns what is to be given back. The shard is locked.
func (e *entry) finish() (back []step.Cell) {
	if e.units > 0 {
		back = withUnits(e.cells, -e.units)
		for i := range back {
			back[i].Instant = e.chargedAtStore
			back[i].Source = step.SourceStore
		}
	}
	e.units = 0
	e.chargedAtStore = 0
	e.endsHere = instant{}
	return back
}

// send gives units back, many cells at once, but of one state once at a time. What fails counts until its window has
// passed.
func (s *Leases) send(ctx context.Context, cells []step.Cell) {
	for len(cells) > 0 {
		// A question has no state twice.
		n := 1
		again := func(cell step.Cell) bool {
			return cell.Policy.ID == cells[n].Policy.ID && cell.Hash == cells[n].Hash
		}
		for n < min(len(cells), 64) && !slices.ContainsFunc(cells[:n], again) {
			n++
		}
		call, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = s.next.Ask(call, step.Settle, cells[:n])
		cancel()
		cells = cells[n:]
	}
}

// giveBack gives units back in the background, also after Close.
func (s *Leases) giveBack(cells []step.Cell) {
	give := func() { s.send(context.Background(), cells) }
	if len(cells) > 0 && cells[0].Units != 0 && !s.start(give) {
		go give()
	}
}

// yield gives the lease of a charge back after the store has refused another charge of the question, but not more often
// than a refusal is asked for again: others may have what is missing here, and miss what is here.
func (s *Leases) yield(charge []step.Cell) {
	now := s.now()
	sh := s.lock(charge)
	defer sh.mu.Unlock()
	e := sh.entryFor(charge)
	if e != nil && now.monotonic >= e.yieldEndByMonotonic {
		e.yieldEndByMonotonic = now.monotonic + s.pause()
		s.giveBack(e.finish())
	}
}

// returnLease gives a lease back at once, and reports whether it had units. It waits for that as long as the
// decision may take that began then.
func (s *Leases) returnLease(ctx context.Context, charge []step.Cell, began instant) bool {
	sh := s.lock(charge)
	var back []step.Cell
	e := sh.entryFor(charge)
	if e != nil {
		e.refusalEndByMonotonic = 0
		back = e.finish()
	}
	sh.mu.Unlock()
	if back == nil {
		return false
	}
	// The units go back also if the caller leaves.
	done := make(chan struct{})
	give := func() {
		s.send(context.Background(), back)
		close(done)
	}
	if !s.start(give) {
		go give()
	}
	timer := time.NewTimer(s.timeout - time.Duration(s.now().monotonic-began.monotonic))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// forget drops what is leased: the store forgets it.
func (s *Leases) forget(cells []step.Cell) {
	for i := range cells {
		sh := s.lock(cells[i:])
		e := sh.find(&cells[i])
		if e != nil {
			e.finish()
			e.refusalEndByMonotonic = 0
			e.resets++
		}
		sh.mu.Unlock()
	}
}

// Close gives all back that is leased, and waits for that. The store then passes all calls on.
func (s *Leases) Close(ctx context.Context) error {
	// From here on no entry is made. The sweep drops all, so that what a call still leases goes back by itself: see
	// land.
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.work.Wait() // for calls that lease
		s.sweep(true)
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
