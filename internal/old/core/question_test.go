package core_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// TestQuestionFaults: a question that cannot be asked as one is not asked.
func TestQuestionFaults(t *testing.T) {
	s := newFakeStore(t)
	window := core.FixedWindow(core.PerMinute(10))
	a, b := newLimiter(t, s, "a", window), newLimiter(t, s, "b", window)
	again, err := a.With(core.FixedWindow(core.PerMinute(99)))
	if err != nil {
		t.Fatal(err)
	}
	two := newLimiter(t, s, "two", window.Named("x"), window.Named("y"))
	elsewhere := newLimiter(t, newFakeStore(t), "c", window)
	charge := func(l *core.Limiter, key string, n int64) core.Charge { return core.Charge{Limiter: l, Key: key, N: n} }
	nine := make([]core.Charge, 65)
	for i := range nine {
		nine[i] = charge(a, strconv.Itoa(i), 1)
	}
	for _, test := range []struct {
		name    string
		charges []core.Charge
		want    error
		text    string
	}{
		{"nothing", nil, core.ErrQuestion, "0 charges, not 1 to 64"},
		{"too many", nine, core.ErrQuestion, "65 charges, not 1 to 64"},
		{"too many policies", append([]core.Charge{charge(two, "x", 1)}, nine[:63]...), core.ErrQuestion, "the limiters of 64 charges have 65 policies, more than 64"},
		{"no limiter", []core.Charge{charge(a, "x", 1), {Key: "y", N: 1}}, core.ErrQuestion, "nil limiter in charge 2"},
		{"only no limiter", []core.Charge{{Key: "y", N: 1}}, core.ErrQuestion, "nil limiter in charge 1"},
		{"two stores", []core.Charge{charge(a, "x", 1), charge(elsewhere, "y", 1)}, core.ErrQuestion, `"a" and "c" have different stores`},
		{"twice", []core.Charge{charge(a, "x", 1), charge(b, "x", 1), charge(a, "x", 1)}, core.ErrQuestion, `two charges of limiter "a" have the same key`},
		{"twice under other numbers", []core.Charge{charge(a, "x", 1), charge(again, "x", 1)}, core.ErrQuestion, `two charges of limiter "a" have the same key`},
		{"less than nothing", []core.Charge{charge(a, "x", 1), charge(b, "x", -1)}, core.ErrCost, ""},
		{"fewer", []core.Charge{charge(a, "x", -1), charge(b, "x", 1)}, core.ErrCost, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, err := core.AllowAll(t.Context(), test.charges...)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want %v with %q", err, test.want, test.text)
			}
			if d.Allowed || d.Len() != 0 {
				t.Errorf("decision %+v", d)
			}
		})
	}
}

// TestAllOrNothing: every limiter is charged or none is, whoever refuses.
func TestAllOrNothing(t *testing.T) {
	s := newStore()
	small := newLimiter(t, s, "small", core.SlidingLog(core.PerHour(2)).Named("hour"), core.TokenBucket(core.PerHour(9), 9).Named("burst"))
	large := newLimiter(t, s, "large", core.FixedWindow(perAge(100)))
	for _, test := range []struct {
		key                  string
		n                    int64
		allowed              bool
		limiter, policy      string
		hour, burst, address int64 // left afterwards
	}{
		{"ann", 10, true, "small", "hour", 1, 8, 90},
		{"ann", 10, true, "small", "hour", 0, 7, 80},
		{"ann", 10, false, "small", "hour", 0, 7, 80}, // neither the burst nor the address is charged
		{"ben", 81, false, "large", "large", 2, 9, 80},
		{"ben", 80, true, "large", "large", 1, 8, 0},
		{"cem", 1, false, "large", "large", 2, 9, 0},
	} {
		d, err := core.AllowAll(t.Context(),
			core.Charge{Limiter: small, Key: test.key, N: 1},
			core.Charge{Limiter: large, Key: "address", N: test.n})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed != test.allowed || d.Limiter != test.limiter || d.Policy != test.policy {
			t.Errorf("%s, %d: %v by %s, want %v by %s of %s", test.key, test.n, d, d.Limiter, test.allowed, test.policy, test.limiter)
		}
		if d.Len() != 3 || d.Answer(0).Policy != "hour" || d.Answer(1).Policy != "burst" || d.Answer(2).Policy != "large" {
			t.Errorf("%d answers, not of hour, burst and large", d.Len())
		}
		peek, err := small.Peek(t.Context(), test.key)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int64{test.hour, test.burst, test.address} {
			if got := d.Answer(i).Remaining; got != want {
				t.Errorf("%s, %d: answer %d has %d left, want %d", test.key, test.n, i, got, want)
			}
		}
		if peek.Answer(0).Remaining != test.hour || peek.Answer(1).Remaining != test.burst || left(t, large, "address") != test.address {
			t.Errorf("%s, %d: a peek says otherwise: %+v %+v", test.key, test.n, peek.Answer(0), peek.Answer(1))
		}
	}
}

