package nethttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/nethttp"
)

func newLimiter(t testing.TB, store core.Store, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(store, name, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// memory is a limiter with a store of its own.
func memory(t testing.TB, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	return newLimiter(t, memstore.New(memstore.Config{}), name, policies...)
}

func newGuard(t testing.TB, c nethttp.Config) *nethttp.Guard {
	t.Helper()
	g, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func rules(rules ...nethttp.Rule) nethttp.Config { return nethttp.Config{Rules: rules} }

// header is a key function: the client chooses its key.
func header(r *http.Request) (string, error) {
	if key := r.Header.Get("X-Client"); key != "" {
		return key, nil
	}
	return "", errNoClient
}

var errNoClient = errors.New("no X-Client")

func request(method, target string, header ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// A fakeStore answers as it is told, or as the store within.
type fakeStore struct {
	core.Store

	err       error // of decisions
	open      bool  // admits without looking
	settleErr error

	mu      sync.Mutex
	asked   int
	settled []int64 // the actual numbers, in order
	settles int     // calls
	ctxErr  error   // of the context of the last Settle
	timed   bool    // it had a deadline
}

func newFake() *fakeStore { return &fakeStore{Store: memstore.New(memstore.Config{})} }

func (f *fakeStore) Ask(ctx context.Context, q *store.Question) error {
	switch q.Mode {
	case store.Settle:
		return f.settle(ctx, q)
	case store.Reset:
		return f.Store.Ask(ctx, q)
	}
	f.mu.Lock()
	f.asked++
	f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	if !f.open {
		return f.Store.Ask(ctx, q)
	}
	r := &q.Result
	*r = store.Result{Allowed: true, Source: core.SourceOpen}
	for _, c := range q.Charges {
		for range c.Limiter.Spec().Policies {
			r.Add(true, step.Reading{})
		}
	}
	return nil
}

func (f *fakeStore) settle(ctx context.Context, q *store.Question) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settles++
	for _, s := range q.Charges {
		f.settled = append(f.settled, s.Actual)
	}
	f.ctxErr = ctx.Err()
	_, f.timed = ctx.Deadline()
	if f.settleErr != nil {
		return f.settleErr
	}
	return f.Store.Ask(ctx, q)
}

// remaining is what the key has left.
func remaining(t *testing.T, l *core.Limiter, key string) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// want compares the header fields named in want, of which an empty value means that
// the field must be missing.
func wantHeader(t *testing.T, h http.Header, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := strings.Join(h.Values(name), " | "); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
}
