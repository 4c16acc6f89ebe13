package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

const (
	userLimit    = 3           // sockets of a user
	addressLimit = 12          // sockets of all users of an address
	messages     = 5           // per second, from a socket
	silence      = time.Minute // after which a socket is closed

	codeReplaced  = 4009 // another socket of the user took the place of this one
	codeSignedOut = 4010
)

// user is the key of the limits for users. This chat does not check names: the page sets
// the cookie, so anyone can close anyone's sockets, by EvictOldest and by signing out. With
// authentication, without which neither is for you, use keyfuncs.Context or Session.
var user = keyfuncs.Cookie("user")

// newGuard returns the guard with all limits. The server has a name for the lists of devices.
func newGuard(store core.SlotStore, server string) (*websocketmw.Guard, error) {
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
		Rules: []nethttp.Rule{ // a socket takes a slot of each, or none
			{
				Slots: perUser, Key: user,
				WhenFull: websocketmw.EvictOldest,
			},
			{Slots: perAddress, Key: keyfuncs.RemoteAddr()},
		},
		EvictCode: codeReplaced, EvictReason: "you have opened another socket",
		Inbound: []websocketmw.Inbound{{Limiter: sent}},
		MaxIdle: silence, // the handler pings three times as often
		InBand:  true,    // so that the page can show the reason
		Server:  server,
	})
}

func routes(guard *websocketmw.Guard) http.Handler {
	r := &room{members: make(map[*member]struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /chat", gorillaws.Handler(guard, nil, r.serve))
	mux.HandleFunc("GET /devices", func(w http.ResponseWriter, r *http.Request) {
		devices(w, r, guard.Presence)
	})
	mux.HandleFunc("POST /signout", func(w http.ResponseWriter, r *http.Request) {
		devices(w, r, func(ctx context.Context, slots, key string) (websocketmw.Presence, error) {
			return guard.CloseAll(ctx, slots, key, codeSignedOut, "you have signed out")
		})
	})
	mux.HandleFunc("GET /{$}", page)
	return mux
}

// connected is what the page is told of a user.
type connected struct {
	Held    int64    `json:"held"`   // sockets
	Silent  bool     `json:"silent"` // some servers have not answered
	Devices []device `json:"devices"`
}

type device struct {
	Server string    `json:"server"`
	Since  time.Time `json:"since"`
}

// devices asks all servers about the sockets of the user, and responds with what they are.
func devices(w http.ResponseWriter, r *http.Request, ask func(ctx context.Context, slots, key string) (websocketmw.Presence, error)) {
	key, err := user(r)
	if err != nil {
		http.Error(w, "who are you?", http.StatusForbidden)
		return
	}
	found, err := ask(r.Context(), "user", key)
	if err != nil {
		http.Error(w, "not all servers can be asked", http.StatusServiceUnavailable)
		return
	}
	answer := connected{Held: found.Held, Silent: len(found.Silent) > 0, Devices: []device{}}
	for _, peer := range found.Peers {
		answer.Devices = append(answer.Devices, device{peer.Server, peer.Since})
	}
	body, err := json.Marshal(answer)
	if err != nil {
		panic(err) // there is nothing in it that could fail
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(body)
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
