package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

func named(t *testing.T, s core.Store, name string, p core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(s, name, p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func together(t *testing.T, charges ...core.Charge) core.Decision {
	t.Helper()
	d, err := core.AllowAll(context.Background(), charges...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func remaining(t *testing.T, l *core.Limiter) int64 {
	t.Helper()
	d, err := l.Peek(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

func year(n int64) core.Policy {
	return core.FixedWindow(core.Rate{Events: n, Per: 400 * 24 * time.Hour})
}

// Charges that are all leased take no call, others one, and all count.
func TestAllFromLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, link := newServer(t, shared, Config{}, 0)
		a, b := named(t, s, "a", year(100_000)), named(t, s, "b", core.TokenBucket(core.PerSecond(1000), 4000).Leasable(time.Second))
		cold := named(t, s, "cold", core.SlidingLog(core.PerDay(100)))
		hot := []core.Charge{{Limiter: a, Key: key, N: 2}, {Limiter: b, Key: key, N: 1}}
		local := 0
		for range 300 {
			time.Sleep(time.Millisecond)
			if together(t, hot...).Source == core.SourceLease {
				local++
			}
		}
		if local < 250 {
			t.Errorf("only %d of 300 were local", local)
		}
		before := link.calls.Load()
		for i := range int64(50) {
			d := together(t, append(hot, core.Charge{Limiter: cold, Key: key, N: 1})...)
			if !d.Allowed || d.Source != core.SourceStore || d.Answer(2).Remaining != 99-i || d.Answer(0).Remaining != 100_000-602-2*i {
				t.Fatal(d, d.Source, d.Answer(0), d.Answer(1), d.Answer(2))
			}
		}
		if calls := link.calls.Load() - before; calls > 55 {
			t.Errorf("%d calls for 50 decisions of which one charge is not leased", calls)
		}
		if got := remaining(t, a); got != 100_000-700 {
			t.Errorf("%d are left", got)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if got := remaining(t, named(t, shared, "a", year(100_000))); got != 100_000-700 {
			t.Errorf("%d are left after all was given back", got)
		}
	})
}

// If one charge is refused, or the store fails, nothing is charged: not what is leased either.
func TestAllOrNothing(t *testing.T) {
	for _, fails := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
			hot, full := named(t, s, "hot", year(10_000)), named(t, s, "full", core.SlidingLog(core.PerDay(1)))
			for range 100 {
				allow(t, hot, 1)
			}
			if d := together(t, core.Charge{Limiter: full, Key: key, N: 1}); !d.Allowed {
				t.Fatal(d)
			}
			link.dead.Store(fails)
			for i := range 20 {
				d, err := core.AllowAll(context.Background(), core.Charge{Limiter: hot, Key: key, N: 3}, core.Charge{Limiter: full, Key: key, N: 1})
				switch {
				case fails:
					if !errors.Is(err, errLink) {
						t.Fatal(d, err)
					}
				case err != nil || d.Allowed || !d.Answer(0).Allowed || d.Answer(0).Remaining != 9900 || d.Answer(1).Allowed || d.RetryAfter < time.Hour:
					t.Fatal(i, d, err, d.Answer(0), d.Answer(1))
				}
			}
			link.dead.Store(false)
			if got := remaining(t, hot); got != 9900 {
				t.Errorf("%d are left, want 9900", got)
			}
		})
	}
}

// What was spent and is put back when the lease is over goes to the store.
func TestPutBackInTheStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, link := newServer(t, shared, Config{}, 0)
		hot, full := named(t, s, "hot", year(10_000)), named(t, s, "full", core.SlidingLog(core.PerDay(1)))
		for range 100 {
			allow(t, hot, 1)
		}
		together(t, core.Charge{Limiter: full, Key: key, N: 1})
		link.slow.Store(int64(5 * time.Second))
		if d := together(t, core.Charge{Limiter: hot, Key: key, N: 3}, core.Charge{Limiter: full, Key: key, N: 1}); d.Allowed {
			t.Error(d)
		}
		link.slow.Store(int64(0))
		time.Sleep(5 * time.Second)
		if got := remaining(t, named(t, shared, "hot", year(10_000))); got != 9900 {
			t.Errorf("%d are left, want 9900", got)
		}
	})
}

// Keys that are only asked together with others are leased too, and at the limit they are
// refused with few calls.
func TestAllAtTheLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 100*time.Microsecond)
		p := core.SlidingWindow(core.PerSecond(1000)).NeverOver()
		a, b := named(t, s, "a", p), named(t, s, "b", p)
		admitted, last := 0, core.Decision{}
		for range 50_000 {
			time.Sleep(100 * time.Microsecond)
			if last = together(t, core.Charge{Limiter: a, Key: key, N: 1}, core.Charge{Limiter: b, Key: key, N: 1}); last.Allowed {
				admitted++
			} else if last.RetryAfter <= 0 {
				t.Fatal(last)
			}
		}
		calls := link.calls.Load()
		t.Logf("%d admitted in about %d seconds, with %d calls", admitted, 50_000/6666, calls)
		if admitted < 4500 || calls > 8000 {
			t.Errorf("%d admitted with %d calls", admitted, calls)
		}
	})
}

