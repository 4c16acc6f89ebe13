// The Life: it owns when a socket opens, is silent, slow or old, is being closed, and ends, and the one
// timer. It may not read or write: the connection does, for which it has a weak pointer.

package conn

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const slowReason = "the client reads too slowly"

// The causes with which a socket and its reads end.
var (
	errEnded = fmt.Errorf("headgate: websocketmw: the socket is closed: %w", context.Canceled)

	// ErrOver is the error of reads from a socket that is over a limit.
	ErrOver = fmt.Errorf("headgate: websocketmw: the socket is over a limit: %w", net.ErrClosed)

	// ErrInvalid is the error of reads from a socket whose client has broken RFC 6455.
	ErrInvalid = fmt.Errorf("headgate: websocketmw: the client sent what RFC 6455 forbids: %w", net.ErrClosed)
)

// An Owner is told what happens to a socket. Its methods are called from many goroutines.
type Owner interface {
	// Happened is called last with Closed, after Ended, when all other calls have returned.
	Happened(Event)

	// Opened is called once: the 101 is written.
	Opened()

	// Ended is called once: the connection is closed.
	Ended()

	// Within returns a context in which the owner is found.
	Within(context.Context) context.Context
}

// A Life is how long a socket lives, and why it ends: from the admission of an upgrade until its
// connection is closed. It is safe for concurrent use after Begin.
type Life struct {
	rules   *Rules
	owner   Owner
	budgets []hidden.Text // the keys that the Bounds charge
	base    context.Context

	lastRead atomic.Int64              // nanoseconds since opened
	pings    atomic.Int64              // that were written and of which the reader does not know
	agreed   atomic.Uint32             // the extensions in the 101
	readBy   atomic.Pointer[time.Time] // the handler's read deadline, for Delay
	switched atomic.Bool               // the 101 was written
	spared   atomic.Bool               // in shadow mode, it would have been refused or closed
	deaf     atomic.Bool               // the handler gets nothing more of what the client sends, but a Close frame
	haste    uint16                    // by which part of a tenth of MaxAge it is closed early

	hijacked bool // mu guards this and what follows
	ended    bool
	telling  int // calls of the owner that have not returned
	mu       sync.Mutex
	opened   time.Time
	ends     weak.Pointer[ends]
	writes   *writes // nil: they may take any time
	closing  *closing
	toClose  chan struct{} // closed when there is a closing; nil until somebody waits for that
	timer    *time.Timer
	ctx      context.Context
	cancel   context.CancelCauseFunc
}

// An ends is how a Life ends its connection. It is part of that.
type ends struct {
	connection interface {
		sayClose()   // writes the Close frame
		shut() error // closes without one
	}
}

// A closing is how the guard closes a socket.
type closing struct {
	code   int
	reason string
	end    time.Time // when the guard closes the connection
}

// A writes has the time of the current write.
type writes struct {
	timeout time.Duration
	begun   atomic.Int64 // nanoseconds since Life.opened; 0: there is none
	timed   atomic.Bool  // the Life's timer is set for it
}

// Begin begins a Life, of which the rules and the owner stay. The context comes from the upgrade.
// The budgets are the keys of the rules' Bounds, in their order.
func (l *Life) Begin(ctx context.Context, rules *Rules, owner Owner, budgets []hidden.Text) {
	l.rules, l.owner, l.base, l.budgets = rules, owner, ctx, budgets
	l.haste = uint16(rand.Uint32())
}

// Since returns when the handler was called, or the zero time before that.
func (l *Life) Since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened
}

// Context returns a context that is canceled when the socket ends, with the values of the
// request's context.
func (l *Life) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		base := l.base
		if l.opened.IsZero() { // not yet served
			base = l.owner.Within(base)
		}
		l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(base))
		if l.ended {
			l.cancel(errEnded)
		}
	}
	return l.ctx
}

