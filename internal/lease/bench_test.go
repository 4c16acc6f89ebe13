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
type leased struct{ backend.Store }

func (s *leased) Backend() *backend.Store { return &s.Store }

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

// A hot key takes at most 1.4 times as long as in memory.
func BenchmarkHot(b *testing.B) {
	for name, policy := range policies {
		for _, where := range []string{"memory", "lease"} {
			for _, parallel := range []string{"", "/parallel"} {
				b.Run(name+"/"+where+parallel, func(b *testing.B) {
					store := core.Store(new(core.MemoryStore))
					if where == "lease" {
						s := open()
						defer s.Leases.Close(context.Background())
						store = s
					}
					l, ctx := core.NewLimiter(store, "api", policy), b.Context()
					for range 100_000 {
						_, _ = l.Allow(ctx, "key")
					}
					ask := func() {
						if d, err := l.Allow(ctx, "key"); err != nil || !d.Allowed {
							b.Error(d, err)
						}
					}
					b.ReportAllocs()
					b.ResetTimer()
					if parallel == "" {
						for range b.N {
							ask()
						}
						return
					}
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							ask()
						}
					})
				})
			}
		}
	}
}

// What a lease covers allocates nothing, nor does a refusal that holds; a refund puts units back where they came from.
func TestAllocations(t *testing.T) {
	for name, policy := range policies {
		s := open()
		defer s.Leases.Close(context.Background())
		l, ctx := core.NewLimiter(s, "api", policy), t.Context()
		for range 100_000 {
			_, _ = l.Allow(ctx, "key")
		}
		var d core.Decision
		if n := testing.AllocsPerRun(1000, func() {
			var err error
			if d, err = l.Allow(ctx, "key"); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if err := d.Refund(ctx); err != nil {
			t.Error(err)
		}
		if err := d.Refund(ctx); !errors.Is(err, core.ErrSettled) {
			t.Error(err)
		}
		again, _ := l.Allow(ctx, "key")
		if again.Remaining != d.Remaining {
			t.Errorf("%d are left, not %d", again.Remaining, d.Remaining)
		}
	}
}
