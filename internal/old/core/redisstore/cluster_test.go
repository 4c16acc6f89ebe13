package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
)

// What a Cluster of three masters must do. The tests share one, for it takes time to
// form.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	c := clusterTest{cluster}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Store", c.store},
		{"AdmitsTheLimit", c.admitsTheLimit},
		{"ProcessesTogether", c.processesTogether},
		{"AsksTogether", c.asksTogether},
		{"AsksTheSmallestFirst", c.asksTheSmallestFirst},
		{"GivesBack", c.givesBack},
		{"GivesBackWhenTheAskerIsGone", c.givesBackWhenTheAskerIsGone},
		{"GivesBackAfterAnError", c.givesBackAfterAnError},
		{"EarliestInstant", c.earliestInstant},
		{"CountsDenied", c.countsDenied},
		{"OneSlotIsOneCall", c.oneSlotIsOneCall},
		{"Check", c.check},
		{"CheckUnservedSlots", c.checkUnservedSlots},
		{"ProbesOwnKeys", c.probesOwnKeys},
		{"SlotMigrates", func(t *testing.T) { c.slotMigrates(t, c.migrate) }},
		{"SlotMigratesAtOnce", c.slotMigratesAtOnce},
		{"SlotIsTorn", c.slotIsTorn},
		{"OneMasterAway", c.oneMasterAway}, // and is not back
	} {
		t.Run(test.name, test.run)
	}
}

type clusterTest struct{ *redistest.Cluster }

// A Cluster may serve without all of its hash slots. The keys of the others fail.
func (c clusterTest) checkUnservedSlots(t *testing.T) {
	for _, m := range c.Masters {
		m.Do("CONFIG", "SET", "cluster-require-full-coverage", "no")
		m.Do("CLUSTER", "DELSLOTS", "16383")
	}
	defer func() {
		c.Masters[2].Do("CLUSTER", "ADDSLOTS", "16383")
		for _, m := range c.Masters {
			m.Do("CONFIG", "SET", "cluster-require-full-coverage", "yes")
		}
		c.WaitReady()
	}()
	s := open(t, Config{}, c.Masters.Addrs()...)
	eventually(t, "Check to miss a slot", func() bool {
		r, err := s.Check(t.Context())
		return err == nil && strings.Contains(r.String(), "serves 16383 of its 16384 hash slots")
	})
}

// keysByMaster returns a key of each master's slots.
func (c clusterTest) keysByMaster(s *Store) []string { return keysByMaster(s, len(c.Masters)) }

func keysByMaster(s *Store, masters int) []string {
	found := make([]string, masters)
	for i, missing := 0, len(found); missing > 0; i++ {
		key := "key" + strconv.Itoa(i)
		if m := rediskey.HashSlot(s.backend.names.AppendTag(nil, key)) * len(found) / rediskey.HashSlots; found[m] == "" {
			found[m] = key
			missing--
		}
	}
	return found
}

func (c clusterTest) store(t *testing.T) {
	notShort(t)
	atInstants(t, 200, nil, plain, func(t *testing.T, o *core.Observer) *Store {
		for _, master := range c.Masters {
			master.Flush()
		}
		return open(t, Config{RefusalTTL: -1, Observer: o}, c.Masters.Addrs()...)
	})
}

