// Package step implements the arithmetic of headgate's policies: the state of each for a key, whether
// a charge fits, and how much is left. It is for authors of stores; users of limits want package core.
//
// A [Step] has no clock, no lock and no I/O. A store keeps the state, has the clock, and
// finds the cells of a question: of each, its policy and the states of the key. [Decide] makes
// the decision, all or nothing, and the store saves the cells that have changed.
//
// # Units
//
// An instant is a count of microseconds since 1970-01-01 UTC, on the store's
// clock. A span is a count of microseconds. Everything is an integer of at most
// [MaxInt], so that a twin written in Lua, whose numbers are doubles, computes
// the same. There is no floating-point arithmetic.
//
// # Time that runs backwards
//
// If the newest instant in a state is later than now, a step uses that instant instead.
// So if the clock is set back, calls are refused longer, by at most that distance, and
// nothing extra is admitted. Waits are counted from the now that was given.
//
// A clock that went ahead for a moment leaves states that are ahead of it when it is right
// again, possibly by years. Decide brings them back.
//
// # State
//
// A state is a slice of words. Nil and all zero words are the state of a key that was
// never charged. The layout depends on the [Algorithm]: a state is never used with
// another one.
package step

import (
	"errors"
	"math"

	"github.com/headgate/headgate/internal/old/core/internal/whole"
)

const (
	// MaxInt is the largest integer that every twin holds exactly: 2^53 - 1.
	MaxInt = 1<<53 - 1

	// MaxSpan is the longest period, and the longest time in which a token
	// bucket may fill: 2^52 microseconds, about 142 years.
	MaxSpan = 1 << 52

	// Never is the RetryAfter of units that will never fit.
	Never = math.MaxInt64

	// MaxResolution is the largest number of sub-windows of a sliding window.
	MaxResolution = 1000

	// MaxLog is the largest limit of a sliding log, which stores an instant for each
	// unit.
	MaxLog = 1 << 20
)

// An Algorithm is a way to count, together with the layout of its state.
type Algorithm uint8

// The algorithms. Records in Redis contain these numbers: none is used for another algorithm. When
// the layout of a SlidingLog changes, its String gets a new number. When another layout changes,
// the records of redisstore get a new number.
const (
	TokenBucket Algorithm = iota + 1
	FixedWindow
	SlidingWindow
	SlidingLog
	MinInterval
	Unlimited
	Blocked
)

// String returns a short name. The name of SlidingLog is part of the names of its values in Redis.
// The others share a value, whose name has the number of the layout of its records.
func (a Algorithm) String() string {
	switch a {
	case TokenBucket:
		return "tb2"
	case FixedWindow:
		return "fw2"
	case SlidingWindow:
		return "sw2"
	case SlidingLog:
		return "sl5"
	case MinInterval:
		return "mi2"
	case Unlimited:
		return "unlimited"
	case Blocked:
		return "blocked"
	}
	return "unknown"
}

// Numbers are the parameters of a policy. They are comparable: steps with equal numbers
// decide alike.
type Numbers struct {
	Algorithm   Algorithm
	Limit       int64 // events per Period
	Period      int64 // in microseconds; the distance of MinInterval
	Burst       int64 // units in a full token bucket
	Debt        int64 // units beyond the Burst that a token bucket counts at most
	Resolution  int64 // sub-windows of a sliding window
	NeverOver   bool  // sliding window: the oldest sub-window counts in full
	CountDenied bool  // windows and log: refused attempts count as well
	FromFirst   bool  // fixed window: windows begin with the first unit of a key, not by the clock

	// Lease is for how long, at most, units of a token bucket may be spent after they were charged,
	// in microseconds. Burst does not include the units that refill in that time.
	Lease int64
}

// Refill returns the units that refill in a Lease, rounded up. A bucket admits at most the Burst
// and these units at once, whenever they are spent.
func (m Numbers) Refill() int64 {
	if m.Lease <= 0 || m.Limit <= 0 || m.Period <= 0 {
		return 0
	}
	return min(whole.MulDivUp(m.Limit, m.Lease, m.Period), MaxInt)
}

// DefaultDebt returns the Debt of a token bucket that does not set it. It is as many units as a
// full bucket has, with the units of its Lease. It is fewer if more cannot be counted exactly.
func (m Numbers) DefaultDebt() int64 {
	if m.Algorithm != TokenBucket || m.Limit <= 0 || m.Period <= 0 || m.Burst <= 0 {
		return 0
	}
	return max(min(m.Burst+m.Refill(), m.mostUnits()-m.Burst), 0)
}

// Share returns the parameters for one of n servers that do not share a store, so that together
// they admit about as much as m. They have 1/n of the events, or of the burst, the debt and the
// rate, rounded up. The distance of MinInterval becomes n times as long. n is at least 1.
func (m Numbers) Share(n int64) (Numbers, error) {
	usual := m.Debt == m.DefaultDebt()
	switch m.Algorithm {
	case TokenBucket, MinInterval:
		m.Burst, m.Debt = whole.CeilDiv(m.Burst, n), whole.CeilDiv(m.Debt, n)
		if m.Period > MaxSpan/n {
			return m, errors.New("makes the period longer than 142 years")
		}
		if m.Period > 0 { // or New reports it
			m.Period *= n
		}
	default:
		m.Limit = whole.CeilDiv(m.Limit, n)
	}
	if usual {
		m.Debt = m.DefaultDebt()
	}
	return m, nil
}

