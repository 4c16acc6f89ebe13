// The sender: it owns what is not sent yet, and the time that a write takes. It may not look into the
// bytes.

package conn

import (
	"net"
	"sync"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const unsentPiece = 32 << 10 // bytes that are sent at once

// A sender sends what is written, within the limits of the Rules on how far a client may fall behind.
// It does not keep the Conn reachable before that is closed.
type sender struct {
	writes

	inner net.Conn
	life  *Life
	most  int // unsent; 0: writes wait

	mu      sync.Mutex
	changed sync.Cond
	unsent  []byte
	sending int   // bytes of the current write
	running bool  // a goroutine sends
	over    bool  // a write has found too much unsent
	closing *Conn // is to be closed when all is sent; the Life, which may cut it before, finds it until then
	err     error
}

// newSender returns nil if there are no limits.
func newSender(inner net.Conn, l *Life) *sender {
	if l.rules.Timeout == 0 && l.rules.MaxUnsent == 0 {
		return nil
	}
	s := &sender{inner: inner, life: l, most: l.rules.MaxUnsent}
	s.timeout = l.rules.Timeout
	s.changed.L = &s.mu
	return s
}

// queues reports whether writes do not wait.
func (s *sender) queues() bool { return s != nil && s.most > 0 }

// write writes p, or has it sent. What is urgent has room.
func (s *sender) write(p []byte, urgent bool) (int, error) {
	if s.most == 0 {
		return s.writePieces(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := s.kept(); !urgent && s.err == nil && n > 0 && n+len(p) > s.most; n = s.kept() {
		if !s.over {
			s.over = true
			s.mu.Unlock()
			s.life.endFor(Slow, frames.CodePolicy, slowReason)
			s.mu.Lock()
			continue
		}
		if s.life.rules.ObserveOnly {
			s.changed.Wait() // as it would without the guard
			continue
		}
		if n+len(p) <= 2*s.most {
			break // to complete the frame, behind which the Close frame goes
		}
		s.err = net.ErrClosed
		go s.cut()
	}
	if s.err != nil || s.closing != nil {
		return 0, net.ErrClosed
	}
	s.unsent = append(s.unsent, p...)
	if !s.running {
		s.running = true
		go s.send()
	}
	return len(p), nil
}

// writePieces writes p while the caller waits: in pieces, so that a client which reads steadily
// has time for a long frame.
func (s *sender) writePieces(p []byte) (n int, err error) {
	for more := true; more && err == nil; more = n < len(p) {
		var m int
		m, err = s.writePiece(p[n:min(n+unsentPiece, len(p))])
		n += m
	}
	return n, err
}

// kept returns how many bytes are unsent.
func (s *sender) kept() int { return len(s.unsent) + s.sending }

// cut closes the connection without a Close frame.
func (s *sender) cut() {
	_ = s.inner.Close()
	s.life.End()
}

// writePiece writes p, and has the socket closed if that takes too long.
func (s *sender) writePiece(p []byte) (int, error) {
	if s.timeout > 0 {
		s.life.writing(&s.writes)
		defer s.begun.Store(0)
	}
	return s.inner.Write(p)
}

// send sends what is unsent, until there is nothing.
func (s *sender) send() {
	s.mu.Lock()
	for len(s.unsent) > 0 && s.err == nil {
		b := s.unsent
		s.unsent, s.sending = nil, len(b)
		for len(b) > 0 && s.err == nil {
			s.mu.Unlock()
			n, err := s.writePiece(b[:min(unsentPiece, len(b))])
			s.mu.Lock()
			b = b[n:]
			s.sending = len(b)
			if s.err == nil {
				s.err = err
			}
			s.changed.Broadcast()
		}
	}
	s.running, s.sending = false, 0
	s.changed.Broadcast()
	closing := s.closing
	s.mu.Unlock()
	if closing != nil {
		_ = closing.shut()
	}
}

// closeLater has c closed when all is sent, and reports whether there is something to send.
func (s *sender) closeLater(c *Conn) bool {
	if !s.queues() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running || s.err != nil {
		return false
	}
	if s.closing == nil {
		s.closing = c
		_ = s.inner.SetReadDeadline(time.Now()) // reads end now
		_ = s.inner.SetWriteDeadline(time.Now().Add(CloseTimeout))
	}
	return true
}

// fail ends the writes that wait.
func (s *sender) fail() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = net.ErrClosed
	}
	s.changed.Broadcast()
}
