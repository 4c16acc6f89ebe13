package websocketmw

import (
	"bufio"
	"net"
	"net/http"

	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// A writer is what a handler gets for an upgrade. It detects the 101 of libraries that
// write it before they hijack the connection, and wraps the connection.
type writer struct {
	record.Recorder

	socket *Socket
	own    http.Header // the guard's fields, for a 101 written on the connection
}

// wrapped returns the writer, with Hijack only if the writer within can hijack:
// libraries check by type assertion, and over HTTP/2 nothing can.
func (w *writer) wrapped() http.ResponseWriter {
	if record.CanHijack(w.ResponseWriter) {
		return &hijacker{w}
	}
	return w
}

// WriteHeader sends a 101 at once: Gin holds statuses back until WriteHeaderNow, which
// the library would find only on Gin's own writer.
func (w *writer) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		w.socket.agree(frames.ExtensionsOf(w.Header()["Sec-Websocket-Extensions"]...))
	}
	w.Recorder.WriteHeader(status)
	if status == http.StatusSwitchingProtocols {
		w.socket.opens()
		if now, ok := w.ResponseWriter.(interface{ WriteHeaderNow() }); ok {
			now.WriteHeaderNow()
		}
	}
}

// Flush is for handlers that check for [http.Flusher].
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *writer) FlushError() error { return w.FlushThrough() }

type hijacker struct{ *writer }

// Hijack returns the connection in a wrapper that gives the slots back when it is
// closed, and a reader and a writer on that wrapper.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	inner, rw, err := h.HijackThrough()
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
