package memstore

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
)

// shift makes the next calls read the clock later than they do or, if the shift is
// negative, as callers did who then waited for the lock.
func (s *Store) shift(by time.Duration) { s.start = s.start.Add(-by) }

func newLimiter(t *testing.T, s *Store, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(s, name, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLateCallers: calls that read the clock before others, and decide after them, get
// what they would have got in the order of their decisions.
func TestLateCallers(t *testing.T) {
	t.Run("a bucket of 5 admits 5", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.TokenBucket(core.PerHour(5), 5))
		for i := range 5 {
			if d, err := l.Allow(t.Context(), "key"); err != nil || !d.Allowed {
				t.Errorf("call %d: %v, %v", i+1, d, err)
			}
			s.shift(-time.Millisecond)
		}
	})
	t.Run("a call is given back", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.MinInterval(time.Hour))
		for i := range 5 {
			d, err := l.Allow(t.Context(), "key")
			if err != nil || !d.Allowed {
				t.Fatalf("call %d: %v, %v", i+1, d, err)
			}
			if err := d.Refund(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.shift(-time.Millisecond)
		}
	})
	t.Run("RetryAfter is not longer than the distance", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.MinInterval(time.Hour))
		if d, err := l.Allow(t.Context(), "key"); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		s.shift(-time.Second)
		if d, err := l.Allow(t.Context(), "key"); err != nil || d.Allowed || d.RetryAfter > time.Hour {
			t.Errorf("%v, %v", d, err)
		}
	})
	t.Run("several keys have one instant, the latest of their shards", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.MinInterval(time.Hour))
		keys := []string{"a", "b", "c"}
		for i := range keys { // each is in turn the one that was charged last
			var charges []store.Charge
			for _, key := range keys {
				if err := l.Reset(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				charges = append(charges, store.Charge{Limiter: l.Prepared(), Key: key, N: 1})
			}
			var before, all, next store.Result
			if err := asking.Decide(t.Context(), s, store.Allow, &before, charges[i]); err != nil || !before.Allowed {
				t.Fatal(before, err)
			}
			if err := l.Reset(t.Context(), keys[i]); err != nil {
				t.Fatal(err)
			}
			s.shift(-time.Second)
			if err := asking.Decide(t.Context(), s, store.Allow, &all, charges...); err != nil || all.At < before.At {
				t.Errorf("decided at %d after %d, %v", all.At, before.At, err)
			}
			for _, c := range charges {
				if err := asking.Decide(t.Context(), s, store.Peek, &next, c); err != nil || next.At < all.At {
					t.Errorf("key %s: decided at %d after %d, %v", c.Key, next.At, all.At, err)
				}
			}
		}
	})
	t.Run("what the sweep dropped as fresh is not admitted earlier", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.MinInterval(time.Hour))
		c := store.Charge{Limiter: l.Prepared(), Key: "key", N: 1}
		var first, again store.Result
		if err := asking.Decide(t.Context(), s, store.Allow, &first, c); err != nil || !first.Allowed {
			t.Fatal(first, err)
		}
		s.shift(time.Hour)
		for range shards {
			s.sweep(s.now())
		}
		s.shift(-time.Minute)
		err := asking.Decide(t.Context(), s, store.Allow, &again, c)
		if hour := time.Hour.Microseconds(); err != nil || again.Allowed && again.At < first.At+hour {
			t.Errorf("admitted %d µs after the call before, %v", again.At-first.At, err)
		}
	})
	t.Run("what was reclaimed as fresh is not admitted earlier", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(1000)))
		c := store.Charge{Limiter: l.Prepared(), Key: "key", N: 1000}
		var first, again store.Result
		if err := asking.Decide(t.Context(), s, store.Allow, &first, c); err != nil || !first.Allowed {
			t.Fatal(first, err)
		}
		s.shift(time.Hour)
		s.budget.max = s.budget.used() - 1
		s.reclaim(s.now())
		if st := s.Stats(); st.Keys != 0 || st.Evicted != 0 {
			t.Errorf("%+v after an eviction that loses nothing", st)
		}
		s.shift(-time.Minute)
		err := asking.Decide(t.Context(), s, store.Allow, &again, c)
		if hour := time.Hour.Microseconds(); err != nil || again.Allowed && again.At < first.At+hour {
			t.Errorf("admitted %d µs after the call before, %v", again.At-first.At, err)
		}
	})
	t.Run("more is charged as a call is settled", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.TokenBucket(core.PerSecond(1), 10))
		d, err := l.AllowN(t.Context(), "key", 5)
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		s.shift(-time.Millisecond)
		if uncovered, err := d.Settle(t.Context(), 10); err != nil || uncovered != 0 {
			t.Errorf("%d of 5 more units did not fit, %v", uncovered, err)
		}
	})
}

// TestCrowd: of as many callers as there are units, none is refused, and each call that
// is given back makes room for another.
func TestCrowd(t *testing.T) {
	const callers, bursts = 8, 500
	s := New(Config{})
	bucket := newLimiter(t, s, "bucket", core.TokenBucket(core.PerHour(callers), callers))
	pace := newLimiter(t, s, "pace", core.MinInterval(time.Hour))
	for range bursts {
		var wg sync.WaitGroup
		var refused atomic.Int64
		for range callers {
			wg.Go(func() {
				if d, err := bucket.Allow(t.Context(), "key"); err != nil || !d.Allowed {
					refused.Add(1)
				}
				d, err := pace.Allow(t.Context(), "key")
				if err != nil || !d.Allowed {
					return
				}
				if err := d.Refund(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := refused.Load(); n > 0 {
			t.Fatalf("%d of %d callers were refused", n, callers)
		}
		if err := bucket.Reset(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
		if d, err := pace.Peek(t.Context(), "key"); err != nil || !d.Allowed {
			t.Fatalf("all calls were given back: %v, %v", d, err)
		}
	}
}
