package websocketmw

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	maxDelay  = 10 * time.Second       // for which a limit may delay a unit
	delayStep = 100 * time.Millisecond // for which a unit may wait for those after it
	maxRead   = 64 << 10               // bytes at once, which bounds the memory for their frames
	maxCharge = 1 << 30                // units at once
)

// The limit on control frames without an Inbound of that Unit.
const (
	controlName  = "control-frames"
	controlRate  = 20 // a second
	controlBurst = 200
)

// Inbound is a limit on what clients send. It applies to the bytes of the connection, so
// it works with any library. What exceeds it never reaches the library, unless Over is
// [Report] or the limiter returns an error.
type Inbound struct {
	_ struct{} // composite literals must name the fields

	// Limiter decides. Required. It is called once for each read, of a few kilobytes
	// in most libraries, and more often if it refuses or if the read has more units
	// than it ever admits at once; so once for each unit with MinInterval. It is also
	// called for each message or frame if it has a policy with CountDenied.
	Limiter *core.Limiter

	// Key returns the key to charge, from the request of the upgrade, so that all
	// sockets of a user share a limit. Nil charges each socket separately; a store in
	// this process is enough then. If Key returns an error or an empty key, the upgrade
	// is refused.
	Key keyfuncs.Func

	// Unit is what is counted. The zero value is [Messages].
	Unit Unit

	// Over is what happens to a socket over the limit. The zero value is [Close].
	Over Over
}

// A Unit is what an Inbound counts.
type Unit uint8

const (
	// Messages are counted when they begin. A message may have any size and any number
	// of frames: also limit Bytes, or set the library's maximum message size. With
	// golang.org/x/net/websocket limit Frames instead: it hands each frame to the
	// handler as a message.
	Messages Unit = iota
	// Frames of messages are counted when they begin.
	Frames
	// Bytes of payload are counted as they arrive, before decompression. An empty
	// frame counts as one byte.
	Bytes
	// Controls are control frames. They are always limited: without an Inbound of this
	// unit, to 20 a second after a burst of 200, for each socket. The limiter of one that
	// has is [core.Unlimited] if there shall be no limit. Free are a Close frame, and a
	// pong for each ping that the server sent; with Config.NoCloseFrames, which hides
	// those pings from the guard, all pongs count.
	Controls
)

// Over is what happens to a socket over a limit of Inbound.
type Over uint8

const (
	// Close closes the socket with 1008 (policy violation). The handler reads what was
	// within the limit, to the byte, and nothing after it. If the limiter returns an error, because
	// the store is unreachable, the code is 1013 (try again later).
	Close Over = iota
	// Delay blocks the handler's Read until the limiter admits at least one unit. TCP
	// slows the client down meanwhile. If the limiter says that it will not within 10
	// seconds, or half the time left to the read deadline, the socket is closed as by
	// Close: a policy of less than 6 a minute delays nothing. If the limiter returns an
	// error, the data is read at once.
	Delay
	// Report only calls Config.Notify.
	Report
)

// validate adds the faults of Inbound[i].
func (in *Inbound) validate(f *faults, i int) {
	if in.Limiter == nil {
		f.add(errors.New("it is nil: make one with core.New"), "Inbound[%d].Limiter", i)
	}
	if in.Unit > Controls {
		f.add(fmt.Errorf("it is %d: use Messages, Frames, Bytes or Controls", in.Unit), "Inbound[%d].Unit", i)
	}
	if in.Over > Report {
		f.add(fmt.Errorf("it is %d: use Close, Delay or Report", in.Over), "Inbound[%d].Over", i)
	}
}

