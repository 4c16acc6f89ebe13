// Package websocketmw bounds how many WebSockets are open at once, for each user,
// each address or the whole service, in one process or over all servers.
//
// A [Guard] stands in front of any handler that upgrades. It takes a slot of
// package core before the upgrade, so that who is over the limit gets a real 429,
// and gives it back when the connection closes, however it closes:
//
//	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 5)
//	...
//	guard, err := websocketmw.New(websocketmw.Config{
//		Rules: []websocketmw.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
//	})
//	...
//	http.Handle("/ws", guard.Handler(upgrade))
//
// The handler needs no change: it upgrades with gorilla, coder, gobwas,
// x/net/websocket or gws, and closes the connection when it is done, as ever. It may
// return before that. Package gorillaws below this one also upgrades and closes.
// Packages ginmw, echomw and echov5mw have Sockets.
//
// # What clients see
//
// The response to an upgrade tells the limit and how many more may be opened, by
// draft-ietf-httpapi-ratelimit-headers-11, whatever the library:
//
//	HTTP/1.1 101 Switching Protocols
//	RateLimit-Policy: "ws";q=5;qu="concurrent-requests"
//	RateLimit: "ws";r=4
//
// and a refusal comes before the upgrade:
//
//	HTTP/1.1 429 Too Many Requests
//	Retry-After: 7
//	Content-Type: application/problem+json
//	Cache-Control: no-store
//	RateLimit-Policy: "ws";q=5;qu="concurrent-requests"
//	RateLimit: "ws";r=0
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["ws"]}
//
//	400 or 403  no key: nobody can be charged ([Config].KeyErrorStatus)
//	400         an upgrade whose Sec-WebSocket-Key is not one (RFC 6455, section 4.2.1)
//	429         the client's own limit is reached
//	500         the rules ask what makes no sense
//	503         the service's limit is reached ([Rule].Service), the store cannot
//	            answer, or the guard is shutting down
//
// Nobody knows when a socket will close, so Retry-After is 5 to 10 seconds, by
// chance, so that those who wait do not come back together.
//
// Browsers show nothing of that to their scripts; [Config].InBand tells them.
//
// # What is guarded
//
// Upgrades by RFC 6455: method GET, Upgrade: websocket, Connection: upgrade,
// version 13. Over HTTP/2, an extended CONNECT of the protocol websocket
// (RFC 8441) holds its slot until the handler returns. Everything else passes
// untouched and asks no store: other requests, and handshakes that no library accepts.
//
// # How long a slot is held
//
//	until the connection is closed       by the handler, or by the guard
//	until the handler returns            if it did not take the connection over
//	until the handler panics             the guard closes the connection; the panic goes on
//	until the handler returns            if it took the connection and did not upgrade: the guard closes it
//	until it is garbage                  if the handler lost the connection without closing it
//
// r.Context ends when the handler's request does. [Socket.Context], found with
// [FromContext], ends with the socket.
//
// # What clients send
//
// [Config].Inbound limits messages, frames or bytes, of each socket or of all sockets of
// a user. A socket over the limit is closed with 1008, held back, or reported:
//
//	Inbound: []websocketmw.Inbound{{Limiter: messages, Key: user}}
//
// # Sockets that stay
//
// [Config].MaxIdle closes the sockets of peers that have vanished, MaxAge those that
// are old. [Guard.Shutdown] closes all of them in order. Whenever the guard closes a
// socket it sends a Close frame between two frames of the handler's, and closes the
// connection when the handler has, or after 5 seconds:
//
//	1001  the server goes away, or restarts; idle or old
//	1008  the client sent too much
//	1013  the place was lost to another ([Config].OnLost)
package websocketmw
