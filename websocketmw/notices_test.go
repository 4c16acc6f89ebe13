package websocketmw

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

const patient = 20 * time.Second

var byUser = keyfuncs.First(keyfuncs.Tag("u", keyfuncs.Header("User")), keyfuncs.Tag("all", keyfuncs.Everyone()))

// A node is a server with a guard and a handler with gorilla/websocket.
type node struct {
	guard *Guard
	slots *core.Slots
	url   string

	mu     sync.Mutex
	causes []error
}

func newNode(t *testing.T, shared core.Store, rule Rule, limit int64) *node {
	t.Helper()
	s := &node{slots: core.NewSlots(shared, "user", limit)}
	rule.Slots = s.slots
	if rule.Key == nil {
		rule.Key = byUser
	}
	g, err := New(Config{Rules: []Rule{rule}, OnClosed: func(_ *Socket, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.causes = append(s.causes, err)
	}})
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
		_ = g.Shutdown(ctx)
		server.Close()
	})
	s.guard, s.url = g, "ws"+strings.TrimPrefix(server.URL, "http")
	return s
}

func (s *node) dial(t *testing.T, user string, more ...string) (*websocket.Conn, int) {
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

func (s *node) must(t *testing.T, user string) *websocket.Conn {
	t.Helper()
	conn, status := s.dial(t, user)
	if conn == nil {
		t.Fatal(status)
	}
	return conn
}

func (s *node) comes(t *testing.T, user string, more ...string) (conn *websocket.Conn, status int) {
	t.Helper()
	within(t, "a place", func() bool {
		conn, status = s.dial(t, user, more...)
		return status != 429
	})
	return conn, status
}

func (s *node) ended(cause error) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, err := range s.causes {
		if errors.Is(err, cause) {
			n++
		}
	}
	return n
}

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

func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

// older waits until sockets are older than those that come now, by more than what servers err about ages.
func older(t *testing.T) {
	t.Helper()
	begin := time.Now()
	within(t, "time to pass", func() bool { return time.Since(begin) > 100*time.Millisecond })
}

// inRedis returns a store of its own for each server.
func inRedis(t *testing.T, url string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	return overRedis(t, &redis.UniversalOptions{Addrs: []string{strings.TrimPrefix(url, "redis://")}}, timeout)
}

func overRedis(t *testing.T, o *redis.UniversalOptions, timeout time.Duration) *redisstore.Store {
	t.Helper()
	o.ContextTimeoutEnabled = true
	s, err := redisstore.New(redis.NewUniversalClient(o), redisstore.Config{Timeout: timeout, SlotTimeout: timeout, SlotTTL: 4 * patient, Failure: redisstore.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client().Close() })
	return s
}

// stores runs a test with a store for each of three servers: one of them in memory, and Redis.
func stores(t *testing.T, test func(t *testing.T, all []core.Store)) {
	t.Run("memory", func(t *testing.T) {
		shared := new(core.MemoryStore)
		test(t, []core.Store{shared, shared, shared})
	})
	t.Run("Redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr()
		url := "redis://" + addr
		test(t, []core.Store{inRedis(t, url, patient), inRedis(t, url, patient), inRedis(t, url, patient)})
	})
}

