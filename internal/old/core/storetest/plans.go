package storetest

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/step"
)

// Two plans are policies with other numbers, of limiters of one name.
type twoPlans struct {
	name        string
	long, short core.Policy
}

func per(n int64, d time.Duration) core.Rate { return core.Rate{Events: n, Per: d} }

// plansOfAllPeriods are pairs of which the long one was used first.
func plansOfAllPeriods() []twoPlans {
	day, s := 24*time.Hour, time.Second
	return []twoPlans{
		{"bucket", core.TokenBucket(core.PerHour(100), 100), core.TokenBucket(core.PerSecond(10), 10)},
		{"bucket, small and slow", core.TokenBucket(core.PerMinute(5), 5), core.TokenBucket(core.PerSecond(3), 40)},
		{"window", core.FixedWindow(per(100, 10*s)), core.FixedWindow(per(20, 2*s))},
		{"window, never nested", core.FixedWindow(per(60, 7*s)), core.FixedWindow(per(40, 3*s))},
		{"window from the first", core.FixedWindow(per(100, 10*s)).FromFirst(), core.FixedWindow(per(20, 2*s)).FromFirst()},
		{"window of the clock, then from the first", core.FixedWindow(per(60, 7*s)), core.FixedWindow(per(40, 3*s)).FromFirst()},
		{"sub-windows", core.SlidingWindow(per(100, 10*s)).NeverOver(), core.SlidingWindow(per(20, 2*s)).NeverOver()},
		{"coarse sub-windows", core.SlidingWindow(per(100, 10*s)).Resolution(3).NeverOver(), core.SlidingWindow(per(30, 10*s)).Resolution(10).NeverOver()},
		{"log", core.SlidingLog(per(100, 10*s)), core.SlidingLog(per(20, 2*s))},
		{"small log, long", core.SlidingLog(core.PerDay(30)), core.SlidingLog(core.PerSecond(10))},
		{"log of a day", core.SlidingLog(per(1000, day)), core.SlidingLog(core.PerSecond(10))},
		{"apart", core.MinInterval(5 * s), core.MinInterval(s)},
	}
}

// pair returns a limiter of each plan, as two releases make them.
func (s *suite) pair(p twoPlans) [2]*core.Limiter {
	s.Helper()
	return [2]*core.Limiter{s.limiter(p.name, p.long), s.limiter(p.name, p.short)}
}

// oneCallErasesNothing: what was used up stays so, whatever other numbers are asked.
func (s *suite) oneCallErasesNothing() {
	for _, p := range plansOfAllPeriods() {
		l := s.pair(p)
		window := p.long.Window()
		s.toBeginning(window)
		s.allow(l[0], "key", p.long.Limit())
		s.Advance(p.short.Window())
		for range 3 {
			s.Advance(10 * time.Millisecond)
			s.allow(l[1], "key", 1)
			if d := s.allow(l[0], "key", min(p.long.Limit(), 3)); d.Allowed {
				s.Errorf("%s: used up, and admitted after a call under other numbers: %v", p.name, d)
			}
		}
	}
}

// An admission is what was admitted at once under one of two policies.
type admission struct{ at, n int64 }

// neverMore: while two releases with different numbers run side by side, whoever admits a
// charge keeps its policy with all that either has admitted. For a token bucket, one of
// the two would have admitted as much in the same time.
func (s *suite) neverMore() {
	for seed, p := range plansOfAllPeriods() {
		for round := range uint64(5) {
			rng := rand.New(rand.NewPCG(uint64(seed), round))
			l := s.pair(p)
			key := "key" + string(rune('0'+round))
			var all []admission
			ask := func(i int, n int64) {
				if d := s.allow(l[i], key, n); d.Allowed {
					now := s.Now()
					all = append(all, admission{now, n})
					numbers := [2]step.Numbers{l[0].Prepared().Spec().Policies[0].Step.Numbers(), l[1].Prepared().Spec().Policies[0].Step.Numbers()}
					sum := int64(0)
					for _, e := range slices.Backward(all) {
						sum += e.n
						if !within(numbers, i, e.at, now, sum, d.ResetAfter.Microseconds()) {
							s.Fatalf("%s: %v admits %d units, which makes %d in %v", p.name, l[i].Policies()[0], n, sum, time.Duration(now-e.at)*time.Microsecond)
						}
					}
				}
			}
			ask(0, 1)
			ask(1, 1)
			least := l[1].Policies()[0].Window()
			for range s.Operations / 10 {
				s.Advance(time.Duration(rng.Int64N(int64(least / 4))).Truncate(time.Microsecond))
				i := rng.IntN(2)
				n := int64(1)
				if rng.IntN(3) == 0 {
					n += rng.Int64N(l[i].Policies()[0].Limit())
				}
				ask(i, n)
			}
		}
	}
}

// within reports whether the sum of all that was admitted since the instant from is
// within the i-th policy, which has admitted the last of it now and is unused after reset.
func within(numbers [2]step.Numbers, i int, from, now, sum, reset int64) bool {
	m := numbers[i]
	switch m.Algorithm {
	case step.TokenBucket:
		for _, m := range numbers {
			if (sum-m.Burst)*m.Period <= (now-from)*m.Limit {
				return true
			}
		}
		return false
	case step.FixedWindow:
		start := now - now%m.Period
		if m.FromFirst {
			start = now + reset - m.Period
		}
		return from < start || sum <= m.Limit
	case step.MinInterval:
		return from == now || now-from >= m.Period
	default:
		return now-from >= m.Period || sum <= m.Limit
	}
}

// nothingStays: when all that was used under one plan is over, and under other numbers
// much was used since, the others decide as if they had always been alone.
func (s *suite) nothingStays() {
	for _, p := range plansOfAllPeriods() {
		l := s.pair(p)
		fresh := s.limiter(p.name+" alone", p.short)
		s.allow(l[0], "key", 1)
		over := s.Now() + 3*int64(l[0].Policies()[0].Window()/time.Microsecond)
		for s.Now() < over {
			s.allow(l[1], "key", 1)
			s.Advance(max(time.Duration(over-s.Now())*time.Microsecond/20, time.Millisecond))
		}
		s.Advance(2 * p.short.Window())
		for range 100 {
			s.Advance((p.short.Window() / 7).Truncate(time.Microsecond))
			a, b := s.allow(l[1], "key", 1), s.allow(fresh, "key", 1)
			if a.Allowed != b.Allowed || a.Remaining != b.Remaining || a.RetryAfter != b.RetryAfter || a.ResetAfter != b.ResetAfter {
				s.Fatalf("%s: long after the other plan: %v; one that was always alone: %v", p.name, a, b)
			}
		}
	}
}