// Close begins to close the socket, and returns at once. From the next frame on, the handler reads
// nothing of the client's but its Close frame. A code that no Close frame may have becomes 1011.
func (l *Life) Close(code int, reason string) {
	l.deaf.Store(true)
	l.Leave(code, reason)
}

// Leave is Close for the server's own reasons: what the client has sent is read meanwhile.
func (l *Life) Leave(code int, reason string) {
	if !frames.Sendable(code) {
		code = frames.CodeInternal
	}
	if e := l.close(code, reason); e != nil {
		go e.connection.sayClose()
	}
}

// Closing returns how the guard closes the socket, if it does.
func (l *Life) Closing() (code int, reason string, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing == nil {
		return 0, "", false
	}
	return l.closing.code, l.closing.reason, true
}

// Cut closes the connection without a Close frame.
func (l *Life) Cut() {
	l.mu.Lock()
	if l.closing == nil {
		l.begin(closing{code: frames.CodeGoingAway})
	}
	l.closing.end = time.Now()
	e := l.ends.Value()
	l.mu.Unlock()
	if e != nil {
		go e.connection.shut() //nolint:errcheck // nothing to do about it; TLS may take seconds
	}
}

// End ends the Life, once. The connection is closed, or there is none.
func (l *Life) End() {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	l.telling++
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.cancel != nil {
		l.cancel(errEnded)
	}
	l.mu.Unlock()
	l.owner.Ended()
	l.told()
}

// Ended reports whether the Life has ended.
func (l *Life) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Spare reports whether the socket, which is over a limit, is spared: in shadow mode. It is not
// limited any more then.
func (l *Life) Spare() bool {
	if l.rules.ObserveOnly {
		l.spared.Store(true)
		return true
	}
	return false
}

// close returns what is to send the Close frame, or nil.
func (l *Life) close(code int, reason string) *ends {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.closing != nil {
		return nil
	}
	l.begin(closing{code: code, reason: reason, end: time.Now().Add(CloseTimeout)})
	e := l.ends.Value()
	if e != nil {
		l.wake(CloseTimeout)
	}
	return e
}

// begin begins a closing. l.mu is held.
func (l *Life) begin(c closing) {
	l.closing = &c
	if l.toClose != nil {
		close(l.toClose)
	}
}

// beginning returns a channel that is closed when the guard begins to close the socket.
func (l *Life) beginning() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.toClose == nil {
		l.toClose = make(chan struct{})
		if l.closing != nil {
			close(l.toClose)
		}
	}
	return l.toClose
}

func (l *Life) whyClosing() closing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.closing
}

// serves returns the context for the handler's request, which begins.
func (l *Life) serves(ctx context.Context) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base = l.owner.Within(ctx)
	l.opened = time.Now()
	return l.base
}

// agree records the extensions in the 101, before it is sent.
func (l *Life) agree(e frames.Extensions) { l.agreed.Store(uint32(e)) }

// extensions returns those in the 101.
func (l *Life) extensions() frames.Extensions { return frames.Extensions(l.agreed.Load()) }

// opens is called when the 101 is written.
func (l *Life) opens() {
	if !l.switched.Swap(true) {
		l.owner.Opened()
	}
}

// took records the connection that the handler has hijacked.
func (l *Life) took(e *ends, w *writes) {
	l.mu.Lock()
	l.hijacked, l.ends, l.writes = true, weak.Make(e), w
	closing := l.closing
	if closing != nil {
		l.wake(time.Until(closing.end))
	} else if at, _ := l.due(); !at.IsZero() {
		l.wake(time.Until(at))
	}
	l.mu.Unlock()
	if closing != nil {
		go e.connection.sayClose()
	}
}

// handled is called when the handler has returned or panicked. It ends the socket unless the
// handler upgraded.
func (l *Life) handled(panicked bool) {
	l.mu.Lock()
	hijacked, e := l.hijacked, l.ends.Value()
	l.mu.Unlock()
	switch {
	case !hijacked:
		l.End()
	case panicked || !l.switched.Load():
		if e != nil {
			_ = e.connection.shut()
		}
	}
}

