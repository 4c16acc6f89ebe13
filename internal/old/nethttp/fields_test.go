package nethttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/dunglas/httpsfv"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

// parsed checks that a field is a canonical list of RFC 9651, by somebody else's
// parser, and returns its members.
func parsed(t *testing.T, h http.Header, name string) httpsfv.List {
	t.Helper()
	if len(h.Values(name)) == 0 {
		return nil
	}
	list, err := httpsfv.UnmarshalList(h.Values(name))
	if err != nil {
		t.Fatalf("%s: %q: %v", name, h.Values(name), err)
	}
	canonical, err := httpsfv.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(h.Values(name), ", "); got != canonical {
		t.Errorf("%s: %q, in canonical form %q", name, got, canonical)
	}
	return list
}

// Each case asks in a bubble, whose clock starts at midnight, 2000-01-01 UTC.
func TestFields(t *testing.T) {
	for _, test := range []struct {
		name     string
		policies []core.Policy
		before   func(*core.Limiter) // drains the key "anna"
		cost     int64
		status   int
		want     map[string]string
		violated []string
		unparsed bool // httpsfv takes 15 digits, which are allowed, only at the very end
	}{
		{
			name:     "admitted",
			policies: []core.Policy{core.TokenBucket(core.PerMinute(100), 100)},
			before:   drain(12),
			want: map[string]string{
				"RateLimit-Policy": `"api";q=100;w=60`, "RateLimit": `"api";r=87;t=1`,
				"Retry-After": "", "Cache-Control": "", "Content-Type": "",
			},
		},
		{
			name:     "refused",
			policies: []core.Policy{core.SlidingLog(core.PerMinute(100))},
			before:   func(l *core.Limiter) { drain(100)(l); time.Sleep(53 * time.Second) },
			status:   429,
			want: map[string]string{
				"RateLimit-Policy": `"api";q=100;w=60`, "RateLimit": `"api";r=0;t=7`,
				"Retry-After": "7", "Cache-Control": "no-store", "Content-Type": "application/problem+json",
			},
			violated: []string{"api"},
		},
		{
			name: "two policies",
			policies: []core.Policy{
				core.FixedWindow(core.PerSecond(10)).Named("burst"),
				core.FixedWindow(core.PerDay(5000)).Named("daily"),
			},
			before: func(l *core.Limiter) {
				daily, err := l.With(l.Policies()[1])
				if err != nil {
					panic(err)
				}
				drain(4999)(daily)
				time.Sleep(14 * time.Hour)
				drain(1)(l)
			},
			status: 429,
			want: map[string]string{
				"RateLimit-Policy": `"burst";q=10;w=1, "daily";q=5000;w=86400`,
				"RateLimit":        `"burst";r=9;t=1, "daily";r=0;t=36000`,
				"Retry-After":      "36000",
			},
			violated: []string{"daily"},
		},
		{
			name:     "a window from the first request",
			policies: []core.Policy{core.FixedWindow(core.PerHour(5)).FromFirst()},
			before: func(l *core.Limiter) {
				time.Sleep(40 * time.Minute)
				drain(5)(l)
				time.Sleep(59 * time.Minute)
			},
			status:   429,
			want:     map[string]string{"RateLimit-Policy": `"api";q=5;w=3600`, "RateLimit": `"api";r=0;t=60`, "Retry-After": "60"},
			violated: []string{"api"},
		},
		{
			name: "both refuse",
			policies: []core.Policy{
				core.FixedWindow(core.PerSecond(1)).Named("burst"),
				core.FixedWindow(core.PerMinute(1)).Named("minute"),
			},
			before:   drain(1),
			status:   429,
			want:     map[string]string{"RateLimit": `"burst";r=0;t=1, "minute";r=0;t=60`, "Retry-After": "60"},
			violated: []string{"burst", "minute"},
		},
		{
			name:     "rounded up",
			policies: []core.Policy{core.MinInterval(1100 * time.Millisecond)},
			before:   func(l *core.Limiter) { drain(1)(l); time.Sleep(99 * time.Millisecond) },
			status:   429,
			want:     map[string]string{"RateLimit-Policy": `"api";q=1;w=2`, "RateLimit": `"api";r=0;t=2`, "Retry-After": "2"},
			violated: []string{"api"},
		},
		{
			name:     "exact seconds",
			policies: []core.Policy{core.MinInterval(2 * time.Second)},
			before:   func(l *core.Limiter) { drain(1)(l); time.Sleep(time.Second) },
			status:   429,
			want:     map[string]string{"RateLimit-Policy": `"api";q=1;w=2`, "RateLimit": `"api";r=0;t=1`, "Retry-After": "1"},
			violated: []string{"api"},
		},
		{
			name:     "window under a second",
			policies: []core.Policy{core.MinInterval(100 * time.Millisecond)},
			want:     map[string]string{"RateLimit-Policy": `"api";q=1`, "RateLimit": `"api";r=0;t=1`},
		},
		{
			name:     "largest integer",
			policies: []core.Policy{core.FixedWindow(core.PerDay(1 << 52))},
			want: map[string]string{
				"RateLimit-Policy": `"api";q=999999999999999;w=86400`,
				"RateLimit":        `"api";r=999999999999999;t=86400`,
			},
			unparsed: true,
		},
		{
			name:     "the cost does not fit",
			policies: []core.Policy{core.SlidingLog(core.PerMinute(10))},
			before:   drain(8),
			cost:     3,
			status:   429,
			want:     map[string]string{"RateLimit": `"api";r=2;t=60`, "Retry-After": "60"},
			violated: []string{"api"},
		},
		{
			name: "the cost never fits",
			policies: []core.Policy{
				core.FixedWindow(core.PerDay(1000)).Named("day"),
				core.FixedWindow(core.PerSecond(10)).Named("burst"),
			},
			cost:   11,
			status: 429,
			want: map[string]string{
				"RateLimit-Policy": `"day";q=1000;w=86400, "burst";q=10;w=1`,
				"RateLimit":        "", // unknown
				"Retry-After":      "",
				"Cache-Control":    "no-store",
			},
			violated: []string{"burst"},
		},
		{
			name:     "blocked",
			policies: []core.Policy{core.Blocked()},
			status:   429,
			want:     map[string]string{"RateLimit-Policy": `"api";q=0`, "RateLimit": `"api";r=0`, "Retry-After": ""},
			violated: []string{"api"},
		},
		{
			name:     "unlimited",
			policies: []core.Policy{core.Unlimited()},
			want:     map[string]string{"RateLimit-Policy": "", "RateLimit": ""},
		},
		{
			name:     "quotes and backslashes",
			policies: []core.Policy{core.SlidingLog(core.PerMinute(1)).Named(`a "b" \c`)},
			before:   drain(1),
			status:   429,
			want: map[string]string{
				"RateLimit-Policy": `"a \"b\" \\c";q=1;w=60`,
				"RateLimit":        `"a \"b\" \\c";r=0;t=60`,
			},
			violated: []string{`a "b" \c`},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := memory(t, "api", test.policies...)
				if test.before != nil {
					test.before(limiter)
				}
				rule := nethttp.Rule{Limiter: limiter, Key: header}
				if test.cost != 0 {
					rule.Cost = func(*http.Request) int64 { return test.cost }
				}
				h := newGuard(t, rules(rule)).Handler(status(204))
				w := serve(h, request("GET", "/", "X-Client", "anna"))

				want := test.status
				if want == 0 {
					want = 204
				}
				if w.Code != want {
					t.Errorf("status %d, want %d", w.Code, want)
				}
				wantHeader(t, w.Header(), test.want)
				if !test.unparsed {
					parsed(t, w.Header(), "RateLimit-Policy")
					parsed(t, w.Header(), "RateLimit")
				}
				wantProblem(t, w.Body.Bytes(), test.status, test.violated)
			})
		})
	}
}

