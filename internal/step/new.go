package step

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
)

// A Kind is what users call a policy. Several have one Algorithm.
type Kind uint8

// The kinds. A switch that is about all of them names each. Random tests draw from those before Calendar.
const (
	TokenBucket Kind = iota + 1
	FixedWindow
	SlidingWindow
	SlidingLog
	MinInterval
	Calendar
	Constant // Unlimited or, with a Limit of 0, Blocked

	kindEnd // is behind the last
)

// Numbers are the parameters of a policy. A core.Policy has them with a name, as programs give them; a backend.Policy
// as documents do; and a Policy is made of them, for questions.
type Numbers struct {
	Kind        Kind
	Limit       int64 // events per Period
	Period      int64 // in microseconds; of a calendar, its unit
	Burst       int64 // of a token bucket
	Debt        int64 // of a token bucket: units beyond the Burst that it counts at most, or UsualDebt
	Resolution  int64 // sub-windows of a sliding window
	NeverOver   bool  // of a sliding window: the oldest sub-window counts in full
	CountDenied bool  // of windows and a log: refused attempts count
	FromFirst   bool  // of a fixed window: windows begin with the first unit of a key

	// Of a calendar: the day on which a week or a month begins, or 0 for the first; the name of the zone, or "" for
	// UTC.
	Starting int64
	Zone     string
}

// New returns a policy of a limiter. The error joins everything that is wrong with the numbers.
func New(limiter, name string, m Numbers) (Policy, error) {
	m = m.whole()
	if err := m.Check(); err != nil {
		return Policy{}, err
	}
	p := Policy{Numbers: m, Limiter: limiter, Name: name, algorithm: m.algorithm(), capacity: m.Limit}
	// What the kind means for those who ask.
	switch m.Kind {
	case TokenBucket:
		p.capacity = m.Burst
		p.refill = refill(m.Burst, m.Period, m.Limit)
	case SlidingLog:
		p.zeroAsksOne = true
	case MinInterval:
		p.capacity = 1
		p.zeroAsksOne = true
		p.countsCalls = true
	case FixedWindow, SlidingWindow, Calendar, Constant:
	default:
		panic(Missing(m.Kind))
	}
	// What the arithmetic needs, computed once.
	switch p.algorithm {
	case Level:
		p.level = newLevel(m)
	case Window:
		p.window = newWindow(m)
	case Log, stateless:
	default:
		panic(Missing(p.algorithm))
	}
	// A new state of a log is shorter than one of a busy key.
	first, longest := p.Lengths()
	p.grows = first < longest
	// Stores find states by hashes. The lowest bit of the second says how they are kept.
	id := [3]any{limiter, name, m.Identity()}
	p.ID = maphash.Comparable(seed, id)
	p.Tag = uint32(maphash.Comparable(tagSeed, id)) &^ 1
	if longest > 2 {
		p.Tag++
	}
	return p, nil
}

// algorithm returns the algorithm of valid numbers. A MinInterval is a bucket of one call. A FixedWindow is a level of
// one tick, or if it is FromFirst, or its limit is very large, a window without sub-windows.
func (m Numbers) algorithm() Algorithm {
	switch m.Kind {
	case TokenBucket, MinInterval, Calendar:
		return Level
	case FixedWindow:
		// A level has room for reports of 16 times the limit before its next tick: see newLevel.
		if !m.FromFirst && m.Limit <= m.Period/8 && m.Period <= MaxSpan/8 {
			return Level
		}
		return Window
	case SlidingWindow:
		return Window
	case SlidingLog:
		return Log
	case Constant:
		return stateless
	default:
		panic(Missing(m.Kind))
	}
}

// Identity returns the part of the numbers that says what the bytes of a state mean. Policies of one limiter and name
// share the states of keys if it is equal. The Limit of a window counts only as far as it decides how the window is
// kept. So a plan with a larger limit of a window, or of a log, counts what was used under a smaller one.
func (m Numbers) Identity() Numbers {
	m = m.whole()
	m.NeverOver = false
	m.CountDenied = false
	if m.Kind != TokenBucket {
		large := m.Kind == FixedWindow && m.algorithm() == Window
		m.Limit = 0
		if large {
			m.Limit = 1
		}
	}
	return m
}

// Constant reports whether the numbers are those of Unlimited or Blocked.
func (m Numbers) Constant() bool { return m.Kind == Constant }

