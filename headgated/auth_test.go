package headgated_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgated"
)

const proxied = `
limits:
  api: {default: free, plans: {free: sliding-log 2/hour, gold: sliding-log 3/hour}}
  all: {plans: {all: fixed-window 100/day}}
trusted: [10.0.0.0/8]
routes:
  - {path: /healthz, charge: []}
  - {host: api.example.com, method: [POST, GET], path: "/v1/{tenant}/chat", charge: [{limit: api, key: ["path:tenant", bearer], plan: "header:X-Plan"}]}
  - {path: "/files/{name...}", charge: [{limit: api, key: [method, "path:name"], units: 2}]}
  - {host: other.example.com, charge: [{limit: api, key: "header:X-Api-Key"}, {limit: all, key: everyone}]}
  - {host: fallback.example.com, charge: [{limit: api, key: address}]}
`

const (
	proxy   = "10.1.2.3:4711"
	client  = "203.0.113.7"
	someone = "198.51.100.9:1234"
)

// ask asks as a proxy does about a request, with further fields.
func ask(s *headgated.Server, peer, method, host, uri string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/v1/auth", nil)
	r.RemoteAddr = peer
	r.Header.Set("X-Forwarded-Method", method)
	r.Header.Set("X-Forwarded-Host", host)
	r.Header.Set("X-Forwarded-Uri", uri)
	r.Header.Set("X-Forwarded-For", client)
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			r.Header.Del(fields[i])
		} else {
			r.Header.Add(fields[i], fields[i+1])
		}
	}
	w := httptest.NewRecorder()
	s.HTTP().ServeHTTP(w, r)
	return w
}

func TestAuth(t *testing.T) {
	s := open(t, headgated.Config{Document: source(proxied)})
	about := func(want int, field string, fields ...string) {
		t.Helper()
		w := ask(s, proxy, "POST", "api.example.com", "/v1/acme/chat?x=1", append(fields, "Authorization", "Bearer secret")...)
		if w.Code != want || !strings.HasPrefix(w.Header().Get("RateLimit"), field) {
			t.Errorf("%d %v, want %d and %s", w.Code, w.Header(), want, field)
		}
	}
	about(200, `"api";r=1;t=`)
	if h := ask(s, proxy, "GET", "x", "/healthz").Header(); h.Get("Cache-Control") != "no-store" || len(h) != 1 {
		t.Error(h)
	}
	about(200, `"api";r=0;t=`)
	about(429, `"api";r=0;t=`)
	about(200, `"api";r=0;t=`, "X-Plan", "gold")
	about(429, `"api";r=0;t=`, "X-Plan", "silver") // there is no such plan: the default
	w := ask(s, proxy, "POST", "api.example.com", "/v1/acme/chat", "Authorization", "Bearer secret")
	if h := w.Header(); h.Get("Retry-After") != "3600" || h.Get("Content-Type") != "application/problem+json" || h.Get("RateLimit-Policy") != `"api";q=2;w=3600` ||
		!strings.Contains(w.Body.String(), `"violated-policies":["api"]`) {
		t.Errorf("%v %s", h, w.Body)
	}
	if w := ask(s, proxy, "POST", "api.example.com", "/v1/acme/chat"); w.Code != 400 {
		t.Errorf("without a token: %d", w.Code)
	}
}

