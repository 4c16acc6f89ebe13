package core_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A settled is what a store is asked to settle.
type settled struct {
	limiter, key string
	n, at        int64
	source       core.Source
	actual       int64
}

// TestSettledOnce: a charge is settled or refunded once, and a decision without a
// charge never. What the store is asked is the charge with its receipt.
func TestSettledOnce(t *testing.T) {
	s := newFakeStore(t)
	s.answer = func(cs []store.Charge, peek bool) (store.Result, error) {
		r := store.Result{At: 123_456, Allowed: cs[0].Key != "refused", Source: core.SourceStore}
		for range cs {
			r.Add(r.Allowed, step.Reading{})
		}
		return r, nil
	}
	var asked []settled
	s.settle = func(ss []store.Charge) error {
		for _, t := range ss {
			asked = append(asked, settled{t.Limiter.Spec().Name, t.Key, t.N, t.At, t.Source, t.Actual})
		}
		return nil
	}
	a := newLimiter(t, s, "a", core.FixedWindow(core.PerMinute(10)))
	b := newLimiter(t, s, "b", core.FixedWindow(core.PerMinute(10)))
	free := newLimiter(t, s, "free", core.Unlimited())
	ctx := t.Context()
	one := func(key string) (core.Decision, error) { return a.AllowN(ctx, key, 4) }
	two := func(key string) (core.Decision, error) {
		return core.AllowAll(ctx, core.Charge{Limiter: a, Key: key, N: 4}, core.Charge{Limiter: free, Key: "f", N: 9}, core.Charge{Limiter: b, Key: "y", N: 5})
	}
	settlement := func(l *core.Limiter, key string, n, actual int64) settled {
		return settled{l.Name(), key, n, 123_456, core.SourceStore, actual}
	}
	for _, test := range []struct {
		name   string
		ask    func(key string) (core.Decision, error)
		key    string
		settle []int64 // nil: Refund
		want   []settled
		err    error
	}{
		{"Refund", one, "k", nil, []settled{settlement(a, "k", 4, 0)}, nil},
		{"less", one, "k\xff\x00", []int64{1}, []settled{settlement(a, "k\xff\x00", 4, 1)}, nil},
		{"more", one, "", []int64{9}, []settled{settlement(a, "", 4, 9)}, nil},
		{"more than there is", one, "k", []int64{1 << 62}, []settled{settlement(a, "k", 4, step.MaxInt)}, nil},
		{"as much", one, "k", []int64{4}, nil, nil},
		{"all Refund", two, "x", nil, []settled{settlement(a, "x", 4, 0), settlement(b, "y", 5, 0)}, nil},
		{"all, one as much", two, "x", []int64{4, 3, 2}, []settled{settlement(b, "y", 5, 2)}, nil},
		{"refused", one, "refused", nil, nil, core.ErrSettled},
		{"refused", one, "refused", []int64{2}, nil, core.ErrSettled},
		{"all refused", two, "refused", nil, nil, core.ErrSettled},
		{"all refused", two, "refused", []int64{1, 2, 3}, nil, core.ErrSettled},
		{"a peek", func(key string) (core.Decision, error) { return a.Peek(ctx, key) }, "k", nil, nil, core.ErrSettled},
		{"refused by numbers", func(key string) (core.Decision, error) { return a.AllowN(ctx, key, 11) }, "k", nil, nil, core.ErrSettled},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked = nil
			d, err := test.ask(test.key)
			if err != nil {
				t.Fatal(err)
			}
			settle := func() error {
				if test.settle == nil {
					return d.Refund(ctx)
				}
				_, err := d.Settle(ctx, test.settle...)
				return err
			}
			answers := d.Len()
			if err := settle(); !errors.Is(err, test.err) {
				t.Errorf("the first time: %v, want %v", err, test.err)
			}
			if !reflect.DeepEqual(asked, test.want) {
				t.Errorf("asked %+v\nwant  %+v", asked, test.want)
			}
			asked = nil
			if err := settle(); !errors.Is(err, core.ErrSettled) || asked != nil {
				t.Errorf("the second time: %v, asked %+v", err, asked)
			}
			if err := d.Refund(ctx); !errors.Is(err, core.ErrSettled) || asked != nil {
				t.Errorf("a refund after it: %v, asked %+v", err, asked)
			}
			for i := range answers {
				d.Answer(i) // still there
			}
		})
	}
}

// TestSettleFaults: a question that makes no sense is not asked and costs nothing.
func TestSettleFaults(t *testing.T) {
	s := newStore()
	a := newLimiter(t, s, "a", core.FixedWindow(perAge(10)))
	b := newLimiter(t, s, "b", core.FixedWindow(perAge(10)))
	ctx := t.Context()
	d, err := core.AllowAll(ctx, core.Charge{Limiter: a, Key: "x", N: 4}, core.Charge{Limiter: b, Key: "y", N: 5})
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	for _, actual := range [][]int64{nil, {1}, {1, 2, 3}, {-1, 2}, {1, -1}} {
		if _, err := d.Settle(ctx, actual...); err == nil || errors.Is(err, core.ErrSettled) {
			t.Errorf("Settle(%v): %v", actual, err)
		}
	}
	if left(t, a, "x") != 6 || left(t, b, "y") != 5 {
		t.Errorf("%d and %d left, want 6 and 5", left(t, a, "x"), left(t, b, "y"))
	}
	// The most that found no room counts: 10 of one, 7 of the other.
	if uncovered, err := d.Settle(ctx, 20, 17); err != nil || uncovered != 10 {
		t.Errorf("Settle = %d, %v; want 10 uncovered", uncovered, err)
	}
	if left(t, a, "x") != 0 || left(t, b, "y") != 0 {
		t.Errorf("%d and %d left, want none", left(t, a, "x"), left(t, b, "y"))
	}
}