// CloseAll on one server closes the sockets of a user on all, and those whose handshakes have begun, however late they
// are admitted. It means no later ones.
func TestCloseAll(t *testing.T) {
	stores(t, func(t *testing.T, all []core.Store) {
		for user, first := range map[string]bool{"ann": true, "eve": false} {
			begun, admit := make(chan struct{}), make(chan struct{})
			slow := func(r *http.Request) (string, error) {
				if r.Header.Get("Slow") != "" {
					close(begun)
					<-admit
				}
				return byUser(r)
			}
			near, far := newNode(t, all[0], Rule{}, 10), newNode(t, all[1], Rule{Key: slow}, 10)
			var conns []*websocket.Conn
			if first {
				conns = append(conns, far.must(t, user), near.must(t, user))
			}
			other := near.must(t, "bob")
			coming := make(chan *websocket.Conn)
			go func() {
				conn, _ := far.dial(t, user, "Slow")
				coming <- conn
			}()
			<-begun
			n, err := near.guard.CloseAll(t.Context(), near.slots, "u:"+user, 4001, "banned")
			if err != nil || n != len(conns) {
				t.Fatal(n, err)
			}
			close(admit)
			for _, conn := range append(conns, <-coming) {
				if conn == nil {
					t.Fatal("refused")
				}
				if got := ending(t, conn); got != "4001 banned" {
					t.Error(got)
				}
			}
			stays(t, other)
			stays(t, far.must(t, user)) // who comes later
			if _, err := near.guard.CloseAll(t.Context(), nil, "u:ann", 4001, ""); !errors.Is(err, core.ErrInvalid) {
				t.Error(err)
			}
			for _, others := range []*core.Slots{core.NewSlots(all[0], "other", 1), core.NewSlots(new(core.MemoryStore), "user", 10)} {
				if n, err := near.guard.CloseAll(t.Context(), others, "u:"+user, 4001, ""); n != 0 || !errors.Is(err, core.ErrInvalid) {
					t.Error(n, err)
				}
			}
			if n, err := near.guard.CloseAll(t.Context(), near.slots.WithPlan("pro", 20).Plan("pro"), "u:bob", 4001, "banned"); n != 1 || err != nil {
				t.Error(n, err)
			}
		}
	})
}

// CloseAll by the slots of any rule closes those whom that rule counts under the key.
func TestCloseAllOfEachRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(core.MemoryStore)
		all, users := core.NewSlots(s, "all", 10), core.NewSlots(s, "user", 10)
		g := mustNew(t, Config{Rules: []Rule{{Slots: all, Key: keyfuncs.Everyone()}, {Slots: users, Key: keyfuncs.Header("User")}}})
		var sockets []*Socket
		for _, user := range []string{"ann", "bob", "ann", "bob", "ann"} {
			r := upgradeRequest()
			r.Header.Set("User", user)
			socket, _ := g.admit(r, upgrade)
			sockets = append(sockets, socket)
		}
		_ = sockets[2].end()
		for _, c := range []struct {
			slots *core.Slots
			key   string
			want  int
		}{{users, "bob", 2}, {users, "eve", 0}, {all, everyone(t, g), 2}, {users, "ann", 0}} {
			if n, err := g.CloseAll(t.Context(), c.slots, c.key, 4001, "banned"); n != c.want || err != nil {
				t.Errorf("%s: %d, not %d: %v", c.key, n, c.want, err)
			}
		}
		g.endAll()
		for i := range g.indexes {
			if n := len(g.indexes[i].lists); n != 0 {
				t.Errorf("%d keys are kept", n)
			}
		}
	})
}

