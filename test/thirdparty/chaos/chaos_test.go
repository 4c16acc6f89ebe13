// Package chaos runs several server processes with WebSockets of different libraries over one
// Redis, while processes are killed and stopped and Redis forgets, and counts what they truly
// hold.
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gorilla "github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

var (
	length = flag.Duration("chaos", 0, "how long each fleet of servers has trouble; 0 means each kind of trouble once")
	burn   = flag.Int("burn", 8, "how many processes keep the machine busy meanwhile")
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	proctest.Main(m, proctest.Funcs{"serve": serve, "evict": serveEvicting, "burner": burner})
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// patience bounds every wait. Nothing waits longer than it must.
const patience = time.Minute

// A fleet is servers that share a limit, and users who want more sockets than that.
type fleet struct {
	settings

	t       *testing.T
	redis   *redistest.Server
	referee *referee
	servers []*server
	users   []*user
	counter *core.Slots
	started int
	tries   atomic.Int64
	refused atomic.Int64
}

type server struct {
	*proctest.Process

	name    string
	address string
	away    atomic.Bool // is stopped or killed
}

// A user opens and closes sockets.
type user struct {
	f    *fleet
	name string

	mu      sync.Mutex
	sockets map[*gorilla.Conn]bool
}

func newFleet(t *testing.T, servers, users, limit int, ttl time.Duration, local bool) *fleet {
	t.Helper()
	f := &fleet{t: t, redis: redistest.Start(t), referee: newReferee(t, limit)}
	f.settings = settings{f.redis.Addr(), f.referee.listener.Addr().String(), ttl, limit, local}
	for i := range servers {
		f.servers = append(f.servers, f.start(i))
	}
	for i := range users {
		f.users = append(f.users, &user{f: f, name: fmt.Sprint("user", i), sockets: make(map[*gorilla.Conn]bool)})
	}
	f.counter = f.slots()
	for range *burn {
		proctest.Start(t, "burner")
	}
	return f
}

// start starts a server in place i.
func (f *fleet) start(i int) *server {
	f.started++
	name := fmt.Sprintf("server-%d", f.started)
	s := &server{Process: proctest.Start(f.t, "serve", f.args(name, i%kinds)...), name: name}
	s.address = s.Line()
	return s
}

// slots returns the slots of another process.
func (f *fleet) slots() *core.Slots {
	c := f.config()
	c.Failure = redisstore.FailClosed
	s, err := redisstore.Open("redis://"+f.settings.redis, c)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { s.Client().Close() })
	return core.NewSlots(s, "ws", int64(f.limit))
}

// eventually waits until nothing is missing.
func (f *fleet) eventually(missing func() string) {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	for what := missing(); what != ""; what = missing() {
		if time.Now().After(deadline) {
			f.t.Fatalf("waited in vain: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// open tries to open a socket, and returns the status of the response, or 0.
func (u *user) open(s *server) (status int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, response, err := gorilla.DefaultDialer.DialContext(ctx, "ws://"+s.address, http.Header{userField: {u.name}})
	if response != nil {
		response.Body.Close()
		status = response.StatusCode
	}
	if err != nil {
		return status
	}
	u.mu.Lock()
	u.sockets[c] = true
	u.mu.Unlock()
	if err := u.hear(c); err != nil {
		u.forget(c)
		return status
	}
	go func() { // until the socket ends
		_, _, _ = c.ReadMessage()
		u.forget(c)
	}()
	return status
}

func (u *user) hear(c *gorilla.Conn) error {
	if err := c.WriteMessage(gorilla.TextMessage, []byte(u.name)); err != nil {
		return err
	}
	_, said, err := c.ReadMessage()
	if err == nil && string(said) != u.name {
		u.f.t.Errorf("%s heard %q", u.name, said)
	}
	return err
}

func (u *user) forget(c *gorilla.Conn) {
	c.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.sockets, c)
}

// close closes a socket, if the user has one.
func (u *user) close() {
	var c *gorilla.Conn
	u.mu.Lock()
	for c = range u.sockets {
		break
	}
	u.mu.Unlock()
	switch {
	case c == nil:
	case rand.IntN(2) == 0:
		_ = c.WriteControl(gorilla.CloseMessage, gorilla.FormatCloseMessage(gorilla.CloseNormalClosure, ""), time.Now().Add(patience))
	default:
		u.forget(c)
	}
}

// press opens as many sockets as it can, and closes some, until it is to stop.
func (u *user) press(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rand.IntN(10)) * time.Millisecond):
		}
		switch s := u.f.present(); {
		case rand.IntN(3) == 0:
			u.close()
		case s != nil:
			u.f.tries.Add(1)
			if u.open(s) == http.StatusTooManyRequests {
				u.f.refused.Add(1)
			}
		}
	}
}

// present returns a server that is there.
func (f *fleet) present() *server {
	for _, i := range rand.Perm(len(f.servers)) {
		if s := f.servers[i]; !s.away.Load() {
			return s
		}
	}
	return nil
}

// A trouble is something that happens to a fleet. It returns when it is over.
type trouble struct {
	name   string
	forget bool // Redis loses its data
	make   func(f *fleet)
}