// wake schedules tick after d. l.mu is held.
func (l *Life) wake(d time.Duration) {
	d = max(d, 0)
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.tick)
	} else {
		l.timer.Reset(d)
	}
}

// due returns when MaxAge, MaxIdle or Timeout closes the socket, or the zero time. l.mu is held.
func (l *Life) due() (at time.Time, why Kind) {
	if l.spared.Load() {
		return time.Time{}, 0
	}
	if d := l.rules.MaxAge; d > 0 {
		early := time.Duration(float64(d) / 10 * float64(l.haste) / math.MaxUint16)
		at, why = l.opened.Add(d-early), Aged
	}
	if d := l.rules.MaxIdle; d > 0 {
		if idle := l.opened.Add(time.Duration(l.lastRead.Load()) + d); at.IsZero() || idle.Before(at) {
			at, why = idle, Idle
		}
	}
	if w := l.writes; w != nil {
		if begun := w.begun.Load(); begun != 0 {
			if slow := l.opened.Add(time.Duration(begun) + w.timeout); at.IsZero() || slow.Before(at) {
				at, why = slow, Slow
			}
		}
	}
	return at, why
}

// tick closes the socket or the connection if it is time to.
func (l *Life) tick() {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	if l.writes != nil { // before due looks for a write
		l.writes.timed.Store(false)
	}
	at, why := l.due()
	closing := l.closing != nil
	if closing {
		at = l.closing.end
	} else if at.IsZero() { // spared meanwhile
		l.mu.Unlock()
		return
	}
	if left := time.Until(at); left > 0 {
		l.wake(left)
		l.mu.Unlock()
		return
	}
	e := l.ends.Value()
	l.mu.Unlock()
	switch {
	case closing:
		if e != nil {
			_ = e.connection.shut()
		}
	case why == Slow:
		l.endFor(why, frames.CodePolicy, slowReason)
	case why == Idle:
		l.endFor(why, frames.CodeGoingAway, "nothing was received for too long")
	default:
		l.endFor(why, frames.CodeGoingAway, "the socket is too old; connect again")
	}
}

// endFor tells why the guard closes the socket, and closes it unless it is spared.
func (l *Life) endFor(why Kind, code int, reason string) {
	l.tell(Event{Kind: why})
	if !l.Spare() {
		l.Leave(code, reason)
	}
}

// tell tells the owner, unless the socket has ended.
func (l *Life) tell(e Event) { l.Tell(func() { l.owner.Happened(e) }) }

// Tell calls f, which tells of the socket, unless that has ended. If it ends meanwhile, the owner is told
// so when f has returned.
func (l *Life) Tell(f func()) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.telling++
	l.mu.Unlock()
	defer l.told()
	f()
}

// told is called when a call of the owner has returned. The last one tells that the socket has ended.
func (l *Life) told() {
	l.mu.Lock()
	l.telling--
	last := l.ended && l.telling == 0
	l.mu.Unlock()
	if last {
		l.owner.Happened(Event{Kind: Closed})
	}
}

// writing notes that a write begins. The timer is set once in a timeout.
func (l *Life) writing(w *writes) {
	w.begun.Store(max(int64(time.Since(l.opened)), 1))
	if w.timed.Swap(true) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, _ := l.due(); !l.ended && l.closing == nil && !at.IsZero() {
		l.wake(time.Until(at))
	}
}

// noteDeadline records the handler's read deadline.
func (l *Life) noteDeadline(t time.Time) {
	if l.rules.delays {
		l.readBy.Store(&t)
	}
}

// deadline returns the handler's read deadline, or the zero time if there is none.
func (l *Life) deadline() time.Time {
	if t := l.readBy.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// pause waits for d, or until the socket ends or is being closed. It reports whether it waited for
// all of d.
func (l *Life) pause(d time.Duration) bool {
	l.lastRead.Store(int64(time.Since(l.opened) + d)) // a delay is not silence
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.Context().Done():
		return false
	case <-l.beginning():
		return false
	}
}