// budgetKeys returns the key for each limit of Inbound.
func (c *Config) budgetKeys(r *http.Request) ([]hidden.Text, error) {
	if len(c.Inbound) == 0 {
		return nil, nil
	}
	keys := make([]hidden.Text, len(c.Inbound))
	for i, in := range c.Inbound {
		if in.Key == nil {
			keys[i] = hidden.Of(rand.Text())
			continue
		}
		k, err := in.Key(r)
		if err == nil && k == "" {
			err = errEmptyKey
		}
		if err != nil {
			return nil, fmt.Errorf("headgate: websocketmw: Inbound[%d] (limiter %q): %w", i, in.Limiter.Name(), err)
		}
		keys[i] = hidden.Of(k)
	}
	return keys, nil
}

// The bounds of a guard are its limits on what clients send.
type bounds struct {
	all    []bound
	most   int  // bytes to read at once
	delays bool // one of them delays
}

// A bound is an Inbound, or the guard's own limit on control frames, which has no Limiter.
type bound struct {
	Inbound

	batch int64 // units to charge at once
}

// newBounds returns the bounds of a valid Config.
func newBounds(c *Config) bounds {
	all := bounds{most: maxRead}
	controls := false
	for _, in := range c.Inbound {
		b := bound{in, maxCharge}
		for _, p := range in.Limiter.Policies() {
			b.batch = max(1, min(b.batch, p.Limit()))
		}
		if in.Unit == Bytes {
			all.most = min(all.most, int(b.batch))
		} else if slices.ContainsFunc(in.Limiter.Policies(), core.Policy.CountsDenied) {
			b.batch = 1 // a batch that is refused would count as that many refusals
		}
		all.all = append(all.all, b)
		all.delays = all.delays || in.Over == Delay
		controls = controls || in.Unit == Controls
	}
	if !controls {
		all.all = append(all.all, bound{Inbound{Unit: Controls}, maxCharge})
	}
	return all
}

// name returns the name for events and Close frames.
func (b *bound) name() string {
	if b.Limiter == nil {
		return controlName
	}
	return b.Limiter.Name()
}

// A bucket is a token bucket for control frames (the generic cell rate algorithm). The zero
// bucket is full.
type bucket struct {
	full time.Duration // when it is full
}

// take takes up to n tokens, and returns how many.
func (b *bucket) take(now time.Duration, n int64) int64 {
	const gap = time.Second / controlRate
	b.full = max(b.full, now)
	n = min(n, int64((now+controlBurst*gap-b.full)/gap))
	b.full += time.Duration(n) * gap
	return n
}

// A gauge inspects and limits what is read from a connection. It belongs to the goroutine
// that reads.
type gauge struct {
	frames   frames.Inspector
	paid     []int64 // units that each bound was charged for and the handler has not read
	controls bucket
	told     bool    // of what is over a limit in this read
	over     *excess // set once the socket must be closed
	answered bool    // the peer's Close frame was in what the handler does not read
}

// An excess is why a socket is closed.
type excess struct {
	code   int
	reason string
	err    error // of reads
}

// manyFrames has room for all frames of a read.
var manyFrames = sync.Pool{New: func() any { return make([]frames.Frame, maxRead/2) }}

// admit charges p, which is not empty, and returns how many bytes of it the handler may read. It
// waits if a limit delays them. If it returns 0, the socket must be closed.
func (c *conn) admit(p []byte) (n int) {
	g, agreed := &c.in, frames.Extensions(c.socket.agreed.Load())
	if c.pings.Load() > 0 {
		g.frames.Pongs += c.pings.Swap(0)
	}
	g.told = false
	var found frames.Found
	if !found.Walk(&g.frames, p, agreed) {
		many := manyFrames.Get()
		defer manyFrames.Put(many)
		found.Go(p, agreed, many.([]frames.Frame))
	}
	span := found.Span
	for wait := c.limit(&found, &span); wait > 0; wait = c.limit(&found, &span) {
		if !c.pause(wait) {
			g.over = &excess{err: errOver} // the socket is being closed
			return 0
		}
		span = found.Span
	}
	g.frames = span.After
	if span.Fault != "" {
		c.refuse(span.Fault)
	}
	if c.socket.spared.Load() {
		return len(p)
	}
	return span.N
}