func (c clusterTest) admitsTheLimit(t *testing.T) {
	const limit, clients = 300, 4
	keysOf := c.keysByMaster(open(t, Config{}, c.Masters.Addrs()...))
	var stores []*Store
	for range clients {
		stores = append(stores, open(t, Config{Failure: FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...))
	}
	for name, p := range everyAlgorithm(limit) {
		var admitted [3]atomic.Int64
		var all sync.WaitGroup
		for i := range 40 {
			l := newLimiter(t, stores[i%clients], name, p)
			all.Go(func() {
				for j := range 60 {
					k := (i + j) % 3
					if d, err := l.Allow(t.Context(), keysOf[k]); err != nil {
						t.Error(err)
					} else if d.Allowed {
						admitted[k].Add(1)
					}
				}
			})
		}
		all.Wait()
		for k := range admitted {
			if n := admitted[k].Load(); n != limit {
				t.Errorf("%s, master %d: admitted %d, the limit is %d", name, k, n, limit)
			}
		}
	}
}

// Keys in different slots, asked together by many: no limit is exceeded, and when all
// is quiet, nothing is held that nobody has.
func (c clusterTest) asksTogether(t *testing.T) {
	const shared = 60
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	for name, p := range everyAlgorithm(shared) {
		one := newLimiter(t, s, "shared "+name, p)
		own := newLimiter(t, s, "own "+name, everyAlgorithm(4)[name])
		var admitted [40]atomic.Int64
		var all sync.WaitGroup
		for i := range admitted {
			all.Go(func() {
				for j := range 12 {
					cs := []core.Charge{
						{Limiter: one, Key: keysOf[0], N: 1},
						{Limiter: own, Key: fmt.Sprint(keysOf[1+i%2], "/", i), N: 1},
					}
					if j%2 == 1 {
						cs[0], cs[1] = cs[1], cs[0]
					}
					if d, err := core.AllowAll(t.Context(), cs...); err != nil {
						t.Error(err)
					} else if d.Allowed {
						admitted[i].Add(1)
					}
				}
			})
		}
		all.Wait()
		var sum int64
		for i := range admitted {
			n := admitted[i].Load()
			if sum += n; n > 4 {
				t.Errorf("%s: asker %d was admitted %d times, the limit is 4", name, i, n)
			}
			d, err := own.Peek(t.Context(), fmt.Sprint(keysOf[1+i%2], "/", i))
			if err != nil || d.Remaining != 4-n {
				t.Errorf("%s: asker %d: %d of 4 are left after %d: %v", name, i, d.Remaining, n, err)
			}
		}
		d, err := one.Peek(t.Context(), keysOf[0])
		if err != nil || sum > shared || d.Remaining != shared-sum {
			t.Errorf("%s: %d of %d are left after %d: %v", name, d.Remaining, shared, sum, err)
		}
		t.Logf("%s: %d of %d admitted", name, sum, shared)
	}
}

// The limiter with the least capacity is asked first, as it is the likeliest to refuse:
// then nothing has to be given back. The answers keep the order of the charges.
func (c clusterTest) asksTheSmallestFirst(t *testing.T) {
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	large := core.Charge{Limiter: newLimiter(t, s, "large", core.SlidingLog(core.PerHour(3000))), Key: keysOf[0], N: 1}
	middle := core.Charge{Limiter: newLimiter(t, s, "middle", core.FixedWindow(per(3000, 400*day)).Named("a"), core.FixedWindow(per(2, 400*day)).Named("b")), Key: keysOf[2], N: 1}
	small := core.Charge{Limiter: newLimiter(t, s, "small", core.FixedWindow(per(1, 400*day))), Key: keysOf[1], N: 1}
	for _, cs := range [][]core.Charge{{large, middle, small}, {small, middle, large}, {middle, large, small}} {
		if err := small.Limiter.Reset(t.Context(), small.Key); err != nil {
			t.Fatal(err)
		}
		if err := middle.Limiter.Reset(t.Context(), middle.Key); err != nil {
			t.Fatal(err)
		}
		for _, allowed := range []bool{true, false, false} {
			c.Masters.ResetStats()
			d, err := core.AllowAll(t.Context(), cs...)
			if err != nil || d.Allowed != allowed {
				t.Fatalf("%v: %s", err, describe(&d))
			}
			if n := c.Masters.Calls(writes...); !allowed && n > 0 {
				t.Errorf("a refusal took %d writes", n)
			}
			i := 0
			for _, charge := range cs {
				for _, p := range charge.Limiter.Policies() {
					if a := d.Answer(i); a.Policy != p.Name() || a.Limit != p.Limit() || a.Allowed != (allowed || charge.Limiter != small.Limiter) {
						t.Errorf("answer %d is %+v, of %v", i, a, p)
					}
					i++
				}
			}
		}
	}
}

func (c clusterTest) givesBack(t *testing.T) {
	s := open(t, Config{Failure: FailClosed}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	for name, p := range everyAlgorithm(5) {
		var cs []core.Charge
		for i, key := range keysOf {
			cs = append(cs, core.Charge{Limiter: newLimiter(t, s, fmt.Sprint("give back ", name, i), p), Key: key, N: 2})
		}
		cs[1].Limiter = newLimiter(t, s, "give back: full "+name, everyAlgorithm(3)[name])

		d, err := core.AllowAll(t.Context(), cs...)
		if err != nil || !d.Allowed || d.Len() != 3 || d.Answer(1).Remaining != 1 || d.Remaining != 1 {
			t.Fatalf("%s: %v: %s", name, err, describe(&d))
		}
		d2, err := core.AllowAll(t.Context(), cs...)
		if err != nil || d2.Allowed || d2.Policy != "give back: full "+name || d2.RetryAfter <= 0 {
			t.Fatalf("%s: %v: %s", name, err, describe(&d2))
		}
		for i, want := range []int64{3, 1, 3} {
			if d, err := cs[i].Limiter.Peek(t.Context(), cs[i].Key); err != nil || d.Remaining != want {
				t.Errorf("%s, refused together: key %d has %d left, want %d: %v", name, i, d.Remaining, want, err)
			}
			if a := d2.Answer(i); a.Remaining != want || a.Allowed != (i != 1) {
				t.Errorf("%s, refused together: answer %d is %+v", name, i, a)
			}
		}
		if uncovered, err := d.Settle(t.Context(), 0, 3, 1); err != nil || uncovered != 0 {
			t.Errorf("%s: settled: %d, %v", name, uncovered, err)
		}
		for i, want := range []int64{5, 0, 4} {
			d, err := cs[i].Limiter.Peek(t.Context(), cs[i].Key)
			if name == "TokenBucket" && d.Remaining == want-1 {
				continue // what has refilled since the first of the charges is not given back
			}
			if err != nil || d.Remaining != want {
				t.Errorf("%s, settled: key %d has %d left, want %d: %v", name, i, d.Remaining, want, err)
			}
		}
	}
}

// Who hangs up between two charges does not keep the first, which the second refuses:
// a client could fill everybody's ceiling in that way.
func (c clusterTest) givesBackWhenTheAskerIsGone(t *testing.T) {
	hangUp := func() {}
	s := open(t, Config{Failure: FailClosed, Observer: &core.Observer{
		Called: func(core.CallEvent) { hangUp() },
	}}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	ceiling := core.Charge{Limiter: newLimiter(t, s, "ceiling", core.FixedWindow(per(5, 400*day))), Key: keysOf[0], N: 1}
	full := core.Charge{Limiter: newLimiter(t, s, "full", core.FixedWindow(per(1, 400*day))), Key: keysOf[1], N: 1}
	allow(t, full.Limiter, full.Key, 1)
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		hangUp = cancel
		d, err := core.AllowAll(ctx, ceiling, full)
		cancel()
		if d.Allowed || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("%v: %s", err, describe(&d))
		}
	}
	if d := allow(t, ceiling.Limiter, ceiling.Key, 5); !d.Allowed {
		t.Error(describe(&d))
	}
}

// poison lets all questions about a charge fail.
func (c clusterTest) poison(t *testing.T, s *Store, charge core.Charge) {
	t.Helper()
	name := s.cell(t, charge.Limiter, charge.Key)
	if _, err := c.Owner(name).Do("RPUSH", name, "x"); err != nil {
		t.Fatal(err)
	}
}

// If a later key fails, the earlier charges are given back.
func (c clusterTest) givesBackAfterAnError(t *testing.T) {
	for _, failure := range []Failure{FailClosed, FailOpen} {
		s := open(t, Config{Failure: failure}, c.Masters.Addrs()...)
		keysOf := c.keysByMaster(s)
		for name, p := range everyAlgorithm(5) {
			var cs []core.Charge
			for i, key := range keysOf {
				cs = append(cs, core.Charge{Limiter: newLimiter(t, s, fmt.Sprint("error ", name, failure, i), p), Key: key, N: 2})
			}
			c.poison(t, s, cs[2])
			d, err := core.AllowAll(t.Context(), cs...)
			if failure == FailClosed && !errors.Is(err, core.ErrUnavailable) || failure == FailOpen && (err != nil || d.Source != core.SourceOpen) {
				t.Errorf("%s: %v: %s", name, err, describe(&d))
			}
			for i, charge := range cs[:2] {
				if d, err := charge.Limiter.Peek(t.Context(), charge.Key); err != nil || d.Source != core.SourceStore || d.Remaining != 5 {
					t.Errorf("%s: key %d has %d left of 5: %v", name, i, d.Remaining, err)
				}
			}
		}
	}
}

// The instant of a decision of several masters, by which it is given back, is their
// earliest, also if one that is only to count the attempt fails.
func (c clusterTest) earliestInstant(t *testing.T) {
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	start := time.Now().UnixMicro()
	var clocks []int64 // of the masters, in the order in which they are asked
	s.backend.instant = func() string {
		now := clocks[0]
		clocks = clocks[1:]
		return strconv.FormatInt(start+now, 10)
	}
	decide := func(cs []core.Charge, allowed bool, at ...int64) {
		t.Helper()
		clocks = at
		var r store.Result
		if err := asking.Decide(t.Context(), s, store.Allow, &r, stored(cs...)...); err != nil || r.Allowed != allowed || r.At != start+slices.Min(at) {
			t.Errorf("clocks of %d: allowed %v at %d, %v", at, r.Allowed, r.At-start, err)
		}
	}
	var cs []core.Charge
	for i, key := range keysOf {
		cs = append(cs, core.Charge{Limiter: newLimiter(t, s, fmt.Sprint("instant ", i), core.FixedWindow(per(6, 400*day))), Key: key, N: 2})
	}
	decide(cs, true, 10, 20, 30)
	decide(cs, true, 20, 10, 30)
	decide(cs, true, 30, 20, 10)

	c.poison(t, s, core.Charge{Limiter: cs[1].Limiter, Key: "another " + keysOf[1], N: 2})
	full := core.Charge{Limiter: cs[0].Limiter, Key: keysOf[0], N: 2}
	for _, other := range []core.Charge{cs[1], {Limiter: cs[1].Limiter, Key: "another " + keysOf[1], N: 2}} {
		decide([]core.Charge{full, other}, false, 50, 60)
	}
}

// Wherever it is refused, an attempt counts once where a policy says so.
func (c clusterTest) countsDenied(t *testing.T) {
	s := open(t, Config{Failure: FailClosed}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	denied := core.FixedWindow(per(10, 400*day)).CountDenied()
	before := core.Charge{Limiter: newLimiter(t, s, "denied before", denied), Key: keysOf[0], N: 2}
	full := core.Charge{Limiter: newLimiter(t, s, "denied", core.FixedWindow(per(1, 400*day))), Key: keysOf[1], N: 1}
	after := core.Charge{Limiter: newLimiter(t, s, "denied after", denied.Named("a"), core.SlidingLog(core.PerDay(9)).Named("b")), Key: keysOf[2], N: 3}
	allow(t, full.Limiter, full.Key, 1)
	for i := range int64(3) {
		d, err := core.AllowAll(t.Context(), before, full, after)
		if err != nil || d.Allowed || d.Policy != "denied" {
			t.Fatalf("%v: %s", err, describe(&d))
		}
		for j, want := range []int64{10 - 2*(i+1), 0, 10 - 3*(i+1), 9} {
			if a := d.Answer(j); a.Remaining != want {
				t.Errorf("attempt %d: %+v, want %d left", i, a, want)
			}
		}
	}
}

// The policies of one limiter for one key, and limiters for the same key, are asked
// in one script.
func (c clusterTest) oneSlotIsOneCall(t *testing.T) {
	s := open(t, Config{RefusalTTL: -1}, c.Masters.Addrs()...)
	a := newLimiter(t, s, "a", somePolicies(5, 100)...)
	b := newLimiter(t, s, "b", somePolicies(4, 100)...)
	for _, key := range append(c.keysByMaster(s), hostile()...) {
		ask := []core.Charge{{Limiter: a, Key: key, N: 1}, {Limiter: b, Key: key, N: 1}}
		for range 2 { // the first time, a server may not know the script
			c.Masters.ResetStats()
			if d, err := core.AllowAll(t.Context(), ask...); err != nil || !d.Allowed || d.Source != core.SourceStore {
				t.Fatalf("%.30q: %v: %s", key, err, describe(&d))
			}
		}
		if n := c.Masters.Calls("evalsha", "eval"); n != 1 {
			t.Errorf("%.30q: %d calls", key, n)
		}
	}
}

func (c clusterTest) check(t *testing.T) {
	s := open(t, Config{}, c.Masters.Addrs()...)
	r, err := s.Check(t.Context())
	if err != nil || !r.OK() || len(r.Servers) != 3 {
		t.Errorf("%v: %+v", err, r)
	}
}

// probesOwnKeys: a user that may use no keys but those of the prefix is enough for
// everything, the probes of the breaker included.
func (c clusterTest) probesOwnKeys(t *testing.T) {
	for _, master := range c.Masters {
		if _, err := master.Do("ACL", "SETUSER", "app", "on", ">password", "~myapp:*", "+@all"); err != nil {
			t.Fatal(err)
		}
	}
	s := openWith(t, Config{Prefix: "myapp", Failure: FailClosed}, &redis.UniversalOptions{
		Addrs: c.Masters.Addrs(), Username: "app", Password: "password",
	})
	l := newLimiter(t, s, "api", somePolicies(2, 100)...)
	for _, key := range c.keysByMaster(s) {
		allow(t, l, key, 1)
		if err := s.backend.Probe(t.Context(), rediskey.HashSlot(s.backend.names.AppendTag(nil, key))); err != nil {
			t.Error(err)
		}
	}
	if r, err := s.Check(t.Context()); err != nil || !r.OK() {
		t.Errorf("%v: %+v", err, r)
	}
}

// migrate moves a slot of the Cluster, with its keys, to another master.
func (c clusterTest) migrate(t *testing.T, number int, from, to *redistest.Server) {
	t.Helper()
	must := func(server *redistest.Server, words ...string) any {
		t.Helper()
		reply, err := server.Do(words...)
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		return reply
	}
	slot := strconv.Itoa(number)
	must(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", must(from, "CLUSTER", "MYID").(string))
	must(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", must(to, "CLUSTER", "MYID").(string))
	_, port, _ := net.SplitHostPort(to.Addr())
	for {
		names := must(from, "CLUSTER", "GETKEYSINSLOT", slot, "1").([]any)
		if len(names) == 0 {
			break
		}
		must(from, "MIGRATE", "127.0.0.1", port, names[0].(string), "0", "5000")
	}
	owner := must(to, "CLUSTER", "MYID").(string)
	must(to, "CLUSTER", "SETSLOT", slot, "NODE", owner) // first: others learn it from there
	for _, server := range c.Masters {
		must(server, "CLUSTER", "SETSLOT", slot, "NODE", owner)
	}
}

// slotIsTorn leaves a migration half done, so that the keys of a question are on two
// masters and none can answer it. That takes no other key with it.
func (c clusterTest) slotIsTorn(t *testing.T) {
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...)
	key := c.keysByMaster(s)[0]
	two := newLimiter(t, s, "torn", core.FixedWindow(per(1e6, 400*day)).Named("a"), core.SlidingLog(core.PerDay(1000)).Named("b"))
	allow(t, two, key, 1)
	slot, from, to := rediskey.HashSlot(s.backend.names.AppendTag(nil, key)), c.Masters[0], c.Masters[1]
	another := ""
	for i := 0; another == ""; i++ { // of the same master
		k := "another" + strconv.Itoa(i)
		if n := rediskey.HashSlot(s.backend.names.AppendTag(nil, k)); n != slot && n*len(c.Masters)/rediskey.HashSlots == 0 {
			another = k
		}
	}
	must := func(server *redistest.Server, words ...string) any {
		t.Helper()
		reply, err := server.Do(words...)
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		return reply
	}
	number := strconv.Itoa(slot)
	must(to, "CLUSTER", "SETSLOT", number, "IMPORTING", must(from, "CLUSTER", "MYID").(string))
	must(from, "CLUSTER", "SETSLOT", number, "MIGRATING", must(to, "CLUSTER", "MYID").(string))
	t.Cleanup(func() {
		c.migrate(t, slot, from, to)
		c.migrate(t, slot, to, from)
	})
	_, port, _ := net.SplitHostPort(to.Addr())
	must(from, "MIGRATE", "127.0.0.1", port, s.cell(t, two, key), "0", "5000")
	for range 10 * maxFailures {
		if _, err := two.Allow(t.Context(), key); !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "TRYAGAIN") {
			t.Fatal(err)
		}
		if s.State().Away {
			t.Fatalf("%+v", s.State())
		}
	}
	allow(t, two, another, 1)
}

// slotMigratesAtOnce is slotMigrates where a server moves whole slots, as Valkey 9 does. No call fails.
func (c clusterTest) slotMigratesAtOnce(t *testing.T) {
	info, err := c.Masters[0].Do("INFO", "server")
	if err != nil {
		t.Fatal(err)
	}
	if version := infoField(info.(string), "valkey_version"); !strings.HasPrefix(version, "9.") {
		return
	}
	failed := c.slotMigrates(t, func(t *testing.T, number int, from, to *redistest.Server) {
		slot, id := strconv.Itoa(number), ""
		if reply, err := to.Do("CLUSTER", "MYID"); err != nil {
			t.Fatal(err)
		} else {
			id = reply.(string)
		}
		if _, err := from.Do("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", id); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the slot to move", func() bool {
			n, err := from.Do("CLUSTER", "COUNTKEYSINSLOT", slot)
			there, err2 := to.Do("CLUSTER", "COUNTKEYSINSLOT", slot)
			return errors.Join(err, err2) == nil && n == int64(0) && there != int64(0)
		})
	})
	if failed > 0 {
		t.Errorf("%d calls failed", failed)
	}
}

