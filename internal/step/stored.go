package step

import "errors"

// Stored is what a store whose script has a twin of the arithmetic needs to know of a policy.
//
// That of a bucket of 10 a second with a burst of 20 is {Level, 1000000, 1000000, 1, 100000, 2000000, 4000000}: its
// usual debt is the burst once more.
type Stored struct {
	Algorithm Algorithm

	// Of a level, as there; but the rate of its clock is a fraction: so many ticks in a period, which is 0 of a
	// calendar.
	ClockPeriod      int64
	PeriodTicks      int64
	TickStep         int64
	EmissionInterval int64
	BurstOffset      int64
	DebtOffset       int64

	// Of a window: the length of a sub-window; how many count in full; 1 if one more counts in part, 2 if in full; up
	// to how many denied units count in one.
	SubWindow   int64
	WholeCounts int64
	OldestCount int64
	DeniedLimit int64
}

// Stored returns how the states of a policy are kept elsewhere: it is zero if it has none.
func (p *Policy) Stored() Stored {
	switch p.algorithm {
	case stateless:
		return Stored{}
	case Level:
		return p.storedLevel()
	case Window:
		return p.storedWindow()
	case Log:
		return Stored{Algorithm: Log}
	default:
		panic(Missing(p.algorithm))
	}
}

// storedLevel returns the clock as a fraction, which the script divides: that is the double of tickRate.
func (p *Policy) storedLevel() Stored {
	stored := Stored{
		Algorithm:        Level,
		ClockPeriod:      p.Period,
		PeriodTicks:      1,
		TickStep:         int64(p.tickStep.number),
		EmissionInterval: p.emissionInterval,
		BurstOffset:      p.burstOffset,
		DebtOffset:       p.debtOffset,
	}
	switch p.Kind {
	case FixedWindow:
	case TokenBucket:
		stored.PeriodTicks = p.Limit * p.emissionInterval
	case MinInterval: // its clock has microseconds
		stored.ClockPeriod = 1
	case Calendar:
		stored.ClockPeriod = 0
	default:
		panic(Missing(p.Kind))
	}
	return stored
}

// storedWindow returns a window without sub-windows as one whose only count is inside.
func (p *Policy) storedWindow() Stored {
	stored := Stored{
		Algorithm:   Window,
		SubWindow:   p.subWindow,
		WholeCounts: max(p.innerCounts, 1),
		DeniedLimit: p.deniedLimit,
	}
	if p.innerCounts > 0 {
		stored.OldestCount = 1
		if p.oldestInFull {
			stored.OldestCount = 2
		}
	}
	return stored
}

// SetLevel makes the state of a level that is read elsewhere.
func (p *Policy) SetLevel(state []int64, now, level int64) {
	words := (*[2]int64)(state)
	words[1] = level
	clock := p.clockFor(words, now, p.Clock(now))
	p.setAny(words, now, clock, aheadOf(words, clock))
	if p.countsCalls {
		// Also if that is further ahead than it can be: Settle compares it with the call that it corrects.
		words[1] = level
	}
}

// SetWindow makes the state of a window, of which the counts are set, that is read elsewhere.
func (p *Policy) SetWindow(state []int64, start, total int64) {
	state[0] = start + p.wholeSpan
	state[1] = total
}

// A LogSummary is what a reading needs to know of a log: how many units count, and the instants that must expire until
// one more fits, until all are free, and until the units that are asked for fit. Instants of nothing are 0.
type LogSummary struct{ Count, FreesOne, FreesAll, FreesAsked int64 }

// ReadLog is Take of a log that is elsewhere. It reports whether the units fit; if it should, they are charged.
func (c *Cell) ReadLog(log LogSummary, now int64, charge bool) bool {
	p := c.Policy
	n := c.Asked()
	if n > p.capacity {
		return c.takeFresh(n)
	}
	fits := log.Count+n <= p.capacity
	// The script has appended the units after it made the summary.
	if charge && fits && c.Units > 0 {
		log.FreesAll = max(log.FreesAll, now)
		if log.Count == 0 {
			log.FreesOne = log.FreesAll
		}
		log.Count += n
	}
	c.Shortfall = 0
	c.Reading = Reading{Remaining: max(p.capacity-log.Count, 0)}
	if log.Count > 0 {
		c.NextAfter = log.FreesOne + p.Period - now
		c.ResetAfter = log.FreesAll + p.Period - now
	}
	if !fits {
		c.Shortfall = 1
		c.RetryAfter = log.FreesAsked + p.Period - now
	}
	return fits
}

// LeaseEnd returns the end of the part of time in which the policy counts alike whatever is charged, of which an
// instant is one. It is 0 if there is no such part, or refused attempts count. Of a charge, all policies that have such
// parts count the same units. Instant 0 asks whether there are such parts.
func (p *Policy) LeaseEnd(instant int64) int64 {
	if p.CountDenied || p.FromFirst || p.Free {
		return 0
	}
	switch p.Kind {
	case FixedWindow:
		return instant - instant%p.Period + p.Period
	case SlidingWindow:
		return instant - instant%p.subWindow + p.subWindow
	case Calendar:
		if instant == 0 { // which may be none of the calendar
			return p.Period
		}
		return p.calendar.windowOf(instant).end
	case TokenBucket, SlidingLog, MinInterval, Constant:
		return 0
	default:
		panic(Missing(p.Kind))
	}
}

// Share returns the numbers for one of several servers that do not share a store, so that together they admit about as
// much: a part of the events, or of the burst, the debt and the rate, rounded up. A MinInterval is longer.
func (m Numbers) Share(servers int64) (Numbers, error) {
	part := func(whole int64) int64 { return (whole + servers - 1) / servers }
	usual := m.Debt == m.DefaultDebt()
	switch m.Kind {
	case TokenBucket, MinInterval:
		m.Burst = part(m.Burst)
		m.Debt = part(m.Debt)
		if m.Period > MaxSpan/servers {
			return m, errors.New("makes the period longer than 142 years")
		}
		m.Period *= servers
	case FixedWindow, SlidingWindow, SlidingLog, Calendar, Constant:
		m.Limit = part(m.Limit)
	default:
		panic(Missing(m.Kind))
	}
	// The usual debt of a part follows from its numbers.
	if usual {
		m.Debt = m.DefaultDebt()
	}
	return m, nil
}