// nginx wants 403, and reads the status beside it.
func TestDeny(t *testing.T) {
	s := open(t, headgated.Config{Document: source(proxied)})
	deny := func(field ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/v1/auth?deny=403", nil)
		r.RemoteAddr = proxy
		for i, name := range []string{"X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Uri", "X-Forwarded-For", "X-Api-Key"} {
			if i < len(field) {
				r.Header.Set(name, field[i])
			}
		}
		w := httptest.NewRecorder()
		s.HTTP().ServeHTTP(w, r)
		return w
	}
	for _, want := range []string{"", "", "429", "429"} {
		w := deny("GET", "other.example.com", "/", client, "anna")
		if code := map[bool]int{true: 200, false: 403}[want == ""]; w.Code != code || w.Header().Get("X-Headgate-Status") != want || want != "" && w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %v, want %q", w.Code, w.Header(), want)
		}
	}
	for _, w := range []*httptest.ResponseRecorder{deny("GET", "other.example.com", "/", client), deny("GET", "other.example.com")} {
		if w.Code != 403 || w.Header().Get("X-Headgate-Status") != "400" || !strings.Contains(w.Body.String(), `"status":400`) {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	r := httptest.NewRequest("GET", "/v1/auth?deny=401", nil)
	w := httptest.NewRecorder()
	if s.HTTP().ServeHTTP(w, r); w.Code != 400 {
		t.Errorf("deny=401: %d", w.Code)
	}
}

// No spelling of a path, a host or a method is a way around a route.
func TestRoutes(t *testing.T) {
	s := open(t, headgated.Config{Document: source(proxied)})
	for _, test := range []struct{ method, host, uri, charged string }{
		{"POST", "api.example.com", "/v1/acme/chat", "api"},
		{"POST", "API.example.com:8443", "/v1/acme/chat", "api"},
		{"POST", "api.example.com.", "/v1/acme/chat", "api"},
		{"HEAD", "api.example.com", "/v1/acme/chat", "api"},
		{"POST", "api.example.com", "//v1///acme/chat", "api"},
		{"POST", "api.example.com", "/v1/acme/chat/", "api"},
		{"POST", "api.example.com", "/v1/./acme/x/../chat", "api"},
		{"POST", "api.example.com", "/v1/acme/%63hat", "api"},
		{"POST", "api.example.com", "/v1/acme%2fchat", "api"},
		{"POST", "api.example.com", "/v1/a%2Fb/chat", "api"},
		{"POST", "api.example.com", "/v1/acme/x/%2e%2e/chat", "api"},
		{"POST", "api.example.com", "http://api.example.com/v1/acme/chat", "api"},
		{"POST", "api.example.com", "/v1/acme/chat?/../..", "api"},
		{"PUT", "api.example.com", "/v1/acme/chat", ""},
		{"POST", "api.example.com", "/v1/acme/chats", ""},
		{"POST", "api.example.com", "/v1/acme/chat/more", ""},
		{"POST", "example.com", "/v1/acme/chat", ""},
		{"GET", "fallback.example.com", "/healthz", ""},
		{"GET", "fallback.example.com", "/healthz/more", "api"},
		{"GET", "any", "/files/a/b/c", "api"},
		{"BREW", "any", "/files/a/b/c", "api"},
		{"OPTIONS", "fallback.example.com", "*", "api"},
	} {
		w := ask(s, proxy, test.method, test.host, test.uri, "Authorization", "Bearer "+t.Name())
		policy := w.Header().Get("RateLimit-Policy")
		if charged := strings.HasPrefix(policy, `"api"`); (w.Code != 200 && w.Code != 429) || charged != (test.charged != "") {
			t.Errorf("%+v: %d %q", test, w.Code, policy)
		}
	}
	for _, uri := range []string{"v1/acme/chat", "/v1/%zz/chat", ""} {
		if w := ask(s, proxy, "POST", "api.example.com", uri, "X-Forwarded-Uri", uri); w.Code != 400 {
			t.Errorf("%q: %d", uri, w.Code)
		}
	}
}

// Two parts of a key are not one: ("a", "b_c") is not ("a_b", "c").
func TestCombinedKeys(t *testing.T) {
	s := open(t, headgated.Config{Document: source(`
limits: {api: {plans: {free: sliding-log 1/hour}}}
trusted: [10.0.0.0/8]
routes: [{path: "/{a}/{b}", charge: [{limit: api, key: ["path:a", "path:b"]}]}]`)})
	for uri, want := range map[string]int{"/a/b_c": 200, "/a_b/c": 200, "/a_/b_c": 200, "/1%3Aa,1/b": 200} {
		if w := ask(s, proxy, "GET", "x", uri); w.Code != want {
			t.Errorf("%s: %d", uri, w.Code)
		}
		if w := ask(s, proxy, "GET", "x", uri); w.Code != 429 {
			t.Errorf("%s again: %d", uri, w.Code)
		}
	}
}

// What a peer that is not trusted says of the request changes nothing.
func TestForged(t *testing.T) {
	l := &log{}
	const text = `
limits: {api: {plans: {free: sliding-log 2/hour}}}
trusted: [10.0.0.0/8]
routes:
  - {path: /free, charge: []}
  - {charge: [{limit: api, key: address}]}`
	s := open(t, headgated.Config{Document: source(text), Logger: slog.New(slog.NewTextHandler(l, nil))})
	var codes []int
	for _, forged := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "10.0.0.1"} {
		codes = append(codes, ask(s, someone, "GET", "x", "/free", "X-Forwarded-For", forged).Code)
	}
	if !slices.Equal(codes, []int{200, 200, 429, 429}) {
		t.Error(codes)
	}
	if m := metric(t, s, "headgated_auth_untrusted_total"); !strings.HasSuffix(m, " 4") {
		t.Error(m)
	}
	if n := strings.Count(l.String(), "not trusted"); n != 1 || strings.Contains(l.String(), "198.51.100.9") {
		t.Errorf("%d times in %s", n, l)
	}
	// Of a proxy, what it has appended counts, whatever the client wrote before it.
	for _, forged := range []string{"192.0.2.1, " + client, "192.0.2.2, " + client, "10.0.0.1, " + client} {
		codes = append(codes, ask(s, proxy, "GET", "x", "/x", "X-Forwarded-For", "", "X-Forwarded-For", forged).Code)
	}
	if !slices.Equal(codes[4:], []int{200, 200, 429}) {
		t.Error(codes)
	}
}

