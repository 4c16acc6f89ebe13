package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
)

// inBubble runs a test against a fake.
func inBubble(t *testing.T, c Config, test func(t *testing.T, f *fake, s *Store, l *core.Limiter)) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		s := f.open(t, c)
		test(t, f, s, newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1_000_000))))
		s.Client().Close()
		f.close()
		time.Sleep(time.Minute)
		// A goroutine that is still there now makes synctest fail.
	})
}

// together asks n questions at the same moment and returns how long the longest
// took, and the decisions.
func together(t *testing.T, l *core.Limiter, n int) (longest time.Duration, ds []core.Decision, errs []error) {
	t.Helper()
	ds, errs = make([]core.Decision, n), make([]error, n)
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			start := time.Now()
			ds[i], errs[i] = l.Allow(context.Background(), fmt.Sprint(i))
			took[i] = time.Since(start)
		})
	}
	all.Wait()
	for _, d := range took {
		longest = max(longest, d)
	}
	return longest, ds, errs
}

func TestNoDecisionTakesLongerThanTheTimeout(t *testing.T) {
	for name, h := range map[string]how{"silent": silence, "refuses connections": refuse} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Failure: FailClosed, Timeout: 70 * time.Millisecond}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
				together(t, l, 10)
				f.be(h)
				for range 5 {
					longest, _, errs := together(t, l, 500)
					if longest > 70*time.Millisecond {
						t.Errorf("a decision took %v", longest)
					}
					for _, err := range errs {
						if !errors.Is(err, core.ErrUnavailable) {
							t.Fatal(err)
						}
					}
				}
			})
		})
	}
}

// Nor does what is no decision.
func TestOthersTakeNoLongerEither(t *testing.T) {
	inBubble(t, Config{Timeout: 70 * time.Millisecond}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		other := newLimiter(t, s, "other", core.TokenBucket(core.PerMinute(1), 1_000_000))
		var cs []core.Charge
		for i := range 4 {
			cs = append(cs, core.Charge{Limiter: l, Key: fmt.Sprint(i), N: 2}, core.Charge{Limiter: other, Key: fmt.Sprint(i), N: 2})
		}
		d, err := core.AllowAll(t.Context(), cs...)
		if err != nil || d.Source != core.SourceStore {
			t.Fatal(err, d)
		}
		f.be(silence)
		for name, call := range map[string]func() error{
			"Refund": func() error { return d.Refund(t.Context()) },
			"Reset":  func() error { return l.Reset(t.Context(), "0") },
		} {
			start := time.Now()
			err := call()
			if took := time.Since(start); err == nil || took > 70*time.Millisecond {
				t.Errorf("%s: took %v, %v", name, took, err)
			}
		}
	})
}

func TestCheckTakesNoLongerThanItsContext(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake, s *Store, _ *core.Limiter) {
		f.be(silence)
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		start := time.Now()
		r, err := s.Check(ctx)
		if took := time.Since(start); r == nil || err == nil || took > 70*time.Millisecond {
			t.Errorf("took %v: %v", took, err)
		}
	})
}

// When an outage is over, what waited and gave up must not be in the way of others.
func TestLaneRecoversFromAnOutage(t *testing.T) {
	inBubble(t, Config{Failure: FailClosed}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		f.be(silence)
		together(t, l, 1000)
		f.be(answer)
		time.Sleep(5 * time.Second)
		if s.State().Away {
			t.Fatal("Redis is away although it answers")
		}
		_, before := f.counts()
		longest, ds, errs := together(t, l, 1000)
		if err := errors.Join(errs...); err != nil || longest > 0 {
			t.Fatalf("took %v: %v", longest, err)
		}
		for _, d := range ds {
			if !d.Allowed || d.Source != core.SourceStore {
				t.Fatal(describe(&d))
			}
		}
		if _, asked := f.counts(); asked != before+1000 {
			t.Errorf("%d questions for 1000", asked-before)
		}
	})
}

