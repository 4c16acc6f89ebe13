package shop

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/core/redisstore"
)

// TestRedis: decisions are made as of the time of Redis, which miniredis lets a test set.
func TestRedis(t *testing.T) {
	server := miniredis.RunT(t)
	store, err := redisstore.Open("redis://"+server.Addr()+"/0", redisstore.Config{
		Failure:    redisstore.FailClosed, // a test should not pass because Redis was away
		Timeout:    10 * time.Second,      // nor fail because the machine was busy
		RefusalTTL: -1,                    // remembered refusals end by the time of the process
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	send := client(t, store)
	start := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		after              time.Duration
		requests, admitted int
	}{
		{0, 61, 60},
		{time.Minute - time.Microsecond, 1, 0},
		{time.Minute, 61, 60},
	} {
		server.SetTime(start.Add(step.after))
		admitted := 0
		for range step.requests {
			if send("ann").Code == 200 {
				admitted++
			}
		}
		if admitted != step.admitted {
			t.Errorf("after %v: %d of %d requests were admitted, want %d", step.after, admitted, step.requests, step.admitted)
		}
	}
}
