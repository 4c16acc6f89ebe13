package redisrates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

// On a Cluster, keys in several hash slots are charged together or not at all, whichever refuses; what the answer says is left is what is
// left, also of keys that were given back.
func TestClusterAllOrNothing(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	s := open(t, Config{Failure: outage.FailClosed}, c.Masters.Addrs()...)
	wide := step.Numbers{Kind: step.Calendar, Limit: 100, Period: step.Year, Zone: "Europe/Berlin"}
	narrow := fixed(5, 400*24*time.Hour)
	kinds := [][]step.Policy{s.limiter(t, "wide", wide), s.limiter(t, "narrow", narrow), s.limiter(t, "log", logOf(7, time.Hour))}
	question := func(n int64) (all []step.Cell) {
		for i, ps := range kinds {
			all = append(all, cells(ps, fmt.Sprint("k", i), n)...)
		}
		return all
	}
	for i := range 8 {
		all := question(1)
		allowed, err := s.Ask(t.Context(), step.Allow, all)
		if err != nil || allowed != (i < 5) {
			t.Fatal(i, allowed, err)
		}
		used := min(int64(i+1), 5)
		for j, want := range []int64{100 - used, 5 - used, 7 - used} {
			if all[j].Remaining != want || all[j].Source != step.SourceStore && all[j].Source != step.SourceCache {
				t.Errorf("question %d, cell %d: %+v by the %v, want %d", i, j, all[j].Reading, all[j].Source, want)
			}
		}
		if !allowed && (all[1].Shortfall != 1 || all[1].RetryAfter == 0 || all[0].Shortfall != 0) {
			t.Errorf("%+v", all)
		}
	}
	all := question(1)
	if allowed, err := s.Ask(t.Context(), step.Peek, all); allowed || err != nil || all[0].Remaining != 95 || all[2].Remaining != 2 {
		t.Error(allowed, err, all)
	}
	for i := range all { // the receipt of one question gives all of it back
		all[i].Units = -1
	}
	if _, err := s.Ask(t.Context(), step.Settle, all); err != nil || all[0].Remaining != 96 || all[1].Remaining != 1 || all[2].Remaining != 3 {
		t.Error(err, all)
	}
	if _, err := s.Ask(t.Context(), step.Reset, question(1)); err != nil {
		t.Error(err)
	}
	if allowed, err := s.Ask(t.Context(), step.Allow, question(5)); !allowed || err != nil {
		t.Error(allowed, err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that checks hash slots, behind one address, decides everything for a client that knows of none: keys in several
// hash slots in one call, and in one question.
func TestHashSlotsBehindOneAddress(t *testing.T) {
	c := redistest.StartCluster(t, 1, 0)
	var changes atomic.Int64
	s := open(t, Config{RefusalTTL: -1, Changed: func(error) { changes.Add(1) }}, c.Masters[0].Addr())
	ps := s.limiter(t, "api", fixed(5, 400*24*time.Hour))
	var bySource [8]atomic.Int64 // admitted
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 60 {
				cells := cells(ps, strconv.Itoa(rand.IntN(40)), 1)
				if allowed, err := s.Ask(t.Context(), step.Allow, cells); err != nil {
					t.Error(err)
				} else if allowed {
					bySource[cells[0].Source].Add(1)
				}
			}
		})
	}
	all.Wait()
	for i := range 40 {
		for range 5 {
			cells := cells(ps, strconv.Itoa(i), 1)
			if allowed, _ := s.Ask(t.Context(), step.Allow, cells); allowed {
				bySource[cells[0].Source].Add(1)
			}
		}
	}
	if n := bySource[step.SourceStore].Load(); n != 200 || bySource[step.SourceLocal].Load() > 0 || changes.Load() > 0 {
		t.Errorf("%d admitted by the store, %d locally, told %d times", n, bySource[step.SourceLocal].Load(), changes.Load())
	}
	for _, mode := range []step.Mode{step.Allow, step.Peek, step.Settle, step.Reset} { // the first that it is asked
		s := open(t, Config{Failure: outage.FailClosed}, c.Masters[0].Addr())
		ps := s.limiter(t, fmt.Sprint("several", mode), logOf(5, time.Hour))
		several := append(cells(ps, "a", 3), cells(ps, "b", 3)...)
		if allowed, err := s.Ask(t.Context(), mode, several); !allowed || err != nil {
			t.Errorf("mode %d: %v, %v", mode, allowed, err)
		}
	}
}

