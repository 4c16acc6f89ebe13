package rpc_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
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
