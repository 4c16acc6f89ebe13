package redisstore

import (
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/storetest"
	"github.com/headgate/headgate/internal/redistest"
)

// The store's clock is an instant that the test moves.
func TestStore(t *testing.T) {
	server := redistest.Start(t)
	now := time.Now().UnixMicro()
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T) core.Store {
			server.Flush()
			s := open(t, Config{MemoryFor: -1}, server.Addr())
			s.instant = func() string { return strconv.FormatInt(now, 10) }
			return s
		},
		Now:     func() int64 { return now },
		Advance: func(d time.Duration) { now += d.Microseconds() },
	})
}
