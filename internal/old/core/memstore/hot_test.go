package memstore

import (
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
)

// heat makes the key hot, and returns its shard.
func heat(t *testing.T, s *Store, l *core.Limiter, key string) *shard {
	t.Helper()
	sh := &s.shards[maphash.String(s.seed, key)%shards]
	for range hotAfter + 1 { // the first makes the entry
		if sh.hot.Load() != nil {
			t.Fatal("hot too early")
		}
		if d, err := l.Allow(t.Context(), key); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if sh.hot.Load() == nil {
		t.Fatal("not hot")
	}
	s.cursor.Store(uint32(sh.number)) // the next sweeps are of other shards
	return sh
}

// TestLimitersWithEqualNumbers: another limiter, or one made anew, is as fast as the one whose
// steps the states were stored with.
func TestLimitersWithEqualNumbers(t *testing.T) {
	s := New(Config{})
	sh := &s.shards[maphash.String(s.seed, "key")%shards]
	for _, name := range []string{"api", "login", "api"} {
		l := newLimiter(t, s, name, core.TokenBucket(core.PerDay(1000), 1000))
		for range hotAfter + 1 {
			if d, err := l.Allow(t.Context(), "key"); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
		if sh.hot.Load() == nil {
			t.Errorf("not hot under %s", name)
		}
		if _, err := l.Peek(t.Context(), "key"); err != nil || sh.hot.Load() != nil {
			t.Fatal("still hot", err)
		}
	}
}

// TestWaitingForTheLock: calls that waited while another made the key hot do not end that, or
// else they would all wait for each other again.
func TestWaitingForTheLock(t *testing.T) {
	s := New(Config{})
	l := newLimiter(t, s, "api", core.TokenBucket(core.PerDay(1000), 1000))
	sh := heat(t, s, l, "key")
	h := sh.hot.Load()
	for range 7 {
		q := &store.Question{Charges: []store.Charge{{Limiter: l.Prepared(), Key: "key", N: 1}}}
		if s.decideLocked(q, s.prepared(l.Prepared()), sh, maphash.String(s.seed, "key"), true); !q.Result.Allowed {
			t.Fatal(q.Result)
		}
	}
	if sh.hot.Load() != h {
		t.Error("it is not hot any more")
	}
	if d, err := l.Peek(t.Context(), "key"); err != nil || d.Remaining != 1000-hotAfter-1-7 {
		t.Errorf("%v, %v", d, err)
	}
}

// TestHot: what ends it leaves what was charged meanwhile.
func TestHot(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Store, *core.Limiter){
		"peek": func(*testing.T, *Store, *core.Limiter) {},
		"sweep": func(_ *testing.T, s *Store, _ *core.Limiter) {
			for range shards {
				s.sweep(s.now())
			}
		},
		"plan": func(t *testing.T, _ *Store, l *core.Limiter) {
			plan, err := l.With(core.TokenBucket(core.PerDay(500), 500))
			if err != nil {
				t.Fatal(err)
			}
			if d, err := plan.Allow(t.Context(), "key"); err != nil || !d.Allowed || d.Remaining != 500-hotAfter-9 {
				t.Errorf("%v, %v", d, err)
			}
		},
		"settlement": func(t *testing.T, _ *Store, l *core.Limiter) {
			d, err := l.Allow(t.Context(), "key")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Settle(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{})
				l := newLimiter(t, s, "api", core.TokenBucket(core.PerDay(1000), 1000))
				sh := heat(t, s, l, "key")
				h := sh.hot.Load()
				for range 7 {
					if d, err := l.Allow(t.Context(), "key"); err != nil || !d.Allowed {
						t.Fatal(d, err)
					}
				}
				if sh.hot.Load() != h {
					t.Error("it did not stay hot")
				}
				used := int64(hotAfter + 8)
				switch name {
				case "plan":
					used++
				case "settlement":
					used += 2
				}
				end(t, s, l)
				if d, err := l.Peek(t.Context(), "key"); err != nil || d.Remaining != 1000-used {
					t.Errorf("%v, %v, want %d", d, err, 1000-used)
				}
				if sh.hot.Load() != nil || h.state.Load() != over {
					t.Error("it stays hot")
				}
				if _, _, _, ok := h.take(s, 1); ok {
					t.Error("it decides when it is over")
				}
				if _, err := l.Allow(t.Context(), "key"); err != nil || sh.hot.Load() != nil {
					t.Error("hot again after one call", err)
				}
			})
		})
	}
	t.Run("reset", func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.TokenBucket(core.PerDay(1000), 1000))
		heat(t, s, l, "key")
		if err := l.Reset(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Allow(t.Context(), "key"); err != nil || d.Remaining != 999 {
			t.Errorf("%v, %v", d, err)
		}
	})
}