func drain(n int64) func(*core.Limiter) {
	return func(l *core.Limiter) {
		if d, err := l.AllowN(context.Background(), "anna", n); err != nil || !d.Allowed {
			panic("cannot drain")
		}
	}
}

func wantProblem(t *testing.T, body []byte, status int, violated []string) {
	t.Helper()
	if status == 0 {
		if len(body) > 0 {
			t.Errorf("body %q", body)
		}
		return
	}
	var got struct {
		Type     string
		Title    string
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	wantType, wantTitle := "about:blank", http.StatusText(status)
	if status == 429 {
		wantType, wantTitle = "https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota Exceeded"
	}
	if got.Type != wantType || got.Title != wantTitle || got.Status != status || !slices.Equal(got.Violated, violated) {
		t.Errorf("problem %s, want %d and violated %q", body, status, violated)
	}
}

func TestProblemBytes(t *testing.T) {
	limiter := memory(t, "api", core.Blocked())
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header}))
	for client, want := range map[string]string{
		"anna": `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Quota Exceeded","status":429,"violated-policies":["api"]}`,
		"": `{"type":"about:blank","title":"Bad Request","status":400}`,
	} {
		w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", client))
		if got := w.Body.String(); got != want {
			t.Errorf("%q: %s, want %s", client, got, want)
		}
	}
}

