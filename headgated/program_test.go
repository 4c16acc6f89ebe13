package headgated_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgated"
)

const simple = `
limits:
  api: {default: free, plans: {free: sliding-log 2/hour, gold: sliding-log 5/hour}}
  day: {plans: {day: fixed-window 100/365d}}
  none: {plans: {none: blocked}}
  other: {plans: {all: fixed-window 10/365d}}
`

// Several limits are charged all or none, and the numbers are those of the decision.
func TestCharge(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	const both = `{"charges": [{"limit": "api", "key": "anna", "units": 2}, {"limit": "day", "key": "anna"}]}`
	w, got := post(t, s.HTTP(), "/v1/charge", both)
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" || !got.Allowed || got.Source != "store" || got.Limit != 2 || got.Remaining != 0 ||
		*got.RetryAfter != 0 || len(got.Answers) != 2 || got.Answers[1].Limiter != "day" || got.Answers[1].Remaining != 99 || got.Answers[0].Window != 3_600_000_000 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if f := w.Header().Get("RateLimit"); !strings.HasPrefix(f, `"api";r=0;t=3600, "day";r=99;t=`) {
		t.Error(f)
	}
	w, got = post(t, s.HTTP(), "/v1/charge", both)
	h := w.Header()
	if w.Code != 429 || h.Get("Content-Type") != "application/problem+json" || h.Get("Retry-After") != "3600" || h.Get("Cache-Control") != "no-store" ||
		got.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || got.Status != 429 || !slices.Equal(got.Violated, []string{"api"}) ||
		got.Allowed || *got.RetryAfter <= 3_590_000_000 || got.Answers[1].Remaining != 99 {
		t.Errorf("%d %v %s", w.Code, h, w.Body)
	}
}

