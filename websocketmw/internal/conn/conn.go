// The Conn: it owns a reader and a writer of one connection, and closes it. It may not look into what
// passes through: the reader and the writer do.

package conn

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// A Conn is a hijacked connection. Closing it ends its Life. Libraries get it
// wrapped together with the other methods of the connection.
type Conn struct {
	reader
	writer
	ends // of the Life

	forget runtime.Cleanup
}

// begins tells the Life of the Conn.
func (c *Conn) begins() {
	var w *writes
	if c.slow != nil {
		w = &c.slow.writes
	}
	c.reader.life.took(&c.ends, w)
}

// A collected is what is left of a Conn that was collected.
type collected struct {
	life *Life
	slow *sender
}

// forgotten ends a socket whose Conn was collected. It does not block: all cleanups of the process wait
// for one.
func (of collected) forgotten() {
	go func() {
		of.life.tell(Event{Kind: Forgotten})
		if of.slow != nil { // which may still send
			of.slow.fail()
			_ = of.slow.inner.Close() // TLS may take seconds
		}
		of.life.End()
	}()
}

// around returns a Conn, and the connection for the library. The header has the guard's fields. The Life
// is to know of the Conn before anything is read.
func around(inner net.Conn, l *Life, own http.Header) (*Conn, net.Conn) {
	c := new(Conn)
	c.reader.inner, c.reader.life, c.meter.paid = inner, l, make([]int64, len(l.rules.bounds))
	c.writer.inner, c.writer.life, c.writer.slow = inner, l, newSender(inner, l)
	c.ends.connection = c
	c.own, c.response = own, new(frames.Response)
	c.forget = runtime.AddCleanup(c, collected.forgotten, collected{l, c.slow})
	tcp, ok := inner.(*net.TCPConn)
	switch {
	case !ok:
		return c, c
	case c.follows(), c.slow != nil:
		return c, &followedTCP{c, tcp}
	default:
		return c, &plainTCP{tcp, c}
	}
}

// rebase makes the server's reader and writer use the Conn. What the reader has buffered it
// reads again, through the Conn, if the 101 was sent. Before that, the client must not send
// anything (RFC 6455, section 4.1), and libraries differ in what they do with it: what gws
// drops would hide the boundaries of all frames after it from the Conn.
func (c *Conn) rebase(rw *bufio.ReadWriter) {
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ := rw.Reader.Peek(n) // cannot fail: n bytes are buffered
		c.early = append([]byte(nil), early...)
	}
	rw.Reader.Reset(c)
	if len(c.early) > 0 {
		if !c.reader.life.switched.Load() {
			c.refuse(frames.BadHandshake)
		}
		if c.meter.over == nil {
			_, _ = rw.Reader.Peek(1) // so that Buffered counts them again
		}
	}
	_ = rw.Writer.Flush()
	rw.Writer.Reset(c)
}

// NetConn returns the underlying connection, as NetConn of tls.Conn does. The guard does not see
// its reads and writes.
func (c *Conn) NetConn() net.Conn { return c.reader.inner }

// LocalAddr returns the address of the underlying connection.
func (c *Conn) LocalAddr() net.Addr { return c.reader.inner.LocalAddr() }

// RemoteAddr returns the address of the underlying connection.
func (c *Conn) RemoteAddr() net.Addr { return c.reader.inner.RemoteAddr() }

// Close closes the connection and ends the Life. Further calls only close the connection again.
// Bytes that are unsent under MaxUnsent are sent first, in the background.
func (c *Conn) Close() error {
	if c.slow.closeLater(c) {
		c.forget.Stop()
		return nil
	}
	return c.shut()
}

// shut closes the connection now.
func (c *Conn) shut() error {
	c.slow.fail()
	err := c.reader.inner.Close()
	c.forget.Stop()
	c.reader.life.End()
	return err
}

// sayClose writes the guard's Close frame now, or makes the current write do so.
func (c *Conn) sayClose() {
	if !c.follows() {
		_ = c.Close()
		return
	}
	c.wanted.Store(true)
	c.trySendClose()
}

// SetDeadline also records the read deadline, for [Delay].
func (c *Conn) SetDeadline(t time.Time) error {
	c.reader.life.noteDeadline(t)
	if c.slow.queues() {
		return c.reader.inner.SetReadDeadline(t)
	}
	return c.reader.inner.SetDeadline(t)
}

// SetWriteDeadline does nothing if writes do not wait.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.slow.queues() {
		return nil
	}
	return c.reader.inner.SetWriteDeadline(t)
}

// tcpControls are the other methods of a TCP connection, except ReadFrom and what writev
// needs, which would bypass the Conn.
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

// A followedTCP is a Conn with the tcpControls of its TCP connection.
type followedTCP struct {
	*Conn
	tcpControls
}

// A plainTCP is a TCP connection with all its methods, some of them replaced by those of
// the Conn.
type plainTCP struct {
	*net.TCPConn

	conn *Conn
}

func (t *plainTCP) Read(p []byte) (int, error)  { return t.conn.Read(p) }
func (t *plainTCP) Write(p []byte) (int, error) { return t.conn.Write(p) }
func (t *plainTCP) Close() error                { return t.conn.Close() }

func (t *plainTCP) SetDeadline(d time.Time) error     { return t.conn.SetDeadline(d) }
func (t *plainTCP) SetReadDeadline(d time.Time) error { return t.conn.SetReadDeadline(d) }

// NetConn is like that of the Conn.
func (t *plainTCP) NetConn() net.Conn { return t.TCPConn }

// WriteTo replaces that of the TCP connection, which would bypass the Conn.
func (t *plainTCP) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{t.conn})
}
