package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/lease"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

// BenchmarkCold has keys that are asked for rarely, over Redis, with leases and without.
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
	for kind, s := range map[string]core.Store{"lease": leases, "redisstore": shared} {
		l, err := core.New(s, "cold", core.SlidingWindow(core.PerMinute(1000)))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(kind, func(b *testing.B) {
			server.Flush()
			before := server.CPU()
			for i := 0; b.Loop(); i++ {
				if d, err := l.Allow(context.Background(), keys[i%len(keys)]); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
			b.ReportMetric(float64((server.CPU()-before).Nanoseconds())/float64(b.N), "redis-ns/op")
		})
	}
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
