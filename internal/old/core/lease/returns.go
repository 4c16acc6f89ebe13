package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/old/core/store"
)

// returns are units that are to be given back, as settlements of this Store's limiters.
type returns struct {
	mu      sync.Mutex
	queue   []store.Charge
	lost    map[string]store.SettleEvent // by limiter: what was not given back, and is to be told
	running bool                         // the timer
	sending chan struct{}                // has a value while someone sends
}

const (
	batch   = 64 // sent in one call
	sendFor = 5 * time.Second
)

var errNoRoom = errors.New("headgate: lease: too many units wait to be given back")

// giveBack has units given back soon, if they still count and there is room: or less is admitted.
func (s *Store) giveBack(t store.Charge) {
	if !s.prepared(t.Limiter).counts(t.At, s.arrival(s.now()), t.N) {
		return
	}
	s.returns.mu.Lock()
	if s.reserve(returnSize(&t), s.maxBytes) {
		s.returns.queue = append(s.returns.queue, t)
	} else {
		s.returns.lose(errNoRoom, t)
	}
	s.returns.mu.Unlock()
	s.wake()
}

// lose notes what is not given back, for tell. q is locked.
func (q *returns) lose(err error, ss ...store.Charge) {
	if q.lost == nil {
		q.lost = make(map[string]store.SettleEvent)
	}
	for i := range ss {
		name := ss[i].Limiter.Spec().Name
		e := q.lost[name]
		e.Limiter, e.Source, e.Err = name, store.SourceStore, err
		e.Units, e.Actual = e.Units+ss[i].N, e.Actual+ss[i].Actual
		q.lost[name] = e
	}
}

// tell tells the observer what was lost, once for each limiter. No lock is held.
func (s *Store) tell(ctx context.Context) {
	s.returns.mu.Lock()
	lost := s.returns.lost
	s.returns.lost = nil
	s.returns.mu.Unlock()
	if o := s.Observer(); o != nil && o.Settled != nil {
		for _, e := range lost {
			o.Settled(ctx, e)
		}
	}
}

// A need is the units that a call needs of a key.
type need struct {
	place

	n int64
}

// giveBackNow gives back what is leased of keys, where that is less than a call needs: before
// the call, so that the store sees all that is left. Others may spend what is enough.
func (s *Store) giveBackNow(ctx context.Context, needs ...need) error {
	ss, now := make([]store.Charge, 0, len(needs)), s.now()
	for i := range needs {
		p := &needs[i]
		p.mu.Lock()
		if e := p.find(); e != nil && e.ready(now) < p.n {
			for j := range e.leases {
				var t store.Charge
				if e.take(&e.leases[j], &t) {
					ss = append(ss, t)
				}
			}
		}
		p.mu.Unlock()
		ss = append(ss, s.unqueue(&p.place)...)
	}
	return s.settleBelow(context.WithoutCancel(ctx), ss)
}

func (s *Store) settleBelow(ctx context.Context, ss []store.Charge) error {
	if len(ss) == 0 {
		return nil
	}
	err := s.next.Ask(ctx, &store.Question{Mode: store.Settle, Charges: ss})
	if err != nil {
		s.returns.mu.Lock()
		defer s.returns.mu.Unlock()
		s.returns.lose(err, ss...)
	}
	return err
}

// of reports whether units of the key are to be given back, under any plan.
func (s *Store) of(p *place, t *store.Charge) bool {
	return t.Key == p.key && s.prepared(t.Limiter).family == p.limiter.family
}

// waiting returns how many units of the key wait to be given back.
func (s *Store) waiting(p *place) (n int64) {
	q := &s.returns
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.queue {
		if s.of(p, &q.queue[i]) {
			n += q.queue[i].N - q.queue[i].Actual
		}
	}
	return n
}

// unqueue takes what is to be given back of a key out of the queue.
func (s *Store) unqueue(p *place) (own []store.Charge) {
	q := &s.returns
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = slices.DeleteFunc(q.queue, func(t store.Charge) bool {
		if !s.of(p, &t) {
			return false
		}
		own = append(own, t)
		s.used.Add(-returnSize(&t))
		return true
	})
	return own
}