// What is spent from leases of several keys goes back to them.
func TestAllAreRefunded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		a, b := named(t, s, "a", year(10_000)), named(t, s, "b", year(20_000))
		for range 100 {
			together(t, core.Charge{Limiter: a, Key: key, N: 1}, core.Charge{Limiter: b, Key: key, N: 2})
		}
		d := together(t, core.Charge{Limiter: a, Key: key, N: 5}, core.Charge{Limiter: b, Key: key, N: 7})
		if !d.Allowed || d.Source != core.SourceLease {
			t.Fatal(d, d.Source)
		}
		calls := link.calls.Load()
		if err := d.Refund(context.Background()); err != nil || link.calls.Load() != calls {
			t.Error(err, link.calls.Load()-calls)
		}
		if x, y := remaining(t, a), remaining(t, b); x != 9900 || y != 19_800 {
			t.Errorf("%d and %d are left", x, y)
		}
	})
}

// While the demand is steady, nobody waits for the store: more is leased in the background.
func TestRefillsAhead(t *testing.T) {
	for _, p := range []core.Policy{
		core.FixedWindow(core.Rate{Events: 1 << 30, Per: 400 * 24 * time.Hour}),
		core.TokenBucket(core.PerSecond(10_000), 40_000).Leasable(time.Second),
	} {
		bubble.Test(t, func(t *testing.T) {
			s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
			l := limiterOf(t, s, p)
			link.slow.Store(int64(2 * time.Millisecond))
			late, before := 0, int64(0)
			for i := range 20_000 {
				time.Sleep(time.Millisecond)
				if i == 5000 {
					before = link.calls.Load()
				}
				start := time.Now()
				if d := allow(t, l, 1); !d.Allowed {
					t.Fatal(d)
				}
				if i >= 5000 && time.Since(start) > 0 {
					late++
				}
			}
			calls := link.calls.Load() - before
			t.Logf("%v: %d of 15000 waited, %d calls in 15 seconds", p, late, calls)
			if calls > 35 {
				t.Errorf("%v: %d calls", p, calls)
			}
			if late > 3 {
				t.Errorf("%v: %d waited", p, late)
			}
		})
	}
}

// Close waits for leases that are on their way, and gives them back.
func TestCloseWaitsForCalls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, link := newServer(t, shared, Config{}, 0)
		p := year(1 << 30)
		l := limiterOf(t, s, p)
		for range 1000 {
			allow(t, l, 1)
		}
		time.Sleep(1100 * time.Millisecond) // the lease is over
		link.slow.Store(int64(100 * time.Millisecond))
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			allow(t, l, 1)
		}()
		time.Sleep(time.Microsecond)
		short, cancel := context.WithTimeout(context.Background(), time.Microsecond)
		defer cancel()
		if err := s.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		<-asked
		if got := remaining(t, limiterOf(t, shared, p)); got != 1<<30-1001 {
			t.Errorf("%d are left, want %d", got, 1<<30-1001)
		}
	})
}

// Keys that are asked rarely cost the same calls as without leases, and no memory.
func TestColdKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		l := named(t, s, "cold", core.TokenBucket(core.PerSecond(10), 100).Leasable(time.Second))
		for range 3 {
			for i := range 1000 {
				if _, err := l.Allow(context.Background(), fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * time.Second)
		}
		if calls := link.calls.Load(); calls != 3000 {
			t.Errorf("%d calls for 3000 decisions", calls)
		}
		if n := s.entries.Load(); n != 0 {
			t.Errorf("%d entries", n)
		}
	})
}

// A bucket that is asked no more gives back what it has leased at once: soon it is worth less.
func TestIdleBucketGivesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, link := newServer(t, shared, Config{}, 0)
		p := core.TokenBucket(core.PerMinute(60), 4000).Leasable(time.Second)
		l := limiterOf(t, s, p)
		for range 500 {
			allow(t, l, 1)
		}
		if left := remaining(t, limiterOf(t, shared, p)); left >= 3499 {
			t.Fatalf("nothing was leased: %d", left)
		}
		time.Sleep(500 * time.Millisecond)
		if left := remaining(t, limiterOf(t, shared, p)); left != 3499 {
			t.Errorf("%d are left", left)
		}
		calls := link.calls.Load()
		time.Sleep(10 * time.Second)
		if link.calls.Load() != calls {
			t.Error("nothing is leased, and there were calls")
		}
	})
}

// A peek at several keys reports of each what the store has and what this process leases of it.
func TestPeekAtSeveral(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, _ := newServer(t, shared, Config{}, 0)
		a, b := named(t, s, "a", year(100_000)), named(t, s, "b", year(50_000))
		for range 300 {
			time.Sleep(time.Millisecond)
			together(t, core.Charge{Limiter: a, Key: key, N: 2}, core.Charge{Limiter: b, Key: key, N: 1})
		}
		if ra := remaining(t, named(t, shared, "a", year(100_000))); ra == 100_000-600 {
			t.Fatal("nothing is leased")
		}
		r, err := asking.Ask(t.Context(), s, &store.Question{Mode: store.Peek, Charges: []store.Charge{
			{Limiter: a.Prepared(), Key: key, N: 1}, {Limiter: b.Prepared(), Key: key, N: 1},
		}})
		if err != nil || !r.Allowed || r.Reading(0).Remaining != 100_000-600 || r.Reading(1).Remaining != 50_000-300 {
			t.Error(err, r.Allowed, r.Reading(0), r.Reading(1))
		}
	})
}
