package redisdoc_test

import (
	"context"
	"log"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
)

// The limits of a document in Redis, which headgate push writes.
func ExampleOpen() {
	store, err := redisstore.Open("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	book, err := redisdoc.Open(context.Background(), store, store.Client(), "headgate-limits", limits.Config{
		Initial: []byte(`{"limits": {"api": {"plans": {"free": "sliding-log 60/minute"}}}}`), // until Redis has one
	})
	if err != nil {
		log.Fatal(err)
	}
	defer book.Close()
}
