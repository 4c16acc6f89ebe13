package redisstore

import (
	"testing"

	"github.com/headgate/headgate/internal/old/core"
)

// Unlimited and Blocked have no state: Redis is not asked, whatever the Config.
func TestWithoutState(t *testing.T) {
	for _, failure := range []Failure{FailLocal, FailOpen, FailClosed} {
		for _, servers := range []int{0, 3} {
			s := away(t, Config{Failure: failure, Servers: servers})
			pro := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
			for name, l := range map[string]*core.Limiter{
				"New":  newLimiter(t, s, "api", core.Unlimited()),
				"With": with(t, pro, core.Unlimited()),
			} {
				if d := allow(t, l, "k", 1); !d.Allowed || d.Source != core.SourcePolicy {
					t.Errorf("%v, %d servers: %s: Unlimited: %v", failure, servers, name, d)
				}
			}
			if d := allow(t, with(t, pro, core.Blocked()), "k", 1); d.Allowed || d.Source != core.SourcePolicy {
				t.Errorf("%v, %d servers: Blocked: %v", failure, servers, d)
			}
		}
	}
}
