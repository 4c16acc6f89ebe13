package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

func limiterOf(t *testing.T, s core.Store, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(s, "api", policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func allow(t *testing.T, l *core.Limiter, n int64) core.Decision {
	t.Helper()
	d, err := l.AllowN(context.Background(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// newServer returns a store over a link, which is closed at the end.
func newServer(t *testing.T, shared core.Store, c Config, slow time.Duration) (*Store, *link) {
	t.Helper()
	l := &link{Store: shared, rng: rand.New(rand.NewPCG(1, 1))}
	l.slow.Store(int64(slow))
	s, err := New(l, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, l
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	shared := memstore.New(memstore.Config{})
	good, err := New(shared, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		next   store.Store
		config Config
		want   string
	}{
		"negative":       {shared, Config{For: -1}, "a For of"},
		"too short":      {shared, Config{For: time.Microsecond}, "a For of"},
		"too long":       {shared, Config{For: time.Hour}, "a For of"},
		"negative bytes": {shared, Config{MaxBytes: -1}, "MaxBytes"},
		"nil":            {nil, Config{}, "nil"},
		"leased":         {good, Config{}, "itself leased"},
	} {
		if _, err := New(c.next, c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	type layer struct{ core.Store }
	twice, err := New(layer{good}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.New(twice, "api", core.FixedWindow(core.PerMinute(1))); err == nil || !strings.Contains(err.Error(), "itself leased") {
		t.Errorf("through a layer: %v", err)
	}
}

// However the clocks drift, by a thousandth at most, a lease is over when the store says so.
func TestLifeEndsBeforeTheStoreSays(t *testing.T) {
	for _, span := range []int64{1, 2, 3, 10, 999, 1000, 1001, 123_456, 60_000_000, 1 << 40} {
		local := life(span)
		fast := local + local/999 + 1 // of which the local clock sees 999 of 1000
		if end := fast/1000 + 1; local > 0 && end > span {
			t.Errorf("%d microseconds: %d nanoseconds reach %d", span, local, end)
		}
		if span > 1000 && local < span*998 {
			t.Errorf("%d microseconds: only %d nanoseconds", span, local)
		}
	}
}

// A key that one server alone asks for is refused when the store would refuse it: at once, and
// for no more than a twentieth of a lease's life too long.
func TestOneServerAlone(t *testing.T) {
	for i, p := range []core.Policy{
		core.FixedWindow(core.Rate{Events: 100, Per: time.Second}),
		core.SlidingWindow(core.Rate{Events: 100, Per: time.Second}).NeverOver(),
		core.SlidingWindow(core.Rate{Events: 1000, Per: time.Second}),
		core.TokenBucket(core.PerSecond(100), 100).Leasable(250 * time.Millisecond),
		core.TokenBucket(core.PerSecond(1000), 1000).Leasable(100 * time.Millisecond),
	} {
		bubble.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			s, _ := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
			with, alone := limiterOf(t, s, p), limiterOf(t, memstore.New(memstore.Config{}), p)
			var admitted, wanted int64
			for range 20_000 {
				time.Sleep(time.Duration(rng.Int64N(int64(time.Second) / p.Limit())))
				n := int64(1)
				if rng.IntN(50) == 0 {
					n = 3
				}
				if allow(t, with, n).Allowed {
					admitted += n
				}
				if allow(t, alone, n).Allowed {
					wanted += n
				}
			}
			if admitted*100 < wanted*98 {
				t.Errorf("%v: %d were admitted, and without leases %d", p, admitted, wanted)
			}
		})
	}
}

// Policies that do not count in parts of time that all servers know are decided by the store,
// call by call.
func TestOthersArePassedOn(t *testing.T) {
	for _, p := range []core.Policy{
		core.SlidingLog(core.PerDay(100_000)), core.TokenBucket(core.PerSecond(1), 100_000), core.MinInterval(time.Microsecond),
		core.FixedWindow(core.PerDay(100_000)).FromFirst(), core.FixedWindow(core.PerDay(100_000)).CountDenied(),
	} {
		bubble.Test(t, func(t *testing.T) {
			s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
			l := limiterOf(t, s, p)
			for range 1000 {
				if d := allow(t, l, 1); !d.Allowed || d.Source != core.SourceStore {
					t.Fatalf("%v: %v from %v", p, d, d.Source)
				}
				time.Sleep(time.Millisecond)
			}
			if calls := link.calls.Load(); calls != 1000 {
				t.Errorf("%v: %d calls for 1000 decisions", p, calls)
			}
		})
	}
}

// Servers that want more than the limit, very unevenly, get nearly all of it, with few calls.
func TestNearlyAllIsUsed(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const seconds, sub = 20, 100 * time.Millisecond
	bucket := core.TokenBucket(core.PerSecond(2000), 2000).Leasable(200 * time.Millisecond)
	for name, c := range map[string]struct {
		policy  core.Policy
		servers int
		demand  float64       // units a second, as a part of the limit
		least   int64         // of a hundred that an exact limiter would admit
		life    time.Duration // of a lease, at most
	}{
		"little":         {core.SlidingWindow(core.PerSecond(2000)), 8, 0.8, 99, sub},
		"above":          {core.SlidingWindow(core.PerSecond(2000)), 8, 1.5, 98, sub},
		"far above":      {core.SlidingWindow(core.PerSecond(2000)), 8, 4, 98, sub},
		"never over":     {core.SlidingWindow(core.PerSecond(2000)).NeverOver(), 8, 3, 98, sub},
		"window":         {core.FixedWindow(core.PerSecond(2000)), 8, 2, 98, time.Second},
		"little, bucket": {bucket, 8, 0.8, 99, 200 * time.Millisecond},
		"above, bucket":  {bucket, 8, 1.2, 98, 200 * time.Millisecond},
		"far, bucket":    {bucket, 8, 4, 98, 200 * time.Millisecond},
		"long window":    {core.FixedWindow(core.Rate{Events: 8000, Per: 4 * time.Second}), 8, 1.5, 98, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				shared := memstore.New(memstore.Config{})
				exact := limiterOf(t, memstore.New(memstore.Config{}), c.policy)
				time.Sleep(12*time.Second - time.Duration(time.Now().UnixNano())%(12*time.Second))
				var mu sync.Mutex
				var wanted, admitted, asked, calls int64
				var wait sync.WaitGroup
				end := time.Now().Add(seconds * time.Second)
				for i := range c.servers {
					s, link := newServer(t, shared, Config{}, 300*time.Microsecond)
					l := limiterOf(t, s, c.policy)
					rng := rand.New(rand.NewPCG(uint64(i), 9))
					part := c.demand * 2 * float64(i+1) / float64(c.servers*(c.servers+1)) // of the first least
					gap := float64(c.policy.Window()) / float64(c.policy.Limit()) / part
					wait.Go(func() {
						next := time.Now()
						for {
							next = next.Add(time.Duration(rng.ExpFloat64() * gap))
							time.Sleep(time.Until(next))
							if next.After(end) {
								break
							}
							a, b := allow(t, exact, 1), allow(t, l, 1)
							mu.Lock()
							asked++
							if a.Allowed {
								wanted++
							}
							if b.Allowed {
								admitted++
							}
							mu.Unlock()
						}
						mu.Lock()
						calls += link.calls.Load()
						mu.Unlock()
					})
				}
				wait.Wait()
				t.Logf("%d admitted of %d, %d without leases; %d calls", admitted, asked, wanted, calls)
				if admitted*100 < wanted*c.least {
					t.Errorf("%d were admitted, and without leases %d", admitted, wanted)
				}
				if most := int64(float64(c.servers) * seconds * (2 + 20) / c.life.Seconds()); calls > most {
					t.Errorf("%d calls, more than %d", calls, most)
				}
			})
		})
	}
}

// Callers who find no lease wait for one call, not each for its own.
func TestManyCallersMakeOneCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 5*time.Millisecond)
		l := limiterOf(t, s, core.FixedWindow(core.PerDay(1_000_000)))
		for range 2000 { // a demand
			allow(t, l, 1)
		}
		time.Sleep(1100 * time.Millisecond)
		before := link.calls.Load()
		var wait sync.WaitGroup
		for range 500 {
			wait.Go(func() {
				if d := allow(t, l, 1); !d.Allowed {
					t.Error(d)
				}
			})
		}
		wait.Wait()
		if calls := link.calls.Load() - before; calls > 5 {
			t.Errorf("%d calls for 500 callers", calls)
		}
	})
}

