package websocketmw

import (
	"bufio"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// An upgradeWriter is what a handler gets for an upgrade. It finds the 101 of libraries that write it before they
// hijack the connection, and wraps the connection.
type upgradeWriter struct {
	http.ResponseWriter

	socket *Socket
}

type hijacker struct{ *upgradeWriter }

// wrap returns an upgradeWriter. It has Hijack only if the writer within has: libraries look for it.
func wrap(w http.ResponseWriter, s *Socket) http.ResponseWriter {
	u := &upgradeWriter{w, s}
	if record.CanHijack(w) {
		return hijacker{u}
	}
	return u
}

// Unwrap is for [http.ResponseController].
func (w *upgradeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends a 101 at once: Gin holds statuses back until WriteHeaderNow, which the library would find only on
// Gin's own writer.
func (w *upgradeWriter) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.socket.extensions.Store(uint32(frames.ExtensionsOf(w.Header()["Sec-Websocket-Extensions"]...)))
	w.ResponseWriter.WriteHeader(status)
	w.socket.open()
	if now, ok := w.ResponseWriter.(interface{ WriteHeaderNow() }); ok {
		now.WriteHeaderNow()
	}
}

// Flush is for handlers that look for [http.Flusher].
func (w *upgradeWriter) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *upgradeWriter) FlushError() error {
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack returns the connection in a conn, and a reader and a writer on that.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	inner, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if rw == nil { // of a server that is not net/http's
		rw = bufio.NewReadWriter(bufio.NewReader(inner), bufio.NewWriter(inner))
	}
	s := h.socket
	c := &conn{s}
	s.hijack(inner) // before rebase, which may wait for a limit
	runtime.AddCleanup(c, (*Socket).endUnreachable, s)
	c.rebase(rw)
	if tcp, ok := inner.(*net.TCPConn); ok {
		return &tcpConn{c, tcp}, rw, nil
	}
	return c, rw, nil
}

// A conn is the connection that a library gets. All its state is in the Socket, which does not refer to the conn. So
// when the program has dropped the conn without closing it, garbage collection finds that, and the socket ends.
type conn struct{ socket *Socket }

// A tcpConn has the other methods of a TCP connection, but for those that would bypass the socket.
type tcpConn struct {
	*conn
	tcpControls
}

type tcpControls interface {
	CloseRead() error
	CloseWrite() error
	SetKeepAlive(keepalive bool) error
	SetKeepAliveConfig(config net.KeepAliveConfig) error
	SetKeepAlivePeriod(d time.Duration) error
	SetLinger(sec int) error
	SetNoDelay(noDelay bool) error
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
	SyscallConn() (syscall.RawConn, error)
}

// rebase makes the server's reader and writer use the conn. What the reader has buffered it reads again, through
// the conn, if the 101 was sent. Before that, the client must not send anything (RFC 6455, section 4.1), and
// libraries differ in what they do with it.
func (c *conn) rebase(rw *bufio.ReadWriter) {
	s := c.socket
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ := rw.Reader.Peek(n) // cannot fail: n bytes are buffered
		s.in.pending = append([]byte(nil), early...)
	}
	rw.Reader.Reset(c)
	if len(s.in.pending) > 0 {
		if !s.upgraded.Load() {
			s.refuse(frames.BadHandshake)
		} else {
			_, _ = rw.Reader.Peek(1) // so that Buffered counts them again
		}
	}
	_ = rw.Writer.Flush()
	rw.Writer.Reset(c)
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.socket.read(p)
	runtime.KeepAlive(c)
	return n, err
}
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.socket.write(p)
	runtime.KeepAlive(c)
	return n, err
}
func (c *conn) Close() error         { return c.socket.end() }
func (c *conn) LocalAddr() net.Addr  { return c.socket.conn.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.socket.conn.RemoteAddr() }

// NetConn returns the connection within, as NetConn of tls.Conn does. The guard does not see its reads and writes.
func (c *conn) NetConn() net.Conn { return c.socket.conn }

