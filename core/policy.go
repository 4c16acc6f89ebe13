package core

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/step"
)

// A Policy says how units are counted, and how many are admitted. It is a value: methods return another. The zero
// Policy is not valid.
//
// Its text begins with a word and a rate, and then has options: "sliding-log 60/minute", "token-bucket 10/second burst
// 100", "fixed-window 1000/day from-first count-denied", "sliding-window 600/minute resolution 60 never-over",
// "min-interval 2s", "calendar 1000/month starting 15 in Europe/Berlin", "unlimited", "blocked". Periods have units:
// us, ms, s, m, h, d.
type Policy struct {
	name    string
	numbers step.Numbers
}

// SlidingLog admits n units in any period whatever. It keeps the instant of each unit, 8 bytes. n is 1 to 1,024: use
// SlidingWindow for more.
func SlidingLog(n int64, per time.Duration) Policy { return policy(step.SlidingLog, n, per) }

// SlidingWindow admits about n units in any period, from counts of ten parts of it: see Resolution and NeverOver.
func SlidingWindow(n int64, per time.Duration) Policy {
	return policy(step.SlidingWindow, n, per).Resolution(step.UsualResolution)
}

// FixedWindow admits n units in each window of the clock, which begin at multiples of the period since 1970. So it
// admits up to 2n around the border of two windows.
func FixedWindow(n int64, per time.Duration) Policy { return policy(step.FixedWindow, n, per) }

// TokenBucket admits bursts of n units, and refills n a period, at most 1,000,000 a second. Burst sets another size.
func TokenBucket(n int64, per time.Duration) Policy {
	p := policy(step.TokenBucket, n, per).Burst(n)
	p.numbers.Debt = step.UsualDebt
	return p
}

// MinInterval admits events that are at least d apart. Several units of one call are one event.
func MinInterval(d time.Duration) Policy { return policy(step.MinInterval, 1, d) }

// A Unit is what a Calendar counts in.
type Unit int64

// The units. A week begins with Monday, and a month with the first, but for Starting.
const (
	Day   Unit = step.Day
	Week  Unit = step.Week
	Month Unit = step.Month
	Year  Unit = step.Year
)

// Calendar admits n units in each day, week, month or year of the calendar, in UTC but for In. So it admits up to 2n
// around the border of two, as a FixedWindow does.
func Calendar(n int64, per Unit) Policy {
	return Policy{numbers: step.Numbers{Kind: step.Calendar, Limit: n, Period: int64(per)}}
}

// Unlimited admits everything, and counts nothing.
func Unlimited() Policy {
	return Policy{numbers: step.Numbers{Kind: step.Constant, Limit: NoLimit}}
}

// Blocked admits nothing.
func Blocked() Policy { return Policy{numbers: step.Numbers{Kind: step.Constant}} }

func policy(kind step.Kind, n int64, per time.Duration) Policy {
	p := Policy{numbers: step.Numbers{Kind: kind, Limit: n, Period: per.Microseconds()}}
	if per%time.Microsecond != 0 {
		p.numbers.Period = step.NoPeriod
	}
	return p
}

// Named names the policy: 1 to 64 characters of printable ASCII. Clients see the name in fields. Each of
// several policies of a limiter has one; the only one has the limiter's unless it is named.
func (p Policy) Named(name string) Policy {
	p.name = name
	return p
}

// Burst is the size of a TokenBucket: how many units a key may use at once.
func (p Policy) Burst(n int64) Policy {
	p.numbers.Burst = n
	return p
}

// Debt is how far below zero used units may take a TokenBucket: see [Decision.Settle] and [Limiter.Report].
// Without it, that is its size.
func (p Policy) Debt(n int64) Policy {
	p.numbers.Debt = max(n, step.UsualDebt+1) // which is a fault, too
	return p
}

// CountDenied makes windows and logs count refused attempts too, so that a client must pause to be admitted. Attempts
// of more units than the limit, which are never admitted, do not count.
func (p Policy) CountDenied() Policy {
	p.numbers.CountDenied = true
	return p
}

// FromFirst makes the windows of a FixedWindow begin with a key's first unit instead of at multiples of the period.
func (p Policy) FromFirst() Policy {
	p.numbers.FromFirst = true
	return p
}

// In is the time zone of a Calendar, by its name in the IANA's database, such as Europe/Berlin. Usage counts in one
// zone: in another it starts fresh. A program may bring the database along, with import _ "time/tzdata".
func (p Policy) In(zone string) Policy {
	p.numbers.Zone = zone
	return p
}

// Starting is the day with which the windows of a Calendar begin: of a Week, 1 is Monday and 7 Sunday; of a Month, 1 to
// 31. A month that does not have the day begins with its last: from January 31 to February 28, and then to March 31.
func (p Policy) Starting(day int) Policy {
	p.numbers.Starting = int64(day)
	return p
}

// Resolution is the number of counts of a SlidingWindow, 1 to 1,000. Without it, that is 10. More are more exact, and
// take 8 bytes each in memory, and 7 in Redis.
func (p Policy) Resolution(k int) Policy {
	p.numbers.Resolution = int64(k)
	return p
}

// NeverOver makes a SlidingWindow err towards refusing: never more than n units in any period.
func (p Policy) NeverOver() Policy {
	p.numbers.NeverOver = true
	return p
}

// Validate returns what is wrong with numbers that are data, as an [ErrInvalid], or nil.
func (p Policy) Validate() error {
	err := p.numbers.Check()
	if p.name != "" {
		err = errors.Join(err, backend.CheckName(p.name))
	}
	if err != nil {
		return &invalid{fmt.Errorf("headgate: policy %s: %w", p, err)}
	}
	return nil
}

// An invalid error is an [ErrInvalid] with a text of its own.
type invalid struct{ error }

func (e *invalid) Is(target error) bool { return target == ErrInvalid }
func (e *invalid) Unwrap() error        { return e.error }

// prepare returns policies as they are asked. The error has a line for each fault.
func prepare(limiter string, policies []Policy) (*backend.Policies, error) {
	all := make([]backend.Policy, len(policies))
	for i, policy := range policies {
		all[i] = backend.Policy{Name: policy.name, Numbers: policy.numbers}
	}
	var faults []error
	ps := backend.Prepare(limiter, all, func(i int, err error) {
		where := ""
		switch {
		case i < 0 || len(all) == 1:
		case all[i].Name == "":
			where = fmt.Sprintf("policy #%d: ", i+1)
		default:
			where = fmt.Sprintf("policy %q: ", all[i].Name)
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			faults = append(faults, fmt.Errorf("headgate: limiter %q: %s%s", limiter, where, line))
		}
	})
	return ps, errors.Join(faults...)
}
