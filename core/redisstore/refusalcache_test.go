package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/internal/redistest"
)

// aRefusal is a result of so many policies, the last of which refuses for a time.
func aRefusal(policies int, retry time.Duration) *core.Result {
	r := &core.Result{At: 1e15, Source: core.SourceStore}
	for range policies - 1 {
		r.Add(true, step.Reading{Remaining: 5, NextAfter: 30_000_000, ResetAfter: 60_000_000})
	}
	r.Add(false, step.Reading{NextAfter: retry.Microseconds(), ResetAfter: 60_000_000, RetryAfter: retry.Microseconds()})
	return r
}

// inCache runs a test of a cache in a bubble, where the time is its own. The
// store is never asked.
func inCache(t *testing.T, test func(t *testing.T, m *refusalCache, s *Store)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Client().Close()
		test(t, s.cache, s)
	})
}

func charges(cs ...core.Charge) []core.Charge { return cs }

// keep caches a refusal that was just given.
func (c *refusalCache) keep(cs []core.Charge, r *core.Result) {
	s, _, _ := c.get(cs)
	c.put(s, cs, r)
}

func (c *refusalCache) knows(cs []core.Charge) bool {
	_, _, known := c.get(cs)
	return known
}

func TestCachedUntilItEnds(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		for _, c := range []struct{ retry, until time.Duration }{
			{4 * time.Microsecond, 4 * time.Microsecond},
			{300 * time.Millisecond, 300 * time.Millisecond},
			{time.Second, time.Second},
			{time.Hour, time.Second},
		} {
			l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(1)))
			ask := charges(core.Charge{Limiter: l, Key: "k", N: 1})
			m.keep(ask, aRefusal(1, c.retry))
			var at time.Duration
			for _, later := range []time.Duration{0, c.until / 4, c.until - time.Microsecond} {
				time.Sleep(later - at)
				at = later
				_, r, known := m.get(ask)
				if !known {
					t.Fatalf("refused for %v: forgotten after %v", c.retry, later)
				}
				_, x := r.Reading(0)
				if got := time.Duration(x.RetryAfter) * time.Microsecond; r.Allowed || r.Source != core.SourceCache || got != c.retry-later {
					t.Errorf("refused for %v: after %v: %+v", c.retry, later, r)
				}
			}
			time.Sleep(time.Microsecond)
			if m.knows(ask) {
				t.Errorf("refused for %v: known after %v", c.retry, c.until)
			}
		}
	})
}

// An answer that took its time ends when it would have ended if it had been sent at
// once, and until then asks nobody to come back too early.
func TestCachedFromAfar(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(1)))
		ask := charges(core.Charge{Limiter: l, Key: "k", N: 1})
		seen, _, _ := m.get(ask)
		time.Sleep(30 * time.Millisecond)
		m.put(seen, ask, aRefusal(1, 100*time.Millisecond))
		time.Sleep(20 * time.Millisecond)
		_, r, known := m.get(ask)
		if _, x := r.Reading(0); !known || x.RetryAfter != 80_000 {
			t.Errorf("known %v, %+v", known, x)
		}
		time.Sleep(50*time.Millisecond - time.Nanosecond)
		if !m.knows(ask) {
			t.Error("forgotten too early")
		}
		if time.Sleep(time.Nanosecond); m.knows(ask) {
			t.Error("still known")
		}
	})
}

// Only the very same question is refused without being asked.
func TestCachedForTheSameQuestionOnly(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(1)))
		same := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(2)))
		other := newLimiter(t, s, "web", core.FixedWindow(core.PerMinute(1)))
		k := core.Charge{Limiter: l, Key: "k", N: 2}
		m.keep(charges(k), aRefusal(1, time.Minute))
		if !m.knows(charges(k)) {
			t.Fatal("forgotten")
		}
		for name, cs := range map[string][]core.Charge{
			"fewer units":   charges(core.Charge{Limiter: l, Key: "k", N: 1}),
			"more units":    charges(core.Charge{Limiter: l, Key: "k", N: 3}),
			"another key":   charges(core.Charge{Limiter: l, Key: "j", N: 2}),
			"other numbers": charges(core.Charge{Limiter: same, Key: "k", N: 2}),
			"another name":  charges(core.Charge{Limiter: other, Key: "k", N: 2}),
			"together":      charges(k, core.Charge{Limiter: other, Key: "k", N: 1}),
		} {
			if m.knows(cs) {
				t.Errorf("%s: known", name)
			}
		}
	})
}

