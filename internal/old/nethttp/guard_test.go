package nethttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

var errDown = errors.New("store down")

// Every way in which a request can end, and what its client sees.
func TestStatuses(t *testing.T) {
	store := newFake()
	down := newFake()
	down.err = errDown
	minute := core.SlidingLog(core.PerMinute(1))
	lax := newLimiter(t, store, "lax", core.SlidingLog(core.PerMinute(1000)))
	blocked := newLimiter(t, store, "blocked", core.Blocked())
	laxBlocked := newLimiter(t, store, "lax", core.Blocked())
	gone := newLimiter(t, down, "gone", minute)
	laxElsewhere := newLimiter(t, newFake(), "lax", minute)
	number := func(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }
	empty := func(*http.Request) (string, error) { return "", nil }
	ok := nethttp.Rule{Limiter: lax, Key: header}

	for _, test := range []struct {
		name   string
		config nethttp.Config
		status int
		retry  string
		err    error  // by errors.Is; nil: the verdict has none
		asked  int    // questions to the stores
		by     string // the verdict's Limiter
	}{
		{name: "admitted", config: rules(ok), asked: 1, by: "lax"},
		{name: "over the limit", config: rules(nethttp.Rule{Limiter: blocked, Key: header}), status: 429, by: "blocked"},
		{name: "no key", config: rules(nethttp.Rule{Limiter: lax, Key: keyfuncs.Header("X-None")}), status: 400, err: keyfuncs.ErrAbsent, by: "lax"},
		{name: "an empty key", config: rules(nethttp.Rule{Limiter: lax, Key: empty}), status: 400, err: errAny, by: "lax"},
		{
			name:   "no key for the second rule",
			config: rules(ok, nethttp.Rule{Limiter: blocked, Key: empty}),
			status: 400, err: errAny,
			by: "blocked",
		},
		{name: "the store is away", config: rules(nethttp.Rule{Limiter: gone, Key: header}), status: 503, retry: "5", err: errDown, asked: 1},
		{
			name:   "cost 0",
			config: rules(nethttp.Rule{Limiter: blocked, Key: empty, Cost: number(0)}),
		},
		{
			name:   "cost 0 for one of two",
			config: rules(nethttp.Rule{Limiter: blocked, Key: empty, Cost: number(0)}, ok),
			asked:  1,
			by:     "lax",
		},
		{name: "a negative cost", config: rules(nethttp.Rule{Limiter: lax, Key: header, Cost: number(-1)}), status: 500, err: errAny, by: "lax"},
		{
			name:   "a cost that never fits",
			config: rules(nethttp.Rule{Limiter: lax, Key: header, Cost: number(1001)}),
			status: 429,
			by:     "lax",
		},
		{
			name: "a plan",
			config: rules(nethttp.Rule{Limiter: lax, Key: header, Plan: func(*http.Request, string) *core.Limiter {
				return laxBlocked
			}}),
			status: 429,
			by:     "lax",
		},
		{
			name:   "no plan",
			config: rules(nethttp.Rule{Limiter: lax, Key: header, Plan: func(*http.Request, string) *core.Limiter { return nil }}),
			asked:  1,
			by:     "lax",
		},
		{
			name: "a plan with another name",
			config: rules(ok, nethttp.Rule{Limiter: blocked, Key: header, Plan: func(*http.Request, string) *core.Limiter {
				return lax
			}}),
			status: 500, err: errAny,
			by: "blocked",
		},
		{
			name: "a plan with another store",
			config: rules(nethttp.Rule{Limiter: lax, Key: header, Plan: func(*http.Request, string) *core.Limiter {
				return laxElsewhere
			}}),
			status: 500, err: errAny,
			by: "lax",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			store.asked, down.asked = 0, 0
			var observed []nethttp.Verdict
			test.config.Observe = func(_ *http.Request, v nethttp.Verdict) { observed = append(observed, v) }
			guard := newGuard(t, test.config)

			r := request("POST", "/", "X-Client", "anna")
			r.Body = io.NopCloser(unread{t})
			passed := false
			w := serve(guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				passed = true
				w.WriteHeader(204)
			})), r)

			want := test.status
			if want == 0 {
				want = 204
			}
			if w.Code != want || passed != (test.status == 0) {
				t.Errorf("status %d, passed %v, want %d", w.Code, passed, want)
			}
			if asked := store.asked + down.asked; asked != test.asked {
				t.Errorf("the store was asked %d times, want %d", asked, test.asked)
			}
			if test.status != 0 {
				wantHeader(t, w.Header(), map[string]string{
					"Retry-After": test.retry, "Cache-Control": "no-store",
					"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff",
				})
			}
			if test.err != nil {
				wantHeader(t, w.Header(), map[string]string{"RateLimit": "", "RateLimit-Policy": ""})
				wantProblem(t, w.Body.Bytes(), test.status, nil)
			}
			if strings.Contains(w.Body.String(), "anna") || strings.Contains(fmt.Sprintf("%+v", w.Header()), "anna") {
				t.Errorf("the response contains the key: %v %s", w.Header(), w.Body)
			}

			free := test.name == "cost 0"
			if (len(observed) == 0) != free {
				t.Fatalf("observed %d verdicts", len(observed))
			}
			for _, v := range observed {
				if v.Status() != test.status {
					t.Errorf("observed %d, want %d", v.Status(), test.status)
				}
				if !errors.Is(v.Err, test.err) && (v.Err == nil || !errors.Is(test.err, errAny)) {
					t.Errorf("Err: %v, want %v", v.Err, test.err)
				}
				if v.Err != nil && v.Decision.Len() != 0 {
					t.Error("a decision beside an error")
				}
				if v.Limiter() != test.by {
					t.Errorf("by %q, want %q", v.Limiter(), test.by)
				}
			}
		})
	}
}

