// The reader: it owns what the client sends, up to what the handler reads of it. It may not write: the
// Life has the Close frame written.

package conn

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const drainSize = 4 << 10 // bytes read at once from a socket over a limit

// A reader passes on what the client sends, as far as the Bounds admit it and RFC 6455 allows it.
// It belongs to the goroutine that reads.
type reader struct {
	inner net.Conn
	life  *Life
	early []byte // to be read first: what the server had already read, or what was held back
	place frames.Inspector
	meter meter
	drops bool // from here on, all but the client's Close frame
	lost  bool // a frame was invalid, so nobody knows where the next begins
}

// Read reads what the Bounds admit.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return r.read(p)
	}
	if r.meter.over != nil {
		return 0, r.drain()
	}
	n, err := r.read(p[:min(len(p), r.life.rules.most)])
	if n > 0 && r.life.deaf.Load() {
		if r.drops = r.drops || r.lost || r.place.Between(); r.drops {
			return r.readClose(p, n, err)
		}
		rest := min(n, r.place.Rest()) // of a frame that the library has begun to read
		r.holdBack(p[rest:n])
		n = rest
	}
	if n == 0 {
		return 0, err
	}
	admitted := r.admit(p[:n])
	if admitted == n {
		return n, err
	}
	r.holdBack(p[admitted:n])
	if admitted == 0 {
		return 0, r.drain()
	}
	return admitted, nil // err occurs again
}

// holdBack keeps bytes for the next read.
func (r *reader) holdBack(p []byte) { r.early = slices.Concat(p, r.early) }

// manyFrames has room for the frames of a read.
var manyFrames = sync.Pool{New: func() any { return new([]frames.Frame) }}

// admit charges p, which is not empty, and returns how many bytes of it the handler may read. It
// waits if a Bound delays them. If it returns 0, the socket must be closed. It follows the frames of a
// socket that is spared too: later it may have to read nothing but the Close frame.
func (r *reader) admit(p []byte) (n int) {
	if r.life.pings.Load() > 0 {
		r.place.Pongs += r.life.pings.Swap(0)
	}
	var found frames.Found
	if agreed := r.life.extensions(); !found.Walk(&r.place, p, agreed) {
		many := manyFrames.Get().(*[]frames.Frame)
		defer manyFrames.Put(many)
		if most := frames.MostIn(len(p)); len(*many) < most {
			*many = make([]frames.Frame, most)
		}
		found.Go(p, agreed, *many)
	}
	r.meter.told = false
	span, wait := &found.Span, time.Duration(0)
	if !r.life.spared.Load() {
		span, wait = r.meter.charge(r.life, &found)
	}
	for wait > 0 {
		if !r.life.pause(wait) {
			r.meter.over = &excess{err: ErrOver} // the socket is being closed
			return 0
		}
		span, wait = r.meter.charge(r.life, &found)
	}
	r.place = span.After
	if span.Fault != "" {
		r.lost = true
		r.refuse(span.Fault)
	}
	if r.life.spared.Load() {
		return len(p)
	}
	return span.N
}

// refuse makes the reader close the socket, unless it is spared, because the client sent what
// RFC 6455 forbids.
func (r *reader) refuse(fault string) {
	if r.life.spared.Load() {
		return
	}
	r.life.tell(Event{Kind: Invalid, Err: errors.New("headgate: websocketmw: the client sent " + fault)})
	if !r.life.Spare() {
		r.meter.over = &excess{frames.CodeProtocol, fault, ErrInvalid}
	}
}

// readClose is Read once what the client sends is not wanted any more: it reads nothing but the
// client's Close frame. The first n bytes of p were read already, with the error. The first call is at
// a frame's beginning.
func (r *reader) readClose(p []byte, n int, err error) (int, error) {
	for {
		var fault string
		n, fault = r.place.OnlyClose(p[:n], r.life.extensions())
		switch {
		case fault != "":
			r.meter.over = &excess{frames.CodeProtocol, fault, ErrInvalid}
			return 0, r.drain()
		case n > 0 || err != nil:
			return n, err
		}
		n, err = r.read(p)
	}
}

// drain closes a socket that is over a limit, and reads until the peer answers: closing a
// TCP connection with unread data resets it, and the peer may lose the Close frame.
func (r *reader) drain() error {
	over := r.meter.over
	if !r.life.switched.Load() { // too early for a Close frame: the next read sends it
		return over.err
	}
	if e := r.life.close(over.code, over.reason); e != nil {
		e.connection.sayClose()
	}
	_ = r.inner.SetReadDeadline(time.Now().Add(CloseTimeout))
	b := make([]byte, drainSize)
	for !r.meter.answered && !r.place.Closed {
		n, err := r.read(b)
		closes, _ := r.place.Walker.Walk(b[:n])
		r.meter.answered = closes || err != nil
	}
	return over.err
}

// read reads early bytes first.
func (r *reader) read(p []byte) (n int, err error) {
	if len(r.early) > 0 {
		n = copy(p, r.early)
		r.early = r.early[n:]
	} else {
		n, err = r.inner.Read(p)
	}
	if n > 0 && r.life.rules.MaxIdle > 0 {
		r.life.lastRead.Store(int64(time.Since(r.life.opened)))
	}
	return n, err
}

// SetReadDeadline also records the deadline, for [Delay].
func (r *reader) SetReadDeadline(t time.Time) error {
	r.life.noteDeadline(t)
	return r.inner.SetReadDeadline(t)
}
