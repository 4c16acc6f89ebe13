// Package websocketmw limits how many WebSockets are open at once, for each user, each
// address or the whole service, in one process or across all servers.
//
// A [Guard] stands in front of any handler that upgrades. It takes a slot of package
// core before the upgrade, so that a client over the limit gets a real 429, and releases
// the slot when the connection closes, for whatever reason:
//
//	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 5)
//	...
//	guard, err := websocketmw.New(websocketmw.Config{
//		Rules: []websocketmw.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
//	})
//	...
//	http.Handle("/ws", guard.Handler(upgrade))
//
// The handler needs no change: it upgrades with gorilla, coder, gobwas, x/net/websocket
// or gws, and closes the connection when it is done. It may return before that. Package
// gorillaws also upgrades and closes for the handler. Packages ginmw, echomw and
// echov5mw have the middleware Sockets.
//
// # What clients see
//
// The response to an upgrade states the limit and how many more sockets may be opened
// (draft-ietf-httpapi-ratelimit-headers-11), whatever the library:
//
//	HTTP/1.1 101 Switching Protocols
//	RateLimit-Policy: "ws";q=5;qu="concurrent-requests"
//	RateLimit: "ws";r=4
//
// A refusal is sent instead of the upgrade:
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
// Its status is one of these:
//
//	400 or 403  a rule has no key for the request ([Config].KeyErrorStatus)
//	400         the Sec-WebSocket-Key is invalid (RFC 6455, section 4.2.1)
//	429         the client's own limit is reached
//	500         a [Rule].Plan returned slots that do not belong to its rule, or a Key
//	            [keyfuncs.ErrProgram]
//	503         the service's limit is reached ([Rule].Service), the store cannot
//	            answer, or the guard is shutting down
//
// When a socket will close cannot be predicted, so Retry-After is a random 5 to 10
// seconds: waiting clients do not all retry at once.
//
// Browsers hide all of this from scripts; [Config].InBand gives them the reason.
//
// # What is guarded
//
// The guard counts upgrades by RFC 6455: method GET, Upgrade: websocket, Connection:
// upgrade, version 13. An HTTP/2 extended CONNECT with the protocol websocket (RFC 8441)
// holds its slot until the handler returns. Other requests, and handshakes that no
// library accepts, pass untouched and cause no call to the store.
//
// # How long a slot is held
//
//	until the connection is closed       by the handler or by the guard
//	until the handler returns            if it did not hijack the connection
//	until the handler returns            if it hijacked but did not upgrade: the guard closes the connection
//	until the handler panics             the guard closes the connection, and the panic continues
//	until garbage collection             if the handler dropped the connection without closing it
//
// r.Context ends when the handler returns. [Socket.Context] ends with the socket;
// [FromContext] returns the Socket.
//
// # What clients send
//
// [Config].Inbound limits messages, frames or bytes, for each socket or for all sockets
// of a user together. A socket over the limit is closed with 1008, delayed or reported:
//
//	Inbound: []websocketmw.Inbound{{Limiter: messages, Key: user}}
//
// # When the guard closes sockets
//
// [Config].MaxIdle closes sockets whose peers have vanished, and MaxAge old ones.
// [Guard.Shutdown] closes all of them. The guard sends a Close frame between two frames
// of the handler, and closes the connection if the handler has not done so after 5
// seconds. The codes are:
//
//	1001  shutdown ([Config].ShutdownCode), idle or too old
//	1008  the client sent too much
//	1013  the slot was lost ([Config].OnLost), or the store of an Inbound cannot answer
package websocketmw
