package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A start is a process that starts while Redis is away for slots.
type start struct {
	begin func(t *testing.T, c Config) *Store
	end   func()
}

// starts returns those of a server.
func starts(server *redistest.Server, proxy *redistest.Proxy) map[string]start {
	all := make(map[string]start)
	for _, o := range outages {
		if slices.Contains([]string{"killed", "paused", "black hole", "read-only", "full"}, o.name) {
			all[o.name] = start{
				func(t *testing.T, c Config) *Store { o.begin(server, proxy); return open(t, c, proxy.Addr()) },
				func() { o.end(server, proxy) },
			}
		}
	}
	for _, missing := range []string{"+zadd", "+zscore", "+zrangebyscore", "+hset", "+hget", "+expire", "+evalsha"} {
		all["without "+missing[1:]] = start{
			func(t *testing.T, c Config) *Store {
				return as(t, server, c, strings.Replace(permissions+" ", missing+" ", "", 1))
			},
			func() { server.Do("ACL", "SETUSER", "headgate", missing) },
		}
	}
	return all
}

// A process that starts while Redis is away for slots does what its Failure says, tells it, and
// after the return of Redis what it has granted is counted.
func TestSlotsOfWhoStartsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	names := starts(nil, nil)
	for name := range names {
		for _, test := range []struct {
			failure Failure
			servers int
			granted int // of 200
		}{{FailOpen, 0, 200}, {FailLocal, 0, 3}, {FailLocal, 3, 1}, {FailClosed, 0, 0}} {
			t.Run(fmt.Sprint(name, test.failure, test.servers), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				how := starts(server, redistest.NewProxy(t, server.Addr()))[name]
				var told changes
				s := how.begin(t, Config{
					Failure: test.failure, Servers: test.servers, SlotTTL: shortTTL, SlotTimeout: 100 * time.Millisecond,
					Observer: &core.Observer{Changed: told.add},
				})
				slots := newSlots(t, s, "ws", 3)
				var held []*core.Slot
				for range 200 {
					switch slot, err := slots.Acquire(t.Context(), "key"); {
					case err == nil:
						held = append(held, slot)
					case test.failure == FailClosed && !errors.Is(err, core.ErrUnavailable),
						test.failure != FailClosed && !errors.Is(err, core.ErrFull):
						t.Fatal(err)
					}
				}
				if len(held) != test.granted {
					t.Errorf("%d of 200 granted, want %d", len(held), test.granted)
				}
				refused(t, newSlots(t, s, "ws", 0), "banned")
				eventually(t, "Redis to be away", func() bool {
					all := told.list()
					return s.State().Away && s.State().Reason != nil && len(all) > 0 && all[0] != nil
				})
				how.end()
				eventually(t, "Redis to be back", func() bool { return !s.State().Away })
				counter := newSlots(t, open(t, Config{}, server.Addr()), "ws", 3)
				counts := func(want int) {
					t.Helper()
					eventually(t, "the counts to be right", func() bool {
						n, err := counter.Count(t.Context(), "key")
						return err == nil && n == int64(want)
					})
				}
				counts(test.granted)
				if test.granted >= 3 {
					refused(t, slots, "key")
				}
				for _, slot := range held {
					slot.Release()
				}
				counts(0)
				if slot := acquires(t, slots, "key"); slot.Source() != core.SourceStore {
					t.Errorf("granted by %v", slot.Source())
				}
				reasons, returns := 0, 0
				for _, reason := range told.list() {
					if reason == nil {
						returns++
					} else {
						reasons++
					}
				}
				if reasons != returns || reasons > 2 { // of slots, and of heartbeats
					t.Errorf("told of %v", told.list())
				}
			})
		}
	}
}
