package limits_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/limits"
)

// counting is a store that counts how many limiters it has prepared.
type counting struct {
	store.Kinded

	prepared atomic.Int64
}

func (c *counting) Prepare(l *store.Limiter) error {
	c.prepared.Add(1)
	return c.Kinded.Prepare(l)
}

// pairs is a document of so many plans and kinds of overrides, each with numbers of its own, that
// starts with that limit.
func pairs(plans, overrides, first int) string {
	var below, above []string
	for i := range plans {
		below = append(below, fmt.Sprintf(`"p%d": {"m": "sliding-log %d/minute"}`, i, first+i))
	}
	for i := range overrides {
		above = append(above, fmt.Sprintf(`{"key": "k%d", "policies": {"d": "fixed-window %d/day"}}`, i, i+1))
	}
	return `{"limits": {"api": {"default": "p0", "plans": {` + strings.Join(below, ",") + `}, "overrides": [` + strings.Join(above, ",") + `]}}}`
}

// Of many plans and many kinds of overrides, the pairs are made that are used, once each, and the
// next document takes them over.
func TestPairsAreMadeWhenUsed(t *testing.T) {
	for _, c := range []struct{ plans, overrides int }{{2000, 2000}, {50, 10_000}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			if testing.Short() {
				c.plans, c.overrides = c.plans/10, c.overrides/10
			}
			source := newBoard(pairs(c.plans, c.overrides, 1))
			s := &counting{Kinded: memstore.New(memstore.Config{})}
			b := openIn(t, s, false, source, limits.Config{})
			alone := c.plans + c.overrides + 2 // the plans that every limit has
			if n := b.Made(); n != alone {
				t.Errorf("%d limiters are made, not %d", n, alone)
			}
			if n := s.prepared.Load(); n > int64(alone)+10 {
				t.Errorf("%d limiters were prepared for %d", n, alone)
			}
			api := limit(t, b, "api")
			used := make([]*core.Limiter, 1000)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for i := range used {
						plan, key := i%c.plans, i/3%c.overrides
						l := api.For(fmt.Sprint("p", plan), fmt.Sprint("k", key))
						if want := fmt.Sprintf("m: sliding-log %d/minute, d: fixed-window %d/day", plan+1, key+1); text(l) != want {
							t.Errorf("%s, not %s", text(l), want)
							return
						}
					}
				})
			}
			wg.Wait()
			different := make(map[*core.Limiter]bool)
			for i := range used {
				used[i] = api.For(fmt.Sprint("p", i%c.plans), fmt.Sprint("k", i/3%c.overrides))
				different[used[i]] = true
			}
			if n := b.Made(); n != alone+len(different) {
				t.Errorf("%d limiters are made, not %d", n, alone+len(different))
			}
			before := s.prepared.Load()
			source.write(strings.Replace(pairs(c.plans, c.overrides, 1), `"p0": {"m": "sliding-log 1/`, `"p0": {"m": "sliding-log 7777/`, 1))
			reload(t, b)
			if n := s.prepared.Load() - before; n > 10 {
				t.Errorf("%d limiters were prepared for a document that changes one plan", n)
			}
			for i := range used {
				if l := api.For(fmt.Sprint("p", i%c.plans), fmt.Sprint("k", i/3%c.overrides)); (l == used[i]) == (i%c.plans == 0) {
					t.Fatalf("plan p%d: it is the same limiter: %t", i%c.plans, l == used[i])
				}
			}
		})
	}
}

// So many kinds of overrides and plans, whose policies have names and logs of their own, take few
// questions of the store, whether it takes them or not.
func TestPairsAreTriedTogether(t *testing.T) {
	over := newRedisStore(t)
	for _, c := range []struct {
		most   int // of the log of the last override
		faults int
	}{{16384 - 100, 0}, {16384 - 99, 1}} {
		const n = 500
		var plans, overrides []string
		for i := range n {
			plans = append(plans, fmt.Sprintf(`"p%d": {"m": "fixed-window 1/day", "n%d": "sliding-log 100/day"}`, i, i))
			overrides = append(overrides, fmt.Sprintf(`{"key": "k%d", "policies": {"o%d": "sliding-log 100/day"}}`, i, i))
		}
		overrides = append(overrides, fmt.Sprintf(`{"key": "k", "policies": {"o": "sliding-log %d/day"}}`, c.most))
		s := &counting{Kinded: over}
		err := parse(t, `{"limits": {"api": {"default": "p0", "plans": {`+strings.Join(plans, ",")+`}, "overrides": [`+strings.Join(overrides, ",")+`]}}}`).Check(limits.Program{}, s)
		var faults limits.Faults
		if errors.As(err, &faults); len(faults) != c.faults {
			t.Errorf("%d faults, not %d: %v", len(faults), c.faults, err)
		}
		if asked := s.prepared.Load() - 2*n; asked > 6*n {
			t.Errorf("the store was asked %d times about %d pairs", asked, n*n)
		}
	}
}
