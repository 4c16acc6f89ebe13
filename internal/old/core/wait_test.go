package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// idle fails the test if somebody still waits.
func idle(t *testing.T, l *core.Limiter) {
	t.Helper()
	if n := l.Waiting(); n != 0 {
		t.Errorf("%d keys are still waited for", n)
	}
}

// TestWait waits exactly as long as it must.
func TestWait(t *testing.T) {
	for _, test := range []struct {
		policy core.Policy
		n      int64
		want   []time.Duration // when each call returns
	}{
		{core.MinInterval(100 * time.Millisecond), 1, []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}},
		{core.TokenBucket(core.PerSecond(2), 2), 1, []time.Duration{0, 0, 500 * time.Millisecond, time.Second}},
		{core.TokenBucket(core.PerSecond(2), 2), 2, []time.Duration{0, time.Second, 2 * time.Second}},
		{core.TokenBucket(core.PerSecond(3), 2), 1, []time.Duration{0, 0, 333_334 * time.Microsecond, 666_667 * time.Microsecond, time.Second}},
		{core.SlidingLog(core.PerMinute(2)), 1, []time.Duration{0, 0, time.Minute, time.Minute, 2 * time.Minute}},
		{core.FixedWindow(core.PerMinute(2)), 2, []time.Duration{0, time.Minute, 2 * time.Minute}}, // bubbles begin with a minute
		{core.Unlimited(), 5, []time.Duration{0, 0, 0}},
	} {
		t.Run(test.policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newStore(), "api", test.policy)
				start := time.Now()
				for i, want := range test.want {
					d, err := l.WaitN(t.Context(), "key", test.n)
					if err != nil || !d.Allowed {
						t.Fatalf("call %d: %v, %v", i, d, err)
					}
					if got := time.Since(start); got != want {
						t.Errorf("call %d returned after %v, want %v", i, got, want)
					}
				}
				idle(t, l)
			})
		})
	}
}

// TestWaitersAreServedInOrder, one by one, and each key by itself.
func TestWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api", core.MinInterval(time.Second))
		start := time.Now()
		var mu sync.Mutex
		served := map[string][]int{}
		var wg sync.WaitGroup
		for i := range 50 {
			for _, key := range []string{"a", "b"} {
				wg.Go(func() {
					if _, err := l.Wait(t.Context(), key); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					if want := time.Duration(i) * time.Second; time.Since(start) != want {
						t.Errorf("waiter %d of %s was served after %v, want %v", i, key, time.Since(start), want)
					}
					served[key] = append(served[key], i)
				})
			}
			synctest.Wait() // the next one comes when these are in line
		}
		wg.Wait()
		for key, order := range served {
			if len(order) != 50 || !slices.IsSorted(order) {
				t.Errorf("%s: served in the order %v", key, order)
			}
		}
		idle(t, l)
	})
}

