package redisslots

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
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
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

func hiding(c Config) Config {
	c.Names = rediskey.New("headgate", []byte("a secret of thirty-two bytes or more"))
	return c
}

// Whatever the bytes, different slots and keys have different hashes.
func TestNamesAreDistinct(t *testing.T) {
	s := New(nil, brief(time.Second))
	seen := map[string]string{s.fleet(): "the servers", s.posts()[0]: "the notices"}
	parts := []string{"", "a", "b", "a:b", "a/b", ":", "/", "~", "~3a", "{", "}", "{a}", "slots", ":slots", "a:slots", "=a"}
	for _, name := range parts {
		for _, key := range parts {
			hash := s.hash(name, key)
			if other, ok := seen[hash]; ok {
				t.Errorf("slots %q of key %q and %s: %q", name, key, other, hash)
			}
			seen[hash] = fmt.Sprintf("slots %q of key %q", name, key)
		}
	}
}

// A key whose hash is not ours fails alone: the error has no key, and others are granted.
func TestPoisonedKeyFailsAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, brief(3*time.Second), server.Addr())
	acquires(t, s, "good", 100)
	for i, poison := range [][]string{{"SET", "x"}, {"HSET", "field", "none of ours"}, {"HSET", "field", "1:x"}} {
		key := fmt.Sprint("secret", i)
		if _, err := server.Do(slices.Concat([]string{poison[0], s.hash("ws", key)}, poison[1:])...); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_, err := s.Acquire(t.Context(), claim(key, 1))
			if !errors.Is(err, slots.ErrUnavailable) || contains(fmt.Sprint(err), "secret") {
				t.Errorf("%v: %v", poison, err)
			}
			acquires(t, s, "good", 100)
		}
		if err := s.Away(); err != nil {
			t.Error(err)
		}
	}
}

// A server that has forgotten the scripts is told them again.
func TestScriptsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, brief(3*time.Second), server.Addr())
	for range 3 {
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() { acquires(t, s, fmt.Sprint(i), 10) })
		}
		all.Wait()
		if _, err := server.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
	}
	if !isCounted(t, s, "7", 3) {
		t.Error("a grant was repeated or lost")
	}
}

// What errors of replies are about, as several versions write them.
func TestErrorsOfReplies(t *testing.T) {
	for text, want := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                     true,
		"WRONGTYPE Operation against a key script: c00c, on @user_script:12.":                                   true,
		"ERR Error running script (call to f_c00c): @user_script:1: WRONGTYPE Operation against a key":          true,
		"ERR user_script:33: attempt to perform arithmetic on a nil value script: c00c, on @user_script:33.":    true,
		"ERR Error running script (call to f_c00c): @user_script:33: user_script:33: attempt to perform":        true,
		"ERR Error running script (call to f_c00c): @user_script:1: @user_script: 1: -READONLY You can't write": false,
		"OOM command not allowed when used memory > 'maxmemory'. script: c00c, on @user_script:56.":             false,
		"NOPERM User app has no permissions to run the 'hset' command script: c00c, on @user_script:56.":        false,
		"CLUSTERDOWN Hash slot not served":               false,
		"LOADING Redis is loading the dataset in memory": false,
	} {
		if got := isAboutKey(replyError(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// documented returns the permissions that docs/redis.md tells to give.
func documented(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "    ACL SETUSER app on >password ~headgate:* -@all ")
	line, _, _ := strings.Cut(rest, "\n\n")
	return strings.Fields(line)
}

func as(t *testing.T, server *redistest.Server, name string, permissions []string) *Registry {
	t.Helper()
	words := append([]string{"ACL", "SETUSER", name, "reset", "on", ">password", "~headgate:*", "-@all"}, permissions...)
	if _, err := server.Do(words...); err != nil {
		t.Fatal(err)
	}
	c := brief(3 * time.Second)
	return openWith(t, c, &redis.UniversalOptions{Addrs: []string{server.Addr()}, Username: name, Password: "password"})
}

// The permissions of docs/redis.md suffice for all, also without INFO. Without one that slots need, Check names it.
func TestPermissions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := documented(t)
	withoutInfo := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "+info" })
	s := as(t, server, "app", withoutInfo)
	stop := s.Listen("ws", func(slots.Heard) slots.NoticeAnswer { return slots.NoticeAnswer{Text: "heard"} })
	defer stop()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	g := acquires(t, s, "key", 1)
	wait, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Acquire(wait, slots.Acquisition{Name: "ws", Key: "key", Limit: 1, Queue: 1}); !errors.Is(err, slots.ErrFull) {
		t.Error(err)
	}
	other := as(t, server, "other", withoutInfo)
	ctx, end := context.WithTimeout(t.Context(), 2*time.Second)
	defer end()
	heard := 0
	if silent, err := other.Announce(ctx, slots.Notice{Name: "ws", Key: "key"}, func(string) bool { heard++; return false }); len(silent) > 0 || err != nil || heard != 1 {
		t.Error(silent, err, heard)
	}
	server.Flush() // what is lost is found without INFO, too
	until(t, "counted again", patient, func() bool { return isCounted(t, other, "key", 1) })
	g.Release()
	until(t, "free", patient, func() bool { return isCounted(t, other, "key", 0) })

	rates := []string{"+get", "+set", "+incrby", "+append", "+setrange", "+del", "+info"}
	for _, missing := range all {
		if slices.Contains(rates, missing) && missing != "+get" && missing != "+set" {
			continue
		}
		err := as(t, server, "lacks", slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == missing })).Check(t.Context())
		if !regexp.MustCompile(`(?i)(NOPERM|can't run this command|ACL failure).*`).MatchString(fmt.Sprint(err)) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

