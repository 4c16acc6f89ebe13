package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// flights is how many calls of a lane may be on their way at once: while one
	// is computed, the next is on the wire.
	flights = 2

	// clusterLanes divide the slots of a cluster, so that a master that is slow
	// or away holds up its own only.
	clusterLanes = 16

	// maxCells and maxQueue bound a call, and what waits for one.
	maxCells = 128
	maxQueue = 1 << 16
)

var (
	errDeadline = errors.New("headgate: Redis did not answer in time")
	errBusy     = errors.New("headgate: too many decisions wait for Redis")
)

// A lane merges questions: those that arrive while its flights are on their way
// wait, and travel together in the next.
type lane struct {
	breaker breaker
	mu      sync.Mutex
	flying  int
	queue   []*question
	_       [64]byte // keeps neighbours off this cache line
}

// lane returns the lane of a slot.
func (s *Store) lane(slot int) *lane { return &s.lanes[slot*len(s.lanes)/slots] }

// travel asks the question and waits for the answer, at most until its deadline
// or the end of the context. After an error the question must not be used again.
func (s *Store) travel(ctx context.Context, q *question) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.cluster {
		q.slot = slotOf(s.names.tag(nil, q.charges[0].Key))
	}
	l := s.lane(q.slot)
	if !l.breaker.allows() {
		return errAway
	}
	l.mu.Lock()
	switch {
	case s.config.Unmerged || l.flying < flights && len(l.queue) == 0:
		l.flying++
		l.mu.Unlock()
		q.progress.Store(sent)
		q.self[0] = q
		s.fly(context.WithoutCancel(ctx), l, q.self[:], q.deadline)
		s.land(l)
		<-q.done
		return q.err
	case len(l.queue) == maxQueue:
		l.mu.Unlock()
		return errBusy
	default:
		q.detach()
		l.queue = append(l.queue, q)
		l.mu.Unlock()
		return s.await(ctx, q)
	}
}

// await waits for a question that somebody else sends.
func (s *Store) await(ctx context.Context, q *question) error {
	timer := s.pools.timer(time.Until(q.deadline))
	defer s.pools.freeTimer(timer)
	var err error
	select {
	case <-q.done:
		return q.err
	case <-timer.C:
		err = errDeadline
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.progress.CompareAndSwap(waiting, dropped)
	return err
}

// land ends a flight. What has come to wait meanwhile takes its place, in a
// goroutine, so that nobody works for others before it has its own answer.
func (s *Store) land(l *lane) {
	if batch := l.next(); len(batch) > 0 {
		go s.serve(l, batch)
	}
}

// serve flies for as long as questions wait.
func (s *Store) serve(l *lane, batch []*question) {
	for ; len(batch) > 0; batch = l.next() {
		// Its questions keep their own deadlines.
		s.fly(context.Background(), l, batch, time.Now().Add(s.config.Timeout))
	}
}

// next takes the questions of the next flight out of the queue. If there are none,
// the flight is over.
func (l *lane) next() []*question {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []*question
	for cells := 0; len(l.queue) > 0; l.queue = l.queue[1:] {
		q := l.queue[0]
		if q.progress.Load() == dropped {
			continue
		}
		if cells += q.parts(); cells > maxCells && len(batch) > 0 {
			return batch
		}
		if q.progress.CompareAndSwap(waiting, sent) {
			batch = append(batch, q)
		}
	}
	l.queue = nil
	if len(batch) == 0 {
		l.flying--
	}
	return batch
}
