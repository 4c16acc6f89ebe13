package websocketmw

import (
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
	g := mustNew(t, Config{Rules: []Rule{rule}, OnClosed: func(_ *Socket, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.causes = append(s.causes, err)
	}})
	up := websocket.Upgrader{}
	server := httptest.NewServer(g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

func (s *node) dial(t *testing.T, user string, slow ...string) (*websocket.Conn, int) {
	t.Helper()
	conn, response, err := websocket.DefaultDialer.Dial(s.url, http.Header{"User": {user}, "Slow": slow})
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
func inRedis(t *testing.T, addr string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	return overRedis(t, &redis.UniversalOptions{Addrs: []string{addr}}, timeout)
}

func overRedis(t *testing.T, o *redis.UniversalOptions, timeout time.Duration) *redisstore.Store {
	t.Helper()
	o.ContextTimeoutEnabled = true
	client := redis.NewUniversalClient(o)
	s, err := redisstore.New(client, redisstore.Config{Timeout: timeout, SlotTimeout: timeout, SlotTTL: 4 * patient, Failure: redisstore.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
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
		test(t, []core.Store{inRedis(t, addr, patient), inRedis(t, addr, patient), inRedis(t, addr, patient)})
	})
}

// CloseAll tells its caller of a server that is cut off. The sockets there are closed when it is back.
func TestCloseAllOfAServerThatIsCutOff(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	near := newNode(t, inRedis(t, server.Addr(), patient), Rule{}, 10)
	far := newNode(t, inRedis(t, proxy.Addr(), patient), Rule{}, 10)
	away, here := far.must(t, "ann"), near.must(t, "ann")
	proxy.Cut()
	if n, err := near.guard.CloseAll(t.Context(), near.slots, "u:ann", 4001, "banned"); !errors.Is(err, core.ErrUnavailable) || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if got := ending(t, here); got != "4001 banned" {
		t.Error(got)
	}
	proxy.Heal()
	if got := ending(t, away); got != "4001 banned" {
		t.Error(got)
	}
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
				conn, _ := far.dial(t, user, "yes")
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

// CloseAll by the slots of any rule closes those whom that rule counts under the key, also a handshake.
func TestCloseAllOfEachRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(core.MemoryStore)
		all, users := core.NewSlots(s, "all", 10), core.NewSlots(s, "user", 10)
		g := mustNew(t, Config{Rules: []Rule{{Slots: all, Key: keyfuncs.Everyone()}, {Slots: users, Key: func(r *http.Request) (string, error) {
			if user := r.Header.Get("Slow"); user != "" {
				time.Sleep(time.Minute)
				return user, nil
			}
			return r.Header.Get("User"), nil
		}}}})
		var sockets []*Socket
		for _, user := range []string{"ann", "bob", "ann", "ann", "bob", "ann"} {
			socket, _ := g.admit(changed("User", user), upgrade)
			if sockets = append(sockets, socket); len(sockets) == 4 { // one from the middle of the list, and the last
				_ = sockets[2].end()
				_ = sockets[3].end()
			}
		}
		coming := make(chan *Socket)
		go func() {
			socket, _ := g.admit(changed("Slow", "bob"), upgrade)
			coming <- socket
		}()
		synctest.Wait()
		for _, c := range []struct {
			slots *core.Slots
			key   string
			want  int
		}{{users, "bob", 2}, {users, "eve", 0}, {all, everyone, 2}, {users, "ann", 0}} {
			if n, err := g.CloseAll(t.Context(), c.slots, c.key, 4001, "banned"); n != c.want || err != nil {
				t.Errorf("%s: %d, not %d: %v", c.key, n, c.want, err)
			}
			if c.key == "eve" {
				time.Sleep(time.Second)
				late, _ := g.admit(changed("User", "eve"), upgrade)
				if begun := <-coming; late.closes() || !begun.closes() {
					t.Errorf("a later handshake is closed: %v, one before: %v", late.closes(), begun.closes())
				}
				_ = late.end()
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
		h := rates.Handler(sockets.Handler(taken(serveUntilClose)))
		outside, inside := dialPipe(t, h, changed("Slow", "rates"), ""), dialPipe(t, h, changed("Slow", "sockets"), "")
		synctest.Wait()
		if n, err := sockets.CloseAll(t.Context(), slots, "ann", 4001, "banned"); n != 0 || err != nil {
			t.Error(n, err)
		}
		outside.upgraded()
		inside.upgraded()
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

// The oldest socket of the fleet gives its slot to the new one, and is told why, wherever they are. The others stay: never
// is the newcomer closed, too, also if many users come at once, and however the answers of servers cross the releases.
func TestEvictOldest(t *testing.T) {
	const users, rounds, limit = 20, 2, 3
	stores(t, func(t *testing.T, stores []core.Store) {
		var nodes []*node
		for _, shared := range stores {
			s := newNode(t, shared, Rule{WhenFull: EvictOldest}, limit)
			s.guard.evictAge = 0
			nodes = append(nodes, s)
		}
		var sets [users][]*websocket.Conn // the oldest first
		for place := range limit {
			for i := range sets {
				sets[i] = append(sets[i], nodes[(i+place)%3].must(t, fmt.Sprint(i)))
			}
			older(t)
		}
		for round := range rounds {
			var all sync.WaitGroup
			for i := range sets {
				all.Go(func() {
					var newcomer *websocket.Conn
					within(t, "a place", func() bool { // on a busy machine, nobody may answer in time
						newcomer, _ = nodes[(i+2*round)%3].dial(t, fmt.Sprint(i))
						return newcomer != nil
					})
					if got := ending(t, sets[i][0]); got != evicted {
						t.Errorf("the oldest socket of user %d: %s", i, got)
					}
					sets[i] = append(sets[i][1:], newcomer)
					for _, conn := range sets[i] {
						stays(t, conn)
					}
				})
			}
			all.Wait()
			for i := range sets {
				within(t, "as many slots as the limit", func() bool {
					n, err := nodes[0].slots.Count(t.Context(), fmt.Sprintf("u:%d", i))
					return err == nil && n == limit
				})
			}
			older(t)
		}
		within(t, "each eviction to be told", func() bool {
			return nodes[0].ended(ErrEvicted)+nodes[1].ended(ErrEvicted)+nodes[2].ended(ErrEvicted) == users*rounds
		})
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
	pauses := make(map[string]bool)
	for range 50 {
		w := httptest.NewRecorder()
		g.Handler(http.NotFoundHandler()).ServeHTTP(w, upgradeRequest())
		h := w.Header()
		if w.Code != http.StatusTooManyRequests || h.Get("RateLimit") != `"user";r=0` || h.Get("RateLimit-Policy") != `"user";q=1;qu="concurrent-requests"` {
			t.Fatalf("%d %v", w.Code, h)
		}
		pauses[h.Get("Retry-After")] = true
	}
	if len(pauses) < 2 || len(pauses) > 6 {
		t.Errorf("Retry-After is one of %v", pauses)
	}
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
		g := mustNew(t, Config{Rules: []Rule{{Slots: sh.slots, Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}, OnClosed: func(s *Socket, err error) {
			sh.end(s, err)
			time.Sleep(2 * minEvictAge) // OnClosed may take its time
		}})
		sh.guards = append(sh.guards, g)
	}
	return sh
}

func (sh *cluster) end(s *Socket, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if age := time.Since(sh.open[s]); errors.Is(err, ErrEvicted) && age < minEvictAge {
		sh.t.Errorf("a socket was evicted after %v", age)
	}
	sh.ends = append(sh.ends, err)
	delete(sh.open, s)
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
	inner := &recorded{answered: func() { s.end() }}
	s.serve(&pipe{conn: inner}, upgradeRequest(), taken(inner.keep))
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
	time.Sleep(3 * minEvictAge)
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
		for range 300 {
			for i := range 6 {
				go sh.come(i%3, i == 3)
			}
			synctest.Wait()
			if n, _ := sh.slots.Count(t.Context(), everyone); n > 4 || int(n) != sh.held() {
				t.Fatalf("%d slots are counted, %d held", n, sh.held())
			}
			time.Sleep(3 * time.Second)
		}
		sh.closeAll()
		if n, _ := sh.slots.Count(t.Context(), everyone); n != 0 {
			t.Errorf("%d slots are left", n)
		}
	})
}

// A silentStore hands no notice on after its first answers, and does not close slots: a server does not answer.
type silentStore struct {
	slots.Registry

	left      atomic.Int64 // notices that are still handed on
	listeners atomic.Int64
}

func (d *silentStore) Backend() *backend.Stores { return &backend.Stores{Slots: d} }

func (d *silentStore) Announce(ctx context.Context, n slots.Notice, heard func(string) bool) ([]int64, error) {
	if d.left.Add(-1) < 0 {
		<-ctx.Done()
		return []int64{1}, nil
	}
	return d.Registry.Announce(ctx, n, heard)
}

func (*silentStore) Close(ctx context.Context, name string) error {
	<-ctx.Done()
	return fmt.Errorf("no answer about %q", name)
}

func (d *silentStore) Listen(name string, hear func(slots.Heard) slots.NoticeAnswer) (stop func()) {
	d.listeners.Add(1)
	end := d.Registry.Listen(name, hear)
	return func() {
		d.listeners.Add(-1)
		end()
	}
}

// A newcomer whose eviction is not confirmed closes itself, in time, and keeps no slot. A server that does not answer
// is an error of CloseAll.
func TestWithoutAnswers(t *testing.T) {
	for notices := range int64(2) {
		synctest.Test(t, func(t *testing.T) {
			d := &silentStore{Registry: new(core.MemoryStore).Backend().Slots}
			d.left.Store(notices)
			var causes []error
			g := mustNew(t, Config{
				Rules:    []Rule{{Slots: core.NewSlots(d, "user", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest}},
				OnClosed: func(_ *Socket, err error) { causes = append(causes, err) },
			})
			first := pipeTo(t, g, serveUntilClose)
			time.Sleep(minEvictAge)
			begin := time.Now()
			if notices == 0 {
				if s, a := g.admit(upgradeRequest(), upgrade); s != nil || a.Status != 429 || time.Since(begin) != searchTimeout {
					t.Error(s, a, time.Since(begin))
				}
			} else {
				second := pipeTo(t, g, serveUntilClose)
				if got := second.closes(); got != "1013 too many sockets are open; try again later" || time.Since(begin) != answerTimeout || g.held(t) != 1 {
					t.Error(got, time.Since(begin), g.held(t))
				}
				second.send(masked(0x88, ""))
				synctest.Wait()
				if len(causes) != 1 || !errors.Is(causes[0], ErrEvicted) {
					t.Error(causes)
				}
			}
			if g.held(t) != 1 || g.open() != 1 || d.listeners.Load() != 1 {
				t.Error(g.held(t), g.open(), d.listeners.Load())
			}
			begin = time.Now()
			if _, err := g.CloseAll(t.Context(), g.config.Rules[0].Slots, "x", 4000, ""); !errors.Is(err, core.ErrUnavailable) || time.Since(begin) != answerTimeout {
				t.Error(err, time.Since(begin))
			}
			first.Close()
			synctest.Wait()
			if n := g.open(); n != 0 || d.listeners.Load() != 0 || len(g.indexes[0].lists) != 0 {
				t.Error(n, d.listeners.Load(), g.indexes[0].lists)
			}
		})
	}
}

// A slowStore counts slots when nobody waits for that any more.
type slowStore struct{ slots.Registry }

func (d *slowStore) Backend() *backend.Stores { return &backend.Stores{Slots: d} }

func (*slowStore) Count(ctx context.Context, _, _ string) (int64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// A store that is silent after a newcomer's 101 leaves nobody above the limit: who is oldest here is evicted.
func TestEvictWithoutACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slowStore{new(core.MemoryStore).Backend().Slots}
		g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(d, "user", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}})
		first := pipeTo(t, g, serveUntilClose)
		time.Sleep(minEvictAge)
		second := pipeTo(t, g, serveUntilClose)
		if got := first.closes(); got != evicted {
			t.Error(got)
		}
		first.send(masked(0x88, ""))
		if synctest.Wait(); g.open() != 1 {
			t.Errorf("%d sockets are open", g.open())
		}
		second.Close()
	})
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

// Neither does a handshake that the handler refuses, or whose client has sent something before the 101.
func TestEvictNobodyForWhoIsTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		g.rules.Slots[0].OneMore = true
		kept := pipeTo(t, g, serveUntilClose)
		time.Sleep(minEvictAge)
		g.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), upgradeRequest())
		synctest.Wait()
		if all := g.oldestFirst(); len(all) != 1 || all[0].closes() || g.held(t) != 1 {
			t.Errorf("after a refusal: %d sockets, %d slots", len(all), g.held(t))
		}
		newcomer := dialPipe(t, g.Handler(taken(serveUntilClose)), upgradeRequest(), string(masked(0x81, "hello")))
		go io.Copy(io.Discard, newcomer)
		synctest.Wait()
		if all := g.oldestFirst(); len(all) != 2 || all[0].closes() || !all[1].closes() || g.held(t) != 1 {
			t.Errorf("%d sockets, %d slots", len(all), g.held(t))
		}
		newcomer.Close()
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
		if s == nil || s.eviction == nil {
			t.Fatal("nobody is to be evicted")
		}
		second := cl.guards[1].oldestFirst()[0]
		_ = second.end()
		inner := new(recorded)
		s.serve(&pipe{conn: inner}, upgradeRequest(), taken(inner.keep))
		synctest.Wait()
		if n, _ := cl.slots.Count(t.Context(), everyone); n != 2 || len(cl.ends) != 1 || cl.ends[0] != nil || s.closes() {
			t.Errorf("%d slots are held, ended: %v", n, cl.ends)
		}
		go cl.guards[0].oldestFirst()[0].end() // it has no slot to give, though its OnClosed has not returned
		time.Sleep(minEvictAge)
		cl.come(1, false)
		cl.come(1, false)
		synctest.Wait()
		if n, _ := cl.slots.Count(t.Context(), everyone); n != 2 || !s.closes() {
			t.Errorf("%d slots are held", n)
		}
		cl.closeAll()
	})
}

