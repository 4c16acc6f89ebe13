// Package step is the arithmetic of limits: what a state says at an instant, and how a charge changes it. It
// has no clock, no lock and no I/O.
//
//  1. [Parse] reads the [Numbers] of a policy (text.go), or a program sets them. [New] checks and prepares them
//     (new.go).
//  2. A store makes a [Cell] of each policy and key, and asks it (step.go): Admits, Take, CountRefused, Settle. The
//     [Algorithm] of the policy says which arithmetic that is: a level (level.go, and calendar.go if its clock is a
//     calendar), a window (window.go), or a log (log.go).
//  3. A store whose script has a twin of the arithmetic gets what that needs, and makes a state or a reading of what it
//     replies (stored.go).
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
	ID          uint64 // a secret hash of its identity: all of it but the numbers that a state is only compared with
	Tag         uint32 // another; odd if states are longer than 2 words
	algorithm   Algorithm
	grows       bool  // its states may become too short
	zeroAsksOne bool  // to ask for nothing is to ask for a unit
	countsCalls bool  // whatever their units
	Last        bool  // of its limiter
	Free        bool  // charges count nothing: they only ask whether it is above its limit
	capacity    int64 // units that a key has that was never charged
	level
	window

	Numbers
	Limiter, Name string
	refill        int64 // of a whole bucket, in microseconds

	Attachment any // of the store for which it was prepared
}

// An Algorithm is the arithmetic of some kinds of policies. Scripts of stores know it by its number.
type Algorithm uint8

// A switch names each of them, and panics for others: see Missing.
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
func (p *Policy) Capacity() int64 { return p.capacity }

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
	if p.countsCalls {
		return MaxInt
	}
	return p.capacity
}

// Lengths returns the length of a new state, and of the longest. Most have 2.
func (p *Policy) Lengths() (first, longest int64) {
	switch p.algorithm {
	case stateless, Level:
		return 2, 2
	case Window:
		if p.innerCounts > 0 {
			return p.innerCounts + 3, p.innerCounts + 3
		}
		return 2, 2
	case Log:
		return logRing + min(p.capacity, logStart), logRing + MaxLog
	default:
		panic(Missing(p.algorithm))
	}
}

// New returns the state of a key that was never charged, of the first of the Lengths.
func (p *Policy) New() []int64 {
	first, _ := p.Lengths()
	return make([]int64, first)
}

// A Mode is what is asked about cells.
type Mode uint8

const (
	Allow  Mode = iota // charge all if all of them admit their units, and otherwise none
	Peek               // answer as Allow would, and change nothing
	Settle             // correct charges by Units: give back, or count whether they fit or not
	Reset              // forget the states
)

// A Cell is one policy for one key: the unit of state. Core sets what is asked about it, and a store the answer.
//
//	         asked                                    answered
//	Allow    Units                                    Shortfall, 0 or 1; the Reading after the charge, if it was made
//	Peek     Units                                    the same, without a charge
//	Settle   Units, below 0 to give back; of a        Shortfall, the units without room; the Reading after it
//	         charge its Instant and its Source
type Cell struct {
	Policy *Policy
	Key    hidden.Text
	Hash   uint64 // of the key: secret, and the same as long as the process runs
	Units  int64  // 0 only checks; of Settle, how many more they are than were charged

	// Of Settle, the instant and the source of the charge, or 0 and SourceNone if there was none: a report. The answer
	// has its own.
	Instant int64
	Source  Source

	// The answer: 1 if the policy does not admit the units, else 0; of Settle, how many had no room.
	Shortfall int64
	Reading
}

// A Source is what answered.
type Source uint8

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

var (
	seed    = maphash.MakeSeed()
	tagSeed = maphash.MakeSeed()
)

// Hash returns the Hash of a Cell: seeded, so that nobody outside can choose keys that share one.
func Hash(key string) uint64 { return maphash.String(seed, key) }

// Set sets what is asked.
func (c *Cell) Set(policy *Policy, key string, hash uint64, n int64) {
	c.Units = policy.Counted(n)
	c.Policy = policy
	c.Key = hidden.Of(key)
	c.Hash = hash
}

// Counted returns how many units a charge of n counts.
func (p *Policy) Counted(n int64) int64 {
	switch {
	case p.Free:
		return 0
	case p.countsCalls && n > 1:
		return 1
	}
	return n
}

// Asked returns how many units have to fit. For none, a window or a bucket must not be above its limit, as it
// may be after Settle. A log, and a MinInterval, must admit one more.
func (c *Cell) Asked() int64 {
	if c.Units == 0 && c.Policy.zeroAsksOne {
		return 1
	}
	return c.Units
}

// Admits reports whether the policy alone admits the units. They are no more than its Max.
func (c *Cell) Admits(state []int64, now int64) bool {
	p := c.Policy
	n := c.Asked()
	if state == nil {
		return n <= p.capacity
	}
	switch p.algorithm {
	case Level:
		level := (*[2]int64)(state)
		if p.calendar != nil { // apart, so that others do not pay for its clock
			return aheadOf(level, p.clockFor(level, now, p.Clock(now)))+n <= p.burstOffset
		}
		return aheadOf(level, p.clockFor(level, now, p.plainClock(now)))+n*p.emissionInterval <= p.burstOffset
	case Window:
		return n <= p.left(state, now)
	case Log:
		p.expire(state, now)
		return state[logCount]+n <= p.capacity
	default:
		panic(Missing(p.algorithm))
	}
}

