package lease_test

import (
	"context"
	"errors"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/lease"
	"github.com/headgate/headgate/core/redisstore"
)

// Leases over Redis.
func Example_redis() {
	shared, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{"localhost:6379"}}, redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := lease.New(shared, lease.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := core.New(store, "tenant", core.SlidingWindow(core.PerMinute(60_000)))
	if err != nil {
		log.Fatal(err)
	}
	stop := func(ctx context.Context) error {
		return errors.Join(store.Close(ctx), shared.Client().Close())
	}
	_, _ = limiter, stop
}
