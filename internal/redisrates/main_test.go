package redisrates

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/internal/step"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // tests break connections on purpose
	proctest.Main(m, proctest.Funcs{"asker": asker, "hammer": hammer})
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// patient is a Timeout for tests in which Redis is always there: on a busy machine an answer may take long.
const patient = 20 * time.Second

// open makes a store with a client of its own. Its Timeout is patient if the Config has none.
func open(t testing.TB, c Config, addrs ...string) *Decider {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = patient
	}
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addrs, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute, // the store's Timeout counts
	})
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(client, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// limiter prepares policies.
func (d *Decider) limiter(t testing.TB, name string, all ...step.Numbers) []step.Policy {
	t.Helper()
	var ps []step.Policy
	for _, m := range all {
		p, err := step.New(name, name, m)
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	if err := d.Prepare(ps); err != nil {
		t.Fatal(err)
	}
	return ps
}

// cell returns one of n units.
func cell(p *step.Policy, key string, n int64) (c step.Cell) {
	c.Set(p, key, step.Hash(key), n)
	return c
}

// cells returns one for each policy.
func cells(ps []step.Policy, key string, n int64) (all []step.Cell) {
	for i := range ps {
		all = append(all, cell(&ps[i], key, n))
	}
	return all
}

// charge charges n units, and must get an answer.
func (d *Decider) charge(t testing.TB, p *step.Policy, key string, n int64) step.Cell {
	t.Helper()
	c := []step.Cell{cell(p, key, n)}
	if _, err := d.Ask(t.Context(), step.Allow, c); err != nil {
		t.Fatal(err)
	}
	return c[0]
}

func bucket(limit int64, per time.Duration) step.Numbers {
	m := step.Numbers{Kind: step.TokenBucket, Limit: limit, Burst: limit, Period: per.Microseconds()}
	m.Debt = m.DefaultDebt()
	return m
}

func fixed(limit int64, per time.Duration) step.Numbers {
	return step.Numbers{Kind: step.FixedWindow, Limit: limit, Period: per.Microseconds()}
}

func sliding(limit int64, per time.Duration) step.Numbers {
	return step.Numbers{Kind: step.SlidingWindow, Limit: limit, Period: per.Microseconds(), Resolution: 10}
}

func logOf(limit int64, per time.Duration) step.Numbers {
	return step.Numbers{Kind: step.SlidingLog, Limit: limit, Period: per.Microseconds()}
}

func interval(per time.Duration) step.Numbers {
	return step.Numbers{Kind: step.MinInterval, Period: per.Microseconds()}
}

// TestServerVersion: the server is that of which HEADGATE_REDIS_VERSION has the version, if it is set.
func TestServerVersion(t *testing.T) {
	want := os.Getenv("HEADGATE_REDIS_VERSION")
	if want == "" {
		return
	}
	info := redistest.Start(t).Info("server")
	if got := info["valkey_version"] + info["redis_version"]; info["valkey_version"] != want && got != want {
		t.Errorf("the server is %s, want %s", got, want)
	}
}