func TestPlanAndNever(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	if w, got := post(t, s.HTTP(), "/v1/charge", `{"charges": [{"limit": "api", "key": "anna", "units": 5, "plan": "gold"}]}`); w.Code != 200 || got.Limit != 5 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, body := range []string{`{"charges": [{"limit": "none", "key": "anna"}]}`, `{"charges": [{"limit": "api", "key": "ben", "units": 3}]}`} {
		w, got := post(t, s.HTTP(), "/v1/charge", body)
		if w.Code != 429 || got.RetryAfter != nil || w.Header().Get("Retry-After") != "" || !strings.Contains(w.Body.String(), `"retry_after_us":null`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

// A check answers what a charge would, and changes nothing.
func TestCheck(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	const one = `{"charges": [{"limit": "api", "key": "anna"}]}`
	for range 3 {
		if w, got := post(t, s.HTTP(), "/v1/check", one); w.Code != 200 || !got.Allowed || got.Remaining != 2 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	post(t, s.HTTP(), "/v1/charge", `{"charges": [{"limit": "api", "key": "anna", "units": 2}]}`)
	w, got := post(t, s.HTTP(), "/v1/check", one)
	if w.Code != 200 || got.Allowed || w.Header().Get("Retry-After") != "" || *got.RetryAfter <= 0 {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// A check of several answers what charging them would.
func TestCheckSeveral(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	const both = `{"charges": [{"limit": "day", "key": "anna"}, {"limit": "api", "key": "anna", "units": 2}]}`
	for _, allowed := range []bool{true, false} {
		for range 2 {
			if w, got := post(t, s.HTTP(), "/v1/check", both); w.Code != 200 || got.Allowed != allowed || len(got.Answers) != 2 || got.Answers[0].Remaining != map[bool]int64{true: 100, false: 99}[allowed] {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		post(t, s.HTTP(), "/v1/charge", both)
	}
}

// A report counts what has happened, beyond the limit too, and says what had no room. Then 0 units, which only
// check, are refused until the key is within its limit again.
func TestReport(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	units := func(n int) string {
		return fmt.Sprintf(`{"charges": [{"limit": "day", "key": "anna", "units": %d}, {"limit": "other", "key": "anna", "units": 1}]}`, n)
	}
	w, got := post(t, s.HTTP(), "/v1/report", units(99))
	if w.Code != 200 || !got.Allowed || got.Uncovered == nil || *got.Uncovered != 0 || got.Remaining != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, got = post(t, s.HTTP(), "/v1/report", units(5))
	if w.Code != 200 || got.Allowed || got.Uncovered == nil || *got.Uncovered != 4 || got.Remaining != 0 || w.Header().Get("RateLimit") == "" || w.Header().Get("Retry-After") != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w, got := post(t, s.HTTP(), "/v1/charge", units(0)); w.Code != 429 || got.Allowed {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w, got := post(t, s.HTTP(), "/v1/check", strings.ReplaceAll(units(0), "anna", "ben")); w.Code != 200 || !got.Allowed || got.Uncovered != nil {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w, got := post(t, s.HTTP(), "/v1/report", units(0)); w.Code != 400 || !strings.Contains(got.Detail, "from 1 to 2^53-1") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w, got := post(t, s.HTTP(), "/v1/report", `{"charges": [{"limit": "day", "key": "ben", "units": 9007199254740991}]}`); w.Code != 200 || got.Allowed || *got.Uncovered < 1<<52 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// Of what is blocked, nothing has room.
	if w, got := post(t, s.HTTP(), "/v1/report", `{"charges": [{"limit": "none", "key": "eve", "units": 3}, {"limit": "day", "key": "eve"}]}`); w.Code != 200 || got.Allowed || *got.Uncovered != 3 || got.Answers[1].Remaining != 99 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Up to 64 charges are one decision.
func TestMany(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	many := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"limit": "api", "key": "%d"}`, i))
		}
		return `{"charges": [` + strings.Join(all, ", ") + `]}`
	}
	for _, want := range []int{200, 200, 429} {
		if w, got := post(t, s.HTTP(), "/v1/charge", many(64)); w.Code != want || len(got.Answers) != 64 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if w, got := post(t, s.HTTP(), "/v1/charge", many(65)); w.Code != 400 || !strings.Contains(got.Detail, "there are 65 charges, not 1 to 64") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// What a program does wrong is said in a problem document, and charges nothing.
func TestBadRequests(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	one := func(charge string) string { return `{"charges": [` + charge + `]}` }
	kind := func(kind string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Content-Type", kind) }
	}
	for _, test := range []struct {
		body, detail string
		status       int
		change       func(*http.Request)
	}{
		{"", "empty", 400, nil},
		{"{", "before it is whole", 400, nil},
		{"[]", "it is a list, not a map", 400, nil},
		{"{}", "it has no charges", 400, nil},
		{`{"charges": []}`, "not 1 to", 400, nil},
		{`{"charges": {}}`, "it is a map, not a list", 400, nil},
		{`{"charges": [], "charge": 1}`, "unknown field: one of charges", 400, nil},
		{`{"charges": [], "Charges": []}`, "unknown field", 400, nil},
		{one(`{"limit": "api", "key": "anna", "unit": 1}`), "unknown field", 400, nil},
		{one(`{"limit": "api", "key": "anna", "key": "ben"}`), "twice", 400, nil},
		{one(`{"key": "anna"}`), "it has no limit", 400, nil},
		{one(`{"limit": "api"}`), "it has no key", 400, nil},
		{one(`{"limit": "api", "key": ""}`), "it is empty", 400, nil},
		{one(`{"limit": "api", "key": 42}`), "it is a number, not a string", 400, nil},
		{one(`{"limit": "api", "key": "anna", "plan": 1}`), "it is a number, not a string", 400, nil},
		{one(`{"limit": "api", "key": "anna", "units": "1"}`), "it is a string, not a number", 400, nil},
		{one(`{"limit": "api", "key": "anna", "units": -1}`), "whole number", 400, nil},
		{one(`{"limit": "api", "key": "anna", "units": 1.0}`), "whole number", 400, nil},
		{one(`{"limit": "api", "key": "anna", "units": 1e3}`), "whole number", 400, nil},
		{one(`{"limit": "api", "key": "anna", "units": 9007199254740992}`), "2^53-1", 400, nil},
		{one("{\"limit\": \"api\", \"key\": \"\xff\"}"), "not UTF-8", 400, nil},
		{one(`{"limit": "api", "key": "\ud800"}`), "half a pair", 400, nil},
		{strings.Repeat("[", 100), "nested deeper", 400, nil},
		{one(`{"limit": "api", "key": "anna"}, {"limit": "api", "key": "anna"}`), "same key", 400, nil},
		{one(strings.TrimSuffix(strings.Repeat(`{"limit": "api", "key": "anna"}, `, 65), ", ")), "not 1 to", 400, nil},
		{one(`{"limit": "apis", "key": "anna"}`), "charges[0].limit: there is no such limit", 404, nil},
		{one(`{"limit": "api", "key": "anna", "plan": "silver"}`), "charges[0].plan: there is no such plan", 404, nil},
		{one(`{"limit": "api", "key": "` + strings.Repeat("a", 64<<10) + `"}`), "more than 65536 bytes", 413, nil},
		{one(`{"limit": "api", "key": "anna"}`), "application/json", 415, kind("text/plain")},
		{one(`{"limit": "api", "key": "anna"}`), "application/json", 415, kind("")},
		{one(`{"limit": "api", "key": "anna"}`), "use POST", 405, func(r *http.Request) { r.Method = "GET" }},
		{one(`{"limit": "api", "key": "anna"}`), "there is nothing here", 404, func(r *http.Request) { r.URL.Path = "/v2/charge" }},
	} {
		change := test.change
		if change == nil {
			change = kind("application/json; charset=utf-8")
		}
		for _, path := range []string{"/v1/charge", "/v1/check", "/v1/report"} {
			w, got := post(t, s.HTTP(), path, test.body, change)
			if w.Code != test.status || got.Status != test.status || w.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(got.Detail, test.detail) {
				t.Errorf("%s %.100q: %d %.300s", path, test.body, w.Code, w.Body)
			}
			if strings.Contains(got.Detail, "anna") {
				t.Errorf("a key is in %q", got.Detail)
			}
		}
	}
	if _, got := post(t, s.HTTP(), "/v1/check", one(`{"limit": "api", "key": "anna"}`)); got.Remaining != 2 {
		t.Errorf("%d of 2 are left", got.Remaining)
	}
	if m := metric(t, s, `headgated_requests_total{code="404",path="/v1/charge"}`); !strings.HasSuffix(m, " 2") {
		t.Error(m)
	}
}

// Hostile bytes in keys are keys like any other.
func TestKeysAreBytes(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	for _, key := range []string{`a\u0000b`, `{}`, `\"`, strings.Repeat("a", 60_000), `\ud83d\ude00`} {
		if w, got := post(t, s.HTTP(), "/v1/charge", `{"charges": [{"limit": "api", "key": "`+key+`"}]}`); w.Code != 200 || got.Remaining != 1 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

func TestAdmin(t *testing.T) {
	s := open(t, headgated.Config{Document: source(simple)})
	post(t, s.HTTP(), "/v1/charge", `{"charges": [{"limit": "api", "key": "anna-the-key"}]}`)
	for path, want := range map[string]string{
		"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "headgate_decisions_total{", "/debug/headgate/": "sliding-log 5/hour", "/debug/headgate/json": `"version"`,
	} {
		w := httptest.NewRecorder()
		s.Admin().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) || strings.Contains(w.Body.String(), "anna-the-key") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
