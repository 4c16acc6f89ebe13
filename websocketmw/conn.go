package websocketmw

import (
	"bufio"
	"net"
	"net/http"
	"runtime"
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
func wrap(w http.ResponseWriter, socket *Socket) http.ResponseWriter {
	u := &upgradeWriter{w, socket}
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
	w.socket.noteUpgrade()
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
	socket := h.socket
	c := &conn{socket}
	socket.hijack(inner) // before rebase, which may wait for a limit
	// Of the conn, and not of the Socket: the guard keeps that for as long as it is open.
	runtime.AddCleanup(c, (*Socket).endUnreachable, socket)
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
	socket := c.socket
	n := rw.Reader.Buffered()
	if n > 0 {
		early, _ := rw.Reader.Peek(n) // cannot fail: n bytes are buffered
		socket.in.pending = append([]byte(nil), early...)
	}
	rw.Reader.Reset(c)
	if len(socket.in.pending) > 0 {
		if !socket.upgraded.Load() {
			socket.refuse(frames.BadHandshake)
		} else {
			_, _ = rw.Reader.Peek(1) // so that Buffered counts them again
		}
	}
	_ = rw.Writer.Flush()
	rw.Writer.Reset(c)
}

func (c *conn) Read(data []byte) (int, error) {
	n, err := c.socket.read(data)
	runtime.KeepAlive(c) // a conn whose last use is a call that blocks must not be taken for dropped
	return n, err
}

func (c *conn) Write(data []byte) (int, error) {
	n, err := c.socket.write(data)
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

// noteDeadline notes the handler's deadline for reads, which a delay must not miss.
func (s *Socket) noteDeadline(deadline time.Time) {
	if s.guard.delays() {
		s.readDeadline.Store(&deadline)
	}
}
