package websocketmw

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// Outbound limits how far a client may fall behind in reading. The zero Outbound does not: then
// a write waits for as long as the client's connection takes no more, unless the handler has set
// a deadline.
type Outbound struct {
	_ struct{} // composite literals must name the fields

	// Timeout closes a socket if 32 KiB of what is written, or less at the end of a write, take
	// longer than this to send. So a client must read 32 KiB in a Timeout, or at least what it
	// gets. 0 means never.
	Timeout time.Duration

	// MaxUnsent makes the handler's writes return at once, and the guard send in the
	// background: so one client that does not read keeps nobody waiting. If a write finds
	// bytes unsent, and there would be more than MaxUnsent with it, the socket is closed: after
	// what is unsent, or, if there would be more than twice MaxUnsent, without a Close frame. It
	// should have room for several messages. Write deadlines have no effect then, and a write
	// reports the failure of an earlier one. After Close, up to 5 seconds are spent on sending
	// what is left. What an operating system keeps, some 100 KiB or more, does not count. 0
	// means that writes wait.
	MaxUnsent int
}

const (
	unsentPiece = 32 << 10 // bytes that are sent at once
	slowReason  = "the client reads too slowly"
)

// An outbound is the side of a conn that sends, if Config.Outbound limits it. It does not keep
// the conn reachable.
type outbound struct {
	inner   net.Conn
	socket  *Socket
	timeout time.Duration
	most    int // unsent; 0: writes wait

	begun atomic.Int64 // when the current write began, in nanoseconds since Socket.opened; 0: there is none
	timed atomic.Bool  // the socket's timer is set for it

	mu      sync.Mutex
	changed sync.Cond
	unsent  []byte
	sending int  // bytes of the current write
	running bool // a goroutine sends
	over    bool // a write has found too much unsent
	closing bool // the connection is to be closed when all is sent
	err     error
}

// newOutbound returns nil if there are no limits.
func newOutbound(c Outbound, inner net.Conn, s *Socket) *outbound {
	if c.Timeout == 0 && c.MaxUnsent == 0 {
		return nil
	}
	o := &outbound{inner: inner, socket: s, timeout: c.Timeout, most: c.MaxUnsent}
	o.changed.L = &o.mu
	return o
}

// queues reports whether writes do not wait.
func (o *outbound) queues() bool { return o != nil && o.most > 0 }

// write writes p, or has it sent. What is urgent has room.
func (o *outbound) write(p []byte, urgent bool) (int, error) {
	if o.most == 0 {
		return o.writePieces(p)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := o.kept(); !urgent && o.err == nil && n > 0 && n+len(p) > o.most; n = o.kept() {
		if !o.over {
			o.over = true
			o.mu.Unlock()
			o.socket.endFor(EventSlow, frames.CodePolicy, slowReason)
			o.mu.Lock()
			continue
		}
		if o.socket.guard.config.ObserveOnly {
			o.changed.Wait() // as it would without the guard
			continue
		}
		if n+len(p) <= 2*o.most {
			break // to complete the frame, behind which the Close frame goes
		}
		o.err = net.ErrClosed
		go o.cut()
	}
	if o.err != nil || o.closing {
		return 0, net.ErrClosed
	}
	o.unsent = append(o.unsent, p...)
	if !o.running {
		o.running = true
		go o.send()
	}
	return len(p), nil
}

// writePieces writes p while the caller waits: in pieces, so that a client which reads steadily
// has time for a long frame.
func (o *outbound) writePieces(p []byte) (n int, err error) {
	for more := true; more && err == nil; more = n < len(p) {
		var m int
		m, err = timed(o, func() (int, error) { return o.inner.Write(p[n:min(n+unsentPiece, len(p))]) })
		n += m
	}
	return n, err
}

// kept returns how many bytes are unsent.
func (o *outbound) kept() int { return len(o.unsent) + o.sending }

// cut closes the connection without a Close frame.
func (o *outbound) cut() {
	_ = o.inner.Close()
	if !o.socket.stream {
		o.socket.end()
	}
}

// timed calls f, which writes, and has the socket closed if that takes too long.
func timed[T any](o *outbound, f func() (T, error)) (T, error) {
	if o.timeout > 0 {
		o.begun.Store(max(int64(time.Since(o.socket.opened)), 1))
		if !o.timed.Swap(true) {
			o.socket.watchWrite()
		}
		defer o.begun.Store(0)
	}
	return f()
}

// send sends what is unsent, until there is nothing.
func (o *outbound) send() {
	o.mu.Lock()
	for len(o.unsent) > 0 && o.err == nil {
		b := o.unsent
		o.unsent, o.sending = nil, len(b)
		for len(b) > 0 && o.err == nil {
			o.mu.Unlock()
			n, err := timed(o, func() (int, error) { return o.inner.Write(b[:min(unsentPiece, len(b))]) })
			o.mu.Lock()
			b = b[n:]
			o.sending = len(b)
			if o.err == nil {
				o.err = err
			}
			o.changed.Broadcast()
		}
		if s, ok := o.inner.(*stream); ok && o.err == nil && len(o.unsent) == 0 {
			o.mu.Unlock()
			_, _ = timed(o, func() (int, error) { return 0, s.flush() })
			o.mu.Lock()
		}
	}
	o.running, o.sending = false, 0
	o.changed.Broadcast()
	closing := o.closing
	o.mu.Unlock()
	if closing {
		o.cut()
	}
}

// closeLater has the connection closed when all is sent, and reports whether there is something
// to send.
func (o *outbound) closeLater() bool {
	if !o.queues() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.running || o.err != nil {
		return false
	}
	if !o.closing {
		o.closing = true
		_ = o.inner.SetReadDeadline(time.Now()) // reads end now
		_ = o.inner.SetWriteDeadline(time.Now().Add(closeTimeout))
	}
	return true
}

// drain waits until all is sent, for closeTimeout.
func (o *outbound) drain() {
	if !o.queues() {
		return
	}
	_ = o.inner.SetWriteDeadline(time.Now().Add(closeTimeout))
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.running {
		o.changed.Wait()
	}
}

// fail ends the writes that wait.
func (o *outbound) fail() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = net.ErrClosed
	}
	o.changed.Broadcast()
}

// watchWrite sets the timer for the current write.
func (s *Socket) watchWrite() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, _ := s.due(); !s.ended && s.closing == nil && !at.IsZero() {
		s.wake(time.Until(at))
	}
}
