package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
)

// A crowd asks again and again until it is dismissed.
type crowd struct {
	end context.CancelFunc
	all sync.WaitGroup
}

// gather starts callers that ask, one question a millisecond after the other.
func gather(callers int, ask func(caller int)) *crowd {
	ctx, end := context.WithCancel(context.Background())
	c := &crowd{end: end}
	for i := range callers {
		c.all.Go(func() {
			for ctx.Err() == nil {
				ask(i)
				time.Sleep(time.Millisecond)
			}
		})
	}
	return c
}

func (c *crowd) dismiss() {
	c.end()
	c.all.Wait()
}

// within asks a question with a deadline of the caller's own.
func within(l *core.Limiter, d time.Duration, key string, n int64) (core.Decision, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return l.AllowN(ctx, key, n)
}

// awaitAway waits until Redis is away, at most for so long.
func awaitAway(s *Store, most time.Duration) State {
	for start := time.Now(); !s.State().Away && time.Since(start) < most; {
		time.Sleep(time.Millisecond)
	}
	return s.State()
}

// When Redis is silent, Failure decides after less than a second, however early the
// callers' deadlines are.
func TestSilenceUnderShortDeadlines(t *testing.T) {
	for failure, source := range map[Failure]core.Source{FailOpen: core.SourceOpen, FailLocal: core.SourceLocal} {
		for _, unmerged := range []bool{false, true} {
			for _, deadline := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 80 * time.Millisecond} {
				for _, callers := range []int{1, 2, 100} {
					if callers == 100 && deadline != 50*time.Millisecond {
						continue // a crowd takes a second of processor time
					}
					t.Run(fmt.Sprintf("%v, unmerged %v, %v, %d callers", source, unmerged, deadline, callers), func(t *testing.T) {
						inBubble(t, Config{Failure: failure, NoMerging: unmerged}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
							silenced(t, f, s, l, deadline, callers, source)
						})
					})
				}
			}
		}
	}
}

func silenced(t *testing.T, f *fake, s *Store, l *core.Limiter, deadline time.Duration, callers int, source core.Source) {
	allow(t, l, "k", 1)
	f.be(silence)
	c := gather(callers, func(i int) {
		start := time.Now()
		d, err := within(l, deadline, fmt.Sprint(i), 1)
		switch took := time.Since(start); {
		case took > deadline:
			t.Errorf("a decision took %v", took)
		case err != nil && (took < deadline || !errors.Is(err, context.DeadlineExceeded)):
			t.Errorf("after %v: %v", took, err)
		case err == nil && (d.Source != source || !d.Allowed):
			t.Error(describe(&d))
		}
	})
	start := time.Now()
	if st := awaitAway(s, time.Second); !st.Away || st.Reason == nil {
		t.Errorf("after a second: %+v", st)
	}
	t.Logf("away after %v", time.Since(start))
	time.Sleep(2 * deadline)
	c.dismiss()
	for range 100 {
		start := time.Now()
		d, err := within(l, deadline, "another", 1)
		if took := time.Since(start); took > 0 || err != nil || d.Source != source {
			t.Errorf("took %v: %v: %s", took, err, describe(&d))
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Allow(ended, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that had ended: %v", err)
	}

	f.be(answer)
	time.Sleep(2 * maxProbePause)
	synctest.Wait()
	if st := s.State(); st.Away {
		t.Errorf("Redis is away although it answers: %+v", st)
	}
	if d, err := within(l, deadline, "another", 1); err != nil || d.Source != core.SourceStore {
		t.Errorf("%v: %s", err, describe(&d))
	}
}

// Callers whose deadlines are early, or who hang up, do not make Redis unavailable, nor
// do those whose questions are much work, although nobody is answered meanwhile.
func TestCallersCannotOpenTheBreaker(t *testing.T) {
	const large = maxLog // units
	slowly := func(d time.Duration) func(string) time.Duration {
		return func(string) time.Duration { return d }
	}
	largely := func(d time.Duration) func(string) time.Duration {
		return func(name string) time.Duration {
			if strings.Contains(name, "large") {
				return d
			}
			return 0
		}
	}
	for name, test := range map[string]struct {
		timeout time.Duration
		takes   func(name string) time.Duration
		callers int
		ask     func(l *core.Limiter, i int)
	}{
		"earlier deadlines than any answer": {100 * time.Millisecond, slowly(30 * time.Millisecond), 20, func(l *core.Limiter, i int) {
			_, _ = within(l, 10*time.Millisecond, fmt.Sprint(i), 1)
		}},
		"one caller with an early deadline": {100 * time.Millisecond, slowly(40 * time.Millisecond), 1, func(l *core.Limiter, i int) {
			_, _ = within(l, 20*time.Millisecond, fmt.Sprint(i), 1)
		}},
		"hanging up": {100 * time.Millisecond, slowly(30 * time.Millisecond), 20, func(l *core.Limiter, i int) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
			_, _ = l.Allow(ctx, fmt.Sprint(i))
		}},
		"one caller with large questions": {50 * time.Millisecond, largely(15 * time.Millisecond), 1, func(l *core.Limiter, i int) {
			_, _ = l.AllowN(context.Background(), fmt.Sprint("large", i), large)
		}},
		"large questions": {100 * time.Millisecond, largely(15 * time.Millisecond), 10, func(l *core.Limiter, i int) {
			if i < 5 {
				_, _ = l.AllowN(context.Background(), fmt.Sprint("large", i), large)
			} else {
				_, _ = l.Allow(context.Background(), fmt.Sprint(i))
			}
		}},
		"large questions and a short Timeout": {20 * time.Millisecond, largely(3 * time.Millisecond), 10, func(l *core.Limiter, i int) {
			if i < 5 {
				_, _ = l.AllowN(context.Background(), fmt.Sprint("large", i), large)
			} else {
				_, _ = l.Allow(context.Background(), fmt.Sprint(i))
			}
		}},
		"large questions and hanging up": {20 * time.Millisecond, largely(3 * time.Millisecond), 10, func(l *core.Limiter, i int) {
			if i < 5 {
				_, _ = within(l, time.Millisecond, fmt.Sprint("large", i), large)
			} else {
				_, _ = within(l, 5*time.Millisecond, fmt.Sprint(i), 1)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var away error
			c := Config{Failure: FailOpen, Timeout: test.timeout, Observer: &core.Observer{Changed: func(reason error) { away = errors.Join(away, reason) }}}
			inBubble(t, c, func(t *testing.T, f *fake, s *Store, _ *core.Limiter) {
				l := newLimiter(t, s, "log", core.SlidingLog(core.PerDay(large)))
				away = nil
				f.work(test.takes)
				c := gather(test.callers, func(i int) { test.ask(l, i) })
				time.Sleep(3 * time.Second)
				c.dismiss()
				if away != nil {
					t.Errorf("Redis is away: %v", away)
				}
				f.work(nil)
				time.Sleep(2 * time.Second)
				if d := allow(t, l, "k", 1); d.Source != core.SourceStore {
					t.Error(describe(&d))
				}
			})
		})
	}
}

// Large questions cannot keep the breaker closed either, when Redis is silent.
func TestSilenceWithLargeQuestions(t *testing.T) {
	const large = maxLog // units
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, _ *core.Limiter) {
		l := newLimiter(t, s, "log", core.SlidingLog(core.PerDay(large)))
		f.be(silence)
		c := gather(10, func(i int) { _, _ = within(l, 50*time.Millisecond, fmt.Sprint(i), large) })
		if st := awaitAway(s, 3*time.Second); !st.Away {
			t.Errorf("%+v", st)
		}
		c.dismiss()
		f.be(answer)
	})
}

