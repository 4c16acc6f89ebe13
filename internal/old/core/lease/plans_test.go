package lease

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// slowLarge holds up calls that charge more than 50 units on their way to the store.
type slowLarge struct{ core.Store }

func (s slowLarge) Ask(ctx context.Context, q *store.Question) error {
	time.Sleep(time.Millisecond)
	if slices.ContainsFunc(q.Charges, func(c store.Charge) bool { return max(c.N, c.Actual) > 50 }) {
		time.Sleep(20 * time.Millisecond)
	}
	return s.Store.Ask(ctx, q)
}

// However a larger plan charges a key, a smaller one spends nothing afterwards that it leased before, or
// while the charge was on its way.
func TestSmallerPlansSpendNothingOldAfterLargerOnes(t *testing.T) {
	per := core.PerMinute
	for name, charge := range map[string]struct {
		large core.Policy
		units func(large, beside *core.Limiter, earlier *core.Decision) error
	}{
		"allow": {core.FixedWindow(per(1000)), func(large, _ *core.Limiter, _ *core.Decision) error {
			_, err := large.AllowN(context.Background(), key, 90)
			return err
		}},
		"allow, not leased": {core.FixedWindow(per(1000)).CountDenied(), func(large, _ *core.Limiter, _ *core.Decision) error {
			_, err := large.AllowN(context.Background(), key, 90)
			return err
		}},
		"several": {core.FixedWindow(per(1000)), func(large, beside *core.Limiter, _ *core.Decision) error {
			_, err := core.AllowAll(context.Background(), core.Charge{Limiter: beside, Key: key, N: 1}, core.Charge{Limiter: large, Key: key, N: 90})
			return err
		}},
		"report": {core.FixedWindow(per(1000)), func(large, _ *core.Limiter, _ *core.Decision) error {
			_, _, err := large.Report(context.Background(), key, 90)
			return err
		}},
		"settle": {core.FixedWindow(per(1000)), func(_, _ *core.Limiter, earlier *core.Decision) error {
			_, err := earlier.Settle(context.Background(), 91)
			return err
		}},
		"settle, not leased": {core.FixedWindow(per(1000)).CountDenied(), func(_, _ *core.Limiter, earlier *core.Decision) error {
			_, err := earlier.Settle(context.Background(), 91)
			return err
		}},
	} {
		for _, meanwhile := range []int{0, 5} {
			t.Run(name, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					s, err := New(slowLarge{memstore.New(memstore.Config{})}, Config{})
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close(context.Background())
					small := limiterOf(t, s, core.FixedWindow(per(100)))
					large, err := small.With(charge.large)
					if err != nil {
						t.Fatal(err)
					}
					beside := named(t, s, "beside", year(1000))
					earlier := allow(t, large, 1)
					used := int64(91)
					spend := func(calls int) (admitted int64) {
						for range calls {
							if allow(t, small, 1).Allowed {
								admitted++
							}
						}
						return admitted
					}
					used += spend(12)
					done := make(chan error)
					go func() { done <- charge.units(large, beside, &earlier) }()
					synctest.Wait()
					used += spend(meanwhile)
					if err := <-done; err != nil {
						t.Fatal(err)
					}
					if late := spend(100); late > 0 {
						t.Errorf("the plan of 100 admitted %d when %d were used", late, used)
					}
				})
			})
		}
	}
}
