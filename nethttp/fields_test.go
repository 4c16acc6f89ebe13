package nethttp_test

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const quota = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":`

// canonical checks that a field is a canonical list of RFC 9651, by a parser of somebody else.
func canonical(t *testing.T, h http.Header, name string) {
	t.Helper()
	if len(h.Values(name)) == 0 {
		return
	}
	list, err := httpsfv.UnmarshalList(h.Values(name))
	if err != nil {
		t.Fatalf("%s: %q: %v", name, h.Values(name), err)
	}
	want, err := httpsfv.Marshal(list)
	if got := strings.Join(h.Values(name), ", "); err != nil || got != want {
		t.Errorf("%s: %q, in canonical form %q, %v", name, got, want, err)
	}
}

// Each case asks in a bubble, whose clock begins at midnight.
func TestFields(t *testing.T) {
	for _, test := range []struct {
		name     string
		policies []core.Policy
		used     int64
		after    time.Duration
		cost     int64
		policy   string // RateLimit-Policy
		state    string // RateLimit
		retry    string // Retry-After
		violated string // of the document, as JSON; "": admitted
		unparsed bool   // httpsfv takes 15 digits, which are allowed, only at the very end
	}{
		{name: "admitted", policies: []core.Policy{core.TokenBucket(100, time.Minute)}, used: 12, policy: `"api";q=100;w=60`, state: `"api";r=87;t=1`},
		{
			name: "refused", policies: []core.Policy{minute(100)}, used: 100, after: 53 * time.Second,
			policy: `"api";q=100;w=60`, state: `"api";r=0;t=7`, retry: "7", violated: `["api"]`,
		},
		{
			name: "two policies", policies: []core.Policy{core.FixedWindow(10, time.Second).Named("burst"), core.FixedWindow(10, 24*time.Hour).Named("daily")},
			used: 10, after: 14 * time.Hour, policy: `"burst";q=10;w=1, "daily";q=10;w=86400`, state: `"burst";r=10, "daily";r=0;t=36000`, retry: "36000", violated: `["daily"]`,
		},
		{
			name: "both refuse", policies: []core.Policy{core.FixedWindow(1, time.Second).Named("burst"), core.FixedWindow(1, time.Minute).Named("minute")}, used: 1,
			policy: `"burst";q=1;w=1, "minute";q=1;w=60`, state: `"burst";r=0;t=1, "minute";r=0;t=60`, retry: "60", violated: `["burst","minute"]`,
		},
		{
			name: "rounded up", policies: []core.Policy{core.MinInterval(1100 * time.Millisecond)}, used: 1, after: 99 * time.Millisecond,
			policy: `"api";q=1;w=2`, state: `"api";r=0;t=2`, retry: "2", violated: `["api"]`,
		},
		{
			name: "exact seconds", policies: []core.Policy{core.MinInterval(2 * time.Second)}, used: 1, after: time.Second,
			policy: `"api";q=1;w=2`, state: `"api";r=0;t=1`, retry: "1", violated: `["api"]`,
		},
		{
			name: "months have several lengths", policies: []core.Policy{core.Calendar(100, core.Month)}, used: 100, after: 24 * time.Hour,
			policy: `"api";q=100`, state: `"api";r=0;t=2592000`, retry: "2592000", violated: `["api"]`,
		},
		{name: "a window under a second", policies: []core.Policy{core.MinInterval(100 * time.Millisecond)}, policy: `"api";q=1`, state: `"api";r=0;t=1`},
		{
			name: "the largest integer", policies: []core.Policy{core.FixedWindow(1<<52, 24*time.Hour)}, unparsed: true,
			policy: `"api";q=999999999999999;w=86400`, state: `"api";r=999999999999999;t=86400`,
		},
		{
			name: "the cost does not fit", policies: []core.Policy{minute(10)}, used: 8, cost: 3,
			policy: `"api";q=10;w=60`, state: `"api";r=2;t=60`, retry: "60", violated: `["api"]`,
		},
		{
			name: "the cost never fits", policies: []core.Policy{core.FixedWindow(1000, 24*time.Hour).Named("day"), core.FixedWindow(10, time.Second).Named("burst")},
			cost: 11, policy: `"day";q=1000;w=86400, "burst";q=10;w=1`, violated: `["burst"]`,
		},
		{name: "blocked", policies: []core.Policy{core.Blocked()}, policy: `"api";q=0`, state: `"api";r=0`, violated: `["api"]`},
		{name: "unlimited", policies: []core.Policy{core.Unlimited()}},
		{
			name: "quotes and backslashes", policies: []core.Policy{minute(1).Named(`a "b" \c`)}, used: 1,
			policy: `"a \"b\" \\c";q=1;w=60`, state: `"a \"b\" \\c";r=0;t=60`, retry: "60", violated: `["a \"b\" \\c"]`,
		},
	} {
		check := func(t *testing.T, fields func(http.Header, *nethttp.Verdict)) {
			l := memory("api", test.policies...)
			if test.used > 0 {
				if d, err := l.AllowN(t.Context(), "anna", test.used); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			time.Sleep(test.after) // of the bubble
			rule := rate(l)
			if test.cost != 0 {
				rule.Cost = costs(test.cost)
			}
			config := rates(rule)
			config.Fields = fields
			w := serve(guardOf(t, config).Handler(status(204)), request("GET", "/"))
			code, body, store, kind, length := 204, "", "", "", ""
			if test.violated != "" {
				code, body, store, kind = 429, quota+test.violated+"}", "no-store", "application/problem+json"
				length = strconv.Itoa(len(body))
			}
			if w.Code != code || w.Body.String() != body {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, code, body)
			}
			wantFields(t, w.Header(), map[string]string{
				"RateLimit-Policy": test.policy, "RateLimit": test.state, "Retry-After": test.retry,
				"Cache-Control": store, "Content-Type": kind, "Content-Length": length,
			})
			if !test.unparsed {
				canonical(t, w.Header(), "RateLimit-Policy")
				canonical(t, w.Header(), "RateLimit")
			}
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, nil) })
		})
		t.Run(test.name+", by the function", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, nethttp.RateLimitFields) })
		})
	}
}