// TestSettleError: after an error it is unknown what the store did, so the receipt
// is spent: settling it again could give back twice.
func TestSettleError(t *testing.T) {
	s := newFakeStore(t)
	s.answer = says(true, say{true, step.Reading{}})
	s.settle = func([]store.Charge) error { return errStore }
	d := allow(t, newLimiter(t, s, "a", core.FixedWindow(core.PerMinute(10))), "key", 1)
	if err := d.Refund(t.Context()); !errors.Is(err, errStore) {
		t.Errorf("the first time: %v", err)
	}
	if err := d.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
		t.Errorf("the second time: %v", err)
	}
}

// TestRefundOfEachPolicy: each policy gives back what it counted, and an hour later
// nothing, although another has been charged meanwhile.
func TestRefundOfEachPolicy(t *testing.T) {
	for _, p := range []core.Policy{
		core.TokenBucket(core.PerMinute(4), 4),
		core.FixedWindow(core.PerMinute(4)),
		core.SlidingWindow(core.PerMinute(4)),
		core.SlidingWindow(core.PerMinute(4)).NeverOver(),
		core.SlidingLog(core.PerMinute(4)),
	} {
		t.Run(p.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newStore(), "a", p)
				ctx := context.WithoutCancel(t.Context())
				first, early := allow(t, l, "key", 3), allow(t, l, "key", 1)
				if err := first.Refund(ctx); err != nil {
					t.Fatal(err)
				}
				if got := left(t, l, "key"); got != 3 {
					t.Errorf("%d left after a refund of 3 of 4, want 3", got)
				}
				time.Sleep(time.Hour)
				allow(t, l, "key", 4)
				if err := early.Refund(ctx); err != nil {
					t.Fatal(err)
				}
				if got := left(t, l, "key"); got != 0 {
					t.Errorf("%d left after a refund of what is long gone, want 0", got)
				}
			})
		})
	}
}

// TestRefundAfterReset: what was charged after a Reset pays for a refund of a charge that
// was made before, with at most the units of that charge.
func TestRefundAfterReset(t *testing.T) {
	for _, test := range []struct {
		policy core.Policy
		since  int64 // units charged after the Reset
		left   int64 // of 4, after the refund of 2
	}{
		{core.TokenBucket(core.PerHour(4), 4), 0, 4},
		{core.TokenBucket(core.PerHour(4), 4), 1, 4},
		{core.TokenBucket(core.PerHour(4), 4), 4, 1}, // and a part of the second, which has refilled
		{core.FixedWindow(perAge(4)), 0, 4},
		{core.FixedWindow(perAge(4)), 1, 4},
		{core.FixedWindow(perAge(4)), 4, 2},
		{core.SlidingWindow(perAge(4)), 0, 4},
		{core.SlidingWindow(perAge(4)), 1, 4},
		{core.SlidingWindow(perAge(4)), 4, 2},
		{core.SlidingLog(core.PerHour(4)), 0, 4},
		{core.SlidingLog(core.PerHour(4)), 1, 4},
		{core.SlidingLog(core.PerHour(4)), 4, 2},
		{core.MinInterval(time.Hour), 0, 1},
		{core.MinInterval(time.Hour), 1, 0}, // it knows the instant of its call
	} {
		t.Run(fmt.Sprint(test.policy, test.since), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newStore(), "a", test.policy)
				d := allow(t, l, "key", 2)
				if err := l.Reset(t.Context(), "key"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if test.since > 0 && !allow(t, l, "key", test.since).Allowed {
					t.Fatal("refused after a reset")
				}
				if err := d.Refund(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := left(t, l, "key"); got != test.left {
					t.Errorf("%d left after a refund, want %d", got, test.left)
				}
			})
		})
	}
}

// TestCopiesOfADecision share the receipt: any one of them can be settled, and a
// copy of that one holds nothing.
func TestCopiesOfADecision(t *testing.T) {
	s := newStore()
	a, b := newLimiter(t, s, "a", core.FixedWindow(perAge(10))), newLimiter(t, s, "b", core.FixedWindow(perAge(10)))
	d, err := core.AllowAll(t.Context(), core.Charge{Limiter: a, Key: "x", N: 4}, core.Charge{Limiter: b, Key: "y", N: 5})
	if err != nil {
		t.Fatal(err)
	}
	settled := d
	if _, err := settled.Settle(t.Context(), 1, 2); err != nil || left(t, a, "x") != 9 || left(t, b, "y") != 8 {
		t.Errorf("%v; %d and %d left, want 9 and 8", err, left(t, a, "x"), left(t, b, "y"))
	}
	again := settled
	if err := again.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
		t.Errorf("a copy of what was settled: %v", err)
	}
	for i, want := range []int64{6, 5} {
		if x, y := d.Answer(i), settled.Answer(i); x != y || x.Remaining != want {
			t.Errorf("answer %d is %+v and %+v, want %d left", i, x, y, want)
		}
	}
}
