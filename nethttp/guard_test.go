package nethttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

var errOwn = errors.New("one's own")

func failing(err error) keyfuncs.Func {
	return func(*http.Request) (string, error) { return "", err }
}

// How a request can end, and what the program learns of it. A body is not read, and nothing is charged by a request
// that is refused.
func TestRefusals(t *testing.T) {
	closed := core.NewSlots(new(core.MemoryStore), "closed", 1)
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		rate    nethttp.Rate
		slots   *core.Slots
		status  int
		limiter string
		retry   time.Duration
		err     error
	}{
		{name: "over the limit", rate: nethttp.Rate{Limiter: memory("x", core.Blocked())}, status: 429, limiter: "x"},
		{name: "the cost never fits", rate: nethttp.Rate{Cost: costs(3)}, status: 429, limiter: "x"},
		{name: "no key", rate: nethttp.Rate{Key: failing(keyfuncs.ErrAbsent)}, status: 400, limiter: "x", err: keyfuncs.ErrAbsent},
		{name: "an error of one's own", rate: nethttp.Rate{Key: failing(errOwn)}, status: 400, limiter: "x", err: errOwn},
		{name: "an empty key", rate: nethttp.Rate{Key: failing(nil)}, status: 400, limiter: "x"},
		{name: "a fault of the program", rate: nethttp.Rate{Key: failing(keyfuncs.ErrProgram)}, status: 500, limiter: "x", err: keyfuncs.ErrProgram},
		{name: "a plan that fails", rate: nethttp.Rate{Plan: failing(errOwn)}, status: 400, limiter: "x", err: errOwn},
		{name: "a negative cost", rate: nethttp.Rate{Cost: costs(-1)}, status: 500, limiter: "x"},
		{name: "no store", rate: nethttp.Rate{Limiter: core.NewLimiter(away(t, redisstore.FailClosed), "x", minute(1))}, status: 503, retry: 5 * time.Second, err: core.ErrUnavailable},
		{name: "no slot", slots: core.NewSlots(new(core.MemoryStore), "s", 0), status: 429, limiter: "s", retry: -1},
		{name: "closed slots", slots: closed, status: 503, retry: -1, err: core.ErrClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got, refused *nethttp.Verdict
			if test.rate.Limiter == nil {
				test.rate.Limiter = memory("x", minute(2))
			}
			if test.rate.Key == nil {
				test.rate.Key = client
			}
			c := rates(test.rate)
			if test.slots != nil {
				c.Concurrency = []nethttp.Concurrency{{Slots: test.slots, Key: client}}
			}
			c.Observe = func(_ *http.Request, v *nethttp.Verdict) { got = v }
			c.OnRefused = func(_ http.ResponseWriter, _ *http.Request, v *nethttp.Verdict) { refused = v }
			w := serve(guardOf(t, c).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handled") })), request("POST", "/"))
			if got == nil || refused == nil || w.Code != test.status || got.Status != test.status || got.Limiter != test.limiter || got.Error() != refused.Error() || got.ObserveOnly {
				t.Fatalf("%d, %+v", w.Code, got)
			}
			wantErr := test.err != nil || test.status == 500 || test.name == "an empty key"
			if (got.Err != nil) != wantErr || test.err != nil && (!errors.Is(got, test.err) || !errors.Is(got.Err, test.err)) {
				t.Errorf("the error is %v", got.Err)
			}
			if test.retry >= 0 && got.RetryAfter != test.retry || test.retry < 0 && (got.RetryAfter < time.Second || got.RetryAfter > 5*time.Second) {
				t.Errorf("retry after %v", got.RetryAfter)
			}
			if text := got.Error(); !strings.HasPrefix(text, "headgate: ") || strings.Contains(text, "anna") || !strings.Contains(text, test.limiter) {
				t.Error(text)
			}
			if n := test.rate.Limiter; test.limiter == "s" && left(t, n, "anna") != 2 {
				t.Error("the rate was charged")
			}
		})
	}
}

