package step_test

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// TestBucketIsExactInTheLongRun: whoever takes all there is, and never lets the
// bucket fill, gets exactly the burst and the rate, rounded down, after any time.
func TestBucketIsExactInTheLongRun(t *testing.T) {
	for _, m := range []step.Numbers{
		bucket(7, second, 7),
		bucket(7, second, 604_800),
		bucket(3, 7, 5),
		bucket(1_000_000, second, 1_000_000),
		bucket(1_000_000, day, 1000),
		bucket(1_000_000_000, 30*day, 1_000_000),
		bucket(104_729, 86_399_999_989, 1009),
		bucket(94_906_265, 94_906_267, 94_906_265),
	} {
		t.Run(describe(m), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(m.Limit)))
			k := newKey(t, m)
			// With a part of a unit left over, so soon is it full.
			fill := new(big.Int).Mul(big.NewInt(m.Burst-1), big.NewInt(m.Period))
			most := fill.Div(fill, big.NewInt(m.Limit)).Int64()
			now := int64(noon)
			k.open()
			var taken int64
			for range 10_000 {
				if n := k.step.Read(k.state, now, 0).Remaining; n > 0 {
					k.state = k.step.Charge(k.state, now, n)
					taken += n
				}
				want := new(big.Int).Mul(big.NewInt(m.Limit), big.NewInt(now-noon))
				want.Div(want, big.NewInt(m.Period)).Add(want, big.NewInt(m.Burst))
				if want.Cmp(big.NewInt(taken)) != 0 {
					t.Fatalf("%d units after %d microseconds, want %v", taken, now-noon, want)
				}
				now += 1 + r.Int64N(most)
			}
		})
	}
}

// TestBucketServesInTime: whoever repeats at each RetryAfter gets the i-th unit
// after the burst at exactly ceil(i/rate).
func TestBucketServesInTime(t *testing.T) {
	for _, m := range []step.Numbers{bucket(7, second, 7), bucket(3, 7, 5), bucket(104_729, 86_399_999_989, 1009)} {
		t.Run(describe(m), func(t *testing.T) {
			k := newKey(t, m)
			k.open()
			k.state = k.step.Charge(k.state, noon, m.Burst)
			now := int64(noon)
			for i := int64(1); i < 20_000; i++ {
				now += k.step.Read(k.state, now, 1).RetryAfter
				k.state = k.step.Charge(k.state, now, 1)
				if want := ceil(big.NewRat(i*m.Period, m.Limit)); now-noon != want {
					t.Fatalf("unit %d came after %d microseconds, want %d", i, now-noon, want)
				}
			}
		})
	}
}

// TestNeverOverRate: the price of NeverOver is that of k+1 sub-windows only k
// count: whoever takes all there is gets n in each k+1 of them.
func TestNeverOverRate(t *testing.T) {
	for _, k := range []int64{1, 4, 10, 60} {
		m := never(sliding(100, minute, k))
		if got, want := greedy(t, m), 100*(k*1000/(k+1)); got < want-100 || got > want+100 {
			t.Errorf("resolution %d: %d units in 1000 minutes, want about %d", k, got, want)
		}
	}
}

// TestSlidingWindowRate: without it, whoever takes all there is gets the rate, but
// for the last unit of a window, which the last of those before it keeps out.
func TestSlidingWindowRate(t *testing.T) {
	for _, k := range []int64{1, 4, 10, 60} {
		m := sliding(100, minute, k)
		if got := greedy(t, m); got < 99_000 || got > 100_100 {
			t.Errorf("resolution %d: %d units in 1000 minutes, want 99000 to 100100", k, got)
		}
	}
}

// greedy takes all there is, as soon as there is any, for 1000 minutes.
func greedy(t *testing.T, m step.Numbers) (taken int64) {
	t.Helper()
	k := newKey(t, m)
	k.open()
	for now := int64(noon); now < noon+1000*minute; {
		r := k.step.Read(k.state, now, 0)
		if r.Remaining > 0 {
			k.state = k.step.Charge(k.state, now, r.Remaining)
			taken += r.Remaining
			r = k.step.Read(k.state, now, 0)
		}
		now += r.NextAfter
	}
	return taken
}

// TestMostInAnyWindow measures the worst that each policy admits within one period:
// its limit at the end of a window, and all it can get from then on.
func TestMostInAnyWindow(t *testing.T) {
	for _, test := range []struct {
		numbers step.Numbers
		most    int64
	}{
		{fixed(100, minute), 200},
		{bucket(100, minute, 100), 199},
		{sliding(100, minute, 1), 199},
		{sliding(100, minute, 10), 199},
		{never(sliding(100, minute, 1)), 100},
		{never(sliding(100, minute, 10)), 100},
		{log(100, minute), 100},
	} {
		k := newKey(t, test.numbers)
		k.open()
		var events []event
		for now := noon + minute - 1; now < noon+3*minute; {
			r := k.step.Read(k.state, now, 0)
			if r.Remaining > 0 {
				k.state = k.step.Charge(k.state, now, r.Remaining)
				events = append(events, event{at: now, n: r.Remaining})
				r = k.step.Read(k.state, now, 0)
			}
			now += r.NextAfter
		}
		var most int64
		for i, first := range events {
			var sum int64
			for _, e := range events[i:] {
				if e.at-first.at < minute {
					sum += e.n
				}
			}
			most = max(most, sum)
		}
		if most != test.most {
			t.Errorf("%s: %d in a minute, want %d", describe(test.numbers), most, test.most)
		}
	}
}
