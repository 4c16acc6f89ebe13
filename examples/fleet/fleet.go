package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
)

// A fleet is the servers, and the users with the sockets that are open. The slots have the
// counts in Redis.
type fleet struct {
	options

	client   *redis.Client
	embedded *miniredis.Miniredis // nil with -redis
	slots    *core.Slots
	servers  []*server
	users    []*user
	board    *board
	findings []finding
	crashed  chan error // receives why a server ended by itself
}

func newFleet(ctx context.Context, o options) (*fleet, error) {
	f := &fleet{options: o, crashed: make(chan error, o.servers)}
	if o.redis == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return nil, err
		}
		f.embedded = embedded
		f.redis = "redis://" + embedded.Addr() + "/0"
	}
	store, err := newStore(f.options)
	if err != nil {
		f.close()
		return nil, err
	}
	f.client = store.Client().(*redis.Client)
	if err := f.client.Ping(ctx).Err(); err != nil {
		f.close()
		return nil, fmt.Errorf("-redis: %w", err)
	}
	f.slots = newSlots(store, o.limit)
	for i := range o.servers {
		s, err := f.start(ctx, string(rune('A'+i)))
		if err != nil {
			f.close()
			return nil, err
		}
		f.servers = append(f.servers, s)
	}
	for i := range o.users {
		f.users = append(f.users, &user{name: string(rune('a' + i)), first: i, limit: o.limit})
	}
	f.board = newBoard(f)
	return f, nil
}

// close ends the servers that are running, deletes the fleet's keys, and closes Redis.
func (f *fleet) close() {
	for _, s := range f.servers {
		_ = s.kill()
	}
	if f.embedded == nil && len(f.servers) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = f.forget(ctx) // if that fails, the keys expire after a day
		cancel()
	}
	if f.client != nil {
		_ = f.client.Close()
	}
	if f.embedded != nil {
		f.embedded.Close()
	}
}

// forget deletes all keys of the fleet in Redis.
func (f *fleet) forget(ctx context.Context) error {
	if f.embedded != nil {
		f.embedded.FlushAll()
		return nil
	}
	var keys []string
	found := f.client.Scan(ctx, 0, f.prefix+":*", 1000).Iterator()
	for found.Next(ctx) {
		keys = append(keys, found.Val())
	}
	if err := found.Err(); err != nil || len(keys) == 0 {
		return err
	}
	return f.client.Del(ctx, keys...).Err()
}

// A server is a process of the fleet.
type server struct {
	name    string
	addr    string
	process *exec.Cmd
	stdin   io.Closer // the server shuts down when it is closed
	state   atomic.Pointer[string]
	open    atomic.Int64

	ended  chan struct{} // closed when the process has ended
	failed error         // what Wait returned; read it after ended is closed
}

// start starts this program as a server, and waits until it listens.
func (f *fleet) start(ctx context.Context, name string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{name: name, ended: make(chan struct{})}
	s.process = exec.CommandContext(context.WithoutCancel(ctx), self, "-server",
		"-redis", f.redis, "-prefix", f.prefix, "-ttl", f.ttl.String(), "-limit", strconv.FormatInt(f.limit, 10))
	s.process.Env = append(os.Environ(), serverVariable+"=1")
	s.process.Stderr = os.Stderr
	stdin, err := s.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.stdin = stdin
	stdout, err := s.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("server %s did not start", name), s.process.Wait())
	}
	s.addr = strings.TrimSpace(line)
	s.is("running")
	go func() {
		s.failed = s.process.Wait()
		if s.leave("crashed") {
			f.crashed <- fmt.Errorf("server %s ended by itself: %s", s.name, s.process.ProcessState)
		}
		close(s.ended)
	}()
	return s, nil
}

// serverVariable is set in the environment of servers, so that a test binary can be one.
const serverVariable = "HEADGATE_FLEET_SERVER"

func (s *server) is(state string) { s.state.Store(&state) }

func (s *server) running() bool { return *s.state.Load() == "running" }

func (s *server) sockets() int64 { return s.open.Load() }

// leave sets the state of a server that is running. It returns false if it is not running.
func (s *server) leave(state string) bool {
	old := s.state.Load()
	return *old == "running" && s.state.CompareAndSwap(old, &state)
}

// kill ends the process at once, as when memory runs out.
func (s *server) kill() error {
	if !s.leave("killed") {
		return nil
	}
	if err := s.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	return nil
}

// stop shuts the process down.
func (s *server) stop() error {
	if !s.leave("stopped") {
		return nil
	}
	if err := s.stdin.Close(); err != nil {
		return err
	}
	<-s.ended
	return s.failed
}

// A user has sockets, and always tries to open one more.
type user struct {
	name  string
	first int // index of the server that it tries first
	limit int64

	mu      sync.Mutex
	open    map[*server]int64
	total   int64
	most    int64
	refused int
	counted int64 // in Redis, when last read
}

// connectAgainAndAgain opens sockets until ctx is done, on one server after the other.
func (u *user) connectAgainAndAgain(ctx context.Context, f *fleet) {
	for i := u.first; ; i++ {
		if s := f.servers[i%len(f.servers)]; s.running() {
			u.connect(ctx, s)
		}
		if f.wait(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

// connect tries to open a socket, which then stays open until the server closes it.
func (u *user) connect(ctx context.Context, s *server) {
	dialer := websocket.Dialer{HandshakeTimeout: 5 * time.Second}
	//nolint:bodyclose // the dialer has read it
	conn, response, err := dialer.DialContext(ctx, "ws://"+s.addr+"/ws", http.Header{userField: {u.name}})
	if response != nil && response.StatusCode == http.StatusTooManyRequests {
		u.mu.Lock()
		u.refused++
		u.mu.Unlock()
	}
	if err != nil {
		return // refused, or the server has ended
	}
	u.add(s, 1)
	go func() {
		defer u.add(s, -1)
		defer conn.Close()
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	}()
}

func (u *user) add(s *server, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open == nil {
		u.open = make(map[*server]int64)
	}
	u.open[s] += n
	u.total += n
	u.most = max(u.most, u.total)
	s.open.Add(n)
}

func (f *fleet) each(see func(*user)) {
	for _, u := range f.users {
		u.mu.Lock()
		see(u)
		u.mu.Unlock()
	}
}

// missing returns how many more sockets the users may open.
func (f *fleet) missing() (n int64) {
	f.each(func(u *user) { n += max(f.limit-u.total, 0) })
	return n
}

func (f *fleet) allFull() bool { return f.missing() == 0 }

func (f *fleet) open() (n int64) {
	f.each(func(u *user) { n += u.total })
	return n
}

func (f *fleet) refusals() (n int) {
	f.each(func(u *user) { n += u.refused })
	return n
}

// mostOver returns the most sockets over the limit that any user ever had.
func (f *fleet) mostOver() (n int64) {
	f.each(func(u *user) { n = max(n, u.most-f.limit) })
	return n
}

// counted reads the count of each user from Redis, and returns the sum.
func (f *fleet) counted(ctx context.Context) (sum int64, err error) {
	for _, u := range f.users {
		n, err := f.slots.Count(ctx, u.name)
		if err != nil {
			return 0, err
		}
		u.mu.Lock()
		u.counted = n
		u.mu.Unlock()
		sum += n
	}
	return sum, nil
}

// countsAreRight reports whether the counts in Redis are those of the open sockets.
func (f *fleet) countsAreRight(ctx context.Context) bool {
	if _, err := f.counted(ctx); err != nil {
		return false
	}
	right := true
	f.each(func(u *user) { right = right && u.counted == u.total })
	return right
}
