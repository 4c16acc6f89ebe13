package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

var errEnded = fmt.Errorf("headgate: websocketmw: the socket is closed: %w", context.Canceled)

// A Socket is an upgrade that a guard has admitted, until its connection is closed. It is safe for concurrent use. Its
// prints have nothing of whom it is.
type Socket struct {
	// It ends in one of two ways. Either the guard closes it: close sends a Close frame, and 5 seconds later end is
	// called; in an eviction, releaseAndClose first releases the slots, which end does otherwise. Or the connection is
	// closed: by the handler, because the handler did not upgrade, or by garbage collection when the handler has
	// dropped it. All of these call end.

	// These are set before the socket is in an index, and do not change.
	guard    *Guard
	number   int64
	beganAt  time.Time     // its handshake
	slot     *backend.Slot // nil: there is no rule
	eviction *eviction     // what it has to do when the 101 is written; nil: nothing

	// The guard's mu guards these.
	links     []link
	holdsSlot bool // false from when it is about to give up its slots

	mu      sync.Mutex      // guards what follows, up to conn
	ctx     context.Context // what Context returns; nil until the first call
	cancel  context.CancelCauseFunc
	closing *closing // nil: the guard does not close it
	timer   *time.Timer
	stop    chan struct{} // closed when the guard begins to close it; nil until somebody waits for that
	ended   bool

	// Set with mu held: the first two by serve, the conn by hijack. The handler, and who has the conn, come later, and
	// read them without it.
	requestContext context.Context // has the socket from then on
	openedAt       time.Time
	conn           net.Conn // that was hijacked; nil: none

	lastRead     atomic.Int64              // nanoseconds since openedAt
	readDeadline atomic.Pointer[time.Time] // that the handler has set
	upgraded     atomic.Bool               // the 101 was written
	discards     atomic.Bool               // the handler reads nothing more but the client's Close frame
	extensions   atomic.Uint32             // those in the 101
	ageCut       uint16                    // in 65536ths of a tenth of MaxAge: by how much it is closed early

	in  input
	out output
}

// A closing is how the guard closes a socket.
type closing struct {
	cause  error
	code   int
	reason string
	endsAt time.Time // when it closes the connection
}

// Format implements [fmt.Formatter]: it prints nothing of whom the socket is.
func (*Socket) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, "websocketmw.Socket") }

type socketKey struct{}

// FromContext returns the socket of a handler's request, from its context or one that is derived from it, also from
// [Socket.Context]. It returns false if the request is not an upgrade that a guard has admitted.
func FromContext(ctx context.Context) (*Socket, bool) {
	socket, ok := ctx.Value(socketKey{}).(*Socket)
	return socket, ok
}

// Context returns a context that is done when the connection is closed, with the values of the request's context. Its
// cause wraps [context.Canceled]. It has no deadline, and does not end with the handler.
func (s *Socket) Context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(s.requestContext))
		if s.ended {
			s.cancel(errEnded)
		}
	}
	return s.ctx
}

// Close begins to close the socket, and returns at once. OnClosed gets nil. Only the first call has an effect, and none
// has one when the guard is closing the socket already.
//
// A Close frame with the code and the reason is sent as soon as no frame of the handler is incomplete. From then on,
// what the handler writes is dropped, and it reads nothing more but the client's Close frame. If the handler has not
// closed the connection 5 seconds later, the guard does.
//
// The code is 1000 to 1003, 1007 to 1014 or 3000 to 4999 (RFC 6455, section 7.4, and the registry of IANA); instead of
// another, 1011 is sent. Of the reason, the first 123 bytes are sent, at most.
func (s *Socket) Close(code int, reason string) { s.close(nil, code, reason) }

// close is how the guard closes a socket, for a cause of this package or, with nil, for the program. It
// returns false if the socket is being closed already.
func (s *Socket) close(cause error, code int, reason string) bool {
	if !frames.Sendable(code) {
		code = frames.CodeInternal
	}
	s.mu.Lock()
	if s.ended || s.closing != nil {
		s.mu.Unlock()
		return false
	}
	// A socket that somebody wants gone hears no more of its client. If the server closes it for reasons of its own,
	// the handler reads what the client has sent until it answers.
	if cause == nil || cause == ErrEvicted { //nolint:errorlint // they are given, not wrapped
		s.discards.Store(true)
	}
	s.closing = &closing{cause, code, reason, time.Now().Add(closeTimeout)}
	if s.stop != nil {
		close(s.stop)
	}
	open := s.conn != nil
	if open {
		s.setTimer(closeTimeout)
	}
	s.mu.Unlock()
	if open {
		go s.requestClose() // a write may hold the connection
	}
	return true
}