// Slots of a document: the request's plan and key apply, from the next upgrade on those of the next document, and CloseAll
// finds them.
func TestSlotsOfADocument(t *testing.T) {
	const text = "slots:\n  user:\n    default: free\n    plans: {free: %d, pro: 3}\n    overrides: [{key: \"u:vip\", slots: 2}]\n...\n"
	document := fmt.Sprintf(text, 1)
	book, err := limits.Open(t.Context(), new(core.MemoryStore), func(context.Context) ([]byte, error) { return []byte(document), nil }, limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	slots, err := book.Slots("user")
	if err != nil {
		t.Fatal(err)
	}
	g := mustNew(t, Config{Rules: []Rule{{Slots: slots, Key: byUser, Plan: keyfuncs.Header("Plan")}}})
	admitted := func(user, plan string) (n int) {
		r := upgradeRequest()
		r.Header.Set("User", user)
		r.Header.Set("Plan", plan)
		for s, _ := g.admit(r, upgrade); s != nil; s, _ = g.admit(r, upgrade) {
			n++
		}
		return n
	}
	for user, want := range map[string]int{"ann": 1, "vip": 2} {
		if n := admitted(user, ""); n != want {
			t.Errorf("%s: %d sockets, not %d", user, n, want)
		}
	}
	if n := admitted("bob", "pro"); n != 3 {
		t.Errorf("bob: %d sockets", n)
	}
	document = fmt.Sprintf(text, 2)
	if err := book.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := admitted("ann", ""); n != 1 {
		t.Errorf("%d more", n)
	}
	if n, err := g.CloseAll(t.Context(), slots, "u:ann", 4001, "banned"); n != 2 || err != nil {
		t.Error(n, err)
	}
	g.endAll()
}

// A guard of rates around that of sockets decides first: a handshake that it still keeps when CloseAll is called begins
// later, and is closed by nobody. One that it has let through is closed, however slow the keys of sockets are.
func TestCloseAllBehindARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(name string) keyfuncs.Func {
			return func(r *http.Request) (string, error) {
				if r.Header.Get("Slow") == name {
					time.Sleep(time.Minute)
				}
				return "ann", nil
			}
		}
		s := new(core.MemoryStore)
		slots := core.NewSlots(s, "user", 10)
		sockets := mustNew(t, Config{Rules: []Rule{{Slots: slots, Key: slow("sockets")}}})
		rates := nethttp.Limit(s, "handshakes", slow("rates"), core.SlidingLog(10, time.Hour))
		h := rates.Handler(sockets.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			serveUntilClose(c)
		})))
		dial := func(slow string) *peer {
			client, server := net.Pipe()
			r := upgradeRequest()
			r.Header.Set("Slow", slow)
			go h.ServeHTTP(&pipe{conn: server}, r)
			return &peer{t: t, Conn: client, in: bufio.NewReader(client)}
		}
		outside, inside := dial("rates"), dial("sockets")
		synctest.Wait()
		if n, err := sockets.CloseAll(t.Context(), slots, "ann", 4001, "banned"); n != 0 || err != nil {
			t.Error(n, err)
		}
		for _, p := range []*peer{outside, inside} {
			if response, err := http.ReadResponse(p.in, nil); err != nil || response.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(response, err)
			}
		}
		if got := inside.closes(); got != "4001 banned" {
			t.Error(got)
		}
		inside.send(masked(0x88, ""))
		synctest.Wait()
		if all := sockets.oldestFirst(); len(all) != 1 || all[0].closes() {
			t.Errorf("%d sockets", len(all))
		}
		if n, err := sockets.CloseAll(t.Context(), slots, "ann", 4001, "banned"); n != 1 || err != nil {
			t.Error(n, err)
		}
		outside.closes()
		outside.Close()
	})
}

const evicted = "1008 another socket has taken the place of this one"

// The oldest socket of the fleet gives its slot to the new one, and is told why, wherever they are.
func TestEvictOldest(t *testing.T) {
	stores(t, func(t *testing.T, all []core.Store) {
		var nodes []*node
		for _, shared := range all {
			s := newNode(t, shared, Rule{WhenFull: EvictOldest}, 3)
			s.guard.evictAge = 0
			nodes = append(nodes, s)
		}
		var conns []*websocket.Conn
		for _, s := range nodes {
			conns = append(conns, s.must(t, "ann"))
			older(t)
		}
		other := nodes[0].must(t, "bob")
		for i, s := range []int{2, 2, 0, 1} { // the newcomers'
			conn, _ := nodes[s].comes(t, "ann")
			conns = append(conns, conn)
			if i < 3 {
				if got := ending(t, conns[i]); got != evicted {
					t.Errorf("%d: %s", i, got)
				}
				conns[i].Close()
			}
			within(t, "one is evicted", func() bool {
				return nodes[0].ended(ErrEvicted)+nodes[1].ended(ErrEvicted)+nodes[2].ended(ErrEvicted) >= min(i+1, 3)
			})
			within(t, "as many slots as the limit", func() bool {
				n, err := nodes[0].slots.Count(t.Context(), "u:ann")
				return err == nil && n == 3
			})
		}
		stays(t, other)
		stays(t, conns[len(conns)-1])
	})
}

