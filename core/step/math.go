package step

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
