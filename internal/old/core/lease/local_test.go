package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// An outage is a store that decides by itself while its servers are away, as redisstore does.
type outage struct {
	*memstore.Store

	local *memstore.Store
	away  atomic.Bool
}

func (o *outage) Prepare(l *store.Limiter) error {
	if err := o.local.Prepare(l); err != nil {
		return err
	}
	return o.Store.Prepare(l)
}

func (o *outage) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode == store.Settle {
		for i, c := range q.Charges {
			of := o.Store
			if c.Source == store.SourceLocal {
				of = o.local
			}
			one := store.Question{Mode: store.Settle, Charges: []store.Charge{c}}
			if err := of.Ask(ctx, &one); err != nil {
				return err
			}
			q.Charges[i].Uncovered = one.Charges[0].Uncovered
		}
		return nil
	}
	if !o.away.Load() {
		return o.Store.Ask(ctx, q)
	}
	err := o.local.Ask(ctx, q)
	q.Result.Source = store.SourceLocal
	return err
}

// What leases cover is not joined with what was decided without the store: units would go back to where
// they were never charged.
func TestLeasesAndAnOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := &outage{Store: memstore.New(memstore.Config{}), local: memstore.New(memstore.Config{})}
		s, err := New(shared, Config{})
		if err != nil {
			t.Fatal(err)
		}
		policy := core.FixedWindow(core.PerDay(1000))
		hot, cold := named(t, s, "hot", policy), named(t, s, "cold", policy)
		for range 300 {
			time.Sleep(time.Millisecond)
			if _, err := hot.Allow(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		shared.away.Store(true)
		beside, err := hot.AllowN(t.Context(), "another", 1)
		if err != nil || beside.Source != core.SourceLocal {
			t.Fatal(beside, err)
		}
		direct := named(t, shared.local, "hot", policy)
		if _, err := direct.AllowN(t.Context(), key, 300); err != nil {
			t.Fatal(err)
		}
		before := remaining(t, direct)
		d := together(t, core.Charge{Limiter: hot, Key: key, N: 5}, core.Charge{Limiter: cold, Key: key, N: 1})
		if !d.Allowed || d.Source != core.SourceLocal {
			t.Fatal(d, d.Source)
		}
		if got := remaining(t, direct); got != before-5 {
			t.Errorf("%d are left locally, want %d", got, before-5)
		}
		if err := d.Refund(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := remaining(t, direct); got != before {
			t.Errorf("%d are left locally after a refund, want %d", got, before)
		}
		shared.away.Store(false)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := remaining(t, named(t, shared.Store, "hot", policy)); got != 700 {
			t.Errorf("%d are left in the store, want 700", got)
		}
	})
}
