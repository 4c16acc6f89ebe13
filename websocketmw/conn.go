package websocketmw

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	dropTime  = 10 * time.Millisecond // how long a dropped write takes
	drainSize = 4 << 10               // bytes read at once from a socket over a limit
)

// The errors of reads from a socket that is being closed because of what the client sent.
var (
	errOver    = fmt.Errorf("headgate: websocketmw: the socket is over a limit: %w", net.ErrClosed)
	errInvalid = fmt.Errorf("headgate: websocketmw: the client sent what RFC 6455 forbids: %w", net.ErrClosed)
)

// A conn is a hijacked connection, or a stream. Closing it releases the slots. Libraries get it
// wrapped together with the other methods of the connection.
type conn struct {
	net.Conn

	socket  *Socket
	early   []byte // to be read first: what the server had already read, or what was delayed
	forget  runtime.Cleanup
	in      gauge
	idles   bool      // the time of reads is recorded
	follows bool      // the frames that are written are tracked
	slow    *outbound // nil without Config.Outbound

	mu       sync.Mutex       // guards the fields up to mute, and the order of writes
	response *frames.Response // nil once the 101 was written
	own      http.Header      // the guard's fields, for the 101
	out      frames.Walker
	closed   bool // a Close frame was written
	mute     bool // by the guard

	pings  atomic.Int64              // that were written and are not yet in in.frames.Pongs
	wanted atomic.Bool               // the guard wants to write a Close frame
	readBy atomic.Pointer[time.Time] // the handler's read deadline
}

func newConn(inner net.Conn, s *Socket) *conn {
	config := &s.guard.config
	c := &conn{Conn: inner, socket: s, idles: config.MaxIdle > 0, follows: !config.NoCloseFrames}
	c.slow = newOutbound(config.Outbound, inner, s)
	c.in.paid = make([]int64, len(s.guard.bounds.all))
	return c
}

// wrap returns the conn, and the connection for the library.
func wrap(inner net.Conn, s *Socket, own http.Header) (*conn, net.Conn) {
	c := newConn(inner, s)
	c.own, c.response = own, new(frames.Response)
	c.forget = runtime.AddCleanup(c, (*Socket).forgotten, s)
	tcp, ok := inner.(*net.TCPConn)
	switch {
	case !ok:
		return c, c
	case c.follows, c.slow != nil:
		return c, &followedTCP{c, tcp}
	default:
		return c, &plainTCP{tcp, c}
	}
}

// rebase makes the server's reader and writer use the conn. What the reader has buffered it
// reads again, through the conn, if the 101 was sent. Before that, the client must not send
// anything (RFC 6455, section 4.1), and libraries differ in what they do with it: what gws
// drops would hide the boundaries of all frames after it from the conn.
func (c *conn) rebase(rw *bufio.ReadWriter) {
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ := rw.Reader.Peek(n) // cannot fail: n bytes are buffered
		c.early = append([]byte(nil), early...)
	}
	rw.Reader.Reset(c)
	if len(c.early) > 0 {
		if !c.socket.switched.Load() {
			c.refuse(frames.BadHandshake)
		}
		if c.in.over == nil {
			_, _ = rw.Reader.Peek(1) // so that Buffered counts them again
		}
	}
	_ = rw.Writer.Flush()
	rw.Writer.Reset(c)
}

// NetConn returns the underlying connection, as that of tls.Conn does. The guard does
// not see what is read from it or written to it.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection and releases the slots, which over HTTP/2 happens when the
// handler returns. Further calls only close the connection again. What is unsent under
// Config.Outbound is sent first, in the background.
func (c *conn) Close() error {
	if !c.socket.stream && c.slow.closeLater() {
		c.forget.Stop()
		return nil
	}
	return c.shut()
}

// shut closes the connection now.
func (c *conn) shut() error {
	c.slow.fail()
	err := c.Conn.Close()
	if c.socket.stream {
		return err
	}
	c.forget.Stop()
	c.socket.end()
	return err
}