// A proxy that does not say what routes depend on is refused, or nothing would be limited.
func TestProxyThatIsSilent(t *testing.T) {
	s := open(t, headgated.Config{Document: source(proxied)})
	for _, name := range []string{"X-Forwarded-Method", "X-Forwarded-Host", "X-Forwarded-Uri"} {
		for _, value := range []string{"", "a, b"} {
			w := ask(s, proxy, "GET", "fallback.example.com", "/", name, "", name, value)
			if value == "" || name != "X-Forwarded-Uri" {
				if w.Code != 400 || !strings.Contains(w.Body.String(), name) {
					t.Errorf("%s: %q: %d %s", name, value, w.Code, w.Body)
				}
			}
		}
		if w := ask(s, proxy, "GET", "fallback.example.com", "/", name, "x"); w.Code != 400 {
			t.Errorf("two %s: %d", name, w.Code)
		}
	}
	if w := ask(s, proxy, "GET", "fallback.example.com", "/", "X-Forwarded-For", ""); w.Code != 400 {
		t.Errorf("without X-Forwarded-For: %d", w.Code)
	}
}

// The peer on a unix socket is a proxy.
func TestUnixPeer(t *testing.T) {
	s := open(t, headgated.Config{Document: source(proxied)})
	h := s.HTTP()
	over := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "/s", Net: "unix"})))
	})
	for i, from := range []string{client, client, client, "203.0.113.8", "203.0.113.7, 10.0.0.9", "unknown"} {
		r := httptest.NewRequest("GET", "/v1/auth", nil)
		r.RemoteAddr = "@"
		r.Header.Set("X-Forwarded-Method", "GET")
		r.Header.Set("X-Forwarded-Host", "fallback.example.com")
		r.Header.Set("X-Forwarded-Uri", "/")
		r.Header.Set("X-Forwarded-For", from)
		w := httptest.NewRecorder()
		if over.ServeHTTP(w, r); w.Code != []int{200, 200, 429, 200, 429, 400}[i] {
			t.Errorf("%d, %s: %d %s", i, from, w.Code, w.Body)
		}
	}
}