// What this process gives back, or is about to, is not refused from the cache, however
// the answers cross on their way.
func TestGivenBackIsInvalidated(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		a := core.TokenBucket(core.PerMinute(1), 1).Named("a")
		b := core.FixedWindow(core.PerMinute(1)).Named("b")
		l := newLimiter(t, s, "api", a, b)
		turned := newLimiter(t, s, "api", b, a) // the same state
		other := newLimiter(t, s, "web", core.FixedWindow(core.PerMinute(1)))
		k := charges(core.Charge{Limiter: l, Key: "k", N: 1})
		both := charges(k[0], core.Charge{Limiter: other, Key: "j", N: 1})
		r := aRefusal(2, time.Minute)

		for name, c := range map[string]struct {
			asked, given []core.Charge
			forgets      bool
		}{
			"the key":                   {k, k, true},
			"through another limiter":   {k, charges(core.Charge{Limiter: turned, Key: "k"}), true},
			"one of two keys":           {both, both[1:], true},
			"another key":               {k, charges(core.Charge{Limiter: l, Key: "j"}), false},
			"the key for another limit": {k, charges(core.Charge{Limiter: other, Key: "k"}), false},
		} {
			for _, when := range []string{"asked, refused, given", "asked, given, refused", "given, asked, refused"} {
				if !c.forgets && m.generation(m.hash(&c.asked[0])) == m.generation(m.hash(&c.given[0])) {
					continue // one time in a thousand, they are forgotten together
				}
				want := !c.forgets
				switch when {
				case "asked, refused, given":
					m.keep(c.asked, r)
					m.invalidate(c.given)
				case "asked, given, refused":
					seen, _, _ := m.get(c.asked)
					m.invalidate(c.given)
					m.put(seen, c.asked, r)
				case "given, asked, refused":
					m.invalidate(c.given)
					m.keep(c.asked, r)
					want = true
				}
				if known := m.knows(c.asked); known != want {
					t.Errorf("%s, %s: known %v, want %v", name, when, known, want)
				}
				m.invalidate(c.asked)
			}
		}
	})
}

// A question that counts refusals has to be asked each time.
func TestCountDeniedIsNotCached(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		plain := newLimiter(t, s, "plain", core.FixedWindow(core.PerMinute(1)))
		denied := newLimiter(t, s, "denied", core.FixedWindow(core.PerMinute(1)).Named("a"), core.FixedWindow(core.PerHour(1)).Named("b").CountDenied())
		for _, cs := range [][]core.Charge{
			charges(core.Charge{Limiter: denied, Key: "k", N: 1}),
			charges(core.Charge{Limiter: plain, Key: "k", N: 1}, core.Charge{Limiter: denied, Key: "k", N: 1}),
		} {
			m.keep(cs, aRefusal(3, time.Minute))
			if m.knows(cs) {
				t.Errorf("%d charges: cached", len(cs))
			}
		}
	})
}

// Each answer is the asker's own, also where it has more readings than fit into it.
func TestCachedAnswersAreCopies(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		var ps []core.Policy
		for i := range 5 {
			ps = append(ps, core.FixedWindow(core.PerMinute(1)).Named(fmt.Sprint(i)))
		}
		ask := charges(core.Charge{Limiter: newLimiter(t, s, "api", ps...), Key: "k", N: 1})
		first := aRefusal(5, time.Minute)
		before := fmt.Sprint(readings(*first))
		m.keep(ask, first)
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			m.get(ask)
		}
		if now := fmt.Sprint(readings(*first)); now != before {
			t.Errorf("the first answer has become %s, was %s", now, before)
		}
		_, r, _ := m.get(ask)
		for i := range 5 {
			if _, x := r.Reading(i); x.ResetAfter != (time.Minute - 300*time.Millisecond).Microseconds() {
				t.Errorf("policy %d: %+v", i, x)
			}
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	inCache(t, func(t *testing.T, m *refusalCache, s *Store) {
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(1)))
		r := aRefusal(1, time.Minute)
		known := 0
		ask := func(i int) []core.Charge { return charges(core.Charge{Limiter: l, Key: fmt.Sprint(i), N: 1}) }
		for i := range 4 * cacheSize {
			m.keep(ask(i), r)
		}
		for i := range 4 * cacheSize {
			if m.knows(ask(i)) {
				known++
			}
		}
		if known > cacheSize || known < cacheSize*9/10 {
			t.Errorf("%d refusals are cached, in %d entries", known, cacheSize)
		}
		long := charges(core.Charge{Limiter: l, Key: strings.Repeat("k", maxCachedKey+1), N: 1})
		if m.keep(long, r); m.knows(long) {
			t.Error("a long key is cached")
		}
		var ps []core.Policy
		for i := range maxCachedReadings {
			ps = append(ps, core.FixedWindow(core.PerMinute(1)).Named(fmt.Sprint(i)))
		}
		many := charges(core.Charge{Limiter: newLimiter(t, s, "many", ps...), Key: "k", N: 1})
		if m.keep(many, aRefusal(len(ps), time.Minute)); !m.knows(many) {
			t.Errorf("a refusal of %d policies is not remembered", len(ps))
		}
		many = append(many, core.Charge{Limiter: l, Key: "k", N: 1})
		if m.keep(many, aRefusal(len(ps)+1, time.Minute)); m.knows(many) {
			t.Errorf("a refusal of %d policies is remembered", len(ps)+1)
		}
	})
}

