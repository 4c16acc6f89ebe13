package step

import "errors"

// Stored is what a store whose script has a twin of the arithmetic needs to know of a policy.
type Stored struct {
	Algorithm byte // 1: level; 2: window; 3: log

	// Of a level: the ticks of its clock in a time, which is 0 of a calendar; by how much the clock advances with each; how much of it a unit takes;
	// how far ahead of the clock a level may be after a charge, and after a report.
	Time, Ticks, Step, Unit, Full, Most int64

	// Of a window: the length of a sub-window; how many count in full; 1 if one more counts in part, 2 if in full; up to
	// how many denied units count in one.
	Length, Inside, Trail, Denied int64
}

// Stored returns how the states of a policy that is not constant are kept elsewhere.
func (p *Policy) Stored() Stored {
	switch p.kind {
	case isLog:
		return Stored{Algorithm: 3}
	case isWindow:
		s := Stored{Algorithm: 2, Length: p.sub, Inside: max(p.k, 1), Denied: p.denied}
		if p.k > 0 {
			s.Trail = 1
		}
		if p.k > 0 && p.over {
			s.Trail = 2
		}
		return s
	}
	s := Stored{Algorithm: 1, Time: p.Period, Ticks: 1, Step: int64(p.steps.by), Unit: p.per, Full: p.full, Most: p.most}
	switch {
	case p.calls:
		s.Time = 1
	case p.calendar != nil:
		s.Time = 0
	case p.Algorithm == TokenBucket:
		s.Ticks = p.Limit * p.per
	}
	return s
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

// A Log is what a reading needs to know of one: how many units count, and the instants that must expire until one more
// fits, until all are free, and until the units that are asked for fit. Instants of nothing are 0.
type Log struct{ Live, Next, Last, Wait int64 }

// ReadLog is Take of a log that is elsewhere. It reports whether the units fit; if it should, they are charged.
func (c *Cell) ReadLog(l Log, now int64, charge bool) bool {
	p, n := c.Policy, c.Asked()
	if n > p.limit {
		return c.takeFresh(n)
	}
	fits := l.Live+n <= p.limit
	if charge && fits && c.N > 0 {
		if l.Last = max(l.Last, now); l.Live == 0 {
			l.Next = l.Last
		}
		l.Live += n
	}
	c.Short, c.Reading = 0, Reading{Remaining: max(p.limit-l.Live, 0)}
	if l.Live > 0 {
		c.NextAfter, c.ResetAfter = l.Next+p.Period-now, l.Last+p.Period-now
	}
	if !fits {
		c.Short, c.RetryAfter = 1, l.Wait+p.Period-now
	}
	return fits
}

// Share returns the numbers for one of several servers that do not share a store, so that together they admit about as
// much: a part of the events, or of the burst, the debt and the rate, rounded up. A MinInterval is longer.
func (m Numbers) Share(servers int64) (Numbers, error) {
	part := func(x int64) int64 { return (x + servers - 1) / servers }
	usual := m.Debt == m.DefaultDebt()
	switch m.Algorithm {
	case TokenBucket, MinInterval:
		m.Burst, m.Debt = part(m.Burst), part(m.Debt)
		if m.Period > MaxSpan/servers {
			return m, errors.New("makes the period longer than 142 years")
		}
		m.Period *= servers
	default:
		m.Limit = part(m.Limit)
	}
	if usual {
		m.Debt = m.DefaultDebt()
	}
	return m, nil
}
