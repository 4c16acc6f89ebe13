package step

import "math/bits"

// A Level is the arithmetic of a token bucket whose state is one integer, for a store that
// charges a key without a lock, by comparing and swapping it. It decides as the Step does.
//
// The integer counts from an instant that the store chooses, the base, and in the unit in
// which all that a bucket needs is whole: one n-th of a microsecond, if a unit refills in p/n
// microseconds.
type Level struct {
	n, p     int64
	byN, byP divisor
	full     int64 // the time in which an empty bucket fills
	most     int64
}

// levelBits keep every sum in a Level within 63 bits.
const levelBits = 60

// NewLevel returns the Level of a step. There is none for other algorithms, nor for numbers
// that are too large.
func NewLevel(p Step) (Level, bool) {
	b, ok := p.(*tokenBucket)
	if !ok {
		return Level{}, false
	}
	hi, full := bits.Mul64(uint64(b.p), uint64(b.numbers.Burst))
	return Level{b.n, b.p, newDivisor(b.n), newDivisor(b.p), int64(full), 1 << levelBits / b.n}, hi == 0 && full < 1<<levelBits
}

// Most returns for how many microseconds after the base a Level can be used. It cannot be
// used before.
func (l *Level) Most() int64 { return l.most }

// Of returns the state that the words of the Step are, counted from base, if it is in range.
func (l *Level) Of(s []int64, base int64) (v int64, ok bool) {
	t := max(s[0]-base, -1)
	return t*l.n + s[1], t < l.most
}

// Words sets the words of the Step to the state v.
func (l *Level) Words(s []int64, v, base int64) {
	t, f := v/l.n, v%l.n
	if f < 0 {
		t, f = t-1, f+l.n
	}
	s[0], s[1] = base+t, f
}

// used returns the time until the bucket is full, in n-ths.
func (l *Level) used(v, at int64) int64 { return max(v-at*l.n, 0) }

// Charge returns the state after c units, and whether they fit, that many microseconds after
// the base. c is from 1 to the burst.
func (l *Level) Charge(v, at, c int64) (next int64, fits bool) {
	used := l.used(v, at) + c*l.p
	return at*l.n + used, used <= l.full
}

// Read is that of the Step, for a c of at most the burst.
func (l *Level) Read(v, at, c int64) Reading {
	used := l.used(v, at)
	left := l.full - used
	if used == 0 {
		q, _ := l.byP.divide(left)
		return Reading{Remaining: q}
	}
	r := Reading{ResetAfter: l.ceil(used)}
	part := left
	if left >= l.p { // or nothing is to be divided
		r.Remaining, part = l.byP.divide(left)
	}
	r.NextAfter = l.ceil(l.p - part)
	if need := c*l.p - left; need > 0 && c > 0 {
		r.RetryAfter = l.ceil(need)
	}
	return r
}

// ceil returns a number of n-ths, at least 0, in microseconds, rounded up.
func (l *Level) ceil(x int64) int64 {
	if l.n == 1 {
		return x
	}
	q, _ := l.byN.divide(x + l.n - 1)
	return q
}

// A divisor divides by the same number again and again: by a multiplication, which takes less
// time (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
type divisor struct {
	by, factor uint64
	shift      uint
}

// newDivisor returns the divisor by y > 0.
func newDivisor(y int64) divisor {
	shift := uint(bits.Len64(uint64(y - 1)))
	var hi, lo uint64 = 0, 1 << 63
	if shift > 0 {
		hi, lo = 1<<(shift-1), 0
	}
	q, _ := bits.Div64(hi, lo, uint64(y))
	return divisor{uint64(y), q + 1, shift}
}

// divide divides x >= 0.
func (d *divisor) divide(x int64) (quotient, rest int64) {
	hi, _ := bits.Mul64(uint64(x)<<1, d.factor)
	q := hi >> d.shift
	return int64(q), x - int64(q*d.by)
}
