package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
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
					Failure: test.failure, Servers: test.servers, SlotTTL: shortTTL, SlotTimeout: shortTTL / 3,
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

// The slots of all keys need one master of a Cluster. While it is away, keys of others go on for a
// SlotTTL; then Failure decides, until it is back.
func TestSlotsWithoutTheMasterOfHeartbeats(t *testing.T) {
	notShort(t)
	t.Parallel()
	for _, fault := range []fault{outages[0], outages[1]} { // killed, paused
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, 3, 0, "cluster-require-full-coverage no")
			type process struct {
				failure Failure
				servers int
				granted int // of 200
				source  core.Source
				store   *Store
				slots   *core.Slots
			}
			all := []*process{
				{failure: FailOpen, granted: 200, source: core.SourceOpen}, {failure: FailLocal, granted: 3, source: core.SourceLocal},
				{failure: FailLocal, servers: 3, granted: 1, source: core.SourceLocal}, {failure: FailClosed},
			}
			owner := cluster.Owner("headgate:{slots}:servers")
			var living string
			for i, p := range all {
				p.store = open(t, Config{Failure: p.failure, Servers: p.servers, SlotTTL: 2 * shortTTL, Timeout: 200 * time.Millisecond, SlotTimeout: 500 * time.Millisecond}, cluster.Masters.Addrs()...)
				p.slots = newSlots(t, p.store, fmt.Sprint("ws", i), 3)
				for j := 0; living == ""; j++ {
					if key := fmt.Sprint("key", j); cluster.Owner(p.store.backend.names.slots("", key)) != owner {
						living = key
					}
				}
				eventually(t, "a slot by Redis", func() bool {
					slot, err := p.slots.Acquire(t.Context(), living)
					if err != nil {
						return false
					}
					defer slot.Release()
					return slot.Source() == core.SourceStore
				})
			}
			r, err := open(t, Config{}, cluster.Masters.Addrs()...).Check(t.Context())
			if err != nil || !r.OK() {
				t.Errorf("%v: %v", err, r)
			}
			for _, s := range r.Servers {
				if s.Heartbeats != (s.Address == owner.Addr()) {
					t.Errorf("%+v: the master is %s", s, owner.Addr())
				}
			}
			fault.begin(owner, nil)
			for _, p := range all {
				eventually(t, "heartbeats to be away", func() bool { st := p.store.State(); return st.Away && st.Reason != nil })
				eventually(t, "the last heartbeat to be a SlotTTL ago", func() bool {
					slot, err := p.slots.Acquire(t.Context(), living)
					if err != nil {
						return errors.Is(err, core.ErrUnavailable)
					}
					defer slot.Release()
					return slot.Source() != core.SourceStore
				})
				var held []*core.Slot
				for range 200 {
					switch slot, err := p.slots.Acquire(t.Context(), living); {
					case err == nil && slot.Source() == p.source:
						held = append(held, slot)
					case p.failure == FailLocal && errors.Is(err, core.ErrFull), p.failure == FailClosed && errors.Is(err, core.ErrUnavailable):
					default:
						t.Fatalf("%v, %+v", err, slot)
					}
				}
				if len(held) != p.granted {
					t.Errorf("Failure %d granted %d of 200, want %d", p.failure, len(held), p.granted)
				}
				for _, slot := range held {
					slot.Release()
				}
			}
			fault.end(owner, nil)
			cluster.WaitReady()
			for _, p := range all {
				eventually(t, "all to be back", func() bool { return !p.store.State().Away })
				if slot := acquires(t, p.slots, living); slot.Source() != core.SourceStore {
					t.Errorf("granted by %v", slot.Source())
				}
			}
		})
	}
}

// Check names the master that lacks a permission for heartbeats, and which it is.
func TestCheckOfHeartbeats(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	owner := cluster.Owner("headgate:{slots}:servers")
	for _, m := range cluster.Masters {
		may := permissions + " +cluster|info +cluster|slots"
		if m == owner {
			may = strings.Replace(may, " +zadd", "", 1)
		}
		words := append([]string{"ACL", "SETUSER", "app", "reset", "on", ">password", "~headgate:*", "-@all"}, strings.Fields(may)...)
		if _, err := m.Do(words...); err != nil {
			t.Fatal(err)
		}
	}
	s := openWith(t, Config{}, &redis.UniversalOptions{Addrs: cluster.Masters.Addrs(), Username: "app", Password: "password"})
	r, err := s.Check(t.Context())
	want := owner.Addr() + " cannot take the heartbeats that all slots need: commands are missing, or not permitted: ZADD"
	if err != nil || len(r.Problems) != 1 || r.Problems[0] != want || !strings.Contains(r.String(), owner.Addr()+": has the heartbeats of all slots, ") {
		t.Errorf("%v: %v", err, r)
	}
}
