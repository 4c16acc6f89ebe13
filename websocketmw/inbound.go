package websocketmw

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
)

const (
	maxDelay = 10 * time.Second // for which limits may delay a read
	maxRead  = 1 << 30          // bytes at once
)

// Inbound is a limit on what clients send. It applies to the bytes of the connection, so
// it works with any library. Control frames are exempt.
//
// Over HTTP/2 it has no effect, because the handler reads the request's body.
type Inbound struct {
	_ struct{} // composite literals must name the fields

	// Limiter decides. Required. It is called once for each read, of a few kilobytes
	// in most libraries, and, if it refuses several messages or frames, once for each.
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
	// of frames: also limit Bytes, or set the library's maximum message size.
	Messages Unit = iota
	// Frames of messages are counted when they begin.
	Frames
	// Bytes of payload are counted as they arrive, before decompression.
	Bytes
)

// Over is what happens to a socket over a limit of Inbound.
type Over uint8

const (
	// Close closes the socket with 1008 (policy violation). The handler reads what was
	// within the limit, and nothing after it. If the limiter returns an error, because
	// the store is unreachable, the code is 1013 (try again later).
	Close Over = iota
	// Delay blocks the handler's Read until the limiter admits the data, for at most 10
	// seconds or half the time left to the read deadline; after that it reads on
	// uncharged. TCP slows the client down meanwhile. If the limiter can never admit
	// the data, the socket is closed as by Close; if it returns an error, the data is
	// read at once.
	Delay
	// Report only calls Config.Notify.
	Report
)

// validate adds the faults of Inbound[i].
func (in *Inbound) validate(f *faults, i int) {
	if in.Limiter == nil {
		f.add(errors.New("it is nil: make one with core.New"), "Inbound[%d].Limiter", i)
	}
	if in.Unit > Bytes {
		f.add(fmt.Errorf("it is %d: use Messages, Frames or Bytes", in.Unit), "Inbound[%d].Unit", i)
	}
	if in.Over > Report {
		f.add(fmt.Errorf("it is %d: use Close, Delay or Report", in.Over), "Inbound[%d].Over", i)
	}
}

// budgetKeys returns the key for each limit of Inbound.
func (c *Config) budgetKeys(r *http.Request) ([]string, error) {
	if len(c.Inbound) == 0 {
		return nil, nil
	}
	keys := make([]string, len(c.Inbound))
	for i, in := range c.Inbound {
		if in.Key == nil {
			keys[i] = rand.Text()
			continue
		}
		k, err := in.Key(r)
		if err == nil && k == "" {
			err = errEmptyKey
		}
		if err != nil {
			return nil, fmt.Errorf("headgate: websocketmw: Inbound[%d] (limiter %q): %w", i, in.Limiter.Name(), err)
		}
		keys[i] = k
	}
	return keys, nil
}

// A gauge applies the limits of Inbound to what is read from a connection.
type gauge struct {
	socket *Socket
	rules  []Inbound
	keys   []string
	frames walker
	most   int     // bytes to read at once: not more than the limiter can ever admit
	over   *excess // set once the socket must be closed
	closed bool    // the peer's Close frame was in the data over the limit
}

// An excess is the limit because of which a socket is closed.
type excess struct {
	code int
	name string // of the limiter
}

// newGauge returns the gauge of a socket.
func newGauge(s *Socket) *gauge {
	g := &gauge{socket: s, rules: s.guard.config.Inbound, keys: s.budgets, most: maxRead}
	for _, in := range g.rules {
		if in.Unit != Bytes {
			continue
		}
		for _, p := range in.Limiter.Policies() {
			g.most = max(1, int(min(int64(g.most), p.Limit())))
		}
	}
	return g
}

// admit charges p, and returns how many bytes of it the handler may read. If that is not
// all, the socket is over a limit. deadline is the handler's read deadline.
func (g *gauge) admit(p []byte, deadline time.Time) int {
	begin := g.frames
	var sums [Bytes + 1]int64
	walkUnits(&g.frames, p, func(_ int, u Unit, n int64) bool {
		sums[u] += n
		return true
	})
	wait := maxDelay
	if !deadline.IsZero() {
		wait = min(wait, time.Until(deadline)/2)
	}
	ok := len(p)
	for i := range g.rules {
		if n := sums[g.rules[i].Unit]; n > 0 {
			ok = min(ok, g.charge(i, n, begin, p, &wait))
		}
	}
	if ok < len(p) {
		g.closed = begin.walk(p)
	}
	return ok
}

// walkUnits calls yield for each unit in p, with the offset of its first byte in p, until
// yield returns false.
func walkUnits(w *walker, p []byte, yield func(at int, u Unit, n int64) bool) {
	start := 0 // of the current header, or of its part in p
	for at := 0; at < len(p); {
		if w.between() {
			start = at
		}
		n, over := w.step(p[at:])
		data := w.opcode()&opControl == 0
		switch {
		case over == partBegin && data:
			if w.opcode() != opContinuation && !yield(start, Messages, 1) || !yield(start, Frames, 1) {
				return
			}
		case over == partPayload && data:
			if !yield(at, Bytes, int64(n)) {
				return
			}
		}
		at += n
	}
}

// charge charges Inbound[i] for n units of p, or, if that is refused, one unit at a time.
// It returns how many bytes of p are admitted. begin is the walker before p.
func (g *gauge) charge(i int, n int64, begin walker, p []byte, wait *time.Duration) int {
	in := &g.rules[i]
	if g.granted(i, n, n == 1 || in.Unit == Bytes, wait) {
		return len(p)
	}
	ok := 0
	if n > 1 && in.Unit != Bytes {
		ok = len(p)
		walkUnits(&begin, p, func(at int, u Unit, _ int64) bool {
			if u == in.Unit && !g.granted(i, 1, true, wait) {
				ok = at
				return false
			}
			return true
		})
	}
	return ok
}

// granted charges Inbound[i] for n units, and reports whether the handler may read them.
// If it is not final, a refusal has no consequences. Delays are subtracted from wait.
func (g *gauge) granted(i int, n int64, final bool, wait *time.Duration) bool {
	in := &g.rules[i]
	for notified := false; ; {
		d, err := in.Limiter.AllowN(g.socket.Context(), g.keys[i], n)
		if err == nil && d.Allowed {
			return true
		}
		if !final {
			return false
		}
		if !notified {
			notified = true
			g.socket.notify(Event{Kind: EventOver, Limit: in.Limiter.Name(), Err: err})
		}
		switch {
		case in.Over == Report || in.Over == Delay && err != nil:
			return true
		case in.Over == Delay && d.RetryAfter != core.Never:
			if *wait <= 0 {
				return true
			}
			pause := min(d.RetryAfter, *wait)
			*wait -= pause
			if !g.pause(pause) {
				return true // closed: the handler may read the rest
			}
		case g.over == nil:
			g.over = &excess{codePolicy, in.Limiter.Name()}
			if err != nil {
				g.over.code = codeTryAgain
			}
			return false
		default:
			return false
		}
	}
}

// pause waits for d, or until the socket ends or is being closed. It reports whether it
// waited for all of d.
func (g *gauge) pause(d time.Duration) bool {
	s := g.socket
	s.lastRead.Store(int64(time.Since(s.opened) + d)) // a delay is not silence
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.Done():
		return false
	case <-s.toClose:
		return false // so that the handler reads the peer's answer
	}
}
