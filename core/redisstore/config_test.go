package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
)

func TestFaultsOfAConfigAreReportedTogether(t *testing.T) {
	_, err := New(nil, Config{Timeout: time.Microsecond, Failure: 7, Servers: -1, Prefix: "a{b", SlotTTL: time.Millisecond})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"the client is nil", "a Timeout of 1µs", "Failure 7", "-1 Servers: use 0 or more", "a Prefix", "a SlotTTL of 1ms"} {
		if !strings.Contains(err.Error(), "headgate: redisstore: "+want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestClientsThatAreNone(t *testing.T) {
	for want, client := range map[string]redis.UniversalClient{
		"the client is nil":                        nil,
		"the client is a nil *redis.Client":        (*redis.Client)(nil),
		"the client is a nil *redis.ClusterClient": (*redis.ClusterClient)(nil),
		"a Ring loses state":                       redis.NewRing(&redis.RingOptions{}),
	} {
		if _, err := New(client, Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := Open(nil, Config{}); err == nil {
		t.Error("no options: no error")
	}
	if _, err := Open(&redis.UniversalOptions{}, Config{Servers: -1}); err == nil {
		t.Error("a wrong Config: no error")
	}
}

// With a ReadTimeout or WriteTimeout of -2, go-redis sets no deadlines on its sockets.
func TestClientsWithoutSocketDeadlines(t *testing.T) {
	for _, never := range []redis.UniversalOptions{
		{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: -2},
		{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: time.Second, WriteTimeout: -2},
		{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: -2},
		{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: time.Second, WriteTimeout: -2},
		{Addrs: []string{"127.0.0.1:1"}, MasterName: "primary", ReadTimeout: -2},
		{Addrs: []string{"127.0.0.1:1"}, MasterName: "primary", ReadTimeout: time.Second, WriteTimeout: -2},
	} {
		never.ContextTimeoutEnabled = true
		s, err := New(redis.NewUniversalClient(&never), Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Client().Close()
		if s.direct {
			t.Errorf("a client with %v, %v is taken to respect deadlines", never.ReadTimeout, never.WriteTimeout)
		}
		if s, err = Open(&never, Config{}); err != nil {
			t.Fatal(err)
		}
		defer s.Client().Close()
		if !s.direct {
			t.Errorf("Open keeps %v, %v", never.ReadTimeout, never.WriteTimeout)
		}
	}
}

// A decision by such a client ends when the server is frozen.
func TestFrozenServerWithoutSocketDeadlines(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, ReadTimeout: -2})
	defer client.Close()
	s, err := New(client, Config{Failure: FailOpen})
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
	server.Pause()
	defer server.Resume()
	if d := allow(t, l, "k", 1); d.Source != core.SourceOpen {
		t.Error(describe(&d))
	}
}

func TestOpenMakesAClientThatRespectsDeadlines(t *testing.T) {
	given := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: time.Hour}
	s, err := Open(&given, Config{Timeout: 70 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Client().Close()
	o := s.Client().(*redis.Client).Options()
	if !o.ContextTimeoutEnabled || !s.direct || o.ReadTimeout != time.Hour || o.WriteTimeout != 70*time.Millisecond {
		t.Errorf("%+v", o)
	}
	if given.ContextTimeoutEnabled || given.WriteTimeout != 0 {
		t.Error("the caller's options were changed")
	}

	cluster, err := Open(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Client().Close()
	if !cluster.cluster || !cluster.direct {
		t.Error("two addresses are not a Cluster")
	}
}

// Away in all of these: what is decided then is a matter of the Config alone.
func away(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client().Close() })
	s.queues.first.breaker.open.Store(true)
	return s
}

func TestFailLocalDividesTheLimits(t *testing.T) {
	for servers, want := range map[int]int64{0: 100, 1: 100, 4: 25, 3: 34, 1000: 1} {
		s := away(t, Config{Servers: servers})
		for name, p := range everyAlgorithm(100) {
			l := newLimiter(t, s, name, p)
			if n := admitted(t, l, "k", 200); n != want {
				t.Errorf("%d servers, %s: %d of 100 admitted, want %d", servers, name, n, want)
			}
			d := allow(t, l, "a large charge", 60)
			if !d.Allowed || d.Source != core.SourceLocal {
				t.Errorf("%d servers, %s: %s", servers, name, describe(&d))
			}
			if d = allow(t, l, "a large charge", 100); d.Allowed || d.RetryAfter == core.Never {
				t.Errorf("%d servers, %s: %s", servers, name, describe(&d))
			}
		}
	}
}

func TestFailLocalSettles(t *testing.T) {
	s := away(t, Config{Servers: 4})
	l := newLimiter(t, s, "api", core.FixedWindow(per(100, 400*day)))
	left := func(want int64) {
		t.Helper()
		if d, err := l.Peek(t.Context(), "k"); err != nil || d.Remaining != want {
			t.Errorf("%d left, want %d: %v", d.Remaining, want, err)
		}
	}
	settle := func(n, actual, uncovered int64) {
		t.Helper()
		d := allow(t, l, "k", n)
		if got, err := d.Settle(context.Background(), actual); err != nil || got != uncovered {
			t.Errorf("%d settled to %d: %d uncovered, want %d: %v", n, actual, got, uncovered, err)
		}
	}
	settle(10, 4, 0)
	left(21)
	settle(5, 8, 0)
	left(13)
	settle(5, 0, 0)
	left(13)
	settle(10, 15, 2)
	left(0)
	if err := l.Reset(context.Background(), "k"); err == nil {
		t.Error("the reset did not reach Redis, and says nothing")
	}
	left(25)
	settle(60, 30, 0) // a share of 25 was charged, and less than it was used
	left(0)
	l.Reset(context.Background(), "k")
	settle(60, 10, 0)
	left(15)
	l.Reset(context.Background(), "k")
	settle(60, 70, 10)
	left(0)
}

// While Redis is away: several limiters together, all or nothing.
func TestFailuresDecideTogether(t *testing.T) {
	ask := func(s *Store) (core.Decision, error) {
		a := newLimiter(t, s, "a", core.FixedWindow(per(1, 400*day)).Named("x"), core.TokenBucket(core.PerDay(1), 5).Named("y"))
		b := newLimiter(t, s, "b", core.SlidingLog(core.PerHour(100)))
		return core.AllowAll(t.Context(), core.Charge{Limiter: a, Key: "k", N: 1}, core.Charge{Limiter: b, Key: "j", N: 1})
	}
	local := away(t, Config{})
	for _, want := range []bool{true, false} {
		if d, err := ask(local); err != nil || d.Allowed != want || d.Source != core.SourceLocal || d.Len() != 3 {
			t.Errorf("FailLocal: %v: %s", err, describe(&d))
		}
	}
	open := away(t, Config{Failure: FailOpen})
	for range 2 {
		d, err := ask(open)
		if err != nil || !d.Allowed || d.Source != core.SourceOpen || d.Len() != 3 || d.Answer(2).Remaining != 100 {
			t.Errorf("FailOpen: %v: %s", err, describe(&d))
		}
		if err := d.Refund(t.Context()); err != nil {
			t.Errorf("FailOpen: refund: %v", err)
		}
	}
	closed := away(t, Config{Failure: FailClosed})
	if d, err := ask(closed); !errors.Is(err, core.ErrUnavailable) || d.Allowed {
		t.Errorf("FailClosed: %v: %s", err, describe(&d))
	}
}

// What Redis cannot keep for FailLocal is a fault of the limiter, found when it is made.
func TestFailLocalMustBeAbleTo(t *testing.T) {
	s := away(t, Config{Servers: 1_000_000})
	_, err := core.New(s, "api", core.MinInterval(3650*day))
	var fault *core.ConfigError
	if !errors.As(err, &fault) {
		t.Errorf("%v", err)
	}
	if _, err := core.New(away(t, Config{Servers: 1_000_000, Failure: FailOpen}), "api", core.MinInterval(3650*day)); err != nil {
		t.Errorf("FailOpen keeps nothing: %v", err)
	}
}

func TestCheck(t *testing.T) {
	check := func(t *testing.T, s *Store) string {
		t.Helper()
		r, err := s.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Servers) != 1 || r.Servers[0].Version == "" || r.Servers[0].RoundTrip <= 0 || r.Servers[0].Address == "" ||
			r.Servers[0].Offset.Abs() > time.Minute || r.OK() != (len(r.Problems) == 0) {
			t.Errorf("%+v", r)
		}
		return r.String()
	}
	for name, c := range map[string]struct {
		lines []string
		want  string // a problem; none if empty
	}{
		"good":             {want: ""},
		"bounded":          {lines: []string{"maxmemory 50mb", "maxmemory-policy noeviction"}, want: ""},
		"evicts":           {lines: []string{"maxmemory 50mb", "maxmemory-policy allkeys-lru"}, want: "allkeys-lru"},
		"evicts expiring":  {lines: []string{"maxmemory 50mb", "maxmemory-policy volatile-ttl"}, want: "volatile-ttl"},
		"no memory bound":  {lines: []string{"maxmemory-policy allkeys-lru"}, want: ""},
		"no scripts":       {lines: []string{"rename-command EVAL noeval"}, want: "does not run the scripts"},
		"read-only":        {lines: []string{"replicaof 127.0.0.1 1"}, want: "does not accept writes"},
		"no memory at all": {lines: []string{"maxmemory 1", "maxmemory-policy noeviction"}, want: "does not accept writes"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, c.lines...)
			got := check(t, open(t, Config{}, server.Addr()))
			if !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "problem") {
				t.Errorf("want %q, got %s", c.want, got)
			}
			if n := keys(t, server); n > 1 {
				t.Errorf("%d keys are left", n)
			}
		})
	}
	t.Run("does not heed deadlines", func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()})
		defer client.Close()
		s, err := New(client, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got := check(t, s); !strings.Contains(got, "ContextTimeoutEnabled") {
			t.Error(got)
		}
	})
	for name, assign := range map[string]bool{"one node of a Cluster": false, "the only node of a Cluster": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, "cluster-enabled yes", "cluster-require-full-coverage no")
			if assign {
				server.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
				eventually(t, "the Cluster to be ready", func() bool {
					info, _ := server.Do("CLUSTER", "INFO")
					return strings.Contains(info.(string), "cluster_state:ok")
				})
			}
			if got := check(t, open(t, Config{}, server.Addr())); !strings.Contains(got, "the client is not for one") {
				t.Error(got)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		r, err := open(t, Config{}, "127.0.0.1:1").Check(t.Context())
		if err == nil || r == nil {
			t.Errorf("%v, %v", r, err)
		}
	})
	t.Run("slow", func(t *testing.T) {
		proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
		proxy.Delay(130 * time.Millisecond)
		if got := check(t, open(t, Config{Timeout: 500 * time.Millisecond}, proxy.Addr())); !strings.Contains(got, "more than a quarter of the Timeout") {
			t.Error(got)
		}
	})
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"5.0.14": true, "6.0.20": true, "6.1": true, "6.2.0": false, "6.10": false, "7.0.15": false, "8.0.0": false, "255.255.255": false, "": false, "next": false,
	} {
		if got := unsupported(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}
