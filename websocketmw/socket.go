package websocketmw

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// closeTimeout is how long the handler has to close a socket that the guard closes.
const closeTimeout = 5 * time.Second

// A Socket is an admitted upgrade, from when its slots are taken until its connection is
// closed. It is safe for concurrent use.
//
// A Socket does not keep its connection reachable: if the handler drops the connection
// without closing it, garbage collection closes it and releases the slots.
type Socket struct {
	guard   *Guard
	slot    *core.Slot
	budgets []hidden.Text   // the keys that Config.Inbound charges
	place   *place          // for the guard's fleet; nil if there is none
	stream  bool            // over HTTP/2: the socket ends with the handler
	base    context.Context //nolint:containedctx // of the handler's request, for Context

	toClose  chan struct{} // closed when the guard begins to close the socket
	switched atomic.Bool   // the 101 was written
	spared   atomic.Bool   // in shadow mode, it would have been refused or closed
	deaf     atomic.Bool   // the handler gets nothing more of what the client sends, but a Close frame
	lastRead atomic.Int64  // nanoseconds since opened
	agreed   atomic.Uint32 // the extensions in the 101
	haste    uint16        // by which part of a tenth of MaxAge it is closed early
	suspect  bool          // in the guard's surplus; the guard's lock guards it

	mu       sync.Mutex
	opened   time.Time
	hijacked bool
	conn     weak.Pointer[conn]
	outbound *outbound // of the conn
	ended    bool
	closing  *closing
	timer    *time.Timer
	ctx      context.Context //nolint:containedctx // that Context returns; nil until the first call
	cancel   context.CancelCauseFunc
}

// A closing is how the guard closes a socket.
type closing struct {
	code   int
	reason string
	end    time.Time // when the guard closes the connection
}

// errEnded is the cause with which [Socket.Context] ends.
var errEnded = fmt.Errorf("headgate: websocketmw: the socket is closed: %w", context.Canceled)

// Format implements [fmt.Formatter]: it prints which slots the socket holds, not of whom.
func (s *Socket) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, "socket that holds %v", s.slot)
}

type socketKey struct{}

// FromContext returns the socket of a handler's request, from the request's context or
// one derived from it. It returns false if the request is not an upgrade that a guard
// admitted.
func FromContext(ctx context.Context) (*Socket, bool) {
	s, ok := ctx.Value(socketKey{}).(*Socket)
	return s, ok
}

// Slot returns the slot that the socket holds, which reports the occupancy when it was
// acquired, and whether it was lost. Do not release it: the guard does.
func (s *Socket) Slot() *core.Slot { return s.slot }

// Since returns when the handler of the upgrade was called, or the zero time before that.
func (s *Socket) Since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// Context returns a context that is canceled when the socket ends, with the values of the
// request's context. The request's own context is canceled when the handler returns,
// which may be earlier.
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

// Done returns a channel that is closed when the socket ends. It is that of
// [Socket.Context].
func (s *Socket) Done() <-chan struct{} { return s.Context().Done() }

// Close begins to close the socket, and returns at once. It sends a Close frame with the
// code and at most 123 bytes of the reason, as soon as no frame of the handler is
// incomplete. What the handler writes after that is dropped. From the next frame on, the handler
// reads nothing of the client's but its Close frame. It should close the connection
// when it reads that. If it has not done so after 5 seconds, the guard does. Only the first
// call has an effect.
//
// The code is 1000 to 1003, 1007 to 1014 or 3000 to 4999. Clients reject all others (RFC
// 6455, section 7.4), so instead of them Close sends 1011 (internal error).
//
// Over HTTP/2 the socket ends when the handler returns. After 5 seconds, Close ends the
// context of its request and the reads of its body.
func (s *Socket) Close(code int, reason string) {
	s.deaf.Store(true)
	s.leave(code, reason)
}

// leave is Close for the server's own reasons: what the client has sent is read meanwhile.
func (s *Socket) leave(code int, reason string) {
	if !frames.Sendable(code) {
		code = frames.CodeInternal
	}
	if c := s.close(code, reason); c != nil {
		go c.sayClose()
	}
}

// close returns the connection on which to send the Close frame, or nil.
func (s *Socket) close(code int, reason string) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closing != nil {
		return nil
	}
	s.closing = &closing{code: code, reason: reason, end: time.Now().Add(closeTimeout)}
	close(s.toClose)
	c := s.conn.Value()
	if c != nil {
		s.wake(closeTimeout)
	}
	return c
}

// spare reports whether the socket, which is over a limit, is spared: in shadow mode.
func (s *Socket) spare() bool {
	if s.guard.config.ObserveOnly {
		s.spared.Store(true)
		return true
	}
	return false
}