var errAny = errors.New("any error")

// A request that one rule refuses is charged to none.
func TestAllOrNothing(t *testing.T) {
	store := memstore.New(memstore.Config{})
	session := newLimiter(t, store, "session", core.SlidingLog(core.PerMinute(2)))
	address := newLimiter(t, store, "address", core.SlidingLog(core.PerMinute(5)))
	guard := newGuard(t, rules(
		nethttp.Rule{Limiter: session, Key: header},
		nethttp.Rule{Limiter: address, Key: keyfuncs.RemoteAddr()},
	))
	h := guard.Handler(status(204))
	for i, test := range []struct {
		client string
		status int
	}{
		{"anna", 204},
		{"anna", 204},
		{"anna", 429}, // her session
		{"anna", 429},
		{"ben", 204},
		{"ben", 204},
		{"ben", 429},
		{"carl", 204},
		{"dora", 429}, // the address
		{"dora", 429},
	} {
		if w := serve(h, request("GET", "/", "X-Client", test.client)); w.Code != test.status {
			t.Errorf("request %d, of %s: %d, want %d", i, test.client, w.Code, test.status)
		}
	}
	for client, want := range map[string]int64{"anna": 0, "ben": 0, "carl": 1, "dora": 2} {
		if got := remaining(t, session, client); got != want {
			t.Errorf("%s has %d left, want %d", client, got, want)
		}
	}
	if got := remaining(t, address, "192.0.2.1"); got != 0 {
		t.Errorf("the address has %d left", got)
	}
}

// Only Skip passes requests by: a preflight is charged.
func TestSkip(t *testing.T) {
	preflight := []string{"X-Client", "anna", "Origin", "https://example.com", "Access-Control-Request-Method", "PUT"}
	for _, test := range []struct {
		name     string
		r        *http.Request
		status   int
		observed int // -1: not observed
	}{
		{"other", request("GET", "/", "X-Client", "anna"), 429, 429},
		{"skipped", request("GET", "/health"), 200, -1},
		{"preflight, skipped", request("OPTIONS", "/health", preflight...), 200, -1},
		{"preflight", request("OPTIONS", "/", preflight...), 429, 429},
	} {
		t.Run(test.name, func(t *testing.T) {
			observed := -1
			guard := newGuard(t, nethttp.Config{
				Rules:   []nethttp.Rule{{Limiter: memory(t, "api", core.Blocked()), Key: header}},
				Skip:    func(r *http.Request) bool { return r.URL.Path == "/health" },
				Observe: func(_ *http.Request, v nethttp.Verdict) { observed = v.Status() },
			})
			w := serve(guard.Handler(status(200)), test.r)
			if w.Code != test.status || observed != test.observed {
				t.Errorf("status %d, observed %d", w.Code, observed)
			}
			if test.status != 429 {
				wantHeader(t, w.Header(), map[string]string{"RateLimit": "", "RateLimit-Policy": "", "Cache-Control": "", "Retry-After": ""})
			}
		})
	}
}

