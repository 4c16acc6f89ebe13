package xtimerate

import (
	"context"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
)

// After does the same, in bounded memory.
func After() func(ctx context.Context, user string) error {
	store := memstore.New(memstore.Config{})
	limiter := core.Must(core.New(store, "work", core.TokenBucket(core.PerSecond(10), 20)))
	return func(ctx context.Context, user string) error {
		_, err := limiter.Wait(ctx, user)
		return err
	}
}
