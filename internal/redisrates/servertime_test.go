package redisrates

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

// BenchmarkServerTime reports the processor time that Redis takes for a decision: with as many plans as there are, in
// calls of one question, of 8 and of 64. Keys are charged once before, or are new to the server, and are drawn in random
// order.
func BenchmarkServerTime(b *testing.B) {
	day := 24 * time.Hour
	shapes := []struct {
		name  string
		drawn int
		plan  func(i int64) []step.Numbers
	}{
		{"once", 100_000, func(i int64) []step.Numbers { return []step.Numbers{bucket(1000+i, day)} }},
		{"bucket", 10_000, func(i int64) []step.Numbers { return []step.Numbers{bucket(1000+i, day)} }},
		{"window", 10_000, func(i int64) []step.Numbers { return []step.Numbers{fixed(1_000_000+i, day)} }},
		{"calendar", 10_000, func(i int64) []step.Numbers {
			return []step.Numbers{{Kind: step.Calendar, Limit: 1_000_000 + i, Period: step.Day, Zone: "Europe/Berlin"}}
		}},
		{"sliding", 10_000, func(i int64) []step.Numbers { return []step.Numbers{sliding(1_000_000+i, day)} }},
		{"log60", 10_000, func(i int64) []step.Numbers {
			return []step.Numbers{logOf(60, time.Duration(1000+i)*time.Second)}
		}},
		{"bucket+window", 10_000, func(i int64) []step.Numbers {
			return []step.Numbers{bucket(1000+i, day), fixed(1_000_000+i, day)}
		}},
	}
	server := redistest.Start(b)
	defer server.Do("SHUTDOWN") // so that valgrind says what it counted, in scripts/instructions
	s := open(b, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	for _, shape := range shapes {
		for _, plans := range []int64{1, 1000} {
			var limiters [][]step.Policy
			for i := range plans {
				limiters = append(limiters, s.limiter(b, shape.name, shape.plan(i)...))
			}
			for _, size := range []int{1, 8, 64} {
				if size < 64 && plans > 1 {
					continue
				}
				b.Run(fmt.Sprintf("%s/plans=%d/questions=%d", shape.name, plans, size), func(b *testing.B) {
					server.Flush()
					batch := make([]*question, size)
					order, next := rand.New(rand.NewPCG(1, 1)).Perm(shape.drawn), 0
					ask := func() {
						for i := range batch {
							next = (next + 1) % shape.drawn
							client := order[next]
							batch[i] = &question{cells: cells(limiters[client%len(limiters)], fmt.Sprintf("client-%09d", client), 1)}
						}
						if err, _ := s.script.run(time.Now().Add(time.Minute), batch); err != nil || !batch[0].allowed {
							b.Fatal(err, batch[0])
						}
					}
					for range shape.drawn/size + 1 {
						if shape.drawn < 100_000 {
							ask()
						}
					}
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
