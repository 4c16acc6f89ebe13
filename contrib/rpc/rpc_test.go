package rpc_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func limiter(policies ...core.Policy) *core.Limiter {
	return core.NewLimiter(new(core.MemoryStore), "test", policies...)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A handler may return while its own goroutine receives: the race detector looks on.
func TestHandlerReturnsWhileItReceives(t *testing.T) {
	guard := must(rpc.New(rpc.Config{
		Messages: []nethttp.Rate{{Key: keyfuncs.Everyone(), Limiter: limiter(core.SlidingLog(10, time.Minute))}},
	}, func(error) rpc.Code { return rpc.OK }))
	var receiving sync.WaitGroup
	var visit *rpc.Visit
	if f := guard.Serve(t.Context(), &rpc.Call{Procedure: "/test/Stream", Header: http.Header{}}, func(v *rpc.Visit) (any, error) {
		visit = v
		receiving.Go(func() {
			for v.Receive("message") == nil {
			}
		})
		v.Refused()
		return nil, nil
	}); f != nil {
		t.Fatal(f)
	}
	receiving.Wait()
	if f := visit.Refused(); f == nil || f.Code != rpc.ResourceExhausted {
		t.Errorf("%+v", f)
	}
}

// If the limiter has no room for a repetition, the caller gets the refusal.
func TestNoRoomForTheRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := must(rpc.NewClient(limiter(core.SlidingLog(1, time.Minute)), 5*time.Second, 0, 1))
		calls, refusal := 0, errors.New("the server's")
		err := client.Do(t.Context(), "peer", func() (time.Duration, error) {
			calls++
			return time.Millisecond, refusal
		})
		if !errors.Is(err, refusal) || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
		ctx, cancel := context.WithCancel(t.Context())
		client = must(rpc.NewClient(limiter(core.SlidingLog(2, time.Minute)), 0, 0, 1))
		err = client.Do(ctx, "peer", func() (time.Duration, error) {
			cancel()
			return time.Millisecond, refusal
		})
		if not := (*rpc.NotSentError)(nil); !errors.As(err, &not) || not.Code != rpc.Canceled {
			t.Error(err)
		}
	})
}

// What a server wants holds for all clients of a store, for as long as it says and no longer, also if it says it twice,
// and the limiter counts beside it.
func TestBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(core.MemoryStore)
		client := func() *rpc.Client {
			return must(rpc.NewClient(core.NewLimiter(store, "out", core.SlidingLog(3, time.Hour)), 2*time.Hour, time.Minute, 0))
		}
		one, other := client(), client()
		start := time.Now()
		for i, test := range []struct {
			block time.Duration
			want  time.Duration // since the start, when a call is sent
		}{{0, 0}, {3 * time.Second, 3 * time.Second}, {time.Hour, 63 * time.Second}, {0, time.Hour}} {
			for range 2 {
				one.Block(t.Context(), "peer", test.block)
			}
			if err := other.Wait(t.Context(), "peer"); err != nil || time.Since(start) != test.want {
				t.Errorf("%d: %v after %v, want %v", i, err, time.Since(start), test.want)
			}
		}
		short := must(rpc.NewClient(core.NewLimiter(store, "out", core.SlidingLog(3, time.Hour)), time.Second, 0, 0))
		one.Block(t.Context(), "peer", time.Minute)
		at := time.Now()
		if not := (*rpc.NotSentError)(nil); !errors.As(short.Wait(t.Context(), "peer"), &not) || not.Code != rpc.DeadlineExceeded || time.Since(at) != 0 {
			t.Error(not, time.Since(at))
		}
	})
}

// A lockstep is a store whose callers pause after each call: those that come at once go the whole way side by side.
type lockstep struct{ store.Rates }

// Backend implements [core.Store].
func (s lockstep) Backend() *backend.Stores { return &backend.Stores{Rates: s} }

func (s lockstep) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (bool, error) {
	allowed, err := s.Rates.Ask(ctx, mode, cells)
	<-time.After(time.Microsecond)
	return allowed, err
}

// Many calls may be refused at once. The longest block applies, and no sum of them.
func TestBlocksDoNotAddUp(t *testing.T) {
	for _, millis := range [][]int{slices.Repeat([]int{200}, 20), {200, 100, 150}, {100, 150, 200}, {150, 200, 100, 200}} {
		synctest.Test(t, func(t *testing.T) {
			out := core.NewLimiter(lockstep{memory.New(0)}, "out", core.Unlimited())
			client := must(rpc.NewClient(out, 0, 0, 0))
			start := time.Now()
			var all sync.WaitGroup
			for _, n := range millis {
				all.Go(func() { client.Block(t.Context(), "peer", time.Duration(n)*time.Millisecond) })
			}
			all.Wait()
			err := client.Wait(t.Context(), "peer")
			waited := time.Since(start)
			if err != nil || waited < 200*time.Millisecond || waited > 203*time.Millisecond {
				t.Errorf("%v: sent after %v, %v", millis, waited, err)
			}
		})
	}
}

// What a client cannot have is an error, not a panic.
func TestClientFaults(t *testing.T) {
	for name, c := range map[string]struct {
		limiter  *core.Limiter
		maxBlock time.Duration
	}{
		"no limiter":  {nil, 0},
		"a document":  {core.Documented(new(core.MemoryStore), nil, 0, "out"), 0},
		"MaxBlock":    {limiter(core.SlidingLog(1, time.Minute)), math.MaxInt64},
		"a long time": {limiter(core.SlidingLog(1, time.Minute)), 366 * 24 * time.Hour},
	} {
		if client, err := rpc.NewClient(c.limiter, 0, c.maxBlock, 0); client != nil || err == nil {
			t.Errorf("%s: %v, %v", name, client, err)
		}
	}
	if _, err := rpc.NewClient(limiter(core.SlidingLog(1, time.Minute)), 0, 365*24*time.Hour, 0); err != nil {
		t.Error(err)
	}
}