func TestNilGuard(t *testing.T) {
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "the guard is nil") {
			t.Errorf("panic %q", text)
		}
	}()
	(*nethttp.Guard)(nil).Handler(http.NotFoundHandler())
}

// Reset forgets one rule's usage of the request's key, whatever form that has.
func TestReset(t *testing.T) {
	store := memstore.New(memstore.Config{})
	limiter := func(name string, p core.Policy) *core.Limiter { return core.Must(core.New(store, name, p)) }
	day := core.FixedWindow(core.PerDay(5))
	logins, planned := limiter("logins", day), limiter("planned", core.FixedWindow(core.PerDay(2)))
	larger := core.Must(planned.With(day))
	guard := newGuard(t, rules(
		nethttp.Rule{Limiter: logins, Key: keyfuncs.First(keyfuncs.Tag("user", header), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))},
		nethttp.Rule{Limiter: limiter("service", day), Key: keyfuncs.Everyone()},
		nethttp.Rule{Limiter: planned, Key: header, Plan: func(*http.Request, string) *core.Limiter { return larger }},
		nethttp.Rule{Limiter: limiter("theirs", core.Unlimited()), Key: func(*http.Request) (string, error) { return "", nil }, Cost: func(*http.Request) int64 { return 0 }},
	))
	anna, ben, nobody := request("GET", "/", "X-Client", "anna"), request("GET", "/", "X-Client", "ben"), request("GET", "/")
	left := func() (all []int64) {
		for _, l := range []struct {
			limiter *core.Limiter
			key     string
		}{{logins, "user:anna"}, {logins, "user:ben"}, {limiter("service", day), "everyone"}, {larger, "anna"}} {
			d, err := l.limiter.Peek(t.Context(), l.key)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, d.Remaining)
		}
		return all
	}
	for _, r := range []*http.Request{anna, ben} {
		if v := guard.Check(r); v.Status() != 0 {
			t.Fatal(v.Status(), v.Err)
		}
	}
	if got := fmt.Sprint(left()); got != "[4 4 3 4]" {
		t.Fatalf("%v are left", got)
	}
	if err := guard.Reset(anna, "logins"); err != nil || fmt.Sprint(left()) != "[5 4 3 4]" {
		t.Errorf("%v are left after a Reset, %v", left(), err)
	}
	if err := guard.Reset(anna, "planned"); err != nil || fmt.Sprint(left()) != "[5 4 3 5]" {
		t.Errorf("%v are left after that of a plan, %v", left(), err)
	}
	for _, test := range []struct {
		guard *nethttp.Guard
		r     *http.Request
		name  string
		want  string
	}{
		{guard, anna, "", `no rule has a limiter named ""`},
		{guard, anna, "login", `no rule has a limiter named "login"`},
		{guard, nobody, "planned", "no X-Client"},
		{guard, anna, "theirs", "an empty key"},
		{new(nethttp.Guard), anna, "logins", "no rule"},
	} {
		if err := test.guard.Reset(test.r, test.name); err == nil || !strings.Contains(err.Error(), test.want) || strings.Count(err.Error(), "headgate: ") != 1 {
			t.Errorf("%q: %v, want %q", test.name, err, test.want)
		}
	}
	if got := fmt.Sprint(left()); got != "[5 4 3 5]" {
		t.Errorf("%v are left after errors", got)
	}
}

// Shadow mode decides and charges as if it were meant, and shows nothing.
func TestObserveOnly(t *testing.T) {
	store := newFake()
	limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerMinute(2)))
	var statuses []int
	guard := newGuard(t, nethttp.Config{
		Rules:       []nethttp.Rule{{Limiter: limiter, Key: header}},
		Observe:     func(_ *http.Request, v nethttp.Verdict) { statuses = append(statuses, v.Status()) },
		ObserveOnly: true,
		OnRefused:   func(http.ResponseWriter, *http.Request, nethttp.Verdict) { t.Error("OnRefused") },
	})
	for i := range 5 {
		client := "anna"
		if i == 3 {
			client = ""
		}
		if i == 4 {
			store.err = errDown
		}
		w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", client))
		if w.Code != 204 || len(w.Header()) != 0 {
			t.Errorf("request %d: %d %v", i, w.Code, w.Header())
		}
	}
	if got := fmt.Sprint(statuses); got != "[0 0 429 400 503]" {
		t.Errorf("observed %s", got)
	}
	store.err = nil
	if got := remaining(t, limiter, "anna"); got != 0 {
		t.Errorf("%d left: shadow mode has not charged", got)
	}

	// Observe may be nil.
	guard = newGuard(t, nethttp.Config{Rules: []nethttp.Rule{{Limiter: memory(t, "api", core.Blocked()), Key: header}}, ObserveOnly: true})
	if w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna")); w.Code != 204 {
		t.Errorf("status %d", w.Code)
	}
}

func TestOnRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		refused func(http.ResponseWriter, *http.Request, nethttp.Verdict)
		status  int
		body    string
	}{
		{"a page", func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) {
			w.WriteHeader(v.Status())
			io.WriteString(w, "wait")
		}, 429, "wait"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request, _ nethttp.Verdict) {
			http.Redirect(w, r, "/wait", http.StatusSeeOther)
		}, 303, ""},
		{"a body alone", func(w http.ResponseWriter, _ *http.Request, _ nethttp.Verdict) { io.WriteString(w, "wait") }, 200, "wait"},
		{"only looks", func(http.ResponseWriter, *http.Request, nethttp.Verdict) {}, 429, "{"},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := newFake()
			limiter := newLimiter(t, store, "api", core.SlidingLog(core.PerMinute(1)))
			guard := newGuard(t, nethttp.Config{
				Rules: []nethttp.Rule{{Limiter: limiter, Key: header}},
				OnRefused: func(w http.ResponseWriter, r *http.Request, v nethttp.Verdict) {
					wantHeader(t, w.Header(), map[string]string{
						"RateLimit": `"api";r=0;t=60`, "RateLimit-Policy": `"api";q=1;w=60`,
						"Retry-After": "60", "Cache-Control": "no-store", "Content-Type": "",
					})
					if v.Status() != 429 || v.Decision.Allowed || v.Err != nil {
						t.Errorf("%d %v %v", v.Status(), v.Decision, v.Err)
					}
					test.refused(w, r, v)
				},
			})
			h := guard.Handler(status(204))
			if w := serve(h, request("POST", "/", "X-Client", "anna")); w.Code != 204 {
				t.Fatalf("status %d", w.Code)
			}
			w := serve(h, request("POST", "/", "X-Client", "anna"))
			if w.Code != test.status || !strings.HasPrefix(w.Body.String(), test.body) {
				t.Errorf("%d %q", w.Code, w.Body)
			}
		})
	}
}

// OnRefused may hijack the connection; then the guard writes nothing.
func TestOnRefusedHijacks(t *testing.T) {
	guard := newGuard(t, nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: memory(t, "api", core.Blocked()), Key: header}},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, _ nethttp.Verdict) {
			if _, _, err := w.(http.Hijacker).Hijack(); err != nil {
				t.Error(err)
			}
		},
	})
	w := &hijackable{ResponseRecorder: httptest.NewRecorder()}
	guard.Handler(status(204)).ServeHTTP(w, request("GET", "/", "X-Client", "anna"))
	if !w.hijacked || w.wrote {
		t.Errorf("hijacked %v, written %v", w.hijacked, w.wrote)
	}
}

// hijackable is a writer of a connection that does not exist.
type hijackable struct {
	*httptest.ResponseRecorder

	hijacked, wrote bool
}

func (w *hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.hijacked = true
	return nil, nil, nil
}

func (w *hijackable) WriteHeader(status int) {
	w.wrote = true
	w.ResponseRecorder.WriteHeader(status)
}

func (w *hijackable) Write(b []byte) (int, error) {
	w.wrote = true
	return w.ResponseRecorder.Write(b)
}

