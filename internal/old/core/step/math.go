package step

import "math/bits"

// gcd returns the greatest common divisor, for a, b > 0.
func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// saturate adds n to count, but not beyond most. A count that is already beyond stays.
func saturate(count, n, most int64) int64 {
	return max(count, min(count+min(n, most), most))
}

// upTo returns the span from now to the instant at, or 0 if that has passed.
func upTo(at, now int64) int64 { return max(at-now, 0) }

// align returns the start of the window of the given length that holds the instant.
func align(at, length int64) int64 {
	start := at - at%length
	if start > at { // a negative instant: the remainder is negative
		start -= length
	}
	return start
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
