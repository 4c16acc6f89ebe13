// Package step holds the arithmetic of headgate's policies: what each of them
// remembers about a key, whether a charge fits, and what is left. It is for
// authors of stores; users of limits want package core.
//
// A [Step] has no clock, no lock and no I/O. A store keeps the state, tells the
// time, and applies a question in three moves, so that several policies are
// charged together or not at all:
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
// the same. No float takes part.
//
// # Time that runs backwards
//
// A step reckons from the newest instant that its state holds when that is later
// than now. A clock that is set back therefore refuses longer, by at most the
// distance, and admits nothing extra. Waits are counted from now as it was given.
//
// # State
//
// A state is a slice of words. Nil and all zero words are the state of a key
// that was never charged. Its layout belongs to its [Algorithm]: states of
// different algorithms never mix.
package step

import "math"

const (
	// MaxInt is the largest integer that every twin holds exactly: 2^53 - 1.
	MaxInt = 1<<53 - 1

	// MaxSpan is the longest period, and the longest time in which a token
	// bucket may fill: 2^52 microseconds, about 142 years.
	MaxSpan = 1 << 52

	// Never is the RetryAfter that no waiting satisfies.
	Never = math.MaxInt64

	// MaxResolution is the largest number of sub-windows of a sliding window.
	MaxResolution = 1000

	// MaxLog is the largest limit of a sliding log, which remembers an instant
	// for each unit.
	MaxLog = 1 << 20
)

// An Algorithm names a way to count, together with the layout of its state.
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

// Numbers say everything about a policy but its name. They are comparable: equal
// numbers make equal steps.
type Numbers struct {
	Algorithm   Algorithm
	Limit       int64 // events per Period
	Period      int64 // in microseconds; the distance of MinInterval
	Burst       int64 // units a full token bucket holds
	Resolution  int64 // sub-windows of a sliding window
	NeverOver   bool  // sliding window: the oldest sub-window counts in full
	CountDenied bool  // windows and log: refused attempts count too
}

// A Reading is what one policy says after a question was answered. Spans are in
// microseconds, rounded up, counted from the instant that the store gave.
type Reading struct {
	Remaining  int64 // units that would be admitted now
	NextAfter  int64 // until one more unit than Remaining; 0 when nothing is used
	ResetAfter int64 // until nothing is used any more
	RetryAfter int64 // until the units asked for fit; 0 when they fit, or Never
}

// alike reports whether a state of one algorithm means the same under both numbers:
// at most, they differ in what a state is held against.
func (m Numbers) alike(o Numbers) bool {
	return m.Period == o.Period && m.Resolution == o.Resolution && (m.Algorithm != TokenBucket || m.Limit == o.Limit)
}

// A Step is the arithmetic of one policy. Its methods are pure but for the state
// that they are given, and safe for concurrent use on different states.
//
// Admits and Read take nil for the state of a key that was never charged. The
// states handed to the other methods, and any that is not nil, are at least Words
// long.
type Step interface {
	// Numbers returns what the step was made of.
	Numbers() Numbers

	// Max is the largest charge that can ever be admitted.
	Max() int64

	// Words is the length of the state of a key that is charged for the first
	// time. Charge may return a longer one.
	Words() int

	// MaxWords is the length of the longest state.
	MaxWords() int

	// Admits reports whether n units, n > 0, fit at now. It writes nothing.
	Admits(s []int64, now, n int64) bool

	// Charge adds n units that Admits admitted and returns the state, which is s
	// or a longer copy.
	Charge(s []int64, now, n int64) []int64

	// Refuse counts n units that were refused, if the numbers say CountDenied,
	// and returns the state. Otherwise it must not be called.
	Refuse(s []int64, now, n int64) []int64

	// Read tells what is left, and when n units fit. With n = 0 RetryAfter is 0.
	Read(s []int64, now, n int64) Reading

	// GiveBack returns n of the units that were charged at the instant at, as far
	// as they still count. It writes s in place and never creates capacity that
	// the charge had not taken.
	GiveBack(s []int64, now, at, n int64)

	// Adopt turns a state kept under other numbers of the same algorithm into
	// one of this step, keeping the usage, rounded up. It may write s, and
	// reports whether what it returns depends on now. Then a store keeps it even
	// if the question is refused, or the waits that it was told would begin anew
	// with the next question; if the question is a peek, it does not.
	Adopt(s []int64, now int64, from Numbers) (state []int64, dated bool)

	// Constants are the numbers that the Lua twin computes with, in its order.
	Constants() []int64

	// FreshAt is the instant from which s decides as a nil state would.
	FreshAt(s []int64) int64
}

// Settle corrects a charge of n units that p made at the instant at to the actual
// number. Less than n gives back; more charges the rest, up to full and never
// beyond. It returns the state, whether that has to be stored, and the units that
// found no room.
//
// The state s is one of p, kept until now under the numbers from. If a state does
// not mean the same under those, nothing is given back: it does not tell how much
// of the charge they have left in it, and too much would be what others have used.
func Settle(p Step, s []int64, from Numbers, now, at, n, actual int64) (state []int64, changed bool, uncovered int64) {
	m := p.Numbers()
	if m.Algorithm == MinInterval && actual > 0 {
		return s, false, 0 // it counts calls, and the call took place
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
