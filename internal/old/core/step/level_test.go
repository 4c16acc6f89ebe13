package step

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestLevelIsTheStep: it decides, reads and leaves the state as the step does, also from a
// state that the step left, in debt or long expired.
func TestLevelIsTheStep(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 2))
	fits := map[bool]int{}
	levels := 0
	for range 4000 {
		p := randomBucket(rng)
		l, ok := NewLevel(p)
		if !ok {
			continue
		}
		levels++
		base := int64(1e15)
		s := []int64{base + rng.Int64N(2*p.Window()+2) - p.Window(), 0}
		if rng.IntN(4) == 0 {
			s[0] = 0
		} else {
			s[1] = rng.Int64N(l.bucket.n)
		}
		v, ok := l.Of(s, base)
		if !ok {
			if s[0]-base < l.Most() {
				t.Fatalf("%+v: state %d is out of range %d after %d", p.Numbers(), s, l.Most(), base)
			}
			continue
		}
		at := int64(0)
		for range 50 {
			at = min(at+rng.Int64N(3)*rng.Int64N(p.Window()+1)/3, l.Most())
			now, n := base+at, 1+rng.Int64N(min(p.Max(), 20))
			if rng.IntN(8) == 0 {
				n = p.Max()
			}
			wants := p.Admits(s, now, n)
			used := l.Used(v, at)
			if got, want := l.Read(used, n), p.Read(s, now, n); got != want {
				t.Fatalf("%+v, state %d at %d: %+v, want %+v", p.Numbers(), s, now, got, want)
			}
			next, after, ok := l.Charge(used, at, n)
			if ok != wants {
				t.Fatalf("%+v, state %d, %d units at %d: %t, want %t", p.Numbers(), s, n, now, ok, wants)
			}
			fits[ok]++
			if !ok {
				continue
			}
			v = next
			p.Charge(s, now, n)
			words := make([]int64, 2)
			if l.Words(words, v, base); words[0] != s[0] || words[1] != s[1] {
				t.Fatalf("%+v, %d units at %d: state %d, want %d", p.Numbers(), n, now, words, s)
			}
			if again := l.Used(v, at); again != after {
				t.Fatalf("%+v, %d units at %d: %v are used, want %v", p.Numbers(), n, now, again, after)
			}
			if got, want := l.Read(after, 0), p.Read(s, now, 0); got != want {
				t.Fatalf("%+v, state %d at %d: %+v, want %+v", p.Numbers(), s, now, got, want)
			}
		}
	}
	if levels < 1000 || fits[true] == 0 || fits[false] == 0 {
		t.Errorf("%d levels; fits: %v", levels, fits)
	}
	if _, ok := NewLevel(&fixedWindow{}); ok {
		t.Error("a window has a level")
	}
}

func randomBucket(rng *rand.Rand) Step {
	for {
		most := int64(1) << (1 + rng.IntN(50))
		m := Numbers{Algorithm: TokenBucket, Limit: 1 + rng.Int64N(most), Period: 1 + rng.Int64N(most), Burst: 1 + rng.Int64N(1<<(1+rng.IntN(30)))}
		if p, err := New(m); err == nil {
			return p
		}
	}
}

// TestDivisor compares divisions by a multiplication with those of the processor.
func TestDivisor(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 3))
	numbers := []int64{0, 1, 2, 3, 5, 7, 10, 641, 1e6, 1e6 + 1, 1<<31 - 1, 1<<32 + 1, MaxInt, math.MaxInt64 - 1, math.MaxInt64}
	for range 2000 {
		numbers = append(numbers, rng.Int64()>>rng.IntN(63))
	}
	for i := range 63 {
		numbers = append(numbers, 1<<i-1, 1<<i, 1<<i+1)
	}
	for _, y := range numbers {
		if y == 0 {
			continue
		}
		d := newDivisor(y)
		near := math.MaxInt64 / y * y // the largest multiple
		for _, x := range append([]int64{near, near - 1, y, y - 1, min(y, math.MaxInt64-1) + 1}, numbers...) {
			if quotient, rest := d.divide(x); quotient != x/y || rest != x%y {
				t.Fatalf("%d / %d = %d, rest %d; want %d, rest %d", x, y, quotient, rest, x/y, x%y)
			}
		}
	}
}
