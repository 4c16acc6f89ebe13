package step

import "math/bits"

// A level is the theoretical arrival time of the generic cell rate algorithm, as virtual scheduling keeps it (ITU-T
// I.371): what a clock shows when nothing is used any more. A charge adds the emission interval for each unit, and fits
// if the level is then ahead of the clock by no more than the burst offset.
//
// Units come back as the clock advances: steadily, as those of a bucket, or all at once at the end of a window. A
// bucket's clock has ticks of at most a microsecond, of which a unit takes a whole number: so no rate drifts. For 7
// units a second, it has 1,000,006 ticks a second, and a unit takes 142,858. A window's clock has one tick in a period.
//
// A window of a second is a tick, by which its clock advances 2,000,000: in the seventh second it shows 14,000,000, and
// after three units the level is 14,000,003.
//
// The state is [t, level]: the clock shows the level at t.
//
// A bucket of 10 a second with a burst of 20 has a tick in a microsecond. If its clock shows 5,000,000, the level after
// three units is 5,300,000: 300,000 ticks ahead, of 2,000,000, so 17 units are left.
type level struct {
	// Of a bucket, the ticks in a microsecond, at least 1, and the microseconds in a tick. Lua has the same doubles.
	tickRate   float64
	tickLength float64

	windowLength divisor // of a window, in microseconds
	tickStep     divisor // by how much the clock advances with each tick; 1 for a bucket

	// How far ahead of the clock a level is by one unit; may be after a charge; and after a report.
	emissionInterval int64
	burstOffset      int64
	debtOffset       int64

	intervals divisor // by the emission interval

	calendar *calendar // of a Calendar, whose ticks are its windows; else nil
}

// newLevel returns the level of valid numbers.
func newLevel(m Numbers) (l level) {
	tickStep := int64(1)
	switch m.Kind {
	case TokenBucket:
		l.emissionInterval = m.ticksOfUnit()
		ticks := m.Limit * l.emissionInterval // in a period
		l.tickRate = float64(ticks) / float64(m.Period)
		l.tickLength = float64(m.Period) / float64(ticks)
		l.burstOffset = m.Burst * l.emissionInterval
		l.debtOffset = (m.Burst + m.Debt) * l.emissionInterval
	case MinInterval:
		l.tickRate = 1
		l.tickLength = 1
		l.emissionInterval = m.Period
		l.burstOffset = m.Period
		l.debtOffset = m.Period + 1 // so a call that is reported is another than the last
	case FixedWindow:
		tickStep = 2 * m.Period // so a level is below 2^53 until 2095, and reports of 16 times the limit count
		l.emissionInterval = 1
		l.burstOffset = m.Limit
		l.debtOffset = tickStep - 1
		l.windowLength = newDivisor(m.Period)
	case Calendar:
		l.calendar = newCalendar(m)
		tickStep = l.calendar.windowStep
		l.emissionInterval = 1
		l.burstOffset = m.Limit
		l.debtOffset = tickStep - 1
	default:
		panic(Missing(m.Kind))
	}
	l.tickStep = newDivisor(tickStep)
	l.intervals = newDivisor(l.emissionInterval)
	return l
}

// Clock returns what the clock shows at an instant.
func (l *level) Clock(now int64) int64 {
	if l.calendar != nil {
		return l.calendar.windowOf(now).number * l.calendar.windowStep
	}
	return l.plainClock(now)
}

// plainClock is Clock, but not of a calendar.
func (l *level) plainClock(now int64) int64 {
	if l.tickStep.number == 1 {
		return l.ticks(now)
	}
	window, _ := l.windowLength.divide(now)
	return window * int64(l.tickStep.number)
}

// ticks returns what the clock of a bucket shows: a product of doubles, rounded down, as in Lua.
func (l *level) ticks(now int64) int64 { return int64(float64(now) * l.tickRate) }

// wait returns the time from now until a clock that shows clock shows more by advance.
func (l *level) wait(now, clock, advance int64) int64 {
	// Of a window, to the start of the first one with which the clock shows as much.
	if l.tickStep.number > 1 {
		window, _ := l.tickStep.divide(clock + advance + int64(l.tickStep.number) - 1)
		return window*int64(l.windowLength.number) - now
	}
	if l.tickRate == 1 {
		return advance
	}
	// The product may be early by a microsecond or two, so the clock itself is asked: with additions and not branches,
	// since no processor can foresee which it is.
	shown := now + int64(float64(advance)*l.tickLength)
	late := int64(uint64(l.ticks(shown)-clock-advance)>>63) + int64(uint64(l.ticks(shown+1)-clock-advance)>>63)
	return shown - now + late
}

// clockFor returns what the clock shows for a state, if it shows clock by itself.
func (l *level) clockFor(state *[2]int64, now, clock int64) int64 {
	if state[1]-clock > l.debtOffset {
		return l.wentBack(state, now, clock)
	}
	return clock
}

// aheadOf returns how far the level is ahead of the clock: what is used.
func aheadOf(state *[2]int64, clock int64) int64 { return max(state[1]-clock, 0) }

