package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/problem"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A scenario is a guard, requests in order, and what becomes of them.
type scenario struct {
	name string

	// setup returns the guard's configuration and the handler behind it; nil is
	// one that says hello.
	setup func(w *world) (nethttp.Config, http.HandlerFunc)

	requests []*http.Request

	// want has a line for each request: the status and then RateLimit, or else
	// RateLimit-Policy, and Retry-After, as far as they are there, or what the handler
	// panicked with.
	want []string

	// events is what the world was told in the meantime.
	events []string
}

// A world is what a scenario happens in. Its clock is that of a synctest bubble,
// so that all seconds are the same for all frameworks.
type world struct {
	t      *testing.T
	store  *toldStore
	events []string
}

func (w *world) note(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *world) limiter(name string, policies ...core.Policy) *core.Limiter {
	w.t.Helper()
	l, err := core.New(w.store, name, policies...)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// unreachable returns a limiter whose Redis refuses connections.
func (w *world) unreachable(failure redisstore.Failure, name string, policies ...core.Policy) *core.Limiter {
	w.t.Helper()
	s, err := redisstore.Open(&redis.UniversalOptions{
		Addrs:  []string{"127.0.0.1:6379"}, // never dialed
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED },
	}, redisstore.Config{Failure: failure})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Client().Close() })
	l, err := core.New(s, name, policies...)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// left notes how many units a key has.
