package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const patient = 20 * time.Second

// A site is a server with a guard and a handler with gorilla/websocket.
type site struct {
	guard   *Guard
	url     string
	evicted atomic.Int64
}

// newSite starts a server whose sockets are counted by the header User, or by the rule's key.
func newSite(t *testing.T, shared core.SlotStore, c Config, rule nethttp.Rule, limit int64) *site {
	t.Helper()
	rule.Slots = newSlots(t, shared, "user", limit)
	if rule.Key == nil {
		rule.Key = keyfuncs.Header("User")
	}
	c.Rules = []nethttp.Rule{rule}
	s := new(site)
	c.Notify = s.tally
	g, err := New(told(c))
	if err != nil {
		t.Fatal(err)
	}
	up := websocket.Upgrader{}
	server := httptest.NewServer(g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Forbidden") != "" { // after the slot was taken
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for err == nil {
			var text []byte
			if _, text, err = conn.ReadMessage(); err == nil {
				err = conn.WriteMessage(websocket.TextMessage, text)
			}
		}
	})))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		_ = g.Shutdown(ctx) // of a server that a test has cut off
		server.Close()
	})
	s.guard, s.url = g, "ws"+strings.TrimPrefix(server.URL, "http")
	return s
}

// dial opens a socket of a user. The conn is nil if it is refused.
func (s *site) dial(t *testing.T, user string, more ...string) (*websocket.Conn, int) {
	t.Helper()
	header := http.Header{"User": {user}}
	for _, name := range more {
		header.Set(name, "yes")
	}
	conn, response, err := websocket.DefaultDialer.Dial(s.url, header)
	if err != nil && !errors.Is(err, websocket.ErrBadHandshake) {
		t.Fatal(err)
	}
	if conn != nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, response.StatusCode
}

// must is dial of a socket that is admitted.
func (s *site) must(t *testing.T, user string) *websocket.Conn {
	t.Helper()
	conn, status := s.dial(t, user)
	if conn == nil {
		t.Fatal(status)
	}
	return conn
}

// ending returns the Close frame that a socket gets, in time, such as "4001 bye", or a message.
func ending(t *testing.T, conn *websocket.Conn) string {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patient))
	_, text, err := conn.ReadMessage()
	var closed *websocket.CloseError
	switch {
	case errors.As(err, &closed):
		return fmt.Sprintf("%d %s", closed.Code, closed.Text)
	case err != nil:
		return err.Error()
	}
	return string(text)
}

// stays fails the test if a socket does not answer.
func stays(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(patient))
	if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Error(err)
	}
	if _, text, err := conn.ReadMessage(); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
}

// inRedis returns a store of its own for each server.
func inRedis(t *testing.T, addr string) core.SlotStore {
	t.Helper()
	return openRedis(t, &redis.UniversalOptions{Addrs: []string{addr}}, patient)
}

func openRedis(t *testing.T, o *redis.UniversalOptions, timeout time.Duration) core.SlotStore {
	t.Helper()
	s, err := redisstore.Open(o, redisstore.Config{
		Timeout: timeout, SlotTimeout: timeout, SlotTTL: 4 * patient, Failure: redisstore.FailClosed,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client().Close() })
	return s
}

// stores runs a test with a store for each of three servers: one of them in memory, and Redis.
func stores(t *testing.T, test func(t *testing.T, all []core.SlotStore)) {
	t.Run("memory", func(t *testing.T) {
		shared := &staying{memstore.New(memstore.Config{})}
		test(t, []core.SlotStore{shared, shared, shared})
	})
	t.Run("Redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr()
		test(t, []core.SlotStore{inRedis(t, addr), inRedis(t, addr), inRedis(t, addr)})
	})
}

// Whoever logs out on one server has no socket on any. Other users keep theirs.
func TestCloseAll(t *testing.T) {
	stores(t, func(t *testing.T, all []core.SlotStore) {
		var sites []*site
		var conns, others []*websocket.Conn
		for i, store := range all {
			s := newSite(t, store, Config{Server: fmt.Sprint("server ", i)}, nethttp.Rule{}, 10)
			s.guard.fleet.Ask = patient
			sites = append(sites, s)
			others = append(others, s.must(t, "bob"))
			for range i + 1 {
				conns = append(conns, s.must(t, "ann"))
			}
		}
		p, err := sites[0].guard.Presence(t.Context(), "user", "ann")
		var servers []string
		for i, peer := range p.Peers {
			servers = append(servers, strings.TrimPrefix(peer.Server, "server "))
			if age := time.Since(peer.Since); age < 0 || age > patient || i > 0 && peer.Since.Before(p.Peers[i-1].Since) {
				t.Errorf("peer %d has the age %v", i, age)
			}
		}
		slices.Sort(servers)
		if err != nil || strings.Join(servers, "") != "011222" || p.Held != 6 || p.Open != 6 || len(p.Silent) != 0 {
			t.Errorf("%v; servers %q, %+v", err, servers, p)
		}
		start := time.Now()
		p, err = sites[1].guard.CloseAll(t.Context(), "user", "ann", 4001, "logged out")
		t.Logf("all servers have answered after %v", time.Since(start))
		if err != nil || p.Held != 6 || p.Open != 6 || len(p.Silent) != 0 {
			t.Errorf("%v, %+v", err, p)
		}
		for i, conn := range conns {
			if got := ending(t, conn); got != "4001 logged out" {
				t.Errorf("socket %d: %s", i, got)
			}
		}
		t.Logf("all sockets are closed after %v", time.Since(start))
		again := sites[2].must(t, "ann")
		for _, conn := range append(others, again) {
			stays(t, conn)
		}
	})
}

