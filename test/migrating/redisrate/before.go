// Package redisrate is a program with go-redis/redis_rate, and the same with headgate.
package redisrate

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

// Before returns a function that says whether a user may send a message, and if not, when.
func Before(client *redis.Client) func(ctx context.Context, user string) (wait time.Duration, err error) {
	limiter := redis_rate.NewLimiter(client)
	return func(ctx context.Context, user string) (time.Duration, error) {
		result, err := limiter.Allow(ctx, "send:"+user, redis_rate.PerMinute(60))
		if err != nil {
			return 0, fmt.Errorf("limits: %w", err)
		}
		if result.Allowed == 0 {
			return result.RetryAfter, nil
		}
		return 0, nil
	}
}
