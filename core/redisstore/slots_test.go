package redisstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

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
// refusals are cached for a moment, so others wait.
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

// A client that does not heed deadlines will do too.
func TestSlotsOfAClientThatHeedsNoDeadlines(t *testing.T) {
	server := redistest.Start(t)
	storetest.RunSlots(t, storetest.SlotHarness{
		New: func(t *testing.T) func() core.SlotStore {
			server.Flush()
			return func() core.SlotStore {
				s, err := New(redis.NewClient(&redis.Options{Addr: server.Addr()}), Config{Failure: FailClosed, Timeout: patient, Secret: someSecret("")})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Client().Close() })
				return s
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
		s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), Config{Secret: someSecret(secret)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Client().Close()
		seen := map[string]string{s.names.servers(): "the servers"}
		add := func(name, who string) {
			if other, ok := seen[name]; ok {
				t.Errorf("%s and %s have the same name %q", who, other, name)
			}
			seen[name] = who
		}
		for _, key := range hostile() {
			for _, name := range append(hostileNames, "slots", "a:slots", ":slots") {
				add(s.names.slots(name, key), fmt.Sprintf("slots %q of %.50q", name, key))
				l := newBucketNamed(t, s, name, "slots")
				add(s.cells(nil, &core.Charge{Limiter: l, Key: key})[0], fmt.Sprintf("limiter %q of %.50q", name, key))
			}
			tag := s.names.tag(nil, key)
			if name := s.names.slots("a", key); !strings.HasPrefix(name, string(tag)) || secret != "" && strings.Contains(name, "="+key) {
				t.Errorf("%.50q: %q", key, name)
			}
		}
	}
}

// A hook that panics costs no slot: servers recover from panics.
func TestHookThatPanicsHoldsNoSlot(t *testing.T) {
	panics := true
	s := open(t, Config{Failure: FailClosed, Hooks: Hooks{SlotAcquired: func(string, bool, core.Source) {
		if panics {
			panic("on purpose")
		}
	}}}, redistest.Start(t).Addr())
	slots, other := newSlots(t, s, "ws", 1), newSlots(t, s, "all", 1)
	for range 3 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the hook was not called")
				}
			}()
			core.AcquireAll(t.Context(), core.Claim{Slots: slots, Key: "k"}, core.Claim{Slots: other, Key: "k"})
		}()
	}
	panics = false
	if slot, err := core.AcquireAll(t.Context(), core.Claim{Slots: slots, Key: "k"}, core.Claim{Slots: other, Key: "k"}); err != nil {
		t.Error(err)
	} else {
		slot.Release()
	}
}
