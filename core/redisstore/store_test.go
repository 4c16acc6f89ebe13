package redisstore

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/storetest"
	"github.com/headgate/headgate/internal/redistest"
)

func TestStore(t *testing.T) {
	server := redistest.Start(t)
	t.Run("Redis", func(t *testing.T) {
		atInstants(t, 0, func(t *testing.T) *Store {
			server.Flush()
			return open(t, Config{MemoryFor: -1}, server.Addr())
		})
	})
	t.Run("miniredis", func(t *testing.T) {
		atInstants(t, 200, func(t *testing.T) *Store {
			return open(t, Config{MemoryFor: -1}, miniredis.RunT(t).Addr())
		})
	})
	// And a Cluster, in TestCluster.
}

// atInstants runs the suite with a store that is told the instant.
func atInstants(t *testing.T, operations int, empty func(t *testing.T) *Store) {
	c := handClock()
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T) core.Store {
			s := empty(t)
			c.tell(s)
			return s
		},
		Now:        c.now,
		Advance:    func(d time.Duration) { c.move(d.Microseconds()) },
		Operations: operations,
	})
}
