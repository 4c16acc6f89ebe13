package step_test

import (
	"flag"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/old/core/step"
)

const (
	second = int64(time.Second / time.Microsecond)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour

	// noon is an instant of our days that begins a window of every usual length.
	noon = 1_763_726_400 * second // 2025-11-21 12:00 UTC

	// horizon keeps instants where the longest span still fits behind them.
	horizon = 1<<52 - 1
)

// subjects are the policies of the tests: the rates that must work, primes, the
// least and the largest.
var subjects = []step.Numbers{
	bucket(7, second, 7),
	bucket(7, second, 1),
	bucket(3, 7, 5),
	bucket(1_000_000, second, 1_000_000),
	bucket(1_000_000, day, 1000),
	bucket(1_000_000_000, 30*day, 1_000_000),
	bucket(1, 366*day, 3),
	bucket(104_729, 86_399_999_989, 1009),
	bucket(1, step.MaxSpan, 1),
	bucket(1, 1, step.MaxSpan),
	bucket(94_906_265, 94_906_267, 94_906_265), // products just below 2^53
	debt(bucket(7, second, 7), 7),
	debt(bucket(3, 7, 5), 1),
	debt(bucket(1, second, 10), 200),
	debt(bucket(1_000_000, day, 1000), 1_000_000),
	debt(bucket(1, 1, 1), step.MaxSpan-1),
	debt(bucket(94_906_265, 94_906_267, 1), 94_906_264),

	fixed(10, minute),
	fixed(7, second),
	fixed(3, 7),
	fixed(1_000_000, second),
	fixed(1_000_000_000, 30*day),
	fixed(1, 366*day),
	fixed(step.MaxInt, step.MaxSpan),
	denied(fixed(10, minute)),
	fromFirst(fixed(10, minute)),
	fromFirst(fixed(3, 7)),
	fromFirst(fixed(1, 366*day)),
	fromFirst(fixed(step.MaxInt, step.MaxSpan)),
	fromFirst(denied(fixed(10, minute))),
	denied(fixed(step.MaxInt, 1)),

	sliding(100, hour, 1),
	sliding(10, minute, 10),
	sliding(7, second, 3),
	sliding(1, 1, 1),
	sliding(5, 100, 7),
	sliding(1_000_000, second, 10),
	sliding(1_000_000, day, 60),
	sliding(1_000_000_000, 30*day, 7),
	sliding(1, 366*day, 12),
	sliding(step.MaxInt, step.MaxSpan, 2),
	sliding(1009, 86_399_999_989, step.MaxResolution),
	denied(sliding(10, minute, 1)),
	denied(sliding(10, minute, 10)),
	denied(sliding(step.MaxInt, day, step.MaxResolution)),

	never(sliding(10, minute, 1)),
	never(sliding(100, hour, 12)),
	never(sliding(5, 100, 7)),
	never(sliding(step.MaxInt, step.MaxSpan, 1)),
	never(denied(sliding(10, minute, 4))),

	log(10, minute),
	log(1, second),
	log(3, 7),
	log(101, day),
	log(1, step.MaxSpan),
	denied(log(10, minute)),
	denied(log(1, 1)),

	interval(100 * second / 1000),
	interval(1),
	interval(366 * day),
	interval(step.MaxSpan),

	{Algorithm: step.Unlimited},
	{Algorithm: step.Blocked},
}

func bucket(n, per, burst int64) step.Numbers {
	return step.Numbers{Algorithm: step.TokenBucket, Limit: n, Period: per, Burst: burst}
}

func fixed(n, per int64) step.Numbers {
	return step.Numbers{Algorithm: step.FixedWindow, Limit: n, Period: per}
}

func sliding(n, per, k int64) step.Numbers {
	return step.Numbers{Algorithm: step.SlidingWindow, Limit: n, Period: per, Resolution: k}
}

func log(n, per int64) step.Numbers {
	return step.Numbers{Algorithm: step.SlidingLog, Limit: n, Period: per}
}

func interval(d int64) step.Numbers {
	return step.Numbers{Algorithm: step.MinInterval, Limit: 1, Period: d}
}

func never(m step.Numbers) step.Numbers  { m.NeverOver = true; return m }
func denied(m step.Numbers) step.Numbers { m.CountDenied = true; return m }

func fromFirst(m step.Numbers) step.Numbers { m.FromFirst = true; return m }