func TestStyles(t *testing.T) {
	for _, test := range []struct {
		name     string
		fields   nethttp.Fields
		noFields bool
		policies []core.Policy
		used     int64
		cost     int64
		want     map[string]string
	}{
		{
			name:     "XRateLimit admitted",
			fields:   nethttp.XRateLimit,
			policies: []core.Policy{core.TokenBucket(core.PerMinute(60), 10)},
			used:     2,
			want: map[string]string{
				"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "3",
				"RateLimit": "", "RateLimit-Policy": "", "Retry-After": "",
			},
		},
		{
			name:     "XRateLimit refused: Reset is Retry-After",
			fields:   nethttp.XRateLimit,
			policies: []core.Policy{core.TokenBucket(core.PerMinute(60), 10)},
			used:     10,
			want: map[string]string{
				"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1", "Retry-After": "1",
			},
		},
		{
			name:   "XRateLimit: the policy with the least left",
			fields: nethttp.XRateLimit,
			policies: []core.Policy{
				core.FixedWindow(core.PerHour(100)).Named("hour"),
				core.FixedWindow(core.PerMinute(10)).Named("minute"),
			},
			want: map[string]string{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "60"},
		},
		{
			name:     "XRateLimit never",
			fields:   nethttp.XRateLimit,
			policies: []core.Policy{core.FixedWindow(core.PerHour(100))},
			cost:     101,
			want:     map[string]string{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "", "X-RateLimit-Reset": "", "Retry-After": ""},
		},
		{
			name:     "XRateLimit blocked",
			fields:   nethttp.XRateLimit,
			policies: []core.Policy{core.Blocked()},
			want:     map[string]string{"X-RateLimit-Limit": "0", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": ""},
		},
		{
			name:     "XRateLimit unlimited",
			fields:   nethttp.XRateLimit,
			policies: []core.Policy{core.Unlimited()},
			want:     map[string]string{"X-RateLimit-Limit": "", "X-RateLimit-Remaining": "", "X-RateLimit-Reset": ""},
		},
		{
			name:     "NoFields",
			noFields: true,
			policies: []core.Policy{core.FixedWindow(core.PerMinute(10))},
			used:     10,
			want:     map[string]string{"RateLimit": "", "RateLimit-Policy": "", "Retry-After": "60", "Cache-Control": "no-store"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := memory(t, "api", test.policies...)
				if test.used > 0 {
					drain(test.used)(limiter)
				}
				c := rules(nethttp.Rule{Limiter: limiter, Key: header, Cost: func(*http.Request) int64 { return max(test.cost, 1) }})
				c.Fields, c.NoFields = test.fields, test.noFields
				w := serve(newGuard(t, c).Handler(status(204)), request("GET", "/", "X-Client", "anna"))
				wantHeader(t, w.Header(), test.want)
			})
		})
	}
}

// A style of somebody else's has all that it needs.
func TestOwnStyle(t *testing.T) {
	limiter := memory(t, "api", core.FixedWindow(core.PerHour(100)).Named("hour"), core.FixedWindow(core.PerDay(1000)).Named("day"))
	c := rules(nethttp.Rule{Limiter: limiter, Key: header})
	c.Fields = func(h http.Header, v nethttp.Verdict) {
		for i := range v.Decision.Len() {
			a := v.Decision.Answer(i)
			h.Add("X-Window", a.Policy+" "+a.Window.String())
		}
	}
	w := serve(newGuard(t, c).Handler(status(204)), request("GET", "/", "X-Client", "anna"))
	wantHeader(t, w.Header(), map[string]string{"X-Window": "hour 1h0m0s | day 24h0m0s", "RateLimit": ""})
}

