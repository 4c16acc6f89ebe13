package step_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/old/core/step"
)

// TestGiveBack: what a charge of a moment ago took comes back, what has expired or
// refilled since does not, and never more than the charge had taken.
func TestGiveBack(t *testing.T) {
	type move struct {
		at int64 // after noon
		n  int64 // charged, or given back if negative
		of int64 // the instant of the charge that is given back
	}
	for _, test := range []struct {
		name    string
		numbers step.Numbers
		moves   []move
		at      int64
		left    int64
	}{
		{"bucket: all", bucket(1, second, 10), []move{{0, 10, 0}, {0, -10, 0}}, 0, 10},
		{"bucket: some", bucket(1, second, 10), []move{{0, 10, 0}, {0, -3, 0}}, 0, 3},
		{"bucket: what has not refilled", bucket(1, second, 10), []move{{0, 5, 0}, {4 * second, 9, 0}, {4 * second, -5, 0}}, 4 * second, 1},
		{"bucket: nothing, it has refilled", bucket(1, second, 10), []move{{0, 5, 0}, {5 * second, 9, 0}, {5 * second, -5, 0}}, 5 * second, 1},
		{"bucket: never above full", bucket(1, second, 10), []move{{0, 10, 0}, {9 * second, -10, 0}}, 9 * second, 10},
		{"bucket: sevenths", bucket(7, second, 7), []move{{0, 7, 0}, {1, -7, 0}, {1, 7, 0}}, 1, 0},

		{"fixed: this window", fixed(10, minute), []move{{0, 10, 0}, {59 * second, -4, 0}}, 59 * second, 4},
		{"fixed: the window before", fixed(10, minute), []move{{0, 10, 0}, {minute, 10, 0}, {minute, -10, 0}}, minute, 0},
		{"fixed: never above the limit", fixed(10, minute), []move{{0, 3, 0}, {0, -5, 0}}, 0, 10},
		{"first: this window", fromFirst(fixed(10, minute)), []move{{59 * second, 10, 0}, {118 * second, -4, 59 * second}}, 118 * second, 4},
		{"first: the window before", fromFirst(fixed(10, minute)), []move{{59 * second, 10, 0}, {119 * second, 10, 0}, {119 * second, -10, 59 * second}}, 119 * second, 0},
		{"first: all, and the next window begins later", fromFirst(fixed(10, minute)), []move{{0, 10, 0}, {second, -10, 0}, {2 * second, 10, 0}}, 61 * second, 0},

		{"sliding: this sub-window", sliding(10, minute, 10), []move{{0, 10, 0}, {second, -4, 0}}, second, 4},
		{"sliding: an older one", sliding(10, minute, 10), []move{{0, 4, 0}, {30 * second, 6, 0}, {31 * second, -4, 0}}, 31 * second, 4},
		{"sliding: one that is gone", sliding(10, minute, 10), []move{{0, 4, 0}, {70 * second, 6, 0}, {70 * second, -4, 0}}, 70 * second, 4},
		{"sliding: never below nothing", sliding(10, minute, 10), []move{{0, 4, 0}, {30 * second, 6, 0}, {30 * second, -9, 0}}, 30 * second, 4},

		{"log: all", log(10, minute), []move{{0, 10, 0}, {minute - 1, -10, 0}}, minute - 1, 10},
		{"log: expired", log(10, minute), []move{{0, 1, 0}, {second, 9, 0}, {minute, -1, 0}}, minute, 1},
		{"log: the oldest first", log(10, minute), []move{{0, 5, 0}, {30 * second, 5, 0}, {30 * second, -5, 30 * second}}, minute, 5},

		{"interval: the last call", interval(minute), []move{{0, 1, 0}, {second, -1, 0}}, second, 1},
		{"interval: a call before the last", interval(second), []move{{0, 1, 0}, {second, 1, 0}, {second, -1, 0}}, second, 0},

		{"unlimited", step.Numbers{Algorithm: step.Unlimited}, []move{{0, 5, 0}, {0, -5, 0}}, 0, step.MaxInt},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKey(t, test.numbers)
			for _, m := range test.moves {
				if m.n < 0 {
					k.step.GiveBack(k.state, noon+m.at, noon+m.of, -m.n)
					k.model.giveBack(noon+m.at, noon+m.of, -m.n)
				} else if !k.ask(t, noon+m.at, m.n) {
					t.Fatalf("at %d: %d units refused", m.at, m.n)
				}
			}
			if left := k.step.Read(k.state, noon+test.at, 0).Remaining; left != test.left {
				t.Errorf("%d left, want %d", left, test.left)
			}
			k.check(t, noon+test.at, 1)
		})
	}
}

