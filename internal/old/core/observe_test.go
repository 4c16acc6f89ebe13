package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// What is reported of each kind of call is in package storetest, the same for every store.

// TestTookIsTheCallOfTheStore, if it is asked for.
func TestTookIsTheCallOfTheStore(t *testing.T) {
	const delay = 30 * time.Millisecond
	for _, timed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var took []time.Duration
			s := newFakeStore(t)
			s.observer = &core.Observer{
				Timed:   timed,
				Decided: func(_ context.Context, e core.DecisionEvent) { took = append(took, e.Took) },
				Settled: func(_ context.Context, e core.SettleEvent) { took = append(took, e.Took) },
			}
			s.answer = func(cs []store.Charge, _ bool) (store.Result, error) {
				time.Sleep(delay)
				if cs[0].Key == "failing" {
					return store.Result{}, errStore
				}
				r := store.Result{Allowed: true, Source: core.SourceStore}
				for range cs {
					r.Add(true, step.Reading{})
				}
				return r, nil
			}
			s.settle = func([]store.Charge) error { time.Sleep(delay); return nil }
			a, b := newLimiter(t, s, "a", core.FixedWindow(perAge(10))), newLimiter(t, s, "b", core.FixedWindow(perAge(10)))
			d := allow(t, a, "key", 2)
			if err := d.Refund(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Allow(t.Context(), "failing"); !errors.Is(err, errStore) {
				t.Fatal(err)
			}
			if _, err := core.AllowAll(t.Context(), core.Charge{Limiter: a, Key: "x", N: 1}, core.Charge{Limiter: b, Key: "y", N: 1}); err != nil {
				t.Fatal(err)
			}
			want := make([]time.Duration, 5)
			for i := range want {
				if timed {
					want[i] = delay
				}
			}
			if !slices.Equal(took, want) {
				t.Errorf("Timed %t: took %v, want %v", timed, took, want)
			}
		})
	}
}

// TestPolicyOfAnEventIsThatOfTheDecision, whatever the policies say.
func TestPolicyOfAnEventIsThatOfTheDecision(t *testing.T) {
	var told core.DecisionEvent
	s := newFakeStore(t)
	s.observer = &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) { told = e }}
	l := newLimiter(t, s, "api", core.FixedWindow(perAge(9)).Named("a"), core.FixedWindow(perAge(9)).Named("b"), core.FixedWindow(perAge(9)).Named("c"))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var readings []say
		allowed := true
		for range 3 {
			r := say{true, step.Reading{Remaining: rng.Int64N(3)}}
			if rng.IntN(3) == 0 {
				allowed, r.admitted, r.RetryAfter = false, false, 1+rng.Int64N(3)
			} else if rng.IntN(3) == 0 { // it has counted the attempt, and would refuse now
				r.RetryAfter = 1 + rng.Int64N(5)
			}
			readings = append(readings, r)
		}
		s.answer = says(allowed, readings...)
		d := allow(t, l, "key", 1)
		if told.Policy != d.Policy || told.Limiter != d.Limiter || told.Allowed != d.Allowed || told.Source != d.Source {
			t.Fatalf("%+v\nwas reported of %+v", told, d)
		}
	}
}

// TestWaitReportsItsAttempts, and that it ended before the first.
func TestWaitReportsItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		o := &core.Observer{Timed: true, Decided: func(_ context.Context, e core.DecisionEvent) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(e.Units, e.Allowed, e.Err, e.Took))
		}}
		l := newLimiter(t, memstore.New(memstore.Config{Observer: o}), "api", core.MinInterval(time.Minute))
		allow(t, l, "key", 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Wait(t.Context(), "key"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		wg.Wait()
		want := []string{"1 true <nil> 0s", "1 false <nil> 0s", "1 false context deadline exceeded 1s", "1 true <nil> 0s"}
		if !slices.Equal(told, want) {
			t.Errorf("told %q\nwant %q", told, want)
		}
	})
}

// TestSettleThatFailsIsReported with the charges that it was to correct, even if a layer
// has changed them.
func TestSettleThatFailsIsReported(t *testing.T) {
	var told []core.SettleEvent
	s := newFakeStore(t)
	s.observer = &core.Observer{Settled: func(_ context.Context, e core.SettleEvent) { told = append(told, e) }}
	s.answer = says(true, say{true, step.Reading{}})
	s.settle = func(ss []store.Charge) error {
		ss[0].Uncovered = 100
		return errStore
	}
	d := allow(t, newLimiter(t, s, "api", core.FixedWindow(perAge(10))), "key", 4)
	if _, err := d.Settle(t.Context(), 3); !errors.Is(err, errStore) {
		t.Fatal(err)
	}
	want := []core.SettleEvent{{Limiter: "api", Units: 4, Actual: 3, Source: core.SourceStore, Err: errStore}}
	if !slices.Equal(told, want) {
		t.Errorf("told %+v, want %+v", told, want)
	}
}

