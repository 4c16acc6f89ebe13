package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

func open(t *testing.T, address string, c redisstore.Config) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open("redis://"+address+"/0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// Two servers share what a key may use, and the slots that it holds; who closes frees its slots at once.
func TestServersShare(t *testing.T) {
	server, ctx := redistest.Start(t), t.Context()
	one, two := open(t, server.Addr(), redisstore.Config{}), open(t, server.Addr(), redisstore.Config{})
	admitted := 0
	for i := range 10 {
		s := []*redisstore.Store{one, two}[i%2]
		d, err := core.NewLimiter(s, "api", core.SlidingLog(5, time.Hour)).Allow(ctx, "anna")
		if err != nil || d.Degraded {
			t.Fatal(d, err)
		}
		if d.Allowed {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d are admitted", admitted)
	}
	slots := core.NewSlots(one, "ws", 1)
	if _, err := slots.Acquire(ctx, "anna"); err != nil {
		t.Fatal(err)
	}
	others := core.NewSlots(two, "ws", 1)
	if _, err := others.Acquire(ctx, "anna"); !errors.Is(err, core.ErrFull) {
		t.Error(err)
	}
	if n, err := others.Count(ctx, "anna"); n != 1 || err != nil {
		t.Error(n, err)
	}
	if err := one.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := slots.Acquire(ctx, "bob"); !errors.Is(err, core.ErrClosed) {
		t.Errorf("after a Close: %v", err)
	}
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second) // less than a SlotTTL
	defer cancel()
	if _, err := others.Wait(waiting, "anna", 1); err != nil {
		t.Error(err)
	}
	if err := one.Client().Ping(ctx).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the client that Open made is not closed: %v", err)
	}
	if err := one.Close(ctx); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if err := two.Check(ctx); err != nil && !strings.Contains(err.Error(), "maxmemory") {
		t.Error(err)
	}
}

// Leases decide in memory, observed or not, and a Close gives back what was not used.
func TestLease(t *testing.T) {
	server, ctx := redistest.Start(t), t.Context()
	sources := make(map[string]int)
	o := &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) { sources[e.Source]++ }}
	limit := core.FixedWindow(1_000_000, 24*time.Hour)
	const n = 3000
	for i, observers := range [][]*core.Observer{{o}, nil} {
		leasing := open(t, server.Addr(), redisstore.Config{Lease: time.Second, Observers: observers})
		l := core.NewLimiter(leasing, "hot", limit)
		var last core.Decision
		for range n {
			var err error
			if last, err = l.Allow(ctx, "everyone"); err != nil || !last.Allowed {
				t.Fatal(last, err)
			}
		}
		if sources["lease"] < n*9/10 {
			t.Errorf("by source: %v", sources)
		}
		if err := last.Refund(ctx); err != nil {
			t.Error(err)
		}
		if err := leasing.Close(ctx); err != nil {
			t.Fatal(err)
		}
		d, err := core.NewLimiter(open(t, server.Addr(), redisstore.Config{}), "hot", limit).Peek(ctx, "everyone")
		if used := 1_000_000 - d.Remaining; err != nil || used != int64(i+1)*(n-1) {
			t.Error(used, err)
		}
	}
}

// While Redis is away, Failure decides, and Away says why.
func TestAway(t *testing.T) {
	for failure, want := range map[redisstore.Failure]string{
		redisstore.FailLocal: "true true local", redisstore.FailOpen: "true true open", redisstore.FailClosed: "false false closed",
	} {
		t.Run(failure.String(), func(t *testing.T) {
			server, ctx := redistest.Start(t), t.Context()
			changed := make(chan error, 100)
			s := open(t, server.Addr(), redisstore.Config{Failure: failure, Observers: []*core.Observer{{Changed: func(err error) { changed <- err }}}})
			l := core.NewLimiter(s, "api", core.SlidingLog(5, time.Hour))
			if _, err := l.Allow(ctx, "anna"); err != nil || s.Away() != nil {
				t.Fatal(err, s.Away())
			}
			server.Kill()
			d, err := l.Allow(ctx, "anna")
			for range 20 { // until the store takes the server for away
				if s.Away() != nil {
					break
				}
				d, err = l.Allow(ctx, "anna")
			}
			if got := fmt.Sprint(d.Allowed, d.Degraded, " ", failure); got != want || errors.Is(err, core.ErrUnavailable) != (failure == redisstore.FailClosed) {
				t.Errorf("%s: %s, %v", failure, got, err)
			}
			if s.Away() == nil || <-changed == nil {
				t.Error("nobody says that Redis is away")
			}
		})
	}
}