// The server of the oldest socket is cut off: the next one is evicted.
func TestEvictWithoutTheOldest(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	far := newNode(t, inRedis(t, proxy.Addr(), patient), Rule{WhenFull: EvictOldest}, 2)
	near := newNode(t, inRedis(t, server.Addr(), patient), Rule{WhenFull: EvictOldest}, 2)
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

// Where everything is admitted without the store, nobody is evicted or refused.
func TestEvictNobodyWithoutTheStore(t *testing.T) {
	away, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailOpen, SlotTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Client().Close()
	g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(away, "ws", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}})
	for i := range 3 {
		if s, a := g.admit(upgradeRequest(), upgrade); s == nil || s.eviction != nil {
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
			topic := cl.slots.Backend().Notices().Topic("user", everyone)
			return g.indexes[0].offer(topic, time.Now().Add(-age))
		}
		cl.come(0, false)
		time.Sleep(time.Second)
		cl.come(1, false)
		time.Sleep(time.Minute)
		first := ask(0, 0)
		time.Sleep(3 * time.Second)
		second := ask(1, 3*time.Second)
		if first.Age-second.Age != 1_000_000 || second.Age != 60_000_000 {
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
		if late := x.hear(slots.Heard{Topic: topic, Text: text, Age: evictOrderTimeout}); late.Text != "" || late.Then != nil {
			t.Error("an old notice is obeyed")
		}
		reply := x.hear(slots.Heard{Topic: topic, Text: text})
		if again := x.hear(slots.Heard{Topic: topic, Text: text}); reply.Then == nil || again.Then != nil || again.Text != reply.Text {
			t.Error("its slot is not taken once")
		}
		if c := x.offer(topic, time.Now()); c.Number != 2 {
			t.Errorf("socket %d is offered", c.Number)
		}
		for _, want := range []int{2, 0} {
			if n, err := g.CloseAll(t.Context(), g.config.Rules[0].Slots, everyone, 4001, "banned"); err != nil || n != want {
				t.Errorf("%d are closed, not %d: %v", n, want, err)
			}
		}
		before := g.held(t) // or the newcomer may miss the reply, and close itself
		if reply.Then(); before != 2 || g.held(t) != 1 {
			t.Errorf("%d slots are held, then %d", before, g.held(t))
		}
		for _, p := range []*peer{first, second} {
			if got := p.closes(); got != "4001 banned" {
				t.Error(got)
			}
			p.Close()
		}
	})
}

