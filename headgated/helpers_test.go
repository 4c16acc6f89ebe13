package headgated_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/headgated"
)

// A page is a document that tests rewrite.
type page struct{ text atomic.Value }

func newPage(text string) *page {
	p := &page{}
	p.text.Store(text)
	return p
}

func (p *page) Load(context.Context) ([]byte, error) { return []byte(p.text.Load().(string)), nil }

// A log keeps records.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// open returns a server that does not listen.
func open(t testing.TB, c headgated.Config) *headgated.Server {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := headgated.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// A reply is what tests read of an answer.
type reply struct {
	Type, Title, Detail string
	Status              int
	Violated            []string `json:"violated-policies"`
	Allowed             bool
	Source              string
	Limit, Remaining    int64
	ResetAfter          *int64 `json:"reset_after_us"`
	RetryAfter          *int64 `json:"retry_after_us"`
	Uncovered           *int64
	Answers             []struct {
		Limiter, Policy  string
		Allowed          bool
		Limit, Remaining int64
		Window           int64  `json:"window_us"`
		NextAfter        *int64 `json:"next_after_us"`
		ResetAfter       *int64 `json:"reset_after_us"`
		RetryAfter       *int64 `json:"retry_after_us"`
	}
}

// post asks a server as programs do.
func post(t testing.TB, h http.Handler, path, body string, change ...func(*http.Request)) (*httptest.ResponseRecorder, reply) {
	t.Helper()
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var got reply
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return w, got
}

// metric returns the lines of /metrics that begin so.
func metric(t testing.TB, s *headgated.Server, prefix string) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Admin().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}
