package core_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// TestPeek leaves no trace, on a fresh key or a used one.
func TestPeek(t *testing.T) {
	for _, p := range []core.Policy{
		core.TokenBucket(core.PerHour(3), 3), core.FixedWindow(perAge(3)).CountDenied(), core.SlidingWindow(perAge(3)).CountDenied(),
		core.SlidingLog(core.PerHour(3)).CountDenied(), core.MinInterval(time.Hour),
	} {
		l := newLimiter(t, newStore(), "api", p)
		limit := p.Limit()
		for used := range limit + 1 {
			for range 3 {
				if got := left(t, l, "key"); got != limit-used {
					t.Fatalf("%v: %d left after %d units, want %d", p, got, used, limit-used)
				}
			}
			d, err := l.Peek(t.Context(), "key")
			if err != nil || d.Allowed != (used < limit) || (d.RetryAfter == 0) != d.Allowed {
				t.Errorf("%v: a peek after %d units says %v, %v", p, used, d, err)
			}
			if used < limit {
				allow(t, l, "key", 1)
			}
		}
	}
}

// TestReset forgets a key and no other.
// TestAllowAtMost: what is admitted is the most that AllowN would have admitted, and is one
// charge.
func TestAllowAtMost(t *testing.T) {
	for _, test := range []struct {
		policies []core.Policy
		used, n  int64
		want     int64
	}{
		{[]core.Policy{core.FixedWindow(perAge(10))}, 0, 4, 4},
		{[]core.Policy{core.FixedWindow(perAge(10))}, 8, 4, 2},
		{[]core.Policy{core.FixedWindow(perAge(10))}, 10, 4, 0},
		{[]core.Policy{core.FixedWindow(perAge(10))}, 0, math.MaxInt64, 10},
		{[]core.Policy{core.SlidingLog(perAge(10))}, 9, 1, 1},
		{[]core.Policy{core.FixedWindow(perAge(10)).Named("a"), core.SlidingLog(perAge(7)).Named("b")}, 3, 20, 4},
		{[]core.Policy{core.Unlimited()}, 0, 1 << 40, 1 << 40},
		{[]core.Policy{core.Blocked()}, 0, 4, 0},
	} {
		var reported core.DecisionEvent
		s := memstore.New(memstore.Config{Observer: &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) { reported = e }}})
		l := newLimiter(t, s, "api", test.policies...)
		if test.used > 0 {
			allow(t, l, "key", test.used)
		}
		before := left(t, l, "key")
		d, units, err := l.AllowAtMost(t.Context(), "key", test.n)
		if err != nil || units != test.want || d.Allowed != (units > 0) || reported.Allowed != d.Allowed || d.Allowed && reported.Units != units {
			t.Errorf("%+v: %d, %v, %v, reported %+v", test, units, d, err, reported)
		}
		if d.Allowed {
			if err := d.Refund(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := left(t, l, "key"); got != before {
			t.Errorf("%+v: %d left, and %d before", test, got, before)
		}
	}
	l := newLimiter(t, newStore(), "api", core.FixedWindow(perAge(10)))
	if _, _, err := l.AllowAtMost(t.Context(), "key", 0); !errors.Is(err, core.ErrCost) {
		t.Error(err)
	}
	s := newFakeStore(t)
	s.answer = func([]store.Charge, bool) (store.Result, error) { return store.Result{}, errStore }
	if _, units, err := newLimiter(t, s, "api", core.FixedWindow(perAge(10))).AllowAtMost(t.Context(), "key", 5); units != 0 || !errors.Is(err, errStore) {
		t.Error(units, err)
	}
}

