package step

import "math/bits"

// A level is what a clock shows when nothing is used any more. So a charge adds to it, and units come back as the clock
// advances: steadily, as those of a bucket, or all at once at the end of a window. A bucket's clock has ticks of at most a
// microsecond, of which a unit takes a whole number. A window's has one tick in a period.
//
// The state is [t, level]: the clock shows the level at t.
type level struct {
	rate   float64 // of a bucket: ticks in a microsecond, at least 1. Lua computes with the same doubles
	tick   float64 // of a bucket: microseconds
	period divisor // of a window: microseconds
	steps  divisor // by how much the clock advances with each tick; 1 for a bucket
	per    int64   // of the clock, for one unit
	full   int64   // how far ahead of the clock a level may be after a charge
	most   int64   // and after a report
	units  divisor // by per

	calendar *calendar // of a Calendar, whose ticks are its windows; else nil
}

// newLevel returns the level of numbers.
func newLevel(m Numbers) (l level) {
	step := int64(1)
	switch m.Kind {
	case TokenBucket:
		l.per = (m.Period + m.Limit - 1) / m.Limit
		ticks := m.Limit * l.per // in a period
		l.rate, l.tick = float64(ticks)/float64(m.Period), float64(m.Period)/float64(ticks)
		l.full, l.most = m.Burst*l.per, (m.Burst+m.Debt)*l.per
	case MinInterval:
		l.rate, l.tick = 1, 1
		l.per, l.full, l.most = m.Period, m.Period, m.Period+1 // so a call that is reported is another than the last
	case FixedWindow:
		step = 2 * m.Period // so a level is below 2^53 until 2095, and reports of 16 times the limit count
		l.per, l.full, l.most, l.period = 1, m.Limit, step-1, newDivisor(m.Period)
	case Calendar:
		l.calendar = newCalendar(m)
		step = l.calendar.windowStep
		l.per, l.full, l.most = 1, m.Limit, step-1
	default:
		panic(Missing(m.Kind))
	}
	l.steps, l.units = newDivisor(step), newDivisor(l.per)
	return l
}

// Clock returns what the clock shows at an instant.
func (l *level) Clock(now int64) int64 {
	if l.calendar != nil {
		return l.calendar.window(now).number * l.calendar.windowStep
	}
	return l.shows(now)
}

// shows is Clock, but not of a calendar.
func (l *level) shows(now int64) int64 {
	if l.steps.by == 1 {
		return l.ticks(now)
	}
	n, _ := l.period.divide(now)
	return n * int64(l.steps.by)
}

func (l *level) ticks(now int64) int64 { return int64(float64(now) * l.rate) }

// wait returns the time from now until a clock that shows clock shows d more.
func (l *level) wait(now, clock, d int64) int64 {
	if l.steps.by > 1 {
		n, _ := l.steps.divide(clock + d + int64(l.steps.by) - 1)
		return n*int64(l.period.by) - now
	}
	if l.rate == 1 {
		return d
	}
	t := now + int64(float64(d)*l.tick)
	// or one or two later: without a branch, since no processor can foresee it
	return t - now + int64(uint64(l.ticks(t)-clock-d)>>63) + int64(uint64(l.ticks(t+1)-clock-d)>>63)
}

// clockOf returns what the clock shows for a state, if it shows clock by itself.
func (l *level) clockOf(s *[2]int64, now, clock int64) int64 {
	if s[1]-clock > l.most {
		return l.wentBack(s, now, clock)
	}
	return clock
}

// used returns how far the level is ahead of the clock.
func used(s *[2]int64, clock int64) int64 { return max(s[1]-clock, 0) }

// wentBack returns what the clock shows for a state whose level is further ahead than it can be: the clock has gone back. A
// window that has begun has begun, so the clock shows the next one. From further ahead, nothing is left as of now.
func (l *level) wentBack(s *[2]int64, now, clock int64) int64 {
	windowStep := int64(l.steps.by)
	ahead := s[1] - clock
	if windowStep > 1 && ahead < 2*windowStep {
		return clock + windowStep
	}
	l.setAny(s, now, clock, max(l.full, ahead%windowStep))
	return clock
}

func (l *level) set(s *[2]int64, now, clock, used int64) {
	s[0], s[1] = now+l.wait(now, clock, used), clock+used
}

func (p *Policy) takeLevel(s *[2]int64, now, n int64, charge bool, c *Cell) bool {
	l := &p.level
	clock := l.clockOf(s, now, p.shows(now))
	used := used(s, clock)
	after := used + n*l.per
	fits := after <= l.full
	c.Shortfall, c.RetryAfter = 0, 0
	if !fits {
		c.Shortfall, c.RetryAfter = 1, l.wait(now, clock, after-l.full)
	} else if charge {
		used = after
		l.set(s, now, clock, used)
	}
	if used == 0 {
		c.Remaining, c.NextAfter, c.ResetAfter = p.limit, 0, 0
		return fits
	}
	c.ResetAfter = s[0] - now
	if left := l.full - used; left >= 0 {
		units, part := l.units.divide(left)
		c.Remaining, c.NextAfter = units, l.wait(now, clock, l.per-part)
	} else {
		c.Remaining, c.NextAfter = 0, l.wait(now, clock, l.per-left)
	}
	return fits
}

// denyLevel counts units that were refused.
func (p *Policy) denyLevel(s *[2]int64, now, n int64) {
	clock := p.clockOf(s, now, p.shows(now))
	used := used(s, clock)
	p.set(s, now, clock, max(used, min(used+n*p.per, p.full)))
}

// settleLevel counts n more units than were charged at an instant, or gives back -n of them.
func (p *Policy) settleLevel(s *[2]int64, now, at, n int64) {
	switch {
	case p.calendar != nil:
		p.settleCalendar(s, now, at, n)
	case n > 0:
		p.addLevel(s, now, n)
	default:
		p.dropLevel(s, now, at, min(-n, p.most/p.per))
	}
}

// addLevel counts units that have been used.
func (p *Policy) addLevel(s *[2]int64, now, n int64) {
	clock := p.clockOf(s, now, p.shows(now))
	used := used(s, clock)
	if used < p.most {
		p.set(s, now, clock, min(used+min(n, p.most/p.per)*p.per, p.most))
	}
}

// dropLevel gives back less by what has come back since the charge: had the units not been taken, nothing might have been
// used, and the level would not have fallen any further.
func (p *Policy) dropLevel(s *[2]int64, now, at, n int64) {
	clock := p.clockOf(s, now, p.shows(now))
	used := used(s, clock)
	passed := clock - p.shows(at)
	if passed < 0 && p.steps.by > 1 {
		return // of a window that has not begun: the clock has gone back
	}
	back := n*p.per - max(passed, 0)
	if back > 0 {
		p.set(s, now, clock, max(used-back, 0))
	}
}

// A divisor divides by the same number again and again: by a multiplication, which takes less
// time (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
type divisor struct {
	by, factor uint64
	shift      uint8
}

// newDivisor returns the divisor by y > 0.
func newDivisor(y int64) divisor {
	shift := uint(bits.Len64(uint64(y - 1)))
	var hi, lo uint64 = 0, 1 << 63
	if shift > 0 {
		hi, lo = 1<<(shift-1), 0
	}
	q, _ := bits.Div64(hi, lo, uint64(y))
	return divisor{uint64(y), q + 1, uint8(shift)}
}

// divide divides x >= 0.
func (d *divisor) divide(x int64) (quotient, rest int64) {
	hi, _ := bits.Mul64(uint64(x)<<1, d.factor)
	q := hi >> (d.shift & 63)
	return int64(q), x - int64(q*d.by)
}
