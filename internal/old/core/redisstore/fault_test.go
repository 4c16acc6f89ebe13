package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A load asks again and again, from many goroutines.
type load struct {
	admitted, refused, failed atomic.Int64
	bySource                  [core.SourceOpen + 1]atomic.Int64
	longest                   atomic.Int64

	end context.CancelFunc
	all sync.WaitGroup
}

// start begins: each asker pauses between its questions.
func (n *load) start(t *testing.T, l *core.Limiter, askers int, pause time.Duration, key func(asker int) string) {
	ctx, end := context.WithCancel(t.Context())
	n.end = end
	for i := range askers {
		n.all.Go(func() {
			for ctx.Err() == nil {
				n.ask(t, l, key(i))
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
}

func (n *load) ask(t *testing.T, l *core.Limiter, key string) {
	start := time.Now()
	d, err := l.Allow(context.Background(), key)
	took := int64(time.Since(start))
	for old := n.longest.Load(); took > old && !n.longest.CompareAndSwap(old, took); old = n.longest.Load() {
	}
	switch {
	case errors.Is(err, core.ErrUnavailable):
		n.failed.Add(1)
		return
	case err != nil:
		t.Error(err)
	case d.Allowed:
		n.admitted.Add(1)
	default:
		n.refused.Add(1)
	}
	n.bySource[d.Source].Add(1)
}

func (n *load) worst() time.Duration { return time.Duration(n.longest.Load()) }

func (n *load) stop() {
	n.end()
	n.all.Wait()
}

func (n *load) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			n.stop()
		}
	}()
	eventually(t, what, holds)
}

// A fault is one way for Redis to be away, and back.
type fault struct {
	name  string
	begin func(*redistest.Server, *redistest.Proxy)
	end   func(*redistest.Server, *redistest.Proxy)
}

var outages = []fault{
	{"killed", func(s *redistest.Server, _ *redistest.Proxy) { s.Kill() },
		func(s *redistest.Server, _ *redistest.Proxy) { s.Restart() }},
	{"paused", func(s *redistest.Server, _ *redistest.Proxy) { s.Pause() },
		func(s *redistest.Server, _ *redistest.Proxy) { s.Resume() }},
	{"cut off", func(_ *redistest.Server, p *redistest.Proxy) { p.Cut() },
		func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"black hole", func(_ *redistest.Server, p *redistest.Proxy) { p.Blackhole() },
		func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"deaf", func(_ *redistest.Server, p *redistest.Proxy) { p.Deafen() },
		func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"slow", func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(time.Second) },
		func(_ *redistest.Server, p *redistest.Proxy) { p.Heal() }},
	{"read-only", func(s *redistest.Server, _ *redistest.Proxy) { s.Do("REPLICAOF", "127.0.0.1", "1") },
		func(s *redistest.Server, _ *redistest.Proxy) { s.Do("REPLICAOF", "NO", "ONE") }},
	{"full", func(s *redistest.Server, _ *redistest.Proxy) { s.Do("CONFIG", "SET", "maxmemory", "1") },
		func(s *redistest.Server, _ *redistest.Proxy) { s.Do("CONFIG", "SET", "maxmemory", "0") }},
}

// A decision that waited for the client, by the client's own timeouts, would take clientWaits
// or more. One that does not takes much less than slack, however busy the machine is.
const clientWaits, slack = 2 * time.Minute, time.Minute

func TestOutages(t *testing.T) {
	policies := []Failure{FailLocal, FailOpen, FailClosed}
	if testing.Short() {
		policies = policies[:1]
	}
	for _, policy := range policies {
		t.Run([...]string{"FailLocal", "FailOpen", "FailClosed"}[policy], func(t *testing.T) {
			server := redistest.Start(t)
			for _, o := range outages {
				t.Run(o.name, func(t *testing.T) { outage(t, server, o, policy) })
			}
		})
	}
}