// An answer that is lost does not lead to a second charge.
func TestChargesAreNotRepeated(t *testing.T) {
	for name, h := range map[string]how{"hangs up": hangUp, "is silent": silence, "fails": fail} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
				for i := range 5 {
					f.be(answer)
					allow(t, l, "k", 1)
					f.be(h)
					if d := allow(t, l, "k", 1); d.Source != core.SourceOpen {
						t.Error(describe(&d))
					}
					if calls, _ := f.counts(); calls != 2*(i+1) {
						t.Errorf("%d calls for %d questions", calls, 2*(i+1))
					}
				}
			})
		})
	}
}

func TestSettlementsAreNotRepeated(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		d := allow(t, l, "k", 5)
		f.be(hangUp)
		if err := d.Refund(t.Context()); err == nil {
			t.Error("no error")
		}
		f.be(answer)
		if err := d.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
			t.Error(err)
		}
		if calls, _ := f.counts(); calls != 2 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestCancelledQuestions(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		// Before it is asked.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := l.Allow(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: %v", err)
		}
		if calls, _ := f.counts(); calls != 0 {
			t.Fatalf("%d calls for a cancelled question", calls)
		}

		// While it waits to be sent: two are on their way, the others queue.
		f.be(silence)
		ctx, cancel = context.WithCancel(context.Background())
		errs := make(chan error, 20)
		for range cap(errs) {
			go func() {
				_, err := l.Allow(ctx, "k")
				errs <- err
			}()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		f.be(answer)
		cancelled := 0
		for range cap(errs) {
			if err := <-errs; errors.Is(err, context.Canceled) {
				cancelled++
			} else if err != nil {
				t.Error(err)
			}
		}
		if _, asked := f.counts(); asked != maxInFlight || cancelled != cap(errs)-maxInFlight {
			t.Errorf("%d asked and %d cancelled of %d", asked, cancelled, cap(errs))
		}
		if s.State().Away {
			t.Error("Redis is away because askers lost interest")
		}
	})
}

// A question that was cancelled when it had been sent is charged once.
func TestCancelledWhileOnItsWay(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		for range 2 * maxFailures {
			f.be(silence)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			for range maxInFlight + 1 { // the last one waits, and is sent by itself
				go func() {
					l.Allow(ctx, "k")
					done <- struct{}{}
				}()
				synctest.Wait()
			}
			f.be(answer)
			cancel()
			for range maxInFlight + 1 {
				<-done
			}
		}
		synctest.Wait()
		if s.State().Away {
			t.Error("Redis is away because askers lost interest")
		}
		if d := allow(t, l, "k", 1); d.Source != core.SourceStore {
			t.Error(describe(&d))
		}
	})
}

// A caller may reuse its slices as soon as the call has returned, also where the question
// still waits to be sent, or is on its way and nobody waits for the answer any more.
func TestSlicesOfTheCallerAreNotRetained(t *testing.T) {
	for name, sentFirst := range map[string]bool{"queued": false, "sent": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
				f.be(silence)
				var others sync.WaitGroup
				for range maxInFlight {
					others.Go(func() { l.Allow(context.Background(), "k") })
					synctest.Wait()
				}
				cs := []store.Charge{{Limiter: l.Prepared(), Key: "a", N: 1}, {Limiter: l.Prepared(), Key: "b", N: 1}}
				ss := []store.Charge{{Limiter: l.Prepared(), Key: "a", N: 2, Source: core.SourceStore, Actual: 1}}
				ctx, cancel := context.WithCancel(context.Background())
				var callers sync.WaitGroup
				callers.Go(func() { asking.Decide(ctx, s, store.Allow, new(store.Result), cs...) })
				callers.Go(func() { asking.Settle(ctx, s, ss...) })
				synctest.Wait()
				if sentFirst { // those on their way are answered, and the next call is not
					f.answerCalls(maxInFlight)
					synctest.Wait()
				}
				cancel()
				synctest.Wait() // the decision is given up, the settlement is not
				clear(cs)
				f.be(answer)
				callers.Wait()
				clear(ss)
				others.Wait()
				synctest.Wait()
				if _, asked := f.counts(); asked != maxInFlight+1 && !sentFirst || asked != maxInFlight+2 && sentFirst {
					t.Errorf("%d questions were asked", asked)
				}
				if ss[0] != (store.Charge{}) {
					t.Errorf("the settlement has become %+v", ss[0])
				}
			})
		})
	}
}

