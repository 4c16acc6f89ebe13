package redisrate

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

// After does the same.
func After(client *redis.Client) func(ctx context.Context, user string) (wait time.Duration, err error) {
	store := core.Must(redisstore.New(client, redisstore.Config{}))
	limiter := core.Must(core.New(store, "send", core.TokenBucket(core.PerMinute(60), 60)))
	return func(ctx context.Context, user string) (time.Duration, error) {
		decision, err := limiter.Allow(ctx, user)
		if err != nil {
			return 0, fmt.Errorf("limits: %w", err)
		}
		return decision.RetryAfter, nil // 0 if it is admitted
	}
}