// If nobody may be evicted, the fields are of the slots that are full, as in any refusal.
func TestFieldsIfNobodyIsEvicted(t *testing.T) {
	s := new(core.MemoryStore)
	g := mustNew(t, Config{Rules: []Rule{
		{Slots: core.NewSlots(s, "all", 5), Key: keyfuncs.Everyone()},
		{Slots: core.NewSlots(s, "user", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest},
	}})
	young, _ := g.admit(upgradeRequest(), upgrade)
	defer young.end()
	w := httptest.NewRecorder()
	g.Handler(http.NotFoundHandler()).ServeHTTP(w, upgradeRequest())
	h := w.Header()
	if w.Code != http.StatusTooManyRequests || h.Get("RateLimit") != `"user";r=0` || h.Get("RateLimit-Policy") != `"user";q=1;qu="concurrent-requests"` {
		t.Errorf("%d %v", w.Code, h)
	}
}

// If the handler refuses the upgrade, nobody is evicted.
func TestEvictNobodyForARefusedUpgrade(t *testing.T) {
	stores(t, func(t *testing.T, all []core.Store) {
		a, b := newNode(t, all[0], Rule{WhenFull: EvictOldest}, 1), newNode(t, all[1], Rule{WhenFull: EvictOldest}, 1)
		a.guard.evictAge, b.guard.evictAge = 0, 0
		kept := a.must(t, "ann")
		for _, s := range []*node{a, b} {
			if _, status := s.comes(t, "ann", "Forbidden"); status != 403 {
				t.Error(status)
			}
		}
		stays(t, kept)
		within(t, "the slots to be given back", func() bool {
			n, err := a.slots.Count(t.Context(), "u:ann")
			return err == nil && n == 1
		})
		b.comes(t, "ann")
		if got := ending(t, kept); got != evicted {
			t.Error(got)
		}
	})
}

// A cluster has a guard for each of some servers, and a day's time to spend.
type cluster struct {
	t      *testing.T
	guards []*Guard
	slots  *core.Slots

	mu   sync.Mutex
	open map[*Socket]time.Time
	ends []error
}

func newCluster(t *testing.T, shared core.Store, servers int, limit int64) *cluster {
	sh := &cluster{t: t, open: make(map[*Socket]time.Time), slots: core.NewSlots(shared, "user", limit)}
	for range servers {
		g, err := New(Config{Rules: []Rule{{Slots: sh.slots, Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}, OnClosed: func(s *Socket, err error) {
			sh.mu.Lock()
			defer sh.mu.Unlock()
			if age := time.Since(sh.open[s]); errors.Is(err, ErrEvicted) && age < 10*time.Second {
				t.Errorf("a socket was evicted after %v", age)
			}
			sh.ends = append(sh.ends, err)
			delete(sh.open, s)
		}})
		if err != nil {
			t.Fatal(err)
		}
		sh.guards = append(sh.guards, g)
	}
	return sh
}

// come opens a socket on a server. Its client answers a Close frame, and does nothing else.
func (sh *cluster) come(server int, hangsUp bool) (status int) {
	s, a := sh.guards[server].admit(upgradeRequest(), upgrade)
	if s == nil {
		return a.Status
	}
	sh.mu.Lock()
	sh.open[s] = time.Now()
	sh.mu.Unlock()
	if hangsUp {
		_ = s.end()
		return 0
	}
	w := &answering{closes: make(chan struct{})}
	s.serve(w, upgradeRequest(), http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		c, _ := take(rw)
		go func() {
			select {
			case <-w.closes:
				c.Close()
			case <-s.Context().Done():
			}
		}()
	}))
	return 0
}

func (sh *cluster) held() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return len(sh.open)
}

