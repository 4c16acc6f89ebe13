package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

var evicting = nethttp.Rule{WhenFull: EvictOldest}

const evicted = "4009 too many devices"

// told returns the Config with what evicted sockets are told, if it evicts.
func told(c Config) Config {
	if c.evicts() {
		c.EvictCode, c.EvictReason = 4009, "too many devices"
	}
	return c
}

// The oldest socket of the fleet gives its slot to the new one, and is told why, wherever they
// are.
func TestEvictOldest(t *testing.T) {
	stores(t, func(t *testing.T, all []core.SlotStore) {
		var sites []*site
		for _, shared := range all {
			s := newSite(t, shared, Config{}, evicting, 3)
			s.settleAtOnce()
			sites = append(sites, s)
		}
		var conns []*websocket.Conn
		for _, s := range sites {
			conns = append(conns, s.must(t, "ann"))
		}
		other := sites[0].must(t, "bob")
		slots := sites[0].guard.config.Rules[0].Slots
		for i, s := range []int{2, 2, 0, 1} { // the newcomers'
			start := time.Now()
			conn, _ := sites[s].comes(t, "ann")
			conns = append(conns, conn)
			admitted := time.Since(start)
			// Which of them is the oldest, is known as exactly as servers can ask each other.
			within(t, "one is evicted", func() bool { return total(sites) == int64(i+1) })
			t.Logf("newcomer %d is admitted after %v, and the oldest closed after %v", i, admitted, time.Since(start))
			within(t, "as many slots as the limit", func() bool {
				n, err := slots.Count(t.Context(), "ann")
				return err == nil && n == 3
			})
		}
		stays(t, other)
		stays(t, conns[len(conns)-1])
		endings := make(chan string, len(conns))
		for _, conn := range conns[:len(conns)-1] {
			go func() { endings <- ending(t, conn) }()
		}
		for range 4 { // a Close frame comes a moment after its socket has been evicted
			if got := <-endings; got != evicted {
				t.Error(got)
			}
		}
		for _, conn := range conns[:len(conns)-1] {
			conn.WriteMessage(websocket.TextMessage, []byte("hello"))
		}
		for range len(conns) - 1 - 4 {
			if got := <-endings; got != "hello" {
				t.Error(got)
			}
		}
	})
}

// comes is dial until it is not refused: a slot that is released is free a moment later.
func (s *site) comes(t *testing.T, user string, more ...string) (conn *websocket.Conn, status int) {
	t.Helper()
	within(t, "a place", func() bool {
		conn, status = s.dial(t, user, more...)
		return status != 429
	})
	return conn, status
}

// settleAtOnce makes any socket old enough, and a busy machine's answers come in time.
func (s *site) settleAtOnce() {
	f := s.guard.fleet
	f.Settled, f.Search, f.Ask = 0, patient, patient
}

// A tally counts the sockets of a guard that were evicted.
func (s *site) tally(_ *Socket, e Event) {
	if e.Kind == EventEvicted {
		s.evicted.Add(1)
	}
}

func total(sites []*site) (n int64) {
	for _, s := range sites {
		n += s.evicted.Load()
	}
	return n
}

// within waits until a condition holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

// If the handler refuses the upgrade, nobody is evicted.
func TestEvictNobodyForARefusedUpgrade(t *testing.T) {
	stores(t, func(t *testing.T, all []core.SlotStore) {
		a, b := newSite(t, all[0], Config{}, evicting, 1), newSite(t, all[1], Config{}, evicting, 1)
		a.settleAtOnce()
		b.settleAtOnce()
		kept := a.must(t, "ann")
		for _, s := range []*site{a, b} {
			if _, status := s.comes(t, "ann", "Forbidden"); status != 403 {
				t.Error(status)
			}
		}
		stays(t, kept)
		slots := a.guard.config.Rules[0].Slots
		within(t, "the slots to be given back", func() bool {
			n, err := slots.Count(t.Context(), "ann")
			return err == nil && n == 1
		})
		b.comes(t, "ann")
		if got := ending(t, kept); got != evicted {
			t.Error(got)
		}
	})
}

// A bubble has a guard for each of three servers, and a day's time to spend.
type shop struct {
	t      *testing.T
	guards []*Guard
	limit  int64

	mu   sync.Mutex
	open map[*Socket]time.Time // since when, of those that hold a slot
	ends map[*Socket]EventKind
}

func newShop(t *testing.T, shared core.SlotStore, servers int, limit int64, rule nethttp.Rule) *shop {
	t.Helper()
	return newShopOf(t, Config{}, shared, servers, limit, rule)
}