var troubles = []trouble{
	{"none", false, func(*fleet) {}},
	{"a server is killed", false, func(f *fleet) {
		s := f.servers[rand.IntN(len(f.servers))]
		s.away.Store(true)
		f.referee.dies(s.name)
		s.Kill()
		f.eventually(func() string {
			if !f.referee.gone(s.name) {
				return "the end of " + s.name
			}
			return ""
		})
	}},
	{"a server is stopped", false, func(f *fleet) {
		s := f.servers[rand.IntN(len(f.servers))]
		s.away.Store(true)
		s.Pause()
		<-time.After(f.ttl * 4 / 3)
		s.Resume()
		s.away.Store(false)
	}},
	{"a server is stopped for a moment", false, func(f *fleet) {
		s := f.servers[rand.IntN(len(f.servers))]
		s.Pause()
		<-time.After(f.ttl / 3)
		s.Resume()
	}},
	{"FLUSHALL", true, func(f *fleet) { f.redis.Flush() }},
	{"Redis is restarted", true, func(f *fleet) { f.redis.Restart() }},
	{"Redis is stopped", false, func(f *fleet) {
		f.redis.Pause()
		<-time.After(f.ttl * 4 / 3)
		f.redis.Resume()
	}},
}

// round has users press for sockets while there is trouble, and holds afterwards that
// everything is as it should be: nothing was granted that was not there, Redis counts what is
// held, and what is free is granted.
func (f *fleet) round(trouble trouble) {
	f.t.Helper()
	stop := make(chan struct{})
	var all sync.WaitGroup
	for _, u := range f.users {
		all.Go(func() { u.press(stop) })
	}
	f.grants(2 * len(f.users))
	if trouble.forget {
		f.referee.allow(2 * f.limit)
	}
	trouble.make(f)
	over := time.Now()
	f.grants(2 * len(f.users))
	close(stop)
	all.Wait()
	f.right()
	f.t.Logf("%s: right again after %v", trouble.name, time.Since(over).Round(time.Millisecond))
	if trouble.forget {
		f.referee.allow(f.limit)
	}
	for i, s := range f.servers {
		if s.away.Load() {
			f.servers[i] = f.start(i)
		}
	}
	f.fill()
	f.eventually(func() string { // that a slot was lost may be told a little later
		return strings.Join(f.referee.faults(), "\n")
	})
	f.referee.forget()
}

// grants waits for so many more grants.
func (f *fleet) grants(n int) {
	f.t.Helper()
	least := f.referee.granted() + n
	f.eventually(func() string {
		if got := f.referee.granted(); got < least {
			return fmt.Sprintf("%d grants of %d", got, least)
		}
		return ""
	})
}

// right waits until Redis counts what is held, which the limit allows when users have closed
// what is too many.
func (f *fleet) right() {
	f.t.Helper()
	for _, u := range f.users {
		f.eventually(func() string {
			n, err := f.counter.Count(f.t.Context(), u.name)
			held := f.referee.held(u.name)
			switch {
			case err != nil || n != int64(held):
				return fmt.Sprintf("%d slots of %s are held, and %d are counted: %v", held, u.name, n, err)
			case held <= f.limit:
				return ""
			}
			u.close()
			return fmt.Sprintf("%s holds %d of %d slots", u.name, held, f.limit)
		})
	}
}

// fill waits until each user holds exactly the limit, and no server grants more.
func (f *fleet) fill() {
	f.t.Helper()
	var all sync.WaitGroup
	missing := make([]string, len(f.users))
	for i, u := range f.users {
		all.Go(func() {
			deadline := time.Now().Add(patience)
			for f.referee.held(u.name) < f.limit {
				if time.Now().After(deadline) {
					missing[i] = fmt.Sprintf("%s gets no more than %d of %d slots", u.name, f.referee.held(u.name), f.limit)
					return
				}
				if s := f.present(); u.open(s) != http.StatusSwitchingProtocols {
					<-time.After(10 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	if m := strings.TrimSpace(strings.Join(missing, "\n")); m != "" {
		f.t.Fatal(m)
	}
}

// end closes everything, and holds that nothing is left.
func (f *fleet) end() {
	f.t.Helper()
	for _, u := range f.users {
		f.eventually(func() string {
			if u.close(); f.referee.held(u.name) > 0 {
				return u.name + " still has sockets"
			}
			return ""
		})
	}
	for i, s := range f.servers {
		if i%2 == 0 { // the others have all sockets closed by their guards
			f.users[i%len(f.users)].open(s)
		}
		s.Send("end")
		if left := s.Line(); left != "0" {
			f.t.Errorf("%s has %s sockets left", s.name, left)
		}
	}
	slots := f.slots()
	for _, u := range f.users {
		for range f.limit {
			f.eventually(func() string {
				_, err := slots.Acquire(f.t.Context(), u.name)
				if err != nil {
					return fmt.Sprintf("a slot of %s: %v", u.name, err)
				}
				return ""
			})
		}
		if _, err := slots.Acquire(f.t.Context(), u.name); !errors.Is(err, core.ErrFull) {
			f.t.Errorf("%s, beyond the limit: %v", u.name, err)
		}
	}
	f.t.Logf("%d grants to %d tries, %d were refused", f.referee.granted(), f.tries.Load(), f.refused.Load())
}

// Whatever happens to a fleet of servers, no user has more sockets than the limit but for the
// reasons that the documentation gives, what is free is granted, and nothing is left in the end.
func TestChaos(t *testing.T) {
	if *length == 0 {
		f := newFleet(t, kinds, 6, 3, 1500*time.Millisecond, false)
		for _, trouble := range troubles {
			f.round(trouble)
		}
		f.end()
		return
	}
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprintf("granted without Redis: %v", local), func(t *testing.T) {
			f := newFleet(t, 6, 50, 5, 3*time.Second, local)
			for start := time.Now(); time.Since(start) < *length; {
				f.round(troubles[rand.IntN(len(troubles))])
			}
			f.end()
		})
	}
}