// TestGiveBackToFresh: a state that holds nothing stays that of a fresh key,
// however much is given back, and however often.
func TestGiveBackToFresh(t *testing.T) {
	for _, m := range subjects {
		t.Run(describe(m), func(t *testing.T) {
			k := newKey(t, m)
			k.open()
			for range 3 {
				k.step.GiveBack(k.state, noon+1, noon, 1)
				k.step.GiveBack(k.state, noon+1, noon, max(k.step.Max(), 1))
				for _, w := range k.state {
					if w < 0 || w > step.MaxInt {
						t.Fatalf("state %v has a word outside 0 to 2^53-1", k.state)
					}
				}
				k.same(t, nil, k.state, noon+1, 1)
			}
		})
	}
}

// TestSettle corrects a charge of 4 units at once.
func TestSettle(t *testing.T) {
	for _, test := range []struct {
		name      string
		numbers   step.Numbers
		actual    int64
		left      int64
		uncovered int64
		changed   bool
	}{
		{"bucket: none", bucket(1, second, 10), 0, 10, 0, true},
		{"bucket: less", bucket(1, second, 10), 1, 9, 0, true},
		{"bucket: as much", bucket(1, second, 10), 4, 6, 0, false},
		{"bucket: more", bucket(1, second, 10), 7, 3, 0, true},
		{"bucket: all there is", bucket(1, second, 10), 10, 0, 0, true},
		{"bucket: no debt", bucket(1, second, 10), 13, 0, 3, true},
		{"bucket: full already", bucket(1, second, 4), 6, 0, 2, true},
		{"bucket: in debt", debt(bucket(1, second, 10), 5), 13, 0, 3, true},
		{"bucket: much more", bucket(1, second, 10), step.MaxInt, 0, step.MaxInt - 10, true},

		{"fixed: none", fixed(10, minute), 0, 10, 0, true},
		{"fixed: more", fixed(10, minute), 7, 3, 0, true},
		{"fixed: no debt", fixed(10, minute), 13, 0, 3, true},

		{"sliding: none", sliding(10, minute, 10), 0, 10, 0, true},
		{"sliding: more", sliding(10, minute, 10), 7, 3, 0, true},
		{"sliding: no debt", sliding(10, minute, 10), 13, 0, 3, true},

		{"log: none", log(10, minute), 0, 10, 0, true},
		{"log: more", log(10, minute), 7, 3, 0, true},
		{"log: no debt", log(10, minute), 13, 0, 3, true},

		{"interval: it did not happen", interval(minute), 0, 1, 0, true},
		{"interval: it did", interval(minute), 1, 0, 0, false},
		{"interval: whatever it cost", interval(minute), 99, 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKey(t, test.numbers)
			k.ask(t, noon, 4)
			state, changed, uncovered := step.Settle(k.step, k.state, noon, noon, 4, test.actual, k.step.Max())
			left := k.step.Read(state, noon, 0).Remaining
			if left != test.left || uncovered != test.uncovered || changed != test.changed {
				t.Errorf("%d left, %d uncovered, changed %v; want %d, %d, %v",
					left, uncovered, changed, test.left, test.uncovered, test.changed)
			}
		})
	}
}