// A hook that panics does not count as a call in flight for ever: servers recover from
// panics.
func TestHookThatPanicsLeavesTheQueueUsable(t *testing.T) {
	panics := true
	c := Config{Failure: FailClosed, Observer: &core.Observer{Called: func(core.CallEvent) {
		if panics {
			panic("on purpose")
		}
	}}}
	inBubble(t, c, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		panics = true
		for range 2 * maxInFlight {
			func() {
				defer func() { _ = recover() }()
				l.Allow(t.Context(), "k")
			}()
		}
		panics = false
		allow(t, l, "k", 1)
	})
}

func TestMergingSparesCalls(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		f.be(silence)
		go f.afterAll(answer)
		longest, _, errs := together(t, l, 1000)
		if err := errors.Join(errs...); err != nil || longest > 0 {
			t.Fatalf("took %v: %v", longest, err)
		}
		calls, asked := f.counts()
		const most = maxWords / cellWeight // of a call
		const halves = 5                   // the last ones leave half of what waits to the other in flight
		if want := maxInFlight + (1000-maxInFlight)/most + halves; asked != 1000 || calls > want {
			t.Errorf("%d questions in %d calls, want at most %d calls", asked, calls, want)
		}
	})
}

// afterAll changes how the fake is when all others wait.
func (f *fake) afterAll(h how) {
	synctest.Wait()
	f.be(h)
}

func TestUnmerged(t *testing.T) {
	inBubble(t, Config{NoMerging: true}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		together(t, l, 20)
		if calls, asked := f.counts(); calls != 20 || asked != 20 {
			t.Errorf("%d questions in %d calls", asked, calls)
		}
	})
}

// A caller's own deadline bounds a decision that is sent alone, too. That it has come says
// nothing of Redis.
func TestDeadlineOfALoneCaller(t *testing.T) {
	c := Config{Timeout: time.Second, Failure: FailOpen}
	inBubble(t, c, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		allow(t, l, "k", 1)
		f.be(silence)
		for range 2 * maxFailures {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			start := time.Now()
			_, err := l.Allow(ctx, "k")
			if took := time.Since(start); took != 10*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("took %v: %v", took, err)
			}
			cancel()
		}
		if s.State().Away {
			t.Errorf("%+v", s.State())
		}
		f.be(answer)
		synctest.Wait()
		f.be(silence)
		for range maxFailures { // a later deadline than the Timeout's changes nothing
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			start := time.Now()
			d, err := l.Allow(ctx, "k")
			if took := time.Since(start); took != time.Second || err != nil || d.Source != core.SourceOpen {
				t.Errorf("took %v: %v: %s", took, err, describe(&d))
			}
			cancel()
		}
		if !s.State().Away {
			t.Error("the breaker is closed")
		}
	})
}

// A caller that gives up does not end a call that it has sent alone.
func TestCancelOfALoneCaller(t *testing.T) {
	inBubble(t, Config{Timeout: time.Second, Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		f.be(silence)
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan core.Decision)
		go func() {
			d, err := l.Allow(ctx, "k")
			if err != nil {
				t.Error(err)
			}
			answered <- d
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		f.be(answer)
		if d := <-answered; d.Source != core.SourceStore {
			t.Error(describe(&d))
		}
	})
}

func TestResetsAreNotRepeated(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		allow(t, l, "k", 1)
		f.be(hangUp)
		if err := l.Reset(t.Context(), "k"); err == nil {
			t.Error("no error")
		}
		f.be(answer)
		time.Sleep(time.Minute)
		if f.resets != 1 {
			t.Errorf("%d commands for one reset", f.resets)
		}
	})
}

