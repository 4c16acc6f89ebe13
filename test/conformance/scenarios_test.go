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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A world is what a scenario happens in.
type world struct {
	t      *testing.T
	store  core.Store
	events []string
}

func (w *world) note(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *world) limiter(name string, policies ...core.Policy) *core.Limiter {
	return core.NewLimiter(w.store, name, policies...)
}

func (w *world) unreachable(failure redisstore.Failure, name string, policies ...core.Policy) *core.Limiter {
	client := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED },
	})
	s, err := redisstore.New(client, redisstore.Config{Failure: failure})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { client.Close() })
	return core.NewLimiter(s, name, policies...)
}

func (w *world) left(l *core.Limiter, key string) {
	d, err := l.Peek(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	w.note("%s: %d left", key, d.Remaining)
}

type scenario struct {
	name     string
	setup    func(w *world) (nethttp.Config, http.HandlerFunc)
	requests []*http.Request
	want     []string
	events   []string
}

func request(method, target string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Header.Set("X-Client", "anna")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return r
}

func gets(n int) (rs []*http.Request) {
	for range n {
		rs = append(rs, request("GET", "/"))
	}
	return rs
}

var client = keyfuncs.Header("X-Client")

func rate(l *core.Limiter) nethttp.Rate { return nethttp.Rate{Limiter: l, Key: client} }

func rates(rs ...nethttp.Rate) nethttp.Config { return nethttp.Config{Rates: rs} }

func minute(n int64) core.Policy { return core.SlidingLog(n, time.Minute) }

func answering(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

var preflight = []string{"Origin", "https://example.com", "Access-Control-Request-Method", "PUT"}

var scenarios = []scenario{
	{
		name: "over the limit",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.limiter("api", minute(2)))), nil
		},
		requests: append(gets(3), request("GET", "/", "X-Client", "ben")),
		want:     []string{`200 "api";r=1;t=60`, `200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `200 "api";r=1;t=60`},
		events:   []string{"hello", "hello", "hello"},
	},
	{
		name: "every method",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.limiter("api", minute(5)))), answering(204)
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
			return rates(rate(w.limiter("api", core.Blocked()))), nil
		},
		requests: []*http.Request{request("POST", "/", "Body", "unread")},
		want:     []string{`429 "api";r=0`},
	},
	{
		name: "HEAD",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.limiter("api", minute(1)))), answering(200)
		},
		requests: []*http.Request{request("HEAD", "/"), request("HEAD", "/")},
		want:     []string{`200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`},
	},
	{
		name: "several policies and rules",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			session := w.limiter("session", minute(5).Named("minute"), core.FixedWindow(1, 24*time.Hour).Named("day"))
			address := w.limiter("address", core.TokenBucket(60, time.Minute).Burst(100))
			return rates(rate(session), nethttp.Rate{Limiter: address, Key: keyfuncs.RemoteAddr()}), nil
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
		name: "three rules, and one that is skipped",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			skipped := rate(w.limiter("b", minute(1)))
			skipped.Skip = func(r *http.Request) bool { return r.URL.Path == "/b" }
			return rates(rate(w.limiter("a", minute(9))), skipped, rate(w.limiter("c", minute(9))), rate(w.limiter("d", minute(9)))), nil
		},
		requests: []*http.Request{request("GET", "/"), request("GET", "/"), request("GET", "/b")},
		want: []string{
			`200 "a";r=8;t=60, "b";r=0;t=60, "c";r=8;t=60, "d";r=8;t=60`, `429 "a";r=8;t=60, "b";r=0;t=60, "c";r=8;t=60, "d";r=8;t=60 after 60`,
			`200 "a";r=7;t=60, "c";r=7;t=60, "d";r=7;t=60`,
		},
		events: []string{"hello", "hello"},
	},
	{
		name: "Skip",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rates(rate(w.limiter("api", core.Blocked())))
			c.Skip = func(r *http.Request) bool { return r.URL.Path == "/health" }
			c.Observe = func(r *http.Request, v *nethttp.Verdict) { w.note("observed %s: %d", r.URL.Path, v.Status) }
			return c, nil
		},
		requests: []*http.Request{request("GET", "/health"), request("GET", "/other")},
		want:     []string{"200", `429 "api";r=0`},
		events:   []string{"hello", "observed /other: 429"},
	},
	{
		name: "preflights",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.limiter("api", minute(1)))), nil
		},
		requests: []*http.Request{request("OPTIONS", "/", preflight...), request("OPTIONS", "/", preflight...), request("GET", "/")},
		want:     []string{`200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `429 "api";r=0;t=60 after 60`},
		events:   []string{"hello"},
	},
	{
		name: "rules that only observe",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rate(w.limiter("next", minute(1)))
			r.ObserveOnly = true
			slots := nethttp.Concurrency{Slots: core.NewSlots(w.store, "none", 0), Key: client, ObserveOnly: true}
			c := nethttp.Config{Rates: []nethttp.Rate{rate(w.limiter("api", minute(2))), r}, Concurrency: []nethttp.Concurrency{slots}}
			c.Observe = func(_ *http.Request, v *nethttp.Verdict) { w.note("%s %d %v", v.Limiter, v.Status, v.ObserveOnly) }
			return c, nil
		},
		requests: gets(3),
		want:     []string{`200 "api";r=1;t=60`, `200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`},
		events: []string{
			"api 0 false", "none 429 true", "hello", "api 0 false", "next 429 true", "none 429 true", "hello", "api 429 false",
		},
	},
	{
		name: "a rule that only observes, without a key or a store",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := nethttp.Rate{Limiter: w.limiter("next", minute(1)), Key: keyfuncs.Header("X-Nobody"), ObserveOnly: true}
			c := rates(rate(w.limiter("api", minute(9))), r)
			c.Observe = func(_ *http.Request, v *nethttp.Verdict) { w.note("%s %d %v", v.Limiter, v.Status, v.ObserveOnly) }
			return c, nil
		},
		requests: gets(1),
		want:     []string{`200 "api";r=8;t=60`},
		events:   []string{"api 0 false", "next 400 true", "hello"},
	},
	{
		name: "no key",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rates(rate(w.limiter("api", minute(1))))
			c.Observe = func(_ *http.Request, v *nethttp.Verdict) {
				w.note("%d %v %v", v.Status, v.Err, errors.Is(v, keyfuncs.ErrAbsent))
			}
			return c, nil
		},
		requests: []*http.Request{request("GET", "/", "X-Client", ""), request("HEAD", "/", "X-Client", "")},
		want:     []string{"400", "400"},
		events: []string{
			`400 headgate: limit "api": keyfuncs: absent: header X-Client true`,
			`400 headgate: limit "api": keyfuncs: absent: header X-Client true`,
		},
	},
	{
		name: "an empty key, and a fault of the program",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(nethttp.Rate{Limiter: w.limiter("api", minute(1)), Key: func(r *http.Request) (string, error) {
				if r.URL.Path == "/" {
					return "", nil
				}
				return "", keyfuncs.ErrProgram
			}}), nil
		},
		requests: append(gets(1), request("GET", "/x")),
		want:     []string{"400", "500"},
	},
	{
		name: "Redis unreachable, FailClosed",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.unreachable(redisstore.FailClosed, "api", minute(1)))), nil
		},
		requests: []*http.Request{request("GET", "/"), request("HEAD", "/")},
		want:     []string{"503 after 5", "503 after 5"},
	},
	{
		name: "Redis unreachable, FailOpen",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.unreachable(redisstore.FailOpen, "api", minute(1)))), nil
		},
		requests: gets(2),
		want:     []string{`200 policy "api";q=1;w=60`, `200 policy "api";q=1;w=60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "Redis unreachable, FailLocal",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.unreachable(redisstore.FailLocal, "api", minute(2)))), nil
		},
		requests: append(gets(3), request("GET", "/", "X-Client", "ben")),
		want:     []string{`200 "api";r=1;t=60`, `200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `200 "api";r=1;t=60`},
		events:   []string{"hello", "hello", "hello"},
	},
	{
		name: "a cost that makes no sense",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rate(w.limiter("api", minute(1)))
			r.Cost = func(*http.Request) int64 { return -1 }
			return rates(r), nil
		},
		requests: gets(1),
		want:     []string{"500"},
	},
	{
		name: "costs, and one that no waiting grants",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rate(w.limiter("api", minute(10)))
			r.Cost = func(r *http.Request) int64 { return int64(len(r.URL.Path) - 1) }
			return rates(r), nil
		},
		requests: []*http.Request{request("GET", "/"), request("GET", "/1234"), request("GET", "/12345678901"), request("GET", "/1234567")},
		want:     []string{"200", `200 "api";r=6;t=60`, `429 policy "api";q=10;w=60`, `429 "api";r=6;t=60 after 60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "plans",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rate(w.limiter("api", minute(1)).WithPlan("gold", minute(100)))
			r.Plan = keyfuncs.Header("X-Plan")
			return rates(r), nil
		},
		requests: []*http.Request{request("GET", "/"), request("GET", "/"), request("GET", "/", "X-Plan", "gold"), request("GET", "/", "X-Plan", "tin")},
		want:     []string{`200 "api";r=0;t=60`, `429 "api";r=0;t=60 after 60`, `200 "api";r=98;t=60`, `429 "api";r=0;t=60 after 60`},
		events:   []string{"hello", "hello"},
	},
	{
		name: "older fields",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rates(rate(w.limiter("api", minute(1))))
			c.Fields = nethttp.XRateLimitFields
			return c, nil
		},
		requests: gets(2),
		want:     []string{"200", "429 after 60"},
		events:   []string{"hello"},
	},
	{
		name: "OnRefused",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rates(rate(w.limiter("api", core.Blocked())))
			c.OnRefused = func(rw http.ResponseWriter, r *http.Request, v *nethttp.Verdict) {
				w.note("refused %s", r.URL.Path)
				switch r.URL.Path {
				case "/page":
					rw.Header().Set("Content-Type", "text/html; charset=utf-8")
					rw.WriteHeader(v.Status)
					io.WriteString(rw, "<h1>Please wait</h1>")
				case "/flushed":
					rw.Header().Set("Content-Type", "text/plain")
					rw.WriteHeader(503)
					http.NewResponseController(rw).Flush()
					io.WriteString(rw, "later")
				}
			}
			return c, nil
		},
		requests: []*http.Request{request("GET", "/page"), request("HEAD", "/page"), request("GET", "/flushed"), request("GET", "/none")},
		want:     []string{`429 "api";r=0`, `429 "api";r=0`, `503 "api";r=0`, `429 "api";r=0`},
		events:   []string{"refused /page", "refused /page", "refused /flushed", "refused /none"},
	},
	{
		name: "a panic",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			return rates(rate(w.limiter("api", minute(2)))), func(http.ResponseWriter, *http.Request) { panic("boom") }
		},
		requests: gets(3),
		want:     []string{"panic boom", "panic boom", `429 "api";r=0;t=60 after 60`},
	},
	{
		name: "settling by status",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rate(w.limiter("logins", minute(3)))
			r.Settle = func(r *http.Request, o nethttp.Outcome) int64 {
				w.note("%s: %d, %d bytes, cost %d", r.URL.Path, o.Status, o.Bytes, o.Cost)
				if o.Status == 401 {
					return 1
				}
				return 0
			}
			return rates(r), func(rw http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/wrong":
					http.Error(rw, "wrong", http.StatusUnauthorized)
				case "/right":
					rw.Header().Set("Content-Type", "text/plain")
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
			"panic early", "panic late", `401 "logins";r=0`, `429 "logins";r=0;t=60 after 60`,
		},
		events: []string{
			"/wrong: 401, 6 bytes, cost 1", "/right: 200, 7 bytes, cost 1", "/moved: 303, 0 bytes, cost 1", "/nothing: 200, 0 bytes, cost 1",
			"/early: 500, 0 bytes, cost 1", "/late: 401, 2 bytes, cost 1", "/wrong: 401, 6 bytes, cost 1",
		},
	},
	{
		name: "SetCost",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			l, other := w.limiter("tokens", minute(100)), w.limiter("other", minute(100))
			r := rate(l)
			r.Cost = func(*http.Request) int64 { return 60 }
			return rates(r, rate(other)), func(rw http.ResponseWriter, r *http.Request) {
				w.left(l, "anna")
				n := int64(len(r.URL.Path)-1) * 10
				w.note("%v %v", nethttp.SetCost(r.Context(), l, n), errors.Is(nethttp.SetCost(r.Context(), other, n), core.ErrSettled))
			}
		},
		requests: []*http.Request{request("GET", "/1"), request("GET", "/123456789"), request("GET", "/")},
		want: []string{
			`200 "tokens";r=40;t=60, "other";r=99;t=60`, `200 "tokens";r=30;t=60, "other";r=98;t=60`,
			`429 "tokens";r=0;t=60, "other";r=98;t=60 after 60`,
		},
		events: []string{"anna: 40 left", "<nil> true", "anna: 30 left", "<nil> true"},
	},
	{
		name: "settling bytes",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			r := rate(w.limiter("bytes", core.FixedWindow(20, time.Minute)))
			r.Settle = nethttp.BytesWritten
			return rates(r), func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/plain")
				switch r.URL.Path {
				case "/five":
					io.WriteString(rw, "12345")
				case "/none":
					rw.WriteHeader(http.StatusNoContent)
				case "/much":
					for range 10 {
						io.WriteString(rw, "1234567890")
						rw.(http.Flusher).Flush()
					}
				}
			}
		},
		requests: []*http.Request{request("GET", "/five"), request("GET", "/none"), request("GET", "/much"), request("GET", "/none"), request("GET", "/none", "X-Client", "ben")},
		want: []string{
			`200 "bytes";r=19;t=60`, `204 "bytes";r=14;t=60`, `200 "bytes";r=14;t=60`, `429 "bytes";r=0;t=60 after 60`, `204 "bytes";r=19;t=60`,
		},
	},
	{
		name: "KeepVerdict",
		setup: func(w *world) (nethttp.Config, http.HandlerFunc) {
			c := rates(rate(w.limiter("api", minute(2))))
			c.KeepVerdict = true
			return c, func(_ http.ResponseWriter, r *http.Request) {
				v, ok := nethttp.VerdictFrom(r.Context())
				w.note("%s %d %s %v", v.Limiter, v.Decision.Remaining, v.Key(), ok)
			}
		},
		requests: gets(1),
		want:     []string{`200 "api";r=1;t=60`},
		events:   []string{"api 1 anna true"},
	},
}

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

func play(t *testing.T, s scenario, f framework) (answers []answer, events []string) {
	w := &world{t: t, store: new(core.MemoryStore)}
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
					synctest.Test(t, func(t *testing.T) { answers, events = play(t, s, f) })
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
						want := reference[i]
						if strings.HasPrefix(f.name, "echo") && want.Fields.Get("Content-Type") == "application/problem+json" {
							// Echo's own error handler renders the document as JSON.
							want.Fields = maps.Clone(want.Fields)
							want.Fields["Content-Type"] = a.Fields["Content-Type"]
							want.Fields.Del("X-Content-Type-Options")
							if s.requests[i].Method == "HEAD" {
								want.Fields.Del("Content-Type")
							}
						}
						if !reflect.DeepEqual(a, want) {
							t.Errorf("request %d: %+v, want %+v", i, a, want)
						}
					}
				})
			}
		})
	}
}
