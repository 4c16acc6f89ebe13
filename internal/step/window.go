package step

import "math/bits"

// A window estimates a rolling period from the counts of k+1 sub-windows. The newest k lie inside it, and
// count in full. The oldest is partly outside: it is weighted by the part that is inside, as if its events
// were spread evenly, or counts in full. With k = 0 there is one window after the other.
//
// For instance, 60 a minute with k = 10 has sub-windows of 6 s. Two seconds after the newest began, the oldest counts
// by two thirds.
//
// The state is [end, total, c0 ... ck]: the end of the time for which the newest sub-window counts, all
// units, and the counts, the newest first. With k = 0, c0 is the total itself: the state is [end, total].
//
// With k = 3:
//
//	    c3        c2        c1        c0
//	|---------|---------|---------|---------|
//	     |part|                  now|
//	     |<---- k sub-windows ----->|
type window struct {
	innerCounts  int64  // k
	firstCount   int    // the word of c0
	rollsFrom    uint64 // the time in the newest sub-window from which the counts may have to move
	subWindow    int64  // its length, rounded up so that they cover the period
	innerSpan    int64  // the length of k sub-windows
	wholeSpan    int64  // of all
	oldestInFull bool
	deniedLimit  int64 // up to which refused attempts are counted in a sub-window
}

// newWindow returns the window of valid numbers.
func newWindow(m Numbers) window {
	w := window{subWindow: m.Period, oldestInFull: true, deniedLimit: m.Limit, firstCount: 1}
	if m.Kind == SlidingWindow {
		w.firstCount = 2
		w.innerCounts = m.Resolution
		w.oldestInFull = m.NeverOver
		w.subWindow = (m.Period + m.Resolution - 1) / m.Resolution
		// It is far above what could matter, and low enough that the sum of all counts is at most MaxInt.
		w.deniedLimit = max(m.Limit, MaxInt/(MaxResolution+2))
	}
	w.rollsFrom = uint64(w.subWindow)
	if m.FromFirst {
		w.rollsFrom = 0 // an empty window begins anew at any time
	}
	w.innerSpan = w.innerCounts * w.subWindow
	w.wholeSpan = w.innerSpan + w.subWindow
	return w
}

// counts returns c0 to ck.
func (w *window) counts(state []int64) []int64 { return state[w.firstCount:] }

// start returns the start of the newest sub-window.
func (w *window) start(state []int64) int64 { return state[0] - w.wholeSpan }

// hasBegun reports whether a window FromFirst has begun: an empty one does with the next unit.
func hasBegun(state []int64, start, now int64) bool { return state[1] > 0 || now < start }

// roll moves the counts so that c0 is that of now.
func (p *Policy) roll(state []int64, now int64) {
	// A time before the newest sub-window is a very large one.
	if uint64(now-state[0]+p.wholeSpan) >= p.rollsFrom {
		p.move(state, now)
	}
}

// move is roll for counts that may not be those of now.
func (p *Policy) move(state []int64, now int64) {
	start := p.start(state)
	if now < start+p.subWindow && (!p.FromFirst || hasBegun(state, start, now)) {
		if now < start-p.wholeSpan {
			p.fill(state, now)
		}
		return
	}
	passed := (now - start) / p.subWindow
	counts := p.counts(state)
	if passed > p.innerCounts {
		clear(state[1:])
	} else {
		// What has passed out of the period is no part of the total any more.
		for _, count := range counts[p.innerCounts+1-passed:] {
			state[1] -= count
		}
		copy(counts[passed:], counts)
		clear(counts[:passed])
	}
	state[0] += passed * p.subWindow
	if p.FromFirst {
		state[0] = now + p.wholeSpan
	}
}

// fill brings a window back that is of a later time than can be, as the clock has gone back: nothing is left as of now.
func (p *Policy) fill(state []int64, now int64) {
	full := min(max(state[1], p.capacity), MaxInt)
	clear(state)
	state[0] = now + p.wholeSpan
	if !p.FromFirst {
		state[0] -= now % p.subWindow
	}
	state[1] = full
	p.counts(state)[0] = full
}

// left returns how many units fit at now:
//
//	limit - others - oldest * part/sub-window
//
// where part is how much of the oldest sub-window is inside. The product is rounded up, which is exact for
// whole units. It is below 0 if more are used than may be.
func (p *Policy) left(state []int64, now int64) int64 {
	p.roll(state, now)
	oldest := state[len(state)-1]
	left := p.capacity - state[1]
	if oldest > 0 && !p.oldestInFull {
		part := min(state[0]-p.innerSpan-now, p.subWindow)
		left += oldest - weighted(oldest, part, p.subWindow)
	}
	return left
}

