// Package gorillaws upgrades with github.com/gorilla/websocket behind a guard of package
// websocketmw. Three statements make a server with a limit:
//
//	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 5)
//	guard, err := websocketmw.New(websocketmw.Config{Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}}})
//	http.Handle("/ws", gorillaws.Handler(guard, nil, func(conn *websocket.Conn, r *http.Request) { ... }))
package gorillaws

import (
	"net/http"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/websocketmw"
)

// Handler returns a handler that upgrades the requests that the guard admits and calls
// serve with the connection. It closes the connection when serve returns or panics. serve
// should read until an error, because reading answers pings and Close frames. The
// context of its request is canceled when the socket ends.
//
// A nil upgrader means the zero Upgrader, which accepts browsers from the same origin
// only. An upgrader may be shared. If it refuses a request, it writes the response, and
// the slot is released.
//
// Handler panics if guard or serve is nil.
func Handler(guard *websocketmw.Guard, upgrader *websocket.Upgrader, serve func(*websocket.Conn, *http.Request)) http.Handler {
	if guard == nil || serve == nil {
		panic("headgate: gorillaws: the guard or the function is nil")
	}
	return guard.Handler(Upgrade(upgrader, serve))
}

// Upgrade is [Handler] without the guard, for use behind Use of package
// ginmw, echomw or echov5mw.
func Upgrade(upgrader *websocket.Upgrader, serve func(*websocket.Conn, *http.Request)) http.Handler {
	if upgrader == nil {
		upgrader = new(websocket.Upgrader)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return // the upgrader wrote the response
		}
		defer conn.Close() //nolint:errcheck // nothing to do about it
		if s, ok := websocketmw.FromContext(r.Context()); ok {
			r = r.WithContext(s.Context())
		}
		serve(conn, r)
	})
}
