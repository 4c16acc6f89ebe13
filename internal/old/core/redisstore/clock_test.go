package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// Check reports a clock that is off, that of a replica too.
func TestCheckReportsClocks(t *testing.T) {
	master := redistest.StartWithClock(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := redistest.StartWithClock(t, "replicaof "+host+" "+port)
	s := open(t, Config{}, master.Addr())
	eventually(t, "the replica to be known", func() bool {
		r, err := s.Check(t.Context())
		return err == nil && r.OK() && len(r.Servers) == 2 && !r.Servers[0].Replica &&
			r.Servers[1].Replica && r.Servers[1].Address == replica.Addr()
	})
	for _, off := range []time.Duration{5 * time.Second, -5 * time.Second} {
		for _, server := range []*redistest.Server{master, replica} {
			server.SetClock(off)
			r, err := s.Check(t.Context())
			if err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "the clock of "+server.Addr()) ||
				strings.Contains(r.Problems[0], "ahead") != (off > 0) {
				t.Errorf("%v, %v: %v", off, err, r)
			}
			server.SetClock(0)
		}
	}
	replica.Kill()
	r, err := s.Check(t.Context())
	if err != nil || len(r.Servers) == 2 {
		t.Errorf("%v: %v", err, r)
	}
}

// The clock of a real server steps far ahead for a moment, twice. Each time one quota more is
// admitted; then the clock is right, and keys wait for a period, not until it has caught up.
func TestServerClockSteps(t *testing.T) {
	const day, ahead = 24 * time.Hour, 100 * 24 * time.Hour
	rate := core.Rate{Events: 3, Per: 30 * day} // no window ends during the test
	for name, p := range map[string]core.Policy{
		"TokenBucket":   core.TokenBucket(rate, 3),
		"FixedWindow":   core.FixedWindow(rate),
		"FromFirst":     core.FixedWindow(rate).FromFirst(),
		"SlidingWindow": core.SlidingWindow(rate),
		"SlidingLog":    core.SlidingLog(rate),
		"long log":      core.SlidingLog(core.Rate{Events: 100, Per: 30 * day}),
		"MinInterval":   core.MinInterval(30 * day),
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.StartWithClock(t)
			s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
			l, most := newLimiter(t, s, "api", p), max(p.Limit(), 1)
			for i := range 2 {
				if n := admitted(t, l, "key", int(most)+1); i == 0 && n != most || i > 0 && n != 0 {
					t.Errorf("%d units after %d steps", n, i)
				}
				server.SetClock(ahead)
				if n := admitted(t, l, "key", int(most)+1); n != most {
					t.Errorf("%d units with the clock ahead, want %d", n, most)
				}
				server.SetClock(0)
			}
			d := allow(t, l, "key", 1)
			if d.Allowed || d.RetryAfter > 60*day {
				t.Errorf("after the return: %v", d)
			}
			server.SetClock(d.RetryAfter)
			if d := allow(t, l, "key", 1); !d.Allowed {
				t.Errorf("after RetryAfter: %v", d)
			}
		})
	}
}
