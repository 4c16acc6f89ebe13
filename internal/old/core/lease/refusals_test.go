package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

// A key that one server alone asks for, ten times as often as the limit, is admitted in each window
// what the window has, from its beginning: no refusal goes on into a fresh one.
func TestFreshWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, c := range []Config{{}, {For: 100 * time.Millisecond}, {For: time.Minute}} {
		for _, policy := range []core.Policy{
			core.FixedWindow(core.PerSecond(1000)),
			core.SlidingWindow(core.PerSecond(1000)).Resolution(1).NeverOver(),
		} {
			t.Run(fmt.Sprint(c.For, policy), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s, link := newServer(t, memstore.New(memstore.Config{}), c, 0)
					with, alone := limiterOf(t, s, policy), limiterOf(t, memstore.New(memstore.Config{}), policy)
					refused := 0
					for range 100_000 { // ten seconds
						time.Sleep(100 * time.Microsecond)
						a, b := allow(t, with, 1), allow(t, alone, 1)
						if b.Allowed && !a.Allowed {
							refused++
						}
					}
					if refused > 0 {
						t.Errorf("%d were refused that are admitted without leases", refused)
					}
					pause := min(c.For/20, 50*time.Millisecond)
					if c.For == 0 {
						pause = 50 * time.Millisecond
					}
					if calls, most := link.calls.Load(), int64(10*time.Second/pause*3/2); calls > most {
						t.Errorf("%d calls in ten seconds, more than %d", calls, most)
					}
				})
			})
		}
	}
}

// Over a store that remembers refusals, as a redisstore does, units that another process gives back
// are seen as soon as over one that does not: 50 ms later.
func TestRefusalsAreNotRemembered(t *testing.T) {
	for _, remembers := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			shared := memstore.New(memstore.Config{})
			var below core.Store = shared
			if remembers {
				below = remote.NewRefusals(shared, time.Second, time.Second)
			}
			s, link := newServer(t, below, Config{}, 0)
			here, there := limiterOf(t, s, year(1000)), limiterOf(t, shared, year(1000))
			taken := allow(t, there, 500)
			for allow(t, here, 1).Allowed {
				time.Sleep(100 * time.Microsecond)
			}
			for range 3000 { // it goes on
				time.Sleep(100 * time.Microsecond)
				if allow(t, here, 1).Allowed {
					t.Fatal("too much was admitted")
				}
			}
			before := link.calls.Load()
			if err := taken.Refund(context.Background()); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for !allow(t, here, 1).Allowed {
				time.Sleep(100 * time.Microsecond)
			}
			if late := time.Since(began); late > 51*time.Millisecond || link.calls.Load() > before+2 {
				t.Errorf("it remembers: %v: admitted %v after units came back, with %d calls", remembers, late, link.calls.Load()-before)
			}
		})
	}
}

// A crowd is servers that ask for one key, very unevenly.
type crowd struct {
	policy  core.Policy
	servers int
	demand  float64 // questions a second, as a part of the limit
	cost    float64 // units of a question, on average
	trip    time.Duration
	ask     func(rng *rand.Rand, a, b *core.Limiter) (units int64, err error)
}

// compare returns how many units are admitted without leases and with, and the calls that
// took, of how many questions.
func (c *crowd) compare(t *testing.T, seconds int) (wanted, admitted, calls, asked int64) {
	shared, exact := memstore.New(memstore.Config{}), memstore.New(memstore.Config{})
	pair := func(s core.Store) (a, b *core.Limiter) { return named(t, s, "a", c.policy), named(t, s, "b", c.policy) }
	exactA, exactB := pair(exact)
	var mu sync.Mutex
	var wait sync.WaitGroup
	time.Sleep(12*time.Second - time.Duration(time.Now().UnixNano())%(12*time.Second))
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for i := range c.servers {
		s, link := newServer(t, shared, Config{}, c.trip/2)
		link.even = true
		a, b := pair(s)
		rng := rand.New(rand.NewPCG(uint64(i), 9))
		part := c.demand / c.cost * 2 * float64(i+1) / float64(c.servers*(c.servers+1)) // of the first least
		gap := float64(c.policy.Window()) / float64(c.policy.Limit()) / part
		for next := time.Now(); ; {
			next = next.Add(time.Duration(rng.ExpFloat64() * gap))
			if next.After(end) {
				break
			}
			seed := rng.Uint64()
			wait.Go(func() {
				time.Sleep(time.Until(next))
				x, err := c.ask(rand.New(rand.NewPCG(seed, 1)), exactA, exactB)
				y, err2 := c.ask(rand.New(rand.NewPCG(seed, 1)), a, b)
				if err != nil || err2 != nil {
					t.Error(err, err2)
				}
				mu.Lock()
				defer mu.Unlock()
				wanted, admitted, asked = wanted+x, admitted+y, asked+1
			})
		}
		defer func() { calls += link.calls.Load() }()
	}
	wait.Wait()
	return wanted, admitted, calls, asked
}