// The ready-made styles can be called by another, and by hand.
func TestStylesByHand(t *testing.T) {
	limiter := memory(t, "api", core.FixedWindow(core.PerHour(100)))
	guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header}))
	all := func(v nethttp.Verdict) http.Header {
		h := make(http.Header)
		for _, fields := range []nethttp.Fields{nethttp.Draft11, nethttp.XRateLimit} {
			fields(h, v)
		}
		return h
	}
	h := all(guard.Check(request("GET", "/", "X-Client", "anna")))
	wantHeader(t, h, map[string]string{
		"RateLimit-Policy": `"api";q=100;w=3600`, "X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "99",
	})
	if !strings.HasPrefix(h.Get("RateLimit"), `"api";r=99;t=`) {
		t.Errorf("RateLimit: %q", h.Get("RateLimit"))
	}
	for name, v := range map[string]nethttp.Verdict{"zero": {}, "no key": guard.Check(request("GET", "/"))} {
		if h := all(v); len(h) > 0 {
			t.Errorf("%s: %v", name, h)
		}
	}
}

// Several limiters together, in all combinations of rules that apply.
func TestFieldsOfSeveralRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Config{})
		a := newLimiter(t, store, "a", core.FixedWindow(core.PerMinute(10)))
		b := newLimiter(t, store, "b", core.FixedWindow(core.PerMinute(20)).Named("b1"), core.FixedWindow(core.PerHour(100)).Named("b2"))
		c := newLimiter(t, store, "c", core.Unlimited())
		large, err := a.With(core.FixedWindow(core.PerMinute(1000)))
		if err != nil {
			t.Fatal(err)
		}
		cost := func(name string) func(*http.Request) int64 {
			return func(r *http.Request) int64 { return int64(strings.Count(r.URL.Path, name)) }
		}
		guard := newGuard(t, rules(
			nethttp.Rule{Limiter: a, Key: header, Cost: cost("a"), Plan: func(r *http.Request, _ string) *core.Limiter {
				if strings.Contains(r.URL.Path, "paid") {
					return large
				}
				return nil
			}},
			nethttp.Rule{Limiter: b, Key: header, Cost: cost("b")},
			nethttp.Rule{Limiter: c, Key: header, Cost: cost("c")},
		))
		for _, test := range []struct{ path, policy, limit string }{
			{"/", "", ""},
			{"/a", `"a";q=10;w=60`, `"a";r=9;t=60`},
			{"/b", `"b1";q=20;w=60, "b2";q=100;w=3600`, `"b1";r=19;t=60, "b2";r=99;t=3600`},
			{"/abc", `"a";q=10;w=60, "b1";q=20;w=60, "b2";q=100;w=3600`, `"a";r=8;t=60, "b1";r=18;t=60, "b2";r=98;t=3600`},
			{"/c", "", ""},
			{"/ac", `"a";q=10;w=60`, `"a";r=7;t=60`},
			{"/bbb", `"b1";q=20;w=60, "b2";q=100;w=3600`, `"b1";r=15;t=60, "b2";r=95;t=3600`},
			{"/paid", `"a";q=1000;w=60`, `"a";r=996;t=60`}, // one "a", as it happens
		} {
			w := serve(guard.Handler(status(204)), request("GET", test.path, "X-Client", "anna"))
			if w.Code != 204 {
				t.Errorf("%s: %d", test.path, w.Code)
			}
			wantHeader(t, w.Header(), map[string]string{"RateLimit-Policy": test.policy, "RateLimit": test.limit})
			parsed(t, w.Header(), "RateLimit-Policy")
			parsed(t, w.Header(), "RateLimit")
		}
	})
}

// A rule that a request can never satisfy says nothing of what the others have left.
func TestFieldsOfBlockedAmongOthers(t *testing.T) {
	store := memstore.New(memstore.Config{})
	guard := newGuard(t, rules(
		nethttp.Rule{Limiter: newLimiter(t, store, "a", core.FixedWindow(core.PerMinute(10))), Key: header},
		nethttp.Rule{Limiter: newLimiter(t, store, "b", core.Blocked()), Key: header},
	))
	w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna"))
	wantHeader(t, w.Header(), map[string]string{
		"RateLimit-Policy": `"a";q=10;w=60, "b";q=0`, "RateLimit": `"b";r=0`, "Retry-After": "",
	})
	wantProblem(t, w.Body.Bytes(), 429, []string{"b"})
}

