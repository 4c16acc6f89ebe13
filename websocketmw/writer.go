package websocketmw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/headgate/headgate/nethttp"
)

// Serve runs the handler for an admitted request. For an upgrade, next gets a writer
// that watches the connection that it takes over, and a request with the [Socket] in
// its context; anything else it gets as it is. Fields of the verdict are set first.
//
// If next panics, Serve closes the connection, and the panic goes on.
func (v Verdict) Serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s := v.socket
	if s == nil {
		next.ServeHTTP(w, r)
		return
	}
	returned := false
	defer func() { s.handled(!returned) }()
	v.SetFields(w.Header())
	if v.handshake != nil {
		tracked, settle := v.handshake.Track(r)
		if settle != nil {
			r = tracked
			defer func() { settle(outcome(s)) }()
		}
	}
	r = r.WithContext(s.serve(r.Context()))
	if !s.stream {
		own := make(http.Header, 2)
		v.SetFields(own)
		w = watched(w, s, own)
	}
	next.ServeHTTP(w, r)
	returned = true
}

// watched returns a writer that can hijack if w can: handlers ask by type assertion,
// and over HTTP/2 nothing can.
func watched(w http.ResponseWriter, s *Socket, own http.Header) http.ResponseWriter {
	inner := &writer{ResponseWriter: w, socket: s, own: own}
	if canHijack(w) {
		return &hijacker{inner}
	}
	return inner
}

// A writer notes the response 101 of libraries that write it before they take the
// connection.
type writer struct {
	http.ResponseWriter

	socket *Socket
	own    http.Header // the guard's fields, for the 101 that is written past the header
}

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush passes on, for those who ask by type assertion.
func (w *writer) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// WriteHeader makes a 101 leave at once: Gin keeps statuses until WriteHeaderNow,
// which the library would find only if the writer were Gin's.
func (w *writer) WriteHeader(status int) {
	w.ResponseWriter.WriteHeader(status)
	if status == http.StatusSwitchingProtocols {
		w.socket.switched.Store(true)
		if now, ok := w.ResponseWriter.(interface{ WriteHeaderNow() }); ok {
			now.WriteHeaderNow()
		}
	}
}

type hijacker struct{ *writer }

// Hijack returns the connection in a wrapper that gives the slots back when it is
// closed, and a reader and a writer on that wrapper.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	inner, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if rw == nil { // of a server that is not net/http's
		rw = bufio.NewReadWriter(bufio.NewReader(inner), bufio.NewWriter(inner))
	}
	c, wrapped := wrap(inner, h.socket, h.own)
	h.socket.took(c) // before rebase, which may wait for a limit
	c.rebase(rw)
	return wrapped, rw, nil
}

// outcome is what a rule of Config.Handshakes settles with.
func outcome(s *Socket) nethttp.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := nethttp.Outcome{Hijacked: s.hijacked}
	if s.switched.Load() {
		o.Status = http.StatusSwitchingProtocols
	}
	return o
}
