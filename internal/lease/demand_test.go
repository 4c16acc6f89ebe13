package lease

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redisrates"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

var (
	demandTrip = flag.Duration("trip", 500*time.Microsecond, "what a call takes")
	every      = flag.Bool("every", false, "run every case of demand, for longer")
)

// A load is what four servers are asked for: a multiple of the limit of the first rule. A second rule is about one of
// four users. What is asked for before the start does not count.
type load struct {
	rules         []step.Numbers
	factor        float64
	uneven        bool // a server is asked for twice as much as the next
	clients       int  // of each server: how many ask at once
	start, length time.Duration
}

// A result is what the servers have done.
type result struct{ asked, admitted, calls int64 }

// part returns a part of what was asked for, in percent.
func (r result) part(n int64) float64 { return 100 * float64(n) / float64(r.asked) }

// serve lets the servers decide, with leases or without. Open opens the way of one to the shared store, with and without
// a memory of refusals, and counts its calls.
func (ld load) serve(t testing.TB, leased bool, open func() (next, uncached store.Rates, calls *atomic.Int64)) result {
	t.Helper()
	began := time.Now()
	var asked, admitted, calls atomic.Int64
	var done sync.WaitGroup
	for i := range 4 {
		next, uncached, called := open()
		s := New(next, uncached, time.Second, time.Second)
		defer s.Close(context.Background())
		var limiters []limiter
		for j, m := range ld.rules {
			limiters = append(limiters, newLimiter(fmt.Sprint("rule", j), m))
			_ = next.Prepare(limiters[j])
		}
		way := next
		if leased {
			way = s
		}
		share := 0.25
		if ld.uneven {
			share = float64(int(8)>>i) / 15
		}
		gap := float64(ld.rules[0].Period) * 1000 / (float64(ld.rules[0].Limit) * ld.factor * share) * float64(ld.clients)
		end := ld.start + ld.length
		time.AfterFunc(ld.start, func() { calls.Add(-called.Load()) })
		time.AfterFunc(end, func() { calls.Add(called.Load()) })
		client := func(rng *rand.Rand) {
			for at := time.Duration(0); ; {
				at += time.Duration(rng.ExpFloat64() * gap)
				if <-time.After(at - time.Since(began)); at > end {
					return
				}
				cells := limiters[0].cells(key, 1)
				if len(limiters) > 1 {
					cells = append(cells, limiters[1].cells(fmt.Sprint("user", rng.IntN(4)), 1)...)
				}
				allowed, err := way.Ask(context.Background(), step.Allow, cells)
				if err != nil {
					t.Error(err)
				}
				if now := time.Since(began); now < ld.start || now > end {
					continue
				}
				if asked.Add(1); allowed {
					admitted.Add(1)
				}
			}
		}
		for j := range ld.clients {
			done.Go(func() { client(rand.New(rand.NewPCG(uint64(i), uint64(j)))) })
		}
	}
	done.Wait()
	return result{asked.Load(), admitted.Load(), calls.Load()}
}

// A mindful store remembers refusals until units may fit, as that over Redis does.
type mindful struct {
	*link

	mu    sync.Mutex
	until map[uint64]time.Time // by the policy and the key
}

func (m *mindful) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	if mode == step.Allow && m.remembers(cells) {
		return false, nil
	}
	allowed, err = m.link.Ask(ctx, mode, cells)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, cell := range cells {
		if err == nil && cell.Shortfall > 0 {
			m.until[cell.Policy.ID^cell.Hash] = time.Now().Add(time.Duration(cell.RetryAfter) * time.Microsecond)
		}
	}
	return allowed, err
}

// remembers answers by what is remembered, if a policy has refused.
func (m *mindful) remembers(cells []step.Cell) (refused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range cells {
		cell := &cells[i]
		wait := time.Until(m.until[cell.Policy.ID^cell.Hash])
		cell.Source = step.SourceCache
		cell.Shortfall = 0
		if wait > 0 {
			cell.Shortfall = 1
			cell.RetryAfter = wait.Microseconds()
			refused = true
		}
	}
	return refused
}

// inBubble serves a load without leases and with them, and returns how much of the first the second admits, in percent.
func (ld load) inBubble(t *testing.T) (share float64, plain, leased result) {
	t.Helper()
	for _, r := range []*result{&plain, &leased} {
		synctest.Test(t, func(t *testing.T) {
			shared := memory.New(0)
			*r = ld.serve(t, r == &leased, func() (next, uncached store.Rates, calls *atomic.Int64) {
				l := newLink(shared)
				l.slow.Store(int64(*demandTrip / 2))
				return &mindful{link: l, until: make(map[uint64]time.Time)}, l, &l.calls
			})
		})
	}
	return 100 * float64(leased.admitted) / float64(plain.admitted), plain, leased
}