func debt(m step.Numbers, units int64) step.Numbers { m.Debt = units; return m }

// describe names a subtest.
func describe(m step.Numbers) string {
	s := fmt.Sprintf("%v,%d per %dus", m.Algorithm, m.Limit, m.Period)
	if m.Burst > 0 {
		s += fmt.Sprintf(",burst %d", m.Burst)
	}
	if m.Debt > 0 {
		s += fmt.Sprintf(",debt %d", m.Debt)
	}
	if m.Resolution > 0 {
		s += fmt.Sprintf(",in %d", m.Resolution)
	}
	if m.NeverOver {
		s += ",never over"
	}
	if m.CountDenied {
		s += ",denied counted"
	}
	if m.FromFirst {
		s += ",from the first"
	}
	return s
}

// A key is one key under one step, kept as a store would keep it, beside its model.
type key struct {
	step    step.Step
	numbers step.Numbers
	state   []int64 // nil until the first write
	words   int     // the longest that the state may be
	model   model

	largest step.Step // of those that mean the same as the step
	others  []other
	until   int64 // of the state, if there are others
}

func newKey(t failer, m step.Numbers) *key {
	t.Helper()
	s, err := step.New(m)
	if err != nil {
		t.Fatalf("New(%+v): %v", m, err)
	}
	if got := s.Numbers(); got != m {
		t.Fatalf("Numbers() = %+v, want %+v", got, m)
	}
	return &key{step: s, numbers: m, words: s.MaxWords(), model: newModel(m), largest: s}
}

// A failer is what *testing.T and *rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// open gives the key a state that can be written.
func (k *key) open() {
	if k.state == nil {
		k.state = make([]int64, k.step.Words())
	}
}

// ask makes the moves of a store, on step and model alike.
func (k *key) ask(t failer, now, n int64) bool {
	t.Helper()
	admitted := k.step.Admits(k.state, now, n)
	if want := admits(k.model, k.numbers, now, n); admitted != want {
		t.Fatalf("at %d: Admits(%d) = %v, want %v\nstate %v", now, n, admitted, want, k.state)
	}
	switch {
	case admitted:
		k.open()
		k.state = k.step.Charge(k.state, now, n)
		k.model.charge(now, n)
		k.count(now, n)
	case k.numbers.CountDenied && n <= k.step.Max():
		k.open()
		k.state = k.step.Refuse(k.state, now, n)
		k.model.refuse(now, n)
	}
	k.renew(t, now)
	return admitted
}

// settle corrects a charge, on step and model alike.
func (k *key) settle(t failer, now, at, n, actual int64) {
	t.Helper()
	left := remaining(k.model, k.numbers, now)
	before := slices.Clone(k.state)
	state, changed, uncovered := step.Settle(k.step, k.state, now, at, n, actual, k.largest.Max())
	if !changed && !slices.Equal(state, before) {
		t.Fatalf("at %d: %d settled to %d changed %v to %v without saying so", now, n, actual, before, state)
	}
	k.state = state
	if k.numbers.Algorithm == step.MinInterval && actual > 0 {
		actual = n // it counts calls, and the call took place
	}
	want := int64(0)
	switch {
	case actual < n:
		k.model.giveBack(now, at, n-actual)
	case actual > n:
		want = max(actual-n-left, 0)
		k.model.report(now, actual-n, k.largest.Max())
		k.count(now, actual-n)
	}
	k.renew(t, now)
	if uncovered != want {
		t.Fatalf("at %d: %d settled to %d with %d left: %d uncovered, want %d", now, n, actual, left, uncovered, want)
	}
}

// report counts what has been used, on step and model alike. What the key admits after it, it would
// have admitted without, and if the units fit, it is as if they had been admitted.
func (k *key) report(t failer, now, n int64) {
	t.Helper()
	before, fits := slices.Clone(k.state), k.step.Admits(k.state, now, n)
	k.open()
	k.state = k.step.Report(k.state, now, n, k.largest.Max())
	k.model.report(now, n, k.largest.Max())
	k.count(now, n)
	k.renew(t, now)
	if before == nil {
		before = make([]int64, k.step.Words())
	}
	for _, later := range []int64{0, 1, k.numbers.Period / 3, k.numbers.Period - 1, k.numbers.Period, 2 * k.numbers.Period} {
		if k.numbers.FromFirst && later >= k.numbers.Period-1 {
			break // it may have begun a window
		}
		for _, more := range []int64{1, n, k.step.Max()} {
			if k.step.Admits(k.state, now+later, more) && !k.step.Admits(before, now+later, more) {
				t.Fatalf("at %d, %d after %d units were reported, %d fit; not without\nstate %v, before %v", now, later, n, more, k.state, before)
			}
		}
		if fits && k.numbers.Algorithm != step.MinInterval {
			k.same(t, k.state, k.step.Charge(slices.Clone(before), now, n), now+later, n)
		}
	}
}

