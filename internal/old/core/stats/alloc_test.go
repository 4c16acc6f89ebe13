//go:build !race

package stats_test

import (
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/stats"
)

// TestCountingDoesNotAllocate, neither what is admitted nor what is refused again.
func TestCountingDoesNotAllocate(t *testing.T) {
	s := newStats(t, stats.Config{})
	m := memstore.New(memstore.Config{Observer: s.Observer()})
	admits, refuses := newLimiter(t, m, "api", core.FixedWindow(perAge(1<<40))), newLimiter(t, m, "banned", core.Blocked())
	for _, l := range []*core.Limiter{admits, refuses} {
		if n := testing.AllocsPerRun(1000, func() { allow(t, l, "key", 2) }); n != 0 {
			t.Errorf("%v: %v allocations", l, n)
		}
	}
}
