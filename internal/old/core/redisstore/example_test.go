package redisstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/redisstore"
)

func ExampleOpenURL() {
	store, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Client().Close()

	limiter, err := core.New(store, "api", core.SlidingLog(core.PerMinute(60)))
	if err != nil {
		log.Fatal(err)
	}
	d, err := limiter.Allow(context.Background(), "user-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Allowed, d.Source)
}

// A Cluster, by some of its servers.
func ExampleOpen() {
	store, err := redisstore.Open(&redis.UniversalOptions{
		Addrs: []string{"redis-0:6379", "redis-1:6379"},
	}, redisstore.Config{Failure: redisstore.FailLocal, Servers: 4})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Client().Close()
}

// At the start, and when something changes.
func ExampleStore_Check() {
	store, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{
		Observer: &core.Observer{Changed: func(err error) {
			log.Printf("limits without Redis: %v", err) // nil: it is back
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	report, err := store.Check(context.Background())
	if err != nil || !report.OK() {
		log.Printf("%v\n%v", err, report) // it need not keep the service from starting
	}
}
