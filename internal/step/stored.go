package step

import "errors"

// Stored is what a store whose script has a twin of the arithmetic needs to know of a policy.
type Stored struct {
	Algorithm Algorithm

	// Of a level: the ticks of its clock in a time, which is 0 of a calendar; by how much the clock advances with each; how much of it a unit takes;
	// how far ahead of the clock a level may be after a charge, and after a report.
	ClockPeriod, PeriodTicks, TickStep, EmissionInterval, BurstOffset, DebtOffset int64

	// Of a window: the length of a sub-window; how many count in full; 1 if one more counts in part, 2 if in full; up to
	// how many denied units count in one.
	SubWindow, WholeCounts, OldestCount, DeniedLimit int64
}

// Stored returns how the states of a policy are kept elsewhere: it is zero if it has none.
func (p *Policy) Stored() Stored {
	switch p.algorithm {
	case stateless:
		return Stored{}
	case Log:
		return Stored{Algorithm: Log}
	case Window:
		s := Stored{Algorithm: Window, SubWindow: p.sub, WholeCounts: max(p.k, 1), DeniedLimit: p.denied}
		if p.k > 0 {
			s.OldestCount = 1
		}
		if p.k > 0 && p.over {
			s.OldestCount = 2
		}
		return s
	case Level:
		s := Stored{
			Algorithm:        Level,
			ClockPeriod:      p.Period,
			PeriodTicks:      1,
			TickStep:         int64(p.steps.by),
			EmissionInterval: p.per,
			BurstOffset:      p.full,
			DebtOffset:       p.most,
		}
		switch {
		case p.calls:
			s.ClockPeriod = 1
		case p.calendar != nil:
			s.ClockPeriod = 0
		case p.Kind == TokenBucket:
			s.PeriodTicks = p.Limit * p.per
		}
		return s
	default:
		panic(Missing(p.algorithm))
	}
}

// SetLevel makes the state of a level that is read elsewhere.
func (p *Policy) SetLevel(state []int64, now, level int64) {
	s := (*[2]int64)(state)
	s[1] = level
	clock := p.clockOf(s, now, p.Clock(now))
	used := used(s, clock)
	p.setAny(s, now, clock, used)
	if p.calls {
		s[1] = level // also if that is further ahead than it can be: Settle compares it with the call that it corrects
	}
}

// SetWindow makes the state of a window, of which the counts are set, that is read elsewhere.
func (p *Policy) SetWindow(s []int64, start, total int64) { s[0], s[1] = start+p.span, total }

// A LogSummary is what a reading needs to know of one: how many units count, and the instants that must expire until one more
// fits, until all are free, and until the units that are asked for fit. Instants of nothing are 0.
type LogSummary struct{ Count, FreesOne, FreesAll, FreesAsked int64 }

// ReadLog is Take of a log that is elsewhere. It reports whether the units fit; if it should, they are charged.
func (c *Cell) ReadLog(l LogSummary, now int64, charge bool) bool {
	p, n := c.Policy, c.Asked()
	if n > p.limit {
		return c.takeFresh(n)
	}
	fits := l.Count+n <= p.limit
	if charge && fits && c.Units > 0 {
		if l.FreesAll = max(l.FreesAll, now); l.Count == 0 {
			l.FreesOne = l.FreesAll
		}
		l.Count += n
	}
	c.Shortfall, c.Reading = 0, Reading{Remaining: max(p.limit-l.Count, 0)}
	if l.Count > 0 {
		c.NextAfter, c.ResetAfter = l.FreesOne+p.Period-now, l.FreesAll+p.Period-now
	}
	if !fits {
		c.Shortfall, c.RetryAfter = 1, l.FreesAsked+p.Period-now
	}
	return fits
}

// Share returns the numbers for one of several servers that do not share a store, so that together they admit about as
// much: a part of the events, or of the burst, the debt and the rate, rounded up. A MinInterval is longer.
func (m Numbers) Share(servers int64) (Numbers, error) {
	part := func(x int64) int64 { return (x + servers - 1) / servers }
	usual := m.Debt == m.DefaultDebt()
	switch m.Kind {
	case TokenBucket, MinInterval:
		m.Burst, m.Debt = part(m.Burst), part(m.Debt)
		if m.Period > MaxSpan/servers {
			return m, errors.New("makes the period longer than 142 years")
		}
		m.Period *= servers
	case FixedWindow, SlidingWindow, SlidingLog, Calendar, Constant:
		m.Limit = part(m.Limit)
	default:
		panic(Missing(m.Kind))
	}
	if usual {
		m.Debt = m.DefaultDebt()
	}
	return m, nil
}