func TestFaults(t *testing.T) {
	const secret = "canary-of-32-bytes-or-more-is-a-key"
	_, err := redisstore.Open("redis://user:"+secret+"@localhost:6379/x", redisstore.Config{})
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
	_, err = redisstore.Open("redis://localhost", redisstore.Config{Timeout: time.Microsecond, SlotTTL: time.Millisecond, Servers: -1, Secret: []byte("short")})
	for _, want := range []string{"Timeout", "SlotTTL", "Servers", "Secret"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
	for _, life := range []time.Duration{time.Microsecond, -time.Second, time.Hour} {
		if _, err := redisstore.Open("redis://localhost", redisstore.Config{Lease: life, Servers: -1}); err == nil || !strings.Contains(err.Error(), "Lease") || !strings.Contains(err.Error(), "Servers") {
			t.Errorf("a Lease of %v: %v", life, err)
		}
	}
	s, err := redisstore.Open("redis://localhost", redisstore.Config{})
	if err != nil || !errors.Is(s.Check(nil), core.ErrInvalid) || !errors.Is(s.Close(nil), core.ErrInvalid) { //nolint:staticcheck // nil is wrong
		t.Error(err)
	}
	_ = s.Close(t.Context())
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	if _, err := redisstore.New(client, redisstore.Config{}); err == nil || !strings.Contains(err.Error(), "ContextTimeoutEnabled") {
		t.Error(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%x"} {
		if s := fmt.Sprintf(verb, redisstore.Config{Secret: []byte(secret)}); strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) {
			t.Error(s)
		}
	}
}

// Open takes the URLs of a Cluster and of Sentinels.
func TestOpen(t *testing.T) {
	cluster, sentinel := redistest.StartCluster(t, 3, 0).Masters.Addrs(), redistest.StartSentinel(t).Addrs()
	for _, url := range []string{
		"redis://" + cluster[0] + "?addr=" + cluster[0], // one address
		"redis://" + cluster[0] + "?addr=" + cluster[1],
		"redis://" + sentinel[0] + "/3?addr=" + sentinel[1] + "&master_name=" + redistest.MasterName,
	} {
		s, err := redisstore.Open(url, redisstore.Config{Timeout: 20 * time.Second, SlotTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		limiter, slots := core.NewLimiter(s, "api", core.SlidingLog(1, time.Hour)), core.NewSlots(s, "ws", 1)
		for i := range 30 { // on all masters
			key := fmt.Sprint(url, i)
			d, err := limiter.Allow(t.Context(), key)
			if err != nil || d.Degraded || !d.Allowed {
				t.Error(d, err)
			}
			if _, err := slots.Acquire(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(s.Check(t.Context()), s.Close(t.Context())); err != nil {
			t.Error(err)
		}
		if err := s.Client().Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
			t.Error("the client is not closed:", err)
		}
	}
}

// On a Cluster, keys of several masters are leased, and each goes back to its own.
func TestLeaseOnCluster(t *testing.T) {
	c, ctx := redistest.StartCluster(t, 3, 0), t.Context()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Nodes().Addrs(), ContextTimeoutEnabled: true})
	defer client.Close()
	s, err := redisstore.New(client, redisstore.Config{Lease: time.Second, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	limit := core.FixedWindow(1_000_000, 24*time.Hour)
	tenants, users := core.NewLimiter(s, "tenant", limit), core.NewLimiter(s, "user", limit)
	used, leased := make(map[string]int64), 0
	for i := range 3000 {
		user := fmt.Sprint("user", i%4)
		d, err := core.AllowAll(ctx, core.Charge{Limiter: tenants, Key: "tenant"}, core.Charge{Limiter: users, Key: user, Units: 2})
		if err != nil || !d.Allowed || d.Degraded {
			t.Fatal(d, err)
		}
		if d.Backend(nil).Source().String() == "lease" {
			leased++
		}
		if i%10 == 0 {
			if err := d.Settle(ctx, 0, 1); err != nil {
				t.Error(err)
			}
			used["tenant"], used[user] = used["tenant"]-1, used[user]-1
		}
		used["tenant"], used[user] = used["tenant"]+1, used[user]+2
	}
	if leased < 1000 {
		t.Errorf("only %d are leased", leased)
	}
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	for key, n := range used {
		l := users
		if key == "tenant" {
			l = tenants
		}
		if d, err := l.Peek(ctx, key); err != nil || 1_000_000-d.Remaining != n {
			t.Errorf("%s: %d are used, not %d: %v", key, 1_000_000-d.Remaining, n, err)
		}
	}
}