// An order to close is kept only as long as it may mean a handshake. It means no socket whose handshake began later.
func TestOrdersToCloseAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		x := &g.indexes[0]
		closeAll := func(want int, keys ...string) {
			t.Helper()
			for _, key := range keys {
				if n, err := g.CloseAll(t.Context(), x.slots, key, 4001, strings.Repeat("\x00", 500)); n != 0 || err != nil {
					t.Fatal(n, err)
				}
				topic := x.notices.Topic("ws", key)
				x.hear(slots.Heard{Topic: topic, Text: `{"do":"close"}`, Age: time.Second}) // the last counts
				if o := x.closeOrders[topic]; want > 0 && (!o.announcedAt.Equal(time.Now()) || len(o.order.Reason) != 123) {
					t.Errorf("%+v", o)
				}
			}
			if n := len(x.closeOrders); n != want {
				t.Errorf("%d orders, not %d", n, want)
			}
		}
		closeAll(0, "a")
		g.beginHandshake()
		closeAll(2, "a", "b", "a")
		s, _ := g.admit(upgradeRequest(), upgrade) // another, whose socket ends
		_ = s.end()
		time.Sleep(time.Second)
		closeAll(2, "b")
		time.Sleep(closeOrderTimeout - time.Second + 1)
		closeAll(2, "c") // a is forgotten
		g.endHandshake()
		closeAll(0)
		s, _ = g.admit(upgradeRequest(), upgrade)
		h := slots.Heard{Topic: s.links[0].topic, Text: `{"do":"close","code":4001}`, Age: 1}
		if late := x.hear(h); late.Text != "" || s.closes() {
			t.Error("it means a later socket")
		}
		h.Age = 0
		if now := x.hear(h); now.Text == "" || !s.closes() {
			t.Error("it means nobody")
		}
		_ = s.end()
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
