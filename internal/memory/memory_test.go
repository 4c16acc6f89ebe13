package memory_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

var ctx = context.Background()

func limiter(t *testing.T, s *core.MemoryStore, name string, ps ...core.Policy) *core.Limiter {
	t.Helper()
	return core.NewLimiter(s, name, ps...)
}

// Callers on several processors, one key and many, never exceed a limit, and never deadlock.
func TestConcurrent(t *testing.T) {
	const limit = 20_000
	day := 24 * time.Hour
	for name, ps := range map[string][]core.Policy{
		"bucket": {core.TokenBucket(1, time.Hour).Burst(limit)},
		"fixed":  {core.FixedWindow(limit, day).FromFirst()},
		"window": {core.SlidingWindow(limit, day)},
		"log":    {core.SlidingLog(1000, day)},
		"two":    {core.TokenBucket(1, time.Hour).Burst(limit).Named("a"), core.SlidingLog(1000, day).Named("b")},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(core.MemoryStore)
			a, b := limiter(t, s, "a", ps...), limiter(t, s, "b", ps...)
			var admitted [2]atomic.Int64
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := range 2 * limit / 4 {
						if g%2 == 0 {
							if d, _ := a.Allow(ctx, "one"); d.Allowed {
								admitted[0].Add(1)
							}
						} else {
							d, _ := core.AllowAll(ctx, b.Charge("x", 1), a.Charge(fmt.Sprint(i%100), 1), b.Charge(fmt.Sprint(i%50), 1))
							if d.Allowed {
								admitted[1].Add(1)
							}
						}
					}
				})
			}
			wg.Wait()
			for i := range admitted {
				want := int64(limit)
				if name == "log" || name == "two" {
					want = 1000
				}
				if n := admitted[i].Load(); n != want {
					t.Errorf("%d: admitted %d, want %d", i, n, want)
				}
			}
		})
	}
}

// A flood of made-up keys takes no more memory than it may, and gives a refused key no fresh start, hot or not.
func TestFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for name, p := range map[string]core.Policy{
		"bucket": core.TokenBucket(10, time.Hour),
		"fixed":  core.FixedWindow(10, time.Hour),
		"window": core.SlidingWindow(10, time.Hour),
		"log":    core.SlidingLog(10, time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(30 * time.Minute)
				s := &core.MemoryStore{MaxBytes: 1 << 20}
				l := limiter(t, s, "l", p)
				refused := make([]string, 200)
				for i := range refused {
					refused[i] = fmt.Sprint("refused", i)
					for range 11 + 50*(i%2) {
						_, _ = l.Allow(ctx, refused[i])
					}
				}
				r := rand.New(rand.NewPCG(1, 2))
				for i := range 300_000 {
					if i%1000 == 0 {
						time.Sleep(time.Millisecond)
					}
					if d, err := l.Allow(ctx, fmt.Sprint(r.Uint64())); err != nil || !d.Allowed {
						t.Fatal(i, d, err)
					}
					if b := s.Backend().Memory.Use().Bytes; i%1000 == 0 && b > 1<<20 {
						t.Fatalf("%d bytes", b)
					}
				}
				fresh := 0
				for _, key := range refused {
					if d, _ := l.Allow(ctx, key); d.Allowed {
						fresh++
					}
				}
				t.Logf("%d fresh starts, %+v", fresh, s.Backend().Memory.Use())
				if fresh > 0 {
					t.Errorf("%d refused keys got a fresh start", fresh)
				}
			})
		})
	}
}

// Keys that expire are dropped without a flood.
func TestExpire(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	synctest.Test(t, func(t *testing.T) {
		s := new(core.MemoryStore)
		l := limiter(t, s, "l", core.SlidingWindow(10, time.Second).Named("w"), core.TokenBucket(10, time.Second).Named("b"), core.SlidingLog(10, time.Second).Named("l"))
		for i := range 50_000 {
			_, _ = l.Allow(ctx, fmt.Sprint(i))
		}
		before := s.Backend().Memory.Use()
		time.Sleep(time.Minute)
		for range 200_000 {
			_, _ = l.Allow(ctx, "one")
			_, _ = l.Allow(ctx, fmt.Sprint("k", rand.IntN(300)))
		}
		t.Logf("%+v, then %+v", before, s.Backend().Memory.Use())
		if after := s.Backend().Memory.Use(); after.Keys > 1000 || after.Bytes > before.Bytes/5 {
			t.Errorf("%+v", after)
		}
	})
}