// Guards around each other each have their say; what has one value is the last's.
func TestNestedGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "outer", core.FixedWindow(core.PerMinute(10))), Key: header}))
		inner := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "inner", core.FixedWindow(core.PerMinute(1))), Key: header}))
		h := outer.Handler(inner.Handler(status(204)))
		for i, want := range []string{`"outer";r=9;t=60 | "inner";r=0;t=60`, `"outer";r=8;t=60 | "inner";r=0;t=60`} {
			w := serve(h, request("GET", "/", "X-Client", "anna"))
			wantHeader(t, w.Header(), map[string]string{
				"RateLimit-Policy": `"outer";q=10;w=60 | "inner";q=1;w=60`, "RateLimit": want,
				"Retry-After": []string{"", "60"}[i],
			})
			parsed(t, w.Header(), "RateLimit")
		}
	})
}

// Fields that are set twice, as by SetFields and then Refuse, appear once.
func TestFieldsTwice(t *testing.T) {
	inner := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "inner", core.Blocked()), Key: header}))
	outer := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "outer", core.Blocked()), Key: header}))
	r := request("GET", "/", "X-Client", "anna")
	v, around := inner.Check(r), outer.Check(r)
	w := httptest.NewRecorder()
	v.SetFields(w.Header())
	around.SetFields(w.Header())
	inner.Refuse(w, r, v)
	wantHeader(t, w.Header(), map[string]string{
		"RateLimit":        `"inner";r=0 | "outer";r=0`,
		"RateLimit-Policy": `"inner";q=0 | "outer";q=0`,
	})
}

// Existing values are replaced, and no slice is shared.
func TestFieldsAreSetAndNotShared(t *testing.T) {
	guard := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.SlidingLog(core.PerMinute(1))), Key: header}))
	spoiler := func(w http.ResponseWriter, _ *http.Request) {
		for _, values := range w.Header() {
			for i := range values {
				values[i] = "spoiled"
			}
		}
	}
	serve(guard.Handler(http.HandlerFunc(spoiler)), request("GET", "/", "X-Client", "anna"))

	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Length", "7")
		guard.Handler(status(204)).ServeHTTP(w, r)
	})
	w := serve(h, request("GET", "/", "X-Client", "anna"))
	wantHeader(t, w.Header(), map[string]string{
		"RateLimit-Policy": `"api";q=1;w=60`, "RateLimit": `"api";r=0;t=60`, "Retry-After": "60", "Cache-Control": "no-store",
		"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff",
	})
	if got := w.Result().ContentLength; got != int64(w.Body.Len()) {
		t.Errorf("Content-Length %d, body %d bytes", got, w.Body.Len())
	}

	never := newGuard(t, rules(nethttp.Rule{Limiter: memory(t, "api", core.Blocked()), Key: header}))
	w = serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		never.Handler(status(204)).ServeHTTP(w, r)
	}), request("GET", "/", "X-Client", "anna"))
	wantHeader(t, w.Header(), map[string]string{"Retry-After": ""})
}

// The store is away and told to admit.
func TestFieldsOfFailOpen(t *testing.T) {
	store := newFake()
	store.open = true
	limiter := newLimiter(t, store, "api", core.FixedWindow(core.PerMinute(10)))
	for _, test := range []struct {
		fields nethttp.Fields
		want   map[string]string
	}{
		{nil, map[string]string{"RateLimit-Policy": `"api";q=10;w=60`, "RateLimit": ""}},
		{nethttp.XRateLimit, map[string]string{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "", "X-RateLimit-Reset": ""}},
	} {
		c := rules(nethttp.Rule{Limiter: limiter, Key: header})
		c.Fields = test.fields
		w := serve(newGuard(t, c).Handler(status(204)), request("GET", "/", "X-Client", "anna"))
		if w.Code != 204 {
			t.Errorf("status %d", w.Code)
		}
		wantHeader(t, w.Header(), test.want)
	}
}