// check compares everything that the step tells at now with the model, and with
// what the step itself tells later.
func (k *key) check(t failer, now, n int64) {
	t.Helper()
	before := slices.Clone(k.state)
	s, d, m := k.step, k.model, k.numbers

	if got, want := s.Admits(k.state, now, n), admits(d, m, now, n); got != want {
		t.Fatalf("at %d: Admits(%d) = %v, want %v\nstate %v", now, n, got, want, before)
	}
	r := s.Read(k.state, now, n)
	if want := remaining(d, m, now); r.Remaining != want {
		t.Fatalf("at %d: Remaining %d, want %d\nstate %v", now, r.Remaining, want, before)
	}

	// A check of 0 says whether the limit is exceeded, and for how long.
	if m.Algorithm != step.SlidingLog && m.Algorithm != step.MinInterval {
		over := d.used(now).Cmp(rat(limit(m))) > 0
		r := s.Read(k.state, now, 0)
		if s.Admits(k.state, now, 0) == over || (r.RetryAfter > 0) != over {
			t.Fatalf("at %d: above the limit %t, Admits(0) %t, RetryAfter %d\nstate %v", now, over, !over, r.RetryAfter, before)
		}
		if over && (!s.Admits(k.state, now+r.RetryAfter, 0) || s.Admits(k.state, now+r.RetryAfter-1, 0)) {
			t.Fatalf("at %d: above the limit for %d\nstate %v", now, r.RetryAfter, before)
		}
	}

	// Room is the end of what is admitted.
	room := step.Room(s, k.state, now)
	if room < step.MaxInt && admits(d, m, now, room+1) || room > 0 && !admits(d, m, now, room) {
		t.Fatalf("at %d: Room %d of %v\nstate %v", now, room, d.used(now), before)
	}
	for _, n := range []int64{1, n, room - 1, room, room + 1, room/2 + 1, s.Max(), s.Max() + 1, step.MaxInt} {
		if 0 < n && n <= step.MaxInt && s.Admits(k.state, now, n) != (n <= room) {
			t.Fatalf("at %d: Admits(%d) = %v, and Room is %d\nstate %v", now, n, n > room, room, before)
		}
	}

	// RetryAfter suffices, and is tight.
	fits := func(d model, at int64) bool { return admits(d, m, at, n) }
	switch {
	case n > s.Max():
		if r.RetryAfter != step.Never {
			t.Fatalf("at %d: RetryAfter of %d units %d, want Never", now, n, r.RetryAfter)
		}
	case !fits(d, now+r.RetryAfter) || !s.Admits(k.state, now+r.RetryAfter, n):
		t.Fatalf("at %d: %d units do not fit after RetryAfter %d\nstate %v", now, n, r.RetryAfter, before)
	case r.RetryAfter > 0 && (fits(d, now+r.RetryAfter-1) || s.Admits(k.state, now+r.RetryAfter-1, n)):
		t.Fatalf("at %d: %d units fit before RetryAfter %d\nstate %v", now, n, r.RetryAfter, before)
	}

	// NextAfter brings one more unit, and not before.
	used := func(at int64) bool { return d.used(at).Sign() > 0 }
	switch {
	case !used(now):
		if r.NextAfter != 0 {
			t.Fatalf("at %d: nothing is used, and NextAfter is %d", now, r.NextAfter)
		}
	case remaining(d, m, now+r.NextAfter) <= r.Remaining:
		t.Fatalf("at %d: no more than %d units after NextAfter %d\nstate %v", now, r.Remaining, r.NextAfter, before)
	case remaining(d, m, now+r.NextAfter-1) > r.Remaining:
		t.Fatalf("at %d: more than %d units before NextAfter %d\nstate %v", now, r.Remaining, r.NextAfter, before)
	}

	// ResetAfter is the end of all use.
	switch {
	case used(now + r.ResetAfter):
		t.Fatalf("at %d: still used after ResetAfter %d\nstate %v", now, r.ResetAfter, before)
	case r.ResetAfter > 0 && !used(now+r.ResetAfter-1):
		t.Fatalf("at %d: unused before ResetAfter %d\nstate %v", now, r.ResetAfter, before)
	}

	k.checkFresh(t, now, n)
	if !slices.Equal(k.state, before) {
		t.Fatalf("at %d: reading changed %v to %v", now, before, k.state)
	}
	if len(k.state) > k.words {
		t.Fatalf("at %d: a state of %d words, and MaxWords is %d", now, len(k.state), k.words)
	}
	for _, w := range k.state {
		if w < 0 || w > step.MaxInt {
			t.Fatalf("at %d: state %v has a word outside 0 to 2^53-1", now, k.state)
		}
	}
}