// OnRefused sees refusals of every kind, with their reason, and may answer with another status.
func TestOnRefusedOfErrors(t *testing.T) {
	store := newFake()
	store.err = errDown
	guard := newGuard(t, nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: newLimiter(t, store, "api", core.SlidingLog(core.PerMinute(1))), Key: header}},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) {
			if errors.Is(v.Err, errDown) {
				w.WriteHeader(v.Status())
			} else {
				w.WriteHeader(http.StatusForbidden)
			}
			fmt.Fprint(w, v.Err)
		},
	})
	for client, want := range map[string]string{"": `403 headgate: guard: Rules[0] (limiter "api"): no X-Client`, "anna": "503 store down"} {
		w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", client))
		if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestHead(t *testing.T) {
	guard := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.Blocked()), Key: header}))
	get := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna"))
	head := serve(guard.Handler(status(204)), request("HEAD", "/", "X-Client", "anna"))
	if head.Body.Len() != 0 {
		t.Errorf("body %q", head.Body)
	}
	if fmt.Sprint(get.Code, get.Header()) != fmt.Sprint(head.Code, head.Header()) {
		t.Errorf("HEAD has %v, GET has %v", head.Header(), get.Header())
	}
}

// The parts of Handler, by hand: what an adapter does.
func TestByHand(t *testing.T) {
	limiter := memory(t, "api", core.SlidingLog(core.PerMinute(1)))
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header}))
	r := request("GET", "/", "X-Client", "anna")
	v := guard.Check(r)
	if v.Status() != 0 || !v.Decision.Allowed || v.Problem() != nil {
		t.Errorf("%d %v %s", v.Status(), v.Decision, v.Problem())
	}
	if begun, watch := v.Begin(r); begun != r || watch || v.Ends() || v.Upgrades() {
		t.Error("there is something to end")
	}
	w := httptest.NewRecorder()
	guard.Refuse(w, r, v)
	if w.Body.Len() > 0 || len(w.Header()) > 0 {
		t.Errorf("an admitted request was refused: %v %s", w.Header(), w.Body)
	}

	v = guard.Check(r)
	if v.Status() != 429 {
		t.Errorf("status %d", v.Status())
	}
	h := make(http.Header)
	v.SetFields(h)
	wantHeader(t, h, map[string]string{"RateLimit": `"api";r=0;t=60`, "Retry-After": "60"})
	wantProblem(t, v.Problem(), 429, []string{"api"})

	v = guard.Check(request("GET", "/"))
	if v.Status() != 400 || v.Err == nil {
		t.Errorf("%d %v", v.Status(), v.Err)
	}
}

func TestZeroVerdictRefuses(t *testing.T) {
	guard := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.Unlimited()), Key: header}))
	w := httptest.NewRecorder()
	guard.Refuse(w, request("GET", "/"), nethttp.Verdict{})
	if w.Code != 503 {
		t.Errorf("status %d", w.Code)
	}
	wantProblem(t, w.Body.Bytes(), 503, nil)
}

// Verdicts end up in logs, and keys must not.
func TestVerdictDoesNotPrintTheKey(t *testing.T) {
	guard := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.SlidingLog(core.PerMinute(9))), Key: header, Settle: nethttp.StatedCost}))
	v := guard.Check(request("GET", "/", "X-Client", "anna"))
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, v); strings.Contains(s, "anna") {
			t.Errorf("%s: %s", format, s)
		}
	}
}

// The question is asked with the request's context.
func TestContext(t *testing.T) {
	type key struct{}
	store := &contextStore{fakeStore: newFake()}
	guard := newGuard(t, rules(nethttp.Rule{Limiter: newLimiter(t, store, "api", core.SlidingLog(core.PerMinute(1))), Key: header}))
	r := request("GET", "/", "X-Client", "anna")
	guard.Check(r.WithContext(context.WithValue(r.Context(), key{}, "value")))
	if store.ctx == nil || store.ctx.Value(key{}) != "value" {
		t.Error("the store was asked with another context")
	}
}

type contextStore struct {
	*fakeStore

	ctx context.Context
}

func (s *contextStore) Ask(ctx context.Context, q *store.Question) error {
	s.ctx = ctx
	return s.fakeStore.Ask(ctx, q)
}