func (c *conn) SetDeadline(t time.Time) error {
	c.socket.noteDeadline(t)
	return c.socket.conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.socket.noteDeadline(t)
	return c.socket.conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error { return c.socket.conn.SetWriteDeadline(t) }

func (s *Socket) noteDeadline(t time.Time) {
	if s.guard.delays() {
		s.readBy.Store(&t)
	}
}

// An output is what a socket knows of the bytes that the handler writes: the 101, then frames, and between two of
// them the guard's Close frame.
type output struct {
	mu       sync.Mutex // guards what follows, and the order of writes
	response *frames.Response
	walker   frames.Walker
	closed   bool // a Close frame was written
	discards bool // by the guard, which drops the rest

	wantsClose atomic.Bool  // the guard wants to write a Close frame
	pings      atomic.Int64 // that were written, and of which the reader does not know
}

const discardTime = 10 * time.Millisecond // how long a write takes that is dropped

// write writes what the library does, and the guard's Close frame at the end of a frame.
func (s *Socket) write(p []byte) (n int, err error) {
	s.out.mu.Lock()
	if !s.upgraded.Load() {
		n, err = s.writeResponse(p)
	}
	if err == nil && n < len(p) {
		var m int
		m, err = s.writeFrames(p[n:])
		n += m
	}
	s.out.mu.Unlock()
	s.trySendClose()
	return n, err
}

// writeResponse writes the part of p that belongs to the library's response.
func (s *Socket) writeResponse(p []byte) (int, error) {
	if s.out.response == nil {
		s.out.response = new(frames.Response)
	}
	n, switched := s.out.response.Scan(p)
	if switched {
		s.extensions.Store(uint32(s.out.response.Extensions()))
	}
	if m, err := s.conn.Write(p[:n]); err != nil {
		return m, err
	}
	if switched {
		s.out.response = nil
		s.open()
	}
	return n, nil
}

// writeFrames writes frames. If the guard wants to close, it stops at the end of the current frame.
func (s *Socket) writeFrames(p []byte) (n int, err error) {
	if s.out.wantsClose.Load() && !s.out.closed {
		ahead := s.out.walker
		if k := ahead.Finish(p); k > 0 {
			if n, err = s.writeThrough(p[:k]); err != nil {
				return n, err
			}
		}
		s.sendClose()
	}
	switch {
	case s.out.discards:
		return s.discardWrite(n, p)
	case n == len(p):
		return n, nil
	}
	m, err := s.writeThrough(p[n:])
	return n + m, err
}

// discardWrite reports all of p as written, though only n bytes were: after an error the handler might close the connection
// before the peer has read the Close frame. It waits, so that a handler that keeps writing does not spin.
func (s *Socket) discardWrite(n int, p []byte) (int, error) {
	pause := time.NewTimer(discardTime)
	defer pause.Stop()
	select {
	case <-s.Context().Done():
		return n, net.ErrClosed
	case <-pause.C:
		return len(p), nil
	}
}

// writeThrough writes p and follows its frames.
func (s *Socket) writeThrough(p []byte) (int, error) {
	n, err := s.conn.Write(p)
	closes, pings := s.out.walker.Walk(p[:n])
	s.out.closed = s.out.closed || closes
	if pings > 0 {
		s.out.pings.Add(pings)
	}
	return n, err
}

// requestClose writes the guard's Close frame now, or has the current write do so.
func (s *Socket) requestClose() {
	s.out.wantsClose.Store(true)
	s.trySendClose()
}

// trySendClose is called after wantsClose was set and after every write, so that the Close frame is written by whichever
// comes last.
func (s *Socket) trySendClose() {
	if s.out.wantsClose.Load() && s.out.mu.TryLock() {
		s.sendClose()
		s.out.mu.Unlock()
	}
}

// sendClose writes the Close frame if it is wanted and no frame is incomplete. out.mu is held.
func (s *Socket) sendClose() {
	if !s.out.wantsClose.Load() || s.out.closed || !s.out.walker.Between() || !s.upgraded.Load() {
		return
	}
	s.mu.Lock()
	why := *s.closing
	s.mu.Unlock()
	s.out.closed, s.out.discards = true, true
	_ = s.conn.SetWriteDeadline(why.until)
	_, _ = s.conn.Write(frames.Close(why.code, why.reason))
}
