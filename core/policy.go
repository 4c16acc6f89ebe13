package core

import (
	"fmt"
	"time"

	"github.com/headgate/headgate/core/step"
)

// A Rate is a number of events per period. Any positive number of events in any
// positive whole number of microseconds up to 142 years will do; a policy may
// narrow that. The zero Rate is not valid: to refuse everything, use [Blocked].
type Rate struct {
	Events int64
	Per    time.Duration
}

// PerSecond is n events a second.
func PerSecond(n int64) Rate { return Rate{n, time.Second} }

// PerMinute is n events a minute.
func PerMinute(n int64) Rate { return Rate{n, time.Minute} }

// PerHour is n events an hour.
func PerHour(n int64) Rate { return Rate{n, time.Hour} }

// PerDay is n events in 24 hours.
func PerDay(n int64) Rate { return Rate{n, 24 * time.Hour} }

// Every is one event per d.
func Every(d time.Duration) Rate { return Rate{1, d} }

// NoLimit is the Limit and Remaining of [Unlimited]: 2^53 - 1.
const NoLimit = step.MaxInt

// DefaultResolution is the number of sub-windows of a [SlidingWindow] whose
// Resolution was not set.
const DefaultResolution = 10

// A Policy is an algorithm with its numbers and a name. Make one with TokenBucket,
// FixedWindow, SlidingWindow, SlidingLog, MinInterval, Unlimited or Blocked; the
// zero Policy is not valid. Policies are values: the methods return a changed copy.
// What is wrong with one is reported by [New].
type Policy struct {
	name    string
	numbers step.Numbers
	coarse  bool // the period was not a whole number of microseconds
}

func policy(a step.Algorithm, r Rate) Policy {
	p := Policy{numbers: step.Numbers{Algorithm: a, Limit: r.Events, Period: r.Per.Microseconds()}}
	if r.Per%time.Microsecond != 0 {
		p.coarse = true
		p.numbers.Period++ // one fault is enough: it is not also zero
	}
	return p
}

// TokenBucket admits bursts of up to burst units, which refill one by one at the
// given rate. Over any span t it admits at most burst + rate*t, and in the long
// run exactly the rate. The rate is at most one million a second. It is the
// generic cell rate algorithm (ITU-T I.371).
func TokenBucket(rate Rate, burst int64) Policy {
	p := policy(step.TokenBucket, rate)
	p.numbers.Burst = burst
	return p
}

// FixedWindow admits the rate's events in each window of the clock, aligned to
// 1970-01-01 UTC: a window of an hour begins on the hour. It is the cheapest, and
// admits up to twice the events within one period that straddles a boundary.
func FixedWindow(rate Rate) Policy { return policy(step.FixedWindow, rate) }

// SlidingWindow estimates how many events fall into the period that ends now from
// the counts of sub-windows, of which the oldest, partly outside, counts by the
// part of it that is inside. With Resolution(1) that is the two-counter estimate,
// current + previous * overlap. Its memory is 8 bytes for each sub-window.
func SlidingWindow(rate Rate) Policy {
	p := policy(step.SlidingWindow, rate)
	p.numbers.Resolution = DefaultResolution
	return p
}

// SlidingLog admits at most the rate's events in any period whatever, to the
// microsecond. A window includes its first instant and not its last: an event
// exactly one period after another is outside. It remembers an instant for each
// unit that counts, in 8 bytes; a rate of more than 2^20 events is not accepted.
func SlidingLog(rate Rate) Policy { return policy(step.SlidingLog, rate) }

// MinInterval admits calls that are at least d apart, whatever they cost: it
// counts calls, not units.
func MinInterval(d time.Duration) Policy { return policy(step.MinInterval, Rate{1, d}) }

// Unlimited admits everything and never asks the store. It stands alone: a
// limiter that has it has no other policy.
func Unlimited() Policy { return Policy{numbers: step.Numbers{Algorithm: step.Unlimited}} }

// Blocked refuses everything, with RetryAfter [Never], and never asks the store.
// It stands alone: a limiter that has it has no other policy.
func Blocked() Policy { return Policy{numbers: step.Numbers{Algorithm: step.Blocked}} }