// wentBack returns what the clock shows for a state whose level is further ahead than it can be: the clock has gone
// back. A window that has begun has begun, so the clock shows the next one. From further ahead, nothing is left as of
// now.
func (l *level) wentBack(state *[2]int64, now, clock int64) int64 {
	tickStep := int64(l.tickStep.number)
	ahead := state[1] - clock
	if tickStep > 1 && ahead < 2*tickStep {
		return clock + tickStep
	}
	l.setAny(state, now, clock, max(l.burstOffset, ahead%tickStep))
	return clock
}

// set sets a level ahead of the clock, but not of a calendar: see setAny.
func (l *level) set(state *[2]int64, now, clock, ahead int64) {
	state[0] = now + l.wait(now, clock, ahead)
	state[1] = clock + ahead
}

// takeLevel is Take of a level, but not of a calendar: see takeCalendar.
func (p *Policy) takeLevel(state *[2]int64, now, n int64, charge bool, cell *Cell) bool {
	l := &p.level
	clock := l.clockFor(state, now, p.plainClock(now))
	// A level behind the clock is as one that the clock shows: whoever was idle has saved up the burst, and no more.
	ahead := aheadOf(state, clock)
	after := ahead + n*l.emissionInterval
	fits := after <= l.burstOffset
	cell.Shortfall = 0
	cell.RetryAfter = 0
	if !fits {
		cell.Shortfall = 1
		cell.RetryAfter = l.wait(now, clock, after-l.burstOffset)
	} else if charge {
		ahead = after
		l.set(state, now, clock, ahead)
	}
	// The reading is of the state after the charge.
	if ahead == 0 {
		cell.Remaining = p.capacity
		cell.NextAfter = 0
		cell.ResetAfter = 0
		return fits
	}
	cell.ResetAfter = state[0] - now
	left := l.burstOffset - ahead
	if left < 0 { // of a bucket in debt, or a window with a report beyond its limit
		cell.Remaining = 0
		cell.NextAfter = l.wait(now, clock, l.emissionInterval-left)
		return fits
	}
	// A part of the next unit has come back already.
	units, part := l.intervals.divide(left)
	cell.Remaining = units
	cell.NextAfter = l.wait(now, clock, l.emissionInterval-part)
	return fits
}

// denyLevel counts units that were refused.
func (p *Policy) denyLevel(state *[2]int64, now, n int64) {
	clock := p.clockFor(state, now, p.plainClock(now))
	ahead := aheadOf(state, clock)
	p.set(state, now, clock, max(ahead, min(ahead+n*p.emissionInterval, p.burstOffset)))
}

// settleLevel counts n more units than were charged at an instant, or gives back -n of them.
func (p *Policy) settleLevel(state *[2]int64, now, chargedAt, n int64) {
	mostUnits := p.debtOffset / p.emissionInterval // more could overflow
	switch {
	case p.calendar != nil:
		p.settleCalendar(state, now, chargedAt, n)
	case n > 0:
		p.reportLevel(state, now, min(n, mostUnits))
	default:
		p.refundLevel(state, now, chargedAt, min(-n, mostUnits))
	}
}

// reportLevel counts units that have been used.
func (p *Policy) reportLevel(state *[2]int64, now, n int64) {
	clock := p.clockFor(state, now, p.plainClock(now))
	ahead := aheadOf(state, clock)
	// A level further ahead could not be told from a clock that has gone back.
	if ahead < p.debtOffset {
		p.set(state, now, clock, min(ahead+n*p.emissionInterval, p.debtOffset))
	}
}

// refundLevel gives back less by what has come back since the charge: had the units not been taken, nothing might have
// been used, and the level would not have fallen any further.
func (p *Policy) refundLevel(state *[2]int64, now, chargedAt, n int64) {
	clock := p.clockFor(state, now, p.plainClock(now))
	ahead := aheadOf(state, clock)
	passed := clock - p.plainClock(chargedAt)
	// A charge of a window that has not begun is none of this window: the clock has gone back.
	if passed < 0 && p.tickStep.number > 1 {
		return
	}
	back := n*p.emissionInterval - max(passed, 0)
	if back > 0 {
		p.set(state, now, clock, max(ahead-back, 0))
	}
}

// isLastCall reports whether the last call that a MinInterval has counted is that of an instant.
func (p *Policy) isLastCall(state *[2]int64, now, calledAt int64) bool {
	possible := state[1]-p.plainClock(now) <= p.debtOffset // else the clock has gone back
	return possible && state[1] == p.plainClock(calledAt)+p.emissionInterval
}

// A divisor divides by the same number again and again: by a multiplication, which takes less
// time (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
type divisor struct {
	number, factor uint64
	shift          uint8
}

// newDivisor returns the divisor by a number above 0.
func newDivisor(number int64) divisor {
	shift := uint(bits.Len64(uint64(number - 1)))
	// The factor is 2^(63+shift) / number, rounded down, and 1.
	high := uint64(0)
	low := uint64(1) << 63
	if shift > 0 {
		high = 1 << (shift - 1)
		low = 0
	}
	quotient, _ := bits.Div64(high, low, uint64(number))
	return divisor{uint64(number), quotient + 1, uint8(shift)}
}

// divide divides a number that is not negative.
func (d *divisor) divide(dividend int64) (quotient, rest int64) {
	high, _ := bits.Mul64(uint64(dividend)<<1, d.factor)
	q := high >> (d.shift & 63)
	return int64(q), dividend - int64(q*d.number)
}
