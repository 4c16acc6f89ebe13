//go:build !race

package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/lease"
	"github.com/headgate/headgate/internal/memory"
)

// leased is a store in memory that leases from another in memory.
type leased struct{ backend.Stores }

func (s *leased) Backend() *backend.Stores { return &s.Stores }

func open() *leased {
	s, shared := new(leased), memory.New(0)
	s.Leases = lease.New(shared, shared, time.Minute, time.Second)
	s.Rates = s.Leases
	return s
}

var policies = map[string]core.Policy{
	"FixedWindow":   core.FixedWindow(1<<40, time.Hour),
	"SlidingWindow": core.SlidingWindow(1<<40, time.Hour),
}

// hot returns a limiter of a store after many admissions of a key.
func hot(tb testing.TB, s core.Store, policy core.Policy) *core.Limiter {
	tb.Helper()
	l := core.NewLimiter(s, "api", policy)
	for range 100_000 {
		if d, err := l.Allow(tb.Context(), "key"); err != nil || !d.Allowed {
			tb.Fatal(d, err)
		}
	}
	return l
}

// A hot key takes at most 1.4 times as long as in memory.
func BenchmarkHot(b *testing.B) {
	for name, policy := range policies {
		for where, s := range map[string]core.Store{"memory": new(core.MemoryStore), "lease": open()} {
			b.Run(name+"/"+where, func(b *testing.B) {
				l, ctx := hot(b, s, policy), b.Context()
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if d, err := l.Allow(ctx, "key"); err != nil || !d.Allowed {
							b.Error(d, err)
						}
					}
				})
			})
		}
	}
}

// What a lease covers allocates nothing, and each admission is given back once.
func TestAllocations(t *testing.T) {
	for name, policy := range policies {
		s := open()
		defer s.Leases.Close(context.Background())
		l, ctx := hot(t, s, policy), t.Context()
		var d core.Decision
		if n := testing.AllocsPerRun(1000, func() { d, _ = l.Allow(ctx, "key") }); n != 0 || !d.Allowed {
			t.Errorf("%s: %v allocations, %+v", name, n, d)
		}
		first, second := d.Refund(ctx), d.Refund(ctx)
		again, _ := l.Allow(ctx, "key")
		if first != nil || !errors.Is(second, core.ErrSettled) || again.Remaining != d.Remaining {
			t.Errorf("%v, %v, %d are left, not %d", first, second, again.Remaining, d.Remaining)
		}
	}
}
