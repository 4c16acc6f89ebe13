package stats

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
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
			s := New(Config{})
			o := s.Observer().Backend(nil)
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
			s := New(Config{Logger: slog.New(slog.DiscardHandler)})
			o := s.Observer().Backend(nil)
			ctx, i := context.Background(), 0
			e := store.DecisionEvent{Limiter: "api", Policy: "minute", Units: 1, Source: step.SourceStore}
			b.ReportAllocs()
			for b.Loop() {
				e.Key = hidden.Of(keys[i])
				o.Decided(ctx, e)
				if i++; i == most {
					i = 0
				}
			}
		})
	}
}

// BenchmarkObserved is a decision in memory about one key, with and without observers.
func BenchmarkObserved(b *testing.B) {
	told := &core.Observer{Decided: func(context.Context, core.DecisionEvent) {}}
	for _, of := range []struct {
		name      string
		observers []*core.Observer
	}{
		{"nobody", nil},
		{"released", []*core.Observer{{Released: func(string) {}}}},
		{"decided", []*core.Observer{told}},
		{"stats", []*core.Observer{New(Config{}).Observer()}},
		{"both", []*core.Observer{New(Config{}).Observer(), told}},
	} {
		for result, policies := range map[string][]core.Policy{
			"admitted": {core.FixedWindow(1<<40, time.Hour)},
			"refused":  {core.FixedWindow(1, 400*24*time.Hour)},
			"two":      {core.FixedWindow(1<<40, time.Hour).Named("hour"), core.FixedWindow(1<<40, 24*time.Hour).Named("day")},
		} {
			b.Run(of.name+"/"+result, func(b *testing.B) {
				l, ctx := core.NewLimiter(&core.MemoryStore{Observers: of.observers}, "api", policies...), b.Context()
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.Allow(ctx, "key"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