func newShopOf(t *testing.T, config Config, shared core.SlotStore, servers int, limit int64, rule nethttp.Rule) *shop {
	t.Helper()
	sh := &shop{t: t, limit: limit, open: make(map[*Socket]time.Time), ends: make(map[*Socket]EventKind)}
	for range servers {
		rule.Slots, rule.Key = newSlots(t, shared, "user", limit), keyfuncs.Everyone()
		config.Rules, config.Notify = []nethttp.Rule{rule}, sh.note
		g, err := New(told(config))
		if err != nil {
			t.Fatal(err)
		}
		sh.guards = append(sh.guards, g)
	}
	return sh
}

func (sh *shop) note(s *Socket, e Event) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e.Kind == EventEvicted {
		if age := time.Since(sh.open[s]); age < 10*time.Second {
			sh.t.Errorf("a socket was evicted after %v", age)
		}
	}
	if e.Kind != EventClosed {
		sh.ends[s] = e.Kind
	}
	delete(sh.open, s)
}

// come opens a socket on a server, and returns its verdict.
func (sh *shop) come(server int) nethttp.Verdict {
	v := sh.guards[server].Check(upgradeRequest())
	if v.Status() == 0 {
		sh.mu.Lock()
		sh.open[socketOf(v)] = time.Now()
		sh.mu.Unlock()
	}
	return v
}

func (sh *shop) held() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return len(sh.open)
}

func (sh *shop) closeAll() {
	for _, g := range sh.guards {
		for _, s := range g.all() {
			s.life.End()
		}
	}
	synctest.Wait()
}

// A thousand newcomers at a full key, over three servers: never more hold a slot than the
// limit, and one; who is evicted had his socket for ten seconds or more.
func TestThousandNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := newShop(t, &staying{memstore.New(memstore.Config{})}, 3, 5, evicting)
		admitted, refused := 0, 0
		for i := range 1000 {
			v := sh.come(i % 3)
			switch v.Status() {
			case 0:
				if n := sh.held(); n > 6 {
					t.Fatalf("%d hold slots", n)
				}
				serve(v)
				admitted++
			case 429:
				refused++
			default:
				t.Fatal(v.Status())
			}
			synctest.Wait()
			if n := sh.held(); n > 5 {
				t.Fatalf("%d hold slots", n)
			}
			time.Sleep(time.Second)
		}
		// Five are evicted in ten seconds, since each is young for so long.
		if admitted < 495 || refused < 495 || sh.held() != 5 {
			t.Errorf("%d admitted, %d refused, %d held", admitted, refused, sh.held())
		}
		sh.mu.Lock()
		for _, kind := range sh.ends {
			if kind != EventEvicted {
				t.Errorf("a socket has ended with %v", kind)
			}
		}
		if len(sh.ends) != admitted-5 {
			t.Errorf("%d evicted for %d admitted", len(sh.ends), admitted)
		}
		sh.mu.Unlock()
		sh.closeAll()
	})
}

// Newcomers that come at once, hang up, leave, or never upgrade, on three servers: no slot is
// lost or counted twice.
func TestEvictionsThatCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &staying{memstore.New(memstore.Config{})}
		sh := newShop(t, shared, 3, 4, evicting)
		slots := sh.guards[0].config.Rules[0].Slots
		key, _ := keyfuncs.Everyone()(nil)
		for range 300 {
			for i := range 6 {
				go func() {
					v := sh.come(i % 3)
					if v.Status() != 0 {
						return
					}
					switch i {
					case 3:
						socketOf(v).life.End() // the handshake was refused
					case 4:
						serve(v)
						socketOf(v).life.End() // the client hangs up
					default:
						serve(v)
					}
				}()
			}
			synctest.Wait()
			if n, _ := slots.Count(t.Context(), key); n > 4 || int(n) != sh.held() {
				t.Fatalf("%d slots are counted, %d held", n, sh.held())
			}
			time.Sleep(3 * time.Second)
		}
		sh.closeAll()
		if n, _ := slots.Count(t.Context(), key); n != 0 {
			t.Errorf("%d slots are left", n)
		}
	})
}

// A deaf store hands no notice on after its first answers.
type deaf struct {
	store.Noticer

	ear atomic.Int64 // notices that are still handed on
}

func (d *deaf) CloseSlots(context.Context, string) error { return nil }

func (d *deaf) Announce(ctx context.Context, n store.Notice, heard func(string) bool) ([]int64, error) {
	if d.ear.Add(-1) < 0 {
		<-ctx.Done()
		return []int64{1}, nil
	}
	return d.Noticer.Announce(ctx, n, heard)
}