// checkFresh: from FreshAt on, the state does as nil does, and just before not.
func (k *key) checkFresh(t failer, now, n int64) {
	t.Helper()
	if k.state == nil {
		k.same(t, nil, make([]int64, k.step.Words()), now, n)
		return
	}
	fresh := k.step.FreshAt(k.state)
	for _, later := range []int64{0, 1, k.numbers.Period, 3 * k.numbers.Period} {
		k.same(t, nil, k.state, max(fresh, 1)+later, n)
	}
	if fresh <= 1 {
		return // it was never used, or everything was given back
	}
	a, b := k.future(nil, fresh-1, 1), k.future(k.state, fresh-1, 1)
	if a == b {
		t.Fatalf("state %v is fresh before FreshAt %d: %+v", k.state, fresh, a)
	}
}

// A future is all that can be seen of a state at an instant: what it answers, and
// what it answers after a charge.
type future struct {
	admitted      bool
	before, after step.Reading
}

func (k *key) future(state []int64, now, n int64) future {
	f := future{admitted: k.step.Admits(state, now, n), before: k.step.Read(state, now, n)}
	if f.admitted {
		if state == nil {
			state = make([]int64, k.step.Words())
		}
		f.after = k.step.Read(k.step.Charge(slices.Clone(state), now, n), now, n)
	}
	return f
}

// same compares everything that can be seen of two states.
func (k *key) same(t failer, a, b []int64, now, n int64) {
	t.Helper()
	for _, n := range []int64{1, n, k.step.Max(), min(k.step.Max()+1, step.MaxInt)} {
		if n > 1_000_000 && k.numbers.Algorithm == step.SlidingLog {
			continue
		}
		if x, y := k.future(a, now, n), k.future(b, now, n); x != y {
			t.Fatalf("at %d, %d units: %+v with state %v, and %+v with %v", now, n, x, a, y, b)
		}
	}
}

// A charge that was admitted, and what of it was not given back.
type event struct {
	at    int64 // as told to the step
	clock int64 // the latest instant of any charge up to this one
	time  int64 // a clock that stood still while the step's went back
	n     int64 // as asked
	net   int64
}

// A schedule is a random life of one key.
type schedule struct {
	*key
	now    int64
	time   int64 // as now, but stands still while that goes back
	newest int64 // the latest that now has been
	events []event
	open   []int // indexes of events that were not settled
	mixed  bool  // the numbers changed, so no promise holds for the whole of it
}

// advance moves the clock: not at all, a little, by what matters to the policy, or
// far; now and then backwards.
func (s *schedule) advance(t *rapid.T) {
	m := s.numbers
	period := max(m.Period, 1)
	spans := []int64{0, 0, 0, 1, period - 1, period, period + 1, 10 * period}
	if m.Limit > 0 {
		unit := period / m.Limit
		spans = append(spans, unit, unit+1, 3*unit)
	}
	if m.Resolution > 0 {
		spans = append(spans, sub(m)-1, sub(m), sub(m)+1, sub(m)/3)
	}
	if m.Burst > 0 {
		fill := ceil(new(big.Rat).Mul(big.NewRat(m.Period, m.Limit), rat(m.Burst)))
		spans = append(spans, fill/2, fill-1, fill, fill+1)
	}
	var d int64
	if rapid.Bool().Draw(t, "usual") {
		d = rapid.SampledFrom(spans).Draw(t, "advance")
	} else {
		d = rapid.Int64Range(0, 2*period).Draw(t, "advance")
	}
	if rapid.IntRange(0, 9).Draw(t, "back") == 9 {
		d = -d
	}
	now := min(max(s.now+d, 1), horizon)
	s.time += max(now-s.now, 0)
	s.now = now
	s.newest = max(s.newest, now)
}

