package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
	"github.com/headgate/headgate/internal/redistest"
)

// A charge that was admitted.
type admission struct {
	at  int64
	old bool
}

// While a release with other numbers is rolled out, servers of both charge a key. Each admission keeps the
// promise of its own numbers, over all that was admitted. Together they may admit more than the larger,
// but never more than both would, each alone: 180 in ten seconds here, of at most 200.
func TestNumbersAreRolledOut(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const second, short, long = int64(1_000_000), 2_000_000, 10_000_000
	for _, of := range []struct {
		name  string
		kind  func(core.Rate) core.Policy
		most  int // in any ten seconds
		found int
	}{
		{"SlidingLog", core.SlidingLog, 100 + 100, 180},
		{"FixedWindow", core.FixedWindow, 6*20 + 2*100, 240}, // ten seconds touch six windows of two, and two of ten
	} {
		clock := handClock()
		s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, redistest.Start(t).Addr())
		clock.tell(s)
		for _, s := range []core.Store{reference.New(clock.now), s} {
			t.Run(fmt.Sprintf("%s, %T", of.name, s), func(t *testing.T) {
				before := newLimiter(t, s, "api", of.kind(per(20, 2*time.Second)))
				after := newLimiter(t, s, "api", of.kind(per(100, 10*time.Second)))
				var all []admission
				for tick := range 600 { // a minute, at full load; the new servers come in first or last
					for i := range 2 {
						old := (i == 0) == (tick%7 > 2)
						l := after
						if old {
							l = before
						}
						for allow(t, l, "k", 1).Allowed {
							all = append(all, admission{clock.now(), old})
						}
					}
					clock.move(second / 10)
				}
				most := 0
				for i, a := range all {
					if of.name == "SlidingLog" {
						limit, span := 100, int64(long)
						if a.old {
							limit, span = 20, short
						}
						if n := since(all[:i+1], a.at-span); n > limit {
							t.Fatalf("%d of %d in %v", n, limit, time.Duration(span)*time.Microsecond)
						}
					}
					most = max(most, since(all[:i+1], a.at-long))
				}
				if most > of.most || most < of.found {
					t.Errorf("%d in ten seconds, at most are %d, and at least %d were found", most, of.most, of.found)
				}
			})
		}
	}
}

// since counts what was admitted after an instant.
func since(all []admission, instant int64) int {
	i, _ := slices.BinarySearchFunc(all, instant, func(a admission, instant int64) int {
		if a.at > instant {
			return 1
		}
		return -1
	})
	return len(all) - i
}

// A change of the limit alone admits no more than the larger, however it is rolled out.
func TestLimitsAreRolledOut(t *testing.T) {
	s, clock := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, redistest.Start(t).Addr()), handClock()
	clock.tell(s)
	for name, of := range map[string]func(core.Rate) core.Policy{"SlidingLog": core.SlidingLog, "FixedWindow": core.FixedWindow} {
		before, after := newLimiter(t, s, name, of(per(20, time.Hour))), newLimiter(t, s, name, of(per(100, time.Hour)))
		n := int64(0)
		for i := range 300 {
			n += admitted(t, []*core.Limiter{before, after}[i%2], "k", 1)
		}
		if n != 100 {
			t.Errorf("%s: %d admitted, want 100", name, n)
		}
	}
}
