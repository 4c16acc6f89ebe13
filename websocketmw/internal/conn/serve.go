// What a handler gets for an upgrade: a writer that wraps the connection when it is hijacked. It
// may not decide whether the upgrade is admitted.

package conn

import (
	"bufio"
	"net"
	"net/http"

	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// Serve calls next for an admitted upgrade. The writer wraps the connection when it is hijacked,
// and the request has the Life's context. The function fields sets the guard's fields in a header.
// The function end gets the outcome, when next returns or panics. If next panics, Serve closes the
// connection.
func Serve(l *Life, w http.ResponseWriter, r *http.Request, next http.Handler, fields func(http.Header), end func(status int, written int64, hijacked bool)) {
	returned := false
	defer func() { l.handled(!returned) }()
	fields(w.Header())
	own := make(http.Header, 2)
	fields(own)
	watched := &upgradeWriter{record.Recorder{ResponseWriter: w}, l, own}
	defer func() { end(watched.Final(returned), watched.Written, watched.Hijacked) }()
	next.ServeHTTP(watched.wrapped(), r.WithContext(l.serves(r.Context())))
	returned = true
}

// An upgradeWriter is what a handler gets for an upgrade. It detects the 101 of libraries that
// write it before they hijack the connection, and wraps the connection.
type upgradeWriter struct {
	record.Recorder

	life *Life
	own  http.Header // the guard's fields, for a 101 written on the connection
}

// wrapped returns the upgradeWriter, with Hijack only if the writer within can hijack:
// libraries check by type assertion.
func (w *upgradeWriter) wrapped() http.ResponseWriter {
	if record.CanHijack(w.ResponseWriter) {
		return &hijacker{w}
	}
	return w
}

// WriteHeader sends a 101 at once: Gin holds statuses back until WriteHeaderNow, which
// the library would find only on Gin's own writer.
func (w *upgradeWriter) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		w.life.agree(frames.ExtensionsOf(w.Header()["Sec-Websocket-Extensions"]...))
	}
	w.Recorder.WriteHeader(status)
	if status == http.StatusSwitchingProtocols {
		w.life.opens()
		if now, ok := w.ResponseWriter.(interface{ WriteHeaderNow() }); ok {
			now.WriteHeaderNow()
		}
	}
}

// Flush is for handlers that check for [http.Flusher].
func (w *upgradeWriter) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *upgradeWriter) FlushError() error { return w.FlushThrough() }

type hijacker struct{ *upgradeWriter }

// Hijack returns the connection in a Conn, and a reader and a writer on that.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	inner, rw, err := h.HijackThrough()
	if err != nil {
		return nil, nil, err
	}
	if rw == nil { // of a server that is not net/http's
		rw = bufio.NewReadWriter(bufio.NewReader(inner), bufio.NewWriter(inner))
	}
	c, wrapped := around(inner, h.life, h.own)
	c.begins() // before rebase, which may wait for a limit
	c.rebase(rw)
	return wrapped, rw, nil
}