// slotMigrates moves a slot, with its keys, from one master to another under load. It returns how many
// calls have failed.
func (c clusterTest) slotMigrates(t *testing.T, migrate func(t *testing.T, number int, from, to *redistest.Server)) (failures int64) {
	const limit = 2000
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, c.Masters.Addrs()...)
	key := c.keysByMaster(s)[0]
	name := t.Name()
	l := newLimiter(t, s, name, core.SlidingLog(core.PerHour(limit)))
	two := newLimiter(t, s, name+" too", core.FixedWindow(per(limit, 400*day)).Named("a"), core.TokenBucket(core.PerDay(1), limit).Named("b"))
	slot := rediskey.HashSlot(s.backend.names.AppendTag(nil, key))

	ctx, stop := context.WithCancel(t.Context())
	var admitted, failed [2]atomic.Int64
	var first, last atomic.Pointer[time.Time] // failures
	var all sync.WaitGroup
	for i, l := range []*core.Limiter{l, two} {
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					if d, err := l.Allow(context.Background(), key); err != nil {
						failed[i].Add(1)
						now := time.Now()
						first.CompareAndSwap(nil, &now)
						last.Store(&now)
					} else if d.Allowed {
						admitted[i].Add(1)
					}
				}
			})
		}
	}
	eventually(t, "some to be admitted", func() bool { return admitted[0].Load() > 100 && admitted[1].Load() > 100 })
	migrate(t, slot, c.Masters[0], c.Masters[1])
	t.Cleanup(func() { c.migrate(t, slot, c.Masters[1], c.Masters[0]) })
	moved := admitted[0].Load()
	eventually(t, "more to be admitted", func() bool { return admitted[0].Load() > moved+100 || admitted[0].Load() >= limit })
	eventually(t, "all to be admitted", func() bool {
		d, err := l.Peek(t.Context(), key)
		e, err2 := two.Peek(t.Context(), key)
		return errors.Join(err, err2) == nil && d.Remaining == 0 && e.Remaining == 0
	})
	stop()
	all.Wait()
	if first.Load() != nil {
		t.Logf("the slot was away for %v", last.Load().Sub(*first.Load()))
	}
	for i := range admitted {
		// What failed may have been charged, and nothing else was.
		n, f := admitted[i].Load(), failed[i].Load()
		t.Logf("limiter %d: %d admitted, %d failed", i, n, f)
		if n > limit || n+f < limit {
			t.Errorf("limiter %d: %d admitted and %d failed, the limit is %d", i, n, f, limit)
		}
		failures += f
	}
	return failures
}