// The same, seen from outside, on the clock of a bubble.
func TestRefusedKeyIsNotAskedAgain(t *testing.T) {
	server := redistest.Start(t)
	for name, memoryFor := range map[string]time.Duration{"default": 0, "short": 100 * time.Millisecond, "off": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server.Flush()
				s := open(t, Config{MemoryFor: memoryFor}, server.Addr())
				bubbleClock().tell(s)
				l := newLimiter(t, s, "api", core.SlidingLog(core.Rate{Events: 3, Per: 5 * time.Second}))
				if n := admitted(t, l, "k", 3); n != 3 {
					t.Fatal(n)
				}
				bound := map[time.Duration]time.Duration{0: time.Second, -1: 0}[memoryFor]
				if memoryFor > 0 {
					bound = memoryFor
				}
				sent := time.Now().Add(-time.Hour) // when the last refusal was asked for
				for elapsed := time.Duration(0); elapsed < 5*time.Second; elapsed += 10 * time.Millisecond {
					before := server.Calls("evalsha")
					d := allow(t, l, "k", 1)
					if d.Allowed || d.RetryAfter != 5*time.Second-elapsed {
						t.Fatalf("after %v: %s", elapsed, describe(&d))
					}
					wantCall := time.Since(sent) >= bound
					if calls := server.Calls("evalsha") - before; (calls == 1) != wantCall || (d.Source == core.SourceStore) != wantCall {
						t.Fatalf("after %v: %d calls, %s", elapsed, calls, describe(&d))
					}
					if wantCall {
						sent = time.Now()
					}
					time.Sleep(10 * time.Millisecond)
				}
				if d := allow(t, l, "k", 1); !d.Allowed {
					t.Error(describe(&d))
				}
			})
		})
	}
}

func TestResetAndRefundAreSeenAtOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{MemoryFor: time.Hour}, server.Addr())
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(2)))
	full := func(key string) core.Decision {
		d := allow(t, l, key, 2)
		if refused := allow(t, l, key, 1); !d.Allowed || refused.Allowed {
			t.Fatalf("%s\n%s", describe(&d), describe(&refused))
		}
		if refused := allow(t, l, key, 1); refused.Source != core.SourceCache {
			t.Fatal(describe(&refused))
		}
		return d
	}
	for name, give := range map[string]func(d core.Decision, key string) error{
		"Reset":  func(_ core.Decision, key string) error { return l.Reset(t.Context(), key) },
		"Refund": func(d core.Decision, _ string) error { return d.Refund(t.Context()) },
		"Settle": func(d core.Decision, _ string) error { _, err := d.Settle(t.Context(), 1); return err },
	} {
		d := full(name)
		if err := give(d, name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := allow(t, l, name, 1); !d.Allowed {
			t.Errorf("after %s: %s", name, describe(&d))
		}
	}
}

func BenchmarkRefusalCache(b *testing.B) {
	s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Config{MemoryFor: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Client().Close()
	l := newLimiter(b, s, "api", core.FixedWindow(core.PerMinute(1)))
	ask := charges(core.Charge{Limiter: l, Key: "client-000000001", N: 1})
	b.Run("get", func(b *testing.B) {
		s.cache.keep(ask, aRefusal(1, time.Hour))
		b.ReportAllocs()
		for b.Loop() {
			if !s.cache.knows(ask) {
				b.Fatal("forgotten")
			}
		}
	})
	b.Run("put", func(b *testing.B) {
		r := aRefusal(1, time.Hour)
		b.ReportAllocs()
		for b.Loop() {
			s.cache.keep(ask, r)
		}
	})
}