// Read reads what the limits of Config.Inbound admit.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 || c.socket.spared.Load() {
		return c.read(p)
	}
	if c.in.over != nil {
		return 0, c.drain()
	}
	n, err := c.read(p[:min(len(p), c.socket.guard.bounds.most)])
	if n > 0 && c.socket.deaf.Load() {
		if c.in.frames.Between() {
			return c.readClose(p, n, err)
		}
		rest := min(n, c.in.frames.Rest()) // of a frame that the library has begun to read
		c.early = slices.Concat(p[rest:n], c.early)
		n = rest
	}
	if n == 0 {
		return 0, err
	}
	ok := c.admit(p[:n])
	switch ok {
	case n:
		return n, err
	case 0:
		c.early = slices.Concat(p[:n], c.early)
		return 0, c.drain()
	default: // err occurs again
		c.early = slices.Concat(p[ok:n], c.early)
		return ok, nil
	}
}

// readClose is Read once what the client sends is not wanted any more: it reads nothing but the
// client's Close frame. The first n bytes of p were read already, from a frame's beginning on, with
// the error.
func (c *conn) readClose(p []byte, n int, err error) (int, error) {
	for {
		var fault string
		if n, fault = c.in.frames.OnlyClose(p[:n], frames.Extensions(c.socket.agreed.Load())); fault != "" {
			c.in.over = &excess{frames.CodeProtocol, fault, errInvalid}
		}
		switch {
		case n > 0 || err != nil:
			return n, err
		case c.in.over != nil:
			return 0, c.drain()
		}
		n, err = c.read(p)
	}
}

// refuse makes the conn close the socket, unless it is spared, because the client sent what
// RFC 6455 forbids.
func (c *conn) refuse(fault string) {
	if c.socket.spared.Load() {
		return
	}
	c.socket.notify(Event{Kind: EventInvalid, Err: errors.New("headgate: websocketmw: the client sent " + fault)})
	if !c.socket.spare() {
		c.in.over = &excess{frames.CodeProtocol, fault, errInvalid}
	}
}

// drain closes a socket that is over a limit, and reads until the peer answers: closing a
// TCP connection with unread data resets it, and the peer may lose the Close frame.
func (c *conn) drain() error {
	s, g := c.socket, &c.in
	if !s.switched.Load() { // too early for a Close frame: the next read sends it
		return g.over.err
	}
	if s.close(g.over.code, g.over.reason) != nil {
		c.sayClose()
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(closeTimeout))
	b := make([]byte, drainSize)
	for !g.answered && !g.frames.Closed {
		n, err := c.read(b)
		closes, _ := g.frames.Walker.Walk(b[:n])
		g.answered = closes || err != nil
	}
	return g.over.err
}

// read reads early bytes first.
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