// However many ask at once, exactly as many pass as the limit says.
func TestConcurrency(t *testing.T) {
	store := memstore.New(memstore.Config{})
	small := newLimiter(t, store, "small", core.SlidingLog(core.PerHour(50)))
	large := newLimiter(t, store, "large", core.TokenBucket(core.PerDay(120), 120))
	other, err := large.With(core.TokenBucket(core.PerDay(120), 120))
	if err != nil {
		t.Fatal(err)
	}
	guard := newGuard(t, rules(
		nethttp.Rule{Limiter: small, Key: header},
		nethttp.Rule{
			Limiter: large, Key: keyfuncs.Everyone(),
			Plan:   func(*http.Request, string) *core.Limiter { return other },
			Settle: nethttp.StatedCost,
		},
	))
	var passed atomic.Int64
	h := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed.Add(1) }))
	perClient := make(map[string]*atomic.Int64)
	var wg sync.WaitGroup
	for i := range 200 {
		client := string(rune('a' + i%4))
		if perClient[client] == nil {
			perClient[client] = new(atomic.Int64)
		}
		count := perClient[client]
		wg.Go(func() {
			for range 5 {
				if w := serve(h, request("GET", "/", "X-Client", client)); w.Code == 200 {
					count.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 120 {
		t.Errorf("%d passed, want 120", n)
	}
	for client, count := range perClient {
		if n := count.Load(); n > 50 {
			t.Errorf("%d of %q passed", n, client)
		}
	}
}

// One key, one limit, 200 at once.
func TestConcurrencyOnOneKey(t *testing.T) {
	guard := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.SlidingLog(core.PerHour(77))), Key: header}))
	h := guard.Handler(status(204))
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			switch serve(h, request("GET", "/", "X-Client", "anna")).Code {
			case 204:
				passed.Add(1)
			case 429:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if passed.Load() != 77 || refused.Load() != 123 {
		t.Errorf("%d passed, %d refused", passed.Load(), refused.Load())
	}
}

// A guard that New has not made refuses, and does not panic.
func TestZeroGuard(t *testing.T) {
	var guard nethttp.Guard
	v := guard.Check(request("GET", "/"))
	if v.Status() != 500 || v.Err == nil || v.Err.Error() != "headgate: guard: make one with nethttp.New" {
		t.Errorf("status %d, %v", v.Status(), v.Err)
	}
	w := serve(guard.Handler(status(204)), request("GET", "/"))
	if w.Code != 500 {
		t.Errorf("status %d", w.Code)
	}
	wantProblem(t, w.Body.Bytes(), 500, nil)
}

// An error names the rule, and neither the key nor the client.
func TestRuleErrors(t *testing.T) {
	policy := core.SlidingLog(core.PerMinute(1))
	store := memstore.New(memstore.Config{})
	free := newLimiter(t, store, "free", policy)
	first := nethttp.Rule{Limiter: newLimiter(t, store, "first", policy), Key: header}
	plan := func(l *core.Limiter) func(*http.Request, string) *core.Limiter {
		return func(*http.Request, string) *core.Limiter { return l }
	}
	for _, test := range []struct {
		rule   nethttp.Rule
		status int
		want   string
		is     error
	}{
		{
			nethttp.Rule{Limiter: free, Key: header, Plan: plan(newLimiter(t, store, "paid", policy))}, 500,
			`Plan returned a limiter of another name, "paid"; make it with Limiter.With`, nil,
		},
		{
			nethttp.Rule{Limiter: free, Key: header, Plan: plan(memory(t, "free", policy))}, 500,
			`Plan returned a limiter of another store; make it with Limiter.With`, nil,
		},
		{
			nethttp.Rule{Limiter: free, Key: header, Cost: func(*http.Request) int64 { return -3 }}, 500,
			`Cost returned -3; it must be 0 or more`, nil,
		},
		{
			nethttp.Rule{Limiter: free, Key: func(*http.Request) (string, error) { return "", nil }}, 400,
			`Key returned an empty key without an error`, nil,
		},
		{
			nethttp.Rule{Limiter: free, Key: keyfuncs.Header("X-None")}, 400,
			`keyfuncs: absent: header X-None`, keyfuncs.ErrAbsent,
		},
	} {
		v := newGuard(t, rules(first, test.rule)).Check(request("GET", "/", "X-Client", "anna"))
		want := `headgate: guard: Rules[1] (limiter "free"): ` + test.want
		if v.Status() != test.status || v.Err == nil || v.Err.Error() != want {
			t.Errorf("status %d, %v; want %d, %s", v.Status(), v.Err, test.status, want)
		}
		if test.is != nil && !errors.Is(v.Err, test.is) {
			t.Errorf("%v is not %v", v.Err, test.is)
		}
	}
	for _, l := range []*core.Limiter{first.Limiter, free} {
		if d, err := l.Peek(t.Context(), "anna"); err != nil || d.Remaining != 1 {
			t.Errorf("charged: %v, %v", d, err)
		}
	}
}
