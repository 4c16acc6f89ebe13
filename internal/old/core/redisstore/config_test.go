package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
)

func TestFaultsOfAConfigAreReportedTogether(t *testing.T) {
	_, err := New(nil, Config{Timeout: time.Microsecond, Failure: 7, Servers: -1, Prefix: "a{b", SlotTTL: time.Millisecond, SlotTimeout: time.Second})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"the client is nil", "a Timeout of 1µs", "Failure 7", "-1 Servers: use 0 or more", "a Prefix", "a SlotTTL of 1ms",
		"a SlotTimeout of 1s"} {
		if !strings.Contains(err.Error(), "headgate: redisstore: "+want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestClientsThatAreNone(t *testing.T) {
	for want, client := range map[string]redis.UniversalClient{
		"the client is nil":                                         nil,
		"the client is a nil *redis.Client":                         (*redis.Client)(nil),
		"the client is a nil *redis.ClusterClient":                  (*redis.ClusterClient)(nil),
		"the client is a nil *redisstore.embedding":                 (*embedding)(nil),
		"a Ring loses state when its servers change: use a Cluster": redis.NewRing(&redis.RingOptions{}),
		"a Ring loses state":                                        embeddingRing{redis.NewRing(&redis.RingOptions{})},
		"a redisstore.embeddingCluster hides a ClusterClient: use the ClusterClient itself, and its AddHook": embeddingCluster{
			redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true}),
		},
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

// A deadlineCase is what the options say of deadlines, and what New refuses for it.
type deadlineCase struct {
	enabled     bool
	read, write time.Duration
	want        []string
}

const (
	notEnabled = "headgate: redisstore: the client ignores deadlines: " +
		"set ContextTimeoutEnabled: true in the options, or use redisstore.Open"
	notRead = "headgate: redisstore: the client ignores deadlines when it reads: " +
		"set a ReadTimeout of 0 or more in the options, or use redisstore.Open"
	notWritten = "headgate: redisstore: the client ignores deadlines when it writes: " +
		"set a WriteTimeout of 0 or more in the options, or use redisstore.Open"
)

// With a ReadTimeout or WriteTimeout below -1, go-redis sets no deadlines on its sockets. With
// -1 it sets those of contexts. A WriteTimeout of 0 is the ReadTimeout.
func deadlineCases() []deadlineCase {
	return []deadlineCase{
		{false, 0, 0, []string{notEnabled}},
		{false, time.Second, time.Second, []string{notEnabled}},
		{true, -2, time.Second, []string{notRead}},
		{true, time.Second, -2, []string{notWritten}},
		{true, -2, 0, []string{notRead, notWritten}},
		{true, -time.Second, time.Second, []string{notRead}},
		{false, -2, -2, []string{notEnabled, notRead, notWritten}},
		{true, 0, 0, nil},
		{true, -1, -1, nil},
		{true, time.Second, time.Hour, nil},
	}
}

// Wrappers: of a client whose options can be seen, and of one whose options cannot.
type (
	embedding        struct{ *redis.Client }
	embeddingCluster struct{ *redis.ClusterClient }
	embeddingRing    struct{ *redis.Ring }
	hiding           struct{ redis.UniversalClient }
)

func TestClientsThatIgnoreDeadlinesAreRefused(t *testing.T) {
	one, two := []string{"127.0.0.1:1"}, []string{"127.0.0.1:1", "127.0.0.1:2"}
	for name, of := range map[string]redis.UniversalOptions{
		"single":             {Addrs: one},
		"Cluster":            {Addrs: two},
		"Sentinel":           {Addrs: one, MasterName: "primary"},
		"Sentinel, replicas": {Addrs: one, MasterName: "primary", RouteRandomly: true},
	} {
		for _, c := range deadlineCases() {
			o := of
			o.MaxRetries = -1
			o.ContextTimeoutEnabled, o.ReadTimeout, o.WriteTimeout = c.enabled, c.read, c.write
			client := redis.NewUniversalClient(&o)
			defer client.Close()
			clients := []redis.UniversalClient{client}
			if own, ok := client.(*redis.Client); ok {
				clients = append(clients, embedding{own}, &embedding{own})
			}
			for _, client := range clients {
				s, err := New(client, Config{})
				if want := strings.Join(c.want, "\n"); want == "" && err != nil || want != "" && (err == nil || err.Error() != want || s != nil) {
					t.Errorf("%s, %T, %v %v %v: %v; want %q", name, client, c.enabled, c.read, c.write, err, want)
				}
			}
			if _, err := New(hiding{client}, Config{}); err != nil {
				t.Errorf("%s: options that cannot be seen: %v", name, err)
			}
			s, err := Open(&o, Config{}) // puts it right
			if err != nil {
				t.Errorf("%s: Open: %v", name, err)
				continue
			}
			defer s.Client().Close()
		}
	}
}

func TestWrappedClientsDecide(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	for _, wrapper := range []redis.UniversalClient{embedding{client}, hiding{client}} {
		s, err := New(wrapper, Config{Failure: FailClosed, Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		l := newLimiter(t, s, fmt.Sprintf("%T", wrapper), core.FixedWindow(per(5, 400*day)))
		if n := admitted(t, l, "k", 8); n != 5 {
			t.Errorf("%T: %d of 5 admitted", wrapper, n)
		}
	}
}

func TestOpenMakesAClientThatRespectsDeadlines(t *testing.T) {
	given := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: time.Hour, MaxRetries: -1, PoolSize: 7}
	s, err := Open(&given, Config{Timeout: 70 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Client().Close()
	o := s.Client().(*redis.Client).Options()
	if !o.ContextTimeoutEnabled || o.ReadTimeout != time.Hour || o.WriteTimeout != 70*time.Millisecond || o.MaxRetries != 0 || o.PoolSize != 7 {
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
	if !cluster.backend.isCluster() {
		t.Error("two addresses are not a Cluster")
	}
	for _, test := range []struct {
		config            Config
		read, write, dial time.Duration
	}{
		{Config{}, 2 * time.Second, 100 * time.Millisecond, 2 * time.Second}, // slots wait for longer
		{Config{SlotTTL: 3 * time.Second}, time.Second, 100 * time.Millisecond, time.Second},
		{Config{Timeout: 3 * time.Second}, 3 * time.Second, 3 * time.Second, 3 * time.Second},
		{Config{Timeout: 10 * time.Second}, 10 * time.Second, 10 * time.Second, 10 * time.Second},
		{Config{SlotTimeout: 5 * time.Second}, 5 * time.Second, 100 * time.Millisecond, 5 * time.Second},
	} {
		s, err := Open(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}}, test.config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Client().Close()
		if o := s.Client().(*redis.Client).Options(); o.ReadTimeout != test.read || o.WriteTimeout != test.write || o.DialTimeout != test.dial {
			t.Errorf("%v, %v, %v: timeouts of %v, %v, %v",
				test.config.Timeout, test.config.SlotTimeout, test.config.SlotTTL, o.ReadTimeout, o.WriteTimeout, o.DialTimeout)
		}
	}
}

func TestOpenURL(t *testing.T) {
	for url, want := range map[string]redis.Options{
		"redis://localhost":                         {Addr: "localhost:6379", ReadTimeout: 2 * time.Second, MaxRetries: -1},
		"redis://anna:p%40ss@10.0.0.1:6380/3":       {Addr: "10.0.0.1:6380", Username: "anna", Password: "p@ss", DB: 3, ReadTimeout: 2 * time.Second, MaxRetries: -1},
		"redis://h:1/0?read_timeout=7s&pool_size=7": {Addr: "h:1", ReadTimeout: 7 * time.Second, MaxRetries: -1, PoolSize: 7},
		"unix:///run/redis.sock?db=4":               {Addr: "/run/redis.sock", DB: 4, ReadTimeout: 2 * time.Second, MaxRetries: -1},
		"rediss://h:1":                              {Addr: "h:1", ReadTimeout: 2 * time.Second, MaxRetries: -1},
	} {
		s, err := OpenURL(url, Config{})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		defer s.Client().Close()
		o := s.Client().(*redis.Client).Options()
		// go-redis makes 0 of -1 retries.
		if want.MaxRetries = max(want.MaxRetries, 0); o.Addr != want.Addr || o.Username != want.Username || o.Password != want.Password || o.DB != want.DB ||
			o.ReadTimeout != want.ReadTimeout || want.PoolSize > 0 && o.PoolSize != want.PoolSize || o.MaxRetries != want.MaxRetries || o.WriteTimeout != 100*time.Millisecond ||
			!o.ContextTimeoutEnabled || (o.TLSConfig != nil) != strings.HasPrefix(url, "rediss") {
			t.Errorf("%s: %+v", url, o)
		}
	}
}

func TestOpenURLRefusesWithoutTheURL(t *testing.T) {
	const secret = "geheim"
	for _, url := range []string{
		"", "localhost:6379", "http://geheim@localhost", "redis://:geheim@localhost:port/0", "redis://:gehe im/geheim@localhost/0",
		"redis://:1/geheim@localhost/0", "redis://:1?geheim@localhost/0", "redis://localhost/geheim", "redis://localhost/0?geheim=1",
		"redis://localhost/0?db=geheim", "redis://u:geheim@%zz/0", "redis://u:geheim%@localhost/0", "geheim://localhost", "unix://geheim",
	} {
		s, err := OpenURL(url, Config{})
		if err == nil {
			s.Client().Close()
			t.Errorf("%q: no error", url)
		} else if !strings.HasPrefix(err.Error(), "headgate: redisstore: the URL") || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := OpenURL("redis://localhost", Config{Timeout: -1}); err == nil || strings.Contains(err.Error(), "URL") {
		t.Errorf("a wrong Timeout: %v", err)
	}
}

// A refused connection is known at once, and is the reason that is told: nothing dials, or
// asks a Sentinel, more than once for a decision.
func TestRefusedConnectionIsNotRepeated(t *testing.T) {
	for name, o := range map[string]redis.UniversalOptions{
		"single":   {Addrs: []string{"127.0.0.1:1"}},
		"Sentinel": {Addrs: []string{"127.0.0.1:1"}, MasterName: "primary"},
		"Cluster":  {Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := int64(len(o.Addrs)) // each is dialed once
			var dials atomic.Int64
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			s := openWith(t, Config{Failure: FailClosed}, &o)
			l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(10)))
			for i := range int64(maxFailures) {
				if s.State().Away {
					t.Errorf("away after %d decisions", i)
				}
				_, err := l.Allow(t.Context(), "k")
				// After the last, a probe dials too.
				if n := dials.Load(); n != nodes*(i+1) && i+1 < maxFailures || !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("decision %d: %d dials in all: %v", i, n, err)
				}
			}
			if st := s.State(); !st.Away || !errors.Is(st.Reason, syscall.ECONNREFUSED) {
				t.Errorf("%+v", st)
			}
		})
	}
}

// Away in all of these: what is decided then is a matter of the Config alone.
func away(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true}), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client().Close() })
	l := newLimiter(t, s, "away", core.FixedWindow(core.PerDay(1)))
	for !s.State().Away {
		_ = asking.Decide(t.Context(), s.limits, store.Allow, new(store.Result), store.Charge{Limiter: l.Prepared(), Key: "k", N: 1})
	}
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

