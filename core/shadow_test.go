package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
)

// A shadow refuses nothing, is charged when all admit, and is in the same call unless it refuses.
func TestAllowBeside(t *testing.T) {
	var events []string
	store := memstore.New(memstore.Config{Observer: &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) {
		events = append(events, fmt.Sprint(e.Limiter, " ", e.Allowed, " ", e.Policy))
	}}})
	limiter := newLimiter(t, store, "api", core.FixedWindow(perAge(4)))
	trial := newLimiter(t, store, "api.shadow", core.FixedWindow(perAge(2)).Named("a"), core.FixedWindow(perAge(100)).Named("b"))
	for i, want := range []struct {
		allowed, shadow string
		events          string
	}{
		{`allowed by "api": 3 of 4 left`, `allowed by "a": 1 of 2 left`, "[api.shadow true a api true api]"},
		{`allowed by "api": 2 of 4 left`, `allowed by "a": 0 of 2 left`, "[api.shadow true a api true api]"},
		{`allowed by "api": 1 of 4 left`, `refused by "a"`, "[api.shadow false a api true api]"},
		{`allowed by "api": 0 of 4 left`, `refused by "a"`, "[api.shadow false a api true api]"},
		{`refused by "api"`, "", "[api false api]"},
	} {
		events = nil
		d, shadow, err := core.AllowBeside(t.Context(), []core.Charge{{Limiter: limiter, Key: "k", N: 1}}, []core.Charge{{Limiter: trial, Key: "k", N: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if got := d.String(); got != want.allowed && (d.Allowed || got[:len(want.allowed)] != want.allowed) {
			t.Errorf("call %d: %s, not %s", i, got, want.allowed)
		}
		if d.Len() != 1 || d.Answer(0).Limiter != "api" {
			t.Errorf("call %d: the decision has %d answers", i, d.Len())
		}
		switch {
		case want.shadow == "":
			if shadow.Len() != 0 || shadow.Source != core.SourceNone {
				t.Errorf("call %d: %v", i, shadow)
			}
		case shadow.Len() != 2 || shadow.String()[:len(want.shadow)] != want.shadow:
			t.Errorf("call %d: %v, not %s", i, shadow, want.shadow)
		}
		if got := fmt.Sprint(events); got != want.events {
			t.Errorf("call %d: %s, not %s", i, got, want.events)
		}
		if i == 1 { // both can be given back, each for itself
			if err := shadow.Refund(t.Context()); err != nil {
				t.Error(err)
			}
			if n := left(t, trial, "k"); n != 1 {
				t.Errorf("%d are left of the trial", n)
			}
			if n := left(t, limiter, "k"); n != 2 {
				t.Errorf("%d are left", n)
			}
			allow(t, trial, "k", 1)
		}
		if !shadow.Allowed {
			if err := shadow.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
				t.Error(err)
			}
		}
	}
}

// What has happened counts under its shadow too, also if it does not fit, or a charge beside it is refused.
func TestShadowsOfWhatHappened(t *testing.T) {
	store := memstore.New(memstore.Config{})
	limiter, trial := newLimiter(t, store, "api", core.FixedWindow(perAge(3))), newLimiter(t, store, "api.shadow", core.FixedWindow(perAge(100)))
	other, otherTrial := newLimiter(t, store, "other", core.FixedWindow(perAge(1))), newLimiter(t, store, "other.shadow", core.FixedWindow(perAge(100)))
	happened := func(l *core.Limiter, n int64) core.Charge {
		return core.Charge{Limiter: l, Key: "k", N: n, Anyway: true}
	}
	fits := func(l *core.Limiter, n int64) core.Charge { return core.Charge{Limiter: l, Key: "k", N: n} }
	for i, test := range []struct {
		charges, shadows []core.Charge
		used, otherUsed  int64 // of the shadows
	}{
		{[]core.Charge{happened(limiter, 2)}, []core.Charge{happened(trial, 2)}, 2, 0},
		{[]core.Charge{happened(limiter, 5)}, []core.Charge{happened(trial, 5)}, 7, 0},
		{[]core.Charge{happened(limiter, 1), fits(other, 1)}, []core.Charge{happened(trial, 1), fits(otherTrial, 1)}, 8, 1},
		{[]core.Charge{fits(other, 1), happened(limiter, 1)}, []core.Charge{fits(otherTrial, 1), happened(trial, 1)}, 9, 1}, // it is refused
		{[]core.Charge{fits(other, 1)}, []core.Charge{fits(otherTrial, 1)}, 9, 1},
	} {
		if _, _, err := core.AllowBeside(t.Context(), test.charges, test.shadows); err != nil {
			t.Fatal(err)
		}
		if used, otherUsed := 100-left(t, trial, "k"), 100-left(t, otherTrial, "k"); used != test.used || otherUsed != test.otherUsed {
			t.Errorf("call %d: %d and %d are used, not %d and %d", i, used, otherUsed, test.used, test.otherUsed)
		}
	}
}

// The charges are decided as without shadows, whatever these are.
func TestShadowsVetoNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	policies := func() []core.Policy {
		all := []core.Policy{
			core.FixedWindow(perAge(1 + random.Int64N(20))), core.SlidingLog(perAge(1 + random.Int64N(20))),
			core.FixedWindow(perAge(1 + random.Int64N(20))).CountDenied(), core.TokenBucket(perAge(1), 1+random.Int64N(20)),
			core.Unlimited(), core.Blocked(),
		}
		return []core.Policy{all[random.IntN(len(all))]}
	}
	for range 300 {
		with, without := newStore(), newStore()
		var charges, alone, shadows []core.Charge
		for i := range 1 + random.IntN(5) {
			n, p := fmt.Sprint(i), policies()
			c := core.Charge{Limiter: newLimiter(t, with, n, p...), Key: "k", N: 1 + random.Int64N(3)}
			charges = append(charges, c)
			alone = append(alone, core.Charge{Limiter: newLimiter(t, without, n, p...), Key: "k", N: c.N})
			shadows = append(shadows, core.Charge{Limiter: newLimiter(t, with, n+".shadow", policies()...), Key: "k", N: c.N})
		}
		shadows = shadows[:random.IntN(len(shadows)+1)]
		for i := range 30 {
			got, _, err := core.AllowBeside(t.Context(), charges, shadows)
			if err != nil {
				t.Fatal(err)
			}
			want, err := core.AllowAll(t.Context(), alone...)
			if err != nil {
				t.Fatal(err)
			}
			if got.Allowed != want.Allowed || got.Remaining != want.Remaining || got.Policy != want.Policy || got.Len() != want.Len() {
				t.Fatalf("call %d: %v, not %v", i, got, want)
			}
		}
	}
}

