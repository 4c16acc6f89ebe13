package lease_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

// BenchmarkCold has 100,000 keys that are asked for rarely, over Redis, with leases and without,
// in turns of 100 calls. It reports the ratio of the medians, and that of Redis's memory.
func BenchmarkCold(b *testing.B) {
	server := redistest.Start(b)
	shared, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{server.Addr()}}, redisstore.Config{Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer shared.Client().Close()
	leases, err := lease.New(shared, lease.Config{})
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprint("key-", i)
	}
	const turn = 100
	type system struct {
		limiter *core.Limiter
		took    []float64
		memory  float64
	}
	systems := []*system{{}, {}}
	for i, s := range []core.Store{leases, shared} {
		l, err := core.New(s, "cold", core.SlidingWindow(core.PerMinute(1000)))
		if err != nil {
			b.Fatal(err)
		}
		systems[i].limiter = l
	}
	ask := func(s *system, from, n int) {
		for i := range n {
			if d, err := s.limiter.Allow(context.Background(), keys[(from+i)%len(keys)]); err != nil || !d.Allowed {
				b.Fatal(d, err)
			}
		}
	}
	used := func() float64 {
		n, err := strconv.ParseFloat(server.Info("memory")["used_memory"], 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	for _, s := range systems {
		server.Flush()
		before := used()
		ask(s, 0, len(keys))
		s.memory = used() - before
	}
	for i := 0; b.Loop(); i++ { // one operation is two turns
		for j := range systems {
			s := systems[(i+j)%len(systems)]
			began := time.Now()
			ask(s, i*turn, turn)
			s.took = append(s.took, float64(time.Since(began).Nanoseconds())/turn)
		}
	}
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(median(systems[0].took), "leased-ns")
	b.ReportMetric(median(systems[0].took)/median(systems[1].took), "x-redisstore")
	b.ReportMetric(systems[0].memory/systems[1].memory, "x-memory")
}

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