// Many limiters made on the way, which is not recommended, are told apart, and are garbage
// afterwards.
func TestPlansWithoutEnd(t *testing.T) {
	base := memory(t, "api", core.FixedWindow(core.PerMinute(10)))
	n := int64(0)
	var first weak.Pointer[core.Limiter]
	guard := newGuard(t, rules(nethttp.Rule{Limiter: base, Key: header, Plan: func(*http.Request, string) *core.Limiter {
		n++
		l, err := base.With(core.FixedWindow(core.PerMinute(10_000 + n)))
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			first = weak.Make(l)
		}
		return l
	}}))
	for range 2500 {
		w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna"))
		list := parsed(t, w.Header(), "RateLimit-Policy")
		if q, _ := list[0].(httpsfv.Item).Params.Get("q"); q != 10_000+n {
			t.Fatalf("q=%v, want %d", q, 10_000+n)
		}
	}
	runtime.GC()
	if first.Value() != nil {
		t.Error("a limiter that is not used any more is kept")
	}
	runtime.KeepAlive(guard)
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"api", `"`, `\`, `\"`, `a "b" \c`, " ", "~", "</script>", "a;q=1", `a", "b`} {
		f.Add(s, int64(1))
	}
	f.Add("large", int64(math.MaxInt64))
	store := memstore.New(memstore.Config{})
	f.Fuzz(func(t *testing.T, name string, limit int64) {
		limit = min(limit, 99_999_999_999_999) // httpsfv is wrong about 15 digits
		limiter, err := core.New(store, name, core.FixedWindow(core.PerMinute(limit)))
		if err != nil {
			return // not a name, or not a limit
		}
		guard := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header}))
		w := serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna"))
		for _, field := range []string{"RateLimit-Policy", "RateLimit"} {
			list := parsed(t, w.Header(), field)
			if len(list) != 1 || list[0].(httpsfv.Item).Value != name {
				t.Fatalf("%s: %q says %v, want %q", field, w.Header().Values(field), list, name)
			}
		}

		blocked, err := limiter.With(core.Blocked())
		if err != nil {
			t.Fatal(err)
		}
		guard = newGuard(t, rules(nethttp.Rule{Limiter: blocked, Key: header}))
		w = serve(guard.Handler(status(204)), request("GET", "/", "X-Client", "anna"))
		wantProblem(t, w.Body.Bytes(), 429, []string{name})
	})
}

// A verdict about a decision without a guard is written as that of a guard with the same limiter.
func TestVerdictOf(t *testing.T) {
	store := memstore.New(memstore.Config{})
	limiter := core.Must(core.New(store, "api", core.SlidingLog(core.PerHour(1))))
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.Everyone()}}}))
	for i, status := range []int{0, 429} {
		d, err := limiter.Allow(t.Context(), "other")
		of, by := nethttp.VerdictOf(d, err), guard.Check(httptest.NewRequest("GET", "/", nil))
		got, want := http.Header{}, http.Header{}
		of.SetFields(got)
		by.SetFields(want)
		if of.Status() != status || !reflect.DeepEqual(got, want) || string(of.Problem()) != string(by.Problem()) || len(got) < 2 {
			t.Errorf("%d: %d %v %s, want %v %s", i, of.Status(), got, of.Problem(), want, by.Problem())
		}
	}
	h := http.Header{}
	v := nethttp.VerdictOf(core.Decision{}, core.ErrUnavailable)
	v.SetFields(h)
	if v.Status() != 503 || !errors.Is(v.Err, core.ErrUnavailable) || h.Get("Retry-After") != "5" || h.Get("RateLimit") != "" || !strings.Contains(string(v.Problem()), `"status":503`) {
		t.Errorf("%d %v %s", v.Status(), h, v.Problem())
	}
}

// In a refusal by slots, Reset is the same as Retry-After.
func TestResetWithoutSlots(t *testing.T) {
	s := memstore.New(memstore.Config{})
	c := rules(
		nethttp.Rule{Limiter: newLimiter(t, s, "api", core.SlidingLog(core.PerHour(10))), Key: header},
		nethttp.Rule{Slots: newSlots(t, s, "running", 0), Key: header},
	)
	c.Fields = nethttp.XRateLimit
	h := serve(newGuard(t, c).Handler(status(204)), request("GET", "/", "X-Client", "anna")).Header()
	if after := h.Get("Retry-After"); after == "" || h.Get("X-RateLimit-Reset") != after {
		t.Errorf("%v", h)
	}
}
