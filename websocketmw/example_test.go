package websocketmw_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

// Three sockets for each user, whom authentication, which runs first, has put into the context.
func ExampleLimit() {
	sockets := core.Must(websocketmw.Limit("ws", keyfuncs.Context(userKey{}), 3))
	http.Handle("/ws", sockets.Handler(http.HandlerFunc(upgrade)))
}

// Two sockets for each client address, upgraded with gorilla.
func Example() {
	guard := core.Must(websocketmw.Limit("ws", keyfuncs.RemoteAddr(), 2))
	echo := func(conn *websocket.Conn, _ *http.Request) {
		for {
			kind, message, err := conn.ReadMessage()
			if err != nil {
				return // the slot is free again
			}
			if err := conn.WriteMessage(kind, message); err != nil {
				return
			}
		}
	}
	server := httptest.NewServer(gorillaws.Handler(guard, nil, echo)) // instead of http.ListenAndServe
	defer server.Close()

	for range 3 {
		conn, response, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
		fmt.Println(response.Status, response.Header.Get("RateLimit"))
		if err == nil {
			defer conn.Close()
		}
	}
	// Output:
	// 101 Switching Protocols "ws";r=1
	// 101 Switching Protocols "ws";r=0
	// 429 Too Many Requests "ws";r=0
}

// Three sockets for each signed-in user. The handler needs no change.
func ExampleGuard_Handler() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 3))
	guard := core.Must(websocketmw.New(websocketmw.Config{
		// Authentication, which runs first, puts the user into the context.
		Rules:   []nethttp.Rule{{Slots: slots, Key: keyfuncs.Context(userKey{})}},
		MaxIdle: 2 * time.Minute,
	}))
	http.Handle("/ws", guard.Handler(http.HandlerFunc(upgrade)))
}

type userKey struct{} // of the user in the context

func upgrade(w http.ResponseWriter, r *http.Request) {
	conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
}

// Three sockets for each user, and a thousand for the whole service. A socket takes a slot
// of both or of neither.
func ExampleNew_severalRules() {
	store := memstore.New(memstore.Config{})
	users := core.Must(core.NewSlots(store, "user", 3))
	service := core.Must(core.NewSlots(store, "service", 1000))
	guard := core.Must(websocketmw.New(websocketmw.Config{
		Rules: []nethttp.Rule{
			{Slots: users, Key: keyfuncs.Header("X-User")}, // set by authentication
			{Slots: service, Key: keyfuncs.Everyone(), Service: true},
		},
	}))
	fmt.Println(guard.Len())
	// Output: 0
}

// Three sockets for each user on all servers together, and 20,000 on this one, which is as
// many as it has memory for. A socket takes a slot of both or of neither.
func ExampleNew_node() {
	all, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	users := core.Must(core.NewSlots(all, "user", 3))
	node := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "node", 20_000))
	guard := core.Must(websocketmw.New(websocketmw.Config{
		Rules: []nethttp.Rule{
			{Slots: node, Key: keyfuncs.Everyone(), Service: true}, // over it, the refusal is a 503
			{Slots: users, Key: keyfuncs.Context(userKey{})},
		},
	}))
	http.Handle("/ws", guard.Handler(http.HandlerFunc(upgrade)))
}

// Shadow mode: nobody is refused, and the log says who would have been.
func ExampleConfig_observeOnly() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 0))
	guard := core.Must(websocketmw.New(websocketmw.Config{
		Rules:       []nethttp.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
		ObserveOnly: true,
		Observe: func(r *http.Request, v nethttp.Verdict) {
			if v.Status() != 0 {
				fmt.Println("would answer", v.Status(), "to", r.URL.Path)
			}
		},
	}))
	server := httptest.NewServer(gorillaws.Handler(guard, nil, func(*websocket.Conn, *http.Request) {}))
	defer server.Close()

	conn, response, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http")+"/chat", nil)
	if err != nil {
		log.Fatal(err)
	}
	conn.Close()
	fmt.Println(response.Status)
	// Output:
	// would answer 429 to /chat
	// 101 Switching Protocols
}