// Nothing is lost when a server is cut off: the caller is told, and the sockets are closed when
// it is back.
func TestCloseAllOfAServerThatIsCutOff(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	near := newSite(t, inRedis(t, server.Addr()), Config{Server: "near"}, nethttp.Rule{}, 10)
	far := newSite(t, inRedis(t, proxy.Addr()), Config{Server: "far"}, nethttp.Rule{}, 10)
	conn := far.must(t, "ann")
	far.must(t, "ann")
	kept := near.must(t, "ann")
	proxy.Cut()
	p, err := near.guard.CloseAll(t.Context(), "user", "ann", 4001, "banned")
	if err != nil || p.Held != 3 || p.Open != 1 || len(p.Silent) != 1 || p.Silent[0] != 2 {
		t.Errorf("%v, %+v", err, p)
	}
	if got := ending(t, kept); got != "4001 banned" {
		t.Error(got)
	}
	// The one that is cut off knows its own, and says that it does not know the rest.
	if p, err := far.guard.Presence(t.Context(), "user", "ann"); !errors.Is(err, core.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) || p.Open != 2 {
		t.Errorf("%v, %+v", err, p)
	}
	proxy.Heal()
	if got := ending(t, conn); got != "4001 banned" {
		t.Error(got)
	}
}

// A server that has lost everything still hands notices on.
func TestCloseAllAfterALoss(t *testing.T) {
	server := redistest.Start(t)
	near := newSite(t, inRedis(t, server.Addr()), Config{Server: "near"}, nethttp.Rule{}, 10)
	far := newSite(t, inRedis(t, server.Addr()), Config{Server: "far"}, nethttp.Rule{}, 10)
	near.must(t, "bob")
	conn := far.must(t, "ann")
	server.Flush()
	if _, err := near.guard.CloseAll(t.Context(), "user", "ann", 4001, "banned"); err != nil {
		t.Error(err)
	}
	if got := ending(t, conn); got != "4001 banned" {
		t.Error(got)
	}
}

// Nobody asks the store for notices who has no socket, and who has one again hears of what was
// announced meanwhile.
func TestRest(t *testing.T) {
	server := redistest.Start(t)
	near := newSite(t, inRedis(t, server.Addr()), Config{Server: "near"}, nethttp.Rule{}, 10)
	begun, admit := make(chan struct{}), make(chan struct{})
	far := newSite(t, inRedis(t, server.Addr()), Config{Server: "far"}, nethttp.Rule{Key: func(r *http.Request) (string, error) {
		if r.Header.Get("Slow") != "" {
			close(begun)
			<-admit
		}
		return byUser(r)
	}}, 10)
	listens := far.guard.fleet.Listens
	for range 3 {
		conn := far.must(t, "bob")
		if !listens() {
			t.Error("a guard with a socket does not listen")
		}
		conn.Close()
		within(t, "the guard to rest", func() bool { return !listens() })
	}
	coming := make(chan *websocket.Conn)
	go func() {
		conn, _ := far.dial(t, "ann", "Slow")
		coming <- conn
	}()
	<-begun
	if _, err := near.guard.CloseAll(t.Context(), "user", "ann", 4001, "banned"); err != nil {
		t.Error(err)
	}
	close(admit)
	if got := ending(t, <-coming); got != "4001 banned" {
		t.Error(got)
	}
}

// A list has a hundred sockets of a guard, whatever their number, and all are counted.
func TestPresenceOfMany(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const sockets = 100_000
	shared := memstore.New(memstore.Config{})
	g, err := New(Config{Server: "a", Rules: []nethttp.Rule{{Slots: newSlots(t, shared, "user", sockets), Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	key, _ := keyfuncs.Everyone()(nil)
	for range sockets {
		g.Check(upgradeRequest())
	}
	p, err := g.Presence(t.Context(), "user", key)
	if err != nil || p.Held != sockets || p.Open != sockets || len(p.Peers) != 100 {
		t.Errorf("%v: held %d, open %d, %d listed", err, p.Held, p.Open, len(p.Peers))
	}
	for _, s := range g.all() {
		s.life.End()
	}
	if p, err := g.Presence(t.Context(), "user", key); err != nil || p.Held != 0 || p.Open != 0 {
		t.Errorf("%v, %+v", err, p)
	}
}

// What cannot be asked is an error.
func TestFleetErrors(t *testing.T) {
	rules := []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "user", 1), Key: keyfuncs.Everyone()}}
	g, err := New(Config{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Presence(t.Context(), "user", "ann"); err == nil || !strings.Contains(err.Error(), "Config.Server") {
		t.Error(err)
	}
	if g, err = New(Config{Rules: rules, Server: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Presence(t.Context(), "other", "ann"); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Error(err)
	}
	if _, err := g.CloseAll(t.Context(), "user", "ann", 4001, strings.Repeat("x", 2000)); err == nil {
		t.Error("a reason of 2000 bytes is taken")
	}
	for _, name := range []string{"\xff", strings.Repeat("x", 65)} {
		var fault *ConfigError
		if _, err := New(Config{Rules: rules, Server: name}); !errors.As(err, &fault) || fault.Field != "Server" {
			t.Errorf("%q: %v", name, err)
		}
	}
}