func one(_ *rand.Rand, a, _ *core.Limiter) (int64, error) {
	return units(a.Allow(context.Background(), key))
}

func both(_ *rand.Rand, a, b *core.Limiter) (int64, error) {
	return units(core.AllowAll(context.Background(), core.Charge{Limiter: a, Key: key, N: 1}, core.Charge{Limiter: b, Key: key, N: 1}))
}

func mixed(rng *rand.Rand, a, _ *core.Limiter) (int64, error) {
	n := 1 + rng.Int64N(9)
	got, err := units(a.AllowN(context.Background(), key, n))
	return got * n, err
}

func atMost(rng *rand.Rand, a, _ *core.Limiter) (int64, error) {
	if rng.IntN(2) == 0 {
		got, err := units(a.AllowN(context.Background(), key, 3))
		return got * 3, err
	}
	_, got, err := a.AllowAtMost(context.Background(), key, 5)
	return got, err
}

func units(d core.Decision, err error) (int64, error) {
	if d.Allowed {
		return 1, err
	}
	return 0, err
}

// At the limit, whatever is asked, as much is admitted as without leases, with few calls.
func TestAsMuchAsWithoutLeases(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	policies := []core.Policy{
		core.FixedWindow(core.PerSecond(3000)),
		core.SlidingWindow(core.PerSecond(3000)),
		core.SlidingWindow(core.PerSecond(3000)).NeverOver(),
		core.TokenBucket(core.PerSecond(3000), 3000).Leasable(200 * time.Millisecond),
	}
	for name, c := range map[string]crowd{
		"one":     {cost: 1, ask: one},
		"both":    {cost: 1, ask: both},
		"mixed":   {cost: 5, ask: mixed},
		"at most": {cost: 4, ask: atMost},
	} {
		for _, policy := range policies {
			for _, demand := range []float64{0.8, 1.3, 4} {
				t.Run(fmt.Sprint(name, " ", policy, " ", demand), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						c := c
						c.policy, c.demand, c.servers, c.trip = policy, demand, 4, 600*time.Microsecond
						wanted, admitted, calls, asked := c.compare(t, 3)
						t.Logf("%.1f %% admitted, %.3f calls for each of %d questions", 100*float64(admitted)/float64(wanted), float64(calls)/float64(asked), asked)
						if admitted*100 < wanted*98 {
							t.Errorf("%d units were admitted, and without leases %d", admitted, wanted)
						}
						if most := int64(3 * c.servers * 200); calls > most {
							t.Errorf("%d calls, more than %d", calls, most)
						}
					})
				})
			}
		}
	}
}

// Leases save calls also where a call takes long.
func TestLongRoundTrips(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, trip := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond} {
		for _, demand := range []float64{0.8, 2} {
			for _, policy := range []core.Policy{
				core.SlidingWindow(core.PerSecond(5_000)), core.SlidingWindow(core.PerSecond(5_000)).Resolution(4),
				core.FixedWindow(core.PerSecond(5_000)),
			} {
				t.Run(fmt.Sprint(trip, " ", demand, " ", policy), func(t *testing.T) {
					bubble.Test(t, func(t *testing.T) {
						c := crowd{policy: policy, demand: demand, servers: 4, trip: trip, cost: 1, ask: one}
						wanted, admitted, calls, asked := c.compare(t, 2)
						t.Logf("%.1f %% admitted, %.4f calls for each of %d questions", 100*float64(admitted)/float64(wanted), float64(calls)/float64(asked), asked)
						if calls*2 > asked {
							t.Errorf("%d calls", calls)
						}
					})
				})
			}
		}
	}
}

// Equal limiters that are made twice share their leases.
func TestEqualLimitersShare(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		p := core.FixedWindow(core.Rate{Events: 100_000, Per: 400 * 24 * time.Hour})
		first, second := limiterOf(t, s, p), limiterOf(t, s, p)
		for range 2500 {
			time.Sleep(100 * time.Microsecond)
			allow(t, first, 1)
			allow(t, second, 1)
		}
		if calls := link.calls.Load(); calls > 40 {
			t.Errorf("%d calls for 5000 decisions", calls)
		}
		if got := remaining(t, second); got != 95_000 {
			t.Errorf("%d are left", got)
		}
	})
}
