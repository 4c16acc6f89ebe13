package scenes

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/contrib/rpc"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/canary"
)

// A Secretive makes a call, or a stream that sends two messages, and returns the code and everything
// else that the client gets.
type Secretive func(ctx context.Context, stream bool, fields map[string]string) (code rpc.Code, got []any)

// anyCode is a code that the test does not care for.
const anyCode rpc.Code = 1000

// failing is a store that fails in some modes.
type failing struct {
	*memstore.Store

	fails func(store.Mode) bool
}

func (s *failing) Ask(ctx context.Context, q *store.Question) error {
	if s.fails(q.Mode) {
		return core.ErrUnavailable
	}
	return s.Store.Ask(ctx, q)
}

// secretive are guards whose answers, logs and verdicts have no key, and the code of the last of two
// unary calls or streams.
func secretive(t *testing.T) map[string]struct {
	code   rpc.Code
	config rpc.Config
} {
	memory := memstore.New(memstore.Config{})
	limiter := func(s core.Store, p core.Policy) *core.Limiter { return core.Must(core.New(s, "rate", p)) }
	slots, closed := core.Must(core.NewSlots(memory, "slots", 0)), core.Must(core.NewSlots(memory, "closed", 1))
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	one := func(rule nethttp.Rule) rpc.Config {
		if rule.Key == nil {
			rule.Key = client
		}
		return rpc.Config{Rules: []nethttp.Rule{rule}}
	}
	free := limiter(memory, core.Unlimited())
	never := &failing{memory, func(m store.Mode) bool { return m <= store.Peek }}
	neverSettles := &failing{memory, func(m store.Mode) bool { return m > store.Peek }}
	settle := func(*http.Request, nethttp.Outcome) int64 { return 0 }
	neverReports := &failing{memory, func(m store.Mode) bool { return m == store.Allow }}
	reports := func(n int64) func(*http.Request, nethttp.Outcome) int64 {
		return func(*http.Request, nethttp.Outcome) int64 { return n }
	}
	panics := func(*http.Request, nethttp.Outcome) int64 { panic(http.ErrAbortHandler) }
	return map[string]struct {
		code   rpc.Code
		config rpc.Config
	}{
		"admitted":         {rpc.OK, one(nethttp.Rule{Limiter: limiter(memory, minute(1000))})},
		"a rate":           {rpc.ResourceExhausted, one(nethttp.Rule{Limiter: limiter(memory, minute(1))})},
		"for ever":         {rpc.ResourceExhausted, one(nethttp.Rule{Limiter: limiter(memory, core.Blocked())})},
		"slots":            {rpc.ResourceExhausted, one(nethttp.Rule{Slots: slots})},
		"slots of all":     {rpc.ResourceExhausted, one(nethttp.Rule{Slots: slots, Service: true})},
		"closed slots":     {rpc.Unavailable, one(nethttp.Rule{Slots: closed})},
		"no store":         {rpc.Unavailable, one(nethttp.Rule{Limiter: limiter(never, minute(1))})},
		"no settlement":    {rpc.OK, one(nethttp.Rule{Limiter: limiter(neverSettles, minute(1000)), Settle: settle})},
		"a report":         {rpc.ResourceExhausted, one(nethttp.Rule{Limiter: limiter(memory, minute(2)), Report: reports(5)})},
		"no report":        {rpc.OK, one(nethttp.Rule{Limiter: limiter(neverReports, minute(1000)), Report: reports(5)})},
		"a wrong report":   {rpc.OK, one(nethttp.Rule{Limiter: limiter(memory, minute(1000)), Report: reports(-5)})},
		"no key":           {rpc.InvalidArgument, one(nethttp.Rule{Limiter: free, Key: keyfuncs.Header("X-Nobody")})},
		"a fault":          {rpc.Internal, one(nethttp.Rule{Limiter: free, Cost: func(*http.Request) int64 { return -1 }})},
		"a Settle panics":  {anyCode, one(nethttp.Rule{Limiter: limiter(memory, minute(1000)), Settle: panics})},
		"a handler panics": {anyCode, one(nethttp.Rule{Limiter: free})},
		"messages": {anyCode, rpc.Config{
			Messages: []nethttp.Rule{{Limiter: limiter(memory, minute(1)), Key: client}},
		}},
		"a key that does not parse": {rpc.InvalidArgument, one(nethttp.Rule{Limiter: free, Key: func(r *http.Request) (string, error) {
			return "", fmt.Errorf("%w: %s", keyfuncs.ErrMalformed, r.Header.Get("X-Client"))
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
						c.Observe = func(_ *http.Request, v nethttp.Verdict) {
							// Not by %t, which reads what pointers point to: decisions share bits, which are set when one is settled.
							log.look("a verdict", canary.Printed(v, "%t"), v.Err, string(v.Problem()))
						}
						c.OnSettled = func(_ *http.Request, _ int64, err error) { log.look("a settlement", err) }
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
