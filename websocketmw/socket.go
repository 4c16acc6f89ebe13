package websocketmw

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/headgate/headgate/core"
)

// The codes with which the guard closes (RFC 6455, section 7.4, and its registry).
const (
	codeGoingAway = 1001
	codePolicy    = 1008
	codeRestart   = 1012
	codeTryAgain  = 1013
)

// closeTimeout bounds how long a socket that the guard closes may take to end.
const closeTimeout = 5 * time.Second

// A Socket is an upgrade that was admitted, from the taking of its slots to the
// closing of its connection. It is safe for concurrent use.
//
// The guard keeps no connection alive: a Socket has a weak pointer to it, so that one
// which the handler has lost is collected, and its slots with it.
type Socket struct {
	guard   *Guard
	slot    *core.Slot
	budgets []string        // whom Config.Inbound charges
	stream  bool            // over HTTP/2: the handler is the socket
	base    context.Context //nolint:containedctx // that of the handler's request, for Context

	toClose  chan struct{} // closed when the guard begins to close the socket
	switched atomic.Bool   // the response 101 is on its way
	lastRead atomic.Int64  // nanoseconds since opened

	mu       sync.Mutex
	opened   time.Time
	hijacked bool
	conn     weak.Pointer[conn]
	ended    bool
	closing  *closing
	timer    *time.Timer
	ctx      context.Context //nolint:containedctx // what Context returns; nil until somebody asks
	cancel   context.CancelCauseFunc
}

// A closing is why and until when the guard closes a socket.
type closing struct {
	code   int
	reason string
	end    time.Time // then the connection is cut
}

// errEnded is the cause of the end of [Socket.Context].
var errEnded = fmt.Errorf("headgate: the socket is closed: %w", context.Canceled)

type socketKey struct{}

// FromContext returns the socket of a handler's request, from its context or one made
// of it. It reports false if the request is no upgrade that a guard admitted.
func FromContext(ctx context.Context) (*Socket, bool) {
	s, ok := ctx.Value(socketKey{}).(*Socket)
	return s, ok
}

// Slot returns what the socket holds, to see how full the slots were, or whether it
// was lost. The guard releases it.
func (s *Socket) Slot() *core.Slot { return s.slot }

// Context returns a context that ends when the socket does, with the values of the
// handler's request. That request's own context ends with the handler, which may be
// earlier.
func (s *Socket) Context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		base := s.base
		if base.Value(socketKey{}) != s { // not yet served
			base = context.WithValue(base, socketKey{}, s)
		}
		if !s.stream {
			base = context.WithoutCancel(base)
		}
		s.ctx, s.cancel = context.WithCancelCause(base)
		if s.ended {
			s.cancel(errEnded)
		}
	}
	return s.ctx
}

// Done returns a channel that is closed when the socket ends: that of Context.
func (s *Socket) Done() <-chan struct{} { return s.Context().Done() }

// Close closes the socket from any goroutine, and does not wait for it: it sends a
// Close frame with the code, 1000 to 4999, and the reason, of which 123 bytes are sent,
// as soon as the handler is not in the middle of a frame. What the handler writes after
// that is dropped. The connection is closed when the handler does so, as it should
// when it reads the answer, or after 5 seconds. Only the first Close counts.
//
// Over HTTP/2 the context of the handler's request ends, which is all there is.
func (s *Socket) Close(code int, reason string) {
	if c := s.close(code, reason); c != nil {
		go c.sayClose()
	}
}

// close returns the connection on which the Close frame is to be sent, if any.
func (s *Socket) close(code int, reason string) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closing != nil {
		return nil
	}
	s.closing = &closing{code: code, reason: reason, end: time.Now().Add(closeTimeout)}
	close(s.toClose)
	if s.stream && s.cancel != nil {
		s.cancel(errEnded)
	}
	c := s.conn.Value()
	if c != nil {
		s.wake(closeTimeout)
	}
	return c
}