// While Redis is away: of extra units a share is granted, or none.
func TestFailuresGrantExtra(t *testing.T) {
	for _, test := range []struct {
		config         Config
		n, extra, want int64
	}{
		{Config{}, 10, 20, 20},
		{Config{}, 10, 200, 90},
		{Config{Servers: 4}, 10, 20, 15},
		{Config{Servers: 4}, 60, 20, 0}, // of which the whole share is charged
		{Config{Failure: FailOpen}, 10, 20, 0},
	} {
		s := away(t, test.config)
		l := newLimiter(t, s, "api", core.FixedWindow(per(100, 400*day)))
		c := store.Charge{Limiter: l.Prepared(), Key: "k", N: test.n}
		r, err := asking.Ask(t.Context(), s, &store.Question{Charges: []store.Charge{c}, Extra: test.extra})
		if err != nil || !r.Allowed || r.Extra != test.want {
			t.Errorf("%+v: allowed %t with %d extra: %v", test, r.Allowed, r.Extra, err)
		}
		for _, q := range []*store.Question{
			{Charges: []store.Charge{c, {Limiter: l.Prepared(), Key: "j", N: 1}}, Extra: 1},
			{Mode: store.Settle, Charges: []store.Charge{asking.Settled(c, &r, 0)}, Extra: 1},
		} {
			if _, err := asking.Ask(t.Context(), s, q); !errors.Is(err, store.ErrExtra) || errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%+v: to %v with an Extra: %v", test, q.Mode, err)
			}
		}
		c.N += r.Extra
		if err := asking.Settle(t.Context(), s, asking.Settled(c, &r, 0)); err != nil {
			t.Error(err)
		}
		whole := 100 / max(int64(test.config.Servers), 1)
		if d, err := l.Peek(t.Context(), "k"); err != nil || d.Remaining != whole {
			t.Errorf("%+v: %d left when all is given back, want %d: %v", test, d.Remaining, whole, err)
		}
	}
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
		"no scripts":       {lines: []string{"rename-command EVAL noeval"}, want: "cannot make decisions"},
		"read-only":        {lines: []string{"replicaof 127.0.0.1 1"}, want: "cannot make decisions"},
		"no replica":       {lines: []string{"min-replicas-to-write 1"}, want: "cannot make decisions"},
		"no memory at all": {lines: []string{"maxmemory 1", "maxmemory-policy noeviction"}, want: "cannot make decisions"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, c.lines...)
			got := check(t, open(t, Config{}, server.Addr()))
			if !strings.Contains(got, c.want) || c.want == "" && strings.Contains(got, "problem") {
				t.Errorf("want %q, got %s", c.want, got)
			}
			left, err := server.Do("KEYS", "*")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range left.([]any) { // those of a trial, for seconds, and the fleet's clock
				if strings.HasSuffix(name.(string), ":servers") {
					continue
				}
				if ttl, err := server.Do("PTTL", name.(string)); err != nil || ttl == int64(-1) || ttl.(int64) > 10_000 {
					t.Errorf("%s is left for %v ms, %v", name, ttl, err)
				}
			}
		})
	}
	for name, assign := range map[string]bool{"one node of a Cluster": false, "the only node of a Cluster": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, "cluster-enabled yes", "cluster-require-full-coverage no")
			if assign {
				words := []string{"CLUSTER", "ADDSLOTS"} // ADDSLOTSRANGE is not in Redis 6.2
				for i := range rediskey.HashSlots {
					words = append(words, strconv.Itoa(i))
				}
				if _, err := server.Do(words...); err != nil {
					t.Fatal(err)
				}
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
}

