package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func limiter(policies ...core.Policy) *core.Limiter {
	return core.Must(core.New(memstore.New(memstore.Config{}), "test", policies...))
}

// Messages do not wait.
func TestWaitWithoutRules(t *testing.T) {
	_, err := rpc.New(rpc.Config{
		Messages: []nethttp.Rule{{Key: keyfuncs.Everyone(), Limiter: limiter(core.SlidingLog(core.PerMinute(1)))}},
		Wait:     time.Second,
	})
	if fault := (*nethttp.ConfigError)(nil); !errors.As(err, &fault) || fault.Field != "Wait" {
		t.Error(err)
	}
}

// A handler may return while its own goroutine receives: the race detector looks on.
func TestHandlerReturnsWhileItReceives(t *testing.T) {
	guard := core.Must(rpc.New(rpc.Config{
		Messages: []nethttp.Rule{{Key: keyfuncs.Everyone(), Limiter: limiter(core.SlidingLog(core.PerMinute(10)))}},
	}))
	v := guard.Enter(t.Context(), &rpc.Call{Procedure: "/test/Stream", Header: http.Header{}})
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for v.Receive("message") == nil {
		}
	})
	for range 10 {
		v.Refused()
		v.End(nil, nil, rpc.OK)
	}
	receiving.Wait()
	if f := v.Refused(); f == nil || f.Code != rpc.ResourceExhausted {
		t.Errorf("%+v", f)
	}
}

// If the limiter has no room for a repetition, the caller gets the refusal.
func TestNoRoomForTheRepetition(t *testing.T) {
	client := core.Must(rpc.NewClient(limiter(core.SlidingLog(core.PerMinute(1))), 5*time.Second, 0, 1))
	calls, refusal := 0, errors.New("the server's")
	err := client.Do(t.Context(), "peer", func() (time.Duration, error) {
		calls++
		return time.Millisecond, refusal
	})
	if !errors.Is(err, refusal) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	client = core.Must(rpc.NewClient(limiter(core.SlidingLog(core.PerMinute(2))), time.Minute, 0, 1))
	err = client.Do(ctx, "peer", func() (time.Duration, error) {
		cancel()
		return time.Millisecond, refusal
	})
	if not := (*rpc.NotSentError)(nil); !errors.As(err, &not) || not.Code != rpc.Canceled {
		t.Error(err)
	}
}