// TestSettleForgotten: of a key that the store has dropped meanwhile, nothing is
// given back, and what was used beyond the estimate is charged.
func TestSettleForgotten(t *testing.T) {
	for _, m := range []step.Numbers{bucket(1, second, 10), fixed(10, minute), sliding(10, minute, 10), log(10, minute)} {
		t.Run(describe(m), func(t *testing.T) {
			k := newKey(t, m)
			if state, changed, uncovered := step.Settle(k.step, nil, noon, noon, 4, 1, k.step.Max()); state != nil || changed || uncovered != 0 {
				t.Errorf("less: %v, changed %v, %d uncovered", state, changed, uncovered)
			}
			state, changed, uncovered := step.Settle(k.step, nil, noon, noon, 4, 6, k.step.Max())
			if left := k.step.Read(state, noon, 0).Remaining; left != 8 || !changed || uncovered != 0 {
				t.Errorf("more: %d left, changed %v, %d uncovered, want 8, true, 0", left, changed, uncovered)
			}
		})
	}
}

// TestGiveBackAfterNumbersChanged: what is given back of charges made before keeps
// nobody from the promise of the numbers that hold now.
func TestGiveBackAfterNumbersChanged(t *testing.T) {
	for name, family := range families() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			pick := rapid.SampledFrom(family)
			s := &schedule{key: newKey(t, pick.Draw(t, "numbers")), now: noon, mixed: true}
			for range rapid.IntRange(1, 10).Draw(t, "moves") {
				s.advance(t)
				s.ask(t)
			}
			old, charges := s.numbers, s.events
			own := pick.Draw(t, "new numbers")
			s.events, s.mixed = nil, false
			for range rapid.IntRange(1, 20).Draw(t, "moves") {
				s.advance(t)
				s.now = s.newest // or a state that was fresh, and was dropped, would count again
				if len(charges) > 0 && rapid.IntRange(0, 3).Draw(t, "give back") == 0 {
					e := charges[0]
					charges = charges[1:]
					s.adopt(t, s.now, old)
					s.key.settle(t, s.now, e.at, e.n, 0)
					continue
				}
				s.adopt(t, s.now, own)
				if n := s.units(t); s.key.ask(t, s.now, n) {
					s.note(t, n, units(own, n))
				}
			}
		}))
	}
}

// TestGiveBackStaysInRange: no word leaves 0 to 2^53-1, which is all that a twin
// can store, although the units were taken under a faster rate.
func TestGiveBackStaysInRange(t *testing.T) {
	k := newKey(t, bucket(7, second, 7))
	k.ask(t, noon, 1)
	k.adopt(t, noon+1, bucket(1, step.MaxSpan, 1))
	k.step.GiveBack(k.state, noon+1, noon, 1)
	if slices.Min(k.state) < 0 {
		t.Errorf("state %v", k.state)
	}
}

// TestGiveBackKeepsTime: an instant that was reached is not forgotten with the last
// unit, or a clock that goes back would revive receipts of units long expired, and
// they would be paid for by others.
func TestGiveBackKeepsTime(t *testing.T) {
	for _, m := range []step.Numbers{log(1, second), sliding(1, second, 1), fixed(1, second), interval(second), bucket(1, second, 1)} {
		t.Run(describe(m), func(t *testing.T) {
			k := newKey(t, m)
			k.ask(t, noon, 1)          // a
			k.ask(t, noon+2*second, 1) // b; a has expired
			k.step.GiveBack(k.state, noon, noon+2*second, 1)

			const back = noon + 1
			first := k.step.Admits(k.state, back, 1)
			if first {
				k.state = k.step.Charge(k.state, back, 1)
			}
			k.step.GiveBack(k.state, back, noon, 1) // a, too late
			if first && k.step.Admits(k.state, back, 1) {
				t.Errorf("two units at once under a limit of one")
			}
		})
	}
}
