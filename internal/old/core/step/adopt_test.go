package step_test

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/old/core/step"
)

// An other is a state under other numbers, of step and model alike.
type other struct {
	kept  step.Variant
	model model
}

// adopt asks under other numbers from now on, as a store does for a call that is refused:
// of step and model alike.
func (k *key) adopt(t failer, now int64, to step.Numbers) {
	t.Helper()
	fresh := newKey(t, to)
	if len(k.others) == 0 && step.Alike(fresh.step, k.step) {
		k.step, k.numbers, k.largest = fresh.step, to, step.Larger(fresh.step, k.largest)
		k.words = max(k.words, fresh.words)
		k.model.resize(to)
		return
	}
	var all []other
	if k.state != nil && len(k.others) == 0 && (k.step.FreshAt(k.state) > now) != (k.model.fresh() > now) {
		t.Fatalf("at %d: state %v is fresh at %d, the model at %d", now, k.state, k.step.FreshAt(k.state), k.model.fresh())
	}
	if k.state != nil && (len(k.others) > 0 || k.model.fresh() > now) {
		until := k.until
		if len(k.others) == 0 {
			until = k.keptUntil(now)
		}
		k.model.resize(k.largest.Numbers())
		all = append(all, other{step.Variant{Step: k.largest, State: k.state, Until: until}, k.model})
	}
	all = append(all, k.others...)
	var kept []step.Variant
	for _, o := range all {
		kept = append(kept, o.kept)
	}
	before := fmt.Sprint(kept)
	own, others := step.Take(kept, fresh.step, now)
	if after := fmt.Sprint(kept); after != before {
		t.Fatalf("at %d: Take changes %s to %s", now, before, after)
	}

	*k = key{step: fresh.step, numbers: to, state: own.State, words: fresh.words, largest: own.Step}
	var most *other
	for _, o := range all {
		switch {
		case o.kept.Until <= now:
		case step.Alike(o.kept.Step, fresh.step):
			k.model = o.model
			k.words = max(k.words, o.kept.Step.MaxWords())
		default:
			if most == nil || o.shows(now) > most.shows(now) {
				most = &o
			}
			if slices.ContainsFunc(others, func(x step.Variant) bool { return step.Alike(x.Step, o.kept.Step) }) {
				k.others = append(k.others, o)
			}
		}
	}
	switch {
	case k.model != nil:
		k.model.resize(to)
	case most != nil:
		k.model = most.model.adopt(now, to)
	default:
		k.model = fresh.model
	}
	if (own.State == nil) != (k.model == fresh.model) || len(others) != len(k.others) {
		t.Fatalf("at %d: of %s, %v and %v are kept", now, before, own, others)
	}
	k.renew(t, now)
}

// shows is for how long units are remembered, or how many a bucket lacks.
func (o *other) shows(now int64) int64 {
	m := o.kept.Step.Numbers()
	if m.Algorithm == step.TokenBucket {
		return floor(o.model.used(now))
	}
	return window(m)
}

// keptUntil is how long the state is kept if it is used now.
func (k *key) keptUntil(now int64) int64 {
	k.model.resize(k.largest.Numbers())
	defer k.model.resize(k.numbers)
	until := max(k.model.fresh(), now+2*window(k.largest.Numbers()))
	for _, o := range k.others {
		until = max(until, o.kept.Until)
	}
	return min(until, step.MaxInt)
}

// renew is what a store does at the end of a call.
func (k *key) renew(t failer, now int64) {
	t.Helper()
	if len(k.others) == 0 || k.state == nil {
		return
	}
	k.until = k.keptUntil(now)
	var others []step.Variant
	for _, o := range k.others {
		others = append(others, o.kept)
	}
	if kept := step.Keep(k.largest, k.state, now, others); kept.Until != k.until {
		t.Fatalf("at %d: %v is kept until %d, and should be until %d", now, k.state, kept.Until, k.until)
	}
}

// count counts a charge under the other numbers, of step and model alike.
func (k *key) count(now, n int64) {
	kept := make([]step.Variant, len(k.others))
	for i, o := range k.others {
		kept[i] = o.kept
	}
	k.model.resize(k.largest.Numbers())
	until := k.model.fresh()
	k.model.resize(k.numbers)
	step.Count(kept, step.Variant{Step: k.largest, State: k.state}, now, n)
	for i := range k.others {
		k.others[i].kept = kept[i]
		k.others[i].model.count(now, n, until)
	}
}

