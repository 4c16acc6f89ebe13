package storetest

import (
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// datedPolicies are policies that admit at most four units at once, and one with a log of
// hundreds.
func datedPolicies() map[string]core.Policy {
	all := three()
	all["MinInterval"] = core.MinInterval(7 * time.Second)
	all["SlidingLog,CountDenied"] = core.SlidingLog(per(4, 7*time.Second)).CountDenied()
	all["SlidingLog,long"] = core.SlidingLog(per(300, 7*time.Second))
	return all
}

// clockFlaps: each time that the clock steps an hour ahead and returns, a policy admits its
// quota once more, and is refused for a window at most, not until the hour has passed.
func (s *suite) clockFlaps() {
	for name, p := range datedPolicies() {
		l := s.limiter("flaps "+name, p)
		most := max(p.Limit(), 1)
		s.toBeginning(7 * time.Second)
		exhaust := func() (n int64) {
			for s.allow(l, "key", 1).Allowed {
				n++
			}
			return n
		}
		if n := exhaust(); n != most {
			s.Fatalf("%s: %d units at first, want %d", name, n, most)
		}
		for i := range 3 {
			s.Advance(time.Hour)
			if n := exhaust(); n != most {
				s.Errorf("%s: %d units with the clock ahead, want %d", name, n, most)
			}
			s.Back(time.Hour)
			if n := exhaust(); n != 0 {
				s.Errorf("%s: return %d admits %d units", name, i+1, n)
			}
		}
		d := s.allow(l, "key", 1)
		if d.Allowed || d.RetryAfter > 2*7*time.Second {
			s.Errorf("%s: %v", name, d)
		}
		s.Advance(2 * 7 * time.Second)
		if n := exhaust(); n != most {
			s.Errorf("%s: %d units after two periods, want %d", name, n, most)
		}
	}
}

// clockReturns: a refusal ends with its RetryAfter, as a decision stores what it brings back,
// for each of its keys. A peek does not.
func (s *suite) clockReturns() {
	for name, p := range datedPolicies() {
		if p.CountsDenied() {
			continue // which each refusal prolongs
		}
		l := s.limiter("returns "+name, p)
		other := s.limiter("blocked "+name, core.FixedWindow(core.PerDay(1)).CountDenied())
		both := []core.Charge{{Limiter: other, Key: "key", N: 1}, {Limiter: l, Key: "both", N: 1}}
		s.toBeginning(24 * time.Hour)
		s.allow(other, "key", 1)
		s.Advance(time.Hour)
		s.allow(l, "key", 1)
		s.allow(l, "both", 1)
		s.Back(time.Hour)

		if left := s.left(l, "key"); left != 0 {
			s.Errorf("%s: a peek finds %d left", name, left)
		}
		s.Advance(3 * time.Second)
		d := s.allow(l, "key", 1)
		if e, err := core.AllowAll(s.Context(), both...); err != nil || e.Allowed || e.Answer(1).Allowed {
			s.Errorf("%s: together: %v, %v", name, e, err)
		}
		if d.Allowed || d.RetryAfter <= 0 {
			s.Fatalf("%s: %v", name, d)
		}
		s.Advance(d.RetryAfter - time.Microsecond)
		for _, key := range []string{"key", "both"} {
			if early := s.allow(l, key, 1); early.Allowed || early.RetryAfter != time.Microsecond {
				s.Errorf("%s, %s: %v; a microsecond too early: %v", name, key, d, early)
			}
		}
		s.Advance(time.Microsecond)
		for _, key := range []string{"key", "both"} {
			if late := s.allow(l, key, 1); !late.Allowed {
				s.Errorf("%s, %s: %v; after that: %v", name, key, d, late)
			}
		}
	}
}

// clockSteps: a clock that steps back by less than a window prolongs waits by no more, and
// admits nothing.
func (s *suite) clockSteps() {
	for name, p := range datedPolicies() {
		l := s.limiter("steps "+name, p)
		s.toBeginning(7 * time.Second)
		for s.allow(l, "key", 1).Allowed {
		}
		d := s.allow(l, "key", 1)
		s.Back(5 * time.Second)
		if e := s.allow(l, "key", 1); e.Allowed || e.RetryAfter > d.RetryAfter+5*time.Second {
			s.Errorf("%s: %v, and five seconds back: %v", name, d, e)
		}
	}
}