// Grows reports whether states may become too short.
func (p *Policy) Grows() bool { return p.grows }

// Room returns a state of a policy that grows with room for the units, if they may fit or are to be counted anyway.
func (c *Cell) Room(state []int64, now int64, anyway bool) []int64 {
	length := c.Length(state, now, anyway)
	if length == int64(len(state)) {
		return state
	}
	longer := make([]int64, length)
	Grow(longer, state)
	return longer
}

// Length returns how long the state of Room is.
func (c *Cell) Length(state []int64, now int64, anyway bool) int64 {
	if c.Policy.grows {
		return c.Policy.longer(state, now, c.Units, anyway || c.Policy.CountDenied)
	}
	return int64(len(state))
}

// Take charges the units if they fit and it should, and reads what is left. It reports whether they fit. A state that
// grows has room by then: see Room.
func (c *Cell) Take(state []int64, now int64, charge bool) bool {
	p := c.Policy
	n := c.Asked()
	charge = charge && c.Units > 0
	// What never fits waits for nothing, so its reading is not computed.
	if state == nil || n > p.capacity {
		return c.takeFresh(n)
	}
	// The arithmetic fills in the cell, so that no Reading is copied.
	switch p.algorithm {
	case Level:
		if p.calendar != nil {
			return p.takeCalendar((*[2]int64)(state), now, n, charge, c)
		}
		return p.takeLevel((*[2]int64)(state), now, n, charge, c)
	case Window:
		return p.takeWindow(state, now, n, charge, c)
	case Log:
		return p.takeLog(state, now, n, charge, c)
	default:
		panic(Missing(p.algorithm))
	}
}

// takeFresh is Take of a key without a state, or of what never fits.
func (c *Cell) takeFresh(n int64) bool {
	c.Shortfall = 0
	c.Reading = Reading{Remaining: c.Policy.capacity}
	if n <= c.Policy.capacity {
		return true
	}
	c.Shortfall = 1
	c.RetryAfter = Never
	return false
}

// CountRefused counts the units after Take, as far as they matter, if refused attempts count.
func (c *Cell) CountRefused(state []int64, now int64, mode Mode) {
	p := c.Policy
	if !p.CountDenied || c.Units == 0 || p.Constant() {
		return
	}
	// The answer says what is left after the attempt, also to a peek, which must not change the state.
	if state == nil {
		state = c.Room(p.New(), now, true)
	} else if mode == Peek {
		state = c.Room(slices.Clone(state), now, true)
	}
	switch p.algorithm {
	case Level:
		p.denyLevel((*[2]int64)(state), now, c.Units)
	case Window:
		p.denyWindow(state, now, c.Units)
	case Log:
		p.expire(state, now) // Take has not looked if the units never fit
		p.push(state, now, c.Units)
	default:
		panic(Missing(p.algorithm))
	}
	// Whether the units fitted is what the first Take has said.
	shortfall := c.Shortfall
	c.Take(state, now, false)
	c.Shortfall = shortfall
}

// Changes reports whether an answer may change the state.
func (c *Cell) Changes(mode Mode, others bool) bool {
	return c.Units > 0 && (mode == Allow && (others || c.Policy.CountDenied) || mode == Settle) && !c.Policy.Constant()
}

// Settle corrects a charge, and reads what is left. What was used beyond it counts, whether it fits or not: a bucket
// counts no more than its Debt, and a log has no more than the newest instants. It never gives back more than was
// counted.
func (c *Cell) Settle(state []int64, now int64) {
	p := c.Policy
	n := c.Units
	// A call that is not the last is not given back. This comes first: Take changes the state if the clock has gone
	// back.
	corrects := state != nil
	if corrects && n <= 0 && p.countsCalls {
		corrects = p.isLastCall((*[2]int64)(state), now, c.Instant)
	}
	// A report is about what had room before it.
	c.Units = 0
	c.Take(state, now, false)
	shortfall := max(n-c.Remaining, 0)
	if corrects {
		p.settle(state, now, c.Instant, n)
	}
	// The reading is about one unit more.
	c.Units = 1
	c.Take(state, now, false)
	c.Units = n
	c.Shortfall = shortfall
}

// settle counts n more units than were charged at an instant, or gives back -n of them.
func (p *Policy) settle(state []int64, now, chargedAt, n int64) {
	switch p.algorithm {
	case Level:
		p.settleLevel((*[2]int64)(state), now, chargedAt, n)
	case Window:
		p.settleWindow(state, chargedAt, n)
	case Log:
		p.settleLog(state, now, chargedAt, n)
	default:
		panic(Missing(p.algorithm))
	}
}

// saturate adds n to count, but not beyond most. A count that is already beyond stays.
func saturate(count, n, most int64) int64 {
	return max(count, min(count+min(n, most), most))
}
