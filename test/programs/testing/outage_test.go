package shop

import (
	"context"
	"testing"

	"github.com/headgate/headgate/core/redisstore"
)

// TestOutage: without Redis, requests are answered as the service promises. Nothing listens on port 1.
func TestOutage(t *testing.T) {
	for failure, status := range map[redisstore.Failure]int{
		redisstore.FailClosed: 503,
		redisstore.FailLocal:  200, // each process counts by itself
		redisstore.FailOpen:   200,
	} {
		store, err := redisstore.Open("redis://127.0.0.1:1/0", redisstore.Config{Failure: failure})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close(context.Background()) })
		w := client(t, store)("ann")
		if w.Code != status {
			t.Errorf("%v: status %d, want %d", failure, w.Code, status)
		}
		if status == 503 && w.Header().Get("Retry-After") != "5" {
			t.Errorf("%v: Retry-After %q", failure, w.Header().Get("Retry-After"))
		}
	}
}
