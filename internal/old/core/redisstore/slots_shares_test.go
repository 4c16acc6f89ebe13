package redisstore

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A contest is servers whose callers wait for the same slots.
type contest struct {
	t    *testing.T
	addr string
	hold time.Duration
	ctx  context.Context
	all  sync.WaitGroup

	mu      sync.Mutex
	granted map[*Store]int
	total   int
	until   int           // how many are to be granted
	reached chan struct{} // closed then
}

const contestLimit = 10

// join adds a server with callers that acquire slots, hold each for a time, and release it.
func (c *contest) join(callers int) *Store {
	s := open(c.t, Config{Failure: FailClosed}, c.addr)
	slots := newSlots(c.t, s, "jobs", contestLimit)
	for range callers {
		c.all.Go(func() {
			for c.ctx.Err() == nil {
				slot, err := slots.AcquireWait(c.ctx, "key", callers)
				if err != nil {
					if c.ctx.Err() == nil {
						c.t.Error(err)
					}
					return
				}
				c.count(s)
				c.work(slot)
			}
		})
	}
	return s
}

func (c *contest) work(slot *core.Slot) {
	defer slot.Release()
	select {
	case <-time.After(c.hold):
	case <-c.ctx.Done():
	}
}

func (c *contest) count(s *Store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted[s]++
	if c.total++; c.total == c.until {
		close(c.reached)
	}
}

// next waits until so many more are granted, and returns how many were to each server.
func (c *contest) next(n int) map[*Store]int {
	c.mu.Lock()
	clear(c.granted)
	reached := make(chan struct{})
	c.until, c.reached = c.total+n, reached
	c.mu.Unlock()
	<-reached
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.granted)
}

// Servers whose callers wait for the same slots are granted equal shares of them, however long
// they hold them, though one has them all at first.
func TestSlotsAreSharedByThoseWhoWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hold    time.Duration
		callers []int
		settle  int // grants until the shares are equal
		counted int
		least   int // of a server, in per cent
	}{
		{10 * time.Millisecond, []int{50, 50}, 1000, 2000, 40},
		{100 * time.Millisecond, []int{50, 50}, 100, 400, 40},
		{500 * time.Millisecond, []int{50, 50}, 40, 120, 40},
		{20 * time.Millisecond, []int{80, 20}, 300, 1000, 40},
		{20 * time.Millisecond, []int{50, 50, 50}, 300, 1000, 25},
	} {
		t.Run(fmt.Sprintf("held for %v by %v", c.hold, c.callers), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			s := &contest{t: t, addr: redistest.Start(t).Addr(), hold: c.hold, ctx: ctx, granted: make(map[*Store]int)}
			servers := []*Store{s.join(c.callers[0])}
			s.next(contestLimit) // it has them all
			for _, n := range c.callers[1:] {
				servers = append(servers, s.join(n))
			}
			s.next(c.settle)
			counts := s.next(c.counted)
			for i, server := range servers {
				if got := 100 * counts[server] / c.counted; got < c.least || got > 100-c.least {
					t.Errorf("server %d was granted %d of %d", i, counts[server], c.counted)
				}
			}
			t.Logf("%d, %d", counts[servers[0]], counts[servers[1]])
			cancel()
			s.all.Wait()
		})
	}
}

// What waiting costs a server that is alone: callers hold slots for no time at all.
//
//	go test ./core/redisstore -run '^$' -bench AcquireWaitAlone -count 6
func BenchmarkAcquireWaitAlone(b *testing.B) {
	slots := newSlots(b, open(b, Config{Failure: FailClosed}, redistest.Start(b).Addr()), "jobs", contestLimit)
	const callers = 50
	var all sync.WaitGroup
	b.ResetTimer()
	for i := range callers {
		all.Go(func() {
			for n := i; n < b.N; n += callers {
				slot, err := slots.AcquireWait(b.Context(), "key", callers)
				if err != nil {
					b.Error(err)
					return
				}
				slot.Release()
			}
		})
	}
	all.Wait()
}