func (s *Socket) whyClosing() closing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.closing
}

// cut closes the connection without a word.
func (s *Socket) cut() {
	s.mu.Lock()
	if s.closing == nil {
		s.closing = &closing{code: codeGoingAway}
		close(s.toClose)
	}
	s.closing.end = time.Time{}
	c := s.conn.Value()
	s.mu.Unlock()
	if c != nil {
		go c.Close() //nolint:errcheck // nobody waits for it; TLS may take seconds
	}
}

// serve begins the handler's request.
func (s *Socket) serve(ctx context.Context) context.Context {
	s.mu.Lock()
	s.base = context.WithValue(ctx, socketKey{}, s)
	s.opened = time.Now()
	s.mu.Unlock()
	if !s.stream {
		return s.base
	}
	ctx = s.Context()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != nil {
		s.cancel(errEnded)
	} else if at, _ := s.due(); !at.IsZero() {
		s.wake(time.Until(at))
	}
	return ctx
}

// handled ends what the handler should have: it returned, or panicked.
func (s *Socket) handled(panicked bool) {
	s.mu.Lock()
	hijacked, c := s.hijacked, s.conn.Value()
	s.mu.Unlock()
	switch {
	case !hijacked:
		s.end()
	case panicked || !s.switched.Load():
		if c != nil {
			_ = c.Close()
		}
	}
}

// took notes the connection that the handler has taken over.
func (s *Socket) took(c *conn) {
	s.mu.Lock()
	s.hijacked, s.conn = true, weak.Make(c)
	closing := s.closing
	if closing != nil {
		s.wake(time.Until(closing.end))
	} else if at, _ := s.due(); !at.IsZero() {
		s.wake(time.Until(at))
	}
	s.mu.Unlock()
	if closing != nil {
		go c.sayClose()
	}
}

// end gives the slots back, once.
func (s *Socket) end() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.cancel != nil {
		s.cancel(errEnded)
	}
	s.mu.Unlock()
	s.slot.Release()
	s.guard.remove(s)
	s.notify(Event{Kind: EventClosed})
}

// forgotten ends a socket whose connection is garbage.
func (s *Socket) forgotten() {
	s.notify(Event{Kind: EventForgotten})
	s.end()
}

// wake has the timer look at the socket after d. The socket is locked.
func (s *Socket) wake(d time.Duration) {
	d = max(d, 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.tick)
	} else {
		s.timer.Reset(d)
	}
}

// due returns when the socket is to be closed for its age or for silence, if ever. The
// socket is locked.
func (s *Socket) due() (at time.Time, why EventKind) {
	if d := s.guard.config.MaxAge; d > 0 {
		at, why = s.opened.Add(d), EventAged
	}
	if d := s.guard.config.MaxIdle; d > 0 && !s.stream {
		if idle := s.opened.Add(time.Duration(s.lastRead.Load()) + d); at.IsZero() || idle.Before(at) {
			at, why = idle, EventIdle
		}
	}
	return at, why
}

// tick is what the timer does.
func (s *Socket) tick() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	at, why := s.due()
	if s.closing != nil {
		at, why = s.closing.end, EventClosed
	}
	if left := time.Until(at); left > 0 {
		s.wake(left)
		s.mu.Unlock()
		return
	}
	c := s.conn.Value()
	s.mu.Unlock()
	switch why {
	case EventClosed:
		if c != nil {
			_ = c.Close()
		}
	case EventIdle:
		s.notify(Event{Kind: why})
		s.Close(codeGoingAway, "nothing was heard for too long")
	default:
		s.notify(Event{Kind: why})
		s.Close(codeGoingAway, "the socket is too old; connect again")
	}
}

func (s *Socket) notify(e Event) {
	f := s.guard.config.Notify
	if f == nil || e.Kind != EventClosed && s.isEnded() { // that one is the last
		return
	}
	f(s, e)
}

func (s *Socket) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
