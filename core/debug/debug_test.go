package debug_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/debug"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
)

const (
	key = "alice@example.com"
	age = 400 * 24 * time.Hour
)

// A scene is a server in which something has happened.
func scene(t testing.TB, c stats.Config) http.Handler {
	t.Helper()
	s, err := stats.New(c)
	if err != nil {
		t.Fatal(err)
	}
	m := memstore.New(memstore.Config{Observer: s.Observer()})
	s.AddMemory("main", m)
	l, err := core.New(m, `<api & "more">`, core.FixedWindow(core.Rate{Events: 3, Per: age}))
	if err != nil {
		t.Fatal(err)
	}
	slots, err := core.NewSlots(m, "sockets", 1)
	if err != nil {
		t.Fatal(err)
	}
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
	return debug.Handler(s, debug.Config{Limits: func() debug.Limits {
		return debug.Limits{Version: "v1", Limiters: []*core.Limiter{l}}
	}})
}

func get(t testing.TB, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

// TestPaths below the one at which the handler is mounted, with its prefix or without.
func TestPaths(t *testing.T) {
	h := scene(t, stats.Config{})
	mux := http.NewServeMux()
	mux.Handle("/debug/headgate/", h)
	for _, test := range []struct{ path, kind, has string }{
		{"", "text/html; charset=utf-8", "<h1>headgate</h1>"},
		{"?refresh=5", "text/html; charset=utf-8", `http-equiv="refresh" content="5"`},
		{"?refresh=x", "text/html; charset=utf-8", "<h1>headgate</h1>"},
		{"json", "application/json", `"version": "v1"`},
		{"metrics", stats.ContentType, "# TYPE headgate_decisions_total counter"},
		{"vars", "application/json; charset=utf-8", `"headgate": {"since":`},
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
		h := scene(t, stats.Config{ShowKeys: clear})
		for _, path := range []string{"/", "/json", "/metrics", "/vars"} {
			body := get(t, h, path).Body.String()
			if want := clear && (path == "/" || path == "/json"); strings.Contains(body, key) != want {
				t.Errorf("ShowKeys %t: %s has the key: %t\n%s", clear, path, !want, body)
			}
		}
	}
}

// TestPage says who refuses, since when, and how often.
func TestPage(t *testing.T) {
	body := get(t, scene(t, stats.Config{}), "/").Body.String()
	for _, has := range []string{
		`limiter “&lt;api &amp; &#34;more&#34;&gt;” has been refusing since`,
		"&lt;api &amp; &#34;more&#34;&gt;", "<code>fixed-window 3/400d</code>", "slots “sockets” have been refusing since",
		`class="number">202<`, "118 more keys", "Version of the limits: <code>v1</code>", ">main<",
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
	s, err := stats.New(stats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := memstore.New(memstore.Config{Observer: s.Observer()})
	var limits debug.Limits
	for i := range 1000 {
		l, err := core.New(m, fmt.Sprintf("route %d", i), core.FixedWindow(core.Rate{Events: int64(i + 1), Per: age}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.AllowN(t.Context(), key, int64(i+1)); err != nil {
			t.Fatal(err)
		}
		limits.Limiters = append(limits.Limiters, l)
	}
	h := debug.Handler(s, debug.Config{Limits: func() debug.Limits { return limits }})
	page, text := get(t, h, "/").Body.String(), get(t, h, "/metrics").Body.String()
	for i := range 1000 {
		for where, has := range map[*string]string{
			&page: fmt.Sprintf("<code>fixed-window %d/400d</code>", i+1),
			&text: fmt.Sprintf("headgate_decision_units_total{limiter=\"route %d\",policy=\"route %[1]d\",result=\"admitted\",source=\"store\"} %d\n", i, i+1),
		} {
			if strings.Count(*where, has) != 1 {
				t.Fatalf("%d times %s", strings.Count(*where, has), has)
			}
		}
	}
}

// TestPageOfNothing is one too.
func TestPageOfNothing(t *testing.T) {
	s, err := stats.New(stats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	body := get(t, debug.Handler(s, debug.Config{}), "/").Body.String()
	if !strings.Contains(body, "Nothing was refused") || !strings.Contains(body, "none has decided anything yet") {
		t.Error(body)
	}
}

// TestPageOfAnOutage shows why.
func TestPageOfAnOutage(t *testing.T) {
	s, err := stats.New(stats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := s.Observer()
	o.Called(core.CallEvent{Questions: 2, Took: time.Millisecond, Err: os.ErrDeadlineExceeded})
	o.Changed(os.ErrDeadlineExceeded)
	h := debug.Handler(s, debug.Config{})
	if body := get(t, h, "/").Body.String(); !strings.Contains(body, "The store is unavailable since") || !strings.Contains(body, "i/o timeout") {
		t.Error(body)
	}
	o.Changed(nil)
	if body := get(t, h, "/").Body.String(); strings.Contains(body, "The store is unavailable") || !strings.Contains(body, "It was unavailable 1 times") {
		t.Error(body)
	}
}

// TestReport is what is served as JSON.
func TestReport(t *testing.T) {
	var r debug.Report
	if err := json.Unmarshal(get(t, scene(t, stats.Config{}), "/json").Body.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Limiters) != 1 || r.Limiters[0].Top.Refusals != 202 || r.Slots[0].Held != 1 || r.Limits.Limiters[0].Policies[0].Policy != "fixed-window 3/400d" {
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
