// Package websocketmw limits how many WebSockets are open at once: for each user, each address or the whole
// service, in one process or across all servers. It also limits what clients send on them, closes those that are
// silent or old, and closes them in good order when a server stops.
//
// A [Guard] is put in front of a handler that upgrades. It takes the slots of package core before the upgrade, so a
// client over the limit gets an ordinary 429, and releases them when the connection is closed:
//
//	sockets := websocketmw.MaxOpen(new(core.MemoryStore), "ws", keyfuncs.RemoteAddr(), 5)
//	http.Handle("/ws", sockets.Handler(http.HandlerFunc(upgrade)))
//
// The handler needs no change. It upgrades with gorilla/websocket, coder/websocket, gobwas/ws,
// golang.org/x/net/websocket or lxzan/gws. It must close the connection in the end, and may return before that.
// Under Gin and Echo, Middleware of packages ginmw and echomw mounts a guard.
//
// A guard does not limit how often clients connect. A guard of package nethttp around it does, and an upgrade that
// this one refuses stays charged there:
//
//	handshakes := nethttp.Limit(store, "handshakes", keyfuncs.RemoteAddr(), core.SlidingLog(30, time.Minute))
//	http.Handle("/ws", handshakes.Handler(sockets.Handler(http.HandlerFunc(upgrade))))
//
// # Which requests are counted
//
// The opening handshakes of RFC 6455, section 4.1: method GET, Upgrade: websocket, Connection: upgrade, version 13
// and a key. All other requests pass to the handler as they are, and cause no call to the store.
//
// # What a client sees that is refused
//
//	400  a rule has no key for the request, or its Sec-WebSocket-Key is not the base64 of 16 bytes
//	429  a limit of the client is reached
//	500  a function of a rule has failed: keyfuncs.ErrProgram
//	501  a WebSocket over HTTP/2 (RFC 8441), which no library speaks; it takes no slot
//	503  a limit of the service is reached, the store has no answer, or the guard is shutting down
//
// 429 and 503 have a Retry-After of 5 to 10 seconds, at random, so that clients do not all come back at once. The
// body is a problem document (RFC 9457), and the RateLimit fields are those of package nethttp. A script in a browser
// sees none of this, only that the connection has failed. A 101 has no RateLimit fields.
//
// # How long a socket has its slots
//
//	until the connection is closed  by the handler or by the guard
//	until the handler returns       if it has not upgraded; the guard closes a connection that was hijacked
//	until the handler panics        the guard closes the connection, and the panic goes on
//	until garbage collection        if the handler has dropped the connection without closing it
//
// A socket that the guard closes has its slots until the client has answered the Close frame and the handler has
// closed the connection, at most 5 seconds. One that is evicted gives them up at once.
//
// If the store takes this process for dead, or grants slots without its server, sockets stay open, and a key may have
// more of them than its limit until some have ended. It gets no others meanwhile.
//
// While there are sockets or handshakes, a guard looks for notices of other servers, for [Guard.CloseAll] and
// [EvictOldest]: over Redis four times a second.
//
// The request's context ends with the handler. [Socket.Context] ends with the socket, and [FromContext] finds the
// Socket.
//
// # What clients send
//
// The guard reads the headers of the frames before the library does, on every socket. It closes a socket whose
// client sends what RFC 6455 forbids (1002), or more than 20 control frames a second after a burst of 200 (1008).
// Close frames are free, and so is a pong for each ping of the server. Messages and Bytes of a [Config] limit the
// rest. The guard does not see what is read from the connection inside its own, by NetConn or SyscallConn.
//
// # Close frames
//
//	1001  the guard is shutting down, or the socket was silent for too long or is too old
//	1002  the client sent what RFC 6455 forbids
//	1008  the client sent more than a limit admits, or another socket has taken its place
//	1013  an eviction was not confirmed, or a limit on what clients send has no answer of its store
//
// The guard writes its Close frame between two frames of the handler. From then on it drops what the handler writes.
package websocketmw