func (sh *cluster) closeAll() {
	for _, g := range sh.guards {
		g.endAll()
	}
	synctest.Wait()
}

// A thousand newcomers at a full key, over three servers: who is evicted had the socket for ten seconds or more.
func TestThousandNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := newCluster(t, new(core.MemoryStore), 3, 5)
		admitted, refused := 0, 0
		for i := range 1000 {
			switch status := sh.come(i%3, false); status {
			case 0:
				admitted++
			case 429:
				refused++
			default:
				t.Fatal(status)
			}
			synctest.Wait()
			if n := sh.held(); n > 5 {
				t.Fatalf("%d hold slots", n)
			}
			time.Sleep(time.Second)
		}
		if admitted < 495 || refused < 495 || sh.held() != 5 {
			t.Errorf("%d admitted, %d refused, %d held", admitted, refused, sh.held())
		}
		if i := slices.IndexFunc(sh.ends, func(err error) bool { return !errors.Is(err, ErrEvicted) }); i >= 0 || len(sh.ends) != admitted-5 {
			t.Error(i, len(sh.ends), admitted)
		}
		sh.closeAll()
	})
}

// Newcomers that come at once, hang up, or leave, on three servers: no slot is lost or counted twice.
func TestEvictionsThatCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := newCluster(t, new(core.MemoryStore), 3, 4)
		key, _ := keyfuncs.Everyone()(nil)
		for range 300 {
			for i := range 6 {
				go sh.come(i%3, i == 3)
			}
			synctest.Wait()
			if n, _ := sh.slots.Count(t.Context(), key); n > 4 || int(n) != sh.held() {
				t.Fatalf("%d slots are counted, %d held", n, sh.held())
			}
			time.Sleep(3 * time.Second)
		}
		sh.closeAll()
		if n, _ := sh.slots.Count(t.Context(), key); n != 0 {
			t.Errorf("%d slots are left", n)
		}
	})
}

// A silentStore store hands no notice on after its first answers: a server does not answer.
type silentStore struct {
	slots.Store

	left atomic.Int64 // notices that are still handed on
}

func (d *silentStore) Backend() *backend.Store { return &backend.Store{Slots: d} }

func (d *silentStore) Announce(ctx context.Context, n slots.Notice, heard func(string) bool) ([]int64, error) {
	if d.left.Add(-1) < 0 {
		<-ctx.Done()
		return []int64{1}, nil
	}
	return d.Store.Announce(ctx, n, heard)
}

// A newcomer whose eviction is not confirmed closes itself, in time, and keeps no slot. A server that does not answer
// is an error of CloseAll.
func TestWithoutAnswers(t *testing.T) {
	for notices, want := range []string{"429", "1013 too many sockets are open; try again later"} {
		synctest.Test(t, func(t *testing.T) {
			d := &silentStore{Store: new(core.MemoryStore).Backend().Slots}
			d.left.Store(int64(notices))
			slots := core.NewSlots(d, "user", 1)
			var causes []error
			g, err := New(Config{Rules: []Rule{{Slots: slots, Key: byUser, WhenFull: EvictOldest}}, OnClosed: func(_ *Socket, err error) {
				causes = append(causes, err)
			}})
			if err != nil {
				t.Fatal(err)
			}
			first := pipeTo(t, g, serveUntilClose)
			time.Sleep(minEvictAge)
			begin := time.Now()
			if notices == 0 {
				if s, a := g.admit(upgradeRequest(), upgrade); s != nil || a.Status != 429 || time.Since(begin) != searchTimeout {
					t.Error(s, a, time.Since(begin))
				}
			} else {
				second := pipeTo(t, g, serveUntilClose)
				if got := second.closes(); got != want || time.Since(begin) != answerTimeout {
					t.Error(got, time.Since(begin))
				}
				second.send(masked(0x88, ""))
				synctest.Wait()
				if len(causes) != 1 || !errors.Is(causes[0], ErrEvicted) {
					t.Error(causes)
				}
			}
			if n, err := slots.Count(t.Context(), "all:*"); n > 1 || err != nil {
				t.Error(n, err)
			}
			if g.open() != 1 {
				t.Error(g.open())
			}
			if _, err := g.CloseAll(t.Context(), slots, "x", 4000, ""); !errors.Is(err, core.ErrUnavailable) {
				t.Error(err)
			}
			first.Close()
			synctest.Wait()
			if n := g.open(); n != 0 || len(g.stopListening) != 0 || len(g.indexes[0].lists) != 0 {
				t.Error(n, g.stopListening, g.indexes[0].lists)
			}
		})
	}
}

