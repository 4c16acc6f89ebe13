package scenes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/canary"
)

// A Secretive makes a call, or a stream that sends two messages, and returns the code and everything
// else that the client gets.
type Secretive func(ctx context.Context, stream bool, fields map[string]string) (code rpc.Code, got []any)

// anyCode is a code that the test does not care for.
const anyCode rpc.Code = 1000

// secretive are guards whose answers, logs and verdicts have no key, and the code of the last of two
// unary calls or streams.
func secretive(t *testing.T) map[string]struct {
	code   rpc.Code
	config rpc.Config
} {
	memory := new(core.MemoryStore)
	slots, closed := core.NewSlots(memory, "slots", 0), core.NewSlots(memory, "closed", 1)
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	away := must(redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailClosed})) // a closed port
	t.Cleanup(func() { _ = away.Client().Close() })
	one := func(rule nethttp.Rate) rpc.Config {
		if rule.Key == nil {
			rule.Key = client
		}
		return rpc.Config{Rates: []nethttp.Rate{rule}}
	}
	held := func(s *core.Slots, service bool) rpc.Config {
		return rpc.Config{Concurrency: []nethttp.Concurrency{{Slots: s, Key: client, Service: service}}}
	}
	rate := func(p core.Policy) *core.Limiter { return core.NewLimiter(new(core.MemoryStore), "rate", p) }
	settles := func(n int64) func(*http.Request, nethttp.Outcome) int64 {
		return func(*http.Request, nethttp.Outcome) int64 { return n }
	}
	panics := func(*http.Request, nethttp.Outcome) int64 { panic(http.ErrAbortHandler) }
	return map[string]struct {
		code   rpc.Code
		config rpc.Config
	}{
		"admitted":           {rpc.OK, one(nethttp.Rate{Limiter: rate(minute(1000))})},
		"a rate":             {rpc.ResourceExhausted, one(nethttp.Rate{Limiter: rate(minute(1))})},
		"for ever":           {rpc.ResourceExhausted, one(nethttp.Rate{Limiter: rate(core.Blocked())})},
		"slots":              {rpc.ResourceExhausted, held(slots, false)},
		"slots of all":       {rpc.ResourceExhausted, held(slots, true)},
		"closed slots":       {rpc.Unavailable, held(closed, false)},
		"no store":           {rpc.Unavailable, one(nethttp.Rate{Limiter: core.NewLimiter(away, "rate", minute(1))})},
		"a settlement":       {rpc.ResourceExhausted, one(nethttp.Rate{Limiter: rate(core.FixedWindow(2, time.Hour)), Settle: settles(5)})},
		"a wrong settlement": {rpc.OK, one(nethttp.Rate{Limiter: rate(minute(1000)), Settle: settles(-5)})},
		"no key":             {rpc.InvalidArgument, one(nethttp.Rate{Limiter: rate(core.Unlimited()), Key: keyfuncs.Header("X-Nobody")})},
		"a fault":            {rpc.Internal, one(nethttp.Rate{Limiter: rate(core.Unlimited()), Cost: func(*http.Request) int64 { return -1 }})},
		"a Settle panics":    {anyCode, one(nethttp.Rate{Limiter: rate(minute(1000)), Settle: panics})},
		"a handler panics":   {anyCode, one(nethttp.Rate{Limiter: rate(core.Unlimited())})},
		"messages": {anyCode, rpc.Config{
			Messages: []nethttp.Rate{{Limiter: rate(minute(1)), Key: client}},
		}},
		"a key that does not parse": {rpc.InvalidArgument, one(nethttp.Rate{Limiter: rate(core.Unlimited()), Key: func(r *http.Request) (string, error) {
			return "", errors.New("malformed: " + r.Header.Get("X-Client"))
		}})},
	}
}

// TestSecrets tries that no key is in what clients of remote calls get, in the log, and in verdicts.
// The function serves a guard, whose handler panics if the metadata "do" are "panic". A panic gets to
// the client as a server has it.
func TestSecrets(t *testing.T, serve func(t *testing.T, c rpc.Config) Secretive) {
	for name, s := range secretive(t) {
		for _, observed := range []bool{false, true} {
			if observed && name == "a key that does not parse" {
				continue // an error of the program's own is in the verdict, as it is
			}
			t.Run(fmt.Sprintf("%s/%v", name, observed), func(t *testing.T) {
				log := &logged{t: t}
				for i, stream := range []bool{false, false, true, true} {
					c := s.config
					c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
					if observed {
						c.Observe = func(_ *http.Request, v *nethttp.Verdict) {
							// Not by %t, which reads what pointers point to: decisions share bits, which are set when one is settled.
							log.look("a verdict", canary.Printed(v, "%t"), v.Err, v.Error())
						}
					}
					fields := map[string]string{"X-Client": canary.Canary}
					if name == "a handler panics" {
						fields["do"] = "panic"
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					code, got := serve(t, c)(ctx, stream, fields)
					cancel()
					if i%2 == 1 && code != s.code && s.code != anyCode {
						t.Errorf("the code is %d, want %d", code, s.code)
					}
					log.look("an answer", got...)
				}
			})
		}
	}
}

// logged is what a guard logs, without keys.
type logged struct {
	t  *testing.T
	mu sync.Mutex
}

// Write implements [io.Writer].
func (l *logged) Write(p []byte) (int, error) {
	l.look("the log", string(p))
	return len(p), nil
}

// look looks for the key.
func (l *logged) look(what string, values ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range values {
		if around, found := canary.In(canary.Printed(v)); found {
			l.t.Errorf("%s has the key: %s", what, strings.TrimSpace(around))
		}
	}
}
