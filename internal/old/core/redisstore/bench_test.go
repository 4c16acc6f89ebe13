package redisstore

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// benchmarked are policies that admit n units in an hour.
func benchmarked(n int64) map[string][]core.Policy {
	return map[string][]core.Policy{
		"TokenBucket":   {core.TokenBucket(core.PerHour(n), n)},
		"FixedWindow":   {core.FixedWindow(core.PerHour(n))},
		"SlidingWindow": {core.SlidingWindow(core.PerHour(n))},
		"SlidingLog":    {core.SlidingLog(core.PerHour(min(n, 10_000)))},
		"Two":           {core.TokenBucket(core.PerHour(n), n).Named("a"), core.SlidingWindow(core.PerHour(n)).Named("b")},
	}
}

// BenchmarkAdmitted draws from 100,000 keys, each of which has room.
func BenchmarkAdmitted(b *testing.B) {
	const drawn = 100_000
	names := make([]string, drawn)
	for i := range names {
		names[i] = "client-" + strconv.Itoa(i)
	}
	eachPolicy(b, 1_000_000, Config{}, func(b *testing.B, l *core.Limiter, goroutines int) {
		var next atomic.Int64
		ask(b, goroutines, func() error {
			d, err := l.Allow(context.Background(), names[next.Add(7919)%drawn])
			if err == nil && !d.Allowed {
				err = fmt.Errorf("refused: %s", describe(&d))
			}
			return err
		})
	})
}

// BenchmarkRefused has one key that is always refused: nearly always from the cache.
func BenchmarkRefused(b *testing.B) {
	eachPolicy(b, 1, Config{}, refuseAll)
}

// BenchmarkRefusedUnits is that of questions of 1 to 8 units.
func BenchmarkRefusedUnits(b *testing.B) {
	eachPolicy(b, 8, Config{}, func(b *testing.B, l *core.Limiter, goroutines int) {
		if _, err := l.AllowN(context.Background(), "hot", 8); err != nil {
			b.Fatal(err)
		}
		var next atomic.Int64
		ask(b, goroutines, func() error {
			_, err := l.AllowN(context.Background(), "hot", 1+next.Add(1)%8)
			return err
		})
	})
}

// BenchmarkRefusedByRedis is that without the cache.
func BenchmarkRefusedByRedis(b *testing.B) {
	eachPolicy(b, 1, Config{RefusalTTL: -1}, refuseAll)
}

func refuseAll(b *testing.B, l *core.Limiter, goroutines int) {
	if _, err := l.Allow(context.Background(), "hot"); err != nil {
		b.Fatal(err)
	}
	ask(b, goroutines, func() error {
		d, err := l.Allow(context.Background(), "hot")
		if err == nil && d.Allowed {
			err = fmt.Errorf("admitted: %s", describe(&d))
		}
		return err
	})
}

// BenchmarkOwnDeadline has callers whose contexts end before the Timeout.
func BenchmarkOwnDeadline(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, Config{Failure: FailClosed}, server.Addr())
	l := newLimiter(b, s, "api", core.FixedWindow(core.PerHour(1<<40)))
	for _, goroutines := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			ask(b, goroutines, func() error {
				ctx, cancel := context.WithTimeout(context.Background(), patient/2)
				defer cancel()
				_, err := l.Allow(ctx, "k")
				return err
			})
		})
	}
}

// BenchmarkNoMerging shows what merging is for.
func BenchmarkNoMerging(b *testing.B) {
	server := redistest.Start(b)
	for _, unmerged := range []bool{false, true} {
		s := open(b, Config{NoMerging: unmerged}, server.Addr())
		l := newLimiter(b, s, fmt.Sprint(unmerged), core.FixedWindow(core.PerHour(1<<40)))
		b.Run(fmt.Sprintf("NoMerging=%v", unmerged), func(b *testing.B) {
			ask(b, 256, func() error { _, err := l.Allow(context.Background(), "k"); return err })
		})
	}
}

func eachPolicy(b *testing.B, limit int64, c Config, run func(b *testing.B, l *core.Limiter, goroutines int)) {
	server := redistest.Start(b)
	c.Failure = FailClosed
	s := open(b, c, server.Addr())
	for _, name := range slices.Sorted(maps.Keys(benchmarked(limit))) {
		for _, goroutines := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/goroutines=%d", name, goroutines), func(b *testing.B) {
				server.Flush()
				l := newLimiter(b, s, name, benchmarked(limit)[name]...)
				before := server.Calls("evalsha")
				run(b, l, goroutines)
				b.ReportMetric(float64(server.Calls("evalsha")-before)/float64(b.N), "calls/op")
			})
		}
	}
}

// ask asks from so many goroutines at once, in this one if there is but one.
func ask(b *testing.B, goroutines int, question func() error) {
	b.ReportAllocs()
	if goroutines == 1 {
		for b.Loop() {
			if err := question(); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.SetParallelism((goroutines + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := question(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
