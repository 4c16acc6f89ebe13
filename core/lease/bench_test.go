package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/lease"
	"github.com/headgate/headgate/core/memstore"
)

// BenchmarkHot has one key that is never refused, with leases and in a memstore alone.
func BenchmarkHot(b *testing.B) {
	rate := core.Rate{Events: 1 << 40, Per: 1000 * time.Second}
	for name, policies := range map[string][]core.Policy{
		"FixedWindow":   {core.FixedWindow(rate)},
		"TokenBucket":   {core.TokenBucket(core.PerSecond(1_000_000), 1<<32).Leasable(time.Second)},
		"SlidingWindow": {core.SlidingWindow(rate)},
		"Two":           {core.FixedWindow(rate).Named("a"), core.SlidingWindow(rate).Named("b")},
	} {
		memory := memstore.New(memstore.Config{})
		leases, err := lease.New(memory, lease.Config{})
		if err != nil {
			b.Fatal(err)
		}
		for kind, s := range map[string]core.Store{"lease": leases, "memstore": memory} {
			l, err := core.New(s, kind, policies...)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if d, err := l.Allow(context.Background(), "key"); err != nil || !d.Allowed {
						b.Fatal(d, err)
					}
				}
			})
		}
	}
}
