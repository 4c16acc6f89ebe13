package step_test

import (
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
	k.state = k.step.Adopt(k.state, now, from)
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
		{"bucket: part of a unit is a unit", bucket(1, second, 10), []charge{{0, 1}}, bucket(1, second, 20), second - 1, 19, 2*second - 1},
		{"bucket: a whole unit is a unit", bucket(1, second, 10), []charge{{0, 3}}, bucket(1, second, 20), second, 18, 3 * second},
		{"bucket: no debt", bucket(100, second, 100), []charge{{0, 100}}, bucket(100, second, 10), 0, 0, second / 10},
		{"bucket: refilled is unused", bucket(1, second, 10), []charge{{0, 3}}, bucket(1, hour, 10), 3 * second, 10, 0},
		{"bucket: sevenths", bucket(7, second, 7), []charge{{0, 7}}, bucket(14, second, 7), 142_858, 1, 142_858 + 428_572},

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

// TestAdoptModel changes the numbers in the middle of random schedules, back and
// forth. After every move everything that the step tells is compared.
func TestAdoptModel(t *testing.T) {
	families := map[string][]step.Numbers{
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
	for name, family := range families {
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

// TestLowerLimitForgetsNothing: while two releases with different limits run side
// by side, the lower one neither cuts nor clears what the higher one counts.
func TestLowerLimitForgetsNothing(t *testing.T) {
	for _, test := range []struct{ high, low step.Numbers }{
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