// closes reports whether the guard is closing a socket.
func (s *Socket) closes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing != nil
}

// A handshake whose client has left before the 101 evicts nobody, and keeps no slot, though its handler does not notice.
func TestEvictNobodyForWhoHasLeft(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn) error{
		"closed":      (*net.TCPConn).Close,
		"half closed": (*net.TCPConn).CloseWrite,
		"reset": func(c *net.TCPConn) error {
			return errors.Join(c.SetLinger(0), c.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			begun, finish := make(chan struct{}, 2), make(chan struct{})
			g, dial, ends := serveUpgrades(t, false, Config{}, func(w http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				if r.Header.Get("Newcomer") != "" {
					<-r.Context().Done()
				}
				c, _ := take(w)
				<-finish
				c.Close()
			})
			g.rules.Slots[0].OneMore, g.evictAge = true, 0
			dial()
			<-begun
			newcomer := dial("Newcomer: yes")
			<-begun
			if err := leave(newcomer.Conn.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			within(t, "one of two slots to be given up", func() bool { return g.held(t) == 1 })
			for i, s := range g.oldestFirst() { // if a write has failed, the newcomer has ended
				if s.closes() != (i > 0) {
					t.Errorf("socket %d closes: %v", i, s.closes())
				}
			}
			close(finish)
			for range 2 {
				if err := <-ends; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Neither does a handshake whose client has sent something before the 101.
func TestEvictNobodyForWhoIsTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		g.rules.Slots[0].OneMore = true
		kept := pipeTo(t, g, serveUntilClose)
		time.Sleep(minEvictAge)
		client, server := net.Pipe()
		go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			serveUntilClose(c)
		})).ServeHTTP(&early{pipe{conn: server}, string(masked(0x81, "hello"))}, upgradeRequest())
		go io.Copy(io.Discard, client)
		synctest.Wait()
		if all := g.oldestFirst(); len(all) != 2 || all[0].closes() || !all[1].closes() || g.held(t) != 1 {
			t.Errorf("%d sockets, %d slots", len(all), g.held(t))
		}
		client.Close()
		kept.Close()
	})
}

// Nobody is evicted for a socket for which there is room when its 101 is written.
func TestEvictNobodyIfSomebodyElseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, new(core.MemoryStore), 2, 2)
		cl.come(0, false)
		cl.come(1, false)
		time.Sleep(time.Minute)
		s, _ := cl.guards[1].admit(upgradeRequest(), upgrade)
		if s == nil || s.evicts == nil {
			t.Fatal("nobody is to be evicted")
		}
		second := cl.guards[1].oldestFirst()[0]
		_ = second.end()
		s.serve(&pipe{conn: new(recorded)}, upgradeRequest(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { take(w) }))
		synctest.Wait()
		if n, _ := cl.slots.Count(t.Context(), everyone(t, cl.guards[0])); n != 2 || len(cl.ends) != 1 || cl.ends[0] != nil || s.closes() {
			t.Errorf("%d slots are held, ended: %v", n, cl.ends)
		}
		cl.closeAll()
	})
}

