// A WebSocket over HTTP/2 as a net.Conn. It owns the bodies of the request and the response until the
// handler returns, and may not look into the bytes.

package conn

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A stream is a WebSocket over HTTP/2 (RFC 8441) as a connection: what the client sends is
// the body of the request, and what it reads that of the response. A Conn is around it, as
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

// finish is called when the handler has returned. Writes that others have begun may take CloseTimeout.
func (s *stream) finish() {
	if !s.mu.TryLock() {
		_ = s.control.SetWriteDeadline(time.Now().Add(CloseTimeout))
		s.mu.Lock()
	}
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

// Close ends the handler's writes, which the client may block, its context and its reads. The stream
// itself ends when the handler returns.
func (s *stream) Close() error {
	_ = s.SetWriteDeadline(time.Now()) // first: finish would make it wait
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