// TestAllWithConstants: Unlimited and Blocked take part in a question, wherever
// they stand in it, and the store is not asked about them.
func TestAllWithConstants(t *testing.T) {
	s := newStore()
	window := newLimiter(t, s, "window", core.FixedWindow(perAge(10)))
	two := newLimiter(t, s, "two", core.FixedWindow(perAge(20)).Named("w"), core.SlidingLog(core.PerDay(30)).Named("l"))
	free := newLimiter(t, s, "free", core.Unlimited())
	free2 := newLimiter(t, s, "free2", core.Unlimited())
	blocked := newLimiter(t, s, "blocked", core.Blocked())
	for _, test := range []struct {
		name     string
		limiters []*core.Limiter
		n        int64
		allowed  bool
		source   core.Source
		decider  string  // the limiter, and its policy
		left     []int64 // in each answer
	}{
		{"only Unlimited", []*core.Limiter{free, free2}, 5, true, core.SourcePolicy, "free", []int64{core.NoLimit, core.NoLimit}},
		{"Unlimited first", []*core.Limiter{free, window}, 1, true, core.SourceStore, "window", []int64{core.NoLimit, 9}},
		{"Unlimited last", []*core.Limiter{window, free}, 1, true, core.SourceStore, "window", []int64{8, core.NoLimit}},
		{"Unlimited between", []*core.Limiter{two, free, window, free2}, 1, true, core.SourceStore, "window", []int64{19, 29, core.NoLimit, 7, core.NoLimit}},
		{"Unlimited, and refused", []*core.Limiter{free, two, window}, 8, false, core.SourceStore, "window", []int64{core.NoLimit, 19, 29, 7}},
		{"Blocked first", []*core.Limiter{blocked, window}, 1, false, core.SourcePolicy, "blocked", []int64{0, 0}},
		{"Blocked last", []*core.Limiter{window, free, blocked}, 1, false, core.SourcePolicy, "blocked", []int64{0, core.NoLimit, 0}},
		{"above what can be granted", []*core.Limiter{two, window, free}, 11, false, core.SourcePolicy, "window", []int64{0, 0, 0, core.NoLimit}},
		{"nothing was charged", []*core.Limiter{window, two}, 1, true, core.SourceStore, "window", []int64{6, 18, 28}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var charges []core.Charge
			for _, l := range test.limiters {
				charges = append(charges, core.Charge{Limiter: l, Key: "key", N: test.n})
			}
			d, err := core.AllowAll(t.Context(), charges...)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed != test.allowed || d.Source != test.source || d.Limiter != test.decider || d.Policy != test.decider || d.Len() != len(test.left) {
				t.Errorf("%v of %s, from the %v, %d answers; want %v by %s from the %v, %d answers",
					d, d.Limiter, d.Source, d.Len(), test.allowed, test.decider, test.source, len(test.left))
			}
			for i := range d.Len() {
				if a := d.Answer(i); a.Remaining != test.left[i] {
					t.Errorf("answer %d, of %s, has %d left, want %d", i, a.Policy, a.Remaining, test.left[i])
				}
			}
			if never := test.source == core.SourcePolicy && !test.allowed; never != (d.RetryAfter == core.Never) {
				t.Errorf("RetryAfter is %v", d.RetryAfter)
			}
		})
	}
}

