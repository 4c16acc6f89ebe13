package websocketmw_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
	"github.com/headgate/headgate/websocketmw/gorillaws"
)

// Two sockets for each client address, upgraded with gorilla.
func Example() {
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 2)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
	})
	if err != nil {
		log.Fatal(err)
	}
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
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 3)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		// Authentication, which runs first, puts the user into the context.
		Rules:   []websocketmw.Rule{{Slots: slots, Key: keyfuncs.Context(userKey{})}},
		MaxIdle: 2 * time.Minute,
	})
	if err != nil {
		log.Fatal(err)
	}
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
	users, err := core.NewSlots(store, "user", 3)
	if err != nil {
		log.Fatal(err)
	}
	service, err := core.NewSlots(store, "service", 1000)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{
			{Slots: users, Key: keyfuncs.Header("X-User")}, // set by authentication
			{Slots: service, Key: keyfuncs.Everyone(), Service: true},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(guard.Len())
	// Output: 0
}

// Three sockets for each user on all servers together, and 20,000 on this one, which is as
// many as it has memory for. A socket takes a slot of both or of neither.
func ExampleNew_node() {
	all, err := redisstore.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true}), redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	users, err := core.NewSlots(all, "user", 3)
	if err != nil {
		log.Fatal(err)
	}
	node, err := core.NewSlots(memstore.New(memstore.Config{}), "node", 20_000)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{
			{Slots: node, Key: keyfuncs.Everyone(), Service: true},
			{Slots: users, Key: keyfuncs.Context(userKey{})},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/ws", guard.Handler(http.HandlerFunc(upgrade)))
}

// Shadow mode: nobody is refused, and the log says who would have been.
func ExampleConfig_observeOnly() {
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 0)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules:       []websocketmw.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
		ObserveOnly: true,
		Observe: func(r *http.Request, v websocketmw.Verdict) {
			if v.Status() != 0 {
				fmt.Println("would answer", v.Status(), "to", r.URL.Path)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
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
	users, err := core.NewSlots(memstore.New(memstore.Config{}), "user", 3)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{{Slots: users, Key: keyfuncs.Header("X-User")}}, // set by authentication
	})
	if err != nil {
		log.Fatal(err)
	}
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
	var (
		server *http.Server
		guard  *websocketmw.Guard
	)
	stop := func(ctx context.Context) error {
		return errors.Join(guard.Shutdown(ctx), server.Shutdown(ctx))
	}
	_ = stop
}