// first takes the first of the queue.
func (s *Store) first() []store.Charge {
	q := &s.returns
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.queue), batch)
	some := slices.Clone(q.queue[:n])
	clear(q.queue[:n]) // or their keys would stay
	if q.queue = q.queue[n:]; len(q.queue) == 0 {
		q.queue = nil
	}
	for i := range some {
		s.used.Add(-returnSize(&some[i]))
	}
	return some
}

// send gives back what is queued. What fails is not repeated, since it may have been done.
func (s *Store) send(ctx context.Context) error {
	select {
	case s.returns.sending <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.returns.sending }()
	var faults []error
	for {
		some := s.first()
		if len(some) == 0 {
			return errors.Join(faults...)
		}
		if err := s.settleBelow(ctx, some); err != nil && len(faults) == 0 {
			faults = append(faults, err)
		}
	}
}

// wake starts the timer, unless it runs.
func (s *Store) wake() {
	s.returns.mu.Lock()
	defer s.returns.mu.Unlock()
	if !s.returns.running {
		s.returns.running = true
		s.again()
	}
}

func (s *Store) again() { time.AfterFunc(time.Duration(s.tempo.Load()), s.tick) }

// tick ends leases, and drops keys that are no longer asked for, until there are none.
func (s *Store) tick() {
	now := s.now()
	s.endOver(now)
	s.drop(now)
	ctx, cancel := context.WithTimeout(context.Background(), sendFor)
	_ = s.send(ctx) // or less is admitted
	cancel()
	s.tell(context.Background())
	s.returns.mu.Lock()
	defer s.returns.mu.Unlock()
	if s.entries.Load() == 0 && len(s.returns.queue) == 0 && len(s.returns.lost) == 0 {
		s.returns.running = false
		return
	}
	s.again()
}

// endOver ends leases that are over, and those of buckets that are not asked for any more: what
// is given back soon has not refilled yet.
func (s *Store) endOver(now instant) {
	for sh := range s.lockedBusy() {
		for _, e := range sh.entries {
			for ; e != nil; e = e.next {
				idle := e.limiter.bucket() && now.mono-e.asked > min(e.limiter.family.parts.Load().bucket*1000, s.span)/8
				for j := range e.leases {
					b := &e.leases[j]
					if b.left > 0 && (!b.live(now) || idle && e.limiter.counts(b.at, s.arrival(now), b.left)) {
						s.giveBackLease(e, b)
					}
				}
			}
		}
	}
}

// end ends leases.
func (s *Store) end(which func(*entry) bool) {
	for sh := range s.locked() {
		for _, e := range sh.entries {
			for ; e != nil; e = e.next {
				if which(e) {
					s.finish(e)
				}
			}
		}
	}
}

// drop drops the entries of keys that nobody has asked for lately, or all if s is closed.
func (s *Store) drop(now instant) {
	for sh := range s.lockedBusy() {
		for hash, e := range sh.entries {
			var kept *entry
			for e != nil {
				next := e.next
				if e.leases[0].left+e.leases[1].left == 0 && e.calls == 0 && (s.closed.Load() || e.demand.idle(now.mono, s.span)) {
					s.entries.Add(-1)
					s.used.Add(-entrySize(e.limiter, e.key))
				} else {
					e.next, kept = kept, e
				}
				e = next
			}
			if kept == nil {
				delete(sh.entries, hash)
			} else {
				sh.entries[hash] = kept
			}
		}
		sh.busy.Store(len(sh.entries) > 0)
	}
}

// wait waits for calls that lease units. Closed, the Store begins no other.
func (s *Store) wait(ctx context.Context) error {
	var flights []chan struct{}
	for sh := range s.locked() {
		for _, e := range sh.entries {
			for ; e != nil; e = e.next {
				if e.flight != nil {
					flights = append(flights, e.flight)
				}
			}
		}
	}
	for _, flight := range flights {
		if err := landed(ctx, flight); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all leases, and gives back the units left in them. After it the Store passes all calls
// on. Units that calls in flight have leased are given back when these end. A server that stops
// should call it, when it has answered its requests. Otherwise its leased units count as used until
// they expire. It may be called again. The store below stays open.
func (s *Store) Close(ctx context.Context) error {
	s.closed.Store(true)
	err := s.wait(ctx)
	s.end(func(*entry) bool { return true })
	s.drop(s.now())
	err = errors.Join(err, s.send(ctx))
	s.tell(ctx)
	if err != nil {
		return fmt.Errorf("headgate: lease: some units were not given back: %w", err)
	}
	return nil
}
