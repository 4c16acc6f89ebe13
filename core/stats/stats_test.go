package stats_test

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/stats"
)

// The page, the metrics and the families show what limits did, and no key.
func TestStats(t *testing.T) {
	const secret = "canary-77"
	ctx, seen := t.Context(), stats.New(stats.Config{})
	s := &core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}
	l, slots := core.NewLimiter(s, "api", core.SlidingLog(1, time.Hour)), core.NewSlots(s, "ws", 1)
	for range 3 {
		if _, err := l.Allow(ctx, secret); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := slots.Acquire(ctx, secret); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := seen.WritePrometheus(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`headgate_decisions_total{limiter="api",policy="api",result="admitted",source="store"} 1`,
		`headgate_decisions_total{limiter="api",policy="api",result="refused",source="store"} 2`,
		`headgate_slots_held{slots="ws"} 1`, `store="memory"`,
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in\n%s", want, text.String())
		}
	}
	for path, want := range map[string]string{"/debug/": "api", "/debug/metrics": "headgate_decisions_total", "/debug/json": `"limiters"`} {
		w := httptest.NewRecorder()
		seen.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) || strings.Contains(w.Body.String(), secret) {
			t.Errorf("%s: %d\n%s", path, w.Code, w.Body)
		}
	}
	found := false
	for _, f := range seen.Families() {
		for _, x := range f.Samples {
			if len(x.Labels)%2 != 0 || strings.Contains(strings.Join(x.Labels, ""), secret) {
				t.Errorf("%s: %q", f.Name, x.Labels)
			}
			found = found || f.Name == "headgate_decisions_total" && f.Type == "counter" && x.Value == 2
		}
	}
	if !found {
		t.Error("the families lack the refusals")
	}
}

// With ShowKeys the page shows who is refused most.
func TestShowKeys(t *testing.T) {
	seen := stats.New(stats.Config{ShowKeys: true})
	l := core.NewLimiter(&core.MemoryStore{Observers: []*core.Observer{seen.Observer()}}, "api", core.Blocked())
	if _, err := l.Allow(t.Context(), "anna"); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	seen.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if !strings.Contains(w.Body.String(), "anna") {
		t.Error(w.Body)
	}
}
