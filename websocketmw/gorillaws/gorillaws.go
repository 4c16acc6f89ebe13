// Package gorillaws upgrades with github.com/gorilla/websocket behind a guard of
// package websocketmw: three statements are a server with a limit.
//
//	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 5)
//	guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}}})
//	http.Handle("/ws", gorillaws.Handler(guard, nil, func(conn *websocket.Conn, r *http.Request) { ... }))
package gorillaws

import (
	"net/http"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/websocketmw"
)

// Handler returns a handler that upgrades what the guard admits, and calls serve with
// the connection, which it closes when serve returns or panics. serve should read until
// that fails, for reading answers pings and Close frames. The context of its request
// ends with the socket.
//
// A nil upgrader is the zero one, which admits browsers of the same origin only. The
// upgrader may be shared. What it refuses it answers, and the slot is free again.
//
// Handler panics if the guard or serve is nil.
func Handler(guard *websocketmw.Guard, upgrader *websocket.Upgrader, serve func(*websocket.Conn, *http.Request)) http.Handler {
	if guard == nil || serve == nil {
		panic("headgate: gorillaws: the guard or the function is nil")
	}
	return guard.Handler(Upgrade(upgrader, serve))
}

// Upgrade is Handler without the guard, to be mounted behind it: with Sockets of
// package ginmw, echomw or echov5mw.
func Upgrade(upgrader *websocket.Upgrader, serve func(*websocket.Conn, *http.Request)) http.Handler {
	if upgrader == nil {
		upgrader = new(websocket.Upgrader)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return // the upgrader has answered
		}
		defer conn.Close() //nolint:errcheck // it is over either way
		if s, ok := websocketmw.FromContext(r.Context()); ok {
			r = r.WithContext(s.Context())
		}
		serve(conn, r)
	})
}