// A client of one server of a Cluster has the keys of that server decided there. That the others are not is told once,
// until one of them is.
func TestOneServerOfACluster(t *testing.T) {
	c := redistest.StartCluster(t, 2, 0)
	told := make(chan error, 1000)
	s := open(t, Config{Changed: func(err error) { told <- err }}, c.Masters[0].Addr())
	ps := s.limiter(t, "api", bucket(1_000_000, 24*time.Hour))
	ask := func(span time.Duration) {
		for start := time.Now(); time.Since(start) < span; <-time.After(5 * time.Millisecond) {
			var all sync.WaitGroup
			for i := range 10 {
				all.Go(func() {
					name := s.script.names.AppendTag(nil, strconv.Itoa(i))
					want := step.SourceStore
					if c.Owner(string(name)) != c.Masters[0] {
						want = step.SourceLocal
					}
					if source, err := s.askFor(t.Context(), &ps[0], strconv.Itoa(i)); err != nil || source != want {
						t.Errorf("key %d is decided by %v, not %v: %v", i, source, want, err)
					}
				})
			}
			all.Wait()
		}
	}
	ask(1500 * time.Millisecond)
	if len(told) != 1 || !strings.Contains(fmt.Sprint(<-told), "MOVED") || s.Away() == nil {
		t.Errorf("told %d times more; away: %v", len(told), s.Away())
	}
	id, err := c.Masters[0].Do("CLUSTER", "MYID")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		slot := strconv.Itoa(rediskey.HashSlot(s.script.names.AppendTag(nil, strconv.Itoa(i))))
		for _, node := range c.Masters {
			if _, err := node.Do("CLUSTER", "SETSLOT", slot, "NODE", id.(string)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for start := time.Now(); s.Away() != nil && time.Since(start) < patient; { // on a busy machine, one round takes long
		ask(100 * time.Millisecond)
	}
	if len(told) != 1 || <-told != nil || s.Away() != nil {
		t.Errorf("told %d times more; away: %v", len(told), s.Away())
	}
}

// Many keys of a Cluster, at the same time: exactly the limit, also while hash slots move from one master to another.
func TestHashSlotsMove(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...)
	ps := s.limiter(t, "api", fixed(200, 400*24*time.Hour), logOf(200, time.Hour))
	keys := []string{"a", "b", "c", "d"}
	n := start(t, s, ps, 8, func(i int) string { return keys[i%len(keys)] })
	for _, key := range keys {
		tag := string(s.script.names.AppendTag(nil, key))
		move(t, c, tag)
	}
	eventually(t, "the limits to be reached", func() bool { return n.admitted() >= 200*4-n.failed.Load()-8 })
	seen := n.asked.Load()
	eventually(t, "refusals", func() bool { return n.asked.Load() > seen+100 })
	n.stop()
	if got := n.admitted(); got > 800 || s.Away() != nil {
		t.Errorf("%d admitted, away: %v", got, s.Away())
	}
	t.Logf("%d admitted, %d failed", n.admitted(), n.failed.Load())
}

// move moves the hash slot of a name, with its values, to another master.
func move(t *testing.T, c *redistest.Cluster, tag string) {
	t.Helper()
	from := c.Owner(tag)
	to := c.Masters[0]
	if to == from {
		to = c.Masters[1]
	}
	slot := strconv.Itoa(rediskey.HashSlot([]byte(tag)))
	id := func(s *redistest.Server) string {
		reply, err := s.Do("CLUSTER", "MYID")
		if err != nil {
			t.Fatal(err)
		}
		return reply.(string)
	}
	must := func(s *redistest.Server, words ...string) any {
		reply, err := s.Do(words...)
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		return reply
	}
	must(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", id(from))
	must(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", id(to))
	host, port, _ := strings.Cut(to.Addr(), ":")
	for {
		names := must(from, "CLUSTER", "GETKEYSINSLOT", slot, "10").([]any)
		if len(names) == 0 {
			break
		}
		for _, name := range names {
			must(from, "MIGRATE", host, port, name.(string), "0", "5000")
		}
		<-time.After(5 * time.Millisecond)
	}
	for _, s := range append(redistest.Servers{to, from}, c.Masters...) {
		must(s, "CLUSTER", "SETSLOT", slot, "NODE", id(to))
	}
}

// chargeEach charges a key of each master, and returns them.
func (d *Decider) chargeEach(t *testing.T, c *redistest.Cluster, p *step.Policy) map[*redistest.Server]string {
	t.Helper()
	keys := map[*redistest.Server]string{}
	for i := 0; len(keys) < len(c.Masters); i++ {
		keys[c.Owner(string(d.script.names.AppendTag(nil, strconv.Itoa(i))))] = strconv.Itoa(i)
	}
	for _, key := range keys {
		d.charge(t, p, key, 1)
	}
	return keys
}

// A master that is away delays only its own keys.
func TestEachMasterHasItsBreaker(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0, "cluster-require-full-coverage no")
	s := open(t, Config{Timeout: 500 * time.Millisecond}, c.Masters.Addrs()...)
	p := &s.limiter(t, "api", bucket(1_000_000, 24*time.Hour))[0]
	keys := s.chargeEach(t, c, p)
	down := c.Masters[0]
	down.Pause()
	eventually(t, "it to be away", func() bool { _, _ = s.askFor(t.Context(), p, keys[down]); return s.Away() != nil })
	for _, up := range c.Masters[1:] {
		if source, err := s.askFor(t.Context(), p, keys[up]); err != nil || source != step.SourceStore {
			t.Error(source, err)
		}
	}
	if source, err := s.askFor(t.Context(), p, keys[down]); err != nil || source != step.SourceLocal {
		t.Error(source, err)
	}
	down.Resume()
	eventually(t, "it to be back", func() bool { _, _ = s.askFor(t.Context(), p, keys[down]); return s.Away() == nil })
}

// A replica that takes over decides, soon, and the master that has died is away no longer, which is told once. While it was, it
// delayed only its own keys.
func TestClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t, 3, 1, "cluster-require-full-coverage no")
	told := make(chan error, 1000)
	s := open(t, Config{Changed: func(err error) { told <- err }}, c.Masters.Addrs()...)
	p := &s.limiter(t, "api", bucket(1_000_000, 24*time.Hour))[0]
	keys := s.chargeEach(t, c, p)
	sourceOf := func(master *redistest.Server) step.Source {
		for _, up := range c.Masters[1:] {
			if source, err := s.askFor(t.Context(), p, keys[up]); err != nil || source != step.SourceStore {
				t.Error(source, err)
			}
		}
		source, err := s.askFor(t.Context(), p, keys[master])
		if err != nil {
			t.Error(err)
		}
		return source
	}
	down := c.Masters[0]
	down.Kill()
	eventually(t, "it to be away", func() bool { return sourceOf(down) == step.SourceLocal && s.Away() != nil })
	eventually(t, "its replica to take over", func() bool {
		sourceOf(down)
		return c.Owner(string(s.script.names.AppendTag(nil, keys[down]))) != down
	})
	decides := eventually(t, "the replica to decide", func() bool { return sourceOf(down) == step.SourceStore })
	over := eventually(t, "nothing to be away", func() bool { return s.Away() == nil && len(told) > 1 })
	for start := time.Now(); time.Since(start) < 2*maxPause; <-time.After(5 * time.Millisecond) {
		if source := sourceOf(down); source != step.SourceStore {
			t.Error(source)
		}
	}
	if first, last := <-told, <-told; first == nil || last != nil || len(told) > 0 || s.Away() != nil {
		t.Errorf("told %v, %v, and %d times more; away: %v", first, last, len(told), s.Away())
	}
	t.Logf("the replica decides after %v, the master is forgotten %v later", decides, over)
}

