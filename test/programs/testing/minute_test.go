package shop

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

// TestMinute: 61 requests in a minute are one too many, and a minute later they are not.
func TestMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which time passes when all goroutines wait
		send := client(t, new(core.MemoryStore))
		for _, step := range []struct {
			wait               time.Duration // before the requests
			user               string
			requests, admitted int
		}{
			{0, "ann", 61, 60},
			{0, "ben", 1, 1}, // who has a limit of his own
			{30 * time.Second, "ann", 1, 0},
			{30*time.Second - time.Microsecond, "ann", 1, 0},
			{time.Microsecond, "ann", 61, 60},
		} {
			time.Sleep(step.wait) // takes no time
			admitted := 0
			for range step.requests {
				if send(step.user).Code == 200 {
					admitted++
				}
			}
			if admitted != step.admitted {
				t.Errorf("after %v: %d of %d requests of %s were admitted, want %d", step.wait, admitted, step.requests, step.user, step.admitted)
			}
		}
	})
}
