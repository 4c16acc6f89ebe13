package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/headgate/headgate/internal/old/core/internal/whole"
	"github.com/headgate/headgate/internal/old/core/step"
)

// A Rate is a number of events per period. Events must be positive, and Per a positive
// whole number of microseconds of at most 142 years; a policy may narrow that. The zero
// Rate is not valid: to refuse everything, use [Blocked].
type Rate struct {
	Events int64
	Per    time.Duration
}

// PerSecond returns a rate of n events per second.
func PerSecond(n int64) Rate { return Rate{n, time.Second} }

// PerMinute returns a rate of n events per minute.
func PerMinute(n int64) Rate { return Rate{n, time.Minute} }

// PerHour returns a rate of n events per hour.
func PerHour(n int64) Rate { return Rate{n, time.Hour} }

// PerDay returns a rate of n events per 24 hours.
func PerDay(n int64) Rate { return Rate{n, 24 * time.Hour} }

// Every returns a rate of one event per d.
func Every(d time.Duration) Rate { return Rate{1, d} }

// NoLimit is the Limit and Remaining of [Unlimited]: 2^53 - 1.
const NoLimit = step.MaxInt

// DefaultResolution is the number of sub-windows of a [SlidingWindow] unless
// [Policy.Resolution] sets it.
const DefaultResolution = 10

// A Policy is an algorithm with its parameters and a name. Make one with TokenBucket,
// FixedWindow, SlidingWindow, SlidingLog, MinInterval, Unlimited or Blocked; the zero
// Policy is not valid. Policies are comparable values, and their methods return a
// modified copy. Whatever is wrong with a policy is reported by [New]. A policy can also be
// read from a text: see [Policy.UnmarshalText].
type Policy struct {
	name    string
	numbers step.Numbers
	fault   string // the first that the numbers cannot show; New reports it
}

func policy(a step.Algorithm, r Rate) Policy {
	p := Policy{numbers: step.Numbers{Algorithm: a, Limit: r.Events, Period: r.Per.Microseconds()}}
	if rest := r.Per % time.Microsecond; rest != 0 {
		p.fault = "a period must be a whole number of microseconds"
		if rest > 0 {
			p.numbers.Period++ // round up: a positive period is not also zero
		}
	}
	return p
}

// faulty returns the policy with a fault, unless it has one already.
func (p Policy) faulty(format string, args ...any) Policy {
	if p.fault == "" {
		p.fault = fmt.Sprintf(format, args...)
	}
	return p
}

// TokenBucket admits bursts of up to burst units, which refill one by one at the
// given rate. Over any span t it admits at most burst + rate*t units, and in the long
// run exactly the rate. The rate must be at most one million per second. It is the
// generic cell rate algorithm (ITU-T I.371).
func TokenBucket(rate Rate, burst int64) Policy {
	p := policy(step.TokenBucket, rate)
	p.numbers.Burst = burst
	p.numbers.Debt = p.numbers.DefaultDebt()
	return p
}

// FixedWindow admits the rate's events in each window of the clock. Windows are aligned to
// 1970-01-01 UTC: a window of an hour begins on the hour. The windows of [Policy.FromFirst] begin
// otherwise. It is the cheapest policy, and admits up to twice the events within a period that
// straddles a boundary.
func FixedWindow(rate Rate) Policy { return policy(step.FixedWindow, rate) }

// SlidingWindow estimates how many events fall into the period that ends now from
// the counts of sub-windows. The oldest of them, which is partly outside the period,
// is weighted by the part that is inside. With Resolution(1) this is the two-counter
// estimate, current + previous * overlap.
//
// It knows of no event more than the sub-window, and counts all of one as late as they can have
// been. So a wait may be longer than the period, by up to a sub-window: under
// SlidingWindow(PerDay(n)) clients may see w=86400 and t=91701.
func SlidingWindow(rate Rate) Policy {
	p := policy(step.SlidingWindow, rate)
	p.numbers.Resolution = DefaultResolution
	return p
}

// SlidingLog admits at most the rate's events in any period whatever, to the microsecond. A window
// includes its first instant and not its last: of two events exactly one period apart, only one is
// inside. The instant of each unit that counts is stored, in 8 bytes. So the rate must be at most
// 2^20 events, and in Redis 2^14. Package memstore describes how the room for them grows.
func SlidingLog(rate Rate) Policy { return policy(step.SlidingLog, rate) }

// MinInterval admits calls that are at least d apart. It counts calls, whatever number
// of units they charge.
func MinInterval(d time.Duration) Policy { return policy(step.MinInterval, Rate{1, d}) }

// Unlimited admits everything without calling the store. It must be the only policy of
// its limiter.
func Unlimited() Policy { return Policy{numbers: step.Numbers{Algorithm: step.Unlimited}} }

// Blocked refuses everything, with RetryAfter [Never], without calling the store. It
// must be the only policy of its limiter.
func Blocked() Policy { return Policy{numbers: step.Numbers{Algorithm: step.Blocked}} }

// Named sets the policy's name, 1 to 64 printable ASCII characters. Clients see it, and
// the state is stored under it. The only policy of a limiter takes the limiter's name
// unless it is Named.
func (p Policy) Named(name string) Policy {
	p.name = name
	return p
}

// Resolution splits the window of a SlidingWindow into k sub-windows, 1 to 1000. More
// sub-windows are more exact and take more memory. A period that is not a multiple of k
// microseconds is rounded up to the next multiple.
func (p Policy) Resolution(k int) Policy {
	if p.numbers.Algorithm != step.SlidingWindow {
		return p.faulty("Resolution is for SlidingWindow")
	}
	p.numbers.Resolution = int64(k)
	return p
}