// If the servers do not answer, the newcomer is refused, or closed, in time, and keeps no slot.
func TestEvictionWithoutAnswers(t *testing.T) {
	for notices, want := range []struct {
		status int
		took   time.Duration
	}{{429, time.Second}, {0, 2 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			shared := &deaf{Noticer: memstore.New(memstore.Config{})}
			sh := newShop(t, shared, 2, 1, evicting)
			serve(sh.come(0))
			time.Sleep(time.Minute)
			shared.ear.Store(int64(notices))
			start := time.Now()
			v := sh.come(1)
			if v.Status() != want.status {
				t.Fatal(v.Status())
			}
			if v.Status() == 0 {
				serve(v)
				<-socketOf(v).Done()
				if kind := sh.ends[socketOf(v)]; kind != EventShed {
					t.Error(kind)
				}
			}
			if took := time.Since(start); took != want.took {
				t.Errorf("after %v, want %v", took, want.took)
			}
			synctest.Wait()
			if sh.held() != 1 || sh.guards[0].Len() != 1 {
				t.Errorf("%d held", sh.held())
			}
			sh.closeAll()
		})
	}
}

// Nobody is evicted for a socket for which there is room when its 101 is written.
func TestEvictNobodyIfSomebodyLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := newShop(t, &staying{memstore.New(memstore.Config{})}, 2, 2, evicting)
		first, second := sh.come(0), sh.come(1)
		serve(first)
		serve(second)
		time.Sleep(time.Minute)
		v := sh.come(1)
		socketOf(second).life.End()
		serve(v)
		synctest.Wait()
		if len(sh.ends) != 0 || sh.held() != 2 {
			t.Errorf("%v; %d held", sh.ends, sh.held())
		}
		// The oldest is being closed when it is to be evicted: nobody else is.
		time.Sleep(time.Minute)
		v = sh.come(1)
		socketOf(first).Close(1000, "")
		serve(v)
		synctest.Wait()
		if delete(sh.ends, socketOf(first)); sh.held() != 2 || len(sh.ends) != 0 {
			t.Errorf("%v; %d held", sh.ends, sh.held())
		}
		sh.closeAll()
	})
}

// In shadow mode nobody is closed; what is counted is what would be.
func TestEvictInShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := newShopOf(t, Config{ObserveOnly: true}, memstore.New(memstore.Config{}), 1, 1, evicting)
		first := sh.come(0)
		serve(first)
		time.Sleep(time.Minute)
		serve(sh.come(0))
		synctest.Wait()
		if sh.ends[socketOf(first)] != EventEvicted || sh.held() != 1 || sh.guards[0].Len() != 2 {
			t.Errorf("%v, %d held, %d open", sh.ends, sh.held(), sh.guards[0].Len())
		}
		sh.closeAll()
	})
}

// The server of the oldest socket is cut off: the next one goes.
func TestEvictWithoutTheOldest(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	far := newSite(t, inRedis(t, proxy.Addr()), Config{}, evicting, 2)
	near := newSite(t, inRedis(t, server.Addr()), Config{}, evicting, 2)
	far.guard.fleet.Settled, near.guard.fleet.Settled = 0, 0
	oldest, next := far.must(t, "ann"), near.must(t, "ann")
	proxy.Cut()
	near.must(t, "ann")
	if got := ending(t, next); got != evicted {
		t.Error(got)
	}
	proxy.Heal()
	stays(t, oldest)
}

// A key with a hundred thousand sockets gives up its oldest.
func TestEvictOfMany(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const sockets = 100_000
	synctest.Test(t, func(t *testing.T) {
		sh := newShop(t, memstore.New(memstore.Config{}), 1, sockets, evicting)
		first := sh.come(0)
		for range sockets - 1 {
			sh.come(0)
		}
		time.Sleep(time.Minute)
		serve(sh.come(0))
		synctest.Wait()
		if sh.ends[socketOf(first)] != EventEvicted || sh.held() != sockets {
			t.Errorf("%v, %d held", sh.ends, sh.held())
		}
		sh.closeAll()
	})
}