// The other fields, and those of one's own.
func TestOtherFields(t *testing.T) {
	bucket := core.TokenBucket(60, time.Minute).Burst(10)
	for _, test := range []struct {
		name       string
		fields     func(http.Header, *nethttp.Verdict)
		policies   []core.Policy
		used, cost int64
		want       string // limit, remaining, reset
	}{
		{"admitted", nethttp.XRateLimitFields, []core.Policy{bucket}, 2, 1, "10 7 3"},
		{"refused: Reset is Retry-After", nethttp.XRateLimitFields, []core.Policy{bucket}, 10, 1, "10 0 1"},
		{"the policy with the least left", nethttp.XRateLimitFields, []core.Policy{hour(100).Named("hour"), minute(10).Named("minute")}, 0, 1, "10 9 60"},
		{"never", nethttp.XRateLimitFields, []core.Policy{hour(100)}, 0, 101, "100  "},
		{"unlimited", nethttp.XRateLimitFields, []core.Policy{core.Unlimited()}, 0, 1, "  "},
		{"none", nethttp.NoFields, []core.Policy{hour(1)}, 1, 1, "  "},
		{"one's own", func(h http.Header, v *nethttp.Verdict) {
			h.Set("X-RateLimit-Limit", v.Limiter)
			h.Set("X-RateLimit-Remaining", v.Key())
		}, []core.Policy{hour(1)}, 0, 1, "api anna "},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := memory("api", test.policies...)
				if test.used > 0 {
					l.AllowN(t.Context(), "anna", test.used)
				}
				rule := rate(l)
				rule.Cost = costs(test.cost)
				h := serve(guardOf(t, nethttp.Config{Rates: []nethttp.Rate{rule}, Fields: test.fields}).Handler(status(204)), request("GET", "/")).Header()
				got := h.Get("X-RateLimit-Limit") + " " + h.Get("X-RateLimit-Remaining") + " " + h.Get("X-RateLimit-Reset")
				if got != test.want || h.Get("RateLimit")+h.Get("RateLimit-Policy") != "" {
					t.Errorf("%q, want %q; %v", got, test.want, h)
				}
			})
		})
	}
}