// takeWindow is Take of a window. A charge counts in the newest sub-window.
func (p *Policy) takeWindow(state []int64, now, n int64, charge bool, cell *Cell) bool {
	left := p.left(state, now)
	fits := n <= left
	if fits && charge {
		left -= n
		state[1] += n
		if p.innerCounts > 0 {
			state[2] += n
		}
	}
	// Below 0 after a report beyond the limit, or under a smaller plan.
	cell.Shortfall = 0
	cell.Reading = Reading{Remaining: max(left, 0)}
	if left < p.capacity {
		cell.NextAfter = p.earliest(state, now, cell.Remaining+1)
		cell.ResetAfter = p.reset(state, now)
	}
	if !fits {
		cell.Shortfall = 1
		cell.RetryAfter = cell.NextAfter // of most refusals: one unit is asked for, and none is left
		if n != cell.Remaining+1 {
			cell.RetryAfter = p.earliest(state, now, n)
		}
	}
	return fits
}

// denyWindow counts units that were refused.
func (p *Policy) denyWindow(state []int64, now, n int64) {
	p.roll(state, now)
	p.addWindow(state, n, p.deniedLimit)
}

// settleWindow counts n more units than were charged at an instant, or gives back -n of them. Take has rolled the
// state.
func (w *window) settleWindow(state []int64, chargedAt, n int64) {
	if n > 0 {
		w.addWindow(state, n, MaxInt)
	} else {
		w.refundWindow(state, chargedAt, -n)
	}
}

// addWindow adds n units to the newest count, but not beyond most, and not beyond MaxInt for all inside.
func (w *window) addWindow(state []int64, n, most int64) {
	counts := w.counts(state)
	// What else is inside the period: neither the newest, nor the oldest, of which a part is outside.
	others := int64(0)
	if w.innerCounts > 0 {
		others = state[1] - counts[0] - counts[w.innerCounts]
	}
	n = saturate(counts[0], n, min(most, MaxInt-others)) - counts[0]
	state[1] += n
	if w.innerCounts > 0 {
		counts[0] += n
	}
}

// refundWindow lowers the count of the sub-window that was charged, if that still counts.
func (w *window) refundWindow(state []int64, chargedAt, n int64) {
	start := w.start(state)
	// How many sub-windows ago that was, rounded up. Before the period, there is nothing to lower; behind the newest,
	// the clock has gone back.
	index := max(start-chargedAt+w.subWindow-1, 0) / w.subWindow
	if chargedAt >= start+w.subWindow || index > w.innerCounts {
		return
	}
	charged := &w.counts(state)[index]
	n = min(n, *charged)
	state[1] -= n
	if w.innerCounts > 0 { // else that was the total
		*charged -= n
	}
}

// reset returns the time until no unit counts.
func (w *window) reset(state []int64, now int64) int64 {
	// A count is over when its sub-window has passed the period. Empty ones, the newest first, need no waiting.
	end := state[0]
	for _, count := range w.counts(state) {
		if count > 0 {
			break
		}
		end -= w.subWindow
	}
	return max(end-now, 0)
}

// earliest returns the time until n <= limit units fit that do not now, if nothing else is charged: to the first
// sub-window whose inner counts leave room, as soon as the weighted oldest count fits into that room, or
// else to its end.
func (p *Policy) earliest(state []int64, now, n int64) int64 {
	if p.innerCounts == 0 {
		return state[0] - now
	}
	// As time passes, one count after the other is the oldest. The others leave room from some time on.
	counts := p.counts(state)
	oldest := len(counts) - 1
	room := p.capacity - (state[1] - counts[oldest]) - n
	for room < 0 {
		oldest--
		room += counts[oldest]
	}
	start := p.start(state) + int64(len(counts)-1-oldest)*p.subWindow
	from := max(start, now)
	switch {
	case counts[oldest] <= room:
		return from - now
	case p.oldestInFull:
		return start + p.subWindow - now
	}
	// The oldest fits once the part of it that is inside is at most room / oldest, which is below 1.
	high, low := bits.Mul64(uint64(room), uint64(p.subWindow))
	part, _ := bits.Div64(high, low, uint64(counts[oldest]))
	return max(from, start+p.subWindow-int64(part)) - now
}

// weighted returns count*part/whole, rounded up, for a part of at most the whole.
func weighted(count, part, whole int64) int64 {
	high, low := bits.Mul64(uint64(count), uint64(part))
	quotient, rest := bits.Div64(high, low, uint64(whole))
	if rest > 0 {
		quotient++
	}
	return int64(quotient)
}
