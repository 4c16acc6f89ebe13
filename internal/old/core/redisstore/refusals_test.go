package redisstore

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// stored are charges as the store gets them.
func stored(cs ...core.Charge) (all []store.Charge) {
	for _, c := range cs {
		all = append(all, store.Charge{Limiter: c.Limiter.Prepared(), Key: c.Key, N: c.N})
	}
	return all
}

// The same, seen from outside, on the clock of a bubble.
func TestRefusedKeyIsNotAskedAgain(t *testing.T) {
	server := redistest.Start(t)
	for name, memoryFor := range map[string]time.Duration{"default": 0, "short": 100 * time.Millisecond, "off": -1} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				server.Flush()
				s := open(t, Config{RefusalTTL: memoryFor}, server.Addr())
				bubbleClock().tell(s)
				l := newLimiter(t, s, "api", core.SlidingLog(core.Rate{Events: 3, Per: 5 * time.Second}))
				if n := admitted(t, l, "k", 3); n != 3 {
					t.Fatal(n)
				}
				bound := map[time.Duration]time.Duration{0: time.Second, -1: 0}[memoryFor]
				if memoryFor > 0 {
					bound = memoryFor
				}
				sent := time.Now().Add(-time.Hour) // when the last refusal was asked for
				for elapsed := time.Duration(0); elapsed < 5*time.Second; elapsed += 10 * time.Millisecond {
					before := server.Calls("evalsha")
					d := allow(t, l, "k", 1)
					if d.Allowed || d.RetryAfter != 5*time.Second-elapsed {
						t.Fatalf("after %v: %s", elapsed, describe(&d))
					}
					wantCall := time.Since(sent) >= bound
					if calls := server.Calls("evalsha") - before; (calls == 1) != wantCall || (d.Source == core.SourceStore) != wantCall {
						t.Fatalf("after %v: %d calls, %s", elapsed, calls, describe(&d))
					}
					if wantCall {
						sent = time.Now()
					}
					time.Sleep(10 * time.Millisecond)
				}
				if d := allow(t, l, "k", 1); !d.Allowed {
					t.Error(describe(&d))
				}
			})
		})
	}
}

// A remembered refusal is a use of the plan that the server does not see. The plan still
// counts for a window after it what others are charged.
func TestRememberedRefusalsKeepThePlan(t *testing.T) {
	server := redistest.Start(t)
	bubble.Test(t, func(t *testing.T) {
		s := open(t, Config{}, server.Addr())
		bubbleClock().tell(s)
		long := newLimiter(t, s, "api", core.MinInterval(300*time.Millisecond))
		short := with(t, long, core.MinInterval(100*time.Millisecond))
		for i, call := range []struct {
			after   time.Duration
			l       *core.Limiter
			allowed bool
			source  core.Source
		}{
			{0, long, true, core.SourceStore},
			{0, short, false, core.SourceStore}, // from now on the key has two states
			{0, long, false, core.SourceStore},
			{0, long, false, core.SourceStore}, // remembered, as no other plan has been in between
			{200 * time.Millisecond, long, false, core.SourceCache},
			{0, short, true, core.SourceStore},
			{250 * time.Millisecond, long, false, core.SourceStore},
			{50 * time.Millisecond, long, true, core.SourceStore},
		} {
			time.Sleep(call.after)
			if d := allow(t, call.l, "k", 1); d.Allowed != call.allowed || d.Source != call.source {
				t.Errorf("call %d: %s", i, describe(&d))
			}
		}
	})
}

func TestResetAndRefundAreSeenAtOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: time.Hour}, server.Addr())
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(2)))
	full := func(key string) core.Decision {
		d := allow(t, l, key, 2)
		if refused := allow(t, l, key, 1); !d.Allowed || refused.Allowed {
			t.Fatalf("%s\n%s", describe(&d), describe(&refused))
		}
		if refused := allow(t, l, key, 1); refused.Source != core.SourceCache {
			t.Fatal(describe(&refused))
		}
		return d
	}
	for name, give := range map[string]func(d core.Decision, key string) error{
		"Reset":  func(_ core.Decision, key string) error { return l.Reset(t.Context(), key) },
		"Refund": func(d core.Decision, _ string) error { return d.Refund(t.Context()) },
		"Settle": func(d core.Decision, _ string) error { _, err := d.Settle(t.Context(), 1); return err },
	} {
		d := full(name)
		if err := give(d, name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := allow(t, l, name, 1); !d.Allowed {
			t.Errorf("after %s: %s", name, describe(&d))
		}
	}
}