// TestPlansWaitInOneLine: a plan's waiter that could be served at once does not overtake
// one of another plan that called before it.
func TestPlansWaitInOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newLimiter(t, newStore(), "api", core.MinInterval(10*time.Second))
		fast, err := slow.With(core.MinInterval(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		unlimited, err := fast.With(core.Unlimited())
		if err != nil {
			t.Fatal(err)
		}
		allow(t, slow, "key", 1)
		start := time.Now()
		var wg sync.WaitGroup
		for _, test := range []struct {
			name    string
			limiter *core.Limiter
			want    time.Duration
		}{{"slow", slow, 10 * time.Second}, {"fast", fast, 11 * time.Second}, {"unlimited", unlimited, 0}} {
			wg.Go(func() {
				d, err := test.limiter.Wait(t.Context(), "key")
				if err != nil || !d.Allowed || time.Since(start) != test.want {
					t.Errorf("%s: %v, %v after %v, want %v", test.name, d, err, time.Since(start), test.want)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		idle(t, fast)
	})
}

// TestWaitWithoutLimitHeedsTheContext, as any other wait does.
func TestWaitWithoutLimitHeedsTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := newLimiter(t, newStore(), "api", core.Unlimited())
	if d, err := l.Wait(ctx, "key"); !errors.Is(err, context.Canceled) || d.Allowed {
		t.Errorf("%v, %v", d, err)
	}
}

// TestKeysWaitApart: who waits for a key is not in the way of others.
func TestKeysWaitApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api", core.MinInterval(time.Hour))
		allow(t, l, "a", 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Wait(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		start := time.Now()
		if _, err := l.Wait(t.Context(), "b"); err != nil || time.Since(start) != 0 {
			t.Errorf("b waited %v, %v", time.Since(start), err)
		}
		wg.Wait()
		idle(t, l)
	})
}

// A countedStore counts the decisions about one charge.
type countedStore struct {
	core.Store

	asked int
}

func (s *countedStore) Ask(ctx context.Context, q *store.Question) error {
	s.asked++
	return s.Store.Ask(ctx, q)
}

// TestWaitersAskOneAtATime: those who stand in line do not ask the store.
func TestWaitersAskOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countedStore{Store: newStore()}
		l := newLimiter(t, s, "api", core.MinInterval(time.Second))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := l.Wait(t.Context(), "key"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if want := 20 + 19; s.asked != want { // each once it may, and each but the first when it is its turn
			t.Errorf("the store was asked %d times, want %d", s.asked, want)
		}
	})
}

// TestWaitGivesUp: with an error, nothing is charged, and nobody is kept waiting.
func TestWaitGivesUp(t *testing.T) {
	type wait struct {
		after time.Duration // when the call returns
		err   error
		asked bool // the decision is a refusal that the store gave
	}
	withDeadline := func(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
		return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
	}
	cancelled := func(after time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
		return func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			if after == 0 {
				cancel()
			} else {
				time.AfterFunc(after, cancel)
			}
			return ctx, cancel
		}
	}
	for _, test := range []struct {
		name    string
		n       int64
		context func(context.Context) (context.Context, context.CancelFunc)
		ahead   bool // somebody else has the turn, for a second
		want    wait
	}{
		{"the deadline is too near", 1, withDeadline(999 * time.Millisecond), false, wait{0, context.DeadlineExceeded, true}},
		{"the deadline suffices", 1, withDeadline(1001 * time.Millisecond), false, wait{time.Second, nil, true}},
		{"cancelled before", 1, cancelled(0), false, wait{0, context.Canceled, false}},
		{"cancelled meanwhile", 1, cancelled(400 * time.Millisecond), false, wait{400 * time.Millisecond, context.Canceled, true}},
		{"never", 3, cancelled(time.Hour), false, wait{0, core.ErrNever, true}},
		{"no units", 0, cancelled(time.Hour), false, wait{0, core.ErrCost, false}},
		{"never, and somebody is in line", 3, cancelled(time.Hour), true, wait{0, core.ErrNever, true}},
		{"no units, and somebody is in line", 0, cancelled(time.Hour), true, wait{0, core.ErrCost, false}},
		{"cancelled in line", 1, cancelled(400 * time.Millisecond), true, wait{400 * time.Millisecond, context.Canceled, false}},
		{"the deadline passes in line", 1, withDeadline(400 * time.Millisecond), true, wait{400 * time.Millisecond, context.DeadlineExceeded, false}},
		{"the deadline is too near after the line", 1, withDeadline(1500 * time.Millisecond), true, wait{time.Second, context.DeadlineExceeded, true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, newStore(), "api", core.TokenBucket(core.PerSecond(1), 2))
				allow(t, l, "key", 2)
				var wg sync.WaitGroup
				if test.ahead {
					wg.Go(func() {
						if _, err := l.Wait(t.Context(), "key"); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				start := time.Now()
				ctx, cancel := test.context(t.Context())
				defer cancel()
				d, err := l.WaitN(ctx, "key", test.n)
				after, asked := time.Since(start), d.Len() > 0
				if !errors.Is(err, test.want.err) || after != test.want.after || asked != test.want.asked {
					t.Errorf("after %v: %v, asked %v; want %+v", after, err, asked, test.want)
				}
				if d.Allowed != (test.want.err == nil) {
					t.Errorf("decision %v", d)
				}
				wg.Wait()
				idle(t, l)
				time.Sleep(time.Hour) // full again, unless something was charged into the future
				if got := left(t, l, "key"); got != 2 {
					t.Errorf("%d left, want 2", got)
				}
			})
		})
	}
}

