package redisstore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/storetest"
	"github.com/headgate/headgate/internal/redistest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	operations := 500 // TestDecisionsAreThoseOfTheSteps has many more
	if testing.Short() {
		operations = 200
	}
	atInstants(t, operations, nil, plain, func(t *testing.T, o *core.Observer) *Store {
		server.Flush()
		return open(t, Config{RefusalTTL: -1, Observer: o}, server.Addr())
	})
	// And a Cluster, in TestCluster.
}

func TestStoreOverMiniredis(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	t.Parallel()
	atInstants(t, 20, withoutLong, embedded, func(t *testing.T, o *core.Observer) *Store {
		return open(t, Config{RefusalTTL: -1, Observer: o}, miniredis.RunT(t).Addr())
	})
}

// long are the tests that take miniredis seconds each. TestStore has them too.
var long = []string{
	"LongAfterNothingStays", "ClockFlaps", "RefusedUntilRetryAfterAndNoLonger", "PeekTellsWhatAllowWould", "SideBySideNeverMore",
	"AllOfTheFreeUnitsAreGranted", "ExactWhileSomeGiveBack", "ClockStepsBack", "ReportCountsWhatHasHappened", "ExactUnderConcurrency", "ExactWithReports",
}

// withoutLong leaves these tests out.
func withoutLong(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if _, name, _ := strings.Cut(t.Name(), "/"); !slices.Contains(long, name) {
		body(t)
	}
}

func plain(s *Store) core.Store { return s }

// embedded is a layer that replaces nothing.
func embedded(s *Store) core.Store { return &struct{ core.Store }{s} }

// atInstants runs the suite with a store that is told the instant.
func atInstants(t *testing.T, operations int, around func(t *testing.T, body func(t *testing.T)), layer func(*Store) core.Store, empty func(t *testing.T, o *core.Observer) *Store) {
	c := handClock()
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T, o *core.Observer) core.Store {
			s := empty(t, o)
			c.tell(s)
			return layer(s)
		},
		Now:        c.now,
		Advance:    func(d time.Duration) { c.move(d.Microseconds()) },
		Back:       func(d time.Duration) { c.move(-d.Microseconds()) },
		Operations: operations,
		Around:     around,
	})
}