// A gate holds one command, before Redis gets it or before its reply is seen.
type gate struct {
	before, after atomic.Bool   // whether to hold the next
	held          chan struct{} // gets a value when one is held
	open          chan struct{} // let it pass with a value
}

func (g *gate) hold(here *atomic.Bool) {
	if here.CompareAndSwap(true, false) {
		g.held <- struct{}{}
		<-g.open
	}
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g.hold(&g.before)
		err := next(ctx, cmd)
		g.hold(&g.after)
		return err
	}
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// While an operation that changes a key is in flight, no refusal is given from the cache:
// it may have been executed, and others may have seen that. One that is asked for meanwhile
// does not stay after it.
func TestChangesInFlightAreSeen(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: time.Hour}, server.Addr())
	g := &gate{held: make(chan struct{}), open: make(chan struct{})}
	s.Client().AddHook(g)
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(10)))
	raised := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(12)))
	other := newLimiter(t, s, "other", core.SlidingLog(core.PerHour(10)))
	if _, err := l.Peek(t.Context(), "k"); err != nil { // now Redis knows the script
		t.Fatal(err)
	}
	for name, change := range map[string]func(d core.Decision, key string) error{
		"Reset":  func(_ core.Decision, key string) error { return l.Reset(t.Context(), key) },
		"Refund": func(d core.Decision, _ string) error { return d.Refund(t.Context()) },
		"Settle, less": func(d core.Decision, _ string) error {
			_, err := d.Settle(t.Context(), 1)
			return err
		},
		"Settle, more": func(d core.Decision, _ string) error {
			_, err := d.Settle(t.Context(), 8)
			return err
		},
		"AllowN": func(_ core.Decision, key string) error {
			_, err := l.AllowN(t.Context(), key, 4)
			return err
		},
		"AllowN of another plan": func(_ core.Decision, key string) error {
			_, err := raised.AllowN(t.Context(), key, 4)
			return err
		},
		"AllowAll": func(_ core.Decision, key string) error {
			_, err := core.AllowAll(t.Context(), core.Charge{Limiter: other, Key: key, N: 1}, core.Charge{Limiter: l, Key: key, N: 4})
			return err
		},
	} {
		for where, here := range map[string]*atomic.Bool{"not sent": &g.before, "not answered": &g.after} {
			key := name + where
			d := allow(t, l, key, 5)
			allow(t, l, key, 6)
			if refused := allow(t, l, key, 6); refused.Allowed || refused.Source != core.SourceCache {
				t.Fatalf("%s: %s", key, describe(&refused))
			}
			here.Store(true)
			done := make(chan error)
			go func() { done <- change(d, key) }()
			<-g.held
			fresh := func(when string) {
				t.Helper()
				peek, err := l.Peek(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				d := allow(t, l, key, 6)
				if d.Source == core.SourceCache && when == "in flight" || d.Allowed != (peek.Remaining >= 6) || !d.Allowed && d.Remaining != peek.Remaining {
					t.Errorf("%s, %s: after a peek with %d left: %s", key, when, peek.Remaining, describe(&d))
				}
				after, err := l.Peek(t.Context(), key)
				if err != nil || d.Allowed && after.Remaining != peek.Remaining-6 {
					t.Errorf("%s, %s: %d left, then %s, then %d left, %v", key, when, peek.Remaining, describe(&d), after.Remaining, err)
				}
			}
			fresh("in flight")
			g.open <- struct{}{}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			fresh("ended")
			allow(t, l, key, 11-6) // what is left is less than 6
			fresh("charged")
		}
	}
}

