package step_test

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// TestNewFaults: what is wrong is reported, all of it at once.
func TestNewFaults(t *testing.T) {
	const huge = step.MaxInt + 1
	for _, test := range []struct {
		name    string
		numbers step.Numbers
		faults  []string // one for each line of the error
	}{
		{"nothing", step.Numbers{}, []string{"no policy"}},
		{"unknown", step.Numbers{Algorithm: 99}, []string{"no policy"}},

		{"no events", fixed(0, minute), []string{"a rate of 0 events"}},
		{"fewer events", fixed(-1, minute), []string{"a rate of -1 events: there must be at least 1"}},
		{"too many events", fixed(huge, minute), []string{"more than 2^53-1"}},
		{"no period", fixed(1, 0), []string{"must be positive, and at most 142 years"}},
		{"negative period", fixed(1, -minute), []string{"must be positive"}},
		{"too long", fixed(1, step.MaxSpan+1), []string{"at most 142 years"}},
		{"no events and no period", log(0, 0), []string{"a rate of 0 events", "must be positive"}},

		{"no burst", bucket(1, second, 0), []string{"burst must be at least 1, is 0"}},
		{"negative burst", bucket(1, second, -1), []string{"burst must be at least 1, is -1"}},
		{"too fast", bucket(1_000_001, second, 1), []string{"at most 1,000,000 a second"}},
		{"too fast and no burst", bucket(1_000_001, second, 0), []string{"burst must be", "at most 1,000,000 a second"}},
		{"fewer events and no burst", bucket(-1, second, 0), []string{"a rate of -1 events", "burst must be"}},
		{"fills too slowly", bucket(1, step.MaxSpan, 2), []string{"cannot be counted exactly"}},
		{"fills too slowly by one", bucket(1, 1, step.MaxSpan+1), []string{"cannot be counted exactly"}},
		{"fraction too fine", bucket(94_906_265, 94_906_267, 94_906_267), []string{"cannot be counted exactly"}},
		{"product of 2^128", bucket(step.MaxSpan-1, step.MaxSpan, step.MaxInt), []string{"cannot be counted exactly"}},

		{"no resolution", sliding(1, minute, 0), []string{"from 1 to 1000, is 0"}},
		{"negative resolution", sliding(1, minute, -1), []string{"from 1 to 1000, is -1"}},
		{"too fine", sliding(1, minute, step.MaxResolution+1), []string{"from 1 to 1000, is 1001"}},
		{"finer than a microsecond", sliding(1, 9, 10), []string{"needs a period of as many microseconds"}},
		{"too fine twice", sliding(1, 9, 1001), []string{"from 1 to 1000", "needs a period of as many microseconds"}},

		{"log too long", log(step.MaxLog+1, minute), []string{"use SlidingWindow"}},

		{"log too long, no period", log(step.MaxLog+1, 0), []string{"must be positive", "use SlidingWindow"}},
		{"log of too many events", log(huge, minute), []string{"more than 2^53-1"}},
		{"no resolution, no period", sliding(1, 0, 0), []string{"must be positive", "from 1 to 1000, is 0"}},

		{"no distance", interval(0), []string{"must be positive"}},
		{"negative distance", interval(-1), []string{"must be positive"}},
		{"too far apart", interval(step.MaxSpan + 1), []string{"at most 142 years"}},

		{"bucket that counts refusals", denied(bucket(1, second, 1)), []string{"CountDenied is for"}},
		{"interval that counts refusals", denied(interval(1)), []string{"CountDenied is for"}},
		{"Unlimited that counts refusals", denied(step.Numbers{Algorithm: step.Unlimited}), []string{"CountDenied is for"}},
		{"Blocked that counts refusals", denied(step.Numbers{Algorithm: step.Blocked}), []string{"CountDenied is for"}},
		{"bucket never over", never(bucket(1, second, 1)), []string{"NeverOver is for SlidingWindow"}},
		{"fixed never over", never(fixed(1, second)), []string{"NeverOver is for SlidingWindow"}},
		{"log from the first", fromFirst(log(1, second)), []string{"FromFirst is for FixedWindow"}},
		{"log never over", never(log(1, second)), []string{"NeverOver is for SlidingWindow"}},
		{"fixed with a resolution", sub10(fixed(1, second)), []string{"Resolution is for SlidingWindow"}},
		{"log with a resolution", sub10(log(1, second)), []string{"Resolution is for SlidingWindow"}},
		{"bucket with a resolution", sub10(bucket(1, second, 1)), []string{"Resolution is for SlidingWindow"}},
		{"inexact bucket with a resolution", sub10(bucket(1, step.MaxSpan, 2)), []string{"Resolution is for SlidingWindow", "cannot be counted exactly"}},

		{"everything", denied(never(sub10(bucket(huge, step.MaxSpan+1, 0)))), []string{
			"more than 2^53-1", "at most 142 years", "CountDenied is for", "NeverOver is for", "Resolution is for", "burst must be",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := step.New(test.numbers)
			if err == nil || s != nil {
				t.Fatalf("New(%+v) = %v, %v", test.numbers, s, err)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.faults) {
				t.Fatalf("%d faults, want %d:\n%v", len(lines), len(test.faults), err)
			}
			for i, want := range test.faults {
				if !strings.Contains(lines[i], want) {
					t.Errorf("fault %d is %q, want one with %q", i, lines[i], want)
				}
			}
		})
	}
}

