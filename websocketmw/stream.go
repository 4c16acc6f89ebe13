package websocketmw

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// A stream is a WebSocket over HTTP/2 (RFC 8441) as a connection: what the client sends is
// the body of the request, and what it reads that of the response. A conn is around it, as
// around a hijacked connection.
type stream struct {
	body    io.ReadCloser
	w       http.ResponseWriter
	control *http.ResponseController
	cancel  func() // ends the context of the handler's request

	// The writer is of no use when the handler has returned.
	mu   sync.RWMutex
	over bool
}

func newStream(w http.ResponseWriter, r *http.Request, cancel func()) *stream {
	return &stream{body: r.Body, w: w, control: http.NewResponseController(w), cancel: cancel}
}

// using calls f unless the handler has returned.
func (s *stream) using(f func() error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.over {
		return net.ErrClosed
	}
	return f()
}

// finish is called when the handler has returned.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

func (s *stream) Read(p []byte) (int, error) { return s.body.Read(p) }

func (s *stream) Write(p []byte) (n int, err error) {
	err = s.using(func() (err error) {
		n, err = s.w.Write(p)
		return err
	})
	return n, err
}

func (s *stream) flush() error { return s.using(s.control.Flush) }

// Close ends the handler's reads and its context. The stream itself ends when the handler
// returns.
func (s *stream) Close() error {
	s.cancel()
	return s.body.Close()
}

func (s *stream) SetReadDeadline(t time.Time) error {
	return s.using(func() error { return s.control.SetReadDeadline(t) })
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	return s.using(func() error { return s.control.SetWriteDeadline(t) })
}

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// LocalAddr and RemoteAddr return nil: nobody asks for them.
func (*stream) LocalAddr() net.Addr  { return nil }
func (*stream) RemoteAddr() net.Addr { return nil }

// A streamBody is the body of the handler's request.
type streamBody struct {
	conn *conn
	body io.Closer
}

func (b streamBody) Read(p []byte) (int, error) { return b.conn.Read(p) }
func (b streamBody) Close() error               { return b.body.Close() }

// A streamWriter is what a handler gets for a WebSocket over HTTP/2, which begins with a
// status of 2xx.
type streamWriter struct {
	*writer

	conn   *conn
	stream *stream
}

// WriteHeader begins the WebSocket if the status is a success.
func (w *streamWriter) WriteHeader(status int) {
	begins := status >= 200 && status < 300 && w.Status == 0
	if begins {
		w.socket.agree(frames.ExtensionsOf(w.Header()["Sec-Websocket-Extensions"]...))
	}
	w.writer.WriteHeader(status)
	if begins {
		w.socket.opens()
		w.conn.trySendClose()
	}
}

// Write writes frames, or the body of a response that begins no WebSocket.
func (w *streamWriter) Write(p []byte) (int, error) {
	if w.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.socket.switched.Load() {
		return w.writer.Write(p)
	}
	n, err := w.conn.Write(p)
	w.Written += int64(n)
	return n, err
}

// Flush is for handlers that check for [http.Flusher].
func (w *streamWriter) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *streamWriter) FlushError() error {
	if w.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	err := w.conn.flush(w.stream)
	w.conn.trySendClose()
	return err
}

// SetReadDeadline is for [http.ResponseController]. It also records the deadline, for
// [Delay].
func (w *streamWriter) SetReadDeadline(t time.Time) error { return w.conn.SetReadDeadline(t) }
