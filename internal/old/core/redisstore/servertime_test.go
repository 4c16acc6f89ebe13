package redisstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// BenchmarkServerTime reports the processor time that Redis takes for a decision: with as many
// plans as there are, in calls of one question, of 8 and of 64. Every key has one plan. Keys are drawn at
// random. Most are in use; those of "once" are new to the server, until 100,000 have been charged.
func BenchmarkServerTime(b *testing.B) {
	shapes := []struct {
		name string
		used int64 // units of each key before
		plan func(i int64) []core.Policy
	}{
		{"once", 0, func(i int64) []core.Policy { return []core.Policy{core.TokenBucket(core.PerHour(1000+i), 1000+i)} }},
		{"bucket", 100, func(i int64) []core.Policy { return []core.Policy{core.TokenBucket(core.PerHour(1000+i), 1_000_000+i)} }},
		{"window", 100, func(i int64) []core.Policy { return []core.Policy{core.FixedWindow(core.PerDay(1_000_000 + i))} }},
		{"sliding", 100, func(i int64) []core.Policy { return []core.Policy{core.SlidingWindow(core.PerDay(1_000_000 + i))} }},
		{"log60", 1, func(i int64) []core.Policy {
			return []core.Policy{core.SlidingLog(core.Rate{Events: 60, Per: time.Duration(1000+i) * time.Second})}
		}},
		{"bucket+window", 100, func(i int64) []core.Policy {
			return []core.Policy{
				core.TokenBucket(core.PerHour(1000+i), 1_000_000+i).Named("bucket"),
				core.FixedWindow(core.PerDay(1_000_000 + i)).Named("day"),
			}
		}},
		{"window+window", 100, func(i int64) []core.Policy {
			return []core.Policy{
				core.FixedWindow(core.PerHour(1_000_000 + i)).Named("hour"),
				core.FixedWindow(core.PerDay(1_000_000 + i)).Named("day"),
			}
		}},
	}
	server := redistest.Start(b)
	defer server.Do("SHUTDOWN") // so that valgrind says what it counted, in scripts/instructions
	s := open(b, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	for _, shape := range shapes {
		for _, plans := range []int64{1, 3, 1000} {
			var limiters []*store.Limiter
			first := newLimiter(b, s, shape.name, shape.plan(0)...)
			for i := range plans {
				limiters = append(limiters, with(b, first, shape.plan(i)...).Prepared())
			}
			for _, size := range []int{1, 8, 64} {
				if size < 64 && plans > 1 {
					continue
				}
				b.Run(fmt.Sprintf("%s/plans=%d/questions=%d", shape.name, plans, size), func(b *testing.B) {
					server.Flush()
					batch := make([]*question, size)
					for i := range batch {
						batch[i] = &question{Question: store.Question{Charges: make([]store.Charge, 1)}}
					}
					drawn := 10_000
					if shape.used == 0 {
						drawn = 100_000
					}
					order, next, units := rand.New(rand.NewPCG(1, 1)).Perm(drawn), 0, shape.used
					ask := func() {
						for _, q := range batch {
							next = (next + 1) % drawn
							client := order[next]
							q.Charges[0] = store.Charge{Limiter: limiters[client%len(limiters)], Key: fmt.Sprintf("client-%09d", client), N: units}
						}
						if err, _ := s.backend.Ask(b.Context(), batch); err != nil || batch[0].Err != nil || !batch[0].Result.Allowed {
							b.Fatal(err, batch[0].Err, batch[0].Result)
						}
					}
					for range drawn/size + 1 {
						if shape.used > 0 {
							ask()
						}
					}
					units = 1
					before := server.CPU()
					for b.Loop() {
						ask()
					}
					b.ReportMetric(float64((server.CPU()-before).Nanoseconds())/float64(b.N*size), "server-ns/decision")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