// units draws what is asked for.
func (s *schedule) units(t *rapid.T) int64 {
	most := max(s.step.Max(), 1)
	most = min(most, 1_000_000_000) // near a limit of 2^53 nothing would fill up otherwise, and the largest is below
	return rapid.OneOf(
		rapid.Just[int64](1),
		rapid.SampledFrom([]int64{1, 2, most, most/2 + 1, s.step.Max() - 1, s.step.Max(), s.step.Max() + 1}),
		rapid.Int64Range(1, most),
	).Filter(func(n int64) bool { return 0 < n && n <= step.MaxInt }).Draw(t, "n")
}

// ask asks and notes what was admitted.
func (s *schedule) ask(t *rapid.T) {
	n := s.units(t)
	if !s.key.ask(t, s.now, n) {
		return
	}
	s.open = append(s.open, len(s.events))
	s.note(t, n, units(s.numbers, n))
}

func (s *schedule) note(t *rapid.T, n, net int64) {
	e := event{at: s.now, clock: s.now, time: s.time, n: n, net: net}
	if last := len(s.events) - 1; last >= 0 {
		e.clock = max(e.clock, s.events[last].clock)
	}
	s.events = append(s.events, e)
	if !s.mixed {
		s.bounded(t)
	}
}

// settle settles one of the charges, once, but not one of a token bucket while the clock
// is behind: its state does not show how far, and it may give back what had refilled.
func (s *schedule) settle(t *rapid.T) {
	if len(s.open) == 0 || s.now < s.newest && s.numbers.Algorithm == step.TokenBucket {
		return
	}
	i := rapid.IntRange(0, len(s.open)-1).Draw(t, "which")
	e := &s.events[s.open[i]]
	s.open = slices.Delete(s.open, i, i+1)

	actual := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 2*e.n)).Draw(t, "actual")
	left := remaining(s.model, s.numbers, s.now)
	s.key.settle(t, s.now, e.at, e.n, actual)
	switch more := min(actual-e.n, left); {
	case s.numbers.Algorithm == step.MinInterval:
		e.net = min(actual, 1)
	case actual < e.n:
		e.net = actual
	case more > 0:
		s.note(t, more, more)
	}
}

// bounded holds the promise of the policy against what was admitted and kept: no
// span that ends with the newest event has more than the policy says.
func (s *schedule) bounded(t *rapid.T) {
	m := s.numbers
	end := s.events[len(s.events)-1]
	sum := new(big.Int)
	for i, e := range slices.Backward(s.events) {
		span := end.time - e.time
		most := big.NewInt(limit(m))
		var inside bool
		switch m.Algorithm {
		case step.TokenBucket: // burst + rate*span in any span
			refilled := new(big.Int).Mul(big.NewInt(m.Limit), big.NewInt(span))
			most.Add(most, refilled.Div(refilled, big.NewInt(m.Period)))
			inside = true
		case step.FixedWindow:
			if m.FromFirst { // n in each of the two windows that a period can touch
				inside = span < m.Period
				most.Lsh(most, 1)
			} else { // n in the window of the clock
				inside = e.clock/m.Period == end.clock/m.Period
			}
		case step.SlidingWindow:
			if m.NeverOver { // n in any half-open window
				inside = span < m.Period
			} else { // n in the newest sub-windows
				inside = end.clock/sub(m)-e.clock/sub(m) < m.Resolution
			}
		case step.SlidingLog, step.MinInterval: // n in any half-open window; MinInterval one
			inside = span < m.Period
		case step.Unlimited, step.Blocked:
		}
		if !inside {
			return
		}
		if sum.Add(sum, big.NewInt(e.net)); sum.Cmp(most) > 0 {
			t.Fatalf("%v units were admitted and kept in %d microseconds, from event %d of %+v", sum, span+1, i, s.events)
		}
	}
}

