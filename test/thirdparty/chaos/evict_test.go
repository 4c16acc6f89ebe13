package chaos

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	gorilla "github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

var users = flag.Int("users", 50, "how many users' sockets are evicted")

const (
	fullSet  = 3                // sockets of a user, one on each server
	oldAge   = 11 * time.Second // at which a socket may be evicted
	apart    = time.Second      // or servers disagree who is older: they know ages to a round trip, and that is long on a busy machine
	interval = 10 * time.Millisecond
	dials    = 50 // at once, for the full sets
)

// waitField is a field of requests that wait in the handler, before the upgrade, until the process gets a line.
const waitField = "X-Wait"

// serveEvicting is the process of a server whose users may have fullSet sockets. It ends when it gets the line "end".
func serveEvicting(args []string) error {
	shared, err := redisstore.Open("redis://"+args[0], redisstore.Config{Failure: redisstore.FailClosed})
	if err != nil {
		return err
	}
	guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{
		{Slots: core.NewSlots(shared, "ws", fullSet), Key: keyfuncs.Header(userField), WhenFull: websocketmw.EvictOldest},
	}})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	goOn := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(waitField) != "" {
			fmt.Println("begun")
			<-goOn
		}
		echoGorilla(w, r)
	})
	server := &http.Server{Handler: guard.Handler(h), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	fmt.Println(listener.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan() && lines.Text() != "end"; {
		goOn <- struct{}{}
	}
	return guard.Shutdown(context.Background())
}

// A device is a client's end of a socket.
type device struct {
	conn *gorilla.Conn
	end  string // why it was closed; it may be read when over is closed
	over chan struct{}
}

// connect opens a socket, or returns the status of the refusal.
func connect(address, user string, fields ...string) (*device, int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	header := http.Header{userField: {user}}
	for _, name := range fields {
		header.Set(name, "yes")
	}
	conn, response, err := gorilla.DefaultDialer.DialContext(ctx, "ws://"+address, header)
	if err != nil {
		if response == nil {
			return nil, 0
		}
		return nil, response.StatusCode
	}
	d := &device{conn: conn, over: make(chan struct{})}
	go func() {
		defer close(d.over)
		_, _, err := conn.ReadMessage()
		d.end = fmt.Sprint(err)
		if closed := new(gorilla.CloseError); errors.As(err, &closed) {
			d.end = fmt.Sprint(closed.Code)
		}
	}()
	return d, http.StatusSwitchingProtocols
}

func (d *device) open() bool {
	select {
	case <-d.over:
		return false
	default:
		return true
	}
}

// Users with a full set of sockets over three processes come with one more, paced and then all at once: the oldest socket
// closes, and the newcomer stays. If the eviction is not confirmed, the newcomer closes itself. Nobody else is closed, and
// each user ends with a full set.
func TestEvictions(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits until sockets are old enough to be evicted: not with -short")
	}
	server := redistest.Start(t)
	var processes []*proctest.Process
	var addresses []string
	for range fullSet {
		p := proctest.Start(t, "evict", server.Addr())
		processes, addresses = append(processes, p), append(addresses, p.Line())
	}
	sets := make([][]*device, *users) // the oldest first
	each := func(pace time.Duration, visit func(user int)) {
		var all sync.WaitGroup
		begin := time.Now()
		for user := range sets {
			<-time.After(time.Until(begin.Add(time.Duration(user) * pace)))
			all.Go(func() { visit(user) })
		}
		all.Wait()
	}
	room := make(chan struct{}, dials)
	for place := range fullSet {
		<-time.After(apart)
		each(0, func(user int) {
			room <- struct{}{}
			defer func() { <-room }()
			d, status := connect(addresses[(user+place)%fullSet], fmt.Sprint("user", user))
			if d == nil {
				t.Errorf("user %d gets %d", user, status)
				return
			}
			sets[user] = append(sets[user], d)
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	<-time.After(oldAge)
	counter, err := redisstore.Open("redis://"+server.Addr(), redisstore.Config{Failure: redisstore.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	defer counter.Client().Close()
	slots := core.NewSlots(counter, "ws", fullSet)
	for round, pace := range []time.Duration{interval, 0} {
		e := &evictions{statuses: make(map[int]int)}
		begin := time.Now()
		each(pace, func(user int) {
			newcomer, status := connect(addresses[(user+round)%fullSet], fmt.Sprint("user", user))
			sets[user] = e.judge(t, user, sets[user], newcomer, status)
		})
		t.Logf("%d users, one each %v: after %v, %+v", *users, pace, time.Since(begin).Round(time.Millisecond), e.counts)
		if e.replaced < *users*9/10 {
			t.Errorf("only %d newcomers of %d stay; refusals: %v", e.replaced, *users, e.statuses)
		}
		for user := range sets {
			for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
				n, err := slots.Count(t.Context(), fmt.Sprint("user", user))
				if err == nil && n == int64(len(sets[user])) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("user %d holds %d slots and %d sockets: %v", user, n, len(sets[user]), err)
				}
			}
		}
	}
	unconfirmed(t, processes, addresses, sets[0])
	for _, set := range sets {
		for _, d := range set {
			if !d.open() {
				t.Errorf("a socket was closed later: %s", d.end)
			}
			d.conn.Close()
		}
	}
	for _, p := range processes {
		p.Send("end")
		p.Wait()
	}
}

// unconfirmed has a newcomer of user 0 find the oldest socket, whose server is stopped before the 101: the newcomer closes
// itself, and nobody else is closed, also when the server goes on.
func unconfirmed(t *testing.T, processes []*proctest.Process, addresses []string, set []*device) {
	t.Helper()
	const home, far = 0, 2 // the servers of the newcomer, and of the oldest socket: those on 0 and 1 were evicted
	came := make(chan *device)
	go func() {
		d, status := connect(addresses[home], "user0", waitField)
		if d == nil {
			t.Errorf("the newcomer gets %d", status)
		}
		came <- d
	}()
	if line := processes[home].Line(); line != "begun" {
		t.Fatal(line)
	}
	processes[far].Pause()
	processes[home].Send("go")
	newcomer := <-came
	if newcomer == nil {
		return
	}
	select {
	case <-newcomer.over:
		if newcomer.end != "1013" {
			t.Errorf("the newcomer was closed with %s", newcomer.end)
		}
	case <-time.After(patience):
		t.Error("the newcomer stays")
	}
	newcomer.conn.Close()
	processes[far].Resume()
	<-time.After(time.Second) // in which it finds the notice
	for i, d := range set {
		if !d.open() {
			t.Errorf("socket %d was closed with %s", i, d.end)
		}
	}
}

// Counts are of what became of newcomers.
type counts struct {
	replaced    int // the oldest was closed, and the newcomer stays
	refused     int // nobody was closed
	unconfirmed int // the newcomer was closed with 1013
	both        int // and the oldest, too: its server confirmed too late
}

type evictions struct {
	mu sync.Mutex
	counts
	statuses map[int]int
}

// judge waits for what becomes of a newcomer and a set, and returns those that are open.
func (e *evictions) judge(t *testing.T, user int, set []*device, newcomer *device, status int) []*device {
	oldest, rest := set[0], set[1:]
	ended := func(d *device, code string) bool {
		if d.open() {
			return false
		}
		if d.end != code {
			t.Errorf("user %d: a socket was closed with %s, not %s", user, d.end, code)
		}
		d.conn.Close()
		return true
	}
	if newcomer != nil {
		select {
		case <-oldest.over:
		case <-newcomer.over:
		case <-time.After(patience):
			t.Errorf("user %d has one socket too many", user)
			return set
		}
		if !newcomer.open() { // a confirmation that is late does not come much later
			select {
			case <-oldest.over:
			case <-time.After(time.Second):
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old := ended(oldest, "1008")
	switch {
	case newcomer == nil:
		e.refused++
		e.statuses[status]++
		if status != http.StatusTooManyRequests || old {
			t.Errorf("user %d gets %d, and the oldest is closed: %v", user, status, old)
		}
	case ended(newcomer, "1013") && old:
		e.unconfirmed++
		e.both++
	case !newcomer.open():
		e.unconfirmed++
	default:
		e.replaced++
		rest = append(rest[:len(rest):len(rest)], newcomer)
	}
	for _, d := range set[1:] {
		if !d.open() {
			t.Errorf("user %d: another socket than the oldest was closed with %s", user, d.end)
		}
	}
	if !old {
		rest = append([]*device{oldest}, rest...)
	}
	return rest
}