// With demand over the limit, what is admitted is at least 98 % of what is admitted without leases; with demand at
// 80 %, at least 99 % of requests.
func TestDemand(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector")
	}
	for _, c := range []struct {
		name string
		m    step.Numbers
		long bool
	}{
		{"fixed 100/s", fixed(100, time.Second), false},
		{"fixed 1000/s", fixed(1000, time.Second), false},
		{"fixed 6000/min", fixed(6000, time.Minute), true},
		{"sliding 1000/s", sliding(1000, time.Second, 10), false},
		{"sliding 6000/min", sliding(6000, time.Minute, 10), true},
		{"never over 6000/min of 100", neverOver(sliding(6000, time.Minute, 100)), true},
		{"sliding 10000/s", sliding(10000, time.Second, 10), true},
	} {
		for i, factor := range []float64{0.8, 1, 1.2, 3, 10, 0.8, 1, 1.2, 3, 10} {
			uneven := i < 5
			if (c.long || !uneven) && !*every || c.m.Limit == 10000 && factor > 3 {
				continue
			}
			period := time.Duration(c.m.Period) * time.Microsecond
			ld := load{[]step.Numbers{c.m}, factor, uneven, 256, 2 * period, max(3*period, 25*time.Second)}
			share, plain, leased := ld.inBubble(t)
			of, without := leased.part(leased.admitted), plain.part(plain.admitted)
			t.Logf("%-27s uneven %-5v x%-4v: %6.2f %% of unleased, %6.2f %% of requests (%.2f), %.2f calls for 100 decisions",
				c.name, uneven, factor, share, of, without, leased.part(leased.calls))
			if factor >= 1 && share < 98 || factor < 1 && of < 99 && of < 0.999*without {
				t.Errorf("%s x%v: too few", c.name, factor)
			}
		}
	}
}

// A guard of two rules asks about a tenant and a user at once: both are busy, and perhaps only one of them can be leased.
func TestTwoRules(t *testing.T) {
	bucket := step.Numbers{Kind: step.TokenBucket, Limit: 400, Burst: 400, Period: 1e6}
	for name, user := range map[string]step.Numbers{"a leased user": fixed(400, time.Second), "an unleased user": bucket} {
		for _, factor := range []float64{0.5, 0.8, 1, 1.2, 3} {
			ld := load{[]step.Numbers{sliding(1000, time.Second, 10), user}, factor, false, 64, 0, 6 * time.Second}
			share, _, leased := ld.inBubble(t)
			calls := leased.part(leased.calls)
			t.Logf("%-16s x%-3v: %6.2f %% of unleased; %.1f calls for 100 decisions", name, factor, share, calls)
			if share < 98 || calls > 101 || factor == 0.8 && user != bucket && calls > 50 {
				t.Error("too few are admitted, or too many calls are made")
			}
		}
	}
}

// One server may have leased what is left of the tenant, and another what is left of the users. With far more demand than
// units, neither could spend that until the windows end. It comes together, and no refusal is remembered for longer.
func TestLeasesComeTogether(t *testing.T) {
	slow := *demandTrip
	defer func() { *demandTrip = slow }()
	for _, period := range []time.Duration{time.Second, 10 * time.Second} {
		for _, clients := range []int{5, 32} {
			for _, trip := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 5 * time.Millisecond} {
				*demandTrip = trip
				rules := []step.Numbers{fixed(2000, period), fixed(600, period)}
				share, _, leased := load{rules, 10, false, clients, period, 3 * period}.inBubble(t)
				calls := leased.part(leased.calls)
				t.Logf("%v, %d clients, %v: %6.2f %% of unleased; %.1f calls for 100 decisions", period, clients, trip, share, calls)
				if share < 98 || calls > 10 {
					t.Error("too few are admitted, or too many calls are made")
				}
			}
		}
	}
}

// BenchmarkRedis lets four servers share a limit of 2,000 requests a second, and reports what they admit, of the limit, and
// the calls of Redis for 1,000 decisions: with leases and without, about one rate, and about two rates at once. It counts
// three seconds, after two windows for getting warm.
func BenchmarkRedis(b *testing.B) {
	for name, tenant := range map[string]step.Numbers{"FixedWindow": fixed(2000, time.Second), "SlidingWindow": sliding(2000, time.Second, 10)} {
		user := tenant
		user.Limit = 600
		for i, factor := range []float64{0.8, 1, 1.2, 3, 10, 0.8, 1, 1.2, 3, 10} {
			for _, leased := range []bool{false, true} {
				rates := i/5 + 1
				b.Run(fmt.Sprintf("%s/rates=%d/demand=%v/leased=%v", name, rates, factor, leased), func(b *testing.B) {
					address := redistest.Start(b).Addr()
					start := time.Until(time.Now().Truncate(time.Second).Add(3 * time.Second))
					ld := load{[]step.Numbers{tenant, user}[:rates], factor, false, 8, start, 3 * time.Second}
					r := ld.serve(b, leased, func() (next, uncached store.Rates, calls *atomic.Int64) { return overRedis(b, address) })
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(100*float64(r.admitted)/6000, "%admitted")
					b.ReportMetric(10*r.part(r.calls), "calls/1000")
				})
			}
		}
	}
}

func overRedis(b *testing.B, address string) (next, uncached store.Rates, calls *atomic.Int64) {
	b.Helper()
	client := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true, MaxRetries: -1})
	b.Cleanup(func() { _ = client.Close() })
	calls = new(atomic.Int64)
	s, err := redisrates.New(client, redisrates.Config{
		Timeout: time.Second, Failure: outage.FailClosed,
		Called: func(store.Call) { calls.Add(1) },
	})
	if err != nil {
		b.Fatal(err)
	}
	return s, s.Uncached(), calls
}