func (w *world) left(l *core.Limiter, key string) {
	d, err := l.Peek(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	w.note("%s: %d left", key, d.Remaining)
}

// A toldStore answers as the one within, or as it is told.
type toldStore struct {
	core.Store

	err  error // of decisions
	open bool  // admits without looking
}

func (s *toldStore) Ask(ctx context.Context, q *store.Question) error {
	if (s.err != nil || s.open) && q.Mode <= store.Peek {
		return s.answer(&q.Result, q.Charges...)
	}
	return s.Store.Ask(ctx, q)
}

func (s *toldStore) answer(r *store.Result, cs ...store.Charge) error {
	*r = store.Result{Allowed: true, Source: core.SourceOpen}
	for _, c := range cs {
		for range c.Limiter.Spec().Policies {
			r.Add(true, step.Reading{})
		}
	}
	return s.err
}

// request makes a request of anna, with fields given as pairs.
func request(method, target string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Header.Set("X-Client", "anna")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return r
}

func gets(n int) []*http.Request {
	var rs []*http.Request
	for range n {
		rs = append(rs, request("GET", "/"))
	}
	return rs
}

var client = keyfuncs.Header("X-Client")

func rule(l *core.Limiter) nethttp.Rule { return nethttp.Rule{Limiter: l, Key: client} }

func rules(rs ...nethttp.Rule) nethttp.Config { return nethttp.Config{Rules: rs} }

// minute is so many requests in any minute.
func minute(n int64) core.Policy { return core.SlidingLog(core.PerMinute(n)) }

func answering(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

// unread fails the test if somebody reads it.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

var errDown = errors.New("store down")

var preflight = []string{"Origin", "https://example.com", "Access-Control-Request-Method", "PUT"}

var scenarios = []scenario{
	{
		name: "over the limit",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.limiter("api", minute(2)))), nil
		},
		requests: append(gets(3), request("GET", "/", "X-Client", "ben")),
		want:     []string{`200 "api";r=1;t=60`, `200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `200 "api";r=1;t=60`},
		events:   []string{"hello", "hello", "hello"},
	},
	{
		name: "every method",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.limiter("api", minute(5)))), answering(204)
		},
		requests: []*http.Request{
			request("POST", "/"), request("PUT", "/a"), request("PATCH", "/a/b"), request("DELETE", "/"), request("OPTIONS", "/"),
			request("HEAD", "/"), request("OPTIONS", "/"), request("POST", "/"),
		},
		want: []string{
			`204 "api";r=4;t=60`, `204 "api";r=3;t=60`, `204 "api";r=2;t=60`, `204 "api";r=1;t=60`, `204 "api";r=0;t=60`,
			`429 "api";r=0;t=60 after 60`, `429 "api";r=0;t=60 after 60`, `429 "api";r=0;t=60 after 60`,
		},
	},
	{
		name: "a body that nobody needs",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.limiter("api", core.Blocked()))), nil
		},
		requests: []*http.Request{request("POST", "/", "Body", "unread")},
		want:     []string{`429 "api";r=0`},
	},
	{
		name: "HEAD",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.limiter("api", minute(1)))), answering(200)
		},
		requests: []*http.Request{request("HEAD", "/"), request("HEAD", "/")},
		want:     []string{`200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`},
	},
	{
		name: "several policies and rules",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			session := w.limiter("session", minute(5).Named("minute"), core.FixedWindow(core.PerDay(1)).Named("day"))
			address := w.limiter("address", core.TokenBucket(core.PerMinute(60), 100))
			return rules(rule(session), nethttp.Rule{Limiter: address, Key: keyfuncs.RemoteAddr()}), nil
		},
		requests: append(gets(2), request("GET", "/", "X-Client", "ben")),
		want: []string{
			`200 "minute";r=4;t=60, "day";r=0;t=86400, "address";r=99;t=1`,
			`429 "minute";r=4;t=60, "day";r=0;t=86400, "address";r=99;t=1 after 86400`,
			`200 "minute";r=4;t=60, "day";r=0;t=86400, "address";r=98;t=1`,
		},
		events: []string{"hello", "hello"},
	},
	{
		name: "Skip",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rules(rule(w.limiter("api", core.Blocked())))
			c.Skip = func(r *http.Request) bool { return r.URL.Path == "/health" }
			c.Observe = func(r *http.Request, v nethttp.Verdict) { w.note("observed %s: %d", r.URL.Path, v.Status()) }
			return c, nil
		},
		requests: []*http.Request{request("GET", "/health"), request("GET", "/other")},
		want:     []string{"200", `429 "api";r=0`},
		events:   []string{"hello", "observed /other: 429"},
	},
	{
		name: "preflights",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.limiter("api", minute(1)))), nil
		},
		requests: []*http.Request{request("OPTIONS", "/", preflight...), request("OPTIONS", "/", preflight...), request("GET", "/")},
		want:     []string{`200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `429 "api";r=0;t=60 after 60`},
		events:   []string{"hello"},
	},
	{
		name: "preflights that are skipped, and observed only",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rules(rule(w.limiter("api", minute(1))))
			c.ObserveOnly = true
			c.Skip = func(r *http.Request) bool { return r.URL.Path == "/health" }
			c.Observe = func(_ *http.Request, v nethttp.Verdict) { w.note("would be %d", v.Status()) }
			return c, nil
		},
		requests: []*http.Request{request("OPTIONS", "/health", preflight...), request("OPTIONS", "/", preflight...), request("GET", "/")},
		want:     []string{"200", "200", "200"},
		events:   []string{"hello", "would be 0", "hello", "would be 429", "hello"},
	},
	{
		name: "ObserveOnly",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rules(rule(w.limiter("api", minute(1))))
			c.ObserveOnly = true
			c.Observe = func(_ *http.Request, v nethttp.Verdict) { w.note("would be %d", v.Status()) }
			return c, nil
		},
		requests: append(gets(2), request("GET", "/", "X-Client", "")),
		want:     []string{"200", "200", "200"},
		events:   []string{"would be 0", "hello", "would be 429", "hello", "would be 400", "hello"},
	},
	{
		name: "no key",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rules(rule(w.limiter("api", minute(1))))
			c.Observe = func(_ *http.Request, v nethttp.Verdict) { w.note("%v", v.Err) }
			return c, nil
		},
		requests: []*http.Request{request("GET", "/", "X-Client", ""), request("HEAD", "/", "X-Client", "")},
		want:     []string{"400", "400"},
		events: []string{
			`headgate: guard: Rules[0] (limiter "api"): keyfuncs: absent: header X-Client`,
			`headgate: guard: Rules[0] (limiter "api"): keyfuncs: absent: header X-Client`,
		},
	},
	{
		name: "an empty key",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(nethttp.Rule{
				Limiter: w.limiter("api", minute(1)), Key: func(*http.Request) (string, error) { return "", nil },
			}), nil
		},
		requests: gets(1),
		want:     []string{"400"},
	},
	{
		name: "the store is away, closed",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			w.store.err = errDown
			return rules(rule(w.limiter("api", minute(1)))), nil
		},
		requests: []*http.Request{request("GET", "/"), request("HEAD", "/")},
		want:     []string{"503 after 5", "503 after 5"},
	},
	{
		name: "the store is away, open",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			w.store.open = true
			return rules(rule(w.limiter("api", minute(1)))), nil
		},
		requests: gets(2),
		want:     []string{`200 policy "api";q=1;w=60`, `200 policy "api";q=1;w=60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "Redis unreachable, FailClosed",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.unreachable(redisstore.FailClosed, "api", minute(1)))), nil
		},
		requests: []*http.Request{request("GET", "/"), request("HEAD", "/")},
		want:     []string{"503 after 5", "503 after 5"},
	},
	{
		name: "Redis unreachable, FailOpen",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.unreachable(redisstore.FailOpen, "api", minute(1)))), nil
		},
		requests: gets(2),
		want:     []string{`200 policy "api";q=1;w=60`, `200 policy "api";q=1;w=60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "Redis unreachable, FailLocal",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.unreachable(redisstore.FailLocal, "api", minute(2)))), nil
		},
		requests: append(gets(3), request("GET", "/", "X-Client", "ben")),
		want:     []string{`200 "api";r=1;t=60`, `200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `200 "api";r=1;t=60`},
		events:   []string{"hello", "hello", "hello"},
	},
	{
		name: "errors of the frameworks as errors of a key",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(nethttp.Rule{
				Limiter: w.limiter("api", minute(1)),
				Key: func(r *http.Request) (string, error) {
					if r.URL.Path == "/v4" {
						return "", echo4.NewHTTPError(401, "who are you")
					}
					return "", echo5.NewHTTPError(401, "who are you")
				},
			}), nil
		},
		requests: []*http.Request{request("GET", "/v4"), request("GET", "/v5"), request("HEAD", "/v4")},
		want:     []string{"400", "400", "400"},
	},
	{
		name: "a cost that makes no sense",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rule(w.limiter("api", minute(1)))
			r.Cost = func(*http.Request) int64 { return -1 }
			return rules(r), nil
		},
		requests: gets(1),
		want:     []string{"500"},
	},
	{
		name: "costs, and one that no waiting grants",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rule(w.limiter("api", minute(10)))
			r.Cost = func(r *http.Request) int64 { return int64(len(r.URL.Path) - 1) }
			return rules(r), nil
		},
		requests: []*http.Request{request("GET", "/"), request("GET", "/1234"), request("GET", "/12345678901"), request("GET", "/1234567")},
		want:     []string{"200", `200 "api";r=6;t=60`, `429 policy "api";q=10;w=60`, `429 "api";r=6;t=60 after 60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "plans",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			free := w.limiter("api", minute(1))
			gold, err := free.With(minute(100))
			if err != nil {
				w.t.Fatal(err)
			}
			r := rule(free)
			r.Plan = func(r *http.Request, _ string) *core.Limiter {
				if r.Header.Get("X-Plan") == "gold" {
					return gold
				}
				return nil
			}
			return rules(r), nil
		},
		requests: []*http.Request{request("GET", "/"), request("GET", "/"), request("GET", "/", "X-Plan", "gold")},
		want:     []string{`200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `200 "api";r=98;t=60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "older fields",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rules(rule(w.limiter("api", minute(1))))
			c.Fields = nethttp.XRateLimit
			return c, nil
		},
		requests: gets(2),
		want:     []string{"200", "429 after 60"},
		events:   []string{"hello"},
	},
	{
		name: "OnRefused",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rules(rule(w.limiter("api", core.Blocked())))
			c.OnRefused = func(rw http.ResponseWriter, r *http.Request, v nethttp.Verdict) {
				w.note("refused %s", r.URL.Path)
				switch r.URL.Path {
				case "/page":
					rw.Header().Set("Content-Type", "text/html; charset=utf-8")
					rw.WriteHeader(v.Status())
					io.WriteString(rw, "<h1>Please wait</h1>")
				case "/flushed":
					rw.Header().Set("Content-Type", "text/plain")
					rw.WriteHeader(503)
					http.NewResponseController(rw).Flush()
					io.WriteString(rw, "later")
				case "/other":
					rw.Header().Set("Content-Type", nethttp.ProblemType)
					rw.Header().Set("X-Content-Type-Options", "nosniff")
					rw.WriteHeader(503)
					d := problem.Blank(503)
					rw.Write(d.Bytes())
				case "/same":
					rw.Header().Set("Content-Type", nethttp.ProblemType)
					rw.Header().Set("X-Content-Type-Options", "nosniff")
					rw.WriteHeader(v.Status())
					rw.Write(v.Problem())
				}
			}
			return c, nil
		},
		requests: []*http.Request{
			request("GET", "/page"), request("HEAD", "/page"), request("GET", "/flushed"), request("GET", "/same"), request("GET", "/none"),
			request("GET", "/other"),
		},
		want:   []string{`429 "api";r=0`, `429 "api";r=0`, `503 "api";r=0`, `429 "api";r=0`, `429 "api";r=0`, `503 "api";r=0`},
		events: []string{"refused /page", "refused /page", "refused /flushed", "refused /same", "refused /none", "refused /other"},
	},
	{
		name: "a panic",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rules(rule(w.limiter("api", minute(2)))), func(http.ResponseWriter, *http.Request) { panic("boom") }
		},
		requests: gets(3),
		want:     []string{"panic boom", "panic boom", `429 "api";r=0;t=60 after 60`},
	},
	{
		name: "settling by status",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			l := w.limiter("logins", minute(3))
			r := rule(l)
			r.Settle = func(r *http.Request, o nethttp.Outcome) int64 {
				w.note("%s: %d, %d bytes, hijacked %v, cost %d", r.URL.Path, o.Status, o.Written, o.Hijacked, o.Cost)
				if o.Status == 401 {
					return 1
				}
				return 0
			}
			return rules(r), func(rw http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/wrong":
					http.Error(rw, "wrong", http.StatusUnauthorized)
				case "/right":
					rw.Header().Set("Content-Type", "text/plain") // the recorder guesses it in other ways than a server
					io.WriteString(rw, "welcome")
				case "/moved":
					http.Redirect(rw, r, "/right", http.StatusSeeOther)
				case "/nothing":
				case "/early":
					panic("early")
				case "/late":
					rw.WriteHeader(401)
					rw.Write([]byte("wr"))
					panic("late")
				}
			}
		},
		requests: []*http.Request{
			request("POST", "/wrong"), request("POST", "/right"), request("POST", "/moved"), request("POST", "/nothing"),
			request("POST", "/early"), request("POST", "/late"), request("POST", "/wrong"), request("POST", "/right"),
		},
		want: []string{
			`401 "logins";r=2;t=60`, `200 "logins";r=1;t=60`, `303 "logins";r=1;t=60`, `200 "logins";r=1;t=60`,
			"panic early", "panic late", `401 "logins";r=0;t=60`, `429 "logins";r=0;t=60 after 60`,
		},
		events: []string{
			"/wrong: 401, 6 bytes, hijacked false, cost 1", "/right: 200, 7 bytes, hijacked false, cost 1",
			"/moved: 303, 0 bytes, hijacked false, cost 1", "/nothing: 200, 0 bytes, hijacked false, cost 1",
			"/early: 500, 0 bytes, hijacked false, cost 1", "/late: 401, 2 bytes, hijacked false, cost 1",
			"/wrong: 401, 6 bytes, hijacked false, cost 1",
		},
	},
	{
		name: "SetCost",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			l := w.limiter("tokens", minute(100))
			r := rule(l)
			r.Cost = func(*http.Request) int64 { return 60 }
			r.Settle = nethttp.StatedCost
			c := rules(r)
			c.OnSettled = func(_ *http.Request, uncovered int64, err error) { w.note("uncovered %d, %v", uncovered, err) }
			return c, func(rw http.ResponseWriter, r *http.Request) {
				w.left(l, "anna")
				n := int64(len(r.URL.Path)-1) * 10
				w.note("%v %v", nethttp.SetCost(r.Context(), "tokens", n), nethttp.SetCost(r.Context(), "other", n))
			}
		},
		requests: []*http.Request{request("GET", "/1"), request("GET", "/123456789"), request("GET", "/")},
		want:     []string{`200 "tokens";r=40;t=60`, `200 "tokens";r=30;t=60`, `429 "tokens";r=0;t=60 after 60`},
		events:   []string{"anna: 40 left", "true false", "uncovered 0, <nil>", "anna: 30 left", "true false", "uncovered 0, <nil>"},
	},
	{
		name: "reporting bytes",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rule(w.limiter("bytes", core.FixedWindow(core.PerMinute(20))))
			r.Report = func(r *http.Request, o nethttp.Outcome) int64 {
				w.note("%s: %d, %d bytes, hijacked %v, cost %d", r.URL.Path, o.Status, o.Written, o.Hijacked, o.Cost)
				return nethttp.BytesWritten(r, o)
			}
			return rules(r), func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/plain")
				switch r.URL.Path {
				case "/five":
					io.WriteString(rw, "12345")
				case "/failed":
					http.Error(rw, "failed", http.StatusBadGateway)
				case "/none":
					rw.WriteHeader(http.StatusNoContent)
				case "/panic":
					panic("early")
				case "/much":
					for range 10 {
						io.WriteString(rw, "1234567890")
						rw.(http.Flusher).Flush()
					}
				}
			}
		},
		requests: []*http.Request{
			request("GET", "/five"), request("GET", "/failed"), request("GET", "/none"), request("GET", "/panic"), request("GET", "/much"),
			request("GET", "/none"), request("GET", "/none", "X-Client", "ben"),
		},
		want: []string{
			`200 "bytes";r=20`, `502 "bytes";r=15;t=60`, `204 "bytes";r=8;t=60`, "panic early", `200 "bytes";r=8;t=60`,
			`429 "bytes";r=0;t=60 after 60`, `204 "bytes";r=20`,
		},
		events: []string{
			"/five: 200, 5 bytes, hijacked false, cost 0", "/failed: 502, 7 bytes, hijacked false, cost 0", "/none: 204, 0 bytes, hijacked false, cost 0",
			"/panic: 500, 0 bytes, hijacked false, cost 0", "/much: 200, 100 bytes, hijacked false, cost 0", "/none: 204, 0 bytes, hijacked false, cost 0",
		},
	},
	{
		name: "reporting beside a charge",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			requests, tokens := w.limiter("requests", minute(9)), w.limiter("tokens", core.TokenBucket(core.PerMinute(60), 60))
			r := rule(tokens)
			r.Report = nethttp.StatedCost
			c := rules(rule(requests), r)
			c.OnSettled = func(_ *http.Request, uncovered int64, err error) { w.note("uncovered %d, %v", uncovered, err) }
			return c, func(_ http.ResponseWriter, r *http.Request) {
				n := int64(len(r.URL.Path)-1) * 40
				w.note("%v %v", nethttp.SetCost(r.Context(), "tokens", n), nethttp.SetCost(r.Context(), "requests", n))
				if n == 0 {
					panic("at last")
				}
			}
		},
		requests: []*http.Request{request("GET", "/1"), request("GET", "/", "X-Client", "ben"), request("GET", "/12"), request("GET", "/1"), request("GET", "/1")},
		want: []string{
			`200 "requests";r=8;t=60, "tokens";r=60`, "panic at last", `200 "requests";r=7;t=60, "tokens";r=20;t=1`,
			`429 "tokens";r=0;t=61 after 61`, `429 "tokens";r=0;t=61 after 61`,
		},
		events: []string{"true false", "uncovered 0, <nil>", "true false", "true false", "uncovered 60, <nil>"},
	},
}

