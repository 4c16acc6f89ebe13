package stats

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const key = "alice@example.com"

// A scene is a server in which something has happened.
func scene(t testing.TB, c Config) http.Handler {
	t.Helper()
	s, m := observed(c)
	l := core.NewLimiter(m, `<api & "more">`, core.FixedWindow(3, age))
	slots := core.NewSlots(m, "sockets", 1)
	for range 5 {
		if _, err := l.Allow(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		_, _ = slots.Acquire(context.Background(), key)
	}
	for i := range 200 {
		if _, err := l.AllowN(context.Background(), "other "+strconv.Itoa(i), 4); err != nil {
			t.Fatal(err)
		}
	}
	return s.HandlerWith(func() backend.Limits {
		return backend.Limits{Version: "v1", Policies: []backend.ShownPolicy{{Limiter: `<api & "more">`, Name: `<api & "more">`, Text: "fixed-window 3/400d"}}}
	})
}

// observed returns a Stats, and a store in memory whose events it counts.
func observed(c Config) (*Stats, *core.MemoryStore) {
	s := New(c)
	return s, &core.MemoryStore{Observers: []*core.Observer{s.Observer()}}
}

func get(t testing.TB, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

// TestPaths below the one at which the handler is mounted, with its prefix or without.
func TestPaths(t *testing.T) {
	h := scene(t, Config{})
	mux := http.NewServeMux()
	mux.Handle("/debug/headgate/", h)
	for _, test := range []struct{ path, kind, has string }{
		{"", "text/html; charset=utf-8", "<h1>headgate</h1>"},
		{"?refresh=5", "text/html; charset=utf-8", `http-equiv="refresh" content="5"`},
		{"?refresh=x", "text/html; charset=utf-8", "<h1>headgate</h1>"},
		{"json", "application/json", `"version": "v1"`},
		{"metrics", "text/plain; version=0.0.4; charset=utf-8", "# TYPE headgate_decisions_total counter"},
	} {
		for prefix, h := range map[string]http.Handler{"/": h, "/debug/headgate/": mux} {
			w := get(t, h, prefix+test.path)
			if w.Code != 200 || w.Header().Get("Content-Type") != test.kind || !strings.Contains(w.Body.String(), test.has) {
				t.Errorf("%s%s: %d %v %s", prefix, test.path, w.Code, w.Header(), w.Body)
			}
			if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" ||
				!strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%s%s: %v", prefix, test.path, w.Header())
			}
		}
	}
	if w := get(t, h, "/unknown"); w.Code != 404 {
		t.Errorf("an unknown path: %d", w.Code)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d %v", w.Code, w.Header())
	}
}

// TestNothingShownIdentifiesAClient, unless that is configured.
func TestNothingShownIdentifiesAClient(t *testing.T) {
	for _, clear := range []bool{false, true} {
		h := scene(t, Config{ShowKeys: clear})
		for _, path := range []string{"/", "/json", "/metrics"} {
			body := get(t, h, path).Body.String()
			if want := clear && (path == "/" || path == "/json"); strings.Contains(body, key) != want {
				t.Errorf("ShowKeys %t: %s has the key: %t\n%s", clear, path, !want, body)
			}
		}
	}
}

// TestPage says who refuses, since when, and how often.
func TestPage(t *testing.T) {
	body := get(t, scene(t, Config{}), "/").Body.String()
	for _, has := range []string{
		`limiter “&lt;api &amp; &#34;more&#34;&gt;” has been refusing since`,
		"&lt;api &amp; &#34;more&#34;&gt;", "<code>fixed-window 3/400d</code>", "slots “sockets” have been refusing since",
		`class="number">202 (98.5 %)<`, "If one key has most refusals", "process " + strconv.Itoa(os.Getpid()), "118 more keys", "Version of the limits: <code>v1</code>", ">memory<",
	} {
		if !strings.Contains(body, has) {
			t.Errorf("the page has no %s", has)
		}
	}
	if strings.Contains(body, "<api") {
		t.Error("a name is not escaped")
	}
	if t.Failed() {
		t.Log(body)
	}
}

// TestThousandLimiters are all shown, each with its own counts.
func TestThousandLimiters(t *testing.T) {
	s, m := observed(Config{})
	var limits backend.Limits
	for i := range 1000 {
		name := fmt.Sprintf("route %d", i)
		if _, err := core.NewLimiter(m, name, core.FixedWindow(int64(i+1), age)).AllowN(t.Context(), key, int64(i+1)); err != nil {
			t.Fatal(err)
		}
		limits.Policies = append(limits.Policies, backend.ShownPolicy{Limiter: name, Name: name, Text: fmt.Sprintf("fixed-window %d/400d", i+1)})
	}
	h := s.HandlerWith(func() backend.Limits { return limits })
	html, text := get(t, h, "/").Body.String(), get(t, h, "/metrics").Body.String()
	for i := range 1000 {
		for where, has := range map[*string]string{
			&html: fmt.Sprintf("<code>fixed-window %d/400d</code>", i+1),
			&text: fmt.Sprintf("headgate_decision_units_total{limiter=\"route %d\",policy=\"route %[1]d\",result=\"admitted\",source=\"store\"} %d\n", i, i+1),
		} {
			if strings.Count(*where, has) != 1 {
				t.Fatalf("%d times %s", strings.Count(*where, has), has)
			}
		}
	}
}

// TestTrials refuse nobody: neither page, nor metrics, nor log say that they do.
func TestTrials(t *testing.T) {
	var log bytes.Buffer
	s, m := observed(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	guard, err := nethttp.New(nethttp.Config{
		Rates:       []nethttp.Rate{{ObserveOnly: true, Limiter: core.NewLimiter(m, "watched", core.Blocked()), Key: keyfuncs.Everyone()}},
		Concurrency: []nethttp.Concurrency{{ObserveOnly: true, Slots: core.NewSlots(m, "busy", 0), Key: keyfuncs.Everyone()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	guard.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != http.StatusNotFound {
		t.Fatal(w.Code)
	}
	h := s.Handler()
	html, text := get(t, h, "/").Body.String(), get(t, h, "/metrics").Body.String()
	if !strings.Contains(html, "Nothing was refused in the last minute") || strings.Contains(html, `class="bad"`) {
		t.Error("the page says that something is refused")
	}
	for _, has := range []string{"on trial: 1 (100 %) would be refused", "On trial, would be refused most by limiter “watched”"} {
		if !strings.Contains(html, has) {
			t.Errorf("the page has no %s", has)
		}
	}
	for _, has := range []string{
		`headgate_decisions_total{limiter="watched",policy="watched",result="trial",source="policy"} 1`,
		`headgate_slot_claims_total{slots="busy",result="trial",source="store"} 1`,
	} {
		if !strings.Contains(text, has+"\n") {
			t.Errorf("there is no %s", has)
		}
	}
	if strings.Contains(text, `result="refused"`) || strings.Contains(text, "headgate_last_refusal_timestamp_seconds{") || log.Len() > 0 {
		t.Error("a trial is called a refusal: ", log.String())
	}
	if t.Failed() {
		t.Log(html, text)
	}
}

// TestUndecided limits that are in force are on the page too.
func TestUndecided(t *testing.T) {
	s, m := observed(Config{})
	l := core.NewLimiter(m, "login", core.FixedWindow(5, time.Minute).Named("minute"), core.FixedWindow(50, time.Hour).Named("hour"))
	h := s.HandlerWith(func() backend.Limits {
		return backend.Limits{Policies: []backend.ShownPolicy{
			{Limiter: "login", Name: "minute", Text: "fixed-window 5/minute"}, {Limiter: "login", Name: "hour", Text: "fixed-window 50/hour"},
			{Limiter: "login", Name: "hour", Text: "fixed-window 70/hour"}, // of another plan
		}}
	})
	for range 2 { // before and after one of them has decided
		body := get(t, h, "/").Body.String()
		for _, has := range []string{">login<", "<code>fixed-window 5/minute</code>", "<code>fixed-window 50/hour; fixed-window 70/hour</code>"} {
			if !strings.Contains(body, has) {
				t.Errorf("there is no %s in %s", has, body)
			}
		}
		if _, err := l.Allow(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRates are those of the last ten seconds or more while somebody reads the page.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := observed(Config{})
		l := core.NewLimiter(m, "api", core.FixedWindow(60, age))
		h := s.Handler()
		for i, want := range []string{"4<", "4, 50 % refused<", "4, 100 % refused<"} {
			for range 40 {
				if _, err := l.Allow(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Second)
			if body := get(t, h, "/").Body.String(); !strings.Contains(body, `data-label="a second" class="number">`+want) {
				t.Errorf("%d: there is no %s in %s", i, want, body)
			}
		}
	})
}

// TestPageOfNothing is one too.
func TestPageOfNothing(t *testing.T) {
	s := New(Config{})
	body := get(t, s.Handler(), "/").Body.String()
	if !strings.Contains(body, "Nothing was refused") || !strings.Contains(body, "none has decided anything yet") {
		t.Error(body)
	}
}

// TestPageOfAnOutage shows why.
func TestPageOfAnOutage(t *testing.T) {
	s := New(Config{})
	o := s.Observer().Backend(nil)
	o.Called(store.Call{Questions: 2, Took: time.Millisecond, Err: os.ErrDeadlineExceeded})
	o.Changed(os.ErrDeadlineExceeded)
	h := s.Handler()
	if body := get(t, h, "/").Body.String(); !strings.Contains(body, "The store is unavailable since") || !strings.Contains(body, "i/o timeout") || !strings.Contains(body, "“headgate ping”") {
		t.Error(body)
	}
	o.Changed(nil)
	if body := get(t, h, "/").Body.String(); strings.Contains(body, "The store is unavailable") || !strings.Contains(body, "It was unavailable 1 times") {
		t.Error(body)
	}
}

// TestReport is what is served as JSON.
func TestReport(t *testing.T) {
	var r report
	if err := json.Unmarshal(get(t, scene(t, Config{}), "/json").Body.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Limiters) != 1 || r.Limiters[0].Top.Refusals != 202 || r.Slots[0].Held != 1 || r.Limits.Policies[0].Text != "fixed-window 3/400d" {
		t.Errorf("%+v", r)
	}
}

// TestLookOfTheHouse: the page's style begins with that of the examples.
func TestLookOfTheHouse(t *testing.T) {
	house, err := os.ReadFile("../../examples/internal/pages/house.css")
	if err != nil {
		t.Fatal(err)
	}
	style, err := os.ReadFile("page.css")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(style, house) {
		t.Error("page.css does not begin with house.css")
	}
}

// A configuration that is not in force is said first, and not after it is.
func TestStale(t *testing.T) {
	s := New(Config{})
	var limits backend.Limits
	h := s.HandlerWith(func() backend.Limits { return limits })
	for _, limits.Err = range []error{errors.New("line 3 <b>"), nil} {
		html, text := get(t, h, "/").Body.String(), get(t, h, "/json").Body.String()
		if is := limits.Err != nil; strings.Contains(html, "not in force: line 3 &lt;b&gt;") != is || strings.Contains(text, `"error": "line 3`) != is {
			t.Errorf("%v\n%s\n%s", limits.Err, html, text)
		}
	}
}
