package core_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/core"
)

// BenchmarkHot is a decision about one key that is used all the time, in memory.
func BenchmarkHot(b *testing.B) {
	for name, policies := range map[string][]core.Policy{
		"TokenBucket":   {core.TokenBucket(1_000_000, time.Second)},
		"FixedWindow":   {core.FixedWindow(1<<40, time.Hour)},
		"SlidingWindow": {core.SlidingWindow(1<<40, time.Hour)},
		"two":           {core.TokenBucket(1_000_000, time.Second).Named("second"), core.FixedWindow(1<<40, time.Hour).Named("hour")},
	} {
		b.Run(name, func(b *testing.B) {
			l, ctx := core.NewLimiter(new(core.MemoryStore), "api", policies...), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Allow(ctx, "key"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
