package main

import (
	_ "embed"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

const (
	userLimit    = 3           // sockets of a user
	addressLimit = 12          // sockets of all users of an address
	messages     = 5           // per second, from a socket
	silence      = time.Minute // after which a socket is closed

	codeSignedOut = 4010
)

// user is the key of the limits for users. This chat does not check names: the page sets
// the cookie, so anyone can close anyone's sockets, by EvictOldest and by signing out. With
// authentication, without which neither is for you, use keyfuncs.Context or From.
var user = keyfuncs.Cookie("user")

// A chat is the room and its limits.
type chat struct {
	guard   *websocketmw.Guard
	perUser *core.Slots
}

// newChat returns a chat with all limits.
func newChat(store core.Store) (*chat, error) {
	perUser := core.NewSlots(store, "user", userLimit)
	sent := core.NewLimiter(new(core.MemoryStore), "messages", core.SlidingLog(messages, time.Second))
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{ // a socket takes a slot of each, or none
			{Slots: perUser, Key: user, WhenFull: websocketmw.EvictOldest},
			{Slots: core.NewSlots(store, "address", addressLimit), Key: keyfuncs.RemoteAddr()},
		},
		Messages: []websocketmw.Inbound{{Limiter: sent}}, // without a Key, of each socket
		MaxIdle:  silence,                                // the handler pings three times as often
	})
	return &chat{guard, perUser}, err
}

func (c *chat) routes() http.Handler {
	r := &room{members: make(map[*member]struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /chat", c.guard.Handler(http.HandlerFunc(r.serve)))
	mux.HandleFunc("GET /sockets", c.sockets)
	mux.HandleFunc("POST /signout", c.signOut)
	mux.HandleFunc("GET /{$}", page)
	return mux
}

// sockets responds with how many sockets the user has open, on all servers.
func (c *chat) sockets(w http.ResponseWriter, r *http.Request) {
	key, err := user(r)
	if err != nil {
		http.Error(w, "who are you?", http.StatusForbidden)
		return
	}
	open, err := c.perUser.Count(r.Context(), key)
	if err != nil {
		http.Error(w, "the sockets cannot be counted", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintln(w, open)
}

// signOut closes the sockets of the user on all servers.
func (c *chat) signOut(w http.ResponseWriter, r *http.Request) {
	key, err := user(r)
	if err != nil {
		http.Error(w, "who are you?", http.StatusForbidden)
		return
	}
	closed, err := c.guard.CloseAll(r.Context(), c.perUser, key, codeSignedOut, "you have signed out")
	if err != nil {
		http.Error(w, "not all servers have answered", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, closed)
}

// A room sends each message to all members.
type room struct {
	mu      sync.Mutex
	members map[*member]struct{}
}

type member struct{ out chan string }

// serve runs until the socket is closed.
func (r *room) serve(w http.ResponseWriter, request *http.Request) {
	conn, err := (&websocket.Upgrader{}).Upgrade(w, request, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
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