// The same, if the question has to wait for calls in flight each time that it is sent.
func TestRefusalGivenBackWhileCallsAreInFlight(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: time.Hour}, server.Addr())
	g := &gate{held: make(chan struct{}), open: make(chan struct{})}
	s.Client().AddHook(g)
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(10)))
	d := allow(t, l, "k", 10)
	allow(t, l, "k", 1)
	if _, err := l.Peek(t.Context(), "k"); err != nil { // now Redis knows all scripts
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, call := range []func() error{
		func() error { return d.Refund(t.Context()) },
		func() error { _, err := l.Allow(t.Context(), "other"); return err },
	} {
		g.after.Store(true)
		all.Go(func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		})
		<-g.held
	}
	all.Go(func() {
		if d := allow(t, l, "k", 1); !d.Allowed || d.Remaining != 9 {
			t.Error(describe(&d))
		}
	})
	eventually(t, "the question waits", func() bool { _, n := s.backend.servers.first.Load(); return n == 1 })
	g.open <- struct{}{}
	g.open <- struct{}{}
	all.Wait()
}

// A flood of different questions about a key is refused from the cache, although each that is
// asked keeps all from it while it is in flight.
func TestFloodOfQuestionsIsRefusedFromTheCache(t *testing.T) {
	t.Parallel()
	const callers, want, most = 64, 10_000, 200_000
	s := open(t, Config{RefusalTTL: time.Hour}, redistest.Start(t).Addr())
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(8)))
	allow(t, l, "k", 8)
	var asked, cached atomic.Int64
	var all sync.WaitGroup
	for i := range int64(callers) {
		all.Go(func() {
			for j := int64(0); cached.Load() < want && asked.Add(1) <= most; j++ {
				if d := allow(t, l, "k", 1+(i+j)%8); d.Source == core.SourceCache {
					cached.Add(1)
				} else if d.Allowed {
					t.Error(describe(&d))
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d", cached.Load(), asked.Load())
	if cached.Load() < want {
		t.Errorf("%d of %d were refused from the cache", cached.Load(), asked.Load())
	}
}

// A refusal that is peeked, as others are in flight, is as if asked for: if another plan has
// converted the state meanwhile, it is converted back, so that the wait does not begin anew.
func TestRefusalWhilePlansAreInFlight(t *testing.T) {
	s := open(t, Config{NoMerging: true, RefusalTTL: time.Hour}, redistest.Start(t).Addr())
	g := &gate{held: make(chan struct{}), open: make(chan struct{})}
	s.Client().AddHook(g)
	var now atomic.Int64
	now.Store(1e15)
	s.backend.instant = func() string { return strconv.FormatInt(now.Load(), 10) }
	l := newLimiter(t, s, "api", core.TokenBucket(core.PerMinute(5), 5))
	plan := with(t, l, core.TokenBucket(core.PerHour(5), 5))
	if _, err := l.Peek(t.Context(), "k"); err != nil { // now Redis knows the script
		t.Fatal(err)
	}
	for _, n := range []int64{5, 1, 1} {
		allow(t, l, "k", n)
	}
	var all sync.WaitGroup
	g.after.Store(true)
	all.Go(func() { allow(t, l, "k", 2) })
	<-g.held
	var d core.Decision
	g.before.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d = allow(t, l, "k", 1)
	}()
	<-g.held // a peek; it and the other are let pass in any order
	now.Add(1e6)
	allow(t, plan, "k", 1)
	now.Add(1e6)
	g.open <- struct{}{}
	g.open <- struct{}{}
	<-done
	all.Wait()
	now.Add(1e6)
	if again := allow(t, l, "k", 1); d.Allowed || again.Allowed || again.RetryAfter != d.RetryAfter-time.Second {
		t.Errorf("%s\na second later:\n%s", describe(&d), describe(&again))
	}
}

// Charges in turn, of keys in different hash slots, are seen like others.
func TestChargesInTurnAreSeen(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{miniredis.RunT(t).Addr()}, ContextTimeoutEnabled: true})
	defer client.Close()
	s, err := New(client, Config{RefusalTTL: time.Hour, Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerHour(10)))
	ask := func(left int64) {
		t.Helper()
		for range 2 {
			if d := allow(t, l, "a", 9); d.Allowed || d.Remaining != left {
				t.Error(describe(&d))
			}
		}
	}
	together := func(b int64) core.Decision {
		t.Helper()
		d, err := core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "a", N: 3}, core.Charge{Limiter: l, Key: "b", N: b})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	allow(t, l, "a", 2)
	ask(8)
	if d := together(2); !d.Allowed {
		t.Error(describe(&d))
	}
	ask(5)
	if d := together(9); d.Allowed {
		t.Error(describe(&d))
	}
	ask(5)
}
