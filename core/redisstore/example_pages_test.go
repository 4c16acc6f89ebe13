package redisstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
)

func ExampleOpen() {
	store, err := redisstore.Open("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close(context.Background())

	limiter := core.NewLimiter(store, "api", core.SlidingLog(60, time.Minute))
	d, err := limiter.Allow(context.Background(), "user-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Allowed, d.Degraded) // Degraded: Redis is away
}

// A Redis is checked at the start, and its absence is logged later.
func ExampleStore_Check() {
	store, err := redisstore.Open("redis://localhost:6379/0", redisstore.Config{
		Observers: []*core.Observer{{Changed: func(err error) {
			log.Printf("limits without Redis: %v", err) // nil: it is back
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Check(context.Background()); err != nil {
		log.Print(err) // it need not keep the service from starting
	}
}

// Hot keys are decided in memory; the limit of the fleet still holds.
func ExampleConfig_lease() {
	store, err := redisstore.Open("redis://localhost:6379/0", redisstore.Config{Lease: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close(context.Background()) // gives back what is leased
	limiter := core.NewLimiter(store, "tenant", core.SlidingWindow(60_000, time.Minute))
	fmt.Println(limiter.Name())
}