// endUnreachable is called when the program has dropped the connection.
func (s *Socket) endUnreachable() {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if !ended {
		go s.end() //nolint:errcheck // TLS may take seconds, and all cleanups of the process would wait
	}
}

// end closes the connection, if there is one, and ends the socket. A second call closes only the connection.
func (s *Socket) end() (err error) {
	s.mu.Lock()
	ended := s.ended
	conn := s.conn
	closing := s.closing
	s.ended = true
	if ended { // the handler may close what the guard has closed
		s.mu.Unlock()
		if conn != nil {
			err = conn.Close() // what the library gets for closing twice
		}
		return err
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.cancel != nil {
		s.cancel(errEnded)
	}
	s.mu.Unlock()
	if conn != nil {
		err = conn.Close()
	}
	// After the connection, so that no more sockets are open than slots are held, and before OnClosed, which may take
	// its time.
	s.guard.release(s)
	defer s.guard.remove(s) // so that Shutdown waits for OnClosed
	onClosed := s.guard.config.OnClosed
	if onClosed != nil {
		var cause error
		if closing != nil {
			cause = closing.cause
		}
		onClosed(s, cause)
	}
	return err
}

// serve calls the handler of an upgrade.
func (s *Socket) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s.mu.Lock()
	s.openedAt = time.Now()
	s.ageCut = uint16(rand.Uint32())
	s.requestContext = context.WithValue(r.Context(), socketKey{}, s)
	s.mu.Unlock()
	returned := false
	defer func() {
		s.mu.Lock()
		hijacked := s.conn != nil
		s.mu.Unlock()
		if !hijacked || !returned || !s.upgraded.Load() { // otherwise goroutines may serve it
			_ = s.end()
		}
	}()
	next.ServeHTTP(wrap(w, s), r.WithContext(s.requestContext))
	returned = true
}

// hijack notes the connection, which the handler has hijacked.
func (s *Socket) hijack(conn net.Conn) {
	s.mu.Lock()
	s.conn = conn
	ended := s.ended
	closing := s.closing != nil
	closesAt, _ := s.nextClose()
	if !ended && !closesAt.IsZero() {
		s.setTimer(time.Until(closesAt))
	}
	s.mu.Unlock()
	switch {
	case ended: // by Shutdown
		_ = conn.Close()
	case closing: // before there was a connection to close
		go s.requestClose()
	}
}

// noteUpgrade notes that the 101 is written, and begins the eviction for which the socket was admitted. A client that
// has left before that, or has sent something, which RFC 6455 forbids, evicts nobody.
func (s *Socket) noteUpgrade() {
	switch {
	case s.upgraded.Swap(true) || s.eviction == nil:
	case s.requestContext.Err() != nil || len(s.in.pending) > 0:
		go s.releaseAndClose(nil, frames.CodeTryAgain, "the handshake was given up; try again")
	default:
		go s.eviction.run(s)
	}
}

// setTimer sets the timer. s.mu is held.
func (s *Socket) setTimer(pause time.Duration) {
	if s.timer == nil {
		s.timer = time.AfterFunc(max(pause, 0), s.onTimer)
	} else {
		s.timer.Reset(max(pause, 0))
	}
}

// nextClose returns when the guard closes the socket, or ends it if that has no cause; or the zero time. s.mu is
// held.
func (s *Socket) nextClose() (closesAt time.Time, cause error) {
	if s.closing != nil {
		return s.closing.endsAt, nil
	}
	maxAge := s.guard.config.MaxAge
	if maxAge > 0 {
		closesAt = s.openedAt.Add(maxAge - maxAge/10*time.Duration(s.ageCut)/(1<<16))
		cause = ErrAged
	}
	maxIdle := s.guard.config.MaxIdle
	if maxIdle > 0 {
		idleAt := s.openedAt.Add(time.Duration(s.lastRead.Load()) + maxIdle)
		if closesAt.IsZero() || idleAt.Before(closesAt) {
			closesAt = idleAt
			cause = ErrIdle
		}
	}
	return closesAt, cause
}

// onTimer closes the socket or the connection if it is time to. A read does not set the timer, which would cost
// each a lock: the timer finds out what was read meanwhile, and is set again.
func (s *Socket) onTimer() {
	s.mu.Lock()
	closesAt, cause := s.nextClose()
	if s.ended || closesAt.IsZero() {
		s.mu.Unlock()
		return
	}
	left := time.Until(closesAt)
	if left > 0 {
		s.setTimer(left)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	switch {
	case cause == nil:
		_ = s.end()
	case errors.Is(cause, ErrIdle):
		s.close(ErrIdle, frames.CodeGoingAway, "nothing was received for too long")
	default:
		s.close(ErrAged, frames.CodeGoingAway, "the socket is too old; connect again")
	}
}
