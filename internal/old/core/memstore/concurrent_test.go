package memstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
)

// TestEverythingAtOnce does all that a store can, from many goroutines and with
// hardly any memory, for the race detector to watch: questions lock their keys in
// any order, states grow and shrink, are evicted, swept, given back and reset.
func TestEverythingAtOnce(t *testing.T) {
	const goroutines, operations, bound = 32, 500, 1 << 20
	store := memstore.HotAtOnce(memstore.Config{MaxBytes: bound})
	var limiters []*core.Limiter
	for i, policies := range [][]core.Policy{
		{core.TokenBucket(core.PerSecond(100_000), 50)},
		{core.SlidingLog(core.Rate{Events: 2000, Per: 10 * time.Millisecond})},
		{core.SlidingWindow(core.PerSecond(1000)).Named("a"), core.FixedWindow(core.PerSecond(500)).CountDenied().Named("b"), core.MinInterval(time.Microsecond).Named("c")},
	} {
		l, err := core.New(store, strconv.Itoa(i), policies...)
		if err != nil {
			t.Fatal(err)
		}
		other := make([]core.Policy, len(policies))
		for i, p := range policies {
			other[i] = p.Share(2)
		}
		plan, err := l.With(other...)
		if err != nil {
			t.Fatal(err)
		}
		limiters = append(limiters, l, plan)
	}
	var wg sync.WaitGroup
	for seed := range uint64(goroutines) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 9))
			for range operations {
				if err := operate(t, r, limiters); err != nil {
					t.Error(err)
				}
				if r.IntN(50) == 0 {
					store.Stats()
				}
			}
		})
	}
	wg.Wait()
	if st := store.Stats(); st.Bytes > bound || st.Keys == 0 {
		t.Errorf("%+v, the bound is %d", st, bound)
	}
}

// operate does one thing at random.
func operate(t *testing.T, r *rand.Rand, limiters []*core.Limiter) error {
	ctx := t.Context()
	l := limiters[r.IntN(len(limiters))]
	key := func() string {
		if r.IntN(2) == 0 {
			return strconv.Itoa(r.IntN(5))
		}
		return strconv.Itoa(r.IntN(100_000))
	}
	switch r.IntN(8) {
	case 0:
		_, err := l.Peek(ctx, key())
		return err
	case 1:
		return l.Reset(ctx, key())
	case 2, 3:
		var charges []core.Charge
		for _, i := range r.Perm(3)[:1+r.IntN(3)] { // three names, two plans of each
			charges = append(charges, core.Charge{Limiter: limiters[2*i+r.IntN(2)], Key: key(), N: 1 + r.Int64N(9)})
		}
		d, err := core.AllowAll(ctx, charges...)
		if err != nil || !d.Allowed || r.IntN(2) == 0 {
			return err
		}
		return d.Refund(ctx)
	default:
		d, err := l.AllowN(ctx, key(), 1+r.Int64N(20))
		if err != nil || r.IntN(3) > 0 {
			return err
		}
		if _, err := d.Settle(ctx, r.Int64N(40)); !errors.Is(err, core.ErrSettled) {
			return err
		}
		return nil
	}
}

// TestManyKeysAtOnce: each of many keys gets its limit, whoever asks.
func TestManyKeysAtOnce(t *testing.T) {
	const goroutines, keys, limit = 200, 50, 7
	l, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerDay(limit)))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	admitted := map[string]int{}
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range keys {
				key := strconv.Itoa((g + i) % keys)
				d, err := l.Allow(t.Context(), key)
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					mu.Lock()
					admitted[key]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for key, n := range admitted {
		if n != limit {
			t.Errorf("key %s was admitted %d times, want %d", key, n, limit)
		}
	}
	if len(admitted) != keys {
		t.Errorf("%d keys were admitted, want %d", len(admitted), keys)
	}
}

