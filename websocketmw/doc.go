// Package websocketmw is a WebSocket connection limit: it limits how many WebSockets are open at
// once. The limit is for each user, each address or the whole service, in one process or across all
// servers. It also limits the rate of handshakes and messages.
//
// A [Guard] stands in front of any handler that upgrades. It takes a slot of package core before the
// upgrade, so a client over the limit gets a real 429. It releases the slot when the connection
// closes, for whatever reason:
//
//	guard := core.Must(websocketmw.Limit("ws", keyfuncs.RemoteAddr(), 5))
//	http.Handle("/ws", guard.Handler(upgrade))
//
// [New] makes a guard of a [Config], for several limits and more:
//
//	guard, err := websocketmw.New(websocketmw.Config{
//		Rules:   []nethttp.Rule{{Slots: slots, Key: keyfuncs.RemoteAddr()}},
//		Inbound: []websocketmw.Inbound{{Limiter: messages, Key: user}},
//	})
//
// The handler needs no change: it upgrades with gorilla, coder, gobwas, x/net/websocket
// or gws, and closes the connection when it is done. It may return before that. Package
// gorillaws also upgrades and closes for the handler. Use of packages ginmw, echomw and
// echov5mw mounts the guard there.
//
// A guard of package nethttp around this one limits how often clients try to connect. Then an upgrade
// that is refused for want of a slot counts, too:
//
//	http.Handle("/ws", attempts.Handler(guard.Handler(upgrade)))
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
//	400         a rule has no key for the request
//	400         the Sec-WebSocket-Key is invalid (RFC 6455, section 4.2.1)
//	429         the client's own limit is reached
//	500         a function of a rule returned what does not belong to it, or a Key
//	            [keyfuncs.ErrProgram]
//	501         a WebSocket over HTTP/2
//	503         the service's limit is reached ([nethttp.Rule].Service), the store cannot
//	            answer, or the guard is shutting down
//
// Nobody can predict when a socket will close. So Retry-After is a random 5 to 10 seconds: waiting
// clients do not all retry at once.
//
// Browsers hide all of this from scripts; [Config].InBand gives them the reason.
//
// # Guarded requests
//
// The guard counts upgrades by RFC 6455: method GET, Upgrade: websocket, Connection: upgrade,
// version 13. Other requests, and handshakes that no library accepts, pass untouched and cause no
// call to the store.
//
// A WebSocket over HTTP/2, which is an extended CONNECT with the protocol websocket (RFC 8441), is
// refused with 501, also with ObserveOnly: no library supports it. net/http offers it only if GODEBUG has
// http2xconnect=1 when the process starts. Without that, browsers use HTTP/1.1.
//
// # A socket's life
//
//	the upgrade is checked      rates are charged, slots are taken; or it is refused
//	the handler upgrades        the 101 is written; the Socket is open, the guard between it and the library
//	the client sends, reads     within Inbound and Outbound, MaxIdle and MaxAge
//	somebody closes             the handler, the client, or the guard with a Close frame; if it is not closed 5 seconds later, the guard closes without one
//	the connection is closed    the slots are released, [EventClosed]
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
// [Config].Inbound limits messages, frames, bytes or control frames. Each socket has a limit of its
// own or, with a Key, all sockets of a user share one. A socket over the limit is closed with 1008,
// delayed or reported. These are 60 messages a minute for a socket, and 200 for a user:
//
//	perSocket := core.Must(core.New(store, "messages", core.SlidingWindow(core.PerMinute(60))))
//	perUser := core.Must(core.New(store, "user-messages", core.SlidingWindow(core.PerMinute(200))))
//
//	Inbound: []websocketmw.Inbound{{Limiter: perSocket}, {Limiter: perUser, Key: user}}
//
// Behind golang.org/x/net/websocket, limit Frames, not Messages: it hands each fragment of a
// message to the handler as a message of its own.
//
// On every socket, with Inbound or without, the guard reads the headers of the frames before the
// library does. It limits control frames to 20 a second after a burst of 200 (see [Controls]). It
// closes the socket with 1002 for frames that RFC 6455 forbids. The library checks the payload. The
// guard does not see bytes that are read from the connection behind its own, with NetConn,
// SyscallConn or File.
//
// # Before a limit is enforced
//
// [Config].ObserveOnly is shadow mode: sockets take slots where there are any, and are
// observed, but clients see no difference.
//
// # When the guard closes sockets
//
// [Config].MaxIdle closes sockets whose peers have vanished, and MaxAge old ones.
// [Guard.Shutdown] closes all of them, at once or over the time of [Config].Drain. The guard sends a
// Close frame between two frames of the handler. It closes the connection if the handler has not
// done so after 5 seconds. The codes are:
//
//	1001  shutdown ([Config].ShutdownCode), idle or too old
//	1002  the client sent what RFC 6455 forbids
//	1008  the client sent too much, reads too slowly ([Config].Outbound), or a newer socket
//	      has taken the place of this one ([Config].EvictCode)
//	1013  there are too many sockets ([Config].OnExcess, [EvictOldest]), or the store of an
//	      Inbound cannot answer
package websocketmw
