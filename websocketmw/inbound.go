package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	maxRead   = 64 << 10 // bytes at once, which bounds the memory for their frames
	drainSize = 4 << 10  // bytes read at once from a socket over a limit

	maxDelay = 10 * time.Second      // for which a limit may delay what is read
	minDelay = 10 * time.Millisecond // so that what is read is more than a few bytes
)

// Control frames have a limit of their own.
const (
	controlGap   = time.Second / 20
	controlBurst = 200
)

// The errors of reads from a socket that is over a limit, and whose client has broken RFC 6455.
var (
	errReadFlood   = errors.Join(ErrFlood, net.ErrClosed)
	errReadInvalid = errors.Join(ErrProtocol, net.ErrClosed)
)

// An inboundLimit is an Inbound and its unit.
type inboundLimit struct {
	Inbound

	unit frames.Unit
}

// An inboundCount is whom a limit counts for a socket.
type inboundCount struct {
	limiter *core.Limiter
	key     string
	charged int64 // units that the handler has not read yet
}

// An input is what a socket knows of the bytes that the client sends. It belongs to the goroutine that reads.
type input struct {
	pending    []byte // to be read first: what the server had already read, or what was held back
	inspector  frames.Inspector
	counts     []inboundCount // one for each limit
	controls   time.Duration  // since the socket opened, when the bucket of control frames is full
	violation  *violation     // why the socket is to be closed; nil: it is not
	answered   bool           // the client's Close frame was in what the handler does not read
	discarding bool           // from here on, all but the client's Close frame
}

// A violation is why a socket is closed, and the error of reads from then on.
type violation struct {
	cause  error
	code   int
	reason string
	err    error
}

// delays reports whether what clients send may be delayed.
func (g *Guard) delays() bool {
	return slices.ContainsFunc(g.inbound, func(l inboundLimit) bool { return l.Delay })
}

// countInbound finds out whom the limits count, or refuses the upgrade.
func (s *Socket) countInbound(admission *engine.Admission, r *http.Request) bool {
	for i := range s.guard.inbound {
		limit := &s.guard.inbound[i]
		rule := &engine.Rule{Key: limit.Key, Plan: limit.Plan}
		key, plan, ok := s.guard.rules.Whom(admission, r, rule, limit.Limiter.Name())
		if !ok {
			return false
		}
		s.in.counts = append(s.in.counts, inboundCount{limiter: limit.Limiter.Plan(plan), key: key})
	}
	return true
}

// read reads what the limits admit.
func (s *Socket) read(data []byte) (int, error) {
	in := &s.in
	if in.violation != nil {
		return 0, s.readRest()
	}
	n, err := s.receive(data[:min(len(data), maxRead)])
	if n > 0 && s.discards.Load() {
		in.discarding = in.discarding || in.inspector.Between()
		if in.discarding {
			return s.readClose(data, n, err)
		}
		// A library that waits for the rest of a frame would not get to the Close frame after it.
		rest := min(n, in.inspector.Rest()) // of a frame that the library has begun to read
		s.holdBack(data[rest:n])
		n = rest
	}
	if n == 0 {
		return 0, err
	}
	admitted := s.admitBytes(data[:n])
	if admitted == n {
		return n, err
	}
	s.holdBack(data[admitted:n])
	if admitted == 0 {
		return 0, s.readRest()
	}
	return admitted, nil // err occurs again
}

// receive reads pending bytes first.
func (s *Socket) receive(data []byte) (n int, err error) {
	if len(s.in.pending) > 0 {
		n = copy(data, s.in.pending)
		s.in.pending = s.in.pending[n:]
	} else {
		n, err = s.conn.Read(data)
	}
	if n > 0 && s.guard.config.MaxIdle > 0 {
		s.lastRead.Store(int64(time.Since(s.openedAt)))
	}
	return n, err
}

// holdBack keeps bytes for the next read.
func (s *Socket) holdBack(data []byte) { s.in.pending = slices.Concat(data, s.in.pending) }

// manyFrames has room for the frames of a read.
var manyFrames = sync.Pool{New: func() any { return new([]frames.Frame) }}

// admitBytes charges data, which is not empty, and returns how many bytes of it the handler may read. If that is 0, the
// socket must be closed.
func (s *Socket) admitBytes(data []byte) int {
	in := &s.in
	if s.out.pings.Load() > 0 {
		in.inspector.Pongs += s.out.pings.Swap(0)
	}
	var found frames.List
	extensions := frames.Extensions(s.extensions.Load())
	if !found.Walk(&in.inspector, data, extensions) {
		many := manyFrames.Get().(*[]frames.Frame)
		defer manyFrames.Put(many)
		room := frames.MostIn(len(data))
		if len(*many) < room {
			*many = make([]frames.Frame, room)
		}
		found.Continue(data, extensions, *many)
	}
	// Each try charges only what no try before has: counts say what was charged.
	span, wait := s.charge(&found)
	for wait > 0 {
		if !s.pause(wait) {
			in.violation = &violation{err: errReadFlood} // the socket is being closed
			return 0
		}
		span, wait = s.charge(&found)
	}
	in.inspector = span.After
	if span.Fault != "" {
		s.refuse(span.Fault)
	}
	return span.N
}