// TestAdopt: usage counts on when the numbers change.
func TestAdopt(t *testing.T) {
	type charge struct{ at, n int64 }
	for _, test := range []struct {
		name     string
		from     step.Numbers
		charges  []charge // after noon
		to       step.Numbers
		at       int64 // after noon
		left     int64
		resetsAt int64 // after noon
	}{
		{"bucket: 100 of 100/s are 100 of 1/s", bucket(100, second, 100), []charge{{0, 100}}, bucket(1, second, 100), 0, 0, 100 * second},
		{"bucket: and the other way round", bucket(1, second, 100), []charge{{0, 100}}, bucket(100, second, 100), 0, 0, second},
		{"bucket: part of a unit", bucket(1, second, 10), []charge{{0, 1}}, bucket(1, minute, 20), second / 2, 19, second/2 + minute},
		{"bucket: a larger one", bucket(1, second, 10), []charge{{0, 3}}, bucket(1, second, 20), second, 18, 3 * second},
		{"bucket: a smaller one", bucket(100, second, 100), []charge{{0, 100}}, bucket(100, second, 10), 0, 0, second},
		{"bucket: a smaller and faster one", bucket(1, second, 10), []charge{{0, 10}}, bucket(100, second, 5), 0, 0, second / 10},
		{"bucket: a smaller and slower one", bucket(1000, minute, 1000), []charge{{0, 1000}}, bucket(5, day, 5), 0, 0, day},
		{"bucket: the clock back", bucket(1, second, 10), []charge{{0, 10}}, bucket(100, second, 10), -hour, 0, -hour + 3610*second/100},
		{"bucket: refilled is unused", bucket(1, second, 10), []charge{{0, 3}}, bucket(1, hour, 10), 3 * second, 10, 0},
		{"bucket: sevenths", bucket(7, second, 7), []charge{{0, 7}}, bucket(14, second, 7), 142_857, 0, 142_857 + 500_000},

		{"fixed: lower", fixed(10, minute), []charge{{0, 4}}, fixed(5, minute), 1, 1, minute},
		{"fixed: below what is used", fixed(10, minute), []charge{{0, 4}}, fixed(3, minute), 1, 0, minute},
		{"fixed: higher", fixed(10, minute), []charge{{0, 10}}, fixed(100, minute), 1, 90, minute},
		{"fixed: longer", fixed(10, minute), []charge{{70 * second, 4}}, fixed(10, hour), 80 * second, 6, hour},
		{"fixed: shorter", fixed(10, hour), []charge{{0, 4}}, fixed(10, minute), 90 * second, 6, 2 * minute},
		{"fixed: windows that do not nest", fixed(10, minute), []charge{{0, 4}}, fixed(10, 7), minute - 1, 6, minute/7*7 + 7 - noon%7},

		{"first: lower", fromFirst(fixed(10, minute)), []charge{{second, 4}}, fromFirst(fixed(5, minute)), 2 * second, 1, 61 * second},
		{"first: shorter", fromFirst(fixed(10, hour)), []charge{{second, 4}}, fromFirst(fixed(10, minute)), 90 * second, 6, 150 * second},
		{"first: longer", fromFirst(fixed(10, minute)), []charge{{second, 4}}, fromFirst(fixed(10, hour)), 30 * second, 6, hour + 30*second},
		{"first: from the clock's", fixed(10, minute), []charge{{second, 4}}, fromFirst(fixed(10, minute)), 30 * second, 6, 90 * second},
		{"first: to the clock's", fromFirst(fixed(10, minute)), []charge{{30 * second, 4}}, fixed(10, minute), 70 * second, 6, 2 * minute},

		{"sliding: lower", sliding(10, minute, 10), []charge{{0, 4}}, sliding(5, minute, 10), 1, 1, 66 * second},
		{"sliding: finer", sliding(100, hour, 1), []charge{{0, 84}, {hour, 6}}, sliding(100, hour, 2), 75 * minute, 10, 150 * minute},
		{"sliding: coarser", sliding(100, hour, 2), []charge{{0, 84}, {hour, 6}}, sliding(100, hour, 1), 75 * minute, 31, 3 * hour},
		{"sliding: the same in ten minutes", sliding(10, hour, 6), []charge{{0, 4}, {10 * minute, 3}}, sliding(10, 10*minute, 1), 19 * minute, 6, 30 * minute},
		{"sliding: never over", sliding(10, minute, 1), []charge{{0, 4}}, never(sliding(10, minute, 1)), 119 * second, 6, 2 * minute},
		{"sliding: and back", never(sliding(10, minute, 1)), []charge{{0, 4}}, sliding(10, minute, 1), 119 * second, 9, 2 * minute},

		{"log: lower", log(10, minute), []charge{{0, 4}, {second, 2}}, log(5, minute), second, 0, 61 * second},
		{"log: higher", log(10, minute), []charge{{0, 10}}, log(100, minute), 1, 90, minute},
		{"log: shorter", log(10, minute), []charge{{0, 4}, {second, 2}}, log(10, second), second, 8, 2 * second},
		{"log: shorter, and the clock back", log(10, minute), []charge{{0, 4}, {30 * second, 2}}, log(10, second), 20 * second, 8, 31 * second},
		{"log: longer", log(10, minute), []charge{{0, 4}, {second, 2}}, log(10, hour), 60 * second, 4, hour + second},

		{"interval: shorter", interval(minute), []charge{{0, 1}}, interval(second), 1, 0, second},
		{"interval: longer", interval(second), []charge{{0, 1}}, interval(minute), 1, 0, minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKey(t, test.from)
			for _, c := range test.charges {
				if !k.ask(t, noon+c.at, c.n) {
					t.Fatalf("at %d: %d units refused", c.at, c.n)
				}
			}
			now := noon + test.at
			k.adopt(t, now, test.to)
			want := max(test.resetsAt-test.at, 0)
			if r := k.step.Read(k.state, now, 0); r.Remaining != test.left || r.ResetAfter != want {
				t.Errorf("%d left and reset after %d, want %d and %d", r.Remaining, r.ResetAfter, test.left, want)
			}
			k.check(t, now, 1)
		})
	}
}

