// Package step implements the arithmetic of headgate's policies: the state that each
// has for a key, whether a charge fits, and what is left. It is for authors of stores;
// users of limits want package core.
//
// A [Step] has no clock, no lock and no I/O. A store keeps the state, has the clock, and
// makes a decision in three passes, so that several policies are charged together or not
// at all:
//
//	admitted := true
//	for each policy: admitted = admitted && s.Admits(state, now, n) // writes nothing
//	if admitted, for each policy: state = s.Charge(state, now, n)
//	otherwise, for each that counts refusals: state = s.Refuse(state, now, n)
//	           for each whose Adopt says so:  the adopted state is kept
//	for each policy: reading = s.Read(state, now, n)
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
// # State
//
// A state is a slice of words. Nil and all zero words are the state of a key that was
// never charged. The layout depends on the [Algorithm]: a state is never used with
// another one.
package step

import "math"

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

// The algorithms. A layout that changes gets a new number.
const (
	TokenBucket Algorithm = iota + 1
	FixedWindow
	SlidingWindow
	SlidingLog
	MinInterval
	Unlimited
	Blocked
)

// String returns the name that is part of every stored identity.
func (a Algorithm) String() string {
	switch a {
	case TokenBucket:
		return "tb1"
	case FixedWindow:
		return "fw1"
	case SlidingWindow:
		return "sw1"
	case SlidingLog:
		return "sl1"
	case MinInterval:
		return "mi1"
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
	Resolution  int64 // sub-windows of a sliding window
	NeverOver   bool  // sliding window: the oldest sub-window counts in full
	CountDenied bool  // windows and log: refused attempts count as well
}

// A Reading is what is left in one policy after a decision. Spans are in microseconds,
// rounded up, from the instant of the decision.
type Reading struct {
	Remaining  int64 // units that would be admitted now
	NextAfter  int64 // until one more unit than Remaining is left; 0 if none is used
	ResetAfter int64 // until no unit is used
	RetryAfter int64 // until the requested units fit; 0 if they fit, or Never
}

// alike reports whether a state means the same with both parameters, of one algorithm:
// they may differ only in what the state is compared with.
func (m Numbers) alike(o Numbers) bool {
	return m.Period == o.Period && m.Resolution == o.Resolution && (m.Algorithm != TokenBucket || m.Limit == o.Limit)
}

// A Step is the arithmetic of one policy. Its methods change nothing but the state that
// is passed to them, and are safe for concurrent use on different states.
//
// Admits and Read accept nil as the state of a key that was never charged. The states
// passed to the other methods, and any that is not nil, are at least Words long.
type Step interface {
	// Numbers returns the parameters.
	Numbers() Numbers

	// Max returns the largest charge that can ever be admitted.
	Max() int64

	// Words returns the length of the state of a key that is charged for the first time.
	// Charge may return a longer one.
	Words() int

	// MaxWords returns the length of the longest state.
	MaxWords() int

	// Admits reports whether n units, n > 0, fit at now. It writes nothing.
	Admits(s []int64, now, n int64) bool

	// Charge adds n units that Admits admitted. It returns the state, which is s or a
	// longer copy.
	Charge(s []int64, now, n int64) []int64

	// Refuse counts n units that were refused, and returns the state. It must be called
	// only if CountDenied is set.
	Refuse(s []int64, now, n int64) []int64

	// Read returns what is left, and when n units fit. With n = 0, RetryAfter is 0.
	Read(s []int64, now, n int64) Reading

	// GiveBack gives back n of the units that were charged at the instant at, as far as
	// they still count. It modifies s in place, and never frees more than the charge
	// took. If now is earlier than another call's, a token bucket may free units that had
	// been refilled, since its state does not show how much earlier.
	GiveBack(s []int64, now, at, n int64)

	// Adopt converts a state that was stored with other parameters of the same algorithm,
	// and preserves the usage, rounded up. It may modify s. It reports whether the result
	// depends on now. If so, the store must keep it even if the call is refused, since
	// otherwise each call would begin the wait anew; it does not keep it for a peek.
	Adopt(s []int64, now int64, from Numbers) (state []int64, dated bool)

	// Constants returns the parameters of the Lua twin, in its order.
	Constants() []int64

	// FreshAt returns the instant from which s decides as a nil state would.
	FreshAt(s []int64) int64
}

// Settle corrects a charge of n units, which p made at the instant at, to the actual
// number. If that is less than n, units are given back; if it is more, the rest is
// charged as far as it fits. Settle returns the state, whether that must be stored, and
// the number of units that did not fit.
//
// The state s is one of p, but was stored until now with the parameters from. If a state
// with those does not mean the same, nothing is given back: it does not show how much of
// the charge is still in it, and giving back too much would free what others have used.
func Settle(p Step, s []int64, from Numbers, now, at, n, actual int64) (state []int64, changed bool, uncovered int64) {
	m := p.Numbers()
	if m.Algorithm == MinInterval && actual > 0 {
		return s, false, 0 // it counts calls, and the call happened
	}
	if actual <= n {
		if actual == n || len(s) == 0 || !m.alike(from) {
			return s, false, 0
		}
		p.GiveBack(s, now, at, n-actual)
		return s, true, 0
	}
	more := min(actual-n, p.Read(s, now, 0).Remaining)
	uncovered = actual - n - more
	if more == 0 {
		return s, false, uncovered
	}
	if len(s) == 0 {
		s = make([]int64, p.Words())
	}
	return p.Charge(s, now, more), true, uncovered
}
