package step

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/headgate/headgate/internal/old/core/internal/whole"
)

// New returns the step with the given parameters. The error joins everything that is
// wrong with them.
func New(m Numbers) (Step, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	switch m.Algorithm {
	case TokenBucket:
		return newTokenBucket(m), nil
	case FixedWindow:
		return &fixedWindow{m}, nil
	case SlidingWindow:
		return newSlidingWindow(m), nil
	case SlidingLog:
		return &slidingLog{m}, nil
	case MinInterval:
		return &minInterval{m}, nil
	default:
		return &constant{m}, nil
	}
}

func (m Numbers) validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	a := m.Algorithm
	switch a {
	case TokenBucket, FixedWindow, SlidingWindow, SlidingLog:
		fault(m.Limit == 0, "a rate of 0 events: to refuse everything, use Blocked")
		fault(m.Limit < 0, "a rate of %d events: there must be at least 1", m.Limit)
		fault(m.Limit > MaxInt, "%d events are more than 2^53-1", m.Limit)
		fallthrough
	case MinInterval:
		fault(m.Period <= 0, "a period must be positive, and at most 142 years")
		fault(m.Period > MaxSpan, "a period must be at most 142 years")
	case Unlimited, Blocked:
	default:
		fault(true, "no policy: use TokenBucket, FixedWindow, SlidingWindow, SlidingLog, MinInterval, Unlimited or Blocked")
	}
	sound := len(faults) == 0 // the rate: some of the checks below need a valid one
	fault(m.CountDenied && a != FixedWindow && a != SlidingWindow && a != SlidingLog,
		"CountDenied is for FixedWindow, SlidingWindow and SlidingLog")
	fault(m.NeverOver && a != SlidingWindow, "NeverOver is for SlidingWindow")
	fault(m.FromFirst && a != FixedWindow, "FromFirst is for FixedWindow")
	fault(m.Debt != 0 && a != TokenBucket, "Debt is for TokenBucket")
	fault(m.Resolution != 0 && a != SlidingWindow, "Resolution is for SlidingWindow")
	fault(m.Lease != 0 && a != TokenBucket, "Leasable is for TokenBucket: windows are leased as they are")
	switch a {
	case TokenBucket:
		slow := sound && m.Limit <= m.Period // at most one a microsecond
		fault(m.Burst <= 0 && m.Lease == 0, "a burst must be at least 1, is %d", m.Burst)
		fault(m.Lease < 0 || m.Lease > MaxSpan, "the time of leases must be positive, and at most 142 years")
		if sound && m.Lease > 0 && m.Lease <= MaxSpan {
			faults = append(faults, m.tooSmall())
		}
		fault(sound && !slow, "a token bucket's rate must be at most 1,000,000 a second")
		fault(m.Debt < 0, "a debt must be at least 0, is %d", m.Debt)
		if slow && m.Burst > 0 {
			left := m.mostUnits() - m.Burst // for the debt
			fault(left < 0, "a burst of %d at this rate cannot be counted exactly: make the burst smaller or the rate rounder", m.Burst)
			fault(left >= 0 && m.Debt > left, "a debt of %d at this rate cannot be counted exactly: it must be at most %d", m.Debt, left)
		}
	case SlidingWindow:
		fault(m.Resolution < 1 || m.Resolution > MaxResolution, "a resolution must be from 1 to %d, is %d", MaxResolution, m.Resolution)
		fault(sound && m.Resolution > m.Period, "a resolution of %d needs a period of as many microseconds", m.Resolution)
	case SlidingLog:
		fault(m.Limit > MaxLog && m.Limit <= MaxInt,
			"a SlidingLog stores each event, at most %d, not %d: use SlidingWindow", MaxLog, m.Limit)
	}
	return errors.Join(faults...)
}

// leases reports whether the burst is at least three times what refills in a Lease, and
// so are the shares of it.
func (m Numbers) leases() bool {
	hi, lo := bits.Mul64(uint64(max(m.Burst, 0)), uint64(m.Period))
	refillHi, refillLo := bits.Mul64(3*uint64(m.Limit), uint64(m.Lease))
	return refillHi < hi || refillHi == hi && refillLo <= lo
}

// tooSmall returns what is wrong with the burst of a bucket that is leased.
func (m Numbers) tooSmall() error {
	if m.Burst > 0 && m.leases() {
		return nil
	}
	refill := m.Refill()
	burst := m.Burst + refill
	if burst < 2 {
		return fmt.Errorf("a burst of %d is too small to be leased: it must be at least 2", burst)
	}
	short := m
	if short.Lease = whole.MulDivUp(burst/4, m.Period, m.Limit); burst < 4 {
		short.Lease = whole.MulDivUp(burst-1, m.Period, 3*m.Limit)
	}
	if short.Burst = burst - short.Refill(); !short.leases() { // it is rounded up
		short.Lease--
	}
	return fmt.Errorf("a burst of %d is too small for leases of %v, in which %d units refill: it must be at least %d, or the time at most %v",
		burst, time.Duration(m.Lease)*time.Microsecond, refill, 4*refill, time.Duration(short.Lease)*time.Microsecond)
}

// mostUnits returns how many units a token bucket of a valid rate can count so that every product in
// its arithmetic is at most MaxInt.
func (m Numbers) mostUnits() int64 {
	g := gcd(m.Limit, m.Period)
	n, p := m.Limit/g, m.Period/g
	return min(MaxInt/n, MaxSpan/whole.CeilDiv(p, n))
}