// limit charges a span of what was found, and cuts it where there is no room. If nothing is left, it
// may be tried again after wait, or the socket must be closed.
func (c *conn) limit(found *frames.Found, span *frames.Span) (wait time.Duration) {
	g, all, room := &c.in, c.socket.guard.bounds.all, frames.Unlimited()
	for i := range all {
		b := &all[i]
		need := span.Used[b.Unit] - g.paid[i]
		if need <= 0 {
			continue
		}
		r := c.charge(i, need)
		g.paid[i] += r.got
		if r.got == need {
			continue
		}
		c.tell(Event{Kind: EventOver, Limit: b.name(), Err: r.err})
		if b.Over == Report || b.Over == Delay && r.err != nil {
			g.paid[i] += need - r.got
			continue
		}
		if c.socket.guard.config.ObserveOnly {
			if b.Over == Delay && c.delay(r) > 0 { // it would have been delayed
				g.paid[i] += need - r.got
				continue
			}
			c.socket.spare()
			return 0
		}
		room[b.Unit] = g.paid[i]
		*span = found.Cut(room)
		if b.Over == Delay {
			g.over = nil // the rest is for the next read
			if span.N > 0 {
				continue
			}
			if wait = c.delay(r); wait > 0 {
				return wait
			}
		}
		g.over = b.excess(r.err)
		if span.N == 0 {
			return 0
		}
	}
	for i := range all {
		g.paid[i] -= span.Used[all[i].Unit]
	}
	return 0
}

// tell notifies once for each read.
func (c *conn) tell(e Event) {
	if !c.in.told {
		c.in.told = true
		c.socket.notify(e)
	}
}

// excess returns why a socket over the bound is closed. err is that of the limiter.
func (b *bound) excess(err error) *excess {
	if err != nil {
		return &excess{frames.CodeTryAgain, "try again later", errOver}
	}
	return &excess{frames.CodePolicy, fmt.Sprintf("over the limit %q", b.name()), errOver}
}

// A receipt says how many units were charged, and why not more.
type receipt struct {
	got   int64
	err   error
	one   time.Duration // until there is room for one more
	batch time.Duration // until there is room for a batch; at least one
}

// charge charges a bound for n units, or for as many as it has room for.
func (c *conn) charge(i int, n int64) (r receipt) {
	b := &c.socket.guard.bounds.all[i]
	if b.Limiter == nil {
		r.got = c.in.controls.take(time.Since(c.socket.opened), n)
		return r
	}
	ctx := c.socket.Context()
	if b.Over == Report || c.socket.guard.config.ObserveOnly {
		ctx = ontrial.Mark(ctx)
	}
	ask, refused := min(n, b.batch), false
	for r.got < n {
		d, err := b.Limiter.AllowN(ctx, c.socket.budgets[i].Reveal(), ask)
		switch {
		case err != nil:
			r.err = err
			return r
		case d.Allowed:
			r.got += ask
			ask = min(ask, n-r.got)
			if refused {
				return r
			}
		default:
			refused = true
			r.one, r.batch = d.RetryAfter, max(r.batch, d.RetryAfter)
			if ask == 1 {
				return r
			}
			ask = max(1, min(d.Remaining, ask-1))
		}
	}
	return r
}

// delay returns for how long to delay a read, or 0 if it would be too long.
func (c *conn) delay(r receipt) time.Duration {
	most := maxDelay
	if t := c.deadline(); !t.IsZero() {
		most = min(most, time.Until(t)/2)
	}
	if r.one > most {
		return 0
	}
	return min(most, max(r.one, min(r.batch, delayStep)))
}

// pause waits for d, or until the socket ends or is being closed. It reports whether it
// waited for all of d.
func (c *conn) pause(d time.Duration) bool {
	s := c.socket
	s.lastRead.Store(int64(time.Since(s.opened) + d)) // a delay is not silence
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.Done():
		return false
	case <-s.toClose:
		return false
	}
}
