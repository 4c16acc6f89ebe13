package core

import (
	"fmt"
	"time"

	old "github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

// A Policy says how units are counted, and how many are admitted. It is a value: methods return another. The zero
// Policy is not valid.
//
// Its text begins with a word and a rate, and then has options: "sliding-log 60/minute", "token-bucket 10/second burst 100",
// "fixed-window 1000/day from-first count-denied", "sliding-window 600/minute resolution 60 never-over",
// "min-interval 2s", "unlimited", "blocked". Periods have units: us, ms, s, m, h, d.
type Policy struct{ in old.Policy }

// maxLog is the most units of a SlidingLog: each is an instant that the store keeps.
const maxLog = 1024

// SlidingLog admits n units in any period whatever. It keeps the instant of each unit, 8 bytes. n is 1 to 1,024: use
// SlidingWindow for more.
func SlidingLog(n int64, per time.Duration) Policy { return Policy{old.SlidingLog(rate(n, per))} }

// SlidingWindow admits about n units in any period, from counts of ten parts of it: see Resolution and NeverOver.
func SlidingWindow(n int64, per time.Duration) Policy { return Policy{old.SlidingWindow(rate(n, per))} }

// FixedWindow admits n units in each window of the clock, which begin at multiples of the period since 1970. So it
// admits up to 2n around the border of two windows.
func FixedWindow(n int64, per time.Duration) Policy { return Policy{old.FixedWindow(rate(n, per))} }

// TokenBucket admits bursts of n units, and refills n a period, at most 1,000,000 a second. Burst sets another size.
func TokenBucket(n int64, per time.Duration) Policy { return Policy{old.TokenBucket(rate(n, per), n)} }

// MinInterval admits events that are at least d apart. Several units of one call are one event.
func MinInterval(d time.Duration) Policy { return Policy{old.MinInterval(d)} }

// Unlimited admits everything, and counts nothing.
func Unlimited() Policy { return Policy{old.Unlimited()} }

// Blocked admits nothing.
func Blocked() Policy { return Policy{old.Blocked()} }

func rate(n int64, per time.Duration) old.Rate { return old.Rate{Events: n, Per: per} }

// Named names the policy: 1 to 64 letters, digits, and characters of "-_.:/". Clients see the name in fields. Each of
// several policies of a limiter has one; the only one has the limiter's unless it is named.
func (p Policy) Named(name string) Policy { return Policy{p.in.Named(name)} }

// Burst is the size of a TokenBucket: how many units a key may use at once.
func (p Policy) Burst(n int64) Policy { return Policy{p.in.Burst(n)} }

// Debt is how far below zero used units may take a TokenBucket: see [Decision.Settle] and [Limiter.Report].
// Without it, that is its size.
func (p Policy) Debt(n int64) Policy { return Policy{p.in.Debt(n)} }

// CountDenied makes windows and logs count refused attempts too, so that a client must pause to be admitted.
func (p Policy) CountDenied() Policy { return Policy{p.in.CountDenied()} }

// FromFirst makes the windows of a FixedWindow begin with a key's first unit instead of at multiples of the period.
func (p Policy) FromFirst() Policy { return Policy{p.in.FromFirst()} }

// Resolution is the number of counts of a SlidingWindow, 1 to 60. Without it, that is 10. More are more exact, and take
// 14 bytes each.
func (p Policy) Resolution(k int) Policy { return Policy{p.in.Resolution(k)} }

// NeverOver makes a SlidingWindow err towards refusing: never more than n units in any period.
func (p Policy) NeverOver() Policy { return Policy{p.in.NeverOver()} }

// Validate returns what is wrong with numbers that are data, as an [ErrInvalid], or nil.
func (p Policy) Validate() error {
	_, err := old.New(memstore.New(memstore.Config{}), "x", p.in)
	if err == nil {
		err = p.checkLog()
	}
	if err != nil {
		return &invalid{err}
	}
	return nil
}

func (p Policy) checkLog() error {
	if p.in.IsLog() && p.in.Limit() > maxLog {
		return fmt.Errorf("headgate: a SlidingLog of %d units: it keeps the instant of each, so use at most %d, or SlidingWindow(...).NeverOver().Resolution(60)", p.in.Limit(), maxLog)
	}
	return nil
}

// String returns the text, also of a policy that is not valid, after its name if it has one.
func (p Policy) String() string { return p.in.String() }

// MarshalText implements [encoding.TextMarshaler]: the text without the name.
func (p Policy) MarshalText() ([]byte, error) { return p.in.MarshalText() }

// UnmarshalText implements [encoding.TextUnmarshaler]. An error is an [ErrInvalid] that says what is wrong.
func (p *Policy) UnmarshalText(text []byte) error {
	if err := p.in.UnmarshalText(text); err != nil {
		return &invalid{err}
	}
	return nil
}

// An invalid error is an [ErrInvalid] with a text of its own.
type invalid struct{ error }

func (e *invalid) Is(target error) bool { return target == ErrInvalid }
func (e *invalid) Unwrap() error        { return e.error }

// inner returns the policies as today's core has them, or what is wrong with one.
func inner(policies []Policy) ([]old.Policy, error) {
	all := make([]old.Policy, len(policies))
	for i, p := range policies {
		if err := p.checkLog(); err != nil {
			return nil, err
		}
		all[i] = p.in
	}
	return all, nil
}