// OnRefused answers in place of the guard if it writes anything or takes the connection; the fields are there.
func TestOnRefused(t *testing.T) {
	for name, test := range map[string]struct {
		do     func(w http.ResponseWriter)
		status int
		body   string
	}{
		"a page":    {func(w http.ResponseWriter) { http.Error(w, "wait", http.StatusBadGateway) }, 502, "wait\n"},
		"a body":    {func(w http.ResponseWriter) { fmt.Fprint(w, "wait") }, 200, "wait"},
		"a status":  {func(w http.ResponseWriter) { w.WriteHeader(503) }, 503, ""},
		"nothing":   {func(http.ResponseWriter) {}, 429, quota + `["api"]}`},
		"a hint":    {func(w http.ResponseWriter) { w.WriteHeader(103) }, 429, quota + `["api"]}`},
		"own field": {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7") }, 429, quota + `["api"]}`},
	} {
		c := rates(rate(memory("api", core.Blocked())))
		c.OnRefused = func(w http.ResponseWriter, _ *http.Request, v *nethttp.Verdict) {
			if w.Header().Get("RateLimit") != `"api";r=0` || v.Key() != "anna" {
				t.Error(name, w.Header(), v.Key())
			}
			test.do(w)
		}
		w := serve(guardOf(t, c).Handler(status(204)), request("GET", "/"))
		if w.Code == 103 {
			w.Code = 429 // as the recorder takes the first
		}
		if w.Code != test.status || w.Body.String() != test.body || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s %v", name, w.Code, w.Body, w.Header())
		}
	}
}

// A rule that only observes counts, tells who would be refused, and refuses nobody, whatever becomes of it.
func TestObserveOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events, marked []string
		store := &core.MemoryStore{Observers: []*core.Observer{{Decided: func(_ context.Context, e core.DecisionEvent) {
			if e.ObserveOnly && !e.Allowed {
				marked = append(marked, e.Limiter)
			}
		}}}}
		next := rate(core.NewLimiter(store, "next", minute(1)))
		settled := rate(core.NewLimiter(store, "settled", minute(9)))
		keyless := nethttp.Rate{Limiter: core.NewLimiter(store, "keyless", minute(1)), Key: failing(keyfuncs.ErrAbsent)}
		skipped := rate(core.NewLimiter(store, "skipped", core.Blocked()))
		offline := rate(core.NewLimiter(store, "never", hour(1)))
		offline.Cost = costs(2)
		settled.Settle = func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost + 2 }
		skipped.Skip = func(*http.Request) bool { return true }
		for _, r := range []*nethttp.Rate{&next, &settled, &keyless, &skipped, &offline} {
			r.ObserveOnly = true
		}
		slots := core.NewSlots(store, "slots", 0)
		c := nethttp.Config{
			Rates:       []nethttp.Rate{rate(core.NewLimiter(store, "api", minute(2))), next, settled, keyless, skipped, offline},
			Concurrency: []nethttp.Concurrency{{Slots: slots, Key: client, ObserveOnly: true}},
			Observe: func(_ *http.Request, v *nethttp.Verdict) {
				events = append(events, fmt.Sprint(v.Limiter, " ", v.Status, " ", v.ObserveOnly, " ", v.Key()))
			},
		}
		h := guardOf(t, c).Handler(status(204))
		for i, want := range []int{204, 204, 429} {
			if w := serve(h, request("GET", "/")); w.Code != want || w.Header().Get("RateLimit-Policy") != `"api";q=2;w=60` {
				t.Errorf("%d: %d %v", i, w.Code, w.Header())
			}
		}
		always := []string{"keyless 400 true ", "never 429 true anna", "slots 429 true anna"}
		want := slices.Concat([]string{"api 0 false anna"}, always, []string{"api 0 false anna", "next 429 true anna"}, always, []string{"api 429 false anna"})
		if !slices.Equal(events, want) {
			t.Errorf("%q\nwant %q", events, want)
		}
		if n := left(t, settled.Limiter, "anna"); n != 9-2*3 || !slices.Equal(marked, []string{"never", "next", "never"}) {
			t.Errorf("%d left, %q", n, marked)
		}
	})
}

// Skip is for all rules, and a request that passes by has no fields and is not observed.
func TestSkip(t *testing.T) {
	c := rates(rate(memory("api", core.Blocked())))
	c.Skip = func(r *http.Request) bool { return r.Method == "OPTIONS" }
	c.Observe = func(r *http.Request, _ *nethttp.Verdict) {
		if r.Method == "OPTIONS" {
			t.Error("observed")
		}
	}
	h := guardOf(t, c).Handler(status(204))
	if w := serve(h, request("OPTIONS", "/")); w.Code != 204 || len(w.Header()) > 0 {
		t.Error(w.Code, w.Header())
	}
	if w := serve(h, request("GET", "/")); w.Code != 429 {
		t.Error(w.Code)
	}
}

