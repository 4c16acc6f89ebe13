package step

import "math/bits"

// A Level is the state of a token bucket as one integer. It is for a store that charges a key
// without a lock, by comparing and swapping it. It decides with the arithmetic of the Step.
//
// The integer counts from the base, an instant that the store chooses. It counts in a unit in which
// all values of a bucket are whole. That is one n-th of a microsecond, if a unit refills in p/n
// microseconds.
type Level struct {
	bucket *tokenBucket
	most   int64
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
	hi, full := bits.Mul64(uint64(b.p), uint64(b.numbers.Burst+b.numbers.Debt))
	return Level{b, 1 << levelBits / b.n}, hi == 0 && full < 1<<levelBits
}

// Most returns for how many microseconds after the base a Level can be used. It cannot be
// used before.
func (l *Level) Most() int64 { return l.most }

// Of returns the state that the words of the Step are, counted from base, if it is in range.
func (l *Level) Of(s []int64, base int64) (v int64, ok bool) {
	t := max(s[0]-base, -1)
	return t*l.bucket.n + s[1], t < l.most
}

// Words sets the words of the Step to the state v.
func (l *Level) Words(s []int64, v, base int64) {
	n := l.bucket.n
	t, f := v/n, v%n
	if f < 0 {
		t, f = t-1, f+n
	}
	s[0], s[1] = base+t, f
}

// A Span is a time in microseconds, with a fraction.
type Span = fraction

// Used returns the time until the bucket is full, that many microseconds after the base.
func (l *Level) Used(v, at int64) Span {
	x := max(v-at*l.bucket.n, 0)
	if l.bucket.n == 1 {
		return Span{x, 0}
	}
	t, f := l.bucket.byN.divide(x)
	return Span{t, f}
}

// Charge returns the state after c units were charged to a bucket of which that much is used at
// that time. It also returns the usage after that, and whether the units fit. c is from 1 to the
// burst.
func (l *Level) Charge(used Span, at, c int64) (next int64, after Span, fits bool) {
	b := l.bucket
	u := b.add(used, b.cost(c))
	return (at+u.t)*b.n + u.f, u, !b.full.less(u)
}

// Read is Read of the Step.
func (l *Level) Read(used Span, c int64) Reading { return l.bucket.read(used, c) }
