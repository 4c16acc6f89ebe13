package lease

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/storetest"
)

// The contract holds over a store in Redis, except for what is said in left. The suite moves the
// clock, so that of Redis and those of this process are moved together: miniredis lets a test do so.
// It reads the script anew with each call, so tests of thousands of calls are left to TestStore,
// which runs them over a memstore.
func TestStoreOverRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const long = "takes thousands of calls: see TestStore"
	left := map[string]string{
		"DecidesAsTheStepsDo":               "compares every number with what the store would say",
		"LongAfterNothingStays":             long,
		"PeekTellsWhatAllowWould":           long,
		"RefusedUntilRetryAfterAndNoLonger": long,
		"SideBySideNeverMore":               long,
	}
	var clock atomic.Int64 // microseconds
	clock.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	var servers []*miniredis.Miniredis
	var stores []*Store
	operations := 100
	if testing.Short() {
		operations = 50
	}
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T, o *core.Observer) core.Store {
			server := miniredis.RunT(t)
			server.SetTime(time.UnixMicro(clock.Load()))
			servers = append(servers, server)
			shared := overMiniredis(t, server.Addr(), o)
			s, err := New(shared, Config{})
			if err != nil {
				t.Fatal(err)
			}
			s.now = func() instant { return instant{clock.Load() * 1000, clock.Load() * 1000} }
			stores = append(stores, s)
			t.Cleanup(func() {
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
			return s
		},
		Now: clock.Load,
		Advance: func(d time.Duration) {
			now := time.UnixMicro(clock.Add(d.Microseconds()))
			for _, server := range servers {
				server.SetTime(now)
			}
			for _, s := range stores { // what the timer does
				s.endOver(s.now())
				s.drop(s.now())
				_ = s.send(context.Background())
			}
		},
		Around: func(t *testing.T, body func(*testing.T)) {
			for name, why := range left {
				if strings.HasSuffix(t.Name(), "/"+name) {
					t.Skip(why)
				}
			}
			servers, stores = nil, nil
			body(t)
		},
		Operations: operations,
	})
}
