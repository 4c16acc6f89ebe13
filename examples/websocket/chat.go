package main

import (
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

const (
	userLimit    = 3           // sockets of a user
	addressLimit = 12          // sockets of all users of an address
	messages     = 5           // per second, from a socket
	silence      = time.Minute // after which a socket is closed
)

// user is the key of the limits for users. This chat does not check names: the page sets
// the cookie. With authentication, use keyfuncs.Context or Session.
var user = keyfuncs.Cookie("user")

// newGuard returns the guard with all limits.
func newGuard(store core.SlotStore) (*websocketmw.Guard, error) {
	perUser, err := core.NewSlots(store, "user", userLimit)
	if err != nil {
		return nil, err
	}
	perAddress, err := core.NewSlots(store, "address", addressLimit)
	if err != nil {
		return nil, err
	}
	sent, err := core.New(memstore.New(memstore.Config{}), "messages", core.SlidingLog(core.PerSecond(messages)))
	if err != nil {
		return nil, err
	}
	return websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{ // a socket takes a slot of each, or none
			{Slots: perUser, Key: user},
			{Slots: perAddress, Key: keyfuncs.RemoteAddr()},
		},
		Inbound: []websocketmw.Inbound{{Limiter: sent}},
		MaxIdle: silence, // the handler pings three times as often
		InBand:  true,    // so that the page can show the reason
	})
}

func routes(guard *websocketmw.Guard) http.Handler {
	r := &room{members: make(map[*member]struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /chat", gorillaws.Handler(guard, nil, r.serve))
	mux.HandleFunc("GET /{$}", page)
	return mux
}

// A room sends each message to all members.
type room struct {
	mu      sync.Mutex
	members map[*member]struct{}
}

type member struct{ out chan string }

// serve runs until the socket is closed.
func (r *room) serve(conn *websocket.Conn, request *http.Request) {
	conn.SetReadLimit(4 << 10)
	m := &member{out: make(chan string, 16)}
	r.join(m)
	defer r.leave(m)
	go m.write(conn, request.Context().Done()) // canceled when the socket ends
	for {
		_, text, err := conn.ReadMessage()
		if err != nil {
			return
		}
		r.say(string(text))
	}
}

func (m *member) write(conn *websocket.Conn, closed <-chan struct{}) {
	pings := time.NewTicker(silence / 3)
	defer pings.Stop()
	for {
		var err error
		select {
		case text := <-m.out:
			conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
			err = conn.WriteMessage(websocket.TextMessage, []byte(text))
		case <-pings.C:
			err = conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(10*time.Second))
		case <-closed:
			return
		}
		if err != nil {
			conn.Close() // so that serve returns
			return
		}
	}
}

func (r *room) join(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members[m] = struct{}{}
}

func (r *room) leave(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.members, m)
}

func (r *room) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.members {
		select {
		case m.out <- text:
		default: // a slow member misses messages
		}
	}
}

//go:embed page.html
var pageHTML string

func page(w http.ResponseWriter, _ *http.Request) { pages.Write(w, pageHTML) }