// TestManyAnswers: eight limiters of eight policies each have 64 answers.
func TestManyAnswers(t *testing.T) {
	s := newStore()
	var charges []core.Charge
	for i := range 8 {
		var policies []core.Policy
		for j := range 8 {
			policies = append(policies, core.FixedWindow(perAge(int64(100+10*i+j))).Named(string(rune('a'+j))))
		}
		charges = append(charges, core.Charge{Limiter: newLimiter(t, s, string(rune('A'+i)), policies...), Key: "key", N: 100})
	}
	for question, want := range []bool{true, false} {
		d, err := core.AllowAll(t.Context(), charges...)
		if err != nil || d.Allowed != want || d.Len() != 64 {
			t.Fatalf("question %d: %v, %d answers, %v", question, d, d.Len(), err)
		}
		for i := range 64 {
			a := d.Answer(i)
			limit := int64(100 + i/8*10 + i%8)
			if a.Limiter != string(rune('A'+i/8)) || a.Policy != string(rune('a'+i%8)) || a.Limit != limit || a.Remaining != limit-100 || a.Allowed != want {
				t.Errorf("question %d: answer %d is %+v", question, i, a)
			}
		}
	}
}

// TestDecider: a decision names the limiter whose policy decided, also if another has a
// policy of the same name.
func TestDecider(t *testing.T) {
	for limits, want := range map[[2]int64]string{{9, 2}: "second", {2, 9}: "first"} {
		s := newStore()
		first := newLimiter(t, s, "first", core.FixedWindow(perAge(limits[0])).Named("window"))
		second := newLimiter(t, s, "second", core.FixedWindow(perAge(limits[1])).Named("window"))
		for _, allowed := range []bool{true, true, false} {
			d, err := core.AllowAll(t.Context(), core.Charge{Limiter: first, Key: "key", N: 1}, core.Charge{Limiter: second, Key: "key", N: 1})
			if err != nil || d.Allowed != allowed || d.Limiter != want || d.Policy != "window" || d.Limit != 2 {
				t.Errorf("limits %v: %v of %q, %v; want %v of %q", limits, d, d.Limiter, err, allowed, want)
			}
		}
	}
}

// TestRefusalsCountTogether: a refused attempt counts on every policy of the
// question that says so, whichever of them refused.
func TestRefusalsCountTogether(t *testing.T) {
	s := newStore()
	attempts := newLimiter(t, s, "attempts", core.FixedWindow(perAge(3)).CountDenied())
	calls := newLimiter(t, s, "calls", core.FixedWindow(perAge(100)))
	pace := newLimiter(t, s, "pace", core.MinInterval(time.Hour).Named("hour"), core.SlidingLog(core.PerDay(5)).CountDenied().Named("log"))
	for i, test := range []struct{ attempts, calls, log int64 }{{2, 99, 4}, {1, 99, 3}, {0, 99, 2}, {0, 99, 1}} {
		d, err := core.AllowAll(t.Context(),
			core.Charge{Limiter: attempts, Key: "key", N: 1}, core.Charge{Limiter: calls, Key: "key", N: 1}, core.Charge{Limiter: pace, Key: "key", N: 1})
		if err != nil || d.Allowed != (i == 0) {
			t.Fatalf("attempt %d: %v, %v", i+1, d, err)
		}
		if a, b, c := d.Answer(0).Remaining, d.Answer(1).Remaining, d.Answer(3).Remaining; a != test.attempts || b != test.calls || c != test.log {
			t.Errorf("attempt %d: %d, %d and %d left, want %+v", i+1, a, b, c, test)
		}
	}
	// The window is full by now, so it refuses too, and says when it would not.
	d := allow(t, attempts, "key", 1)
	if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > 400*24*time.Hour {
		t.Errorf("%v", d)
	}
}