// TestGivingUpCostsNothing: who leaves the line delays nobody.
func TestGivingUpCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api", core.MinInterval(time.Second))
		allow(t, l, "key", 1)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				ctx := t.Context()
				if i%3 != 2 { // two of three leave, some of them when they have the turn
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(time.Duration(i*100)*time.Millisecond, cancel)
				}
				_, err := l.Wait(ctx, "key")
				if (err == nil) != (i%3 == 2) {
					t.Errorf("waiter %d: %v", i, err)
				}
				if want := time.Duration(i/3+1) * time.Second; err == nil && time.Since(start) != want {
					t.Errorf("waiter %d was served after %v, want %v", i, time.Since(start), want)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		idle(t, l)
	})
}

// TestWaitAmongOthers: who does not stand in line may take what a waiter waits for;
// the waiter then waits on.
func TestWaitAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api", core.MinInterval(time.Second))
		allow(t, l, "key", 1)
		start := time.Now()
		time.AfterFunc(500*time.Millisecond, func() {
			if err := l.Reset(t.Context(), "key"); err != nil {
				t.Error(err)
			}
			allow(t, l, "key", 1)
		})
		if _, err := l.Wait(t.Context(), "key"); err != nil || time.Since(start) != 1500*time.Millisecond {
			t.Errorf("served after %v, %v; want 1.5s", time.Since(start), err)
		}
		idle(t, l)
	})
}

// TestWaitEndsWithItsDeadline: whichever comes first, the decision is the last refusal.
func TestWaitEndsWithItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api", core.MinInterval(time.Second))
		for i := range 200 {
			key := fmt.Sprint(i)
			allow(t, l, key, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			d, err := l.Wait(ctx, key)
			cancel()
			if d.Policy != "api" || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%+v, %v", d, err)
			}
		}
	})
}

// TestWaitNever: a store that says so is believed.
func TestWaitNever(t *testing.T) {
	s := newFakeStore(t)
	s.answer = says(false, say{false, step.Reading{RetryAfter: step.Never}})
	l := newLimiter(t, s, "api", core.MinInterval(time.Second))
	if d, err := l.Wait(t.Context(), "key"); !errors.Is(err, core.ErrNever) || d.Policy != "api" {
		t.Errorf("%v, %v", d, err)
	}
	idle(t, l)
}

// TestWaitersAreNotPrinted: a limiter that somebody prints shows no keys.
func TestWaitersAreNotPrinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(), "api", core.MinInterval(time.Second))
		d := allow(t, l, "secret", 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.Wait(ctx, "secret"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		type inside struct {
			Exported   *core.Limiter
			unexported *core.Limiter
			decision   core.Decision
		}
		for _, v := range []any{l, inside{l, l, d}, &inside{l, l, d}, []*core.Limiter{l}} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				got := fmt.Sprintf(verb, v)
				if strings.Contains(got, "secret") || strings.Contains(got, fmt.Sprintf("%x", "secret")) {
					t.Errorf("%s of a %T prints %.2000s", verb, v, got)
				}
			}
		}
		if got := fmt.Sprint(l); got != `limiter "api"` {
			t.Errorf("a limiter is printed as %s", got)
		}
		cancel()
		wg.Wait()
		idle(t, l)
	})
}

// A distantStore answers after a while, and counts the calls, and the units that were asked
// for by callers that did not wait for the answer.
type distantStore struct {
	core.Store

	mu    sync.Mutex
	calls int
	lost  int64
}

