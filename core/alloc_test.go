//go:build !race

package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
)

// A decision of up to two policies allocates nothing, observed or not.
func TestAllocations(t *testing.T) {
	bucket, window := core.TokenBucket(1_000_000, time.Second), core.FixedWindow(1<<40, time.Hour)
	for name, policies := range map[string][]core.Policy{"one": {bucket}, "two": {bucket.Named("a"), window.Named("b")}, "refused": {core.Blocked()}} {
		decided := &core.Observer{Decided: func(context.Context, core.DecisionEvent) {}}
		for _, observers := range [][]*core.Observer{nil, {{Released: func(string) {}}}, {decided, decided}} {
			l, ctx := core.NewLimiter(&core.MemoryStore{Observers: observers}, "api", policies...), t.Context()
			if n := testing.AllocsPerRun(1000, func() {
				if _, err := l.Allow(ctx, "key"); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	}
}
