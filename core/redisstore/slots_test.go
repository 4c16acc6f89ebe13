package redisstore

import (
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/storetest"
	"github.com/headgate/headgate/internal/redistest"
)

func TestSlots(t *testing.T) {
	server := redistest.Start(t)
	t.Run("Redis", func(t *testing.T) {
		slotSuite(t, func(t *testing.T) []string {
			server.Flush()
			return []string{server.Addr()}
		})
	})
	t.Run("miniredis", func(t *testing.T) {
		slotSuite(t, func(t *testing.T) []string { return []string{miniredis.RunT(t).Addr()} })
	})
	// And a Cluster, in TestCluster.
}

// slotSuite runs the contract. What a process releases is stated in the background, and
// refusals are remembered for a moment: so others wait.
func slotSuite(t *testing.T, empty func(t *testing.T) (addrs []string)) {
	storetest.RunSlots(t, storetest.SlotHarness{
		New: func(t *testing.T) func() core.SlotStore {
			addrs := empty(t)
			return func() core.SlotStore { return open(t, Config{Failure: FailClosed}, addrs...) }
		},
		Eventually: func(t *testing.T, what string, holds func() bool) {
			t.Helper()
			eventually(t, what, holds)
		},
	})
}
