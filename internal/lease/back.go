package lease

import (
	"context"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
)

// start runs a function in the background, unless the store is closed.
func (s *Leases) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(f)
	}
	return !s.closed
}

// sweepSoon sweeps after a twentieth of a life, and then as long as there are entries, unless the store is closed.
func (s *Leases) sweepSoon() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !s.sweeps {
		s.sweeps = true
		time.AfterFunc(max(min(time.Duration(s.life)/pauses, maxPause), time.Millisecond), func() {
			s.start(func() { s.sweep(false) })
		})
	}
	return !s.closed
}

// sweep gives back what is left of leases that are over, or of all, and drops entries of keys that are not busy.
func (s *Leases) sweep(all bool) {
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
			if all || e.call == nil && now.mono-e.demand.start >= 2*s.life {
				s.drop(sh, e)
			}
		}
		sh.mu.Unlock()
	}
	s.send(context.Background(), back)
	s.mu.Lock()
	s.sweeps = false
	s.mu.Unlock()
	if s.bytes.Load() > 0 {
		s.sweepSoon()
	}
}

// finish ends a lease, and returns what is to be given back. The shard is locked.
func (e *entry) finish() (back []step.Cell) {
	if e.left > 0 {
		back = withUnits(e.cells, -e.left)
		for i := range back {
			back[i].Instant, back[i].Source = e.at, step.SourceStore
		}
	}
	e.left, e.at, e.until = 0, 0, instant{}
	return back
}

// send gives units back, many cells at once, but of one state once at a time. What fails counts until its window has
// passed.
func (s *Leases) send(ctx context.Context, cells []step.Cell) {
	for len(cells) > 0 {
		n := 1
		for n < min(len(cells), 64) && !slices.ContainsFunc(cells[:n], func(c step.Cell) bool {
			return c.Policy.ID == cells[n].Policy.ID && c.Hash == cells[n].Hash
		}) {
			n++
		}
		call, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = s.next.Ask(call, step.Settle, cells[:n])
		cancel()
		cells = cells[n:]
	}
}

// giveBack gives units back in the background.
func (s *Leases) giveBack(cells []step.Cell) {
	f := func() { s.send(context.Background(), cells) }
	if len(cells) > 0 && cells[0].Units != 0 && !s.start(f) {
		go f()
	}
}

// returnLease gives a lease back at once, and reports whether it had units. It waits for that as long as the
// decision may take that began then.
func (s *Leases) returnLease(ctx context.Context, charge []step.Cell, began instant) bool {
	sh := s.lock(charge)
	var back []step.Cell
	if e := sh.of(charge); e != nil {
		e.pause = 0
		back = e.finish()
	}
	sh.mu.Unlock()
	if back == nil {
		return false
	}
	done := make(chan struct{})
	give := func() {
		s.send(context.Background(), back)
		close(done)
	}
	if !s.start(give) {
		go give()
	}
	timer := time.NewTimer(s.timeout - time.Duration(s.now().mono-began.mono))
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
		if e := sh.find(&cells[i]); e != nil {
			e.finish()
			e.pause = 0
			e.resets++
		}
		sh.mu.Unlock()
	}
}

// Close gives all back that is leased, and waits for that. The store then passes all calls on.
func (s *Leases) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
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
