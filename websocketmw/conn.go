package websocketmw

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// dropTime is how long a write takes that is dropped.
const dropTime = 10 * time.Millisecond

// errOver is what reads get from a socket over a limit.
var errOver = fmt.Errorf("headgate: the socket is over a limit: %w", net.ErrClosed)

// A conn is a connection that a handler has taken over. It gives the slots back when
// it is closed. Libraries get it in a wrapper that has what their connection had.
type conn struct {
	net.Conn

	socket  *Socket
	early   []byte // what the server had read already
	forget  runtime.Cleanup
	in      *gauge // what is read is limited; nil: it is not
	idles   bool   // reads are noted
	follows bool   // frames that are written are followed

	mu       sync.Mutex // guards what follows, and the order of writes
	response responseScanner
	own      http.Header // the guard's fields, for the 101
	out      walker
	closed   bool // a Close frame was written
	mute     bool // by the guard

	wanted atomic.Bool               // the guard wants to send one
	readBy atomic.Pointer[time.Time] // the handler's deadline
}

// wrap returns the conn, and what libraries get.
func wrap(inner net.Conn, s *Socket, own http.Header) (*conn, net.Conn) {
	config := &s.guard.config
	c := &conn{Conn: inner, socket: s, own: own, idles: config.MaxIdle > 0, follows: !config.NoCloseFrames}
	if s.budgets != nil {
		c.in = newGauge(s)
	}
	c.forget = runtime.AddCleanup(c, (*Socket).forgotten, s)
	tcp, ok := inner.(*net.TCPConn)
	switch {
	case !ok:
		return c, c
	case c.follows:
		return c, &followedTCP{c, tcp}
	default:
		return c, &plainTCP{tcp, c}
	}
}

// rebase puts the server's reader and writer onto the conn. What the reader has
// buffered it reads again, from the conn.
func (c *conn) rebase(rw *bufio.ReadWriter) {
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ := rw.Reader.Peek(n) // cannot fail: they are there
		c.early = append([]byte(nil), early...)
	}
	n := len(c.early)
	rw.Reader.Reset(c)
	if n > 0 {
		_, _ = rw.Reader.Peek(n) // whoever asks for Buffered finds them again
	}
	_ = rw.Writer.Flush()
	rw.Writer.Reset(c)
}

// NetConn returns the connection within, as that of tls.Conn does. What is read from
// it or written to it is not guarded.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection and gives the slots back. The second time it does what
// the connection does.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.forget.Stop()
	c.socket.end()
	return err
}

func (c *conn) Read(p []byte) (int, error) {
	if c.in == nil || len(p) == 0 {
		return c.read(p)
	}
	if c.in.over != nil {
		return 0, c.drain()
	}
	n, err := c.read(p[:min(len(p), c.in.most)])
	if n > 0 {
		ok := c.in.admit(p[:n], c.deadline())
		if ok == 0 {
			return 0, c.drain()
		}
		n = ok
	}
	return n, err
}

// drain closes the socket that is over a limit, and reads until the peer has seen it:
// what is not read when a connection is closed takes the Close frame with it.
func (c *conn) drain() error {
	s, over := c.socket, c.in.over
	if !s.switched.Load() { // nobody can be told yet: the next read is to do it
		return errOver
	}
	reason := fmt.Sprintf("over the limit %q", over.name)
	if over.code == codeTryAgain {
		reason = "try again later"
	}
	if s.close(over.code, reason) != nil {
		c.sayClose()
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(closeTimeout))
	b := make([]byte, 4<<10)
	for !c.in.closed {
		n, err := c.Conn.Read(b)
		c.in.closed = c.in.frames.walk(b[:n]) || err != nil
	}
	return errOver
}

func (c *conn) read(p []byte) (n int, err error) {
	if len(c.early) > 0 {
		n = copy(p, c.early)
		c.early = c.early[n:]
	} else {
		n, err = c.Conn.Read(p)
	}
	if n > 0 && c.idles {
		c.socket.lastRead.Store(int64(time.Since(c.socket.opened)))
	}
	return n, err
}

// SetDeadline also notes when reads must be done, for limits that delay them.
func (c *conn) SetDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline also notes when reads must be done, for limits that delay them.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) noteDeadline(t time.Time) {
	if c.in != nil {
		c.readBy.Store(&t)
	}
}