// A user signs out: all sockets of the user on this server are closed.
func ExampleGuard_Sockets() {
	users := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "user", 3))
	guard := core.Must(websocketmw.New(websocketmw.Config{
		Rules: []nethttp.Rule{{Slots: users, Key: keyfuncs.Header("X-User")}}, // set by authentication
	}))
	signOut := func(user string) {
		for _, socket := range guard.Sockets("user", user) {
			socket.Close(4001, "signed out")
		}
	}
	server := httptest.NewServer(gorillaws.Handler(guard, nil, func(conn *websocket.Conn, _ *http.Request) {
		_, _, _ = conn.ReadMessage()
	}))
	defer server.Close()

	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), http.Header{"X-User": {"anna"}})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	signOut("anna")
	_, _, err = conn.ReadMessage()
	fmt.Println(err)
	// Output: websocket: close 4001: signed out
}

// A server that stops: first it closes its sockets, each with a Close frame.
func ExampleGuard_Shutdown() {
	guard := core.Must(websocketmw.Limit("ws", keyfuncs.RemoteAddr(), 20))
	server := &http.Server{Addr: ":8080", Handler: guard.Handler(http.HandlerFunc(upgrade))}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		stop() // a second Ctrl-C ends the process at once
		stopped <- errors.Join(guard.Shutdown(context.Background()), server.Shutdown(context.Background()))
	})
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-stopped; err != nil {
		log.Print(err)
	}
}

// Two servers: who is banned on one has no socket on any.
func ExampleGuard_CloseAll() {
	shared := memstore.New(memstore.Config{}) // instead of a redisstore in each server
	var guards []*websocketmw.Guard
	for _, name := range []string{"server-1", "server-2"} {
		users, err := core.NewSlots(shared, "user", 3)
		if err != nil {
			log.Fatal(err)
		}
		guard, err := websocketmw.New(websocketmw.Config{
			Rules:  []nethttp.Rule{{Slots: users, Key: keyfuncs.Header("X-User")}}, // set by authentication
			Server: name,
		})
		if err != nil {
			log.Fatal(err)
		}
		guards = append(guards, guard)
	}
	server := httptest.NewServer(gorillaws.Handler(guards[0], nil, func(conn *websocket.Conn, _ *http.Request) {
		_, _, _ = conn.ReadMessage()
	}))
	defer server.Close()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), http.Header{"X-User": {"anna"}})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	found, err := guards[1].CloseAll(context.Background(), "user", "anna", 4003, "banned")
	fmt.Println(found.Open, "on", found.Peers[0].Server, found.Silent, err)
	_, _, err = conn.ReadMessage()
	fmt.Println(err)
	// Output:
	// 1 on server-1 [] <nil>
	// websocket: close 4003: banned
}

// A ban holds when every server has answered.
func ExampleGuard_CloseAll_silent() {
	users := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "ws", 3)) // over a redisstore, say
	guard := core.Must(websocketmw.New(websocketmw.Config{
		Rules:  []nethttp.Rule{{Slots: users, Key: keyfuncs.Context(userKey{})}},
		Server: "server-1",
	}))
	ban := func(ctx context.Context, user string) error {
		found, err := guard.CloseAll(ctx, "ws", user, 4003, "banned")
		if err != nil {
			return err
		}
		if n := len(found.Silent); n > 0 {
			return fmt.Errorf("%d servers have not answered: call again", n)
		}
		return nil
	}
	fmt.Println(ban(context.Background(), "anna"))
	// Output: <nil>
}

// Two devices for each user: a third takes the place of the oldest.
func ExampleNew_evictOldest() {
	users, err := core.NewSlots(memstore.New(memstore.Config{}), "user", 2)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []nethttp.Rule{{
			Slots: users, Key: keyfuncs.Context(userKey{}), // of one person, set by authentication
			WhenFull: websocketmw.EvictOldest,
		}},
		EvictCode: 4009, EvictReason: "signed in on another device",
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/devices", guard.Handler(http.HandlerFunc(upgrade)))
}