func TestResetWhileRedisIsUnavailable(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		f.be(silence)
		for range maxFailures {
			allow(t, l, "k", 1)
		}
		start := time.Now()
		err := l.Reset(t.Context(), "k")
		if took := time.Since(start); took > 0 || !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("took %v: %v", took, err)
		}
		if d := allow(t, l, "k", 1); d.Source != core.SourceLocal || d.Remaining != d.Limit-1 {
			t.Errorf("the local state was not reset: %s", describe(&d))
		}
		if f.resets != 0 {
			t.Errorf("%d resets were sent", f.resets)
		}
	})
}

// By the time of a settlement, the context of the request has often ended.
func TestSettlingIgnoresTheContext(t *testing.T) {
	server := redistest.Start(t)
	for name, s := range map[string]*Store{
		"Redis": open(t, Config{}, server.Addr()),
		"local": away(t, Config{}),
	} {
		l := newLimiter(t, s, name, core.FixedWindow(per(10, 400*day)))
		ended, cancel := context.WithCancel(t.Context())
		refunded, settled := allow(t, l, "k", 3), allow(t, l, "k", 4)
		cancel()
		if err := refunded.Refund(ended); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := settled.Settle(ended, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d, err := l.Peek(t.Context(), "k"); err != nil || d.Remaining != 9 {
			t.Errorf("%s: %d left of 10 with 1 used: %v", name, d.Remaining, err)
		}
	}
}

// Each master has a queue, however many there are and whatever hash slots they have.
func TestQueueOfEachMaster(t *testing.T) {
	const masters = 100
	var table [rediskey.HashSlots]int // the master of each hash slot
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 []string{"127.0.0.1:1"},
		ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			var ranges []redis.ClusterSlot
			for slot, master := range table {
				if slot == 0 || table[slot-1] != master {
					node := redis.ClusterNode{Addr: fmt.Sprintf("127.0.0.1:%d", 1+master)}
					ranges = append(ranges, redis.ClusterSlot{Start: slot, Nodes: []redis.ClusterNode{node}})
				}
				ranges[len(ranges)-1].End = slot
			}
			return ranges, nil
		},
	})
	defer client.Close()
	s, err := New(client, Config{})
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		byMaster := make(map[int]*remote.Server)
		masterOf := make(map[*remote.Server]int)
		for i := range 20_000 {
			tag := s.backend.names.AppendTag(nil, strconv.Itoa(i))
			master, queue := table[rediskey.HashSlot(tag)], s.backend.servers.of(string(tag))
			if q := byMaster[master]; q != nil && q != queue {
				t.Fatalf("master %d has two queues", master)
			}
			if m, ok := masterOf[queue]; ok && m != master {
				t.Fatalf("masters %d and %d share a queue", m, master)
			}
			byMaster[master], masterOf[queue] = queue, master
		}
		if len(byMaster) != masters {
			t.Errorf("%d queues for %d masters", len(byMaster), masters)
		}
	}
	if queue := s.backend.servers.of("{k}"); queue != &s.backend.servers.first {
		t.Error("the table was loaded for a decision")
	}
	for slot := range table {
		table[slot] = slot * masters / rediskey.HashSlots
	}
	if _, err := client.MasterForKey(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	s.backend.servers.learn()
	check()
	before := s.backend.servers.of("{k}")
	for slot := range table { // every hash slot moves to another master
		table[slot] = (7*slot*masters/rediskey.HashSlots + 1) % masters
	}
	client.ReloadState(t.Context())
	eventually(t, "the table to be loaded", func() bool { return s.backend.servers.of("{k}") != before })
	check()
	if n := testing.AllocsPerRun(100, func() { s.backend.servers.of("{k}") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := len(s.backend.servers.all()); n != masters+1 {
		t.Errorf("%d queues in all", n)
	}
}