// More than eight charges and shadows are decided one after the other.
func TestManyShadows(t *testing.T) {
	store := newStore()
	var charges, shadows []core.Charge
	for i := range 5 {
		n := fmt.Sprint(i)
		charges = append(charges, core.Charge{Limiter: newLimiter(t, store, n, core.FixedWindow(perAge(3))), Key: "k", N: 1})
		shadows = append(shadows, core.Charge{Limiter: newLimiter(t, store, n+".shadow", core.FixedWindow(perAge(2))), Key: "k", N: 1})
	}
	for i, want := range []struct{ allowed, shadow bool }{{true, true}, {true, true}, {true, false}, {false, false}} {
		d, shadow, err := core.AllowBeside(t.Context(), charges, shadows)
		if err != nil || d.Allowed != want.allowed || shadow.Allowed != want.shadow {
			t.Errorf("call %d: %v, %v, %v", i, d, shadow, err)
		}
	}
}

// What is malformed is an error, and so is a store that does not answer, of both.
func TestAllowBesideErrors(t *testing.T) {
	s := &fake{t: t, answer: func([]store.Charge, bool) (store.Result, error) { return store.Result{}, errStore }}
	l, shadow := newLimiter(t, s, "a", core.SlidingLog(perAge(1))), newLimiter(t, s, "a.shadow", core.SlidingLog(perAge(1)))
	one, beside := []core.Charge{{Limiter: l, Key: "k", N: 1}}, []core.Charge{{Limiter: shadow, Key: "k", N: 1}}
	for name, c := range map[string]struct {
		ctx              context.Context
		charges, shadows []core.Charge
		want             error
	}{
		"no context":  {nil, one, beside, core.ErrQuestion},
		"no charge":   {t.Context(), nil, beside, core.ErrQuestion},
		"no limiter":  {t.Context(), one, []core.Charge{{Key: "k", N: 1}}, core.ErrQuestion},
		"twice":       {t.Context(), one, one, core.ErrQuestion},
		"other store": {t.Context(), one, []core.Charge{{Limiter: newLimiter(t, newStore(), "b", core.SlidingLog(perAge(1))), Key: "k", N: 1}}, core.ErrQuestion},
		"cost":        {t.Context(), one, []core.Charge{{Limiter: shadow, Key: "k", N: -1}}, core.ErrCost},
	} {
		if _, _, err := core.AllowBeside(c.ctx, c.charges, c.shadows); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d, shadow, err := core.AllowBeside(t.Context(), one, beside); !errors.Is(err, errStore) || d.Len()+shadow.Len() != 0 {
		t.Error(d, shadow, err)
	}
}
