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

// maxDelay bounds how long a read waits for a limit.
const maxDelay = 10 * time.Second

// Inbound is a limit on what clients send. It is kept where the bytes arrive, for any
// library; control frames are exempt. Write it with the names of the fields.
//
// Over HTTP/2 nothing is limited, for the bytes are the handler's.
type Inbound struct {
	_ struct{}

	// Limiter decides. Required. It is asked once for what is read at once, a few
	// kilobytes, or more often if that is refused.
	Limiter *core.Limiter

	// Key says who is charged, by the request of the upgrade: the sockets of a user
	// share a budget. Nil gives each socket one of its own; the limiter's store is
	// best one of this process then. An upgrade for which it gives an error or an
	// empty key is refused.
	Key keyfuncs.Func

	// Unit is what is counted. The zero value is [Messages].
	Unit Unit

	// Over is what happens to a socket over the limit. The zero value is [Close].
	Over Over
}

// A Unit is what an Inbound counts.
type Unit uint8

const (
	// Messages, as they begin. A message may be of any size and in any number of
	// frames: have a limit of bytes too, or a library with a maximum.
	Messages Unit = iota
	// Frames of messages, as they begin.
	Frames
	// Bytes of the payload as they arrive, before they are inflated.
	Bytes
)

// Over is what to do with a socket over a limit of Inbound.
type Over uint8

const (
	// Close closes it with 1008, policy violation. What was within the limit is
	// read before; what follows is not. If the limiter gives an error, because the
	// store is away, the code is 1013, try again later.
	Close Over = iota
	// Delay has the handler's read wait until there is room, so that the client is
	// held back by TCP: up to 10 seconds, or half of the time to the handler's read
	// deadline if that is less, and then reads on, uncharged. What the limiter can
	// never grant closes the socket.
	Delay
	// Report tells Config.Notify and reads on.
	Report
)

// validate adds what is wrong.
func (in *Inbound) validate(f *faults, i int) {
	if in.Limiter == nil {
		f.add(errors.New("it is nil: make one with core.New"), "Inbound[%d].Limiter", i)
	}
	if in.Unit > Bytes {
		f.add(fmt.Errorf("%d is neither Messages nor Frames nor Bytes", in.Unit), "Inbound[%d].Unit", i)
	}
	if in.Over > Report {
		f.add(fmt.Errorf("%d is neither Close nor Delay nor Report", in.Over), "Inbound[%d].Over", i)
	}
}

// budgetKeys returns whom the limits of Inbound charge.
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
			return nil, fmt.Errorf("headgate: Inbound[%d] (limiter %q): %w", i, in.Limiter.Name(), err)
		}
		keys[i] = k
	}
	return keys, nil
}

// A gauge keeps the limits of Inbound on what is read from a connection.
type gauge struct {
	socket *Socket
	rules  []Inbound
	keys   []string
	frames walker
	most   int     // bytes to be read at once, so that a charge can be granted
	over   *excess // the socket is to be closed
	closed bool    // the peer's Close frame came with what was over
}

// An excess is why a socket is closed.
type excess struct {
	code int
	name string // of the limiter
}

func newGauge(s *Socket) *gauge {
	g := &gauge{socket: s, rules: s.guard.config.Inbound, keys: s.budgets, most: 1 << 30}
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

// admit charges what was read, and returns how much of it may be read on. If that is
// not all, the socket is over a limit. deadline is the handler's.
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

// walkUnits calls yield for the units that begin in p, and where they do.
func walkUnits(w *walker, p []byte, yield func(at int, u Unit, n int64) bool) {
	start := 0 // of the header, or of its part in p
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

// charge asks a limiter for n units, and for one after the other if that is refused.
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

// granted asks for units, and says whether to read on. What is not final is only a try.
// What is waited for them is taken from wait.
func (g *gauge) granted(i int, n int64, final bool, wait *time.Duration) bool {
	in := &g.rules[i]
	for told := false; ; {
		d, err := in.Limiter.AllowN(g.socket.Context(), g.keys[i], n)
		if err == nil && d.Allowed {
			return true
		}
		if !final {
			return false
		}
		if !told {
			told = true
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
				return true // closed: what is read on does not matter
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

// pause reports whether the socket is still open, and not to be closed, after d.
func (g *gauge) pause(d time.Duration) bool {
	s := g.socket
	s.lastRead.Store(int64(time.Since(s.opened) + d)) // who is held back is not idle
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.Done():
		return false
	case <-s.toClose:
		return false // the peer's answer is to be read
	}
}