func (s *Socket) whyClosing() closing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.closing
}

// cut closes the connection without a Close frame.
func (s *Socket) cut() {
	s.mu.Lock()
	if s.closing == nil {
		s.closing = &closing{code: frames.CodeGoingAway}
		close(s.toClose)
	}
	s.closing.end = time.Time{}
	c := s.conn.Value()
	s.mu.Unlock()
	if c != nil {
		go c.shut() //nolint:errcheck // nothing to do about it; TLS may take seconds
	}
}

// opens is called when the 101 is written.
func (s *Socket) opens() {
	if !s.switched.Swap(true) && s.place != nil && s.place.evicts != nil {
		go s.takePlace()
	}
}

// agree records the extensions in the 101, before it is sent.
func (s *Socket) agree(e frames.Extensions) { s.agreed.Store(uint32(e)) }

// serve returns the context for the handler's request.
func (s *Socket) serve(ctx context.Context) context.Context {
	s.mu.Lock()
	s.base = context.WithValue(ctx, socketKey{}, s)
	s.opened = time.Now()
	s.mu.Unlock()
	if s.stream {
		return s.Context()
	}
	return s.base
}

// handled is called when the handler has returned or panicked. It ends the socket unless
// the handler upgraded.
func (s *Socket) handled(panicked bool) {
	s.mu.Lock()
	hijacked, c := s.hijacked, s.conn.Value()
	s.mu.Unlock()
	switch {
	case s.stream, !hijacked:
		s.end()
	case panicked || !s.switched.Load():
		if c != nil {
			_ = c.shut()
		}
	}
}

// took records the connection that the handler has hijacked, or the stream.
func (s *Socket) took(c *conn) {
	s.mu.Lock()
	s.hijacked, s.conn, s.outbound = true, weak.Make(c), c.slow
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

// end releases the slots, once.
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

// forgotten ends a socket whose connection was garbage collected.
func (s *Socket) forgotten() {
	s.notify(Event{Kind: EventForgotten})
	s.mu.Lock()
	o := s.outbound
	s.mu.Unlock()
	if o != nil { // which may still send
		o.fail()
		_ = o.inner.Close()
	}
	s.end()
}

// wake schedules tick after d. s.mu is held.
func (s *Socket) wake(d time.Duration) {
	d = max(d, 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.tick)
	} else {
		s.timer.Reset(d)
	}
}

// due returns when MaxAge, MaxIdle or Outbound.Timeout closes the socket, or the zero time. s.mu is held.
func (s *Socket) due() (at time.Time, why EventKind) {
	if s.spared.Load() {
		return time.Time{}, EventClosed
	}
	if d := s.guard.config.MaxAge; d > 0 {
		early := time.Duration(float64(d) / 10 * float64(s.haste) / math.MaxUint16)
		at, why = s.opened.Add(d-early), EventAged
	}
	if d := s.guard.config.MaxIdle; d > 0 {
		if idle := s.opened.Add(time.Duration(s.lastRead.Load()) + d); at.IsZero() || idle.Before(at) {
			at, why = idle, EventIdle
		}
	}
	if o := s.outbound; o != nil {
		if begun := o.begun.Load(); begun != 0 {
			if slow := s.opened.Add(time.Duration(begun) + o.timeout); at.IsZero() || slow.Before(at) {
				at, why = slow, EventSlow
			}
		}
	}
	return at, why
}

// tick closes the socket or the connection if it is time to.
func (s *Socket) tick() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	if s.outbound != nil { // before due looks for a write
		s.outbound.timed.Store(false)
	}
	at, why := s.due()
	if s.closing != nil {
		at, why = s.closing.end, EventClosed
	} else if at.IsZero() { // spared meanwhile
		s.mu.Unlock()
		return
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
			_ = c.shut()
		}
	case EventSlow:
		s.endFor(why, frames.CodePolicy, slowReason)
	case EventIdle:
		s.endFor(why, frames.CodeGoingAway, "nothing was received for too long")
	default:
		s.endFor(why, frames.CodeGoingAway, "the socket is too old; connect again")
	}
}

// endFor notifies of why the guard closes the socket, and closes it unless it is spared.
func (s *Socket) endFor(why EventKind, code int, reason string) {
	s.notify(Event{Kind: why})
	switch {
	case s.spare():
	case why == EventEvicted: // another has the slot
		s.Close(code, reason)
	default:
		s.leave(code, reason)
	}
}

func (s *Socket) notify(e Event) {
	f := s.guard.config.Notify
	if f == nil || e.Kind != EventClosed && s.isEnded() { // EventClosed is the last
		return
	}
	f(s, e)
}

func (s *Socket) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