// Several rules: all or none, each with its plan, in the order of the rules, and nothing of the service.
func TestFieldsOfSeveralRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(core.MemoryStore)
		user := rate(core.NewLimiter(store, "user", minute(2)).WithPlan("gold", minute(9)))
		user.Plan = keyfuncs.Header("X-Plan")
		all := nethttp.Rate{Limiter: core.NewLimiter(store, "all", minute(4)), Key: keyfuncs.Everyone(), Service: true}
		address := nethttp.Rate{Limiter: core.NewLimiter(store, "address", minute(7)), Key: keyfuncs.RemoteAddr(), Skip: func(r *http.Request) bool { return r.URL.Path == "/free" }}
		h := guardOf(t, rates(user, all, address)).Handler(status(204))
		for i, test := range []struct {
			path, client, plan string
			want               string
		}{
			{"/", "anna", "", `204 "user";r=1;t=60, "address";r=6;t=60`},
			{"/", "anna", "gold", `204 "user";r=7;t=60, "address";r=5;t=60`},
			{"/", "anna", "unknown", `429 "user";r=0;t=60, "address";r=5;t=60 60 ` + quota + `["user"]}`},
			{"/free", "ben", "", `204 "user";r=1;t=60`},
			{"/free", "ben", "", `204 "user";r=0;t=60`},
			{"/", "carl", "", `503 "user";r=2, "address";r=5;t=60 60 {"type":"about:blank","title":"Service Unavailable","status":503}`},
			{"/", "ben", "", `429 "user";r=0;t=60, "address";r=5;t=60 60 ` + quota + `["user"]}`},
		} {
			w := serve(h, request("GET", test.path, "X-Client", test.client, "X-Plan", test.plan))
			got := strings.TrimSpace(strings.Join([]string{strconv.Itoa(w.Code), w.Header().Get("RateLimit"), w.Header().Get("Retry-After"), w.Body.String()}, " "))
			if got != test.want {
				t.Errorf("%d: %s\nwant %s", i, got, test.want)
			}
			canonical(t, w.Header(), "RateLimit")
		}
	})
}

// Guards around each other add their RateLimit fields; those that are the same stay one.
func TestFieldsOfNestedGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(core.MemoryStore)
		outer, inner := nethttp.Limit(store, "outer", client, minute(9)), nethttp.Limit(store, "inner", client, minute(1))
		h := outer.Handler(inner.Handler(status(204)))
		for _, want := range []string{`"outer";r=8;t=60, "inner";r=0;t=60`, `"outer";r=7;t=60, "inner";r=0;t=60`} {
			w := serve(h, request("GET", "/"))
			if got := strings.Join(w.Header().Values("RateLimit"), ", "); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			canonical(t, w.Header(), "RateLimit")
			canonical(t, w.Header(), "RateLimit-Policy")
		}
	})
}

// A store that is away is a refusal with 503, or admits and does not know what is left, as it is configured.
func TestWithoutAStore(t *testing.T) {
	for failure, want := range map[redisstore.Failure]map[string]string{
		redisstore.FailClosed: {"RateLimit": "", "RateLimit-Policy": "", "Retry-After": "5", "Cache-Control": "no-store"},
		redisstore.FailOpen:   {"RateLimit": "", "RateLimit-Policy": `"api";q=5;w=60`, "Retry-After": ""},
		redisstore.FailLocal:  {"RateLimit": `"api";r=4;t=60`, "RateLimit-Policy": `"api";q=5;w=60`},
	} {
		w := serve(nethttp.Limit(away(t, failure), "api", client, minute(5)).Handler(status(204)), request("GET", "/"))
		if want[`Retry-After`] != "" != (w.Code == 503) {
			t.Errorf("%v: %d", failure, w.Code)
		}
		wantFields(t, w.Header(), want)
	}
}

// HEAD has the fields of GET and no body, and the values of the fields are the response's own.
func TestRefusalsAreIndependent(t *testing.T) {
	h := nethttp.Limit(new(core.MemoryStore), "api", client, core.Blocked()).Handler(status(204))
	get, head := serve(h, request("GET", "/")), serve(h, request("HEAD", "/"))
	if !reflect.DeepEqual(get.Header(), head.Header()) || head.Code != 429 || head.Body.Len() != 0 {
		t.Errorf("%d %v %q\nwant %v", head.Code, head.Header(), head.Body, get.Header())
	}
	want := get.Header().Clone()
	for range 100 { // and pages of text are used again
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("GET", "/"))
		for _, values := range w.Header() {
			values[0] = "changed"
			_ = append(values, "appended")
		}
	}
	if got := serve(h, request("GET", "/")).Header(); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(get.Header(), want) {
		t.Errorf("%v, want %v", got, want)
	}
}