// The server of the oldest socket is cut off: the next one is evicted.
func TestEvictWithoutTheOldest(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	far := newNode(t, inRedis(t, "redis://"+proxy.Addr(), patient), Rule{WhenFull: EvictOldest}, 2)
	near := newNode(t, inRedis(t, "redis://"+server.Addr(), patient), Rule{WhenFull: EvictOldest}, 2)
	far.guard.evictAge, near.guard.evictAge = 0, 0
	oldest := far.must(t, "ann")
	older(t)
	next := near.must(t, "ann")
	proxy.Cut()
	near.must(t, "ann")
	if got := ending(t, next); got != evicted {
		t.Error(got)
	}
	proxy.Heal()
	stays(t, oldest)
}

// At a full key the oldest socket is closed and the newcomer stays: never both are closed, also if many users come at
// once, and however the answers of servers cross the releases.
func TestNewcomersStay(t *testing.T) {
	const users, rounds = 50, 2
	url := "redis://" + redistest.Start(t).Addr()
	var nodes []*node
	for range 3 {
		s := newNode(t, inRedis(t, url, patient), Rule{WhenFull: EvictOldest}, 1)
		s.guard.evictAge = 0
		nodes = append(nodes, s)
	}
	olds := make([]*websocket.Conn, users)
	for i := range olds {
		olds[i] = nodes[i%3].must(t, fmt.Sprint(i))
	}
	for round := range rounds {
		older(t)
		var all sync.WaitGroup
		for i := range olds {
			all.Go(func() {
				newcomer, status := nodes[(i+round+1)%3].dial(t, fmt.Sprint(i))
				if newcomer == nil {
					t.Errorf("user %d is refused with %d", i, status)
					return
				}
				if got := ending(t, olds[i]); got != evicted {
					t.Errorf("the old socket of user %d: %s", i, got)
				}
				stays(t, newcomer)
				olds[i] = newcomer
			})
		}
		all.Wait()
		for i := range olds {
			within(t, "one slot for each user", func() bool {
				n, err := nodes[0].slots.Count(t.Context(), fmt.Sprintf("u:%d", i))
				return err == nil && n == 1
			})
		}
	}
	within(t, "each eviction to be told", func() bool {
		return nodes[0].ended(ErrEvicted)+nodes[1].ended(ErrEvicted)+nodes[2].ended(ErrEvicted) == users*rounds
	})
}

// Where everything is admitted without the store, nobody is evicted or refused.
func TestEvictNobodyWithoutTheStore(t *testing.T) {
	away, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailOpen, SlotTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Client().Close()
	g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(away, "ws", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}})
	for i := range 3 {
		if s, a := g.admit(upgradeRequest(), upgrade); s == nil || s.evicts != nil {
			t.Errorf("socket %d: %d", i+1, a.Status)
		}
	}
	g.endAll()
}

// The age of a socket is that at the time of the question, however late a server hears of it.
func TestOldestWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, new(core.MemoryStore), 2, 2)
		ask := func(server int, age time.Duration) candidate {
			g := cl.guards[server]
			topic := cl.slots.Backend().Notices().Topic("user", everyone(t, g))
			return g.indexes[0].oldest(topic, time.Now().Add(-age))
		}
		cl.come(0, false)
		time.Sleep(time.Second)
		cl.come(1, false)
		time.Sleep(time.Minute)
		first := ask(0, 0)
		time.Sleep(3 * time.Second)
		second := ask(1, 3*time.Second)
		if first.Age-second.Age != 1_000_000 || second.Age != 60_000_001 {
			t.Errorf("%v, %v", first, second)
		}
		if none := ask(1, time.Minute); none.Guard != "" {
			t.Errorf("%v was too young", none)
		}
		cl.closeAll()
	})
}