// A route of 0 units checks, and what the application reports counts.
func TestCheckBeforeReportAfter(t *testing.T) {
	s := open(t, headgated.Config{Document: source(`
limits: {tokens: {plans: {free: token-bucket 100/hour burst 100}}}
trusted: [10.0.0.0/8]
routes: [{charge: [{limit: tokens, key: "header:X-User", units: 0}]}]`)})
	for range 3 {
		if w := ask(s, proxy, "GET", "x", "/", "X-User", "anna"); w.Code != 200 || !strings.HasPrefix(w.Header().Get("RateLimit"), `"tokens";r=100`) {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	post(t, s.HTTP(), "/v1/report", `{"charges": [{"limit": "tokens", "key": "anna", "units": 150}]}`)
	if w := ask(s, proxy, "GET", "x", "/", "X-User", "anna"); w.Code != 429 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := ask(s, proxy, "GET", "x", "/", "X-User", "ben"); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
}

// No reading of a path is a way around the route of another: neither a free one before it, nor path values.
func TestReadings(t *testing.T) {
	const limited = `
limits: {api: {plans: {api: sliding-log 1/hour}}}
trusted: [10.0.0.0/8]
routes:
  - {path: /healthz, charge: []}
  - {path: "/v1/{tenant}/chat", charge: [{limit: api, key: "path:tenant"}]}
  - {charge: [{limit: api, key: everyone}]}
`
	for pattern, uris := range map[string][]string{
		"/files/":           {"/files/a", "/files/../healthz", "/files/x/../../healthz"},
		"/search/":          {"/search/..;/healthz", "/search/..;a=b/healthz", `/search/..%5Chealthz`, "/search/;/..;/..;/healthz"},
		"/search/{q}":       {"/search/..%2Fhealthz", "/search/..%2fhealthz", "/search/x%2F..%2F..%2Fhealthz", "/search/..%2Fhealthz%2F."},
		"/files/{rest...}":  {"/files/a", "/files/..%2fhealthz", "/files/%2e%2e/healthz", "/files/b/..%2f..%2fhealthz"},
		"/v1/{tenant}/chat": {"/v1/%2e%2e/chat", "/v1/%2E%2e/chat", "/v1/.%2e/chat"},
	} {
		s := open(t, headgated.Config{Document: source(limited)})
		served, mux := 0, http.NewServeMux()
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) { served++ })
		for _, uri := range uris {
			if w := ask(s, proxy, "GET", "a", uri); w.Code == 200 {
				mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", uri, nil))
			}
		}
		if served != 1 {
			t.Errorf("%s: a limit of 1 let %d requests through", pattern, served)
		}
	}
	s := open(t, headgated.Config{Document: source(limited)})
	for _, test := range []struct {
		uri  string
		want int
	}{
		{"/v1/acme/chat", 200}, {"/v1/acme%2Fx%2F../chat", 429}, {"/v1/y%2F..%2Facme/chat", 429},
		{"/v1/acme%2Fchat;x", 429}, {"/v1%2Facme;1%2Fchat", 429}, {"/v1/acme;2%2Fchat", 429}, {"/x/..%2Fv1%2Facme%2Fchat;x", 429},
		{"/healthz?q=\\d+", 200},
		{"/healthz", 200}, {"/%68ealthz", 200}} {
		if w := ask(s, proxy, "GET", "a", test.uri); w.Code != test.want {
			t.Errorf("%s: %d, want %d", test.uri, w.Code, test.want)
		}
	}
}

// A path with several readings is charged once where they agree, and never more than can be charged together.
func TestReadingsAreBounded(t *testing.T) {
	limits, charges := "everywhere: {plans: {p: sliding-log 3/hour}}", [2]string{"{limit: everywhere, key: everyone}", "{limit: everywhere, key: everyone, units: 2}"}
	for i := range 5 {
		limits += fmt.Sprintf(", l%d: {plans: {p: sliding-log 1000/hour}}", i)
		for at, key := range [...]string{"path:x", "method"} {
			charges[at] += fmt.Sprintf(", {limit: l%d, key: %q}", i, key)
		}
	}
	s := open(t, headgated.Config{Document: source(fmt.Sprintf(`
limits: {%s}
trusted: [10.0.0.0/8]
routes:
  - {path: "/few/{x}", charge: [{limit: everywhere, key: everyone}]}
  - {path: "/few/{x}/{y}", charge: [{limit: everywhere, key: everyone, units: 2}]}
  - {path: "/a/{x}", charge: [%s]}
  - {charge: [%s]}
`, limits, charges[0], charges[1]))})
	for _, test := range []struct {
		uri  string
		code int
		left string
	}{{"/a/b%2fc", 400, ""}, {"/few/a%2fb", 200, "1"}, {"/few/a%2fb", 429, "1"}, {"/few/a", 200, "0"}} {
		w := ask(s, proxy, "GET", "a", test.uri)
		if w.Code != test.code || !strings.HasPrefix(w.Header().Get("RateLimit"), map[bool]string{true: `"everywhere";r=` + test.left}[test.left != ""]) {
			t.Errorf("%s: %d %v %s", test.uri, w.Code, w.Header(), w.Body)
		}
		if w.Code == 400 && !strings.Contains(w.Body.String(), "several ways") {
			t.Error(w.Body)
		}
	}
}

