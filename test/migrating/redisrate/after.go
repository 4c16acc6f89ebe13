package redisrate

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

// After does the same.
func After(client *redis.Client) func(ctx context.Context, user string) (wait time.Duration, err error) {
	store, err := redisstore.New(client, redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limiter := core.NewLimiter(store, "send", core.TokenBucket(60, time.Minute))
	return func(ctx context.Context, user string) (time.Duration, error) {
		decision, err := limiter.Allow(ctx, user)
		if err != nil {
			return 0, fmt.Errorf("limits: %w", err)
		}
		return decision.RetryAfter, nil // 0 if it is admitted
	}
}