// TestHotNotesRefusals: a key that was refused while it was hot is spared by evictions, as long
// as the refusal stands.
func TestHotNotesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		l := newLimiter(t, s, "api", core.TokenBucket(core.PerHour(60), 60))
		sh := heat(t, s, l, "key")
		rest := int64(60 - hotAfter - 1)
		noted := func(want uint32) {
			t.Helper()
			sh.mu.Lock()
			defer sh.mu.Unlock()
			if sh.cool(); sh.table.find(sh.last).refused != want {
				t.Errorf("%d units are noted, want %d", sh.table.find(sh.last).refused, want)
			}
		}
		ask := func(n int64, want bool) {
			t.Helper()
			if d, err := l.AllowN(t.Context(), "key", n); err != nil || d.Allowed != want {
				t.Errorf("%d units: %v, %v", n, d, err)
			}
		}
		ask(rest+2, false)
		ask(rest+1, false)
		ask(1, true)
		noted(uint32(rest + 2))
		for range hotAfter {
			ask(rest, false)
		}
		time.Sleep(2 * time.Minute)
		ask(rest+1, true) // which fits again, and so does not stand
		noted(uint32(rest + 2))
		for range hotAfter {
			ask(60, false)
		}
		time.Sleep(time.Hour)
		ask(1, true)
		noted(0)
	})
}

// TestHotIsExact: as many are admitted as the limit says, whatever comes between.
func TestHotIsExact(t *testing.T) {
	const limit, goroutines = 200_000, 8
	s := HotAtOnce(Config{})
	l := newLimiter(t, s, "api", core.TokenBucket(core.PerHour(1), limit))
	other := newLimiter(t, s, "other", core.MinInterval(time.Nanosecond*1000))
	var admitted, refused, between atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for g := range goroutines {
		all.Go(func() {
			for i := range 2 * limit / goroutines {
				asked := time.Now()
				d, err := l.Allow(t.Context(), "key")
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					admitted.Add(1)
				} else {
					refused.Add(1)
				}
				switch {
				case i%997 == 0:
					_, err = l.Peek(t.Context(), "key")
				case i%101 == 0: // some of them are in the same shard
					_, err = other.Allow(t.Context(), strconv.Itoa(g*limit+i))
				case i%503 == 0 && d.Allowed:
					if err = d.Refund(t.Context()); err == nil {
						admitted.Add(-1)
						between.Add(int64(time.Since(asked)))
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for {
		d, err := l.Allow(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			break
		}
		admitted.Add(1)
	}
	got := admitted.Load()
	// A refund gives back less by what refilled since its charge. On a busy machine, all of them
	// together may lack more than what has refilled since the first charge.
	lacks := got == limit-1 && between.Load() > int64(time.Since(began))
	if got != limit && !lacks || refused.Load() == 0 {
		t.Errorf("%d admitted of %d, %d refused", got, limit, refused.Load())
	}
}

// TestHotOvertaken: a call that read the clock before others charged is not refused for that.
func TestHotOvertaken(t *testing.T) {
	s := New(Config{})
	l := newLimiter(t, s, "api", core.TokenBucket(core.PerHour(60), 60))
	h := heat(t, s, l, "key").hot.Load()
	seen, at := h.state.Load(), s.now()-h.base
	rest := int64(60 - hotAfter - 1)
	if d, err := l.AllowN(t.Context(), "key", rest-1); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if x, _, ok := h.decide(seen, at, 2); ok {
		t.Errorf("refused as of before the charge: %+v", x)
	}
	if x, _, ok := h.decide(over, at, 2); ok {
		t.Errorf("refused without a look at the state before the clock: %+v", x)
	}
	if x, admitted, ok := h.decide(seen, at, 1); !admitted || !ok {
		t.Errorf("a unit that fits is not admitted: %+v", x)
	}
	if _, admitted, ok := h.decide(h.state.Load(), s.now()-h.base, 1); admitted || !ok {
		t.Error("not refused")
	}
}

// TestHotRefusalsHaveACause: no refusal is as of an instant before the charge that is its
// cause. Then it would last for longer than a unit does.
func TestHotRefusalsHaveACause(t *testing.T) {
	const distance = 20 * time.Microsecond
	s := HotAtOnce(Config{})
	l := newLimiter(t, s, "api", core.TokenBucket(core.Rate{Events: 1, Per: distance}, 1))
	var refused atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50_000 {
				d, err := l.Allow(t.Context(), "key")
				if err != nil || d.RetryAfter > distance {
					t.Errorf("%v, %v", d, err)
					return
				}
				if !d.Allowed {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
}