// TestObserverThatPanics: the panic is the caller's, what was charged stays charged, and
// the store works on.
func TestObserverThatPanics(t *testing.T) {
	o := &core.Observer{Decided: func(context.Context, core.DecisionEvent) { panic("on purpose") }}
	l := newLimiter(t, memstore.New(memstore.Config{Observer: o}), "api", core.FixedWindow(perAge(10)))
	for name, call := range map[string]func(){
		"Allow": func() { _, _ = l.Allow(t.Context(), "key") },
		"AllowAll": func() {
			_, _ = core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "key", N: 1}, core.Charge{Limiter: l, Key: "other", N: 1})
		},
		"Wait": func() { _, _ = l.Wait(t.Context(), "key") },
	} {
		func() {
			defer func() {
				if r := recover(); r != "on purpose" {
					t.Errorf("%s: the panic became %v", name, r)
				}
			}()
			call()
		}()
	}
	if got := left(t, l, "key"); got != 7 {
		t.Errorf("%d left of 10 after 3 charges", got)
	}
	if n := l.Waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// TestObserverMayCall what it likes, as no lock is held.
func TestObserverMayCall(t *testing.T) {
	var l *core.Limiter
	inside := false
	again := func(ctx context.Context) {
		if inside {
			return
		}
		inside = true
		defer func() { inside = false }()
		if _, err := l.Allow(ctx, "key"); err != nil {
			t.Error(err)
		}
	}
	s := memstore.New(memstore.Config{Observer: &core.Observer{
		Decided: func(ctx context.Context, _ core.DecisionEvent) { again(ctx) },
	}})
	l = newLimiter(t, s, "api", core.FixedWindow(perAge(10)))
	allow(t, l, "key", 1)
	if got := left(t, l, "key"); got != 8 {
		t.Errorf("%d left of 10 after one call and one from its event", got)
	}
}

// TestObserverOfNothing is told nothing.
func TestObserverOfNothing(t *testing.T) {
	s := memstore.New(memstore.Config{Observer: &core.Observer{Timed: true}})
	l := newLimiter(t, s, "api", core.FixedWindow(perAge(10)))
	d := allow(t, l, "key", 3)
	if err := d.Refund(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "a", N: 1}, core.Charge{Limiter: l, Key: "b", N: 1}); err != nil {
		t.Error(err)
	}
}

// TestUsed is how much of a limit is used, of a decision and in its event, if it is asked for.
func TestUsed(t *testing.T) {
	for _, asked := range []bool{false, true} {
		var told []int
		o := &core.Observer{Shares: asked, Decided: func(_ context.Context, e core.DecisionEvent) { told = append(told, e.Used) }}
		m := memstore.New(memstore.Config{Observer: o})
		two := newLimiter(t, m, "two", core.FixedWindow(perAge(7)).Named("a"), core.TokenBucket(core.PerHour(1), 1000).Named("b"))
		pacing, free, banned := newLimiter(t, m, "pacing", core.MinInterval(time.Hour)), newLimiter(t, m, "free", core.Unlimited()), newLimiter(t, m, "banned", core.Blocked())
		large := newLimiter(t, m, "large", core.FixedWindow(perAge(1<<53-1)))
		var want []int
		for _, test := range []struct {
			l    *core.Limiter
			n    int64
			used int
		}{{two, 1, 14}, {two, 5, 85}, {two, 2, 100}, {two, 1, 100}, {pacing, 1, 100}, {free, 9, 0}, {banned, 1, 100}, {large, 1 << 52, 50}} {
			d := allow(t, test.l, "key", test.n)
			if d.Used() != test.used {
				t.Errorf("%v of %d: %d %% used, want %d %%", test.l, test.n, d.Used(), test.used)
			}
			if !asked {
				test.used = 0
			}
			want = append(want, test.used)
		}
		d, err := core.AllowAll(t.Context(), core.Charge{Limiter: large, Key: "other", N: 1}, core.Charge{Limiter: two, Key: "other", N: 6})
		if err != nil || d.Used() != 85 {
			t.Errorf("%d %% used of two limiters, %v", d.Used(), err)
		}
		if want = append(want, 0, 85); !asked {
			want[len(want)-1] = 0
		}
		if _, err := core.AllowAll(t.Context(), core.Charge{Limiter: large, Key: "other", N: 1}, core.Charge{Limiter: two, Key: "other", N: 6}); err != nil {
			t.Error(err)
		}
		if want = append(want, 0, 100); !asked {
			want[len(want)-1] = 0
		}
		if !slices.Equal(told, want) {
			t.Errorf("Shares %t: told %v, want %v", asked, told, want)
		}
	}
	if d := (core.Decision{}); d.Used() != 100 {
		t.Errorf("%d %% of the zero Decision, which refuses", d.Used())
	}
}

// TestObserverOfRefusals, and of nothing else, gets each key that is refused.
func TestObserverOfRefusals(t *testing.T) {
	var told []string
	m := memstore.New(memstore.Config{Observer: &core.Observer{
		Refused: func(_ context.Context, e core.DecisionEvent, key string) {
			told = append(told, fmt.Sprint(e.Limiter, " ", e.Policy, " ", key))
		},
	}})
	l, free := newLimiter(t, m, "api", core.FixedWindow(perAge(1)).Named("age")), newLimiter(t, m, "free", core.Unlimited())
	for range 2 {
		allow(t, l, "a", 1)
		if _, err := core.AllowAll(t.Context(), core.Charge{Limiter: free, Key: "b", N: 1}, core.Charge{Limiter: l, Key: "c", N: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"api age a", "api age c"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