// A Reading says how much is left in one policy after a decision. Spans are in microseconds,
// rounded up, from the instant of the decision.
type Reading struct {
	Remaining  int64 // units that would be admitted now
	NextAfter  int64 // until one more unit than Remaining is left; 0 if none is used
	ResetAfter int64 // until no unit is used
	RetryAfter int64 // until the requested units fit; 0 if they fit, or Never
}

// A Step is the arithmetic of one policy. Its methods change nothing but the state that
// is passed to them, and are safe for concurrent use on different states.
//
// Admits and Read accept nil as the state of a key that was never charged. The states
// passed to the other methods, and any that is not nil, are at least Words long.
type Step interface {
	// Numbers returns the parameters.
	Numbers() Numbers

	// CountsDenied returns whether refused attempts count: CountDenied of the parameters.
	CountsDenied() bool

	// Max returns the largest charge that can ever be admitted.
	Max() int64

	// Words returns the length of the state of a key that is charged for the first time.
	// Charge may return a longer one.
	Words() int

	// MaxWords returns the length of the longest state.
	MaxWords() int

	// Admits reports whether n units fit at now. With n = 0, it reports whether at most the limit
	// is used. A window or a bucket may be above it after a Report. It writes nothing.
	Admits(s []int64, now, n int64) bool

	// Charge adds n units that Admits admitted. It returns the state, which is s or a
	// longer copy.
	Charge(s []int64, now, n int64) []int64

	// Refuse counts n units that were refused, and returns the state. It must be called
	// only if CountDenied is set.
	Refuse(s []int64, now, n int64) []int64

	// Report counts n units that have been used, n > 0, whether they fit or not, and returns the
	// state. A token bucket counts them up to its Debt, a window up to MaxInt. A log has the
	// instants of so many of the newest as most, which is at least the limit.
	Report(s []int64, now, n, most int64) []int64

	// Read returns how much is left, and when n units fit.
	Read(s []int64, now, n int64) Reading

	// GiveBack gives back n of the units that were charged at the instant at, as far as they still
	// count. It modifies s in place, and never frees more than the charge took. If now is earlier
	// than the now of another call, a token bucket may free units that had been refilled. Its state
	// does not show how much earlier.
	GiveBack(s []int64, now, at, n int64)

	// Adopt returns a new state, with the usage that a state of other parameters of the same
	// algorithm shows. It dates the usage as late as possible, and rounds up.
	Adopt(s []int64, now int64, from Numbers) []int64

	// Count counts n units that were admitted under other parameters, whatever the limit, and
	// returns the state. The state of the others is fresh at the instant until. So a token bucket
	// need only become empty, or be in debt until then.
	Count(s []int64, now, n, until int64) []int64

	// Redate returns the state of full use as of now, if s is ahead of now by more than
	// Window, or else nil: see redate. A bucket may be in debt for its Reach, and for the
	// longest of the states beside it.
	Redate(s []int64, now, longest int64) []int64

	// Window returns the time for which a unit counts, or in which an empty token bucket
	// fills, in microseconds.
	Window() int64

	// Reach returns the longest time for which a state may count. It is the Window, or the time in
	// which a token bucket fills from the whole of its Debt.
	Reach() int64

	// Constants returns the parameters of the Lua twin, in its order.
	Constants() []int64

	// FreshAt returns the instant from which s decides as a nil state would.
	FreshAt(s []int64) int64
}

// room returns the largest charge that p admits at now, or 0: Admits is true up to it, and
// false beyond. It is what Remaining says, except that MinInterval, which counts calls,
// admits a call of any number of units.
func room(p Step, s []int64, now int64) int64 {
	left := p.Read(s, now, 0).Remaining
	if left > 0 && p.Numbers().Algorithm == MinInterval {
		return p.Max()
	}
	return left
}

// Asked returns how many units have to fit for a charge of n. A charge of 0 is a check. It asks
// whether a window or a bucket is above its limit, or whether a log or an interval admits one more.
func Asked(p Step, n int64) int64 {
	if n > 0 {
		return n
	}
	switch p.Numbers().Algorithm {
	case SlidingLog, MinInterval:
		return 1
	}
	return n
}

// uncovered returns for how many of n units p has no room.
func uncovered(p Step, s []int64, now, n int64) int64 { return max(n-room(p, s, now), 0) }

// settle corrects a charge of n units, which p made at the instant at, to the actual
// number. If that is less than n, units are given back; if it is more, the rest is
// reported: see Report. It returns the state, whether it has changed, and for how many units
// there was no room.
func settle(p Step, s []int64, now, at, n, actual, most int64) (state []int64, changed bool, without int64) {
	if p.Numbers().Algorithm == MinInterval && actual > 0 {
		return s, false, 0 // it counts calls, and the call happened
	}
	if actual <= n {
		if actual == n || len(s) == 0 {
			return s, false, 0
		}
		p.GiveBack(s, now, at, n-actual)
		return s, true, 0
	}
	without = uncovered(p, s, now, actual-n)
	if len(s) == 0 {
		s = make([]int64, p.Words())
	}
	return p.Report(s, now, actual-n, most), true, without
}