// NeverOver makes a SlidingWindow count its oldest sub-window in full, so that no
// period whatever holds more than the rate's events. In return, a steady stream is
// admitted at only about k/(k+1) of the rate, where k is the Resolution.
func (p Policy) NeverOver() Policy {
	p.numbers.NeverOver = true
	return p
}

// FromFirst makes each window of a FixedWindow begin with the first request of a key after the
// window before, instead of by the clock. GitHub's API does so, too. Then the windows of all keys
// do not end at once. A refused request begins a window only if it counts: see
// [Policy.CountDenied]. If all units of a window are refunded, the next request begins another.
//
// With a long period these are credits that do not refill. With a rate of 1000 in ten years, a key
// has 1000 units from its first request on. A refund gives units back, and [Limiter.Reset] grants
// all of them anew. To remember a key for ever would take memory for ever, so a store remembers it
// for the period. A store may lose states earlier, and is not a ledger: paid credits belong in a
// database.
func (p Policy) FromFirst() Policy {
	p.numbers.FromFirst = true
	return p
}

// CountDenied makes refused attempts count as well, so that a client that keeps trying
// stays refused. It is for FixedWindow, SlidingWindow and SlidingLog. An attempt that
// any policy refuses counts on each policy of the call that has CountDenied. A number of units
// that a policy can never admit is refused without the store, and counts nothing.
func (p Policy) CountDenied() Policy {
	p.numbers.CountDenied = true
	return p
}

// Debt sets by how many units a TokenBucket may be in debt, at least 0. Units that are used beyond
// the burst go into debt: see [Limiter.Report] and [Decision.Settle]. Until the debt is repaid at
// the rate, nothing is admitted. Units beyond the largest debt are not counted. By default it is
// the burst, or the largest smaller number that can be counted exactly.
func (p Policy) Debt(units int64) Policy {
	if p.numbers.Algorithm != step.TokenBucket {
		return p.faulty("Debt is for TokenBucket: the count of a window goes above its limit")
	}
	p.numbers.Debt = units
	return p
}

// Leasable makes a TokenBucket one that package lease leases. Whoever charged units may spend them
// for up to d after the charge. Still, at most burst + rate*t units are admitted over any span t.
// For that, the bucket lacks the units that refill in d. So a single call admits at most the burst
// less these units, which is its Limit. At most a quarter of the burst may refill in d, which must
// be a positive whole number of microseconds.
//
// It is a part of the policy, because all servers that share a bucket must agree on it, also
// those without leases. Windows are leased as they are.
func (p Policy) Leasable(d time.Duration) Policy {
	switch {
	case p.numbers.Algorithm != step.TokenBucket:
		return p.faulty("Leasable is for TokenBucket: windows are leased as they are")
	case d <= 0 || d%time.Microsecond != 0:
		return p.faulty("Leasable(%v) needs a positive whole number of microseconds", d)
	}
	usual := p.numbers.Debt == p.numbers.DefaultDebt()
	p.numbers.Burst += p.numbers.Refill() // of an earlier call
	p.numbers.Lease = d.Microseconds()
	p.numbers.Burst -= p.numbers.Refill()
	if usual {
		p.numbers.Debt = p.numbers.DefaultDebt()
	}
	return p
}

// Burst sets the burst of a TokenBucket.
func (p Policy) Burst(n int64) Policy {
	if p.numbers.Algorithm != step.TokenBucket {
		return p.faulty("Burst is for TokenBucket")
	}
	usual := p.numbers.Debt == p.numbers.DefaultDebt()
	p.numbers.Burst = n
	if usual {
		p.numbers.Debt = p.numbers.DefaultDebt()
	}
	return p
}

// IsLog reports whether the policy keeps the instant of each unit.
func (p Policy) IsLog() bool { return p.numbers.Algorithm == step.SlidingLog }

// Share returns the policy for one of n servers that do not share a store, so that together they
// admit about as much as p. It has 1/n of the events, or of the burst and the rate, rounded up. The
// distance of MinInterval becomes n times as long. n is at least 1.
func (p Policy) Share(n int64) Policy {
	if n < 1 {
		return p.faulty("Share(%d) needs at least 1 server", n)
	}
	var err error
	if p.numbers, err = p.numbers.Share(n); err != nil {
		return p.faulty("Share(%d) %v", n, err)
	}
	return p
}

// Name returns the policy's name.
func (p Policy) Name() string { return p.name }

// Limit returns the largest number of units that can be admitted at once. For a token bucket that
// is the burst, less the units that refill during a lease. For a window it is the events, and for
// MinInterval 1. It is [NoLimit] for Unlimited and 0 for Blocked.
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

// Window returns the time over which Limit units are admitted. It is the rate's period, or the time
// in which an empty token bucket fills, rounded up to a microsecond. It is 0 for Unlimited and
// Blocked.
func (p Policy) Window() time.Duration {
	m := p.numbers
	if m.Algorithm == step.TokenBucket && min(m.Burst, m.Period, m.Limit) > 0 {
		return span(min(whole.MulDivUp(m.Burst, m.Period, m.Limit), step.MaxSpan))
	}
	return span(m.Period)
}

// CountsDenied reports whether refused charges count as well: see [Policy.CountDenied].
func (p Policy) CountsDenied() bool { return p.numbers.CountDenied }

// step returns the policy's step. The error joins everything that is wrong.
func (p Policy) step() (step.Step, error) {
	s, err := step.New(p.numbers)
	if p.fault != "" {
		return nil, errors.Join(errors.New(p.fault), err)
	}
	return s, err
}

// alone reports whether the policy must be a limiter's only one.
func (p Policy) alone() bool {
	return p.numbers.Algorithm == step.Unlimited || p.numbers.Algorithm == step.Blocked
}

// span converts microseconds of package step to a duration.
func span(us int64) time.Duration {
	if us == step.Never {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}