// CloseAll closes a socket that is being evicted, whose server's reply may still be under way. It is offered to nobody.
func TestCloseAllFindsWhoIsBeingEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", 2), Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}})
		first, second := pipeTo(t, g, serveUntilClose), pipeTo(t, g, serveUntilClose)
		time.Sleep(time.Minute)
		x, topic := &g.indexes[0], g.oldestFirst()[0].links[0].topic
		text := fmt.Sprintf(`{"do":"evict","socket":{"guard":%q,"number":1}}`, g.id)
		reply := x.hear(backend.Heard{Topic: topic, Text: text})
		if again := x.hear(backend.Heard{Topic: topic, Text: text}); reply.Then == nil || again.Then != nil {
			t.Error("its slot is not taken once")
		}
		if c := x.oldest(topic, time.Now()); c.Number != 2 {
			t.Errorf("socket %d is offered", c.Number)
		}
		for _, want := range []int{2, 0} {
			if n, err := g.CloseAll(t.Context(), g.config.Rules[0].Slots, everyone(t, g), 4001, "banned"); err != nil || n != want {
				t.Errorf("%d are closed, not %d: %v", n, want, err)
			}
		}
		reply.Then()
		for _, p := range []*peer{first, second} {
			if got := p.closes(); got != "4001 banned" {
				t.Error(got)
			}
			p.Close()
		}
	})
}

// An order to close is kept only as long as it may mean a handshake.
func TestOrdersToCloseAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		closeAll := func(keys ...string) {
			for _, key := range keys {
				if _, err := g.CloseAll(t.Context(), g.config.Rules[0].Slots, key, 4001, strings.Repeat("\x00", 500)); err != nil {
					t.Fatal(err)
				}
			}
		}
		check := func(want int) {
			t.Helper()
			if n := len(g.indexes[0].closeOrders); n != want {
				t.Errorf("%d orders, not %d", n, want)
			}
		}
		closeAll("a")
		check(0)
		g.beginHandshake()
		closeAll("a", "b", "a")
		check(2)
		g.beginHandshake()
		g.endHandshake()
		check(2)
		time.Sleep(closeOrderTimeout + 1)
		closeAll("c")
		check(1)
		g.endHandshake()
		check(0)
		if len(g.stopListening) != 0 {
			t.Error("it listens")
		}
	})
}

// No socket whose handshake began before slips past Shutdown or CloseAll: each is refused, or closed, once.
func TestAddAgainstEnds(t *testing.T) {
	const rounds, handshakes = 500, 8
	for name, ends := range map[string]func(g *Guard) (closed int){
		"CloseAll": func(g *Guard) int {
			n, err := g.CloseAll(context.Background(), g.config.Rules[0].Slots, "x", 4001, "banned")
			if err != nil {
				t.Error(err)
			}
			return n
		},
		"Shutdown": func(g *Guard) int {
			g.drain()
			g.closeSockets(context.Background())
			return len(g.oldestFirst())
		},
	} {
		found, refused := 0, 0
		for round := range rounds {
			begun, goOn := make(chan struct{}), make(chan struct{})
			g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", handshakes), Key: func(*http.Request) (string, error) {
				begun <- struct{}{}
				<-goOn
				return "x", nil
			}}}})
			var all sync.WaitGroup
			var sockets [handshakes]*Socket
			for i := range handshakes {
				all.Go(func() { sockets[i], _ = g.admit(upgradeRequest(), upgrade) })
			}
			for range handshakes {
				<-begun
			}
			if round%2 == 0 {
				close(goOn)
			} else {
				all.Go(func() { close(goOn) })
			}
			n := ends(g)
			all.Wait()
			found += n
			for _, s := range sockets {
				if s == nil {
					refused++
				} else if !s.closes() {
					t.Fatalf("%s: a socket is open, and %d were found", name, n)
				}
			}
			g.endAll()
			if len(g.indexes[0].closeOrders) != 0 || len(g.stopListening) != 0 {
				t.Fatal("something is kept")
			}
		}
		if name == "CloseAll" && refused > 0 || found == rounds*handshakes || name != "CloseAll" && found+refused == 0 {
			t.Errorf("%s: of %d sockets, %d were found, %d refused: nothing happened at the same time", name, rounds*handshakes, found, refused)
		}
	}
}
