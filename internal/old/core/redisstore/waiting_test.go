package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// BenchmarkWaiting is how fast three processes get what they wait for, of a limit of 50 a
// second, and with how many calls to Redis. Run it with -benchtime 500x.
func BenchmarkWaiting(b *testing.B) {
	const processes = 3
	for _, p := range []core.Policy{
		core.SlidingLog(core.PerSecond(50)),
		core.TokenBucket(core.PerSecond(50), 1),
		core.TokenBucket(core.PerSecond(50), 10),
	} {
		for _, workers := range []int{1, 10} {
			b.Run(fmt.Sprint(p, "/workers=", workers), func(b *testing.B) {
				server := redistest.Start(b)
				var calls, begun atomic.Int64
				var limiters []*core.Limiter
				for range processes {
					s := open(b, Config{Observer: &core.Observer{Called: func(core.CallEvent) { calls.Add(1) }}}, server.Addr())
					limiters = append(limiters, newLimiter(b, s, "outgoing", p))
				}
				for _, l := range limiters { // what the first admits at once is not counted
					for allow(b, l, "key", 1).Allowed {
					}
				}
				calls.Store(0)
				var all sync.WaitGroup
				b.ResetTimer()
				for _, l := range limiters {
					for range workers {
						all.Go(func() {
							for begun.Add(1) <= int64(b.N) {
								if _, err := l.Wait(b.Context(), "key"); err != nil {
									b.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "admitted/s")
				b.ReportMetric(float64(calls.Load())/float64(b.N), "calls/op")
			})
		}
	}
}