// outage lets many ask before, while and after Redis is away.
func outage(t *testing.T, server *redistest.Server, o fault, policy Failure) {
	const timeout, askers = 100 * time.Millisecond, 50
	proxy := redistest.NewProxy(t, server.Addr())
	before := runtime.NumGoroutine()
	// As Open makes it, but for its timeouts.
	client := redis.NewClient(&redis.Options{
		Addr: proxy.Addr(), ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1,
		DialTimeout: clientWaits, ReadTimeout: clientWaits, WriteTimeout: clientWaits, PoolTimeout: clientWaits,
	})
	var changes changes
	s, err := New(client, Config{Failure: policy, Timeout: timeout, Observer: &core.Observer{Changed: changes.add}})
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(5)))
	eventually(t, "a first decision", func() bool {
		d, err := l.Allow(t.Context(), "first")
		return err == nil && d.Source == core.SourceStore
	})

	var up load
	var fresh atomic.Int64
	up.start(t, l, askers, 5*time.Millisecond, func(i int) string {
		if i%2 == 0 {
			return fmt.Sprint("key", i)
		}
		return fmt.Sprint("fresh", o.name, fresh.Add(1))
	})
	up.await(t, "limits to be reached", func() bool { return up.refused.Load() > askers })
	o.begin(server, proxy)
	away := time.Now()
	up.await(t, "the breaker to open", func() bool { return s.State().Away })
	opened := time.Since(away)
	up.await(t, "decisions without Redis", func() bool {
		return up.failed.Load()+up.bySource[core.SourceLocal].Load()+up.bySource[core.SourceOpen].Load() > 10*askers
	})
	up.stop()
	if n := up.worst(); n > timeout+slack {
		t.Errorf("a decision took %v", n)
	}

	// Now nobody waits any more.
	var quick load
	start := time.Now()
	for i := range 200 {
		quick.ask(t, l, fmt.Sprint("quick", i))
	}
	if took := time.Since(start); took > 100*timeout { // half of what waiting would take
		t.Errorf("200 decisions took %v although Redis was known to be away", took)
	}
	switch policy {
	case FailLocal: // the local limit holds
		var local load
		for range 20 {
			local.ask(t, l, "local")
		}
		if a, r := local.admitted.Load(), local.bySource[core.SourceLocal].Load(); a != 5 || r != 20 {
			t.Errorf("%d of 20 admitted locally, the limit is 5; %d were local", a, r)
		}
	case FailOpen:
		if a, r := quick.admitted.Load(), quick.bySource[core.SourceOpen].Load(); a != 200 || r != 200 {
			t.Errorf("%d of 200 admitted, %d open", a, r)
		}
	case FailClosed:
		if n := quick.failed.Load(); n != 200 {
			t.Errorf("%d of 200 failed", n)
		}
	}

	o.end(server, proxy)
	back := time.Now()
	eventually(t, "the breaker to close", func() bool { return !s.State().Away })
	recovered := time.Since(back)
	eventually(t, "the limit to be kept by Redis again", func() bool {
		var after load
		key := fmt.Sprint("after", fresh.Add(1), o.name, policy)
		for range 8 {
			after.ask(t, l, key)
		}
		// The last refusals are cached.
		return after.admitted.Load() == 5 && after.bySource[core.SourceStore].Load() == 6 && after.bySource[core.SourceCache].Load() == 2
	})
	eventually(t, "to be told that Redis went away, and is back", func() bool {
		got := changes.list()
		for i, reason := range got {
			if (reason == nil) != (i%2 == 1) {
				t.Fatalf("told of %v", got)
			}
		}
		return len(got) > 0 && len(got)%2 == 0
	})
	t.Logf("longest decision %v; away after %v, then %v; back after %v", up.worst(), opened, quick.worst(), recovered)

	// Whatever hung, hangs no longer.
	client.Close()
	proxy.Cut()
	eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}

// changes are what a hook was told.
type changes struct {
	mu  sync.Mutex
	all []error
}

func (c *changes) add(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, reason)
}

func (c *changes) list() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// Replies that are lost, in whole or in part, cost decisions, but charge nothing twice.
func TestLostRepliesChargeNothingTwice(t *testing.T) {
	t.Parallel()
	const limit = 1_000_000
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	var questions atomic.Int64
	s, err := New(client, Config{Failure: FailClosed, Timeout: time.Second, Observer: &core.Observer{
		Called: func(e core.CallEvent) { questions.Add(int64(e.Questions)) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var calls atomic.Int64 // those of probes too
	client.AddHook(&failing{fails: func(words []any) bool {
		if name := words[0]; name == "eval" || name == evalSHA {
			calls.Add(1)
		}
		return false
	}})
	// No log: one that has to grow may take a second call, in which nothing is repeated.
	l := newLimiter(t, s, "api", core.FixedWindow(per(limit, 400*day)).Named("a"), core.SlidingWindow(per(limit, 400*day)).Named("b"))
	allow(t, l, "k", 1) // the server learns the script
	server.ResetStats()
	calls.Store(0)
	questions.Store(1)
	var n load
	n.start(t, l, 20, time.Millisecond, func(int) string { return "k" })
	for i := range 40 {
		seen := n.admitted.Load()
		n.await(t, "some to be admitted", func() bool { return n.admitted.Load() > seen+20 })
		proxy.CutMidReply(i % 20)
	}
	n.stop()
	proxy.Heal()
	eventually(t, "the breaker to close", func() bool { return !s.State().Away })
	if run, sent := server.Calls("evalsha", "eval"), calls.Load(); run > sent {
		t.Errorf("%d calls of %d were run", run, sent)
	}
	var d core.Decision
	eventually(t, "an answer", func() bool { d, err = l.Peek(t.Context(), "k"); return err == nil })
	for i := range d.Len() {
		charged := limit - d.Answer(i).Remaining
		if charged > questions.Load() || charged < 1+n.admitted.Load() {
			t.Errorf("policy %d: %d charged, %d asked, %d admitted", i, charged, questions.Load(), n.admitted.Load())
		}
	}
	if n.failed.Load() == 0 {
		t.Error("no reply was lost")
	}
	t.Logf("%d charged, %d asked, %d admitted, %d failed", limit-d.Remaining, questions.Load(), n.admitted.Load(), n.failed.Load())
}

// A server that is emptied, or forgets the scripts, goes on deciding.
func TestForgetfulServer(t *testing.T) {
	t.Parallel()
	const limit = 500
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	for name, forget := range map[string]struct {
		words []string
		most  int64 // units that may be admitted
	}{
		"SCRIPT FLUSH": {[]string{"SCRIPT", "FLUSH"}, limit},
		"FLUSHALL":     {[]string{"FLUSHALL"}, 2 * limit},
	} {
		l := newLimiter(t, s, name, somePolicies(4, limit)...)
		var n load
		n.start(t, l, 20, time.Millisecond, func(int) string { return "k" })
		n.await(t, "half to be admitted", func() bool { return n.admitted.Load() > limit/2 })
		server.Do(forget.words...)
		n.await(t, "all to be admitted", func() bool { return n.refused.Load() > 100 })
		n.stop()
		if a := n.admitted.Load(); a > forget.most || a < limit || n.failed.Load() > 0 || s.State().Away {
			t.Errorf("%s: %d admitted, %d failed", name, a, n.failed.Load())
		}
	}
}