// fewer lowers the number of schedules that properties are tried with, for the rest of the
// test, unless the command line gives it.
func fewer(t *testing.T, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if f.Value.String() != checks {
		return
	}
	if err := flag.Set(f.Name, strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flag.Set(f.Name, checks) })
}

// TestModel runs random schedules of each policy against its model: few of each, as there
// are many policies of each algorithm, and others each time. After every move everything
// that the step reports is compared.
func TestModel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, m := range subjects {
		t.Run(describe(m), func(t *testing.T) {
			n := 40
			if m.Resolution == step.MaxResolution {
				n = 15 // which take as long
			}
			fewer(t, n)
			rapid.Check(t, testModel(m))
		})
	}
}

// testModel returns the property that TestModel tries.
func testModel(m step.Numbers) func(*rapid.T) {
	return func(t *rapid.T) {
		s := &schedule{key: newKey(t, m), now: rapid.SampledFrom([]int64{1, noon, noon + 12_345_678}).Draw(t, "start")}
		for range rapid.IntRange(1, 40).Draw(t, "moves") {
			s.advance(t)
			s.check(t, s.now, s.units(t))
			switch rapid.IntRange(0, 6).Draw(t, "move") {
			case 0:
				s.settle(t)
			case 1:
				n := s.units(t)
				s.report(t, s.now, min(n, step.MaxInt/5)*rapid.SampledFrom([]int64{1, 1, 2, 5}).Draw(t, "times"))
				s.note(t, n, 0) // nothing was admitted, but the clock of the state went on
			default:
				s.ask(t)
			}
			s.check(t, s.now, s.units(t))
		}
	}
}

// TestLaterAdmitsMore: what fits at an instant fits at every later one, so a clock
// that goes back never admits what it would not have admitted before.
func TestLaterAdmitsMore(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, m := range subjects {
		t.Run(describe(m), rapid.MakeCheck(func(t *rapid.T) {
			s := &schedule{key: newKey(t, m), now: noon}
			for range rapid.IntRange(1, 20).Draw(t, "moves") {
				s.advance(t)
				s.ask(t)
			}
			early := s.now
			n := s.units(t)
			was := s.step.Read(s.state, early, n)
			for range 5 {
				s.advance(t)
				if s.now < early {
					early, s.now = s.now, early
					was = s.step.Read(s.state, early, n)
				}
				is := s.step.Read(s.state, s.now, n)
				if s.step.Admits(s.state, early, n) && !s.step.Admits(s.state, s.now, n) {
					t.Fatalf("%d units fit at %d, and not at %d\nstate %v", n, early, s.now, s.state)
				}
				if is.Remaining < was.Remaining || is.RetryAfter > was.RetryAfter || is.ResetAfter > was.ResetAfter {
					t.Fatalf("at %d %+v, and at %d %+v\nstate %v", early, was, s.now, is, s.state)
				}
			}
		}))
	}
}

// TestClockBackLengthensWaits: a clock set back by d lengthens a wait by at most d,
// and shortens none.
func TestClockBackLengthensWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, m := range subjects {
		t.Run(describe(m), rapid.MakeCheck(func(t *rapid.T) {
			s := &schedule{key: newKey(t, m), now: noon}
			for range rapid.IntRange(1, 20).Draw(t, "moves") {
				s.advance(t)
				s.ask(t)
			}
			n := s.units(t)
			d := rapid.Int64Range(0, min(3*max(m.Period, 1), s.now-1)).Draw(t, "d")
			was, is := s.step.Read(s.state, s.now, n), s.step.Read(s.state, s.now-d, n)
			for _, wait := range []struct {
				name    string
				was, is int64
			}{{"RetryAfter", was.RetryAfter, is.RetryAfter}, {"ResetAfter", was.ResetAfter, is.ResetAfter}} {
				if wait.is < wait.was || wait.is-wait.was > d {
					t.Fatalf("back from %d by %d: %s %d was %d\nstate %v", s.now, d, wait.name, wait.is, wait.was, s.state)
				}
			}
		}))
	}
}

// TestStepsAreEqual: equal numbers make equal steps.
func TestStepsAreEqual(t *testing.T) {
	for _, m := range subjects {
		if a, b := newKey(t, m), newKey(t, m); !reflect.DeepEqual(a.step, b.step) {
			t.Errorf("%+v makes %+v and %+v", m, a.step, b.step)
		}
	}
}