// A server that something else keeps busy for less than two Timeouts is available, even if
// many calls time out meanwhile.
func TestShortSilenceIsNoOutage(t *testing.T) {
	for _, unmerged := range []bool{false, true} {
		t.Run(fmt.Sprintf("unmerged %v", unmerged), func(t *testing.T) {
			inBubble(t, Config{Failure: FailOpen, NoMerging: unmerged}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
				c := gather(20, func(i int) {
					_, _ = l.Allow(context.Background(), fmt.Sprint(i))
				})
				for range 5 {
					time.Sleep(50 * time.Millisecond)
					f.be(silence)
					time.Sleep(190 * time.Millisecond)
					if st := s.State(); st.Away {
						t.Errorf("%+v", st)
					}
					f.be(answer)
				}
				c.dismiss()
			})
		})
	}
}

// A call without an answer, as on a connection that nobody knows to be dead, is no outage,
// even if nothing else is sent meanwhile.
func TestOneLostCallIsNoOutage(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		for range 2 * maxFailures {
			f.be(silence)
			if d := allow(t, l, "k", 1); d.Source != core.SourceOpen {
				t.Error(describe(&d))
			}
			f.be(answer)
			if d := allow(t, l, "k", 1); d.Source != core.SourceStore {
				t.Error(describe(&d))
			}
			time.Sleep(time.Minute)
		}
		if st := s.State(); st.Away {
			t.Errorf("%+v", st)
		}
	})
}

// A process whose pool of connections is empty says nothing of Redis.
func TestAnExhaustedPoolIsNoOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		s := f.open(t, Config{Failure: FailOpen, NoMerging: true}, func(o *redis.Options) { o.MaxActiveConns = 2 })
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1_000_000)))
		f.work(func(string) time.Duration { return 10 * time.Millisecond })
		_, ds, errs := together(t, l, 10*maxFailures)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		bySource := make(map[core.Source]int)
		for _, d := range ds {
			bySource[d.Source]++
		}
		if bySource[core.SourceStore] == 0 || bySource[core.SourceOpen] == 0 || s.State().Away {
			t.Errorf("%v, %+v", bySource, s.State())
		}
		s.Client().Close()
		f.close()
		time.Sleep(time.Minute)
	})
}