// What is not spent goes back: when the lease ends, and when the store is closed. Then nothing
// of the key is left here, and no timer.
func TestGivesBack(t *testing.T) {
	for _, closes := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			shared := memstore.New(memstore.Config{})
			s, _ := newServer(t, shared, Config{}, 0)
			p := core.FixedWindow(core.Rate{Events: 10_000, Per: 400 * 24 * time.Hour})
			l, there := limiterOf(t, s, p), limiterOf(t, shared, p)
			for range 100 {
				allow(t, l, 1)
			}
			left := func() int64 {
				d, err := there.Peek(context.Background(), key)
				if err != nil {
					t.Fatal(err)
				}
				return d.Remaining
			}
			if left() >= 9900 {
				t.Fatal("nothing was leased")
			}
			if d, err := l.Peek(context.Background(), key); err != nil || d.Remaining != 9900 {
				t.Errorf("a peek: %v %v", d, err)
			}
			if closes {
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			} else {
				time.Sleep(4 * time.Second)
			}
			if got := left(); got != 9900 {
				t.Errorf("%d are left, want 9900", got)
			}
			time.Sleep(time.Second)
			s.returns.mu.Lock()
			defer s.returns.mu.Unlock()
			if n := s.entries.Load(); n != 0 || s.returns.running {
				t.Errorf("%d keys are left, and the timer runs: %t", n, s.returns.running)
			}
		})
	}
}