// VerdictFrom has the verdict of the innermost guard that keeps it, in handlers.
func TestVerdictFrom(t *testing.T) {
	for _, test := range []struct {
		outer, inner bool
		want         string
	}{{false, false, ""}, {true, false, "outer"}, {false, true, "inner"}, {true, true, "inner"}} {
		of := func(name string, keep bool) *nethttp.Guard {
			c := rates(rate(memory(name, minute(2))))
			c.KeepVerdict = keep
			return guardOf(t, c)
		}
		got := ""
		h := of("outer", test.outer).Handler(of("inner", test.inner).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if v, ok := nethttp.VerdictFrom(r.Context()); ok {
				got = v.Limiter
				if v.Status != 0 || v.Key() != "anna" || v.Decision.Remaining != 1 || v.Err != nil {
					t.Errorf("%+v", v)
				}
			}
		})))
		if serve(h, request("GET", "/")); got != test.want {
			t.Errorf("%+v: %q", test, got)
		}
	}
	if v, ok := nethttp.VerdictFrom(t.Context()); ok || v != nil {
		t.Error("a verdict of nothing")
	}
}

// No print of a verdict has the key, whatever the verb, and however deep the verdict is. One that no guard has made
// is of nothing.
func TestNothingPrintsTheKey(t *testing.T) {
	const canary = "canary"
	n := 0
	look := func(_ *http.Request, v *nethttp.Verdict) {
		if n++; v.Key() != canary {
			t.Errorf("the key is %q", v.Key())
		}
		type in struct{ V nethttp.Verdict }
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%p", "%T", "%b", "%o", "%e", "%U"} {
			for _, x := range []any{v, *v, in{*v}, &in{*v}, struct{ v *nethttp.Verdict }{v}, []any{v, *v}, map[string]any{"": *v}} {
				if s := strings.ToLower(fmt.Sprintf(verb, x)); strings.Contains(s, canary) || strings.Contains(s, "63616e617279") {
					t.Errorf("%s of %T: %s", verb, x, s)
				}
			}
		}
	}
	store := new(core.MemoryStore)
	h := guardOf(t, nethttp.Config{
		Rates: []nethttp.Rate{rate(core.NewLimiter(store, "api", minute(2)))}, Observe: look,
		Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(store, "slots", 1), Key: client}},
	}).Handler(status(204))
	for range 3 {
		serve(h, request("GET", "/", "X-Client", canary))
	}
	if n != 3 {
		t.Error(n)
	}
	nobody := make(http.Header)
	nethttp.RateLimitFields(nobody, new(nethttp.Verdict))
	nethttp.XRateLimitFields(nobody, new(nethttp.Verdict))
	if key := new(nethttp.Verdict).Key(); key != "" || len(nobody) > 0 {
		t.Error(key, nobody)
	}
}

// However many ask at once, as many are admitted as the limit says.
func TestConcurrentRequests(t *testing.T) {
	var admitted atomic.Int64
	h := nethttp.Limit(new(core.MemoryStore), "api", client, hour(50)).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { admitted.Add(1) }))
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { serve(h, request("GET", "/")) })
	}
	if all.Wait(); admitted.Load() != 50 {
		t.Error(admitted.Load())
	}
}

// records collects what a guard logs.
func records(c *nethttp.Config) *bytes.Buffer {
	text := new(bytes.Buffer)
	c.Logger = slog.New(slog.NewTextHandler(text, nil))
	return text
}

