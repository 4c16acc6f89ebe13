package xtimerate

import (
	"context"
	"time"

	"github.com/headgate/headgate/core"
)

// After does the same, in bounded memory.
func After() func(ctx context.Context, user string) error {
	store := new(core.MemoryStore)
	limiter := core.NewLimiter(store, "work", core.TokenBucket(10, time.Second).Burst(20))
	return func(ctx context.Context, user string) error {
		_, err := limiter.Wait(ctx, user)
		return err
	}
}