// refuse makes reads close the socket, because the client sent what RFC 6455 forbids.
func (s *Socket) refuse(fault string) {
	s.in.violation = &violation{fmt.Errorf("%w: %s", ErrProtocol, fault), frames.CodeProtocol, fault, errReadInvalid}
}

// charge charges what was found, and returns how much of it there is room for. If that is nothing, it may be tried
// again after wait, or the socket must be closed.
//
// Each limit is charged for what the limits before it have left of the bytes. What one was charged for, and a later one
// holds back, stays in its count, and is not charged again when it is read.
func (s *Socket) charge(found *frames.List) (span *frames.Span, wait time.Duration) {
	in := &s.in
	span = &found.Span
	room := frames.Unlimited()
	for i := range in.counts {
		count := &in.counts[i]
		limit := &s.guard.inbound[i]
		need := span.Used[limit.unit] - count.charged
		if need <= 0 {
			continue
		}
		decision, charged, err := count.limiter.AllowAtMost(s.Context(), count.key, need)
		if err != nil && limit.Delay {
			charged = need // it is read at once
		}
		count.charged += charged
		if charged == need {
			continue
		}
		room[limit.unit] = count.charged
		cut := found.Cut(room)
		span = &cut
		if limit.Delay {
			if span.N > 0 { // the rest is for the next read
				continue
			}
			wait = s.delay(decision.RetryAfter)
			if wait > 0 {
				return span, wait
			}
		}
		in.violation = s.overLimit(count.limiter, err)
		if span.N == 0 {
			return span, 0
		}
	}
	// Control frames last, and only those in what is left: they need no store, and cannot be given back.
	need := span.Used[frames.Controls]
	if need > 0 {
		taken := in.takeControls(time.Since(s.openedAt), need)
		if taken < need {
			room[frames.Controls] = taken
			cut := found.Cut(room)
			span = &cut
			in.violation = &violation{ErrFlood, frames.CodePolicy, "too many control frames", errReadFlood}
		}
	}
	for i := range in.counts {
		in.counts[i].charged -= span.Used[s.guard.inbound[i].unit]
	}
	return span, 0
}

// takeControls returns how many of n control frames there is room for.
func (in *input) takeControls(now time.Duration, n int64) int64 {
	in.controls = max(in.controls, now)
	n = min(n, int64((now+controlBurst*controlGap-in.controls)/controlGap))
	in.controls += time.Duration(n) * controlGap
	return n
}

// overLimit is why a socket over a limit is closed. The error is that of the limiter.
func (s *Socket) overLimit(limiter *core.Limiter, err error) *violation {
	if err != nil {
		return &violation{fmt.Errorf("%w: %w", ErrFlood, err), frames.CodeTryAgain, "try again later", errReadFlood}
	}
	return &violation{ErrFlood, frames.CodePolicy, fmt.Sprintf("over the limit %q", limiter.Name()), errReadFlood}
}

// delay returns for how long to delay a read, or 0 if it would be too long.
func (s *Socket) delay(wait time.Duration) time.Duration {
	longest := maxDelay
	deadline := s.readDeadline.Load()
	if deadline != nil && !deadline.IsZero() {
		longest = min(longest, time.Until(*deadline)/2)
	}
	if wait > longest {
		return 0
	}
	return min(longest, max(wait, minDelay))
}

// pause waits for a time, and reports whether it did: not if the socket ends or is being closed.
func (s *Socket) pause(wait time.Duration) bool {
	s.lastRead.Store(int64(time.Since(s.openedAt) + wait)) // a delay is not silence
	s.mu.Lock()
	if s.stop == nil {
		s.stop = make(chan struct{})
		if s.closing != nil {
			close(s.stop)
		}
	}
	stop := s.stop
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.Context(), wait)
	defer cancel()
	select {
	case <-stop:
		return false
	case <-ctx.Done():
		return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
	}
}

// readClose is read once what the client sends is not wanted any more: it reads nothing but the client's Close frame.
// The first n bytes of data were read already, with the error. The first call is at a frame's beginning.
func (s *Socket) readClose(data []byte, n int, err error) (int, error) {
	for {
		var fault string
		n, fault = s.in.inspector.OnlyClose(data[:n], frames.Extensions(s.extensions.Load()))
		switch {
		case fault != "":
			s.refuse(fault)
			return 0, s.readRest()
		case n > 0 || err != nil:
			return n, err
		}
		n, err = s.receive(data)
	}
}

// readRest closes a socket that is over a limit, and reads until the client answers: closing a TCP connection with
// unread data resets it, and the client may lose the Close frame.
func (s *Socket) readRest() error {
	in := &s.in
	if !s.upgraded.Load() { // too early for a Close frame: the next read sends it
		return in.violation.err
	}
	if in.violation.cause != nil {
		s.close(in.violation.cause, in.violation.code, in.violation.reason)
		s.requestClose() // now: the client's own Close frame may be there already, and the handler close
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(closeTimeout))
	rest := make([]byte, drainSize)
	for !in.answered && !in.inspector.Closed {
		n, err := s.receive(rest)
		closes, _ := in.inspector.Walker.Walk(rest[:n])
		in.answered = closes || err != nil
	}
	return in.violation.err
}
