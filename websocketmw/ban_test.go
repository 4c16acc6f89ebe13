package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
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

var byUser = keyfuncs.Header("User")

// CloseAll means a socket whose handshake has begun, however late it is admitted: its user was
// welcome then. It does not mean later ones.
func TestCloseAllMeansHandshakesThatHaveBegun(t *testing.T) {
	stores(t, func(t *testing.T, all []core.SlotStore) {
		for user, heard := range map[string]bool{"ann": true, "eve": false} {
			begun, admit := make(chan struct{}), make(chan struct{})
			slow := func(r *http.Request) (string, error) {
				if r.Header.Get("Slow") != "" {
					close(begun)
					<-admit
				}
				return byUser(r)
			}
			near := newSite(t, all[0], Config{Server: "near"}, nethttp.Rule{}, 10)
			far := newSite(t, all[1], Config{Server: "far"}, nethttp.Rule{Key: slow}, 10)
			other := far.must(t, "bob")
			var conns []*websocket.Conn
			if heard { // before CloseAll returns
				conns = append(conns, far.must(t, user))
			}
			coming := make(chan *websocket.Conn)
			go func() {
				conn, _ := far.dial(t, user, "Slow")
				coming <- conn
			}()
			<-begun
			if _, err := near.guard.CloseAll(t.Context(), "user", user, 4001, "banned"); err != nil {
				t.Fatal(err)
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
			late := far.must(t, user)
			stays(t, other)
			stays(t, late)
			if n := far.guard.fleet.Bans() + near.guard.fleet.Bans(); n != 0 {
				t.Errorf("%d closings are not forgotten", n)
			}
		}
	})
}

// In shadow mode, limits close nothing, but CloseAll closes all: also what has no slot.
func TestCloseAllInShadow(t *testing.T) {
	for _, rule := range []nethttp.Rule{{}, evicting} {
		shared := memstore.New(memstore.Config{})
		s := newSite(t, shared, Config{Server: "a", ObserveOnly: true}, rule, 1)
		s.settleAtOnce()
		conns := []*websocket.Conn{s.must(t, "ann"), s.must(t, "ann"), s.must(t, "ann")}
		for _, conn := range conns {
			stays(t, conn)
		}
		if p, err := s.guard.CloseAll(t.Context(), "user", "ann", 4001, "banned"); err != nil || p.Open != 3 {
			t.Errorf("%v, %+v", err, p)
		}
		for _, conn := range conns {
			if got := ending(t, conn); got != "4001 banned" {
				t.Error(got)
			}
		}
	}
}

// Devices are those of a user, which open sockets on three servers until the user is banned.
type devices struct {
	sites  []*site
	banned atomic.Bool
	came   atomic.Int64 // sockets that were opened

	mu      sync.Mutex
	open    map[*websocket.Conn]string // at clients, and how each has ended
	dialers sync.WaitGroup
}

var errBanned = errors.New("the user is banned")

func newDevices(t *testing.T, limit int64, rule nethttp.Rule, timeout time.Duration, o *redis.UniversalOptions) *devices {
	c := &devices{open: make(map[*websocket.Conn]string)}
	rule.Key = func(r *http.Request) (string, error) {
		if c.banned.Load() {
			return "", errBanned
		}
		return byUser(r)
	}
	for i := range 3 {
		s := newSite(t, openRedis(t, o, timeout), Config{Server: fmt.Sprint(i)}, rule, limit)
		s.guard.fleet.Settled = 0
		c.sites = append(c.sites, s)
	}
	return c
}

// dials opens sockets until the user is banned.
func (c *devices) dials(t *testing.T) {
	for i := rand.IntN(3); !c.banned.Load(); i++ {
		conn, status := c.sites[i%3].dial(t, "ann")
		if conn == nil {
			if status != 429 && status != 400 && status != 503 {
				t.Error(status)
			}
			<-time.After(time.Millisecond)
			continue
		}
		c.came.Add(1)
		c.mu.Lock()
		c.open[conn] = ""
		c.mu.Unlock()
		go func() {
			for {
				if _, _, err := conn.ReadMessage(); err != nil {
					c.mu.Lock()
					delete(c.open, conn)
					c.mu.Unlock()
					return
				}
			}
		}()
	}
}

// grow waits until so many sockets are open, and new ones come.
func (c *devices) grow(t *testing.T, sockets int64) {
	for range 4 {
		c.dialers.Go(func() { c.dials(t) })
	}
	within(t, "the sockets", func() bool { return c.came.Load() >= sockets })
}

func (c *devices) sockets() (n int) {
	for _, s := range c.sites {
		n += s.guard.Len()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return n + len(c.open)
}

// A user with a thousand sockets over three servers, who opens others all the time, is banned:
// none is left, and none opens.
func TestBanOfThousandSockets(t *testing.T) {
	sockets := int64(1000)
	if testing.Short() {
		sockets = 100
	}
	server := redistest.Start(t)
	for name, rule := range map[string]nethttp.Rule{"EvictOldest": evicting, "Refuse": {}} {
		t.Run(name, func(t *testing.T) {
			c := newDevices(t, sockets, rule, patient, &redis.UniversalOptions{Addrs: []string{server.Addr()}})
			for _, s := range c.sites {
				s.guard.fleet.Ask = patient
			}
			most := sockets // that are admitted at once
			if name == "EvictOldest" {
				most += 3
			}
			c.grow(t, most)
			c.banned.Store(true)
			p, err := c.sites[0].guard.CloseAll(t.Context(), "user", "ann", 4001, "banned")
			if err != nil || len(p.Silent) > 0 {
				t.Fatalf("%v, %+v", err, p.Silent)
			}
			t.Logf("%d sockets were closed of %d that had been opened", p.Open, c.came.Load())
			c.dialers.Wait()
			within(t, "all to be closed", func() bool { return c.sockets() == 0 })
			within(t, "the slots to be free", func() bool { return stated(t, server) == 0 })
		})
	}
}

// A stepper is a hook that does something once, after so many calls have been answered.
type stepper struct {
	left atomic.Int64
	do   func()
}

func (s *stepper) step() {
	if s.left.Add(-1) == 0 {
		s.do()
	}
}

func (*stepper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stepper) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer s.step()
		return next(ctx, cmd)
	}
}

