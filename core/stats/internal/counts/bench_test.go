package counts_test

import (
	"context"
	"log/slog"
	"strconv"
	"testing"

	"github.com/headgate/headgate/core/stats/internal/counts"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// BenchmarkDecided reports what it takes to count a decision that was made, beside an observer
// that does nothing.
func BenchmarkDecided(b *testing.B) {
	b.Run("Nothing", func(b *testing.B) {
		o := &store.Observer{Decided: func(context.Context, store.DecisionEvent) {}}
		e := store.DecisionEvent{Limiter: "limiter", Policy: "minute", Units: 1, Allowed: true, Source: step.SourceStore}
		for b.Loop() {
			o.Decided(context.Background(), e)
		}
	})
	for _, limiters := range []int{1, 20, 1000} {
		b.Run(strconv.Itoa(limiters), func(b *testing.B) {
			s := newStats(b, counts.Config{})
			o := s.Observer()
			var events []store.DecisionEvent
			for i := range limiters {
				e := store.DecisionEvent{Limiter: "limiter " + strconv.Itoa(i), Policy: "minute", Units: 1, Allowed: true, Source: step.SourceStore}
				o.Decided(context.Background(), e)
				events = append(events, e)
			}
			ctx, i := context.Background(), 0
			b.ReportAllocs()
			for b.Loop() {
				o.Decided(ctx, events[i])
				if i++; i == limiters {
					i = 0
				}
			}
		})
	}
}

// BenchmarkRefused reports what it takes to count a refusal and its key: of one key, and of a
// new one each time.
func BenchmarkRefused(b *testing.B) {
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = "user-" + strconv.Itoa(i)
	}
	for name, most := range map[string]int{"OneKey": 1, "NewKeys": len(keys)} {
		b.Run(name, func(b *testing.B) {
			s := newStats(b, counts.Config{Logger: slog.New(slog.DiscardHandler)})
			o := s.Observer()
			ctx, i := context.Background(), 0
			e := store.DecisionEvent{Limiter: "api", Policy: "minute", Units: 1, Source: step.SourceStore}
			b.ReportAllocs()
			for b.Loop() {
				o.Refused(ctx, e, keys[i])
				o.Decided(ctx, e)
				if i++; i == most {
					i = 0
				}
			}
		})
	}
}
