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
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

// CloseAll tells its caller of a server that is cut off. The sockets there are closed when it is back.
func TestCloseAllOfAServerThatIsCutOff(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	near := newNode(t, inRedis(t, "redis://"+server.Addr(), patient), Rule{}, 10)
	far := newNode(t, inRedis(t, "redis://"+proxy.Addr(), patient), Rule{}, 10)
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

// Devices are those of a user, which open sockets on three servers until the user is banned.
type devices struct {
	nodes  []*node
	banned atomic.Bool
	opened atomic.Int64

	mu      sync.Mutex
	open    map[*websocket.Conn]struct{} // at clients
	dialers sync.WaitGroup
}

func newDevices(t *testing.T, limit int64, whenFull WhenFull, open func() *redisstore.Store) *devices {
	d := &devices{open: make(map[*websocket.Conn]struct{})}
	key := func(r *http.Request) (string, error) {
		if d.banned.Load() {
			return "", keyfuncs.ErrAbsent
		}
		return byUser(r)
	}
	for range 3 {
		s := newNode(t, open(), Rule{Key: key, WhenFull: whenFull}, limit)
		s.guard.evictAge = 0
		d.nodes = append(d.nodes, s)
	}
	return d
}

// dial opens sockets until the user is banned.
func (d *devices) dial(t *testing.T) {
	for i := rand.IntN(3); !d.banned.Load(); i++ {
		conn, status := d.nodes[i%3].dial(t, "ann")
		if conn == nil {
			if status != 429 && status != 400 && status != 503 {
				t.Error(status)
			}
			<-time.After(time.Millisecond)
			continue
		}
		d.opened.Add(1)
		d.mu.Lock()
		d.open[conn] = struct{}{}
		d.mu.Unlock()
		go func() {
			for {
				if _, _, err := conn.ReadMessage(); err != nil {
					d.mu.Lock()
					delete(d.open, conn)
					d.mu.Unlock()
					return
				}
			}
		}()
	}
}

// grow waits until so many sockets were opened, while more come.
func (d *devices) grow(t *testing.T, sockets int64) {
	for range 4 {
		d.dialers.Go(func() { d.dial(t) })
	}
	within(t, "the sockets", func() bool { return d.opened.Load() >= sockets })
}

func (d *devices) sockets() (n int) {
	for _, s := range d.nodes {
		n += s.guard.open()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return n + len(d.open)
}

// A user with many sockets over three servers, who opens others all the time, is banned: none is left, and none opens.
func TestBanOfManySockets(t *testing.T) {
	const sockets = 200
	server := redistest.Start(t)
	for name, whenFull := range map[string]WhenFull{"EvictOldest": EvictOldest, "Refuse": Refuse} {
		t.Run(name, func(t *testing.T) {
			d := newDevices(t, sockets, whenFull, func() *redisstore.Store { return inRedis(t, "redis://"+server.Addr(), patient) })
			most := int64(sockets)
			if whenFull == EvictOldest {
				most += 3
			}
			d.grow(t, most)
			d.banned.Store(true)
			within(t, "all servers to answer", func() bool {
				_, err := d.nodes[0].guard.CloseAll(t.Context(), d.nodes[0].slots, "u:ann", 4001, "banned")
				return err == nil
			})
			d.dialers.Wait()
			within(t, "all to be closed", func() bool { return d.sockets() == 0 })
			within(t, "the slots to be free", func() bool {
				n, err := d.nodes[0].slots.Count(t.Context(), "u:ann")
				return n == 0 && err == nil
			})
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

// Whatever happens to Redis in whatever step of a ban: if all have answered, no socket is left, also if the ban had to be
// repeated.
func TestBanWhileRedisFails(t *testing.T) {
	t.Parallel()
	for how, fault := range map[string]func(*redistest.Server) (mend func()){
		"emptied":   func(s *redistest.Server) func() { s.Flush(); return nil },
		"restarted": func(s *redistest.Server) func() { s.Kill(); s.Restart(); return nil },
		"killed":    func(s *redistest.Server) func() { s.Kill(); return s.Restart },
		"stopped":   func(s *redistest.Server) func() { s.Pause(); return s.Resume },
	} {
		for step := range int64(4) {
			t.Run(fmt.Sprintf("%s after call %d", how, step), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				banWhile(t, &redis.UniversalOptions{Addrs: []string{server.Addr()}}, step, func() func() { return fault(server) })
			})
		}
	}
}

// The same in a failover to a replica that has nothing since the users came, also not the notice.
func TestBanInAFailover(t *testing.T) {
	t.Parallel()
	for _, step := range []int64{0, 2} {
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

// banWhile bans a user while something happens after a call of the ban's, until all servers have answered. It mends that
// when the ban fails.
func banWhile(t *testing.T, o *redis.UniversalOptions, step int64, happens func() (mend func())) {
	t.Helper()
	open := func() *redisstore.Store { return overRedis(t, o, 2*time.Second) }
	d := newDevices(t, 30, EvictOldest, open)
	d.grow(t, 30)
	admin := open()
	var mend func()
	fails := &stepper{do: func() { mend = happens() }}
	admin.Client().AddHook(fails)
	from := newNode(t, admin, Rule{}, 30)
	d.banned.Store(true)
	fails.left.Store(step + 1)
	fails.step() // step 0 is before all
	within(t, "all servers to answer", func() bool {
		if _, err := from.guard.CloseAll(t.Context(), from.slots, "u:ann", 4001, "banned"); err == nil {
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
