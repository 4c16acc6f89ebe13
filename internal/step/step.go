// Package step is the arithmetic of limits: what a state says at an instant, and how a charge changes it. It
// has no clock, no lock and no I/O.
//
// An instant is a count of microseconds since 1970, a span a count of microseconds. Words of a state are at
// most [MaxInt], so a twin whose numbers are doubles can keep the same.
//
// Nil and zeros are the state of a key that was never charged. The first word is the instant from which a
// state means no more than nil: a store that drops states needs no other. Methods move what has expired out
// of a state. That changes its words, and not what it means.
package step

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/hidden"
)

const (
	MaxInt        = 1<<53 - 1     // the largest integer that a double holds exactly
	MaxSpan       = 1 << 52       // the longest period, about 142 years
	Never         = math.MaxInt64 // the RetryAfter of units that never fit
	NoPeriod      = math.MinInt64 // a period that is no whole number of microseconds
	MaxResolution = 1000
	MaxLog        = 1024
)

// A Policy is one policy of a limiter, as it is asked. What most decisions need comes first.
type Policy struct {
	ID        uint64 // a secret hash of its identity: all of it but the numbers that a state is only compared with
	Tag       uint32 // another; odd if states are longer than 2 words
	algorithm Algorithm
	grows     bool  // its states may become too short
	one       bool  // to ask for nothing is to ask for a unit
	calls     bool  // it counts calls, whatever their units
	Last      bool  // of its limiter
	Free      bool  // charges count nothing: they only ask whether it is above its limit
	limit     int64 // units that a key has that was never charged
	level
	window

	Numbers
	Limiter, Name string
	refill        int64 // of a whole bucket

	Attachment any // by the store for which it was prepared
}

// An Algorithm is the arithmetic of some kinds of policies. Scripts of stores know it by its number.
type Algorithm uint8

// The algorithms. A switch names each of them, and panics for others: see Missing.
const (
	stateless Algorithm = iota // of constant policies
	Level                      // an instant: level.go, and calendar.go for one whose clock is a calendar
	Window                     // counts of sub-windows: window.go
	Log                        // the instants of all units: log.go

	AlgorithmEnd // is behind the last: tests go over all
)

// Missing is what a switch panics with that has no case for a value of an enumeration.
func Missing(value any) string {
	return fmt.Sprintf("headgate: a switch has no case for %T %[1]d", value)
}

// Capacity returns the units that a key has that was never charged.
func (p *Policy) Capacity() int64 { return p.limit }

// Constant reports whether it always decides the same. Its state is nil.
func (p *Policy) Constant() bool { return p.algorithm == stateless }

// Window returns the time over which Capacity units are admitted, or 0 if it differs: see WindowAt.
func (p *Policy) Window() int64 {
	switch p.Kind {
	case TokenBucket:
		return p.refill
	case FixedWindow, SlidingWindow, SlidingLog, MinInterval:
		return p.Period
	case Calendar, Constant:
		return 0
	default:
		panic(Missing(p.Kind))
	}
}

// Max returns the largest charge that can ever be admitted.
func (p *Policy) Max() int64 {
	if p.calls {
		return MaxInt
	}
	return p.limit
}

// Lengths returns the length of a new state, and of the longest. Most have 2.
func (p *Policy) Lengths() (first, longest int64) {
	switch p.algorithm {
	case stateless, Level:
		return 2, 2
	case Window:
		if p.k > 0 {
			return p.k + 3, p.k + 3
		}
		return 2, 2
	case Log:
		return logRing + min(p.limit, logStart), logRing + MaxLog
	default:
		panic(Missing(p.algorithm))
	}
}

// New returns a new state.
func (p *Policy) New() []int64 {
	first, _ := p.Lengths()
	return make([]int64, first)
}

// A Mode is what is asked about cells.
type Mode uint8

const (
	Allow  Mode = iota // charge all if all of them admit their units, and otherwise none
	Peek               // answer as Allow would, and change nothing
	Settle             // correct charges by N units: give back, or count whether they fit or not
	Reset              // forget the states
)

// A Cell is one policy for one key: the unit of state. Core sets what is asked about it, and a store the answer.
type Cell struct {
	Policy *Policy
	Key    hidden.Text
	Hash   uint64 // of the key: secret, and the same as long as the process runs
	Units  int64  // units; 0 only checks; of Settle, how many more they are than were charged

	// Of Settle, the instant and the source of the charge, or 0 and SourceNone if there was none: a report. The answer has
	// its own.
	Instant int64
	Source  Source

	Shortfall int64 // the answer: more than 0 if the policy does not admit the units; of Settle, how many had no room
	Reading
}

// A Source is what answered.
type Source uint8

// The sources.
const (
	SourceNone   Source = iota
	SourcePolicy        // the policies alone: the answer does not depend on what was used
	SourceStore
	SourceCache // a refusal that is remembered
	SourceLocal // this process, while the server is away
	SourceOpen  // nothing, while the server is away: all is admitted
	SourceLease // units that were charged ahead
)

// Degraded reports that the server is away.
func (s Source) Degraded() bool { return s == SourceLocal || s == SourceOpen }

// String returns a short name for logs and metrics.
func (s Source) String() string {
	return [...]string{"none", "policy", "store", "cache", "local", "open", "lease"}[s]
}

// A Reading says how much is left. Spans are from the instant of the answer.
type Reading struct {
	Remaining  int64 // units that would be admitted
	NextAfter  int64 // until one more is left; 0 if none is used
	ResetAfter int64 // until none is used
	RetryAfter int64 // until the units fit, or after Settle one unit; 0 if they do, or Never
}

var seed, tagSeed = maphash.MakeSeed(), maphash.MakeSeed()