func (c *conn) deadline() time.Time {
	if t := c.readBy.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (c *conn) Write(p []byte) (int, error) {
	if !c.follows && c.socket.switched.Load() {
		return c.Conn.Write(p)
	}
	n, err := c.write(p)
	c.trySendClose()
	return n, err
}

func (c *conn) write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	if !c.socket.switched.Load() {
		var err error
		if n, err = c.respond(p); err != nil || n == len(p) {
			return n, err
		}
	}
	if !c.follows {
		m, err := c.Conn.Write(p[n:])
		return n + m, err
	}
	m, err := c.writeFrames(p[n:])
	return n + m, err
}

// respond writes what of p is the library's response.
func (c *conn) respond(p []byte) (int, error) {
	first := c.response.seen == 0
	n, switched := c.response.scan(p)
	out, added := p[:n], 0
	if first {
		out, added = withFields(out, c.own)
		c.own = nil
	}
	written, err := c.Conn.Write(out)
	if err != nil {
		return min(max(written-added, 0), n), err
	}
	if switched {
		c.socket.switched.Store(true)
	}
	return n, nil
}

// writeFrames writes frames, up to the end of one if the guard wants to close.
func (c *conn) writeFrames(p []byte) (n int, err error) {
	if c.wanted.Load() && !c.closed {
		ahead := c.out
		if k := ahead.finish(p); k > 0 {
			if n, err = c.pass(p[:k]); err != nil {
				return n, err
			}
		}
		c.sendClose()
	}
	switch {
	case c.mute:
		return c.drop(n, p)
	case n == len(p):
		return n, nil
	}
	m, err := c.pass(p[n:])
	return n + m, err
}

// drop pretends that p was written, of which n bytes were: an error would have the
// handler close before the peer has read why. It takes a moment, lest a writer that
// nothing slows down any more spins until the end, after which there is the error.
func (c *conn) drop(n int, p []byte) (int, error) {
	pause := time.NewTimer(dropTime)
	defer pause.Stop()
	select {
	case <-c.socket.Done():
		return n, net.ErrClosed
	case <-pause.C:
		return len(p), nil
	}
}

// pass writes what the handler does, and notes where its frames are.
func (c *conn) pass(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.out.walk(p[:n]) {
		c.closed = true
	}
	return n, err
}

// sayClose has the guard's Close frame sent now, or by the write that is under way.
func (c *conn) sayClose() {
	if !c.follows {
		_ = c.Close()
		return
	}
	c.wanted.Store(true)
	c.trySendClose()
}

// trySendClose is called after what may have made it possible, so that the last who
// could does.
func (c *conn) trySendClose() {
	if c.wanted.Load() && c.mu.TryLock() {
		c.sendClose()
		c.mu.Unlock()
	}
}

// sendClose sends the Close frame that is wanted, if it may be sent here.
func (c *conn) sendClose() {
	if !c.wanted.Load() || c.closed || !c.out.between() || !c.socket.switched.Load() {
		return
	}
	why := c.socket.whyClosing()
	c.closed, c.mute = true, true
	_ = c.Conn.SetWriteDeadline(why.end)
	_, _ = c.Conn.Write(closeFrame(why.code, why.reason))
}

// controls is what else TCP connections offer. ReadFrom is not among it, nor what
// writev needs, for they would write past the walker.
type controls interface {
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

// A followedTCP is a conn with the controls of TCP.
type followedTCP struct {
	*conn
	controls
}

// A plainTCP is a TCP connection with all that it has, but for what conn does.
type plainTCP struct {
	*net.TCPConn

	conn *conn
}

func (t *plainTCP) Read(p []byte) (int, error)  { return t.conn.Read(p) }
func (t *plainTCP) Write(p []byte) (int, error) { return t.conn.Write(p) }
func (t *plainTCP) Close() error                { return t.conn.Close() }

// The deadlines are those of conn.

func (t *plainTCP) SetDeadline(d time.Time) error     { return t.conn.SetDeadline(d) }
func (t *plainTCP) SetReadDeadline(d time.Time) error { return t.conn.SetReadDeadline(d) }

// NetConn is that of conn.
func (t *plainTCP) NetConn() net.Conn { return t.TCPConn }

// WriteTo hides that of the connection, which reads past the conn.
func (t *plainTCP) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{t.conn})
}