// A reason why there is no decision is logged at once and then once a minute, without the key, unless the program
// observes; and a refusal by a limit is none.
func TestUndecidedIsLogged(t *testing.T) {
	for name, test := range map[string]struct {
		rate    nethttp.Rate
		observe bool
		want    string
	}{
		"an error of the key": {rate: nethttp.Rate{Key: failing(errors.New("anna is unknown"))}, want: `limit=api status=400 observe_only=false requests=%d reason="there is no key, or it is malformed"`},
		"no key, on trial":    {rate: nethttp.Rate{Key: failing(keyfuncs.ErrAbsent), ObserveOnly: true}, want: `limit=api status=400 observe_only=true requests=%d reason="headgate: keyfuncs: absent"`},
		"a proxy that names no client": {rate: nethttp.Rate{Key: keyfuncs.BehindProxies(1)}, want: `limit=api status=400 observe_only=false requests=%d ` +
			`reason="headgate: keyfuncs: the proxy named no client: header X-Forwarded-For: fewer elements than proxies; exempt the routes of health checks"`},
		"a malformed plan": {rate: nethttp.Rate{Key: client, Plan: func(r *http.Request) (string, error) {
			r.Header.Set("X-Plan", strings.Repeat("anna", 2000))
			return keyfuncs.Header("X-Plan")(r)
		}}, want: `limit=api status=400 observe_only=false requests=%d reason="headgate: keyfuncs: malformed: header X-Plan: longer than 4 KiB"`},
		"an error of keyfuncs within one that has the key": {rate: nethttp.Rate{Key: func(r *http.Request) (string, error) {
			_, err := keyfuncs.Header("X-Token")(r)
			return "", fmt.Errorf("anna: %w", err)
		}}, want: `limit=api status=400 observe_only=false requests=%d reason="headgate: keyfuncs: absent: header X-Token"`},
		"a key around an error of keyfuncs": {rate: nethttp.Rate{Key: failing(fmt.Errorf("%w: anna", keyfuncs.ErrAbsent))}, want: `limit=api status=400 observe_only=false requests=%d reason="headgate: keyfuncs: absent"`},
		"an empty key":                      {rate: nethttp.Rate{Key: func(*http.Request) (string, error) { return "", nil }}, want: `limit=api status=400 observe_only=false requests=%d reason="its Key returned an empty key without an error"`},
		"a fault of the program":            {rate: nethttp.Rate{Key: keyfuncs.Network(keyfuncs.Header("X-Any"), 24, 56), Skip: func(r *http.Request) bool { r.Header.Set("X-Any", "anna"); return false }}, want: `limit=api status=500 observe_only=false requests=%d reason="headgate: keyfuncs: error of the program: Network: the key of the function is no address"`},
		"a fault":                           {rate: nethttp.Rate{Key: client, Cost: costs(-1)}, want: `limit=api status=500 observe_only=false requests=%d reason="its Cost returned -1"`},
		"observed":                          {rate: nethttp.Rate{Key: client, Cost: costs(-1)}, observe: true},
		"refused":                           {rate: nethttp.Rate{Key: client, Cost: costs(9)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.rate.Limiter = memory("api", minute(1))
				c := rates(test.rate)
				text := records(&c)
				if test.observe {
					c.Observe = func(*http.Request, *nethttp.Verdict) {}
				}
				h := guardOf(t, c).Handler(status(204))
				for range 9 {
					serve(h, request("GET", "/"))
					time.Sleep(10 * time.Second) // of the bubble
				}
				want := 0
				if test.want != "" {
					want = 2
				}
				got := text.String()
				if strings.Count(got, "\n") != want || strings.Contains(got, "anna") ||
					want > 0 && (!strings.Contains(got, fmt.Sprintf(test.want, 1)) || !strings.Contains(got, fmt.Sprintf(test.want, 6))) {
					t.Errorf("%s\nwant %s", got, test.want)
				}
			})
		})
	}
}

// That a key is the address of a proxy is said once, also of a key with a tag; not of a peer whose X-Forwarded-For is
// what anybody writes, and not if the key believes the proxy. And nothing is said of a client that has hung up.
func TestProxiesAreLogged(t *testing.T) {
	for name, test := range map[string]struct {
		key  keyfuncs.Func
		peer string
		want int
	}{
		"a proxy":        {keyfuncs.RemoteAddr(), "10.0.0.1:80", 1},
		"with a tag":     {keyfuncs.First(keyfuncs.Tag("ip", keyfuncs.RemoteAddr())), "10.0.0.1:80", 1},
		"anybody":        {keyfuncs.RemoteAddr(), "203.0.113.9:80", 0},
		"believed":       {keyfuncs.XForwardedFor("10.0.0.0/8"), "10.0.0.1:80", 0},
		"another client": {client, "10.0.0.1:80", 0},
	} {
		c := rates(nethttp.Rate{Limiter: memory("api", minute(9)), Key: test.key})
		text := records(&c)
		h := guardOf(t, c).Handler(status(204))
		for range 3 {
			r := request("GET", "/", "X-Forwarded-For", "203.0.113.7")
			r.RemoteAddr = test.peer
			serve(h, r)
		}
		if got := text.String(); strings.Count(got, "the key is the address of a proxy") != test.want || strings.Contains(got, "10.0.0.1") {
			t.Errorf("%s: %s", name, got)
		}
	}
	c := rates(rate(core.NewLimiter(away(t, redisstore.FailClosed), "api", minute(1))))
	text := records(&c)
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	guardOf(t, c).Handler(status(204)).ServeHTTP(httptest.NewRecorder(), request("GET", "/").WithContext(gone))
	if text.Len() > 0 {
		t.Error(text)
	}
}