func TestReset(t *testing.T) {
	s := newStore()
	l := newLimiter(t, s, "api", core.FixedWindow(perAge(3)).Named("w"), core.SlidingLog(core.PerHour(3)).Named("l"))
	other := newLimiter(t, s, "other", core.FixedWindow(perAge(3)).Named("w"), core.SlidingLog(core.PerHour(3)).Named("l"))
	for _, l := range []*core.Limiter{l, other} {
		allow(t, l, "a", 3)
		allow(t, l, "b", 2)
	}
	for range 2 { // the second time there is nothing to forget
		if err := l.Reset(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		l    *core.Limiter
		key  string
		want int64
	}{{l, "a", 3}, {l, "b", 1}, {other, "a", 0}, {other, "b", 1}} {
		d, err := test.l.Peek(t.Context(), test.key)
		if err != nil || d.Answer(0).Remaining != test.want || d.Answer(1).Remaining != test.want {
			t.Errorf("%s, %s: %v, %v; want %d left", test.l.Name(), test.key, d, err, test.want)
		}
	}
}

// TestWith: limiters of one name and different plans share what was used, policy by
// policy, and a policy that only one of them has is not touched by the other.
func TestWith(t *testing.T) {
	s := newStore()
	day := func(n int64) core.Policy { return core.FixedWindow(perAge(n)).Named("day") }
	pace := core.SlidingLog(core.PerHour(2)).Named("pace")
	free := newLimiter(t, s, "api", day(5), pace)
	pro, err := free.With(day(100))
	if err != nil {
		t.Fatal(err)
	}
	if pro.Name() != "api" || pro.Store() != s {
		t.Errorf("With made a limiter %q of another store", pro.Name())
	}
	for i, ask := range []struct {
		limiter *core.Limiter
		n       int64
		allowed bool
		left    []int64
	}{
		{free, 2, true, []int64{3, 0}},
		{pro, 10, true, []int64{88}},
		{free, 1, false, []int64{0, 0}}, // 12 of 5 are used: no debt is shown
		{pro, 89, false, []int64{88}},
		{pro, 88, true, []int64{0}},
	} {
		d := allow(t, ask.limiter, "key", ask.n)
		if d.Allowed != ask.allowed {
			t.Errorf("question %d: %v, want %v", i, d, ask.allowed)
		}
		for j, want := range ask.left {
			if got := d.Answer(j).Remaining; got != want {
				t.Errorf("question %d: answer %d has %d left, want %d", i, j, got, want)
			}
		}
	}
	if _, err := free.With(); err == nil {
		t.Error("With no policy is accepted")
	}
	if blocked, err := free.With(core.Blocked()); err != nil || allow(t, blocked, "key", 1).Allowed {
		t.Errorf("With Blocked: %v", err)
	}
}

// TestRetryAfterIsHonest: repeated just then the same question is admitted, and a
// microsecond before it is not, under all policies at once.
func TestRetryAfterIsHonest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api",
			core.SlidingLog(core.PerMinute(10)).Named("minute"),
			core.TokenBucket(core.Rate{Events: 2, Per: 3 * time.Second}, 4).Named("burst"),
			core.SlidingWindow(core.PerHour(100)).Named("hour"),
			core.FixedWindow(core.PerDay(700)).Named("day"),
			core.MinInterval(100*time.Millisecond).Named("pace"))
		decided := map[string]int{}
		for i := range 2000 {
			n := int64(1 + i%3)
			d := allow(t, l, "key", n)
			if d.Allowed {
				time.Sleep(time.Duration(i%7) * 10 * time.Millisecond)
				continue
			}
			decided[d.Policy]++
			time.Sleep(d.RetryAfter - time.Microsecond)
			if early := allow(t, l, "key", n); early.Allowed || early.RetryAfter != time.Microsecond {
				t.Fatalf("question %d, a microsecond early: %v; %v before", i, early, d)
			}
			time.Sleep(time.Microsecond)
			if d := allow(t, l, "key", n); !d.Allowed {
				t.Fatalf("question %d, in time: %v", i, d)
			}
		}
		if len(decided) != 5 {
			t.Errorf("not every policy decided: %v", decided)
		}
	})
}

// TestPolicy: what a policy says of itself.
func TestPolicy(t *testing.T) {
	for _, test := range []struct {
		policy core.Policy
		text   string
		limit  int64
		window time.Duration
	}{
		{core.TokenBucket(core.PerSecond(7), 7), "token-bucket 7/second burst 7", 7, time.Second},
		{core.TokenBucket(core.PerSecond(7), 1), "token-bucket 7/second burst 1", 1, 142_858 * time.Microsecond},
		{core.TokenBucket(core.PerMinute(60), 90), "token-bucket 60/minute burst 90", 90, 90 * time.Second},
		{core.FixedWindow(core.PerMinute(10)), "fixed-window 10/minute", 10, time.Minute},
		{core.FixedWindow(core.PerDay(10)).CountDenied(), "fixed-window 10/day count-denied", 10, day},
		{core.SlidingWindow(core.PerHour(10)), "sliding-window 10/hour", 10, time.Hour},
		{core.SlidingWindow(core.PerHour(10)).Resolution(3).NeverOver(), "sliding-window 10/hour resolution 3 never-over", 10, time.Hour},
		{core.SlidingLog(core.Every(time.Second)), "sliding-log 1/second", 1, time.Second},
		{core.SlidingLog(core.PerSecond(5)).Named("burst"), `"burst": sliding-log 5/second`, 5, time.Second},
		{core.MinInterval(100 * time.Millisecond), "min-interval 100ms", 1, 100 * time.Millisecond},
		{core.Unlimited(), "unlimited", core.NoLimit, 0},
		{core.Blocked(), "blocked", 0, 0},
		{core.TokenBucket(core.PerSecond(1_000_000), 3), "token-bucket 1000000/second burst 3", 3, 3 * time.Microsecond},
		{core.TokenBucket(core.PerDay(2), core.NoLimit), "token-bucket 2/day burst 9007199254740991", core.NoLimit, 1 << 52 * time.Microsecond}, // not valid
		{core.MinInterval(100 * 365 * day).Share(16384), "min-interval 36500d", 1, 100 * 365 * day},                                             // not valid
		{core.TokenBucket(core.Rate{}, 5), "token-bucket 0/0d burst 5", 5, 0},                                                                   // not valid, and no reason to panic
	} {
		if got := test.policy.String(); got != test.text {
			t.Errorf("String() = %q, want %q", got, test.text)
		}
		if test.policy.Limit() != test.limit || test.policy.Window() != test.window {
			t.Errorf("%v: %d in %v, want %d in %v", test.policy, test.policy.Limit(), test.policy.Window(), test.limit, test.window)
		}
	}
	p := core.SlidingWindow(core.PerHour(10))
	p.Named("x").Resolution(3).NeverOver().CountDenied().Share(2)
	if p != core.SlidingWindow(core.PerHour(10)) {
		t.Errorf("a method changed the policy itself: %v", p)
	}
}

