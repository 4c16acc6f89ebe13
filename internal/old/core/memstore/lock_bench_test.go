package memstore

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// BenchmarkLock has one key under a token bucket, which is decided about under the lock of
// its shard, and without.
func BenchmarkLock(b *testing.B) {
	for _, decided := range []struct {
		name   string
		policy core.Policy
		want   bool
	}{
		{"Admitted", core.TokenBucket(core.PerSecond(1_000_000), 1_000_000_000), true},
		{"AdmittedFraction", core.TokenBucket(core.Rate{Events: 90_000_049, Per: 100 * time.Second}, 90_000_049), true},
		{"Refused", core.TokenBucket(core.PerDay(1), 1), false},
	} {
		for _, without := range []bool{false, true} {
			name := decided.name + "/Lock"
			if without {
				name = decided.name + "/NoLock"
			}
			b.Run(name, func(b *testing.B) {
				s := New(Config{})
				if !without {
					s.hotAfter = math.MaxUint32
				}
				l, err := core.New(s, "bench", decided.policy)
				if err != nil {
					b.Fatal(err)
				}
				for range 2 * hotAfter {
					if _, err := l.Allow(b.Context(), "client-000000001"); err != nil {
						b.Fatal(err)
					}
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if d, err := l.Allow(b.Context(), "client-000000001"); err != nil || d.Allowed != decided.want {
							b.Error(d, err)
							return
						}
					}
				})
			})
		}
	}
}