// families are numbers of one algorithm that a key may change between.
func families() map[string][]step.Numbers {
	return map[string][]step.Numbers{
		"TokenBucket": {
			bucket(7, second, 7), bucket(7, second, 3), bucket(100, second, 100), bucket(1, second, 100),
			bucket(3, 7, 5), bucket(1009, hour, 40), bucket(1_000_000, day, 1000), bucket(1, step.MaxSpan, 1),
		},
		"TokenBucket, with debt": {
			debt(bucket(7, second, 7), 7), bucket(7, second, 7), debt(bucket(7, second, 3), 30), debt(bucket(1, second, 10), 10), debt(bucket(100, hour, 100), 500),
		},
		"FixedWindow": {
			fixed(10, minute), fixed(3, minute), fixed(10, second), fixed(100, hour), fixed(7, 7*second), denied(fixed(5, minute)),
		},
		"FixedWindow, from the first": {
			fixed(10, minute), fromFirst(fixed(10, minute)), fromFirst(fixed(3, minute)), fromFirst(denied(fixed(5, minute))),
			fromFirst(fixed(100, hour)), fromFirst(fixed(7, 7*second)),
		},
		"SlidingWindow": {
			sliding(10, minute, 1), sliding(10, minute, 10), sliding(3, minute, 10), sliding(10, second, 7),
			sliding(100, hour, 12), never(sliding(10, minute, 4)), denied(sliding(10, minute, 3)),
		},
		"SlidingLog": {
			log(10, minute), log(3, minute), log(1, minute), log(30, minute), log(10, second), log(100, hour), log(7, 7*second),
		},
		"SlidingLog, denied counted": {
			denied(log(10, minute)), denied(log(3, minute)), denied(log(30, minute)), log(10, minute), denied(log(100, hour)),
		},
		"MinInterval": {interval(1), interval(second), interval(minute), interval(hour)},
	}
}