func (s *distantStore) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode != store.Allow {
		return s.Store.Ask(ctx, q)
	}
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	err := s.Store.Ask(ctx, q)
	select {
	case <-time.After(10 * time.Millisecond):
		return err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lost += q.Charges[0].N
		return ctx.Err()
	}
}

// TestLineAsksTogether: the first in line asks for those behind it, who get the units in the
// order in which they came, and everybody's decision is reported.
func TestLineAsksTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var admitted atomic.Int64
		s := &distantStore{Store: memstore.New(memstore.Config{Observer: &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) {
			if e.Allowed && e.Units == 1 {
				admitted.Add(1)
			}
		}}})}
		l := newLimiter(t, s, "api", core.SlidingLog(core.PerSecond(10)))
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				d, err := l.Wait(t.Context(), "key")
				if err != nil || !d.Allowed || d.Policy != "api" || d.Limit != 10 {
					t.Errorf("%v, %v", d, err)
				}
				// Of the first ten one asks alone, and nine together.
				second := time.Duration(i / 10)
				if took := time.Since(start); took < second*time.Second || took > second*1010*time.Millisecond+50*time.Millisecond {
					t.Errorf("%d is served after %v", i, took)
				}
				if i == 99 { // and what one has can be given back
					before := left(t, l, "key")
					if err := d.Refund(t.Context()); err != nil || left(t, l, "key") != before+1 {
						t.Error(before, err)
					}
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		idle(t, l)
		if s.calls > 40 || admitted.Load() != 100 {
			t.Errorf("%d calls, %d reported", s.calls, admitted.Load())
		}
	})
}

// TestLineKeepsItsOrder: nobody behind one who waits for more, or for another plan, is served
// before, and each is charged what it waits for.
func TestLineKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, &distantStore{Store: newStore()}, "api", core.FixedWindow(perAge(13)))
		plan, err := l.With(core.FixedWindow(perAge(20)))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for i, c := range []struct {
			limiter *core.Limiter
			n       int64
			call    int // of the store, from 1
		}{{l, 1, 1}, {l, 1, 2}, {l, 1, 2}, {l, 5, 3}, {l, 1, 3}, {plan, 1, 4}, {l, 1, 5}, {l, 2, 6}} {
			wg.Go(func() {
				d, err := c.limiter.WaitN(t.Context(), "key", c.n)
				if err != nil || d.Limit != c.limiter.Policies()[0].Limit() {
					t.Errorf("%d: %v, %v", i, d, err)
				}
				if took := time.Since(start); took != time.Duration(c.call)*10*time.Millisecond {
					t.Errorf("%d is served after %v", i, took)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		idle(t, l)
		if n := left(t, l, "key"); n != 0 {
			t.Errorf("%d left", n)
		}
	})
}

// TestLineLosesNothing: units that were charged for those who then leave are given back, and
// the first takes none with it that it asked for others.
func TestLineLosesNothing(t *testing.T) {
	const callers, limit = 1000, 2000
	synctest.Test(t, func(t *testing.T) {
		s := &distantStore{Store: newStore()}
		l := newLimiter(t, s, "api", core.FixedWindow(perAge(limit)))
		random := rand.New(rand.NewPCG(1, 2))
		var served atomic.Int64
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Duration(5+5*random.IntN(4))*time.Millisecond, cancel)
				d, err := l.Wait(ctx, "key")
				if err == nil && d.Allowed {
					served.Add(1)
				} else if !errors.Is(err, context.Canceled) || d.Allowed {
					t.Errorf("%v, %v", d, err)
				}
			})
			if i%10 == 9 {
				<-time.After(40 * time.Millisecond) // until the line is empty
			} else {
				synctest.Wait()
			}
		}
		wg.Wait()
		idle(t, l)
		if got := limit - left(t, l, "key"); got != served.Load()+s.lost || served.Load() < callers/5 || served.Load() > callers*4/5 {
			t.Errorf("%d served, %d lost, %d charged", served.Load(), s.lost, got)
		}
	})
}
