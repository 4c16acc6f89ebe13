package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

func TestBreakerOpensProbesAndCloses(t *testing.T) {
	var told []error
	c := Config{Failure: FailOpen, Observer: &core.Observer{Changed: func(reason error) { told = append(told, reason) }}}
	inBubble(t, c, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		told = nil
		allow(t, l, "k", 1)
		f.be(fail)
		for i := range maxFailures {
			if s.State().Away {
				t.Fatalf("away after %d failures", i)
			}
			allow(t, l, "k", 1)
		}
		st := s.State()
		if !st.Away || st.Reason == nil || !st.Since.Equal(time.Now()) {
			t.Fatalf("%+v", st)
		}

		// Nobody asks now but the probes, at first often, at last twice a second.
		calls, _ := f.counts()
		opened := time.Now()
		for range 600 {
			if d := allow(t, l, "k", 1); d.Source != core.SourceOpen {
				t.Fatal(describe(&d))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if now, _ := f.counts(); now != calls {
			t.Errorf("%d calls while Redis was away", now-calls)
		}
		pause, at := minProbePause, opened
		for i, p := range f.probes {
			got := p.Sub(at)
			if got < pause*3/4 || got > pause*5/4 {
				t.Errorf("probe %d came after %v, not about %v", i, got, pause)
			}
			at, pause = p, min(2*pause, maxProbePause)
		}
		if len(f.probes) < 20 {
			t.Errorf("%d probes in a minute", len(f.probes))
		}

		f.be(answer)
		time.Sleep(maxProbePause * 5 / 4)
		synctest.Wait()
		if st := s.State(); st.Away || st.Reason != nil || st.Since.Before(opened.Add(time.Minute)) {
			t.Errorf("%+v", st)
		}
		if d := allow(t, l, "k", 1); d.Source != core.SourceStore {
			t.Error(describe(&d))
		}
		if len(told) != 2 || !errors.Is(told[0], st.Reason) || told[1] != nil {
			t.Errorf("the hook was told %v", told)
		}
	})
}

// The reason is what keeps Redis away now, not what was first.
func TestTheReasonIsTheNewest(t *testing.T) {
	const loading = "LOADING Redis is loading the dataset in memory"
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		f.be(hangUp)
		for !s.State().Away {
			allow(t, l, "k", 1)
		}
		since, first := s.State().Since, s.State().Reason
		f.refuseWith(loading)
		time.Sleep(2 * maxProbePause)
		if st := s.State(); !st.Away || st.Reason == nil || st.Reason.Error() != loading || errors.Is(st.Reason, first) || !st.Since.Equal(since) {
			t.Errorf("%+v", st)
		}
		f.be(answer)
		time.Sleep(2 * maxProbePause)
		if st := s.State(); st.Away || st.Reason != nil {
			t.Errorf("%+v", st)
		}
	})
}

// A password that was changed is the reason, in one line.
func TestTheReasonIsTheChangedPassword(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := as(t, server, Config{Failure: FailOpen}, "+@all")
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1_000_000)))
	allow(t, l, "k", 1)
	server.Do("ACL", "SETUSER", "headgate", "resetpass", ">another")
	server.Do("CLIENT", "KILL", "USER", "headgate")
	eventually(t, "the reason", func() bool {
		allow(t, l, "k", 1)
		st := s.State()
		return st.Away && strings.Contains(st.Reason.Error(), "WRONGPASS") && !strings.Contains(st.Reason.Error(), "\n")
	})
}

// Only failures in a row count.
func TestBreakerForgivesSingleFailures(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		for range 10 {
			f.be(fail)
			allow(t, l, "k", 1)
			allow(t, l, "k", 1)
			f.be(answer)
			allow(t, l, "k", 1)
		}
		if s.State().Away {
			t.Errorf("%+v", s.State())
		}
	})
}

// A failing is a hook that fails the commands for which it is told so.
type failing struct {
	fails func(words []any) bool
	with  error // nil: on purpose
}

func (*failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.fails(cmd.Args()) {
			err := f.with
			if err == nil {
				err = errors.New("on purpose")
			}
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (*failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Who closes the client has closed the store: nothing probes for ever.
func TestClosedClientIsNotProbed(t *testing.T) {
	inBubble(t, Config{Failure: FailOpen}, func(t *testing.T, f *fake, s *Store, l *core.Limiter) {
		var sent sentCommands
		s.Client().AddHook(&sent)
		f.be(fail)
		for range maxFailures {
			allow(t, l, "k", 1)
		}
		s.Client().Close()
		time.Sleep(2 * maxProbePause)
		before := sent.Load()
		time.Sleep(10 * maxProbePause)
		if n := sent.Load() - before; n > 0 {
			t.Errorf("%d probes", n)
		}
	})
}

// sentCommands counts what a client is told to send.
type sentCommands struct{ atomic.Int64 }

func (*sentCommands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.Add(1)
		return next(ctx, cmd)
	}
}

func (*sentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A server that takes a good part of the Timeout for each call is found again: the Timeout
// bounds each call of a probe, which makes several.
func TestDistantServerIsFoundAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := open(t, Config{Failure: FailOpen, Timeout: time.Second, RefusalTTL: -1}, proxy.Addr())
	var broken atomic.Bool
	s.Client().AddHook(&failing{fails: func(words []any) bool { return broken.Load() && words[0] == evalSHA }})
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
	allow(t, l, "k", 1)
	proxy.Delay(150 * time.Millisecond)
	broken.Store(true)
	for range maxFailures {
		allow(t, l, "k", 1)
	}
	if !s.State().Away {
		t.Fatal("the breaker is closed")
	}
	broken.Store(false)
	eventually(t, "Redis to be back", func() bool { return !s.State().Away })
}