// When one master is away, the failure policy decides for its keys alone.
func (c clusterTest) oneMasterAway(t *testing.T) {
	notShort(t)
	s := open(t, Config{Failure: FailOpen, Timeout: time.Second, RefusalTTL: -1}, c.Masters.Addrs()...)
	keysOf := c.keysByMaster(s)
	l := newLimiter(t, s, "away", core.SlidingWindow(core.PerHour(100_000)))
	for _, key := range keysOf {
		allow(t, l, key, 1)
	}
	c.Masters[2].Pause()
	ctx, stop := context.WithCancel(t.Context())
	var bySource [3][core.SourceOpen + 1]atomic.Int64
	var worst atomic.Int64
	var all sync.WaitGroup
	for i, key := range keysOf {
		for range 5 {
			all.Go(func() {
				for ctx.Err() == nil {
					start := time.Now()
					d, err := l.Allow(context.Background(), key)
					if err != nil {
						t.Error(err)
						return
					}
					bySource[i][d.Source].Add(1)
					if took := int64(time.Since(start)); i != 2 && took > worst.Load() {
						worst.Store(took)
					}
				}
			})
		}
	}
	eventually(t, "the breaker to open", func() bool { return s.State().Away && bySource[2][core.SourceOpen].Load() > 100 })
	stop()
	all.Wait()
	for i := range keysOf {
		if fromStore := bySource[i][core.SourceStore].Load(); i != 2 && bySource[i][core.SourceOpen].Load() > fromStore/20 || i == 2 && fromStore > 0 {
			t.Errorf("master %d: %d decisions by Redis and %d without", i, fromStore, bySource[i][core.SourceOpen].Load())
		}
	}
	t.Logf("the longest decision of the others took %v", time.Duration(worst.Load()))
	c.Masters[2].Resume()
	c.WaitReady()
	eventually(t, "Redis to be asked again", func() bool {
		d := allow(t, l, keysOf[2], 1)
		return d.Source == core.SourceStore && !s.State().Away
	})
}