// Charges of one limit and key are one, of the sum of their units.
func TestOneKeyTwice(t *testing.T) {
	doc := `
limits: {api: {plans: {api: sliding-log 3/hour}}}
trusted: [10.0.0.0/8]
routes:
  - {path: "/transfer/{from}/{to}", charge: [{limit: api, key: "path:from"}, {limit: api, key: "path:to"}]}
  - {charge: [{limit: api, key: address}, {limit: api, key: address, units: 2}]}
`
	s := open(t, headgated.Config{Document: source(doc)})
	for _, step := range []struct {
		uri  string
		want int
	}{{"/transfer/a/b", 200}, {"/transfer/a/a", 200}, {"/transfer/a/b", 429}, {"/transfer/b/b", 200}, {"/", 200}, {"/", 429}} {
		if w := ask(s, proxy, "GET", "a", step.uri); w.Code != step.want {
			t.Errorf("%s: %d, want %d", step.uri, w.Code, step.want)
		}
	}
}

// One key of a limit is not charged under two plans, of which one would not be asked.
func TestOneKeyUnderTwoPlans(t *testing.T) {
	s := open(t, headgated.Config{Document: source(`
limits: {api: {default: free, plans: {free: sliding-log 1/hour, gold: sliding-log 1000/hour}}}
trusted: [10.0.0.0/8]
routes: [{charge: [{limit: api, key: address, plan: "header:X-Plan"}, {limit: api, key: "header:X-User"}]}]`)})
	for _, test := range []struct {
		plan, user string
		want       int
	}{{"gold", "anna", 200}, {"gold", client, 400}, {"gold", "anna", 429}} {
		if w := ask(s, proxy, "GET", "a", "/", "X-Plan", test.plan, "X-User", test.user); w.Code != test.want {
			t.Errorf("%s: %d %s", test.user, w.Code, w.Body)
		}
	}
}

// What a proxy forgets, or leaves empty, and a route or a key needs, is a 400.
func TestForgotten(t *testing.T) {
	method := open(t, headgated.Config{Document: source(`
limits: {api: {plans: {api: sliding-log 10/hour}}}
trusted: [10.0.0.0/8]
routes: [{charge: [{limit: api, key: [method, address]}]}]`)})
	all := open(t, headgated.Config{Document: source(proxied)})
	for name, w := range map[string]*httptest.ResponseRecorder{
		"no method, for a key":   ask(method, proxy, "POST", "a", "/", "X-Forwarded-Method", ""),
		"an empty method":        ask(all, proxy, "", "api.example.com", "/v1/acme/chat", "Authorization", "Bearer x"),
		"an empty host":          ask(all, proxy, "POST", "", "/v1/acme/chat", "Authorization", "Bearer x"),
		"a URI with a fragment":  ask(all, proxy, "POST", "api.example.com", "/v1/acme/chat#/../../../healthz", "Authorization", "Bearer x"),
		"a URI with a backslash": ask(all, proxy, "POST", "api.example.com", `/v1/acme/chat\..\..\..\healthz`, "Authorization", "Bearer x"),
		"an empty URI":           ask(all, proxy, "POST", "api.example.com", "", "Authorization", "Bearer x"),
	} {
		if w.Code != 400 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	if w := ask(method, proxy, "POST", "", "", "X-Forwarded-Host", ""); w.Code != 200 {
		t.Errorf("no host, which nothing needs: %d", w.Code)
	}
}