// Check returns all that is wrong with the numbers, a line for each fault.
func (m Numbers) Check() error {
	m = m.whole()
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	kind := m.Kind
	switch {
	case kind == Constant:
		return nil
	case kind < TokenBucket || kind >= kindEnd:
		return errors.New("no policy: use TokenBucket, FixedWindow, SlidingWindow, SlidingLog, MinInterval, " +
			"Calendar, Unlimited or Blocked")
	}
	// The rate, of which an interval has only the period.
	fault(kind != MinInterval && m.Limit == 0, "a rate of 0 events: to refuse everything, use Blocked")
	fault(kind != MinInterval && m.Limit < 0, "a rate of %d events: there must be at least 1", m.Limit)
	fault(m.Limit > MaxInt, "%d events are more than 2^53-1", m.Limit)
	fault(m.Period == NoPeriod, "a period must be a whole number of microseconds")
	fault(m.Period <= 0 && m.Period != NoPeriod, "a period must be positive, and at most 142 years")
	fault(m.Period > MaxSpan, "a period must be at most 142 years")
	sound := len(faults) == 0 // the rate: some of the checks below need a valid one
	// Options of other kinds.
	deniable := kind == FixedWindow || kind == SlidingWindow || kind == SlidingLog
	fault(m.CountDenied && !deniable, "CountDenied is for FixedWindow, SlidingWindow and SlidingLog")
	fault(m.NeverOver && kind != SlidingWindow, "NeverOver is for SlidingWindow")
	fault(m.FromFirst && kind != FixedWindow, "FromFirst is for FixedWindow")
	fault(m.Burst != 0 && kind != TokenBucket, "Burst is for TokenBucket")
	fault(m.Debt != 0 && kind != TokenBucket, "Debt is for TokenBucket")
	fault(m.Resolution != 0 && kind != SlidingWindow, "Resolution is for SlidingWindow")
	fault(m.Starting != 0 && kind != Calendar, "Starting is for Calendar")
	fault(m.Zone != "" && kind != Calendar, "In is for Calendar")
	// What the kind itself wants.
	switch kind {
	case FixedWindow, MinInterval:
	case Calendar:
		m.checkCalendar(fault)
	case TokenBucket:
		m.checkBucket(sound, fault)
	case SlidingWindow:
		fault(m.Resolution < 1 || m.Resolution > MaxResolution,
			"a resolution must be from 1 to %d, is %d", MaxResolution, m.Resolution)
		fault(sound && m.Resolution > m.Period,
			"a resolution of %d needs a period of as many microseconds", m.Resolution)
	case SlidingLog:
		fault(m.Limit > MaxLog && m.Limit <= MaxInt,
			"a SlidingLog stores each event, at most %d, not %d: use SlidingWindow(...).NeverOver().Resolution(60)",
			MaxLog, m.Limit)
	default:
		panic(Missing(kind))
	}
	return errors.Join(faults...)
}

// A faultFunc notes a fault, if that is what is wrong.
type faultFunc func(wrong bool, format string, args ...any)

// checkBucket finds what is wrong with the numbers of a token bucket, of which the rate may be sound.
func (m Numbers) checkBucket(sound bool, fault faultFunc) {
	slow := sound && m.Limit <= m.Period // at most one a microsecond
	fault(m.Burst <= 0, "a burst must be at least 1, is %d", m.Burst)
	fault(sound && !slow, "a token bucket's rate must be at most 1,000,000 a second")
	fault(m.Debt < 0, "a debt must be at least 0, is %d", m.Debt)
	if slow && m.Burst > 0 {
		left := m.mostUnits() - m.Burst // for the debt
		fault(left < 0,
			"a burst of %d at this rate cannot be counted exactly: make the burst smaller or the rate rounder", m.Burst)
		fault(left >= 0 && m.Debt > left,
			"a debt of %d at this rate cannot be counted exactly: it must be at most %d", m.Debt, left)
	}
}

// ticksOfUnit returns how many ticks of the clock of a token bucket a unit takes: its emission interval.
func (m Numbers) ticksOfUnit() int64 { return (m.Period + m.Limit - 1) / m.Limit }

// mostUnits returns how many units a token bucket of a valid rate can count: so many that until 2100 a level, which is
// the clock and they, is below 2^53.
func (m Numbers) mostUnits() int64 {
	ticksOfUnit := m.ticksOfUnit()
	rate := float64(m.Limit*ticksOfUnit) / float64(m.Period) // from 1 to 2
	clock := int64(130 * 31_557_600e6 * rate)
	return min(MaxSpan, 1<<53-clock) / ticksOfUnit
}

// UsualDebt is the Debt of a token bucket that does not set it: as much as the Burst, or fewer if more cannot be
// counted exactly.
const UsualDebt = math.MinInt64

// UsualResolution is that of a sliding window that does not set it.
const UsualResolution = 10

// whole returns the numbers with the debt that a UsualDebt stands for, and without what a calendar does anyway.
func (m Numbers) whole() Numbers {
	if m.Starting == 1 {
		m.Starting = 0
	}
	if m.Zone == "UTC" {
		m.Zone = ""
	}
	if m.Debt == UsualDebt && m.Kind == TokenBucket {
		m.Debt = m.DefaultDebt()
	}
	return m
}

// DefaultDebt returns the debt that a UsualDebt stands for.
func (m Numbers) DefaultDebt() int64 {
	valid := m.Limit > 0 && m.Limit <= MaxInt && m.Period > 0 && m.Period <= MaxSpan
	if m.Kind != TokenBucket || !valid || m.Burst <= 0 {
		return 0
	}
	return max(min(m.Burst, m.mostUnits()-m.Burst), 0)
}

// refill returns burst*period/limit, rounded up: at most MaxInt.
func refill(burst, period, limit int64) int64 {
	high, low := bits.Mul64(uint64(burst), uint64(period))
	if high >= uint64(limit) {
		return MaxInt
	}
	quotient, rest := bits.Div64(high, low, uint64(limit))
	if rest > 0 {
		quotient++
	}
	return int64(min(quotient, MaxInt))
}