// A master that is unreachable and one that works have neighbouring hash slots: each
// has a breaker of its own, for rates and for slots.
func TestEachMasterHasItsBreaker(t *testing.T) {
	notShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "cluster-require-full-coverage no")
	store := func() (*Store, *core.Limiter) { // closed at the end: go-redis waits for a server that is paused
		s := open(t, Config{Failure: FailOpen, Timeout: time.Second, RefusalTTL: -1}, cluster.Masters.Addrs()...)
		return s, newLimiter(t, s, "api", core.FixedWindow(per(1_000_000, 400*day)))
	}
	s, l := store()
	fails := keyInSlots(s, 5462, 5500) // the first slots of the second master
	works := keyInSlots(s, 5420, 5461) // the last slots of the first
	without := func(t *testing.T, l *core.Limiter, key string) {
		t.Helper()
		if d := allow(t, l, key, 1); d.Source != core.SourceOpen {
			t.Errorf("%s", describe(&d))
		}
	}
	stored := func(t *testing.T, l *core.Limiter, key string) {
		t.Helper()
		eventually(t, "a decision by Redis", func() bool { return allow(t, l, key, 1).Source == core.SourceStore })
	}
	stored(t, l, fails)
	stored(t, l, works)
	other, l2 := store()
	third, l3 := store()
	stored(t, l2, fails)
	stored(t, l2, works)

	cluster.Masters[1].Pause()
	t.Run("successes of one do not hide failures of another", func(t *testing.T) {
		for range maxFailures {
			if s.State().Away {
				t.Fatalf("%+v", s.State())
			}
			without(t, l, fails)
			stored(t, l, works)
		}
		if !s.State().Away {
			t.Error("the breaker is closed")
		}
		without(t, l, fails)
	})
	t.Run("failures of one do not stop another", func(t *testing.T) {
		for range maxFailures {
			without(t, l2, fails)
		}
		if !other.State().Away {
			t.Error("the breaker is closed")
		}
		for range 2 * maxFailures {
			if d := allow(t, l2, works, 1); d.Source != core.SourceStore {
				t.Error(describe(&d))
			}
		}
	})
	t.Run("a client that has not loaded its table", func(t *testing.T) {
		for range maxFailures {
			without(t, l3, fails)
		}
		stored(t, l3, works)
		if !third.State().Away {
			t.Error("the breaker is closed")
		}
	})

	cluster.Masters[1].Resume()
	for _, s := range []*Store{s, other, third} {
		eventually(t, "the breaker to close", func() bool { return !s.State().Away })
	}
	stored(t, l, fails)
	stored(t, l2, fails)
	t.Run("a slot that no master serves", func(t *testing.T) {
		unserved := keyInSlots(s, 100, 100)
		if _, err := cluster.Masters[0].Do("CLUSTER", "DELSLOTS", "100"); err != nil {
			t.Fatal(err)
		}
		for range 2 * maxFailures {
			without(t, l, unserved)
		}
		if s.State().Away {
			t.Errorf("%+v", s.State())
		}
	})
}