// An answer is what a client sees.
type answer struct {
	Status int
	Fields http.Header
	Body   string
	Panic  any
}

func (a answer) line() string {
	if a.Panic != nil {
		return fmt.Sprint("panic ", a.Panic)
	}
	line := fmt.Sprint(a.Status)
	if s := strings.Join(a.Fields.Values("RateLimit"), " | "); s != "" {
		line += " " + s
	} else if s := a.Fields.Get("RateLimit-Policy"); s != "" {
		line += " policy " + s
	}
	if s := a.Fields.Get("Retry-After"); s != "" {
		line += " after " + s
	}
	return line
}

// ask sends a request straight to a handler. The length of a body is left out of
// the answer, and JSON is written in one way, because Echo ends it with a newline.
func ask(h http.Handler, r *http.Request) (a answer) {
	w := httptest.NewRecorder()
	defer func() {
		if a.Panic = recover(); a.Panic == nil {
			a = answer{Status: w.Code, Fields: w.Result().Header, Body: canonical(w.Body.String())}
			a.Fields.Del("Content-Length")
		}
	}()
	h.ServeHTTP(w, r)
	return a
}

func canonical(body string) string {
	var v any
	if json.Unmarshal([]byte(body), &v) != nil {
		return body
	}
	b, err := json.Marshal(v)
	if err != nil {
		return body
	}
	return string(b)
}