func sub10(m step.Numbers) step.Numbers { m.Resolution = 10; return m }

// TestNewEdges: the least and the largest of everything, and the rates that people
// ask for.
func TestNewEdges(t *testing.T) {
	for _, m := range append([]step.Numbers{
		fixed(1, 1),
		fixed(step.MaxInt, step.MaxSpan),
		fromFirst(fixed(step.MaxInt, step.MaxSpan)),
		sliding(1, 1, 1),
		sliding(1, step.MaxResolution, step.MaxResolution),
		sliding(step.MaxInt, step.MaxSpan, step.MaxResolution),
		log(step.MaxLog, 1),
		log(step.MaxLog, step.MaxSpan),
		interval(1),
		interval(step.MaxSpan),
		bucket(1, 1, 1),
		bucket(1, 1, step.MaxSpan),
		bucket(1, step.MaxSpan, 1),
		bucket(1, step.MaxSpan/2, 2),
		bucket(94_906_265, 94_906_267, 94_906_265),

		bucket(1_000_000, second, 1_000_000),
		bucket(1_000_000, day, 1_000_000),
		bucket(1_000_000_000, 30*day, 1_000_000_000),
		bucket(7, second, 7),
		bucket(1, 366*day, 1),
	}, subjects...) {
		s, err := step.New(m)
		if err != nil {
			t.Errorf("New(%+v): %v", m, err)
			continue
		}
		if s.Numbers() != m {
			t.Errorf("Numbers() = %+v, want %+v", s.Numbers(), m)
		}
		want := limit(m)
		if m.Algorithm == step.MinInterval {
			want = step.MaxInt // it counts calls: any number of units is one
		}
		if s.Max() != want {
			t.Errorf("%s: Max() = %d, want %d", describe(m), s.Max(), want)
		}
		if s.Words() > s.MaxWords() {
			t.Errorf("%s: %d words, and %d at most", describe(m), s.Words(), s.MaxWords())
		}
	}
}

// TestStateIsSmall: 16 bytes for a token bucket, a fixed window and a distance; for
// each sub-window and each unit of a log 8, and a few more.
func TestStateIsSmall(t *testing.T) {
	for _, test := range []struct {
		numbers    step.Numbers
		words, max int
	}{
		{bucket(7, second, 7), 2, 2},
		{fixed(10, minute), 2, 2},
		{sliding(10, minute, 1), 3, 3},
		{sliding(10, minute, 10), 12, 12},
		{sliding(10, minute, 1000), 1002, 1002},
		{log(1, minute), 5, 5},
		{log(10, minute), 8, 14},
		{log(10_000, minute), 8, 10_004},
		{interval(1), 2, 2},
		{step.Numbers{Algorithm: step.Unlimited}, 0, 0},
		{step.Numbers{Algorithm: step.Blocked}, 0, 0},
	} {
		s := newKey(t, test.numbers).step
		if s.Words() != test.words || s.MaxWords() != test.max {
			t.Errorf("%s: %d to %d words, want %d to %d", describe(test.numbers), s.Words(), s.MaxWords(), test.words, test.max)
		}
	}
}

// TestAlgorithmNames: they are part of stored keys, so they never change.
func TestAlgorithmNames(t *testing.T) {
	seen := map[string]bool{}
	for a, want := range map[step.Algorithm]string{
		step.TokenBucket:   "tb2",
		step.FixedWindow:   "fw2",
		step.SlidingWindow: "sw2",
		step.SlidingLog:    "sl5",
		step.MinInterval:   "mi2",
		step.Unlimited:     "unlimited",
		step.Blocked:       "blocked",
		0:                  "unknown",
		99:                 "unknown",
	} {
		if a.String() != want {
			t.Errorf("%d is %q, want %q", a, a, want)
		}
		if want != "unknown" && seen[want] {
			t.Errorf("%q is the name of two", want)
		}
		seen[want] = true
	}
}