// keyInSlots returns a key whose hash slot is in the range.
func keyInSlots(s *Store, first, last int) string {
	for i := 0; ; i++ {
		key := "key" + strconv.Itoa(i)
		if slot := rediskey.HashSlot(s.backend.names.AppendTag(nil, key)); first <= slot && slot <= last {
			return key
		}
	}
}

// When a replica has taken over from a master, it is used as soon as a probe has found it,
// although the client would look for it only after ten seconds.
func TestClusterFailover(t *testing.T) {
	notShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	s := open(t, Config{Failure: FailOpen, Timeout: 100 * time.Millisecond, RefusalTTL: -1}, cluster.Masters.Addrs()...)
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1_000_000)))
	eventually(t, "a decision by Redis", func() bool { return allow(t, l, "k", 1).Source == core.SourceStore })
	eventually(t, "Check to see all nodes", func() bool { // a master names no replica that has got nothing yet
		r, err := open(t, Config{}, cluster.Masters.Addrs()...).Check(t.Context())
		return err == nil && r.OK() && len(r.Servers) == 6
	})
	name := s.cell(t, l, "k")
	dead := cluster.Owner(name)
	dead.Kill()
	eventually(t, "the master to be missed", func() bool { return allow(t, l, "k", 1).Source == core.SourceOpen && s.State().Away })
	cluster.WaitReady()
	promoted := time.Now()
	eventually(t, "a decision by the replica", func() bool { return allow(t, l, "k", 1).Source == core.SourceStore })
	t.Logf("used %v after all nodes knew that the replica had taken over", time.Since(promoted))
}

// Each probe has the client load its table.
func TestProbesLoadTheTable(t *testing.T) {
	loads := 0
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			loads++
			return []redis.ClusterSlot{{Start: 0, End: rediskey.HashSlots - 1, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}}, nil
		},
	})
	defer client.Close()
	s, err := New(client, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := s.backend.Probe(t.Context(), 0); err == nil || loads != i+1 {
			t.Errorf("%d loads after %d probes: %v", loads, i+1, err)
		}
	}
}