// TestShare: n shares together admit what the whole does, or a little more.
func TestShare(t *testing.T) {
	for _, test := range []struct {
		policy core.Policy
		n      int64
		want   core.Policy
	}{
		{core.TokenBucket(core.PerSecond(10), 9), 2, core.TokenBucket(core.Rate{Events: 10, Per: 2 * time.Second}, 5)},
		{core.FixedWindow(core.PerMinute(10)), 4, core.FixedWindow(core.PerMinute(3))},
		{core.SlidingWindow(core.PerMinute(10)).NeverOver().Named("x"), 10, core.SlidingWindow(core.PerMinute(1)).NeverOver().Named("x")},
		{core.SlidingLog(core.PerMinute(10)), 11, core.SlidingLog(core.PerMinute(1))},
		{core.MinInterval(time.Second), 3, core.MinInterval(3 * time.Second)},
		{core.SlidingLog(core.PerMinute(10)), 1 << 62, core.SlidingLog(core.PerMinute(1))},
		{core.FixedWindow(core.PerMinute(core.NoLimit)), 1<<63 - 1, core.FixedWindow(core.PerMinute(1))},
		{core.Blocked(), 3, core.Blocked()},
		{core.FixedWindow(core.PerMinute(10)), 1, core.FixedWindow(core.PerMinute(10))},
	} {
		if got := test.policy.Share(test.n); got != test.want {
			t.Errorf("%v.Share(%d) = %v, want %v", test.policy, test.n, got, test.want)
		}
	}
	if l := newLimiter(t, newFakeStore(t), "api", core.Unlimited().Share(3)); !allow(t, l, "key", core.NoLimit).Allowed {
		t.Error("a share of Unlimited is limited")
	}
}

// TestConcurrentUse: everything that a limiter can do, by many at once.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		l := newLimiter(t, s, "api",
			core.SlidingLog(core.PerSecond(20)).Named("log"),
			core.TokenBucket(core.PerSecond(50), 30).Named("burst"),
			core.MinInterval(time.Millisecond).Named("pace"))
		wide := newLimiter(t, s, "wide", core.SlidingWindow(core.PerMinute(10_000)).CountDenied())
		ctx := t.Context()
		use := func(rng *rand.Rand) error {
			var d core.Decision
			var err error
			key := string(rune('a' + rng.IntN(3)))
			n := 1 + rng.Int64N(5)
			switch rng.IntN(10) {
			case 0:
				d, err = l.Allow(ctx, key)
			case 1, 2:
				d, err = l.AllowN(ctx, key, n)
			case 3, 4:
				d, err = core.AllowAll(ctx, core.Charge{Limiter: l, Key: key, N: n}, core.Charge{Limiter: wide, Key: "all", N: n})
			case 5:
				d, err = l.WaitN(ctx, key, n)
			case 6:
				short, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(100))*time.Millisecond)
				defer cancel()
				if d, err = l.Wait(short, key); errors.Is(err, context.DeadlineExceeded) {
					err = nil
				}
			case 7:
				_, err = l.Peek(ctx, key)
			case 8:
				err = l.Reset(ctx, key)
			case 9:
				var plan *core.Limiter
				if plan, err = l.With(core.SlidingLog(core.PerSecond(20 + n)).Named("log")); err == nil {
					d, err = plan.AllowN(ctx, key, n)
				}
			}
			if err != nil {
				return err
			}
			_ = fmt.Sprintf("%v %v %+v %s %v", d, l, struct{ l *core.Limiter }{l}, l.Name(), l.Policies())
			switch {
			case !d.Allowed:
			case rng.IntN(3) == 0:
				err = d.Refund(ctx)
			case d.Len() == 3 && rng.IntN(2) == 0: // of l alone
				_, err = d.Settle(ctx, rng.Int64N(9))
			}
			return err
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 7))
				for range 250 {
					if err := use(rng); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		idle(t, l)
	})
}