// Hash returns the Hash of a key.
func Hash(key string) uint64 { return maphash.String(seed, key) }

// Set sets what is asked.
func (c *Cell) Set(p *Policy, key string, hash uint64, n int64) {
	c.Policy, c.Key, c.Hash, c.Units = p, hidden.Of(key), hash, p.Counted(n)
}

// Counted returns how many units a charge of n counts.
func (p *Policy) Counted(n int64) int64 {
	switch {
	case p.Free:
		return 0
	case p.calls && n > 1:
		return 1
	}
	return n
}

// Asked returns how many units have to fit. For none, a window or a bucket must not be above its limit, as it
// may be after Settle. A log, and a MinInterval, must admit one more.
func (c *Cell) Asked() int64 {
	if c.Units == 0 && c.Policy.one {
		return 1
	}
	return c.Units
}

// Admits reports whether the policy alone admits the units. They are no more than its Max.
func (c *Cell) Admits(s []int64, now int64) bool {
	p, n := c.Policy, c.Asked()
	if s == nil {
		return n <= p.limit
	}
	switch p.algorithm {
	case Level:
		level := (*[2]int64)(s)
		if p.calendar != nil { // apart, so that others do not pay for its clock
			return used(level, p.clockOf(level, now, p.Clock(now)))+n <= p.full
		}
		return used(level, p.clockOf(level, now, p.shows(now)))+n*p.per <= p.full
	case Window:
		return n <= p.left(s, now)
	case Log:
		p.expire(s, now)
		return s[logCount]+n <= p.limit
	default:
		panic(Missing(p.algorithm))
	}
}

// Grows reports whether states may become too short.
func (p *Policy) Grows() bool { return p.grows }

// Room returns a state of a policy that grows with room for the units, if they may fit or are to be counted anyway.
func (c *Cell) Room(s []int64, now int64, anyway bool) []int64 {
	if c.Policy.grows {
		return c.Policy.grow(s, now, c.Units, anyway || c.Policy.CountDenied)
	}
	return s
}

// Take charges the units if they fit and it should, and reads what is left. It reports whether they fit.
func (c *Cell) Take(s []int64, now int64, charge bool) bool {
	p, n := c.Policy, c.Asked()
	charge = charge && c.Units > 0
	if s == nil || n > p.limit {
		return c.takeFresh(n)
	}
	switch p.algorithm {
	case Level:
		if p.calendar != nil {
			return p.takeCalendar((*[2]int64)(s), now, n, charge, c)
		}
		return p.takeLevel((*[2]int64)(s), now, n, charge, c)
	case Window:
		return p.takeWindow(s, now, n, charge, c)
	case Log:
		return p.takeLog(s, now, n, charge, c)
	default:
		panic(Missing(p.algorithm))
	}
}

// takeFresh is Take of a key without a state, or of what never fits.
func (c *Cell) takeFresh(n int64) bool {
	c.Shortfall, c.Reading = 0, Reading{Remaining: c.Policy.limit}
	if n <= c.Policy.limit {
		return true
	}
	c.Shortfall, c.RetryAfter = 1, Never
	return false
}

// CountRefused counts the units after Take, as far as they matter, if refused attempts count.
func (c *Cell) CountRefused(s []int64, now int64, mode Mode) {
	p := c.Policy
	if !p.CountDenied || c.Units == 0 || p.Constant() {
		return
	}
	if s == nil {
		s = c.Room(p.New(), now, true)
	} else if mode == Peek {
		s = c.Room(slices.Clone(s), now, true)
	}
	switch p.algorithm {
	case Level:
		p.denyLevel((*[2]int64)(s), now, c.Units)
	case Window:
		p.roll(s, now)
		p.addWindow(s, c.Units, p.denied)
	case Log:
		p.push(s, now, c.Units)
	default:
		panic(Missing(p.algorithm))
	}
	short := c.Shortfall
	c.Take(s, now, false)
	c.Shortfall = short
}

// Changes reports whether an answer may change the state.
func (c *Cell) Changes(mode Mode, others bool) bool {
	return c.Units > 0 && (mode == Allow && (others || c.Policy.CountDenied) || mode == Settle) && !c.Policy.Constant()
}

// Settle corrects a charge, and reads what is left. What was used beyond it counts, whether it fits or not: a bucket
// counts no more than its Debt, and a log has no more than the newest instants. It never gives back more than was counted.
func (c *Cell) Settle(s []int64, now int64) {
	p, n, at := c.Policy, c.Units, c.Instant
	// Of a MinInterval, only the last call is given back. Take changes the state if the clock has gone back behind that.
	last := n > 0 || s == nil || !p.calls || s[1] == p.shows(at)+p.per && s[1]-p.shows(now) <= p.most
	c.Units = 0
	c.Take(s, now, false)
	short := max(n-c.Remaining, 0)
	if s != nil && last { // else it is constant, nothing is left to give back, or another call was the last
		p.settle(s, now, at, n)
	}
	c.Units = 1
	c.Take(s, now, false)
	c.Units, c.Shortfall = n, short
}

// settle counts n more units than were charged at an instant, or gives back -n of them.
func (p *Policy) settle(s []int64, now, at, n int64) {
	switch p.algorithm {
	case Level:
		p.settleLevel((*[2]int64)(s), now, at, n)
	case Window:
		p.settleWindow(s, at, n)
	case Log:
		p.settleLog(s, now, at, n)
	default:
		panic(Missing(p.algorithm))
	}
}

// saturate adds n to count, but not beyond most. A count that is already beyond stays.
func saturate(count, n, most int64) int64 {
	return max(count, min(count+min(n, most), most))
}
