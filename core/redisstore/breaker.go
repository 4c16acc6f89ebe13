package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxFailures is how many calls in a row must fail for Redis to be unavailable.
	maxFailures = 3

	// The pause before a probe doubles from the shortest to the longest.
	minProbePause = 50 * time.Millisecond
	maxProbePause = 2 * time.Second
)

var errUnavailable = errors.New("headgate: Redis is unavailable, and probed in the background")

// A breaker keeps decisions from waiting for a Redis that does not answer. While it is
// open, probes are sent in the background; only the success of one closes it.
type breaker struct {
	failures atomic.Int32
	open     atomic.Bool
	mu       sync.Mutex
	reason   error
	since    time.Time
}

func (b *breaker) allows() bool { return !b.open.Load() }

// fail counts a failure and reports whether it opened the breaker.
func (b *breaker) fail(err error) bool {
	if b.failures.Add(1) < maxFailures {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Swap(true) {
		return false
	}
	b.reason, b.since = err, time.Now()
	return true
}

func (b *breaker) succeed() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
}

func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures.Store(0)
	b.reason, b.since = nil, time.Now()
	b.open.Store(false)
}

// report records in a queue's breaker how a call ended, and starts to probe if that opens
// it.
func (s *Store) report(queue *sendQueue, hashSlot int, err error) {
	switch {
	case err == nil:
		s.queues.learn()
		queue.breaker.succeed()
		return
	case errors.Is(err, errBusy), errors.Is(err, errHurried): // says nothing of Redis
		return
	}
	if queue.breaker.fail(err) {
		s.changed(err)
		s.probeAfter(queue, hashSlot, minProbePause)
	}
}

func (s *Store) changed(reason error) {
	if hook := s.config.Hooks.Changed; hook != nil {
		hook(reason)
	}
}

// probeAfter probes after the pause, give or take a quarter, so that the servers of
// a service do not all come back at once.
func (s *Store) probeAfter(queue *sendQueue, hashSlot int, pause time.Duration) {
	jitter := time.Duration(rand.Int64N(int64(pause)/2)) - pause/4 //nolint:gosec // guessing it is of no use
	time.AfterFunc(pause+jitter, func() {
		err := s.probe(context.Background(), hashSlot)
		switch {
		case err == nil:
			queue.breaker.close()
			s.changed(nil)
		case !errors.Is(err, redis.ErrClosed): // a closed client is not opened again
			s.probeAfter(queue, hashSlot, min(2*pause, maxProbePause))
		}
	})
}

// probe writes a key of the hash slot: a server that accepts no writes is of no use.
func (s *Store) probe(ctx context.Context, hashSlot int) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	key := s.config.Prefix + ":probe"
	if s.cluster {
		key = s.names.probe(hashSlot)
	}
	return s.withDeadline(ctx, func() error {
		if c := s.queues.cluster; c != nil && !s.queues.known.Load() {
			// The first master that was called is unavailable; others may not be.
			if _, err := c.MasterForKey(ctx, key); err != nil {
				return err
			}
			s.queues.learn()
		}
		return s.client.Set(ctx, key, 1, time.Minute).Err()
	})
}

// probe returns the name of a key in a hash slot of a Cluster. It begins with the prefix,
// as an ACL may allow no other keys.
func (n *namer) probe(hashSlot int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("%s:{probe%d}", n.prefix, i); hashSlotOf([]byte(key)) == hashSlot {
			return key
		}
	}
}

// State is whether a Store uses Redis, as [Store.State] returns it.
type State struct {
	// Away means that Redis is unavailable and [Config].Failure decides. In a Cluster,
	// that is so for the keys of at least one master.
	Away   bool
	Since  time.Time // the time of the last change; zero if there was none
	Reason error     // the failure that made Redis unavailable; nil if it is not
}

// State returns whether Redis is used at the moment. It makes no call.
func (s *Store) State() State {
	var all State
	for _, queue := range s.queues.all() {
		b := &queue.breaker
		b.mu.Lock()
		if one := (State{b.open.Load(), b.since, b.reason}); one.Away && !all.Away || one.Away == all.Away && one.Since.After(all.Since) {
			all = one
		}
		b.mu.Unlock()
	}
	return all
}
