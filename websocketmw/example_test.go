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
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// echo upgrades with gorilla/websocket, and sends messages back until the socket ends. It knows nothing of the guard.
func echo(w http.ResponseWriter, r *http.Request) {
	conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}

// dial opens a socket of a user.
func dial(server *httptest.Server, user string) (*websocket.Conn, *http.Response) {
	conn, response, _ := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), http.Header{"X-User": {user}})
	return conn, response
}

// Two sockets for each client address, upgraded with gorilla/websocket.
func Example() {
	sockets := websocketmw.MaxOpen(new(core.MemoryStore), "ws", keyfuncs.RemoteAddr(), 2)
	server := httptest.NewServer(sockets.Handler(http.HandlerFunc(echo))) // instead of http.ListenAndServe
	defer server.Close()

	for range 3 {
		conn, response := dial(server, "anna")
		fmt.Println(response.Status)
		if conn != nil {
			defer conn.Close()
		}
	}
	// Output:
	// 101 Switching Protocols
	// 101 Switching Protocols
	// 429 Too Many Requests
}

type userKey struct{} // of the user in the context, whom authentication, which runs first, has put there

// Three sockets for each user on all servers; the oldest is closed for a fourth. A socket that sends more than five
// messages a second is closed, and so is one whose client is silent for two minutes. Clients connect 30 times a minute
// at most.
func ExampleNew() {
	store, err := redisstore.Open("redis://localhost:6379", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sockets, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{{
			Slots: core.NewSlots(store, "ws", 3), Key: keyfuncs.Context(userKey{}), WhenFull: websocketmw.EvictOldest,
		}},
		Messages: []websocketmw.Inbound{{Limiter: core.NewLimiter(new(core.MemoryStore), "messages", core.SlidingLog(5, time.Second))}},
		MaxIdle:  2 * time.Minute,
		OnClosed: func(s *websocketmw.Socket, cause error) {
			if errors.Is(cause, websocketmw.ErrFlood) {
				log.Println("a flood of", s.Context().Value(userKey{}))
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handshakes := nethttp.Limit(store, "handshakes", keyfuncs.RemoteAddr(), core.SlidingLog(30, time.Minute))
	http.Handle("/ws", handshakes.Handler(sockets.Handler(http.HandlerFunc(echo))))
}

// Three sockets for each user on all servers, and 20,000 on this one, for which it has memory. A socket takes a slot of
// both or of neither.
func ExampleNew_severalRules() {
	shared, err := redisstore.Open("redis://localhost:6379", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sockets, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{
		{Slots: core.NewSlots(new(core.MemoryStore), "server", 20_000), Key: keyfuncs.Everyone(), WhenFull: websocketmw.Unavailable},
		{Slots: core.NewSlots(shared, "user", 3), Key: keyfuncs.Context(userKey{})},
	}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/ws", sockets.Handler(http.HandlerFunc(echo)))
}

// Two servers with a shared store: who is banned on one has no socket on any.
func ExampleGuard_CloseAll() {
	shared := new(core.MemoryStore) // instead of a redisstore in each server
	users := core.NewSlots(shared, "user", 3)
	var guards []*websocketmw.Guard
	for range 2 {
		guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: users, Key: keyfuncs.Header("X-User")}}})
		if err != nil {
			log.Fatal(err)
		}
		guards = append(guards, guard)
	}
	server := httptest.NewServer(guards[0].Handler(http.HandlerFunc(echo)))
	defer server.Close()
	conn, _ := dial(server, "anna")
	defer conn.Close()

	fmt.Println(guards[1].CloseAll(context.Background(), users, "anna", 4003, "banned"))
	_, _, err := conn.ReadMessage()
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// websocket: close 4003: banned
}

// A server that stops closes its sockets first, each with a Close frame.
func ExampleGuard_Shutdown() {
	sockets := websocketmw.MaxOpen(new(core.MemoryStore), "ws", keyfuncs.RemoteAddr(), 20)
	server := &http.Server{Addr: ":8080", Handler: sockets.Handler(http.HandlerFunc(echo))}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		stop() // a second Ctrl-C ends the process at once
		stopped <- errors.Join(sockets.Shutdown(context.Background()), server.Shutdown(context.Background()))
	})
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-stopped; err != nil {
		log.Print(err)
	}
}

// Work for a socket that ends with it, in a goroutine that outlives the handler.
func ExampleSocket_Context() {
	ended := make(chan bool)
	sockets := websocketmw.MaxOpen(new(core.MemoryStore), "ws", keyfuncs.RemoteAddr(), 20)
	server := httptest.NewServer(sockets.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socket, _ := websocketmw.FromContext(r.Context()) // true behind a guard
		go func() {
			<-socket.Context().Done()
			ended <- true
		}()
		echo(w, r)
	})))
	defer server.Close()
	conn, _ := dial(server, "anna")
	conn.Close()
	fmt.Println(<-ended)
	// Output: true
}
