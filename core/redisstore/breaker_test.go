package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
)

func TestBreakerOpensProbesAndCloses(t *testing.T) {
	var told []error
	c := Config{Failure: FailOpen, Hooks: Hooks{Changed: func(reason error) { told = append(told, reason) }}}
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

		// Nobody asks now but the probes, at first often, at last every 2 s.
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