// A verdict names the policy that decided, and its text does, too. Slots have none, also if a rate had admitted.
func TestVerdictNamesThePolicy(t *testing.T) {
	limited := func(policies ...core.Policy) func(*core.Slots) nethttp.Config {
		return func(*core.Slots) nethttp.Config { return rates(rate(memory("api", policies...))) }
	}
	minuteAndHour := limited(core.SlidingLog(2, time.Minute).Named("minute"), core.FixedWindow(3, time.Hour).FromFirst().Named("hour"))
	for _, test := range []struct {
		name                  string
		config                func(*core.Slots) nethttp.Config
		pauses                []time.Duration // before each further request
		limiter, policy, text string
	}{
		{"admitted", minuteAndHour, nil, "api", "minute", "headgate: admitted"},
		{"the first policy", minuteAndHour, []time.Duration{0, 0}, "api", "minute", `headgate: "api" refuses by its policy "minute" with status 429: retry in 1m0s`},
		{"the second policy", minuteAndHour, []time.Duration{0, time.Minute, 0}, "api", "hour", `headgate: "api" refuses by its policy "hour" with status 429: retry in 59m0s`},
		{"an only policy", limited(minute(1)), []time.Duration{0}, "api", "api", `headgate: "api" refuses with status 429: retry in 1m0s`},
		{"slots", func(slots *core.Slots) nethttp.Config {
			return nethttp.Config{Rates: []nethttp.Rate{rate(memory("api", minute(1)))}, Concurrency: []nethttp.Concurrency{{Slots: slots, Key: client}}}
		}, nil, "open", "", `headgate: "open" refuses with status 429: retry in `},
		{"slots alone", func(slots *core.Slots) nethttp.Config {
			return nethttp.Config{Concurrency: []nethttp.Concurrency{{Slots: slots, Key: client}}}
		}, nil, "open", "", `headgate: "open" refuses with status 429: retry in `},
		{"no key", func(*core.Slots) nethttp.Config {
			return rates(nethttp.Rate{Limiter: memory("api", minute(1)), Key: keyfuncs.Header("X-None")})
		}, nil, "api", "", `headgate: limit "api": keyfuncs: absent: header X-None`},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := core.NewSlots(new(core.MemoryStore), "open", 1)
				if _, err := slots.Acquire(t.Context(), "anna"); err != nil {
					t.Fatal(err)
				}
				c := test.config(slots)
				var v *nethttp.Verdict
				c.Observe = func(_ *http.Request, of *nethttp.Verdict) { v = of }
				h := guardOf(t, c).Handler(status(204))
				serve(h, request("GET", "/", "X-Client", "anna"))
				for _, pause := range test.pauses {
					time.Sleep(pause) // of the bubble
					serve(h, request("GET", "/", "X-Client", "anna"))
				}
				if v.Limiter != test.limiter || v.Policy != test.policy || !strings.HasPrefix(v.Error(), test.text) {
					t.Errorf("%q, %q: %v", v.Limiter, v.Policy, v)
				}
			})
		})
	}
}

// A plan that cannot be found is no decision: 503, and the error of the program's function is in the verdict. A plan that
// is known stays as it is.
func TestPlansThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("the database is away")
		var fails error
		store := new(core.MemoryStore)
		limiter := core.NewLimiter(store, "api", minute(1)).WithPlanFunc(func(string) ([]core.Policy, error) {
			return []core.Policy{minute(9)}, fails
		})
		slots := core.NewSlots(store, "open", 0).WithPlanFunc(func(string) (int64, error) { return 1, fails })
		plan := keyfuncs.Header("X-Plan")
		for name, c := range map[string]nethttp.Config{
			"a rate": rates(nethttp.Rate{Limiter: limiter, Key: client, Plan: plan}),
			"slots":  {Concurrency: []nethttp.Concurrency{{Slots: slots, Key: client, Plan: plan}}},
		} {
			var v *nethttp.Verdict
			c.Observe = func(_ *http.Request, of *nethttp.Verdict) { v = of }
			h := guardOf(t, c).Handler(status(204))
			for _, step := range []struct {
				plan  string
				fails error
				want  int
			}{{"gold", nil, 204}, {"gold", away, 204}, {"silver", away, 503}, {"silver", nil, 204}} {
				fails = step.fails
				time.Sleep(2 * time.Minute) // of the bubble: every answer is asked for again
				w := serve(h, request("GET", "/", "X-Client", "anna", "X-Plan", step.plan))
				if w.Code != step.want || w.Code == 503 && (!errors.Is(v, away) || w.Header().Get("Retry-After") == "") {
					t.Errorf("%s, %+v: %d, %v", name, step, w.Code, v)
				}
			}
		}
	})
}