// TestBytesAreBounded after every call, although a state is nearly as large as is
// allowed and all others are small.
func TestBytesAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const bound = 16 << 20
	store := memstore.New(memstore.Config{MaxBytes: bound})
	small, err := core.New(store, "small", core.SlidingLog(core.PerHour(5)))
	if err != nil {
		t.Fatal(err)
	}
	large, err := core.New(store, "large", core.SlidingLog(core.PerHour(340_000)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 130_000 {
		if _, err := small.Allow(t.Context(), strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		if d, err := large.AllowN(t.Context(), strconv.Itoa(i), 340_000); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if st := store.Stats(); st.Bytes > bound {
			t.Fatalf("after %d large states %d bytes are counted, the bound is %d", i+1, st.Bytes, bound)
		}
	}
}

// TestFloodForgetsTheLeastUsedFirst: who has used much, although not all, keeps that
// through a flood of keys that have used little.
func TestFloodForgetsTheLeastUsedFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	l, err := core.New(memstore.New(memstore.Config{MaxBytes: 1 << 20}), "api", core.TokenBucket(core.PerDay(100), 100))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.AllowN(t.Context(), "regular", 50); err != nil {
		t.Fatal(err)
	}
	for i := range 100_000 {
		if _, err := l.Allow(t.Context(), strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := l.Peek(t.Context(), "regular"); err != nil || d.Remaining != 50 {
		t.Errorf("%v, %v; want 50 left", d, err)
	}
}

// TestConfig: no bound means 64 MiB, which allows the largest log that there is. A sixth
// of the bound is the most that one state may take.
func TestConfig(t *testing.T) {
	for _, test := range []struct{ bytes, most int64 }{
		{0, step.MaxLog}, {memstore.DefaultMaxBytes, step.MaxLog}, {1 << 20, 21_500}, {2 << 20, 43_000},
	} {
		store := memstore.New(memstore.Config{MaxBytes: test.bytes})
		if _, err := core.New(store, "api", core.SlidingLog(core.PerDay(test.most))); err != nil {
			t.Errorf("%d bytes: %v", test.bytes, err)
		}
		var fault *core.ConfigError
		if _, err := core.New(store, "api", core.SlidingLog(core.PerDay(test.most*21/20))); !errors.As(err, &fault) {
			t.Errorf("%d bytes: a log of %d is accepted: %v", test.bytes, test.most*21/20, err)
		}
	}
}

// TestConfigFaults: a bound that makes no sense is refused with the first limiter, even
// with one that keeps no state.
func TestConfigFaults(t *testing.T) {
	for _, bytes := range []int64{-1 << 63, -1, 1, 1000, 1<<20 - 1} {
		store := memstore.New(memstore.Config{MaxBytes: bytes})
		for _, p := range []core.Policy{core.FixedWindow(core.PerDay(1)), core.Unlimited()} {
			_, err := core.New(store, "api", p)
			var fault *core.ConfigError
			if want := fmt.Sprintf("MaxBytes is %d: it must be 0 or at least 1048576", bytes); !errors.As(err, &fault) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", p, err, want)
			}
		}
	}
}

// TestZeroStore: it tells who made it how to.
func TestZeroStore(t *testing.T) {
	_, err := core.New(&memstore.Store{}, "api", core.FixedWindow(core.PerDay(1)))
	if err == nil || !strings.Contains(err.Error(), "use memstore.New") {
		t.Errorf("New: %v", err)
	}
}

// TestWindowsAreAlignedToUTC, whenever the store was made.
func TestWindowsAreAlignedToUTC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(12*time.Hour + 34*time.Minute + 56*time.Second + 789*time.Millisecond) // after midnight, 2000-01-01 UTC
		l, err := core.New(memstore.New(memstore.Config{}), "api",
			core.FixedWindow(core.PerMinute(5)).Named("minute"),
			core.FixedWindow(core.PerHour(5)).Named("hour"),
			core.FixedWindow(core.PerDay(5)).Named("day"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Allow(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []time.Duration{
			3*time.Second + 211*time.Millisecond,
			25*time.Minute + 3*time.Second + 211*time.Millisecond,
			11*time.Hour + 25*time.Minute + 3*time.Second + 211*time.Millisecond,
		} {
			if a := d.Answer(i); a.ResetAfter != want {
				t.Errorf("%s: reset after %v, want %v", a.Policy, a.ResetAfter, want)
			}
		}
	})
}