func TestEvictionFaults(t *testing.T) {
	slots := newSlots(t, memstore.New(memstore.Config{}), "user", 1)
	others := newSlots(t, memstore.New(memstore.Config{}), "other", 1)
	rule := func(change func(*nethttp.Rule)) nethttp.Rule {
		r := evicting
		r.Slots, r.Key = slots, keyfuncs.Everyone()
		change(&r)
		return r
	}
	for _, c := range []struct {
		rules  []nethttp.Rule
		field  string
		code   int
		reason string
	}{
		{rules: []nethttp.Rule{rule(func(*nethttp.Rule) {})}, field: ""},
		{rules: []nethttp.Rule{rule(func(*nethttp.Rule) {})}, field: "EvictCode", code: 1005},
		{rules: []nethttp.Rule{rule(func(*nethttp.Rule) {})}, field: "EvictReason", reason: strings.Repeat("x", 124)},
		{rules: []nethttp.Rule{rule(func(r *nethttp.Rule) { r.WhenFull = nethttp.Refuse })}, field: "EvictCode", code: 4009},
		{rules: []nethttp.Rule{rule(func(r *nethttp.Rule) { r.WhenFull = nethttp.Refuse })}, field: "EvictReason", reason: "x"},
		{rules: []nethttp.Rule{rule(func(r *nethttp.Rule) { r.Queue = 1 })}, field: "Rules[0].WhenFull"},
		{rules: []nethttp.Rule{rule(func(r *nethttp.Rule) { r.Service = true })}, field: "Rules[0].WhenFull"},
		{rules: []nethttp.Rule{rule(func(r *nethttp.Rule) { r.WhenFull = 2 })}, field: "Rules[0].WhenFull"},
		{rules: []nethttp.Rule{rule(func(*nethttp.Rule) {}), rule(func(r *nethttp.Rule) { r.Slots = others })}, field: "Rules[1].WhenFull"},
	} {
		_, err := New(Config{Rules: c.rules, EvictCode: c.code, EvictReason: c.reason})
		var fault *ConfigError
		if errors.As(err, &fault) != (c.field != "") || fault != nil && fault.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

// stated returns how many slots all servers have stated of ann, at one instant.
func stated(t *testing.T, server *redistest.Server) (n int64) {
	t.Helper()
	reply, err := server.Do("HVALS", "headgate:{=ann}:user:slots")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range reply.([]any) {
		count, _, _ := strings.Cut(fmt.Sprint(field), ":")
		held, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n += held
	}
	return n
}

// A real fleet: newcomers on three servers that share Redis, as fast as they come.
func TestNewcomersOfAFleet(t *testing.T) {
	const limit, newcomers = 3, 1000
	server := redistest.Start(t)
	var sites []*site
	for range 3 {
		s := newSite(t, inRedis(t, server.Addr()), Config{}, evicting, limit)
		s.settleAtOnce()
		sites = append(sites, s)
	}
	var mu sync.Mutex
	var open []*websocket.Conn
	var all, dialers sync.WaitGroup
	reasons := make(chan string, 1<<20)
	const evictions = 5
	var came atomic.Int64
	for range 3 {
		dialers.Go(func() {
			for i := came.Add(1); i <= newcomers || total(sites) < evictions; i = came.Add(1) {
				conn, status := sites[i%3].dial(t, "ann")
				if conn == nil {
					if status != 429 {
						t.Error(status)
					}
					<-time.After(time.Millisecond)
					continue
				}
				mu.Lock()
				open = append(open, conn)
				mu.Unlock()
				all.Go(func() {
					for {
						if _, _, err := conn.ReadMessage(); err != nil {
							mu.Lock()
							open = slices.DeleteFunc(open, func(c *websocket.Conn) bool { return c == conn })
							mu.Unlock()
							reasons <- fmt.Sprint(err)
							return
						}
					}
				})
			}
		})
	}
	slots := sites[0].guard.config.Rules[0].Slots
	within(t, "as many sockets as the limit", func() bool {
		if n := stated(t, server); n > limit+1 {
			t.Fatalf("%d slots are counted", n)
		}
		n, err := slots.Count(t.Context(), "ann")
		mu.Lock()
		defer mu.Unlock()
		return err == nil && came.Load() > newcomers && total(sites) >= evictions && n == limit && len(open) == limit
	})
	dialers.Wait()
	for _, s := range sites {
		if err := s.guard.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	close(reasons)
	n := 0
	for why := range reasons {
		switch {
		case strings.Contains(why, "4009: too many devices"):
			n++
		case !strings.Contains(why, "1001") && !strings.Contains(why, "1013"):
			t.Error(why)
		}
	}
	t.Logf("%d of %d newcomers had others evicted", n, came.Load())
	if int64(n) != total(sites) {
		t.Errorf("%d of %d that were evicted know why", n, total(sites))
	}
}

// At a full key the oldest socket is closed and the newcomer stays: never both are closed, also if
// a thousand users come at once, and however the answers of servers cross the releases.
func TestNewcomersStay(t *testing.T) {
	users, rounds := 200, 3
	if testing.Short() {
		users, rounds = 50, 1
	}
	server := redistest.Start(t)
	var sites []*site
	for range 3 {
		s := newSite(t, inRedis(t, server.Addr()), Config{}, evicting, 1)
		s.settleAtOnce()
		sites = append(sites, s)
	}
	olds := make([]*websocket.Conn, users)
	for i := range olds {
		olds[i] = sites[i%3].must(t, fmt.Sprint(i))
	}
	for round := range rounds {
		var all sync.WaitGroup
		for i := range olds {
			all.Go(func() {
				s := sites[(i+round+1)%3]
				newcomer, status := s.dial(t, fmt.Sprint(i))
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
				n, err := sites[0].guard.config.Rules[0].Slots.Count(t.Context(), fmt.Sprint(i))
				return err == nil && n == 1
			})
		}
	}
	if n := total(sites); n != int64(users*rounds) {
		t.Errorf("%d were evicted of %d", n, users*rounds)
	}
}

// A client over its rate closes nobody's socket, takes no slot, and asks no server.
func TestOverTheRateEvictsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counter{Noticer: memstore.New(memstore.Config{})}
		rate := newLimiter(t, core.SlidingLog(core.PerHour(2)))
		key := keyfuncs.Everyone()
		g, err := New(Config{Rules: []nethttp.Rule{
			{Slots: newSlots(t, store, "user", 1), Key: key, WhenFull: EvictOldest},
			{Limiter: rate, Key: key},
		}})
		if err != nil {
			t.Fatal(err)
		}
		v := g.Check(upgradeRequest())
		first := socketOf(v)
		serve(v)
		time.Sleep(time.Minute)
		second := g.Check(upgradeRequest())
		if second.Status() != 0 || socketOf(second) == nil {
			t.Fatalf("%d, %v", second.Status(), second.Err)
		}
		second.End(nethttp.Outcome{}) // the handler has refused
		asked, _, _ := store.counts()
		for range 10 {
			if v := g.Check(upgradeRequest()); v.Status() != 429 || v.Limiter() != rate.Name() {
				t.Errorf("%d by %q", v.Status(), v.Limiter())
			}
		}
		if again, _, _ := store.counts(); again != asked || first.life.Ended() || g.Len() != 1 {
			t.Errorf("%d claims, not %d; the first has ended: %v", again, asked, first.life.Ended())
		}
		first.life.End()
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// If nobody may be evicted, the units go back.
func TestUnitsGoBackIfNobodyIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := newLimiter(t, core.SlidingLog(core.PerHour(100)))
		key := keyfuncs.Everyone()
		g, err := New(Config{Rules: []nethttp.Rule{
			{Slots: newSlots(t, memstore.New(memstore.Config{}), "user", 1), Key: key, WhenFull: EvictOldest},
			{Limiter: rate, Key: key},
		}})
		if err != nil {
			t.Fatal(err)
		}
		first := g.Check(upgradeRequest())
		for range 10 { // the first is too young
			if v := g.Check(upgradeRequest()); v.Status() != 429 {
				t.Errorf("%d, %v", v.Status(), v.Err)
			}
		}
		everyone, _ := key(nil)
		if d, err := rate.Peek(t.Context(), everyone); err != nil || d.Remaining != 99 {
			t.Errorf("%d left, not 99; %v", d.Remaining, err)
		}
		first.End(nethttp.Outcome{})
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Where everything is admitted without the store, nobody is evicted or refused.
func TestEvictNobodyWithoutTheStore(t *testing.T) {
	away := core.Must(redisstore.OpenURL("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailOpen, SlotTTL: time.Second}))
	defer away.Client().Close()
	guard := core.Must(New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, away, "ws", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest}}}))
	for i := range 3 {
		if v := guard.Check(upgradeRequest()); v.Status() != 0 {
			t.Errorf("socket %d: %d", i+1, v.Status())
		}
	}
	both := core.Must(New(Config{Rules: []nethttp.Rule{ // one store of two is away
		{Slots: newSlots(t, memstore.New(memstore.Config{}), "user", 1), Key: keyfuncs.Everyone(), WhenFull: EvictOldest},
		{Slots: newSlots(t, away, "all", 100), Key: keyfuncs.Everyone()},
	}}))
	if v := both.Check(upgradeRequest()); v.Status() != 0 {
		t.Error(v.Status())
	}
}