// A Cluster whose servers get new addresses again and again, as in Kubernetes, leaves nothing of the old ones.
func TestAddressesChange(t *testing.T) {
	server := redistest.Start(t)
	var renewals atomic.Int64
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true, MaxRetries: -1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			address := fmt.Sprintf("10.0.0.%d:6379", renewals.Load())
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: address}}}}, nil
		},
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.Addr())
		},
	})
	defer client.Close()
	s, err := New(client, Config{Timeout: patient, Failure: outage.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	p := &s.limiter(t, "api", bucket(1_000_000, 24*time.Hour))[0]
	reloaded := func(context.Context, *redis.Client) error { return nil }
	for range 50 {
		s.charge(t, p, "k", 1)
		renewals.Add(1)
		if err := client.ForEachMaster(t.Context(), reloaded); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "old addresses to be forgotten", func() bool { s.charge(t, p, "k", 1); return len(s.line.servers.masters()) == 1 })
}

// After a failover the new master decides.
func TestSentinelFailover(t *testing.T) {
	d := redistest.StartSentinel(t)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: d.Addrs(), ContextTimeoutEnabled: true, MaxRetries: -1})
	defer client.Close()
	s, err := New(client, Config{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ps := s.limiter(t, "api", fixed(300, 400*24*time.Hour))
	n := start(t, s, ps, 8, func(int) string { return "k" })
	eventually(t, "some to be admitted", func() bool { return n.admitted() > 50 })
	old := d.KillMaster()
	lost := n.admitted() // at most: what the old master had not sent yet
	eventually(t, "it to be away", func() bool { return s.Away() != nil })
	d.WaitFailover(old)
	back := eventually(t, "the new master to decide", func() bool { return s.Away() == nil })
	eventually(t, "the limit to be reached", func() bool {
		c := []step.Cell{cell(&ps[0], "k", 1)}
		allowed, err := s.Ask(t.Context(), step.Peek, c)
		return err == nil && !allowed && c[0].Source != step.SourceLocal
	})
	n.stop()
	t.Logf("back after %v, %d admitted by servers, %d locally", back, n.admitted(), n.bySource[step.SourceLocal].Load())
	if got := n.admitted(); got > 300+lost {
		t.Errorf("%d admitted", got)
	}
}

// Without the library struct, as in miniredis, decisions are the same. Its time passes only when it is told.
func TestMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	s := open(t, Config{Failure: outage.FailClosed, RefusalTTL: -1}, server.Addr())
	walkFor(t, s, 3000, false)
}

// What was a master changes nothing any more, however the calls end that are still in flight to it.
func TestRetired(t *testing.T) {
	var to server
	refused := errors.New("connection refused")
	fails := func() bool { return to.breaker.failed(time.Now(), 0, refused, 0) }
	for i := range maxFailures {
		if away := fails(); away != (i == maxFailures-1) {
			t.Error(i, away)
		}
	}
	if !to.unserved.failed(1, refused, false, time.Now()) {
		t.Error("it is not told")
	}
	if !to.retire() || to.retire() {
		t.Error("it is not over once")
	}
	for range 2 * maxFailures {
		if to.breaker.tried(refused) || to.breaker.tried(nil) || fails() || to.unserved.failed(1, refused, true, time.Now()) {
			t.Error("it is told")
		}
	}
	if err := cmp.Or(to.breaker.away(), to.unserved.away()); err != nil {
		t.Error(err)
	}
}
