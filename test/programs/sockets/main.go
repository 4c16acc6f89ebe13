// Sockets lets each user have 2 WebSockets open, over all servers. A third one closes the
// oldest, if that is older than 10 seconds.
package main

import (
	"flag"
	"log"
	"net/http"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// echo answers each message with itself.
func echo(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "listen on this `address`")
	redis := flag.String("redis", "redis://localhost:6379/0", "the `URL` of the Redis that all servers share")
	flag.Parse()

	store, err := redisstore.Open(*redis, redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{
		Slots:    core.NewSlots(store, "ws", 2),
		Key:      keyfuncs.Header("X-User"), // which your authentication sets
		WhenFull: websocketmw.EvictOldest,   // without it, the third gets 429
	}}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/ws", guard.Handler(http.HandlerFunc(echo)))
	log.Printf("listening on http://%s/", *addr)
	log.Fatal(http.ListenAndServe(*addr, nil))
}
