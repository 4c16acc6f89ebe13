package step

import "math/bits"

// A window estimates a rolling period from the counts of k+1 sub-windows. The newest k lie inside it, and
// count in full. The oldest is partly outside: it is weighted by the part that is inside, as if its events
// were spread evenly, or counts in full with over. With k = 0 there is one window after the other.
//
// The state is [end, total, c0 ... ck]: the end of the time for which the newest sub-window counts, all
// units, and the counts, the newest first. With k = 0, c0 is the total itself: the state is [end, total].
type window struct {
	k      int64
	sub    int64 // length of a sub-window, rounded up so that they cover the period
	inside int64 // of k sub-windows
	span   int64 // of all
	over   bool
	first  bool  // with k = 0: a window begins with its first unit
	denied int64 // up to which refused attempts are counted
}

func newWindow(m Numbers) window {
	w := window{sub: m.Period, over: true, first: m.FromFirst, denied: m.Limit}
	if m.Kind == SlidingWindow {
		w.k, w.over = m.Resolution, m.NeverOver
		w.sub = (m.Period + w.k - 1) / w.k
		// It is far above what could matter, and low enough that the sum of all counts is at most MaxInt.
		w.denied = max(m.Limit, MaxInt/(MaxResolution+2))
	}
	w.inside, w.span = w.k*w.sub, (w.k+1)*w.sub
	return w
}

// counts returns c0 to ck.
func (w *window) counts(s []int64) []int64 { return s[int64(len(s))-1-w.k:] }

// start returns the start of the newest sub-window.
func (w *window) start(s []int64) int64 { return s[0] - w.span }

// roll moves the counts so that c0 is that of now.
func (p *Policy) roll(s []int64, now int64) {
	start := p.start(s)
	if now < start+p.sub && (!p.first || s[1] > 0 || now < start) {
		if now < start-p.span {
			p.fill(s, now)
		}
		return
	}
	passed := (now - start) / p.sub
	if c := p.counts(s); passed > p.k {
		clear(s[1:])
	} else {
		for _, n := range c[p.k+1-passed:] {
			s[1] -= n
		}
		copy(c[passed:], c)
		clear(c[:passed])
	}
	if s[0] += passed * p.sub; p.first {
		s[0] = now + p.span
	}
}

// fill brings a window back that is of a later time than can be, as the clock has gone back: nothing is left as of now.
func (p *Policy) fill(s []int64, now int64) {
	full := min(max(s[1], p.limit), MaxInt)
	clear(s)
	if s[0] = now + p.span; !p.first {
		s[0] -= now % p.sub
	}
	s[1], p.counts(s)[0] = full, full
}

// left returns how many units fit at now:
//
//	limit - others - oldest * part/sub
//
// where part is how much of the oldest sub-window is inside. The product is rounded up, which is exact for
// whole units. It is below 0 if more are used than may be.
func (p *Policy) left(s []int64, now int64) int64 {
	p.roll(s, now)
	oldest := s[len(s)-1]
	left := p.limit - s[1]
	if oldest > 0 && !p.over {
		part := min(s[0]-p.inside-now, p.sub)
		left += oldest - muldivUp(oldest, part, p.sub)
	}
	return left
}

// addWindow adds n units, but not beyond most, and not beyond MaxInt for all inside.
func (w *window) addWindow(s []int64, n, most int64) {
	c := w.counts(s)
	others := int64(0)
	if w.k > 0 {
		others = s[1] - c[0] - c[w.k]
	}
	n = saturate(c[0], n, min(most, MaxInt-others)) - c[0]
	if s[1] += n; w.k > 0 {
		c[0] += n
	}
}

// settleWindow counts n more units than were charged at an instant, or gives back -n of them.
func (w *window) settleWindow(s []int64, at, n int64) {
	if n > 0 {
		w.addWindow(s, n, MaxInt)
	} else {
		w.unwindow(s, at, -n)
	}
}

func (w *window) unwindow(s []int64, at, n int64) {
	start := w.start(s)
	back := max(start-at+w.sub-1, 0) / w.sub
	if at >= start+w.sub || back > w.k {
		return
	}
	c := &w.counts(s)[back]
	n = min(n, *c)
	if s[1] -= n; w.k > 0 {
		*c -= n
	}
}

func (p *Policy) takeWindow(s []int64, now, n int64, charge bool, c *Cell) bool {
	left := p.left(s, now)
	fits := n <= left
	if fits && charge {
		left -= n
		if s[1] += n; p.k > 0 {
			s[2] += n
		}
	}
	r := &c.Reading
	c.Shortfall, r.Remaining, r.NextAfter, r.ResetAfter, r.RetryAfter = 0, max(left, 0), 0, 0, 0
	if left < p.limit {
		r.NextAfter = p.earliest(s, now, r.Remaining+1)
		r.ResetAfter = p.reset(s, now)
	}
	if !fits {
		if c.Shortfall, r.RetryAfter = 1, r.NextAfter; n != r.Remaining+1 {
			r.RetryAfter = p.earliest(s, now, n)
		}
	}
	return fits
}

// reset returns the time until no unit counts.
func (w *window) reset(s []int64, now int64) int64 {
	end := s[0]
	for _, n := range w.counts(s) {
		if n > 0 {
			break
		}
		end -= w.sub
	}
	return max(end-now, 0)
}

// earliest returns the time until n <= limit units fit that do not now, if nothing else is charged: to the first
// sub-window whose inner counts leave room, as soon as the weighted oldest count fits into that room, or
// else to its end.
func (p *Policy) earliest(s []int64, now, n int64) int64 {
	if p.k == 0 {
		return s[0] - now
	}
	c := p.counts(s)
	i := len(c) - 1
	room := p.limit - (s[1] - c[i]) - n
	for room < 0 {
		i--
		room += c[i]
	}
	start := p.start(s) + int64(len(c)-1-i)*p.sub
	at := max(start, now)
	switch {
	case c[i] <= room:
		return at - now
	case p.over:
		return start + p.sub - now
	}
	hi, lo := bits.Mul64(uint64(room), uint64(p.sub))
	part, _ := bits.Div64(hi, lo, uint64(c[i])) // c[i] > room, so it is below sub
	return max(at, start+p.sub-int64(part)) - now
}

// muldivUp returns a*b/c, rounded up, for b <= c.
func muldivUp(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, rest := bits.Div64(hi, lo, uint64(c))
	if rest > 0 {
		q++
	}
	return int64(q)
}

// LeaseEnd returns the end of the part of time in which the policy counts alike whatever is charged, of which an instant
// is one. It is 0 if there is no such part, or refused attempts count.
func (p *Policy) LeaseEnd(at int64) int64 {
	if p.CountDenied || p.FromFirst || p.Free {
		return 0
	}
	switch p.Kind {
	case FixedWindow:
		return at - at%p.Period + p.Period
	case SlidingWindow:
		return at - at%p.sub + p.sub
	case Calendar:
		if at == 0 { // none is asked about
			return p.Period
		}
		return p.calendar.window(at).end
	case TokenBucket, SlidingLog, MinInterval, Constant:
		return 0
	default:
		panic(Missing(p.Kind))
	}
}
