package memstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

var policies = []struct {
	name   string
	policy func(limit int64, per time.Duration) core.Policy
}{
	{"TokenBucket", func(n int64, d time.Duration) core.Policy { return core.TokenBucket(core.Rate{Events: n, Per: d}, n) }},
	{"FixedWindow", func(n int64, d time.Duration) core.Policy { return core.FixedWindow(core.Rate{Events: n, Per: d}) }},
	{"SlidingWindow", func(n int64, d time.Duration) core.Policy { return core.SlidingWindow(core.Rate{Events: n, Per: d}) }},
	{"SlidingLog", func(n int64, d time.Duration) core.Policy { return core.SlidingLog(core.Rate{Events: n, Per: d}) }},
	{"MinInterval", func(n int64, d time.Duration) core.Policy { return core.MinInterval(d / time.Duration(n)) }},
}

func newLimiter(b *testing.B, c memstore.Config, p ...core.Policy) *core.Limiter {
	b.Helper()
	l, err := core.New(memstore.New(c), "bench", p...)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkHotAdmitted has one key that is never refused. MinInterval, which admits at
// most one call per microsecond, would refuse.
func BenchmarkHotAdmitted(b *testing.B) {
	for _, p := range policies {
		if p.name == "MinInterval" {
			continue
		}
		b.Run(p.name, func(b *testing.B) {
			limit, per := int64(1_000_000_000), 1000*time.Second
			if p.name == "SlidingLog" { // which remembers no more than 2^20
				limit, per = 1<<20, 10*time.Millisecond
			}
			hot(b, newLimiter(b, memstore.Config{MaxBytes: 1 << 30}, p.policy(limit, per)), true)
		})
	}
	b.Run("TwoPolicies", func(b *testing.B) {
		l := newLimiter(b, memstore.Config{},
			core.TokenBucket(core.PerSecond(1_000_000), 1_000_000_000).Named("second"),
			core.FixedWindow(core.PerDay(1<<40)).Named("day"))
		hot(b, l, true)
	})
}

// BenchmarkHotObserved is BenchmarkHotAdmitted of a TokenBucket with an observer that does
// nothing.
func BenchmarkHotObserved(b *testing.B) {
	for _, timed := range []bool{false, true} {
		b.Run(fmt.Sprintf("Timed=%t", timed), func(b *testing.B) {
			o := &core.Observer{Timed: timed, Decided: func(context.Context, core.DecisionEvent) {}}
			hot(b, newLimiter(b, memstore.Config{Observer: o}, core.TokenBucket(core.PerSecond(1_000_000), 1_000_000_000)), true)
		})
	}
}

// BenchmarkHotRefused has one key that is always refused.
func BenchmarkHotRefused(b *testing.B) {
	for _, p := range policies {
		b.Run(p.name, func(b *testing.B) {
			l := newLimiter(b, memstore.Config{}, p.policy(10, 24*time.Hour))
			if _, err := l.AllowN(context.Background(), hotKey, 10); err != nil {
				b.Fatal(err)
			}
			hot(b, l, false)
		})
	}
}

const hotKey = "client-000000001"

func hot(b *testing.B, l *core.Limiter, want bool) {
	b.Helper()
	b.ReportAllocs()
	ctx := context.Background()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if d, err := l.Allow(ctx, hotKey); err != nil || d.Allowed != want {
				b.Error(d, err)
				return
			}
		}
	})
}

// BenchmarkMillionKeys draws from a million keys, uniformly and by Zipf's law.
func BenchmarkMillionKeys(b *testing.B) {
	const keys = 1_000_000
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("client-%09d", i)
	}
	order := map[string][]uint32{"Uniform": make([]uint32, 1<<20), "Zipf": make([]uint32, 1<<20)}
	r := rand.New(rand.NewPCG(1, 2))
	z := rand.NewZipf(r, 1.1, 1, keys-1)
	for i := range 1 << 20 {
		order["Uniform"][i] = uint32(r.IntN(keys))
		order["Zipf"][i] = uint32(z.Uint64())
	}
	for _, p := range policies {
		for _, dist := range []string{"Uniform", "Zipf"} {
			b.Run(p.name+"/"+dist, func(b *testing.B) {
				l := newLimiter(b, memstore.Config{MaxBytes: 1 << 30}, p.policy(100, time.Hour))
				ctx := context.Background()
				for _, name := range names {
					if _, err := l.Allow(ctx, name); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					i := rand.IntN(1 << 20)
					for pb.Next() {
						i = (i + 1) & (1<<20 - 1)
						if _, err := l.Allow(ctx, names[order[dist][i]]); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// BenchmarkBytesPerKey reports the live memory of a million keys, each charged once.
func BenchmarkBytesPerKey(b *testing.B) {
	const keys = 1_000_000
	for _, p := range policies {
		b.Run(p.name, func(b *testing.B) {
			for b.Loop() {
				store := memstore.New(memstore.Config{MaxBytes: 1 << 30})
				l, err := core.New(store, "bench", p.policy(100, time.Hour))
				if err != nil {
					b.Fatal(err)
				}
				before := heap()
				for i := range keys {
					if _, err := l.Allow(context.Background(), "client-"+strconv.Itoa(i)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(heap()-before)/keys, "bytes/key")
				b.ReportMetric(float64(store.Stats().Bytes)/keys, "counted/key")
			}
		})
	}
}
