package lease_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/lease"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A counter counts the calls of a store.
type counter struct {
	core.Store

	calls atomic.Int64
}

func (c *counter) Ask(ctx context.Context, q *store.Question) error {
	c.calls.Add(1)
	return c.Store.Ask(ctx, q)
}

// A hot key takes few calls of the store that all servers share.
func Example() {
	ctx := context.Background()
	shared := &counter{Store: memstore.New(memstore.Config{})} // stands for one in Redis
	leased, err := lease.New(shared, lease.Config{For: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := leased.Close(ctx); err != nil {
			log.Print(err)
		}
	}()
	limiter, err := core.New(leased, "tenant", core.FixedWindow(core.Rate{Events: 1000, Per: 400 * 24 * time.Hour}))
	if err != nil {
		log.Fatal(err)
	}
	admitted := 0
	for range 2000 {
		d, err := limiter.Allow(ctx, "tenant-7")
		if err != nil {
			log.Fatal(err)
		}
		if d.Allowed {
			admitted++
		}
	}
	fmt.Println(admitted, "of 2000 were admitted, with fewer than 100 calls:", shared.calls.Load() < 100)
	// Output: 1000 of 2000 were admitted, with fewer than 100 calls: true
}
