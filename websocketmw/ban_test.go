package websocketmw

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

// Devices are those of a user, which open sockets on three servers until the user is banned.
type devices struct {
	nodes  []*node
	banned atomic.Bool
	opened atomic.Int64

	mu      sync.Mutex
	open    map[*websocket.Conn]struct{} // at clients
	dialers sync.WaitGroup
}

func newDevices(t *testing.T, limit int64, open func() *redisstore.Store) *devices {
	d := &devices{open: make(map[*websocket.Conn]struct{})}
	key := func(r *http.Request) (string, error) {
		if d.banned.Load() {
			return "", keyfuncs.ErrAbsent
		}
		return byUser(r)
	}
	for range 3 {
		s := newNode(t, open(), Rule{Key: key, WhenFull: EvictOldest}, limit)
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

func (d *devices) sockets() (n int) {
	for _, s := range d.nodes {
		n += s.guard.open()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return n + len(d.open)
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

// A user who opens sockets on three servers all the time is banned, and Redis is emptied, restarted, or fails over to a
// replica that has nothing since the user came, in a step of that: if all have answered, no socket is left.
func TestBanWhileRedisFails(t *testing.T) {
	t.Parallel()
	alone := func(fault func(*redistest.Server)) func(t *testing.T) (*redis.UniversalOptions, func()) {
		return func(t *testing.T) (*redis.UniversalOptions, func()) {
			server := redistest.Start(t)
			return &redis.UniversalOptions{Addrs: []string{server.Addr()}}, func() { fault(server) }
		}
	}
	for what, begin := range map[string]func(t *testing.T) (*redis.UniversalOptions, func()){
		"emptied":   alone((*redistest.Server).Flush),
		"restarted": alone((*redistest.Server).Restart),
		"failover": func(t *testing.T) (*redis.UniversalOptions, func()) {
			d := redistest.StartSentinel(t)
			master := d.Master()
			if _, err := d.Replica().Do("REPLICAOF", "127.0.0.1", "1"); err != nil { // where nobody is
				t.Fatal(err)
			}
			return &redis.UniversalOptions{Addrs: d.Addrs(), MasterName: redistest.MasterName}, master.Kill
		},
	} {
		for _, step := range []int64{0, 2} {
			t.Run(fmt.Sprintf("%s after call %d", what, step), func(t *testing.T) {
				t.Parallel()
				o, fails := begin(t)
				d := newDevices(t, 30, func() *redisstore.Store { return overRedis(t, o, 2*time.Second) })
				for range 4 {
					d.dialers.Go(func() { d.dial(t) })
				}
				within(t, "the sockets", func() bool { return d.opened.Load() >= 30 })
				admin, hook := overRedis(t, o, 2*time.Second), &stepper{do: fails}
				admin.Client().AddHook(hook)
				from := newNode(t, admin, Rule{}, 30)
				d.banned.Store(true)
				hook.left.Store(step + 1)
				hook.step() // step 0 is before all
				within(t, "all servers to answer", func() bool {
					_, err := from.guard.CloseAll(t.Context(), from.slots, "u:ann", 4001, "banned")
					return err == nil
				})
				within(t, "all to be closed", func() bool { return d.sockets() == 0 })
				d.dialers.Wait()
			})
		}
	}
}
