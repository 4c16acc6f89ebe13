package redisstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/storetest"
	"github.com/headgate/headgate/internal/redistest"
)

func TestSlots(t *testing.T) {
	server := redistest.Start(t)
	t.Run("Redis", func(t *testing.T) {
		slotSuite(t, func(t *testing.T) []string {
			server.Flush()
			return []string{server.Addr()}
		}, openWith)
	})
	t.Run("miniredis", func(t *testing.T) {
		slotSuite(t, func(t *testing.T) []string { return []string{miniredis.RunT(t).Addr()} }, openWith)
	})
	// And a Cluster, in TestCluster.
}

// slotSuite runs the contract. What a process releases is stated in the background, and
// refusals are cached for a moment, so others wait.
func slotSuite(t *testing.T, empty func(t *testing.T) (addrs []string), open func(testing.TB, Config, *redis.UniversalOptions) *Store) {
	storetest.RunSlots(t, storetest.SlotHarness{
		New: func(t *testing.T, o *core.Observer) func() core.SlotStore {
			addrs := empty(t)
			return func() core.SlotStore { // a layer that replaces nothing
				return &struct{ core.SlotStore }{open(t, Config{Failure: FailClosed, Observer: o}, &redis.UniversalOptions{Addrs: addrs})}
			}
		},
		Eventually: func(t *testing.T, what string, holds func() bool) {
			t.Helper()
			eventually(t, what, holds)
		},
	})
}

// Whatever the bytes, slots and limiters have different names in Redis, and the slots
// of a key are where its limits are.
func TestSlotNamesAreDistinct(t *testing.T) {
	for _, secret := range []string{"", "secret"} {
		s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}), Config{Secret: someSecret(secret)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Client().Close()
		seen := map[string]string{s.backend.names.servers(): "the servers"}
		add := func(name, who string) {
			if other, ok := seen[name]; ok {
				t.Errorf("%s and %s have the same name %q", who, other, name)
			}
			seen[name] = who
		}
		for _, key := range hostile() {
			for _, name := range append(hostileNames, "slots", "a:slots", ":slots") {
				add(s.backend.names.slots(name, key), fmt.Sprintf("slots %q of %.50q", name, key))
				l := newLogNamed(t, s, name, "slots")
				add(s.cell(t, l, key), fmt.Sprintf("limiter %q of %.50q", name, key))
				l = newLimiter(t, s, name, core.FixedWindow(core.PerDay(1)))
				add(s.cell(t, l, key), fmt.Sprintf("records of limiter %q of %.50q", name, key))
			}
			tag := s.backend.names.AppendTag(nil, key)
			if name := s.backend.names.slots("a", key); !strings.HasPrefix(name, string(tag)) || secret != "" && strings.Contains(name, "="+key) {
				t.Errorf("%.50q: %q", key, name)
			}
		}
	}
}
