package step

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/headgate/headgate/core/internal/whole"
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
	fault(m.Resolution != 0 && a != SlidingWindow, "Resolution is for SlidingWindow")
	switch a {
	case TokenBucket:
		slow := m.Limit <= m.Period // at most one a microsecond
		fault(m.Burst <= 0, "a burst must be at least 1, is %d", m.Burst)
		fault(sound && !slow, "a token bucket's rate must be at most 1,000,000 a second")
		fault(sound && slow && m.Burst > 0 && !m.exact(),
			"a burst of %d at this rate cannot be counted exactly: make the burst smaller or the rate rounder", m.Burst)
	case SlidingWindow:
		fault(m.Resolution < 1 || m.Resolution > MaxResolution, "a resolution must be from 1 to %d, is %d", MaxResolution, m.Resolution)
		fault(sound && m.Resolution > m.Period, "a resolution of %d needs a period of as many microseconds", m.Resolution)
	case SlidingLog:
		fault(m.Limit > MaxLog && m.Limit <= MaxInt,
			"a SlidingLog stores each event, at most %d, not %d: use SlidingWindow", MaxLog, m.Limit)
	}
	return errors.Join(faults...)
}

// exact reports whether every product in the arithmetic of a token bucket is at most
// MaxInt.
func (m Numbers) exact() bool {
	g := gcd(m.Limit, m.Period)
	n, p := m.Limit/g, m.Period/g
	if hi, lo := bits.Mul64(uint64(m.Burst), uint64(n)); hi > 0 || lo > MaxInt {
		return false
	}
	hi, lo := bits.Mul64(uint64(m.Burst), uint64(whole.CeilDiv(p, n)))
	return hi == 0 && lo <= MaxSpan
}