// TestAllOfOne is AllowN, up to the receipt.
func TestAllOfOne(t *testing.T) {
	s := newFakeStore(t)
	s.answer = says(true, say{true, step.Reading{Remaining: 6, NextAfter: sec}})
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerMinute(10)))
	want := allow(t, l, "key", 4)
	got, err := core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "key", N: 4})
	if err != nil || !core.Like(got, want) {
		t.Errorf("%#v, %v\nwant %#v", got, err, want)
	}
}

// A contextStore notes the context that each question came with.
type contextStore struct {
	core.Store

	last context.Context
}

func (s *contextStore) Ask(ctx context.Context, q *store.Question) error {
	s.last = ctx
	return s.Store.Ask(ctx, q)
}

// TestContextIsPassedOn, as it is, with every question.
func TestContextIsPassedOn(t *testing.T) {
	s := &contextStore{Store: newStore()}
	a, b := newLimiter(t, s, "a", core.FixedWindow(perAge(100))), newLimiter(t, s, "b", core.FixedWindow(perAge(100)))
	for name, ask := range map[string]func(context.Context) error{
		"AllowN": func(ctx context.Context) error { _, err := a.AllowN(ctx, "key", 2); return err },
		"Peek":   func(ctx context.Context) error { _, err := a.Peek(ctx, "key"); return err },
		"WaitN":  func(ctx context.Context) error { _, err := a.WaitN(ctx, "key", 2); return err },
		"Reset":  func(ctx context.Context) error { return a.Reset(ctx, "key") },
		"AllowAll": func(ctx context.Context) error {
			_, err := core.AllowAll(ctx, core.Charge{Limiter: a, Key: "x", N: 1}, core.Charge{Limiter: b, Key: "y", N: 1})
			return err
		},
		"Settle": func(ctx context.Context) error { d := allow(t, a, "key", 2); _, err := d.Settle(ctx, 1); return err },
		"Refund": func(ctx context.Context) error { d := allow(t, a, "key", 2); return d.Refund(ctx) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if err := ask(ctx); err != nil || s.last != ctx {
			t.Errorf("%s: %v, and the context is %v", name, err, s.last)
		}
		cancel()
	}
}

// TestAllowTo: what a decision is written to may have held another one, of more charges or
// without one, and after an error it is zero.
func TestAllowTo(t *testing.T) {
	s := newFakeStore(t)
	a := newLimiter(t, s, "a", core.FixedWindow(perAge(10)))
	b := newLimiter(t, s, "b", core.FixedWindow(perAge(10)).Named("x"), core.FixedWindow(perAge(10)).Named("y"))
	admitted, refused := say{true, step.Reading{Remaining: 9, ResetAfter: 8}}, say{false, step.Reading{RetryAfter: 7}}
	fail := func([]store.Charge, bool) (store.Result, error) { return store.Result{Allowed: true}, errStore }
	for before, dirty := range map[string]func() core.Decision{
		"zero": func() core.Decision { return core.Decision{} },
		"two charges": func() core.Decision {
			s.answer = says(true, admitted, admitted, admitted)
			d, err := core.AllowAll(t.Context(), core.Charge{Limiter: b, Key: "k", N: 1}, core.Charge{Limiter: a, Key: "k", N: 1})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		"refused": func() core.Decision {
			s.answer = says(false, refused, admitted)
			return allow(t, b, "k", 1)
		},
	} {
		for after, answer := range map[string]func([]store.Charge, bool) (store.Result, error){
			"admitted": says(true, admitted), "refused": says(false, refused), "error": fail,
		} {
			got := dirty()
			s.answer = answer
			want, wantErr := a.AllowN(t.Context(), "k", 2)
			if err := a.AllowTo(t.Context(), "k", 2, &got); !errors.Is(err, wantErr) || !core.Like(got, want) {
				t.Errorf("%s after %s: %+v, %v; want %+v, %v", after, before, got, err, want, wantErr)
			}
		}
	}
}
