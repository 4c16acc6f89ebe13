package nethttp_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	m.Run()
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// client is a key that clients choose.
var client = keyfuncs.Header("X-Client")

func minute(n int64) core.Policy { return core.SlidingLog(n, time.Minute) }

func hour(n int64) core.Policy { return core.FixedWindow(n, time.Hour) }

// memory returns a limiter with a store of its own.
func memory(name string, policies ...core.Policy) *core.Limiter {
	return core.NewLimiter(new(core.MemoryStore), name, policies...)
}

// away returns a store whose Redis cannot be reached.
func away(t *testing.T, failure redisstore.Failure) core.Store {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED },
	})
	t.Cleanup(func() { c.Close() })
	s, err := redisstore.New(c, redisstore.Config{Failure: failure})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rates(rates ...nethttp.Rate) nethttp.Config { return nethttp.Config{Rates: rates} }

func rate(l *core.Limiter) nethttp.Rate { return nethttp.Rate{Limiter: l, Key: client} }

// costs is a Cost that is always n.
func costs(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }

func guardOf(t testing.TB, c nethttp.Config) *nethttp.Guard {
	t.Helper()
	g, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// request returns one of anna, with fields: names and values in turn.
func request(method, target string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Header.Set("X-Client", "anna")
	for i := 1; i < len(fields); i += 2 {
		r.Header.Set(fields[i-1], fields[i])
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

// left returns what a key has left.
func left(t *testing.T, l *core.Limiter, key string) int64 {
	t.Helper()
	d, err := l.Peek(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Remaining
}

// held returns how many slots a key holds.
func held(t *testing.T, s *core.Slots, key string) int64 {
	t.Helper()
	n, err := s.Count(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// wantFields compares fields, of which those that are to be missing are "".
func wantFields(t *testing.T, h http.Header, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := strings.Join(h.Values(name), " | "); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
}
