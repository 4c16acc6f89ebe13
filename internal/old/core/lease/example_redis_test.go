package lease_test

import (
	"context"
	"errors"
	"log"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/redisstore"
)

// Leases over Redis.
func Example_redis() {
	shared, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	store := core.Must(lease.New(shared, lease.Config{}))
	limiter := core.Must(core.New(store, "tenant", core.SlidingWindow(core.PerMinute(60_000))))
	stop := func(ctx context.Context) error {
		return errors.Join(store.Close(ctx), shared.Client().Close())
	}
	_, _ = limiter, stop
}