// TestOthersModel changes the numbers in the middle of random schedules, back and forth,
// among two of a family or all of it. After every move everything that the step tells is
// compared.
func TestOthersModel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for name, family := range families() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			among := family
			if rapid.Bool().Draw(t, "two") {
				two := rapid.SampledFrom(family)
				among = []step.Numbers{two.Draw(t, "one"), two.Draw(t, "another")}
			}
			pick := rapid.SampledFrom(among)
			s := &schedule{key: newKey(t, pick.Draw(t, "numbers")), now: noon, mixed: true}
			for range rapid.IntRange(1, 40).Draw(t, "moves") {
				s.advance(t)
				switch rapid.IntRange(0, 6).Draw(t, "move") {
				case 0, 1:
					s.adopt(t, s.now, pick.Draw(t, "numbers"))
				case 2:
					s.settle(t)
				case 3:
					s.report(t, s.now, s.units(t)*rapid.SampledFrom([]int64{1, 1, 2, 5}).Draw(t, "times"))
				default:
					s.ask(t)
				}
				s.check(t, s.now, s.units(t))
			}
		}))
	}
}

// TestSideBySide: while releases with different numbers run side by side, and none of them
// is silent for a window, what is admitted under one keeps its promise with all that was
// admitted under any. Of token buckets, in any time no more is admitted than one of them
// would have admitted in that time.
func TestSideBySide(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for name, family := range families() {
		family = slices.DeleteFunc(family, func(m step.Numbers) bool {
			return m.Period > 100*day || m.Algorithm == step.SlidingWindow && !m.NeverOver
		})
		if name == "SlidingWindow" {
			for i, m := range families()[name] {
				if !m.NeverOver {
					family = append(family, never(families()[name][i]))
				}
			}
		}
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			pick := rapid.SampledFrom(family)
			plans := []step.Numbers{pick.Draw(t, "one"), pick.Draw(t, "another"), pick.Draw(t, "third")}
			s := &schedule{key: newKey(t, plans[0]), now: noon}
			ask := func(n int64) {
				if s.key.ask(t, s.now, n) {
					s.events = append(s.events, event{at: s.now, n: units(s.numbers, n)})
					s.promise(t, plans)
				}
			}
			least := window(plans[0])
			// Each has a state before much is charged, and logs of one period the largest.
			slices.SortFunc(plans, func(a, b step.Numbers) int { return cmp.Compare(b.Limit, a.Limit) })
			for _, m := range plans {
				s.adopt(t, s.now, m)
				ask(1)
				least = min(least, window(m))
			}
			last := []int64{noon, noon, noon} // asked
			for range rapid.IntRange(1, 60).Draw(t, "moves") {
				s.now += rapid.Int64Range(0, least/2).Draw(t, "advance")
				for i, m := range plans {
					if s.now-last[i] > least/2 {
						s.adopt(t, s.now, m)
						last[i] = s.now
					}
				}
				i := rapid.IntRange(0, len(plans)-1).Draw(t, "plan")
				last[i] = s.now
				s.adopt(t, s.now, plans[i])
				ask(s.units(t))
			}
		}))
	}
}

// promise holds the promise of the numbers that have admitted the last event against all
// events.
func (s *schedule) promise(t *rapid.T, plans []step.Numbers) {
	m := s.numbers
	sum := int64(0)
	for _, e := range slices.Backward(s.events) {
		span := s.now - e.at
		sum += e.n
		var kept bool
		switch m.Algorithm {
		case step.TokenBucket:
			kept = slices.ContainsFunc(plans, func(m step.Numbers) bool {
				most := new(big.Rat).Mul(big.NewRat(m.Limit, m.Period), rat(span))
				return most.Add(most, rat(m.Burst)).Cmp(rat(sum)) >= 0
			})
		case step.FixedWindow:
			start := s.now - s.now%m.Period
			if m.FromFirst {
				start = s.state[0]
			}
			kept = e.at < start || sum <= m.Limit
		default:
			kept = span >= m.Period || sum <= m.Limit
		}
		if !kept {
			t.Fatalf("%+v admits %d units, of %+v, in %d microseconds", m, sum, plans, span)
		}
	}
}

// TestOwnPromise: however others are asked, and however long it is not, what is admitted
// under one set of numbers alone keeps its promise.
func TestOwnPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for name, family := range families() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			pick := rapid.SampledFrom(family)
			own := pick.Draw(t, "own")
			s := &schedule{key: newKey(t, own), now: noon}
			for range rapid.IntRange(1, 60).Draw(t, "moves") {
				s.advance(t)
				s.now = s.newest // or the others' events would have to be known
				m := own
				if rapid.Bool().Draw(t, "other") {
					m = pick.Draw(t, "numbers")
				}
				s.adopt(t, s.now, m)
				n := s.units(t)
				if s.key.ask(t, s.now, n) && m == own {
					s.note(t, n, units(m, n)) // and compares
				}
			}
		}))
	}
}

