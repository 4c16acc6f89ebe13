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
	// tolerated is how many calls in a row may fail before Redis counts as away.
	tolerated = 3

	firstProbe = 50 * time.Millisecond
	lastProbe  = 2 * time.Second
)

var errAway = errors.New("headgate: Redis is away")

// A breaker keeps decisions from waiting for a Redis that does not answer. While
// it is open, a probe goes out now and then, in a goroutine of its own; only its
// success closes it again.
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
	if b.failures.Add(1) < tolerated {
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

// report tells a lane's breaker how a call ended, and starts to probe if it opens.
func (s *Store) report(l *lane, slot int, err error) {
	if err == nil {
		l.breaker.succeed()
		return
	}
	if l.breaker.fail(err) {
		s.changed(err)
		s.probeAfter(l, slot, firstProbe)
	}
}

func (s *Store) changed(reason error) {
	if hook := s.config.Hooks.Changed; hook != nil {
		hook(reason)
	}
}

// probeAfter probes after the pause, give or take a quarter, so that the servers of
// a fleet do not all come back at once.
func (s *Store) probeAfter(l *lane, slot int, pause time.Duration) {
	jitter := time.Duration(rand.Int64N(int64(pause)/2)) - pause/4 //nolint:gosec // nobody gains by guessing it
	time.AfterFunc(pause+jitter, func() {
		err := s.probe(context.Background(), slot)
		switch {
		case err == nil:
			l.breaker.close()
			s.changed(nil)
		case !errors.Is(err, redis.ErrClosed): // a closed client is not opened again
			s.probeAfter(l, slot, min(2*pause, lastProbe))
		}
	})
}

// probe writes a key of the slot, for a server that only reads decides nothing.
func (s *Store) probe(ctx context.Context, slot int) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	key := s.config.Prefix + ":probe"
	if s.cluster {
		key = s.names.probe(slot)
	}
	return s.bounded(ctx, func() error { return s.client.Set(ctx, key, 1, time.Minute).Err() })
}

// probe returns the name of some key of a cluster's hash slot. It begins with the
// prefix, as an ACL may allow no others.
func (n *namer) probe(slot int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("%s:{probe%d}", n.prefix, i); slotOf([]byte(key)) == slot {
			return key
		}
	}
}

// State tells whether Redis is asked.
type State struct {
	// Away: Redis is not asked, and Failure decides. Of a Cluster, some master is
	// away, and Failure decides for its slots.
	Away   bool
	Since  time.Time // of the last change; zero if there was none
	Reason error     // the failure that made it away
}

// State returns whether Redis is asked at the moment.
func (s *Store) State() State {
	var all State
	for i := range s.lanes {
		b := &s.lanes[i].breaker
		b.mu.Lock()
		if one := (State{b.open.Load(), b.since, b.reason}); one.Away && !all.Away || one.Away == all.Away && one.Since.After(all.Since) {
			all = one
		}
		b.mu.Unlock()
	}
	return all
}
