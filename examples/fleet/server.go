package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// userField has the name of the user. A real service would use its authentication.
const userField = "X-User"

func newStore(o options) (*redisstore.Store, error) {
	s, err := redisstore.Open(o.redis, redisstore.Config{
		Prefix:  o.prefix,
		SlotTTL: o.ttl,
		Timeout: time.Second, // the machine is busy with all servers and users
		Failure: redisstore.FailClosed,
	})
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	return s, nil
}

func newSlots(store core.Store, limit int64) *core.Slots {
	return core.NewSlots(store, "sockets", limit)
}

// serve runs one server, whose sockets echo messages. It shuts down at the end of its
// standard input, which is also when the fleet's process ends.
func serve(o options) error {
	store, err := newStore(o)
	if err != nil {
		return err
	}
	defer store.Close(context.Background())
	guard, err := websocketmw.New(websocketmw.Config{
		Rules: []websocketmw.Rule{{Slots: newSlots(store, o.limit), Key: keyfuncs.Header(userField)}},
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /ws", guard.Handler(http.HandlerFunc(echo)))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	fmt.Println(listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-stopped:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := guard.Shutdown(ctx); err != nil {
		return err
	}
	return server.Shutdown(ctx)
}

func echo(w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil {
			return
		}
		if err := conn.WriteMessage(kind, message); err != nil {
			return
		}
	}
}