// TestOthersEnd: when numbers have not been used for a while, the others decide as if
// there had only ever been those.
func TestOthersEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for name, family := range families() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			pick := rapid.SampledFrom(family)
			s := &schedule{key: newKey(t, pick.Draw(t, "numbers")), now: noon, mixed: true}
			for range rapid.IntRange(1, 30).Draw(t, "moves") {
				s.advance(t)
				if rapid.IntRange(0, 2).Draw(t, "change") == 0 {
					s.adopt(t, s.now, pick.Draw(t, "numbers"))
				}
				s.ask(t)
			}
			own := pick.Draw(t, "own")
			s.adopt(t, s.now, own)
			end := max(s.now, s.until)
			for _, o := range s.others {
				end = max(end, o.kept.Until)
			}
			for range 10 { // used all the while
				s.now += (end - s.now) / 10
				s.ask(t)
			}
			s.now = max(s.now, end) + window(own)
			s.adopt(t, s.now, own)
			if len(s.others) > 0 {
				t.Fatalf("%+v are still kept at %d", s.others, s.now)
			}
		}))
	}
}

// TestNinthIsNotKept: of more numbers than are kept, those used longest ago are new again.
func TestNinthIsNotKept(t *testing.T) {
	k := newKey(t, interval(hour))
	k.ask(t, noon, 1)
	for i := range int64(step.MaxVariants) {
		if want := min(i, step.MaxVariants-1); int64(len(k.others)) != want {
			t.Fatalf("after %d numbers, %d others are kept, want %d", i+1, len(k.others), want)
		}
		k.adopt(t, noon+1, interval(day+i))
	}
	if slices.ContainsFunc(k.others, func(o other) bool { return o.kept.Step.Numbers().Period == hour }) {
		t.Errorf("of %v, the first is kept", k.others)
	}
}

// TestLowerLimitForgetsNothing: while two releases with different limits run side
// by side, the lower one neither cuts nor clears what the higher one counts.
func TestLowerLimitForgetsNothing(t *testing.T) {
	for _, test := range []struct{ high, low step.Numbers }{
		{bucket(1, hour, 100), bucket(1, hour, 10)},
		{bucket(1, hour, 100), bucket(100, hour, 10)},
		{bucket(100, hour, 100), bucket(1, hour, 10)},
		{fixed(100, minute), fixed(10, minute)},
		{sliding(100, minute, 10), sliding(10, minute, 10)},
		{log(100, minute), log(10, minute)},
		{denied(fixed(100, minute)), denied(fixed(10, minute))},
		{denied(sliding(100, minute, 10)), denied(sliding(10, minute, 10))},
		{denied(log(100, minute)), denied(log(10, minute))},
	} {
		t.Run(describe(test.high), func(t *testing.T) {
			k := newKey(t, test.high)
			k.ask(t, noon, 100)
			for i := range int64(5) {
				k.adopt(t, noon+i, test.low)
				if k.ask(t, noon+i, 1) {
					t.Errorf("move %d: the lower limit admitted one more", i)
				}
				k.adopt(t, noon+i, test.high)
				if left := k.step.Read(k.state, noon+i, 0).Remaining; left != 0 {
					t.Errorf("move %d: %d units came back", i, left)
				}
			}
		})
	}
}

// TestAdoptStaysInRange: counts of many sub-windows that move into one leave no word
// above 2^53-1, which is all that a twin can store.
func TestAdoptStaysInRange(t *testing.T) {
	const most = step.MaxInt
	k := newKey(t, denied(sliding(most, day, 10)))
	for i := range int64(10) {
		k.ask(t, noon+i*day/10, most)
	}
	now := noon + 9*day/10
	for _, to := range []step.Numbers{sliding(most, 10*day, 1), denied(sliding(1, 20*day, 3))} {
		k.adopt(t, now, to)
		for _, w := range k.state {
			if w < 0 || w > most {
				t.Errorf("%s: state %v", describe(to), k.state)
			}
		}
		if left := k.step.Read(k.state, now, 1).Remaining; left != 0 {
			t.Errorf("%s: %d left", describe(to), left)
		}
	}
}
