package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/remote"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // tests break connections on purpose
	proctest.Main(m, proctest.Funcs{"hammer": hammer})
}

// TestServerVersion: the server is that of which HEADGATE_REDIS_VERSION has the version, if it is set.
func TestServerVersion(t *testing.T) {
	want := os.Getenv("HEADGATE_REDIS_VERSION")
	if want == "" {
		return
	}
	reply, err := redistest.Start(t).Do("INFO", "server")
	if err != nil {
		t.Fatal(err)
	}
	info := reply.(string)
	if got := cmp.Or(infoField(info, "valkey_version"), infoField(info, "redis_version")); got != want {
		t.Errorf("the server is %s, want %s", got, want)
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// patient is a Timeout for tests in which Redis is always there: on a busy machine
// an answer may take long.
const patient = 20 * time.Second

// open makes a store with a client of its own. Its Timeout is patient if the
// Config has none.
func open(t testing.TB, c Config, addrs ...string) *Store {
	t.Helper()
	return openWith(t, c, &redis.UniversalOptions{Addrs: addrs})
}

func openWith(t testing.TB, c Config, o *redis.UniversalOptions) *Store {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = patient
	}
	s, err := Open(o, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Client().Close() })
	return s
}

func newLimiter(t testing.TB, s core.Store, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(s, name, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func with(t testing.TB, l *core.Limiter, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := l.With(policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// cell is the name of the first state of a limiter's key.
func (s *Store) cell(t testing.TB, l *core.Limiter, key string) string {
	t.Helper()
	return s.backend.values(nil, &store.Charge{Limiter: l.Prepared(), Key: key})[0]
}

// ask sends questions in one call.
func (s *Store) ask(t testing.TB, batch []*question) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	_, _ = s.backend.Ask(ctx, batch)
}

// As in package remote.
const (
	maxFailures   = remote.MaxFailures
	maxInFlight   = remote.MaxInFlight
	minProbePause = remote.MinProbePause
	maxProbePause = remote.MaxProbePause
)

// allow asks for n units and must get an answer.
func allow(t testing.TB, l *core.Limiter, key string, n int64) core.Decision {
	t.Helper()
	d, err := l.AllowN(t.Context(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// admitted asks so many times, one after the other, and counts.
func admitted(t testing.TB, l *core.Limiter, key string, times int) (n int64) {
	t.Helper()
	for range times {
		if allow(t, l, key, 1).Allowed {
			n++
		}
	}
	return n
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		<-time.After(pause)
	}
}

// describe tells everything that a decision says.
func describe(d *core.Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v %q limit %d, remaining %d, reset %v, retry %v",
		d.Allowed, d.Source, d.Policy, d.Limit, d.Remaining, d.ResetAfter, d.RetryAfter)
	for i := range d.Len() {
		fmt.Fprintf(&b, "\n   %+v", d.Answer(i))
	}
	return b.String()
}

// every algorithm, with numbers that admit n units in a minute.
func everyAlgorithm(n int64) map[string]core.Policy {
	return map[string]core.Policy{
		"TokenBucket":   core.TokenBucket(core.Rate{Events: 1, Per: time.Minute}, n),
		"FixedWindow":   core.FixedWindow(core.Rate{Events: n, Per: 400 * 24 * time.Hour}),
		"SlidingWindow": core.SlidingWindow(core.Rate{Events: n, Per: time.Hour}),
		"SlidingLog":    core.SlidingLog(core.Rate{Events: n, Per: time.Minute}),
	}
}

// keys counts the keys on a server.
func keys(t testing.TB, server *redistest.Server) int64 {
	t.Helper()
	n, err := server.Do("DBSIZE")
	if err != nil {
		t.Fatal(err)
	}
	return n.(int64)
}
