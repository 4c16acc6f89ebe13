// Package storetest tests the contracts of [store.Store] and [store.SlotStore]. A store that passes decides as package
// step computes. Its decisions are all or nothing, and exact under concurrency. It keeps the states of all limiters and
// keys separate.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
)

// A Harness gives the suite access to a store. A store has its own clock, so the suite needs to
// read that clock and to advance it. It may be the process's clock in a testing/synctest bubble, or
// a clock that tests can replace.
type Harness struct {
	// New returns an empty store with that observer, or without one if it is nil. It may
	// register cleanups with t.
	New func(t *testing.T, o *core.Observer) core.Store

	// Now returns the store's current instant, in microseconds since 1970 UTC.
	Now func() int64

	// Advance moves the store's clock forward.
	Advance func(time.Duration)

	// Back moves the store's clock back. Nil means that it never goes back, and leaves out
	// the tests of that.
	Back func(time.Duration)

	// Around runs the body of each test. Nil means to call the body.
	Around func(t *testing.T, body func(t *testing.T))

	// Operations is the number of random operations for each set of limiters.
	// 0 means 2,000.
	Operations int
}

// Run tests the contract of [store.Store].
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Around == nil {
		h.Around = func(t *testing.T, body func(t *testing.T)) { t.Helper(); body(t) }
	}
	if h.Operations == 0 {
		h.Operations = 2000
	}
	for _, test := range tests {
		if h.Back == nil && strings.HasPrefix(test.name, "Clock") {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			h.Around(t, func(t *testing.T) {
				test.body(&suite{T: t, Harness: h, store: h.New(t, nil)})
			})
		})
	}
}

// tests are the promises of a store. Those that begin with Clock need Harness.Back.
var tests = []struct {
	name string
	body func(*suite)
}{
	{"DecidesAsTheStepsDo", (*suite).decidesAsTheStepsDo},
	{"AllOrNothing", (*suite).allOrNothing},
	{"RefusedAttemptsCountOnRequest", (*suite).refusedAttemptsCount},
	{"PeekLeavesNoTrace", (*suite).peekLeavesNoTrace},
	{"PeekTellsWhatAllowWould", (*suite).peekTells},
	{"RetryAfterIsEnoughAndTight", (*suite).retryAfter},
	{"RefusedUntilRetryAfterAndNoLonger", (*suite).refusedUntil},
	{"AllOfTheFreeUnitsAreGranted", (*suite).allGranted},
	{"ExactUnderConcurrency", (*suite).exact},
	{"ExactForSeveralPolicies", (*suite).exactForSeveral},
	{"ExactAcrossLimitersInAnyOrder", (*suite).exactAcross},
	{"ExactWhileSomeGiveBack", (*suite).exactWithRefunds},
	{"KeysAreAnyBytes", (*suite).keys},
	{"NamesDoNotJoinAmbiguously", (*suite).names},
	{"LimitersOfOneNameShare", (*suite).sharing},
	{"NumbersChangeAndUsageStays", (*suite).numbersChange},
	{"NumbersChangeAndRetryAfterHolds", (*suite).retryAfterChange},
	{"OtherNumbersEraseNothing", (*suite).oneCallErasesNothing},
	{"SideBySideNeverMore", (*suite).neverMore},
	{"LongAfterNothingStays", (*suite).nothingStays},
	{"ResetRefundAndSettle", (*suite).resetRefundSettle},
	{"ReportCountsWhatHasHappened", (*suite).reportCounts},
	{"ReportNeverAdmits", (*suite).reportNeverAdmits},
	{"AnywayIsCountedIfOthersRefuse", (*suite).anyway},
	{"NothingIsACheck", (*suite).checks},
	{"SettleCountsEverything", (*suite).settleCounts},
	{"GivesBackNoMoreThanWasCharged", (*suite).reportAndRefund},
	{"SettledOnce", (*suite).settledOnce},
	{"Many", (*suite).many},
	{"ExactWithReports", (*suite).exactWithReports},
	{"ExtraIsWhatFits", (*suite).extraFits},
	{"ExtraIsNoPartOfARefusal", (*suite).extraRefused},
	{"ExtraIsGivenBack", (*suite).extraSettled},
	{"ExtraIsForOneChargeOnly", (*suite).extraOfOne},
	{"ExactWithExtra", (*suite).exactWithExtra},
	{"ReportsDecisions", (*suite).reports},
	{"ReportsCallsTogether", (*suite).reportsAll},
	{"ReportsEachOfMany", (*suite).reportsEach},
	{"ClockFlaps", (*suite).clockFlaps},
	{"ClockReturns", (*suite).clockReturns},
	{"ClockStepsBack", (*suite).clockSteps},
}