func (s *stepper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer s.step()
		return next(ctx, cmds)
	}
}

// Whatever happens to Redis in whatever step of a ban: who is told that all have answered, has
// none left, and nobody has who repeats a ban that was not answered by all.
func TestBanWhileRedisFails(t *testing.T) {
	t.Parallel()
	for how, fault := range map[string]func(*redistest.Server) (mend func()){
		"emptied":   func(s *redistest.Server) func() { s.Flush(); return nil },
		"restarted": func(s *redistest.Server) func() { s.Kill(); s.Restart(); return nil },
		"killed":    func(s *redistest.Server) func() { s.Kill(); return s.Restart },
		"stopped":   func(s *redistest.Server) func() { s.Pause(); return s.Resume },
	} {
		for step := range int64(6) {
			t.Run(fmt.Sprintf("%s after call %d", how, step), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				banWhile(t, &redis.UniversalOptions{Addrs: []string{server.Addr()}}, step, func() func() { return fault(server) })
			})
		}
	}
}

// The same in a failover that loses all since the users came, also the notice.
func TestBanInAFailover(t *testing.T) {
	t.Parallel()
	for _, step := range []int64{2, 5} {
		t.Run(fmt.Sprintf("after call %d", step), func(t *testing.T) {
			t.Parallel()
			d := redistest.StartSentinel(t)
			master := d.Master()
			if _, err := d.Replica().Do("REPLICAOF", "127.0.0.1", "1"); err != nil { // where nobody is
				t.Fatal(err)
			}
			banWhile(t, &redis.UniversalOptions{Addrs: d.Addrs(), MasterName: redistest.MasterName}, step, func() func() {
				master.Kill()
				return nil
			})
			if d.Master() == master {
				t.Error("no failover was needed")
			}
		})
	}
}

// banWhile bans a user while something happens after a call of the ban's, until all servers have
// answered. It mends that when the ban fails.
func banWhile(t *testing.T, o *redis.UniversalOptions, step int64, happens func() (mend func())) {
	t.Helper()
	d := newDevices(t, 30, evicting, 2*time.Second, o)
	d.grow(t, 30)
	admin := openRedis(t, o, 2*time.Second)
	var mend func()
	fails := &stepper{do: func() { mend = happens() }}
	admin.(*redisstore.Store).Client().AddHook(fails)
	guard := newSite(t, admin, Config{Server: "admin"}, nethttp.Rule{}, 30).guard
	d.banned.Store(true)
	fails.left.Store(step + 1)
	fails.step() // step 0 is before all
	within(t, "all servers to answer", func() bool {
		p, err := guard.CloseAll(t.Context(), "user", "ann", 4001, "banned")
		if err == nil && len(p.Silent) == 0 {
			return true
		}
		if mend != nil {
			mend()
			mend = nil
		}
		return false
	})
	within(t, "all to be closed", func() bool { return d.sockets() == 0 })
	d.dialers.Wait()
	if mend != nil {
		mend()
	}
}