// Check finds a server that is away, or takes no writes.
func TestCheckFinds(t *testing.T) {
	t.Parallel()
	for want, line := range map[string]string{"READONLY": "replicaof 127.0.0.1 1", "OOM": "maxmemory 1", "NOREPLICAS": "min-replicas-to-write 1"} {
		if err := open(t, brief(time.Second), redistest.Start(t, line).Addr()).Check(t.Context()); err == nil || !contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if err := open(t, brief(time.Second), "127.0.0.1:1").Check(t.Context()); err == nil {
		t.Error("nobody is there")
	}
	server := redistest.Start(t)
	if err := open(t, brief(time.Second), server.Addr()).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// Servers on miniredis share slots, too.
func TestMiniredis(t *testing.T) {
	t.Parallel()
	addr := miniredis.RunT(t).Addr()
	a, b := open(t, brief(3*time.Second), addr), open(t, brief(3*time.Second), addr)
	g := acquires(t, a, "key", 1)
	if _, err := b.Acquire(t.Context(), claim("key", 1)); !errors.Is(err, slots.ErrFull) {
		t.Error(err)
	}
	g.Release()
	if _, err := b.Acquire(t.Context(), slots.Acquisition{Name: "ws", Key: "key", Limit: 1, Queue: 1}); err != nil {
		t.Error(err)
	}
	for range 3 { // a process is registered once, so its slots are counted after its restart under another name
		if err := b.Close(t.Context(), "ws"); err != nil || !isCounted(t, a, "key", 0) {
			t.Error(err)
		}
	}
}

// On a Cluster, slots of all masters are held together: each may be emptied, or fail, and the others grant. Notices go to
// the master that has them.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	addrs := cluster.Masters.Addrs()
	c := brief(1500 * time.Millisecond)
	a, b := open(t, c, addrs...), open(t, c, addrs...)
	if err := a.Check(t.Context()); err != nil {
		t.Error(err)
	}
	const keys = 60
	for i := range keys {
		acquires(t, a, fmt.Sprint(i), 2)
		acquires(t, b, fmt.Sprint(i), 2)
	}
	all := func(want int64) func() bool {
		return func() bool {
			for i := range keys {
				if !isCounted(t, a, fmt.Sprint(i), want) || !isCounted(t, b, fmt.Sprint(i), want) {
					return false
				}
			}
			return true
		}
	}
	until(t, "all are counted", patient, all(2))
	for i, master := range cluster.Masters {
		master.Flush()
		until(t, fmt.Sprint("counted again after the loss of master ", i), 3*c.TTL/3+c.TTL/15, all(2))
	}
	m := join(t, c, addrs...)
	m.take(t, "noticed")
	if n, silent, err := (&member{Registry: a}).closeAll(t, "noticed", true); n != 1 || len(silent) > 0 || err != nil {
		t.Errorf("%d were given up, %v silent, %v", n, silent, err)
	}

	migrates(t, cluster, a, b)

	// While a master without the beats is away, keys of the others are granted, and those of that one are decided here.
	local := brief(1500 * time.Millisecond)
	local.Failure = outage.FailLocal
	d := open(t, local, addrs...)
	for i := range keys {
		acquires(t, d, fmt.Sprint("d", i), 2)
	}
	beats := cluster.Owner(a.fleet())
	var dead *redistest.Server
	for _, master := range cluster.Masters {
		if master != beats {
			dead = master
		}
	}
	dead.Kill()
	sources := make(map[step.Source]int)
	for i := range keys {
		g := acquires(t, d, fmt.Sprint("d", i), 2)
		if of := cluster.Owner(d.hash("ws", fmt.Sprint("d", i))); (of == dead) != (g.Source == step.SourceLocal) {
			t.Errorf("key d%d was granted by %s", i, g.Source)
		}
		sources[g.Source]++
		if sources[step.SourceLocal] > 3 && sources[step.SourceStore] > 3 {
			break
		}
	}
	until(t, "away", patient, func() bool {
		g, err := d.Acquire(t.Context(), claim("d1", 9))
		_ = g
		return err == nil && d.Away() != nil
	})
}

// migrates moves a key from one master to another while two processes acquire and release its slots: never more than the
// limit is held, and all is counted where it has moved.
func migrates(t *testing.T, cluster *redistest.Cluster, a, b *Registry) {
	t.Helper()
	const limit = 3
	acquires(t, a, "moves", limit)
	ctx, stop := context.WithCancel(t.Context())
	var held, granted atomic.Int64
	var all sync.WaitGroup
	for _, s := range []*Registry{a, a, b, b} {
		all.Go(func() {
			for ctx.Err() == nil {
				g, err := s.Acquire(ctx, slots.Acquisition{Name: "ws", Key: "moves", Limit: limit, Queue: 5})
				if err != nil {
					<-time.After(time.Millisecond) // so that the servers get the processor
					continue
				}
				if n := held.Add(1); n > limit-1 {
					t.Errorf("%d of %d are held", n+1, limit)
				}
				granted.Add(1)
				held.Add(-1)
				g.Release()
			}
		})
	}
	name := a.hash("ws", "moves")
	from := cluster.Owner(name)
	to := cluster.Masters[0]
	if to == from {
		to = cluster.Masters[1]
	}
	must := func(server *redistest.Server, words ...string) any {
		t.Helper()
		reply, err := server.Do(words...)
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		return reply
	}
	slot, owner := fmt.Sprint(rediskey.HashSlot([]byte(name))), must(to, "CLUSTER", "MYID").(string)
	must(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", must(from, "CLUSTER", "MYID").(string))
	must(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", owner)
	_, port, _ := strings.Cut(to.Addr(), ":")
	must(from, "MIGRATE", "127.0.0.1", port, name, "0", "5000")
	must(to, "CLUSTER", "SETSLOT", slot, "NODE", owner) // first: others learn it from there
	for _, server := range cluster.Masters {
		must(server, "CLUSTER", "SETSLOT", slot, "NODE", owner)
	}
	before := granted.Load()
	until(t, "granted where it has moved", patient, func() bool { return granted.Load() > before+100 })
	stop()
	all.Wait()
	until(t, "counted where it has moved", patient, func() bool { return isCounted(t, b, "moves", 1) })
}

// A replica that takes over is used, and right again within three beats.
func TestClusterFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	c := brief(1500 * time.Millisecond)
	s := open(t, c, cluster.Masters.Addrs()...)
	for i := range 30 {
		acquires(t, s, fmt.Sprint(i), 1)
	}
	cluster.Owner(s.fleet()).Kill()
	cluster.WaitReady()
	other := open(t, c, cluster.Nodes().Running().Addrs()...)
	until(t, "counted", patient, func() bool { return isCounted(t, other, "7", 1) && s.Away() == nil })
	<-time.After(c.TTL)
	for i := range 30 {
		if _, err := other.Acquire(t.Context(), claim(fmt.Sprint(i), 1)); !errors.Is(err, slots.ErrFull) {
			t.Errorf("key %d: %v", i, err)
		}
	}
}

// A failover by Sentinel, planned or not, loses no slot for longer than three beats, and a key that was released and
// forgotten before is free after it.
func TestSentinel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	c := brief(1500 * time.Millisecond)
	client := func() *Registry {
		return openWith(t, c, &redis.UniversalOptions{Addrs: sentinel.Addrs(), MasterName: redistest.MasterName})
	}
	a, b := client(), client()
	var held []slots.Grant
	for i := range 50 {
		held = append(held, acquires(t, a, fmt.Sprint(i), 1))
	}
	for i := 25; i < 50; i++ {
		held[i].Release()
	}
	<-time.After(c.TTL)
	sentinel.KillMaster()
	until(t, "right again", 30*time.Second, func() bool {
		for i := range 50 {
			want := int64(1)
			if i >= 25 {
				want = 0
			}
			if !isCounted(t, b, fmt.Sprint(i), want) {
				return false
			}
		}
		return true
	})
	if _, err := b.Acquire(t.Context(), claim("3", 1)); !errors.Is(err, slots.ErrFull) {
		t.Error(err)
	}
	acquires(t, b, "40", 1)
}

// With Redis 60 ms away, waits that end while a call is on its way are full all the same, if an answer came before.
func TestWaitsEndFar(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	holder, s := open(t, brief(3*time.Second), server.Addr()), open(t, brief(3*time.Second), proxy.Addr())
	acquires(t, holder, "key", 1)
	if _, err := s.Acquire(t.Context(), claim("key", 1)); !errors.Is(err, slots.ErrFull) {
		t.Fatal(err)
	}
	proxy.Delay(30 * time.Millisecond)
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond+rand.N(200*time.Millisecond))
			defer cancel()
			_, err := s.Acquire(ctx, slots.Acquisition{Name: "ws", Key: "key", Limit: 1, Queue: 100})
			if !errors.Is(err, slots.ErrFull) || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Two processes with 50 waiters each get at least a quarter of the grants each, over Redis.
func TestTurns(t *testing.T) {
	if testing.Short() {
		t.Skip("package keeper has the same without Redis")
	}
	server := redistest.Start(t)
	const limit, span = 2, 3 * time.Second
	var granted [2]atomic.Int64
	ctx, stop := context.WithTimeout(t.Context(), span)
	defer stop()
	var all sync.WaitGroup
	for i := range granted {
		s := open(t, defaults(), server.Addr())
		for range 50 {
			all.Go(func() {
				for ctx.Err() == nil {
					if g, err := s.Acquire(ctx, slots.Acquisition{Name: "ws", Key: "key", Limit: limit, Queue: 50}); err == nil {
						granted[i].Add(1)
						<-time.After(20 * time.Millisecond)
						g.Release()
					}
				}
			})
		}
	}
	all.Wait()
	a, b := granted[0].Load(), granted[1].Load()
	t.Log(a, b)
	if min(a, b)*4 < a+b {
		t.Errorf("%d and %d grants", a, b)
	}
}
