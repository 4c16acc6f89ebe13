//go:build !race

package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// TestNoAllocations: a decision of one or two policies allocates nothing, nor does
// reading its answers, or reporting it to an observer.
func TestNoAllocations(t *testing.T) {
	rate := core.PerSecond(1_000_000)
	one := map[string]core.Policy{
		"TokenBucket":   core.TokenBucket(rate, 1_000_000),
		"FixedWindow":   core.FixedWindow(rate),
		"SlidingWindow": core.SlidingWindow(rate),
		"SlidingLog":    core.SlidingLog(core.PerMinute(100)),
		"MinInterval":   core.MinInterval(time.Microsecond),
		"CountDenied":   core.FixedWindow(perAge(100)).CountDenied(),
		"Unlimited":     core.Unlimited(),
		"Blocked":       core.Blocked(),
	}
	limiters := map[string]*core.Limiter{}
	for name, p := range one {
		limiters[name] = newLimiter(t, newStore(), "api", p)
	}
	limiters["two"] = newLimiter(t, newStore(), "api", one["TokenBucket"].Named("burst"), one["SlidingLog"].Named("minute"))
	events := 0
	for name, o := range map[string]*core.Observer{
		"observed":     {Decided: func(_ context.Context, e core.DecisionEvent) { events += len(e.Policy) }},
		"timed":        {Decided: func(_ context.Context, e core.DecisionEvent) { events += len(e.Policy) }, Timed: true},
		"of no use":    {},
		"observed two": {Decided: func(_ context.Context, e core.DecisionEvent) { events += len(e.Policy) }},
	} {
		policies := []core.Policy{one["TokenBucket"].Named("burst")}
		if name == "observed two" {
			policies = append(policies, one["SlidingLog"].Named("minute"))
		}
		limiters[name] = newLimiter(t, memstore.New(memstore.Config{Observer: o}), "api", policies...)
	}
	ctx := t.Context()
	for name, l := range limiters {
		t.Run(name, func(t *testing.T) {
			for range 200 { // fill what grows
				allow(t, l, "key", 1)
			}
			for what, ask := range map[string]func(string) (core.Decision, error){
				"Allow": func(key string) (core.Decision, error) { return l.Allow(ctx, key) },
				"Peek":  func(key string) (core.Decision, error) { return l.Peek(ctx, key) },
				"Never": func(key string) (core.Decision, error) { return l.AllowN(ctx, key, core.NoLimit+1) },
			} {
				var remaining int64
				if got := testing.AllocsPerRun(1000, func() {
					d, err := ask("key")
					if err != nil {
						t.Fatal(err)
					}
					for i := range d.Len() {
						remaining += d.Answer(i).Remaining
					}
				}); got != 0 {
					t.Errorf("%s allocates %v times", what, got)
				}
			}
		})
	}
	if events == 0 {
		t.Error("the observers were told nothing")
	}
}

// TestNoAllocationsWithExtra: nor does a store's decision about extra units.
func TestNoAllocationsWithExtra(t *testing.T) {
	bucket, window := core.TokenBucket(core.PerHour(1_000_000), 1_000_000), core.SlidingWindow(core.PerHour(1_000_000))
	for name, policies := range map[string][]core.Policy{"one": {bucket}, "two": {bucket.Named("bucket"), window.Named("window")}} {
		l := newLimiter(t, newStore(), "api", policies...)
		q := &store.Question{Charges: []store.Charge{{Limiter: l.Prepared(), Key: "key", N: 1}}, Extra: 5}
		if got := testing.AllocsPerRun(1000, func() {
			if err := l.Store().Ask(t.Context(), q); err != nil || q.Result.Extra != 5 {
				t.Fatal(q.Result, err)
			}
		}); got != 0 {
			t.Errorf("%s: allocates %v times", name, got)
		}
	}
}