// A suite is one running test.
type suite struct {
	*testing.T
	Harness

	store core.Store
}

func (s *suite) limiter(name string, policies ...core.Policy) *core.Limiter {
	s.Helper()
	l, err := core.New(s.store, name, policies...)
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// allow charges n units, and fails the test on an error.
func (s *suite) allow(l *core.Limiter, key string, n int64) core.Decision {
	s.Helper()
	d, err := l.AllowN(s.Context(), key, n)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// left returns the units that remain.
func (s *suite) left(l *core.Limiter, key string) int64 {
	s.Helper()
	d, err := l.Peek(s.Context(), key)
	if err != nil {
		s.Fatal(err)
	}
	return d.Remaining
}

// toBeginning moves the clock to the beginning of a window.
func (s *suite) toBeginning(window time.Duration) {
	s.Advance(window - time.Duration(s.Now())*time.Microsecond%window)
}

// three returns policies that admit three units at first.
func three() map[string]core.Policy {
	rate := core.Rate{Events: 3, Per: 7 * time.Second}
	return map[string]core.Policy{
		"TokenBucket":             core.TokenBucket(rate, 3),
		"FixedWindow":             core.FixedWindow(rate),
		"FixedWindow,CountDenied": core.FixedWindow(rate).CountDenied(),
		"FixedWindow,FromFirst":   core.FixedWindow(rate).FromFirst(),
		"SlidingWindow":           core.SlidingWindow(rate),
		"SlidingWindow,k=1":       core.SlidingWindow(rate).Resolution(1),
		"SlidingWindow,NeverOver": core.SlidingWindow(rate).NeverOver(),
		"SlidingLog":              core.SlidingLog(rate),
	}
}

func (s *suite) allOrNothing() {
	small := s.limiter("small", core.SlidingLog(core.PerHour(2)).Named("hour"), core.TokenBucket(core.PerHour(5), 5).Named("burst"))
	large := s.limiter("large", core.FixedWindow(core.PerDay(100)))
	ask := func() core.Decision {
		d, err := core.AllowAll(s.Context(),
			core.Charge{Limiter: small, Key: "session", N: 1},
			core.Charge{Limiter: large, Key: "address", N: 10})
		if err != nil {
			s.Fatal(err)
		}
		return d
	}
	for i := range 5 {
		if d := ask(); d.Allowed != (i < 2) {
			s.Errorf("call %d: %v", i+1, d)
		}
	}
	if got := s.left(large, "address"); got != 80 {
		s.Errorf("the larger limit has %d left, want 80: the refused ones charged it", got)
	}
	d := s.allow(small, "session", 1)
	if d.Allowed || d.Answer(1).Remaining != 3 || !d.Answer(1).Allowed || d.Answer(0).Allowed {
		s.Errorf("the second policy was charged by a call that the first refused: %+v", d.Answer(1))
	}
}

func (s *suite) refusedAttemptsCount() {
	l := s.limiter("counts",
		core.MinInterval(time.Hour).Named("pace"),
		core.FixedWindow(core.Rate{Events: 5, Per: 400 * 24 * time.Hour}).CountDenied().Named("attempts"))
	for i, want := range []int64{4, 3, 2, 1, 0, 0} {
		d := s.allow(l, "key", 1)
		if got := d.Answer(1).Remaining; got != want || d.Allowed != (i == 0) {
			s.Errorf("attempt %d: %v, %d attempts left, want %d", i+1, d, got, want)
		}
	}
}

func (s *suite) peekLeavesNoTrace() {
	for name, p := range three() {
		l := s.limiter(name, p)
		for range 10 {
			if got := s.left(l, "key"); got != 3 {
				s.Fatalf("%s: %d left after nothing but peeks", name, got)
			}
		}
		s.allow(l, "key", 3)
		for range 10 {
			d, err := l.Peek(s.Context(), "key")
			if err != nil || d.Allowed {
				s.Fatalf("%s: a peek at a full key says %v %v", name, d, err)
			}
		}
	}
}

// peekTells: if the call would be refused, a peek returns what Allow then returns, which
// counts the attempt under CountDenied.
func (s *suite) peekTells() {
	rate := per(5, 7*time.Second)
	other := core.TokenBucket(core.PerDay(3), 3).Named("other")
	for name, policies := range map[string][]core.Policy{
		"FixedWindow":      {core.FixedWindow(rate).CountDenied()},
		"from the first":   {core.FixedWindow(rate).FromFirst().CountDenied()},
		"SlidingWindow":    {core.SlidingWindow(rate).CountDenied()},
		"SlidingLog":       {core.SlidingLog(rate).CountDenied()},
		"SlidingLog, long": {core.SlidingLog(per(500, 7*time.Second)).CountDenied()},
		"another refuses":  {core.SlidingLog(rate).CountDenied().Named("log"), core.FixedWindow(rate).CountDenied().Named("window"), other},
	} {
		l := s.limiter(name, policies...)
		last := int64(0)
		for _, p := range l.Policies() {
			last = max(last, p.Limit())
		}
		s.toBeginning(rate.Per)
		for i := range last + 20 { // some expire, and then all is used up
			s.Advance(time.Duration(1+i%3) * 7 * time.Millisecond)
			peek, err := l.Peek(s.Context(), "key")
			if err != nil {
				s.Fatal(err)
			}
			got := s.allow(l, "key", 1)
			if peek.Allowed != got.Allowed || !got.Allowed && !same(peek, got) {
				s.Fatalf("%s: a peek returned %+v, and then Allow %+v", name, peek, got)
			}
		}
		if d := s.allow(l, "key", 1); d.Allowed {
			s.Errorf("%s: %v", name, d)
		}
	}
}

// same reports whether two decisions and all their answers are equal.
func same(a, b core.Decision) bool {
	for i := range a.Len() {
		if a.Answer(i) != b.Answer(i) {
			return false
		}
	}
	return a.Policy == b.Policy && a.Remaining == b.Remaining && a.RetryAfter == b.RetryAfter && a.ResetAfter == b.ResetAfter
}

func (s *suite) retryAfter() {
	for name, p := range three() {
		l := s.limiter(name, p)
		s.allow(l, "key", 2)
		s.Advance(123457 * time.Microsecond)
		s.allow(l, "key", 1)
		s.Advance(1100 * time.Millisecond)
		peek, err := l.Peek(s.Context(), "key")
		if err != nil {
			s.Fatal(err)
		}
		if peek.Allowed { // a token bucket may have one again
			s.allow(l, "key", peek.Remaining)
			if peek, err = l.Peek(s.Context(), "key"); err != nil {
				s.Fatal(err)
			}
		}
		if peek.Allowed || peek.RetryAfter <= time.Microsecond {
			s.Fatalf("%s: %v", name, peek)
		}
		s.Advance(peek.RetryAfter - time.Microsecond)
		if d, err := l.Peek(s.Context(), "key"); err != nil || d.Allowed || d.RetryAfter != time.Microsecond {
			s.Errorf("%s: a microsecond too early: %v %v", name, d, err)
		}
		s.Advance(time.Microsecond)
		if d := s.allow(l, "key", 1); !d.Allowed {
			s.Errorf("%s: after RetryAfter: %v", name, d)
		}
	}
}

// refusedUntil: after any charges, a refused question is refused a microsecond before its
// RetryAfter, and admitted then.
func (s *suite) refusedUntil() {
	rng := rand.New(rand.NewPCG(5, 5))
	policies := three()
	rate := core.Rate{Events: 7, Per: 3 * time.Second}
	policies["SlidingLog,CountDenied"] = core.SlidingLog(rate).CountDenied()
	policies["SlidingWindow,CountDenied"] = core.SlidingWindow(rate).CountDenied()
	policies["SlidingLog,long"] = core.SlidingLog(core.Rate{Events: 100, Per: 3 * time.Second})
	policies["TokenBucket,small"] = core.TokenBucket(rate, 3)
	policies["MinInterval"] = core.MinInterval(time.Second)
	for name, p := range policies {
		l := s.limiter(name, p)
		limit := l.Prepared().Spec().Most()
		for i := range 30 {
			key, n := fmt.Sprint(i), 1+rng.Int64N(min(limit, 100))
			d := s.allow(l, key, n)
			for range 100 {
				if !d.Allowed {
					break
				}
				s.Advance(time.Duration(rng.Int64N(500_000)) * time.Microsecond)
				s.allow(l, key, 1+rng.Int64N(min(limit, 100)))
				d = s.allow(l, key, n)
			}
			wait := d.RetryAfter
			if !p.CountsDenied() && wait > 0 {
				s.Advance(wait - time.Microsecond)
				if early := s.allow(l, key, n); early.Allowed || early.RetryAfter != time.Microsecond {
					s.Errorf("%s: %d units: %v; a microsecond too early: %v", name, n, d, early)
				}
				wait = time.Microsecond
			}
			s.Advance(wait)
			if late := s.allow(l, key, n); !late.Allowed {
				s.Errorf("%s: %d units: %v; after that: %v", name, n, d, late)
			}
		}
	}
}

// allGranted: as many callers at once as there are units left get one each.
func (s *suite) allGranted() {
	const limit, used = 60, 20
	long := core.Rate{Events: limit, Per: 400 * 24 * time.Hour}
	for name, p := range map[string]core.Policy{
		"TokenBucket":               core.TokenBucket(core.Rate{Events: 1, Per: time.Hour}, limit),
		"FixedWindow":               core.FixedWindow(long),
		"FixedWindow,CountDenied":   core.FixedWindow(long).CountDenied(),
		"FixedWindow,FromFirst":     core.FixedWindow(long).FromFirst(),
		"SlidingWindow":             core.SlidingWindow(long),
		"SlidingWindow,NeverOver":   core.SlidingWindow(long).NeverOver(),
		"SlidingWindow,CountDenied": core.SlidingWindow(long).CountDenied(),
		"SlidingLog":                core.SlidingLog(long),
	} {
		l := s.limiter(name, p)
		other := s.limiter(name+"'", core.FixedWindow(long))
		for i := range 10 {
			key := fmt.Sprint(i)
			s.allow(l, key, used)
			got := s.hammer(limit-used, 1, func(j int) (core.Decision, error) {
				if j%4 > 0 {
					return l.Allow(s.Context(), key)
				}
				return core.AllowAll(s.Context(), core.Charge{Limiter: l, Key: key, N: 1}, core.Charge{Limiter: other, Key: key, N: 1})
			})
			if got != limit-used {
				s.Errorf("%s granted %d of %d free units to as many callers", name, got, limit-used)
			}
		}
	}
}

// hammer calls from many goroutines at once and returns how many calls were admitted.
func (s *suite) hammer(goroutines, each int, ask func(i int) (core.Decision, error)) int64 {
	s.Helper()
	var wg sync.WaitGroup
	var admitted atomic.Int64
	for i := range goroutines {
		wg.Go(func() {
			for range each {
				d, err := ask(i)
				if err != nil {
					s.Error(err)
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}

func (s *suite) exact() {
	const limit = 500
	long := core.Rate{Events: limit, Per: 400 * 24 * time.Hour}
	for name, p := range map[string]core.Policy{
		"TokenBucket":               core.TokenBucket(core.Rate{Events: 1, Per: time.Hour}, limit),
		"FixedWindow":               core.FixedWindow(long),
		"FixedWindow,CountDenied":   core.FixedWindow(long).CountDenied(),
		"FixedWindow,FromFirst":     core.FixedWindow(long).FromFirst(),
		"SlidingWindow":             core.SlidingWindow(long),
		"SlidingWindow,CountDenied": core.SlidingWindow(long).CountDenied(),
		"SlidingWindow,NeverOver":   core.SlidingWindow(long).NeverOver(),
		"SlidingLog":                core.SlidingLog(long),
		"SlidingLog,CountDenied":    core.SlidingLog(long).CountDenied(),
	} {
		l := s.limiter(name, p)
		got := s.hammer(200, 5, func(int) (core.Decision, error) { return l.Allow(s.Context(), "key") })
		if got != limit {
			s.Errorf("%s admitted %d of %d", name, got, limit)
		}
	}
	pace := s.limiter("MinInterval", core.MinInterval(time.Hour))
	if got := s.hammer(200, 1, func(int) (core.Decision, error) { return pace.Allow(s.Context(), "key") }); got != 1 {
		s.Errorf("MinInterval admitted %d of 1", got)
	}
}

func (s *suite) exactForSeveral() {
	const limit = 300
	l := s.limiter("several",
		core.FixedWindow(core.Rate{Events: 2 * limit, Per: 400 * 24 * time.Hour}).Named("window"),
		core.SlidingLog(core.PerDay(limit)).Named("log"),
		core.TokenBucket(core.Rate{Events: 1, Per: time.Hour}, 3*limit).Named("bucket"))
	got := s.hammer(100, 8, func(int) (core.Decision, error) { return l.Allow(s.Context(), "key") })
	if got != limit {
		s.Errorf("admitted %d, want %d", got, limit)
	}
	d := s.allow(l, "key", 1)
	for i, want := range []int64{limit, 0, 2 * limit} {
		if a := d.Answer(i); a.Remaining != want {
			s.Errorf("%s has %d left, want %d", a.Policy, a.Remaining, want)
		}
	}
}

// exactWithRefunds: the units in use never exceed the limit, and after all refunds none
// is used.
func (s *suite) exactWithRefunds() {
	const limit = 20
	long := core.Rate{Events: limit, Per: 400 * 24 * time.Hour}
	for name, p := range map[string]core.Policy{
		"TokenBucket":   core.TokenBucket(core.Rate{Events: 1, Per: time.Hour}, limit),
		"FixedWindow":   core.FixedWindow(long),
		"FromFirst":     core.FixedWindow(long).FromFirst(),
		"SlidingWindow": core.SlidingWindow(long),
		"SlidingLog":    core.SlidingLog(long),
	} {
		l := s.limiter(name, p)
		var held atomic.Int64
		s.hammer(50, 20, func(int) (core.Decision, error) {
			d, err := l.AllowN(s.Context(), "key", 3)
			if err != nil || !d.Allowed {
				return d, err
			}
			if n := held.Add(3); n > limit {
				s.Errorf("%s: %d units of %d are held", name, n, limit)
			}
			held.Add(-3)
			return d, d.Refund(s.Context())
		})
		if got := s.left(l, "key"); got != limit {
			s.Errorf("%s: %d left when all is given back, want %d", name, got, limit)
		}
	}
}

func (s *suite) exactAcross() {
	const limit = 300
	a := s.limiter("a", core.SlidingLog(core.PerDay(limit)))
	b := s.limiter("b", core.TokenBucket(core.Rate{Events: 1, Per: time.Hour}, 2*limit))
	got := s.hammer(100, 8, func(i int) (core.Decision, error) {
		charges := []core.Charge{{Limiter: a, Key: "x", N: 1}, {Limiter: b, Key: "y", N: 1}}
		if i%2 == 0 {
			charges[0], charges[1] = charges[1], charges[0]
		}
		return core.AllowAll(s.Context(), charges...)
	})
	if left := s.left(b, "y"); got != limit || left != limit {
		s.Errorf("admitted %d, want %d; the other limit has %d left, want %d", got, limit, left, limit)
	}
}

func (s *suite) keys() {
	l := s.limiter("keys", core.FixedWindow(core.Rate{Events: 1, Per: 400 * 24 * time.Hour}))
	for _, key := range []string{
		"", " ", "}", "{", "{}", "{a}", "}{", "a:b", "a", "b", "a:", ":b", "a/b", "~", "~7b", "=", "#", "*", "%00",
		"\x00", "\x00\x00", "\xff\xfe", "\n", "é", "e\u0301",
		strings.Repeat("k", 127), strings.Repeat("k", 128), strings.Repeat("k", 129), strings.Repeat("k", 10_000), strings.Repeat("k", 10_001),
	} {
		if d := s.allow(l, key, 1); !d.Allowed {
			s.Errorf("key %.20q of %d bytes shares a limit with another", key, len(key))
		}
		if d := s.allow(l, key, 1); d.Allowed {
			s.Errorf("key %.20q of %d bytes is not remembered", key, len(key))
		}
	}
}

func (s *suite) names() {
	one := core.FixedWindow(core.Rate{Events: 1, Per: 400 * 24 * time.Hour})
	pace := core.MinInterval(400 * 24 * time.Hour)
	for _, c := range []struct{ limiter, policy, key string }{
		{"a", "p", "bc"}, {"ab", "p", "c"}, {"a", "p", "b:c"}, {"a:b", "p", "c"}, {"a", "b:c", "d"}, {"a:b", "c", "d"},
		{"a/b", "c", "d"}, {"a", "b/c", "d"}, {"a", "b", "c/d"}, {"{a}", "p", "k"}, {"a", "{p}", "k"}, {"a~3ab", "c", "d"}, {"=", "=", "="},
	} {
		l := s.limiter(c.limiter, one.Named(c.policy), pace.Named(c.policy+"'"))
		if d := s.allow(l, c.key, 1); !d.Allowed {
			s.Errorf("%q, %q, %q share a state with others", c.limiter, c.policy, c.key)
		}
	}
}

func (s *suite) sharing() {
	p := core.FixedWindow(core.Rate{Events: 2, Per: 400 * 24 * time.Hour})
	s.allow(s.limiter("one", p), "key", 1)
	if got := s.left(s.limiter("one", p), "key"); got != 1 {
		s.Errorf("a limiter of the same name has %d left, want 1", got)
	}
	if got := s.left(s.limiter("two", p), "key"); got != 2 {
		s.Errorf("a limiter of another name has %d left, want 2", got)
	}
	if got := s.left(s.limiter("one", core.SlidingLog(core.PerDay(2))), "key"); got != 2 {
		s.Errorf("a limiter of the same name and another algorithm has %d left, want 2", got)
	}
}

func (s *suite) numbersChange() {
	for _, c := range []struct {
		name     string
		old, new core.Policy
		left     int64 // of the new, after 6 of the old
	}{
		{"bucket", core.TokenBucket(core.PerSecond(10), 10), core.TokenBucket(core.PerHour(100), 100), 94},
		{"shrunk", core.TokenBucket(core.PerHour(10), 10), core.TokenBucket(core.PerHour(5), 5), 0},
		{"window", core.FixedWindow(core.PerDay(10)), core.FixedWindow(core.PerDay(100)), 94},
		{"window from the first", core.FixedWindow(core.PerDay(10)), core.FixedWindow(core.PerHour(8)).FromFirst(), 2},
		{"log", core.SlidingLog(core.PerDay(10)), core.SlidingLog(core.PerHour(8)), 2},
		{"sub-windows", core.SlidingWindow(core.PerDay(10)), core.SlidingWindow(core.PerDay(20)).Resolution(4), 14},
	} {
		l := s.limiter(c.name, c.old)
		s.allow(l, "key", 6)
		changed, err := l.With(c.new)
		if err != nil {
			s.Fatal(err)
		}
		if got := s.left(changed, "key"); got != c.left {
			s.Errorf("%s: %d left under the new numbers, want %d", c.name, got, c.left)
		}
	}
}

// retryAfterChange: a key that has used up one plan and moves to another waits as long as
// the first refusal says, neither as long as in the old plan nor longer with each call.
func (s *suite) retryAfterChange() {
	for _, c := range []struct {
		name     string
		old, new core.Policy
	}{
		{"faster bucket", core.TokenBucket(core.PerDay(5), 5), core.TokenBucket(core.PerSecond(100), 5)},
		{"slower bucket", core.TokenBucket(core.PerMinute(5), 5), core.TokenBucket(core.PerHour(5), 5)},
		{"smaller bucket", core.TokenBucket(core.PerMinute(5), 5), core.TokenBucket(core.PerMinute(5), 3)},
		{"smaller and slower bucket", core.TokenBucket(core.PerMinute(5), 5), core.TokenBucket(core.PerHour(7), 3)},
		{"smaller and faster bucket", core.TokenBucket(core.PerHour(7), 5), core.TokenBucket(core.PerMinute(5), 3)},
		{"shorter window", core.FixedWindow(core.PerDay(5)), core.FixedWindow(core.PerMinute(5))},
		{"longer window", core.FixedWindow(core.PerMinute(5)), core.FixedWindow(core.PerHour(5))},
		{"shorter window from the first", core.FixedWindow(core.PerDay(5)).FromFirst(), core.FixedWindow(core.PerMinute(5)).FromFirst()},
		{"longer window from the first", core.FixedWindow(core.PerMinute(5)).FromFirst(), core.FixedWindow(core.PerHour(5)).FromFirst()},
		{"window from the first", core.FixedWindow(core.PerMinute(5)), core.FixedWindow(core.PerMinute(5)).FromFirst()},
		{"shorter sub-windows", core.SlidingWindow(core.PerDay(5)), core.SlidingWindow(core.PerMinute(5))},
		{"longer sub-windows", core.SlidingWindow(core.PerMinute(5)), core.SlidingWindow(core.PerDay(5)).Resolution(3)},
		{"shorter log", core.SlidingLog(core.PerDay(5)), core.SlidingLog(core.PerMinute(5))},
		{"longer log", core.SlidingLog(core.PerMinute(5)), core.SlidingLog(core.PerDay(5))},
		{"shorter distance", core.MinInterval(time.Hour), core.MinInterval(time.Minute)},
		{"longer distance", core.MinInterval(time.Minute), core.MinInterval(time.Hour)},
	} {
		l := s.limiter(c.name, c.old)
		s.allow(l, "key", 5)
		changed, err := l.With(c.new)
		if err != nil {
			s.Fatal(err)
		}
		s.Advance(3 * time.Second)
		n := min(c.new.Limit(), 3)
		d := s.allow(changed, "key", n)
		if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter == core.Never {
			s.Errorf("%s: %v", c.name, d)
			continue
		}
		half := (d.RetryAfter / 2).Truncate(time.Microsecond)
		s.Advance(half)
		if early := s.allow(changed, "key", n); early.Allowed || early.RetryAfter != d.RetryAfter-half {
			s.Errorf("%s: %v, and after half of that: %v", c.name, d, early)
		}
		s.Advance(d.RetryAfter - half)
		if again := s.allow(changed, "key", n); !again.Allowed {
			s.Errorf("%s: %v, and then: %v", c.name, d, again)
		}
	}
}

func (s *suite) resetRefundSettle() {
	ctx := context.WithoutCancel(s.Context())
	for name, p := range three() {
		l := s.limiter(name, p)
		d := s.allow(l, "key", 3)
		if err := d.Refund(ctx); err != nil {
			s.Fatal(err)
		}
		if got := s.left(l, "key"); got != 3 {
			s.Errorf("%s: %d left after a refund, want 3", name, got)
		}
		d = s.allow(l, "key", 2)
		if uncovered, err := d.Settle(ctx, 1); err != nil || uncovered != 0 {
			s.Errorf("%s: %d uncovered, %v", name, uncovered, err)
		}
		if got := s.left(l, "key"); got != 2 {
			s.Errorf("%s: %d left after settling 2 to 1, want 2", name, got)
		}
		d = s.allow(l, "key", 1)
		if uncovered, err := d.Settle(ctx, 5); err != nil || uncovered != 3 {
			s.Errorf("%s: %d uncovered of 4 more where 1 is left, want 3; %v", name, uncovered, err)
		}
		if got := s.left(l, "key"); got != 0 {
			s.Errorf("%s: %d left after settling above the limit, want 0", name, got)
		}
		if err := l.Reset(ctx, "key"); err != nil {
			s.Fatal(err)
		}
		if got := s.left(l, "key"); got != 3 {
			s.Errorf("%s: %d left after a reset, want 3", name, got)
		}
	}
}

// decidesAsTheStepsDo compares every answer with the reference's.
func (s *suite) decidesAsTheStepsDo() {
	sec := time.Second
	small := core.Rate{Events: 7, Per: 3 * sec}
	for i, set := range [][]core.Policy{
		{core.TokenBucket(small, 9)},
		{core.TokenBucket(core.PerDay(1_000_000), 1000)},
		{core.TokenBucket(small, 9).Debt(40)},
		{core.TokenBucket(small, 9).Debt(0)},
		{core.FixedWindow(small)},
		{core.FixedWindow(small).CountDenied()},
		{core.FixedWindow(small).FromFirst()},
		{core.FixedWindow(small).FromFirst().CountDenied()},
		{core.SlidingWindow(small)},
		{core.SlidingWindow(small).Resolution(1)},
		{core.SlidingWindow(small).Resolution(7).NeverOver()},
		{core.SlidingWindow(small).CountDenied()},
		{core.SlidingLog(small)},
		{core.SlidingLog(core.Rate{Events: 150, Per: 9 * sec})},
		{core.SlidingLog(small).CountDenied()},
		{core.MinInterval(400 * time.Millisecond)},
		{core.SlidingLog(small).Named("a"), core.TokenBucket(small, 3).Named("b")},
		{core.FixedWindow(small).CountDenied().Named("a"), core.MinInterval(sec / 4).Named("b"), core.SlidingWindow(small).Named("c")},
	} {
		rng := rand.New(rand.NewPCG(uint64(i), 42))
		pair := &compared{Store: s.store, suite: s, reference: reference.New(s.Now)}
		newLimiter := func(name string, p ...core.Policy) *core.Limiter {
			l, err := core.New(pair, fmt.Sprint(name, i), p...)
			if err != nil {
				s.Fatal(err)
			}
			return l
		}
		first := newLimiter("set", set...)
		changed, err := first.With(scaled(set)...)
		if err != nil {
			s.Fatal(err)
		}
		walk(s, rng, []*core.Limiter{first, first, changed}, newLimiter("other", core.TokenBucket(core.PerMinute(40), 20)))
	}
}

// scaled returns the policies with other parameters. Those of MinInterval stay: a store
// may or may not have dropped a state that is fresh under the parameters that it was
// stored with, and a longer distance would show which.
func scaled(set []core.Policy) []core.Policy {
	changed := slices.Clone(set)
	for i, p := range set {
		if p.Limit() > 1 {
			changed[i] = p.Share(2)
		}
	}
	return changed
}

// A walker makes random calls.
type walker struct {
	*suite

	rng      *rand.Rand
	limiters []*core.Limiter
	other    *core.Limiter
	open     []core.Decision // that may be settled
	more     []store.Charge  // with an Extra, to be settled
}

// walk makes random calls.
func walk(s *suite, rng *rand.Rand, limiters []*core.Limiter, other *core.Limiter) {
	w := &walker{suite: s, rng: rng, limiters: limiters, other: other}
	for range s.Operations {
		switch rng.IntN(4) {
		case 0:
			s.Advance(time.Duration(rng.Int64N(500_000)) * time.Microsecond)
		case 1:
			if rng.IntN(10) == 0 {
				s.Advance(time.Duration(rng.Int64N(10_000_000)) * time.Microsecond)
			}
		}
		if err := w.call(); err != nil {
			s.Fatal(err)
		}
	}
}

func (w *walker) call() (err error) {
	l, key, n := w.limiters[w.rng.IntN(len(w.limiters))], string(rune('a'+w.rng.IntN(2))), int64(1)
	if w.rng.IntN(3) == 0 {
		n = 1 + w.rng.Int64N(8)
	}
	switch op := w.rng.IntN(19); {
	case op >= 16:
		err = w.count(l, key, n)
	case op == 12 && len(w.more) > 0:
		i := w.rng.IntN(len(w.more))
		err = asking.Settle(w.Context(), l.Store(), w.more[i])
		w.more = slices.Delete(w.more, i, i+1)
	case op >= 12:
		err = w.extra(l, key, n)
	case op == 0:
		_, err = l.Peek(w.Context(), key)
	case op == 1:
		err = w.rare(l, key, n)
	case op == 2:
		_, err = core.AllowAll(w.Context(), core.Charge{Limiter: l, Key: key, N: n}, core.Charge{Limiter: w.other, Key: key, N: 1})
	case op <= 4 && len(w.open) > 0:
		i := w.rng.IntN(len(w.open))
		d := w.open[i]
		w.open = slices.Delete(w.open, i, i+1)
		if w.rng.IntN(2) == 0 {
			err = d.Refund(w.Context())
		} else if _, err = d.Settle(w.Context(), w.rng.Int64N(10)); err != nil { // it has two charges
			_, err = d.Settle(w.Context(), w.rng.Int64N(10), w.rng.Int64N(10))
		}
		if errors.Is(err, core.ErrSettled) {
			err = nil // all of it was counted anyway
		}
	default:
		var d core.Decision
		d, err = l.AllowN(w.Context(), key, n)
		if d.Allowed && w.rng.IntN(2) == 0 {
			w.open = append(w.open, d)
		}
	}
	return err
}

// extra allows a charge, or peeks at it, with extra units.
func (w *walker) extra(l *core.Limiter, key string, n int64) error {
	c := store.Charge{Limiter: l.Prepared(), Key: key, N: min(n, l.Prepared().Spec().Most())}
	q := &store.Question{Charges: []store.Charge{c}, Extra: 1 + w.rng.Int64N(10)}
	if w.rng.IntN(4) == 0 {
		q.Extra = 2000
	}
	if w.rng.IntN(4) == 0 {
		q.Mode = store.Peek
	}
	r, err := asking.Ask(w.Context(), l.Store(), q)
	if r.Allowed && q.Mode == store.Allow && w.rng.IntN(2) == 0 {
		c.N += r.Extra
		w.more = append(w.more, asking.Settled(c, &r, w.rng.Int64N(2*c.N)))
	}
	return err
}

// count makes calls with units that count anyway, and such that only check.
func (w *walker) count(l *core.Limiter, key string, n int64) (err error) {
	one, other := core.Charge{Limiter: l, Key: key, N: n}, core.Charge{Limiter: w.other, Key: key, N: 1 + w.rng.Int64N(30)}
	one.Anyway, other.Anyway = w.rng.IntN(2) == 0, w.rng.IntN(2) == 0
	if w.rng.IntN(3) == 0 {
		one.N = 0
	}
	switch w.rng.IntN(6) {
	case 0:
		_, _, err = core.ReportAll(w.Context(), core.Charge{Limiter: l, Key: key, N: n * n}, other)
	case 1:
		_, _, err = l.Report(w.Context(), key, n)
	case 2:
		_, err = l.AllowN(w.Context(), key, 0)
	case 3:
		_, err = core.PeekAll(w.Context(), one, other)
	case 4:
		_, err = core.AllowAll(w.Context(), one)
	default:
		var d core.Decision
		if d, err = core.AllowAll(w.Context(), one, other); d.Allowed {
			w.open = append(w.open, d)
		}
	}
	return err
}

// rare resets, or peeks at several charges, or counts what is refused elsewhere.
func (w *walker) rare(l *core.Limiter, key string, n int64) error {
	if w.rng.IntN(10) == 0 {
		return l.Reset(w.Context(), key)
	}
	q := &store.Question{Mode: []store.Mode{store.Peek, store.Refuse}[w.rng.IntN(2)]}
	q.Charges = append(q.Charges, store.Charge{Limiter: l.Prepared(), Key: key, N: min(n, l.Prepared().Spec().Most())})
	if w.rng.IntN(2) == 0 {
		q.Charges = append(q.Charges, store.Charge{Limiter: w.other.Prepared(), Key: key, N: 1})
	}
	_, err := asking.Ask(w.Context(), l.Store(), q)
	return err
}
