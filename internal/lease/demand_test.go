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

	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
)

var (
	demandSeed = flag.Uint64("demand", 2, "the seed of the demand")
	demandTrip = flag.Duration("trip", 500*time.Microsecond, "what a call takes")
	every      = flag.Bool("every", false, "run every case of demand, for longer")
)

// A result is what servers have done for a while.
type result struct{ asked, admitted, calls, settles, early int64 }

// serve lets servers ask with so many times the limit, with leases or without, and returns what they did after a
// while for getting started.
func serve(t *testing.T, m step.Numbers, servers int, factor float64, uneven, leased bool, settle, measure time.Duration) (res result) {
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New(0)
		l := newLimiter("api", m)
		start := time.Now()
		var done sync.WaitGroup
		var admitted, asked, early atomic.Int64
		var links []*link
		var stores []*Store
		for i := range servers {
			lk := &link{Store: shared, even: true, rng: rand.New(rand.NewPCG(1, uint64(i)))}
			lk.slow.Store(int64(*demandTrip / 2))
			links = append(links, lk)
			s := New(lk, lk, time.Second, 100*time.Millisecond)
			stores = append(stores, s)
			share := 1 / float64(servers)
			if uneven { // 8/15, 4/15, 2/15, 1/15
				share = float64(int(1)<<(servers-1-i)) / float64(int(1)<<servers-1)
			}
			gap := float64(m.Period) * 1000 / (float64(m.Limit) * factor * share)
			rng := rand.New(rand.NewPCG(*demandSeed, uint64(i)))
			done.Go(func() {
				for {
					time.Sleep(time.Duration(rng.ExpFloat64() * gap))
					since := time.Since(start)
					if since > settle+measure {
						return
					}
					done.Go(func() {
						cells := l.cells(key, 1)
						allowed, err := askOne(leased, s, lk, cells)
						if err != nil {
							t.Error(err)
						}
						if since < settle {
							return
						}
						asked.Add(1)
						if allowed {
							admitted.Add(1)
						} else if leased {
							probe := l.cells(key, 1)
							_, _ = shared.Ask(context.Background(), step.Peek, probe)
							if probe[0].Remaining > 0 {
								early.Add(1) // refused though there is room by now
							}
						}
					})
				}
			})
		}
		time.Sleep(settle)
		var before [2]int64
		for _, lk := range links {
			before[0], before[1] = before[0]+lk.calls.Load(), before[1]+lk.settles.Load()
		}
		done.Wait()
		for _, lk := range links {
			res.calls, res.settles = res.calls+lk.calls.Load(), res.settles+lk.settles.Load()
		}
		res.calls, res.settles = res.calls-before[0], res.settles-before[1]
		res.asked, res.admitted, res.early = asked.Load(), admitted.Load(), early.Load()
		for _, s := range stores {
			s.Close(context.Background())
		}
	})
	return res
}

func askOne(leased bool, s *Store, lk *link, cells []step.Cell) (allowed bool, err error) {
	if leased {
		return ask(context.Background(), s, cells)
	}
	return lk.Ask(context.Background(), step.Allow, cells)
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
		if c.long && !*every {
			continue
		}
		settle, measure := 2*time.Duration(c.m.Period)*time.Microsecond, 3*time.Duration(c.m.Period)*time.Microsecond
		if c.m.Period < 10e6 {
			measure = 25 * time.Duration(c.m.Period) * time.Microsecond
		}
		for _, uneven := range []bool{true, false} {
			if !uneven && !*every {
				continue
			}
			for _, factor := range []float64{0.8, 1, 1.2, 3, 10} {
				if c.m.Limit == 10000 && factor > 3 {
					continue
				}
				plain := serve(t, c.m, 4, factor, uneven, false, settle, measure)
				leased := serve(t, c.m, 4, factor, uneven, true, settle, measure)
				share := 100 * float64(leased.admitted) / float64(plain.admitted)
				of := 100 * float64(leased.admitted) / float64(leased.asked)
				t.Logf("%-27s uneven %-5v x%-4v: %6.2f %% of unleased, %6.2f %% of requests (%.2f), %.4f calls and %.4f returns a decision, early %.3f %%", c.name, uneven, factor,
					share, of, 100*float64(plain.admitted)/float64(plain.asked), float64(leased.calls)/float64(leased.asked), float64(leased.settles)/float64(leased.asked), 100*float64(leased.early)/float64(leased.asked))
				if factor >= 1 && share < 98 || factor < 1 && of < 99 && of < 99.9*float64(plain.admitted)/float64(plain.asked) {
					t.Errorf("%s x%v: too few", c.name, factor)
				}
			}
		}
	}
}

// A guard of two rules asks about a tenant and a user at once: both are busy, and only one of them can be leased.
func TestTwoRules(t *testing.T) {
	bucket := step.Numbers{Algorithm: step.TokenBucket, Limit: 400, Burst: 400, Period: 1e6}
	for name, user := range map[string]step.Numbers{"a leased user": fixed(400, time.Second), "an unleased user": bucket} {
		for _, factor := range []float64{0.5, 0.8, 1, 1.2, 3} {
			plain, leased := serveTwo(t, user, factor, false), serveTwo(t, user, factor, true)
			share := 100 * float64(leased.admitted) / float64(plain.admitted)
			calls := float64(leased.calls+leased.settles) / float64(leased.asked)
			t.Logf("%-16s x%-3v: %6.2f %% of unleased; %.3f calls a decision", name, factor, share, calls)
			if share < 98 || calls > 1 || factor == 0.8 && user != bucket && calls > 0.5 {
				t.Error("too few are admitted, or too many calls are made")
			}
		}
	}
}

// serveTwo lets four servers ask for a tenant and one of its four users at once.
func serveTwo(t *testing.T, second step.Numbers, factor float64, leased bool) (res result) {
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New(0)
		tenant, user := newLimiter("tenant", sliding(1000, time.Second, 10)), newLimiter("user", second)
		start := time.Now()
		var done sync.WaitGroup
		var asked, admitted atomic.Int64
		for i := range 4 {
			lk := &link{Store: shared, even: true, rng: rand.New(rand.NewPCG(1, uint64(i)))}
			lk.slow.Store(int64(*demandTrip / 2))
			s := New(lk, lk, time.Second, 100*time.Millisecond)
			defer func() {
				_ = s.Close(context.Background())
				res.calls, res.settles = res.calls+lk.calls.Load(), res.settles+lk.settles.Load()
			}()
			rng := rand.New(rand.NewPCG(*demandSeed, uint64(i)))
			done.Go(func() {
				for time.Since(start) < 6*time.Second {
					time.Sleep(time.Duration(rng.ExpFloat64() * 1e9 / (1000 * factor / 4)))
					name := fmt.Sprint("user", rng.IntN(4))
					done.Go(func() {
						cells := append(tenant.cells(key, 1), user.cells(name, 1)...)
						allowed, _ := askOne(leased, s, lk, cells)
						if asked.Add(1); allowed {
							admitted.Add(1)
						}
					})
				}
			})
		}
		done.Wait()
		res.asked, res.admitted = asked.Load(), admitted.Load()
	})
	return res
}
