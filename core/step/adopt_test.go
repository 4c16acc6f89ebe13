package step_test

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/core/step"
)

// adopt changes the numbers of a key, of step and model alike.
func (k *key) adopt(t failer, now int64, to step.Numbers) {
	t.Helper()
	from := k.numbers
	fresh := newKey(t, to)
	k.step, k.numbers = fresh.step, to
	k.words = max(k.words, fresh.words)
	if k.state == nil {
		k.model = fresh.model
		return
	}
	before := slices.Clone(k.state)
	var dated bool
	k.state, dated = k.step.Adopt(k.state, now, from)
	if !dated && !slices.Equal(k.state, before) {
		t.Fatalf("at %d: adopting %v gave %v, and is not to be stored", now, before, k.state)
	}
	k.model.adopt(now, to)
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
		{"bucket: part of a unit", bucket(1, second, 10), []charge{{0, 1}}, bucket(1, minute, 20), second / 2, 19, second/2 + minute/2},
		{"bucket: a larger one", bucket(1, second, 10), []charge{{0, 3}}, bucket(1, second, 20), second, 18, 3 * second},
		{"bucket: a smaller one", bucket(100, second, 100), []charge{{0, 100}}, bucket(100, second, 10), 0, 0, second},
		{"bucket: a smaller and faster one", bucket(1, second, 10), []charge{{0, 10}}, bucket(100, second, 5), 0, 0, 5*second + second/20},
		{"bucket: a smaller and slower one", bucket(1000, minute, 1000), []charge{{0, 1000}}, bucket(5, day, 5), 0, 0, 995*minute/1000 + day},
		{"bucket: the clock back", bucket(1, second, 10), []charge{{0, 10}}, bucket(100, second, 10), -hour, 0, second / 10},
		{"bucket: refilled is unused", bucket(1, second, 10), []charge{{0, 3}}, bucket(1, hour, 10), 3 * second, 10, 0},
		{"bucket: sevenths", bucket(7, second, 7), []charge{{0, 7}}, bucket(14, second, 7), 142_857, 0, 142_857 + 428_572},

		{"fixed: lower", fixed(10, minute), []charge{{0, 4}}, fixed(5, minute), 1, 1, minute},
		{"fixed: below what is used", fixed(10, minute), []charge{{0, 4}}, fixed(3, minute), 1, 0, minute},
		{"fixed: higher", fixed(10, minute), []charge{{0, 10}}, fixed(100, minute), 1, 90, minute},
		{"fixed: longer", fixed(10, minute), []charge{{70 * second, 4}}, fixed(10, hour), 80 * second, 6, hour},
		{"fixed: shorter", fixed(10, hour), []charge{{0, 4}}, fixed(10, minute), 90 * second, 6, 2 * minute},
		{"fixed: windows that do not nest", fixed(10, minute), []charge{{0, 4}}, fixed(10, 7), minute - 1, 6, minute/7*7 + 7 - noon%7},

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
		"FixedWindow": {
			fixed(10, minute), fixed(3, minute), fixed(10, second), fixed(100, hour), fixed(7, 7*second), denied(fixed(5, minute)),
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

// TestAdoptModel changes the numbers in the middle of random schedules, back and
// forth. After every move everything that the step tells is compared.
func TestAdoptModel(t *testing.T) {
	for name, family := range families() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			pick := rapid.SampledFrom(family)
			s := &schedule{key: newKey(t, pick.Draw(t, "numbers")), now: noon, mixed: true}
			for range rapid.IntRange(1, 30).Draw(t, "moves") {
				s.advance(t)
				switch rapid.IntRange(0, 5).Draw(t, "move") {
				case 0:
					s.adopt(t, s.now, pick.Draw(t, "numbers"))
				case 1:
					s.settle(t)
				default:
					s.ask(t)
				}
				s.check(t, s.now, s.units(t))
			}
		}))
	}
}

// TestAlternatingBuckets: while two releases with different numbers run side by side,
// and each keeps what it converts, a key gets no more than the more generous of them
// grants, at any time, and is not kept from refilling.
func TestAlternatingBuckets(t *testing.T) {
	buckets := slices.DeleteFunc(families()["TokenBucket"], func(m step.Numbers) bool {
		return m.Period == step.MaxSpan // after which there is no room for what another does not hold
	})
	t.Run("no more", rapid.MakeCheck(func(t *rapid.T) {
		pick := rapid.SampledFrom(buckets)
		plans := []step.Numbers{pick.Draw(t, "one"), pick.Draw(t, "other")}
		s := &schedule{key: newKey(t, plans[0]), now: noon, mixed: true}
		burst, rate := max(plans[0].Burst, plans[1].Burst), new(big.Rat)
		for _, m := range plans {
			if r := big.NewRat(m.Limit, m.Period); r.Cmp(rate) > 0 {
				rate = r
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			s.advance(t)
			s.adopt(t, s.now, rapid.SampledFrom(plans).Draw(t, "plan"))
			s.ask(t)
			sum := int64(0)
			for _, e := range slices.Backward(s.events) {
				sum += e.net
				most := new(big.Rat).Mul(rate, rat(s.time-e.time))
				if most.Add(most, rat(burst)).Cmp(rat(sum)) < 0 {
					t.Fatalf("%d units in %d microseconds, of %+v", sum, s.time-e.time, plans)
				}
			}
		}
	}))
	t.Run("no less", func(t *testing.T) {
		plans := []step.Numbers{bucket(1, second, 10), bucket(7, 3*second, 8)}
		k := newKey(t, plans[0])
		k.ask(t, noon, 10)
		const pause = 1000
		for now := int64(noon); !k.step.Admits(k.state, now, 1); now += pause {
			if now > noon+3*second { // the 2 units above the smaller burst, and one more
				t.Fatal("the bucket does not refill")
			}
			k.adopt(t, now, plans[now/pause%2])
		}
	})
	t.Run("to and fro", func(t *testing.T) {
		for _, other := range buckets {
			k := newKey(t, bucket(100, second, 100))
			k.ask(t, noon, 77)
			const times = 100
			for range times {
				k.adopt(t, noon, other)
				k.adopt(t, noon, bucket(100, second, 100))
			}
			if r := k.step.Read(k.state, noon, 24); r.RetryAfter < second/100 || r.RetryAfter > second/100+2*times {
				t.Errorf("%s: %+v", describe(other), r)
			}
		}
	})
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