// play returns what became of a scenario.
func play(t *testing.T, s scenario, f framework) (answers []answer, events []string) {
	w := &world{t: t, store: &toldStore{Store: memstore.New(memstore.Config{})}}
	config, handler := s.setup(w)
	if handler == nil {
		handler = func(rw http.ResponseWriter, _ *http.Request) {
			w.note("hello")
			rw.Header().Set("Content-Type", "text/plain")
			io.WriteString(rw, "hello")
		}
	}
	guard, err := nethttp.New(config)
	if err != nil {
		t.Fatal(err)
	}
	served := f.serve(guard, handler)
	for _, r := range s.requests {
		r = r.Clone(t.Context())
		if r.Header.Get("Body") != "" {
			r.Body, r.ContentLength = io.NopCloser(unread{t}), 1000
		}
		answers = append(answers, ask(served, r))
	}
	return answers, w.events
}

func TestScenarios(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			var reference []answer
			for _, f := range frameworks {
				t.Run(f.name, func(t *testing.T) {
					var answers []answer
					var events []string
					synctest.Test(t, func(t *testing.T) {
						answers, events = play(t, s, f)
					})
					if reference == nil {
						reference = answers
					}
					if !slices.Equal(events, s.events) {
						t.Errorf("events\n%q, want\n%q", events, s.events)
					}
					for i, a := range answers {
						if a.line() != s.want[i] {
							t.Errorf("request %d: %s, want %s", i, a.line(), s.want[i])
						}
						compare(t, fmt.Sprintf("request %d", i), a, reference[i])
						checkRefusal(t, s.requests[i], a)
					}
				})
			}
		})
	}
}

// compare reports every difference of an answer from the one of net/http.
func compare(t *testing.T, what string, got, want answer) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want.Fields)) {
		if !slices.Equal(got.Fields[name], want.Fields[name]) {
			t.Errorf("%s: %s: %q, want %q", what, name, got.Fields[name], want.Fields[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got.Fields)) {
		if _, ok := want.Fields[name]; !ok {
			t.Errorf("%s: %s: %q, want none", what, name, got.Fields[name])
		}
	}
	got.Fields, want.Fields = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// checkRefusal checks what every problem document must be.
func checkRefusal(t *testing.T, r *http.Request, a answer) {
	t.Helper()
	if a.Fields.Get("Content-Type") != nethttp.ProblemType {
		return
	}
	if a.Fields.Get("Cache-Control") != "no-store" || a.Fields.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("fields of a refusal: %v", a.Fields)
	}
	if r.Method == http.MethodHead {
		if a.Body != "" {
			t.Errorf("the body of HEAD: %q", a.Body)
		}
		return
	}
	var p struct {
		Type   string
		Status int
	}
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil || p.Status != a.Status || (p.Type == "about:blank") != (a.Status != 429) {
		t.Errorf("the problem document %s with status %d", a.Body, a.Status)
	}
}
