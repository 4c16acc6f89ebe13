package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

// Over a real Redis the limit is not exceeded, whoever has leased what. The suite
// of storetest runs over miniredis: it moves the clock of Redis by hand, and a
// lease ends by the clocks of this machine.
func TestRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := context.Background()
	policy := core.FixedWindow(core.Rate{Events: 5000, Per: 400 * 24 * time.Hour})
	var admitted, local atomic.Int64
	ask := func(l *core.Limiter) bool {
		d, err := l.Allow(ctx, "key")
		if err != nil {
			t.Error(err)
			return false
		}
		if d.Allowed {
			admitted.Add(1)
		}
		if d.Source == core.SourceLease {
			local.Add(1)
		}
		return d.Allowed
	}
	open := func() *redisstore.Store {
		s, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{server.Addr()}}, redisstore.Config{Timeout: time.Minute, Failure: redisstore.FailClosed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Client().Close() })
		return s
	}
	limiter := func(s core.Store) *core.Limiter {
		l, err := core.New(s, "api", policy)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	var wait sync.WaitGroup
	var stores []*lease.Store
	for range 3 {
		s, err := lease.New(open(), lease.Config{})
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
		l := limiter(s)
		for range 4 {
			wait.Go(func() {
				for range 500 {
					ask(l)
				}
			})
		}
	}
	wait.Wait()
	for _, s := range stores {
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	alone := limiter(open())
	for ask(alone) { // what was given back
	}
	t.Logf("%d admitted, %d of the decisions from leases", admitted.Load(), local.Load())
	if got := admitted.Load(); got > 5000 {
		t.Errorf("%d were admitted, of 5000", got)
	}
	if local.Load() == 0 {
		t.Error("nothing was leased")
	}
}