// Refunds go back to the lease, and what it holds covers more.
func TestSettlesInTheLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		l := limiterOf(t, s, core.FixedWindow(core.Rate{Events: 10_000, Per: 400 * 24 * time.Hour}))
		for range 100 {
			allow(t, l, 1)
		}
		d := allow(t, l, 2)
		if d.Source != core.SourceLease || d.Remaining != 9898 {
			t.Fatalf("%v by %v", d, d.Source)
		}
		calls := link.calls.Load()
		if err := d.Refund(ctx); err != nil {
			t.Error(err)
		}
		if d = allow(t, l, 1); d.Remaining != 9899 {
			t.Errorf("after a refund: %v", d)
		}
		if uncovered, err := d.Settle(ctx, 3); err != nil || uncovered != 0 {
			t.Errorf("%d uncovered, %v", uncovered, err)
		}
		if d = allow(t, l, 1); d.Remaining != 9896 || link.calls.Load() != calls {
			t.Errorf("after settling to more: %v, with %d calls", d, link.calls.Load()-calls)
		}
		if err := l.Reset(ctx, key); err != nil {
			t.Error(err)
		}
		if d = allow(t, l, 1); d.Remaining != 9999 {
			t.Errorf("after a reset: %v", d)
		}
	})
}

// If the store is away, what is leased is spent to its end, and then the store's own rule holds.
func TestStoreIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		l := limiterOf(t, s, core.FixedWindow(core.Rate{Events: 10_000, Per: 400 * 24 * time.Hour}))
		for range 100 {
			allow(t, l, 1)
		}
		link.dead.Store(true)
		if d := allow(t, l, 1); !d.Allowed || d.Source != core.SourceLease {
			t.Errorf("%v by %v", d, d.Source)
		}
		time.Sleep(1100 * time.Millisecond)
		if d, err := l.Allow(context.Background(), key); err == nil {
			t.Errorf("the lease is over: %v", d)
		}
		link.dead.Store(false)
	})
}

// What is left is that of the store and of the lease together, whoever decides.
func TestRemaining(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, _ := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		var policies []core.Policy
		for i := range int64(4) {
			p := core.FixedWindow(core.Rate{Events: 1000 * (i + 1), Per: 400 * 24 * time.Hour})
			policies = append(policies, p.Named(fmt.Sprint(i)))
		}
		l := limiterOf(t, s, policies...)
		used, leased := int64(0), 0
		for i := range int64(300) {
			n := 1 + i%3
			d := allow(t, l, n)
			used += n
			for j := range d.Len() {
				if a := d.Answer(j); a.Remaining != a.Limit-used {
					t.Fatalf("call %d: %d left of %d after %d, by %v", i, a.Remaining, a.Limit, used, d.Source)
				}
			}
			if d.Source == core.SourceLease {
				leased++
			}
		}
		if leased < 200 {
			t.Errorf("only %d of 300 from leases", leased)
		}
	})
}

// A decision from a lease takes no allocation.
func TestAllocatesNothing(t *testing.T) {
	s, err := New(memstore.New(memstore.Config{}), Config{For: MaxFor})
	if err != nil {
		t.Fatal(err)
	}
	l := limiterOf(t, s, core.FixedWindow(core.Rate{Events: 1 << 40, Per: 400 * 24 * time.Hour}))
	for range 100_000 {
		allow(t, l, 1)
	}
	if n := testing.AllocsPerRun(10_000, func() { allow(t, l, 1) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
