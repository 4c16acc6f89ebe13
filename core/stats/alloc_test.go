//go:build !race

package stats

import (
	"testing"

	"github.com/headgate/headgate/core"
)

// TestCountingDoesNotAllocate, neither what is admitted nor what is refused again.
func TestCountingDoesNotAllocate(t *testing.T) {
	s := New(Config{})
	m := storeOf(s)
	admits, refuses := newLimiter(t, m, "api", core.FixedWindow(1<<40, age)), newLimiter(t, m, "banned", core.Blocked())
	for _, l := range []*core.Limiter{admits, refuses} {
		if n := testing.AllocsPerRun(1000, func() { allow(t, l, "key", 2) }); n != 0 {
			t.Errorf("%v: %v allocations", l, n)
		}
	}
}