// SetDeadline also records the read deadline, for [Delay].
func (c *conn) SetDeadline(t time.Time) error {
	c.noteDeadline(t)
	if c.slow.queues() {
		return c.Conn.SetReadDeadline(t)
	}
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline does nothing if writes do not wait.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if c.slow.queues() {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// SetReadDeadline also records the deadline, for [Delay].
func (c *conn) SetReadDeadline(t time.Time) error {
	c.noteDeadline(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) noteDeadline(t time.Time) {
	if c.socket.guard.bounds.delays {
		c.readBy.Store(&t)
	}
}

// deadline returns the read deadline, or the zero time if there is none.
func (c *conn) deadline() time.Time {
	if t := c.readBy.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Write writes what the library does, and the guard's Close frame at the end of a frame.
func (c *conn) Write(p []byte) (int, error) {
	if !c.follows && c.socket.switched.Load() {
		return c.send(p)
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
		m, err := c.send(p[n:])
		return n + m, err
	}
	m, err := c.writeFrames(p[n:])
	return n + m, err
}

// respond writes the part of p that belongs to the library's response.
func (c *conn) respond(p []byte) (int, error) {
	first := !c.response.Begun()
	n, switched := c.response.Scan(p)
	if switched {
		c.socket.agree(c.response.Extensions())
	}
	out, added := p[:n], 0
	if first {
		out, added = frames.WithFields(out, c.own)
		c.own = nil
	}
	written, err := c.Conn.Write(out)
	if err != nil {
		return min(max(written-added, 0), n), err
	}
	if switched {
		c.socket.opens()
		c.response = nil
	}
	return n, nil
}

// writeFrames writes frames. If the guard wants to close, it stops at the end of the
// current frame.
func (c *conn) writeFrames(p []byte) (n int, err error) {
	if c.wanted.Load() && !c.closed {
		ahead := c.out
		if k := ahead.Finish(p); k > 0 {
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

// drop reports all of p as written, though only n bytes were: after an error the handler
// might close the connection before the peer has read the Close frame. It waits for
// dropTime, so that a handler that keeps writing does not spin. Once the socket has
// ended, it returns an error.
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

// send writes p within the limits of Config.Outbound.
func (c *conn) send(p []byte) (int, error) {
	if c.slow == nil {
		return c.Conn.Write(p)
	}
	return c.sendSlowly(p)
}

// sendSlowly is send with limits.
func (c *conn) sendSlowly(p []byte) (int, error) {
	n, err := c.slow.write(p, false)
	if c.follows {
		select {
		case <-c.socket.toClose:
			c.wanted.Store(true) // now: sayClose may be late, and the handler go on
		default:
		}
	}
	return n, err
}

// flush flushes the stream of the conn. If writes do not wait, that is done when all is sent.
func (c *conn) flush(s *stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.slow.queues() && c.socket.switched.Load():
		return nil
	case c.slow != nil:
		_, err := timed(c.slow, func() (int, error) { return 0, s.flush() })
		return err
	default:
		return s.flush()
	}
}

// pass writes p and tracks its frames.
func (c *conn) pass(p []byte) (int, error) {
	n, err := c.send(p)
	closes, pings := c.out.Walk(p[:n])
	c.closed = c.closed || closes
	if pings > 0 {
		c.pings.Add(pings)
	}
	return n, err
}

// sayClose writes the guard's Close frame now, or makes the current write do so.
func (c *conn) sayClose() {
	if !c.follows {
		_ = c.Close()
		return
	}
	c.wanted.Store(true)
	c.trySendClose()
}

// trySendClose is called after wanted was set and after every write, so that the Close
// frame is written by whichever comes last.
func (c *conn) trySendClose() {
	if c.wanted.Load() && c.mu.TryLock() {
		c.sendClose()
		c.mu.Unlock()
	}
}

// sendClose writes the Close frame if it is wanted and no frame is incomplete. c.mu is
// held.
func (c *conn) sendClose() {
	if !c.wanted.Load() || c.closed || !c.out.Between() || !c.socket.switched.Load() {
		return
	}
	why := c.socket.whyClosing()
	c.closed, c.mute = true, true
	_ = c.Conn.SetWriteDeadline(why.end)
	if c.slow.queues() {
		_, _ = c.slow.write(frames.Close(why.code, why.reason), true)
		return
	}
	_, _ = c.Conn.Write(frames.Close(why.code, why.reason))
	if s, ok := c.Conn.(*stream); ok {
		_ = s.flush()
	}
}

// controls are the other methods of a TCP connection, except ReadFrom and what writev
// needs, which would bypass the walker.
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

// A followedTCP is a conn with the controls of its TCP connection.
type followedTCP struct {
	*conn
	controls
}

// A plainTCP is a TCP connection with all its methods, some of them replaced by those of
// the conn.
type plainTCP struct {
	*net.TCPConn

	conn *conn
}

func (t *plainTCP) Read(p []byte) (int, error)  { return t.conn.Read(p) }
func (t *plainTCP) Write(p []byte) (int, error) { return t.conn.Write(p) }
func (t *plainTCP) Close() error                { return t.conn.Close() }

func (t *plainTCP) SetDeadline(d time.Time) error     { return t.conn.SetDeadline(d) }
func (t *plainTCP) SetReadDeadline(d time.Time) error { return t.conn.SetReadDeadline(d) }

// NetConn is like that of the conn.
func (t *plainTCP) NetConn() net.Conn { return t.TCPConn }

// WriteTo replaces that of the TCP connection, which would bypass the conn.
func (t *plainTCP) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{t.conn})
}
