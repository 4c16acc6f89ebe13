// The meter: it owns what the Bounds were charged for, and says how much may be read. It may not read,
// or wait.

package conn

import (
	"fmt"
	"time"

	"github.com/headgate/headgate/internal/ontrial"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const (
	maxDelay  = 10 * time.Second       // for which a limit may delay a unit
	delayStep = 100 * time.Millisecond // for which a unit may wait for those after it
)

// The limit on control frames without a Bound of that Unit.
const (
	controlRate  = 20 // a second
	controlBurst = 200
)

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

// A meter charges the Bounds for what is read. It belongs to the goroutine that reads.
type meter struct {
	paid     []int64 // units that each bound was charged for and the handler has not read
	controls bucket
	over     *excess // set once the socket must be closed
	told     bool    // of what is over a limit in this read
	answered bool    // the peer's Close frame was in what the handler does not read
}

// An excess is why a socket is closed.
type excess struct {
	code   int
	reason string
	err    error // of reads
}

// charge charges what was found, and returns how much of it there is room for. If that is nothing, it
// may be tried again after wait, or the socket must be closed.
func (m *meter) charge(l *Life, found *frames.Found) (span *frames.Span, wait time.Duration) {
	span = &found.Span
	room := frames.Unlimited()
	for i := range l.rules.bounds {
		b := &l.rules.bounds[i]
		need := span.Used[b.Unit] - m.paid[i]
		if need <= 0 {
			continue
		}
		r := m.ask(l, i, need)
		m.paid[i] += r.got
		if r.got == need {
			continue
		}
		m.tell(l, b, r.err)
		if b.Over == Report || b.Over == Delay && r.err != nil {
			m.paid[i] += need - r.got
			continue
		}
		if l.rules.ObserveOnly {
			if b.Over == Delay && r.delay(l.deadline()) > 0 { // it would have been delayed
				m.paid[i] += need - r.got
				continue
			}
			l.Spare()
			return span, 0
		}
		room[b.Unit] = m.paid[i]
		cut := found.Cut(room)
		span = &cut
		if b.Over == Delay {
			m.over = nil // the rest is for the next read
			if span.N > 0 {
				continue
			}
			if wait = r.delay(l.deadline()); wait > 0 {
				return span, wait
			}
		}
		m.over = b.excess(r.err)
		if span.N == 0 {
			return span, 0
		}
	}
	for i := range m.paid {
		m.paid[i] -= span.Used[l.rules.bounds[i].Unit]
	}
	return span, 0
}

// tell tells the owner once for each read.
func (m *meter) tell(l *Life, b *bound, err error) {
	if !m.told {
		m.told = true
		l.tell(Event{Kind: Exceeded, Name: b.name(), Err: err})
	}
}

// excess returns why a socket over the bound is closed. err is that of the limiter.
func (b *bound) excess(err error) *excess {
	if err != nil {
		return &excess{frames.CodeTryAgain, "try again later", ErrOver}
	}
	return &excess{frames.CodePolicy, fmt.Sprintf("over the limit %q", b.name()), ErrOver}
}

// A receipt says how many units were charged, and why not more.
type receipt struct {
	got   int64
	err   error
	one   time.Duration // until there is room for one more
	batch time.Duration // until there is room for a batch; at least one
}

// ask charges a bound for n units, or for as many as it has room for.
func (m *meter) ask(l *Life, i int, n int64) (r receipt) {
	b := &l.rules.bounds[i]
	if b.Limiter == nil {
		r.got = m.controls.take(time.Since(l.opened), n)
		return r
	}
	ctx := l.Context()
	if b.Over == Report || l.rules.ObserveOnly {
		ctx = ontrial.Mark(ctx)
	}
	ask, refused := min(n, b.batch), false
	for r.got < n {
		d, err := b.Limiter.AllowN(ctx, l.budgets[i].Reveal(), ask)
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
func (r *receipt) delay(deadline time.Time) time.Duration {
	most := maxDelay
	if !deadline.IsZero() {
		most = min(most, time.Until(deadline)/2)
	}
	if r.one > most {
		return 0
	}
	return min(most, max(r.one, min(r.batch, delayStep)))
}