// A command that was renamed is missing for everybody: Check says which, once, and goes on.
func TestCheckWithoutACommand(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"INFO": {"does not say how it is configured"},
		"TIME": {
			"does not tell the time", "cannot make decisions: commands are missing, or not permitted: TIME",
		},
		"PEXPIRE": {"cannot make decisions: commands are missing, or not permitted: PEXPIRE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			if name != "INFO" { // which tests need
				lines = append(lines, "rename-command "+name+` ""`)
			}
			s := open(t, Config{}, redistest.Start(t, lines...).Addr())
			s.Client().AddHook(&failing{func(words []any) bool { return fmt.Sprint(words[0]) == "info" && name == "INFO" },
				replyError("ERR unknown command 'INFO', with args beginning with: ")})
			r, err := s.Check(t.Context())
			if err != nil || len(r.Problems) != len(want) || len(r.Servers) != 1 {
				t.Fatalf("%v: %v", err, r)
			}
			for i, problem := range r.Problems {
				if !strings.Contains(problem, want[i]) || strings.Contains(problem, "\n") {
					t.Errorf("%q, want %q", problem, want[i])
				}
			}
			if name == "INFO" && !strings.Contains(r.String(), "Redis of an unknown version") {
				t.Error(r)
			}
		})
	}
}

// What speaks the protocol of Redis calls itself by another version, and has its own.
func TestWhatServersCallThemselves(t *testing.T) {
	for info, want := range map[string]string{
		"redis_version:7.0.15\r\n": "Redis 7.0.15",
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n":  "valkey 9.1.2",
		"redis_version:7.2.4\r\nserver_name:another\r\nvalkey_version:9.1.2\r\n": "another 7.2.4",
		"": "Redis ",
	} {
		if r := serverReport(info, nil); r.Name+" "+r.Version != want {
			t.Errorf("%q is %s %s, want %s", info, r.Name, r.Version, want)
		}
	}
}

func TestCheckOfASlowRedis(t *testing.T) {
	notShort(t)
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	proxy.Delay(310 * time.Millisecond)
	r, err := open(t, Config{Timeout: 1200 * time.Millisecond}, proxy.Addr()).Check(t.Context())
	if err != nil || r.OK() || !strings.Contains(r.String(), "more than a quarter of the Timeout") {
		t.Errorf("%v: %v", err, r)
	}
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