// Named gives the policy the name that clients see and that its state is kept
// under: 1 to 64 printable ASCII characters. A limiter's sole policy without a
// name takes the limiter's.
func (p Policy) Named(name string) Policy {
	p.name = name
	return p
}

// Resolution splits the window of a SlidingWindow into k sub-windows, 1 to 1000:
// more are more exact and take more memory. A period that k does not divide is
// rounded up to the next that it does, by less than k microseconds.
func (p Policy) Resolution(k int) Policy {
	p.numbers.Resolution = int64(k)
	if k == 0 && p.numbers.Algorithm != step.SlidingWindow {
		p.numbers.Resolution = -1 // a fault: 0 would mean that it was not set
	}
	return p
}

// NeverOver makes a SlidingWindow count its oldest sub-window in full, so that no
// period whatever holds more than the rate's events. The price is that a steady
// stream gets about k/(k+1) of them, k being the Resolution.
func (p Policy) NeverOver() Policy {
	p.numbers.NeverOver = true
	return p
}

// CountDenied makes refused attempts count as well, so that whoever keeps trying
// is kept out. It is for FixedWindow, SlidingWindow and SlidingLog. A refused
// attempt counts on every policy of the question that says so, whichever of them
// refused.
func (p Policy) CountDenied() Policy {
	p.numbers.CountDenied = true
	return p
}

// Share returns the policy with an n-th of its events, or of its burst and rate,
// rounded up: what each of n servers may admit by itself so that together they
// admit about as much. For MinInterval the distance is n times as long.
func (p Policy) Share(n int64) Policy {
	m := &p.numbers
	switch m.Algorithm {
	case step.TokenBucket:
		m.Burst = ceilDiv(m.Burst, n)
		m.Period *= n
	case step.MinInterval:
		m.Period *= n
	default:
		m.Limit = ceilDiv(m.Limit, n)
	}
	return p
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// Name returns the policy's name.
func (p Policy) Name() string { return p.name }

// Limit returns the most units that can be admitted at once: the burst of a token
// bucket, the events of a window, 1 for MinInterval, [NoLimit] or 0.
func (p Policy) Limit() int64 { return limit(&p.numbers) }

func limit(m *step.Numbers) int64 {
	switch m.Algorithm {
	case step.TokenBucket:
		return m.Burst
	case step.Unlimited:
		return NoLimit
	default:
		return m.Limit
	}
}

// Window returns the time over which Limit units are admitted: the rate's period,
// or the time in which an empty token bucket fills, rounded up to a microsecond.
// It is 0 for Unlimited and Blocked.
func (p Policy) Window() time.Duration {
	m := p.numbers
	if m.Algorithm == step.TokenBucket && m.Limit > 0 {
		// A bucket that nobody has used needs this long after its burst.
		if s, err := step.New(m); err == nil {
			state := s.Charge(make([]int64, s.Words()), 0, m.Burst)
			return span(s.FreshAt(state))
		}
	}
	return span(m.Period)
}

// String describes the policy for people.
func (p Policy) String() string {
	m := p.numbers
	rate := fmt.Sprintf("%d per %v", m.Limit, span(m.Period))
	var s string
	switch m.Algorithm {
	case step.TokenBucket:
		s = fmt.Sprintf("token bucket: %s, burst %d", rate, m.Burst)
	case step.FixedWindow:
		s = "fixed window: " + rate
	case step.SlidingWindow:
		s = fmt.Sprintf("sliding window: %s, resolution %d", rate, m.Resolution)
	case step.SlidingLog:
		s = "sliding log: " + rate
	case step.MinInterval:
		s = fmt.Sprintf("%v apart", span(m.Period))
	default:
		s = m.Algorithm.String()
	}
	if m.NeverOver {
		s += ", never over"
	}
	if m.CountDenied {
		s += ", denied counted"
	}
	if p.name != "" {
		s = fmt.Sprintf("%q: %s", p.name, s)
	}
	return s
}

// span turns microseconds of package step into a duration.
func span(us int64) time.Duration {
	if us == step.Never {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}
