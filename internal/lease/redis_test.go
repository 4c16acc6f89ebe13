//go:build !race

package lease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

// calls is a hook of a client of Redis that counts its calls.
type calls struct{ n *atomic.Int64 }

func (calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// BenchmarkRedis lets four servers share a limit of 2,000 requests a second, of which they are asked for a multiple, and
// reports what they admit, of the limit, and the calls of Redis for 1,000 decisions: with leases and without, about one
// rate, and about two rates at once, of which the second is of one of four users. Each takes three seconds.
func BenchmarkRedis(b *testing.B) {
	for _, policy := range []struct {
		name         string
		tenant, user core.Policy
	}{
		{"FixedWindow", core.FixedWindow(2000, time.Second), core.FixedWindow(600, time.Second)},
		{"SlidingWindow", core.SlidingWindow(2000, time.Second), core.SlidingWindow(600, time.Second)},
	} {
		for _, rates := range []int{1, 2} {
			for _, demand := range []float64{0.8, 1, 1.2, 3, 10} {
				for _, lease := range []time.Duration{0, time.Second} {
					b.Run(fmt.Sprintf("%s/rates=%d/demand=%v/lease=%v", policy.name, rates, demand, lease), func(b *testing.B) {
						admitted, asked, calls := serve(b, lease, demand, []core.Policy{policy.tenant, policy.user}[:rates])
						b.ReportMetric(0, "ns/op")
						b.ReportMetric(100*float64(admitted)/6000, "%admitted")
						b.ReportMetric(1000*float64(calls)/float64(asked), "calls/1000")
					})
				}
			}
		}
	}
}

func serve(b *testing.B, lease time.Duration, demand float64, policies []core.Policy) (admitted, asked, called int64) {
	const servers, clients, seconds = 4, 8, 3
	address := redistest.Start(b).Addr()
	var counts [3]atomic.Int64 // admitted, asked, calls
	var all sync.WaitGroup
	start := time.Now().Truncate(time.Second).Add(3 * time.Second) // after two windows for getting warm
	for range servers {
		client := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true, MaxRetries: -1})
		b.Cleanup(func() { _ = client.Close() })
		client.AddHook(calls{&counts[2]})
		s, err := redisstore.New(client, redisstore.Config{Lease: lease, Timeout: time.Second, Failure: redisstore.FailClosed})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close(context.Background()) })
		var limiters []*core.Limiter
		for i, p := range policies {
			limiters = append(limiters, core.NewLimiter(s, fmt.Sprint("rate", i), p))
		}
		gap := float64(time.Second) * servers * clients / (2000 * demand)
		for range clients {
			all.Go(func() {
				for next := time.Now(); next.Before(start.Add(seconds * time.Second)); next = next.Add(time.Duration(rand.ExpFloat64() * gap)) {
					<-time.After(time.Until(next))
					charges := []core.Charge{{Limiter: limiters[0], Key: "tenant"}}
					if len(limiters) > 1 {
						charges = append(charges, core.Charge{Limiter: limiters[1], Key: fmt.Sprint("user", rand.IntN(4))})
					}
					d, err := core.AllowAll(context.Background(), charges...)
					if err != nil {
						b.Error(err)
					}
					if now := time.Now(); now.Before(start) || now.After(start.Add(seconds*time.Second)) {
						continue
					}
					if counts[1].Add(1); d.Allowed {
						counts[0].Add(1)
					}
				}
			})
		}
	}
	<-time.After(time.Until(start))
	before := counts[2].Load()
	all.Wait()
	return counts[0].Load(), counts[1].Load(), counts[2].Load() - before
}
