package step

import (
	"math"
	"math/bits"
)

// tokenBucket is the generic cell rate algorithm (ITU-T I.371): instead of tokens it
// stores the instant at which the bucket will be full again.
//
// A unit refills in p/n microseconds, in lowest terms. The state is the
// instant as [T, f], meaning T + f/n with 0 <= f < n, so that a rate such as 7 per second
// never drifts by rounding.
type tokenBucket struct {
	numbers  Numbers
	n, p     int64
	byN, byP divisor
	one      fraction // the time in which a unit refills
	full     fraction // the time in which an empty bucket fills
	most     fraction // the time in which a bucket fills that is in debt by all of its Debt
}

// fraction is t + f/n microseconds.
type fraction struct{ t, f int64 }

func (a fraction) less(b fraction) bool { return a.t < b.t || a.t == b.t && a.f < b.f }

// ceil rounds up to whole microseconds.
func (a fraction) ceil() int64 {
	if a.f > 0 {
		return a.t + 1
	}
	return a.t
}

func (b *tokenBucket) add(x, y fraction) fraction {
	z := fraction{x.t + y.t, x.f + y.f}
	if z.f >= b.n {
		z.t, z.f = z.t+1, z.f-b.n
	}
	return z
}

func (b *tokenBucket) sub(x, y fraction) fraction {
	z := fraction{x.t - y.t, x.f - y.f}
	if z.f < 0 {
		z.t, z.f = z.t-1, z.f+b.n
	}
	return z
}

// cost returns the time in which c <= Burst + Debt units refill. New has made sure that nothing
// here exceeds MaxInt.
func (b *tokenBucket) cost(c int64) fraction {
	switch {
	case c == 1: // as most are
		return b.one
	case b.one.f == 0:
		return fraction{c * b.one.t, 0}
	default:
		return fraction{c*b.one.t + c*b.one.f/b.n, c * b.one.f % b.n}
	}
}

func newTokenBucket(m Numbers) *tokenBucket {
	g := gcd(m.Limit, m.Period)
	b := &tokenBucket{numbers: m, n: m.Limit / g, p: m.Period / g}
	b.byN, b.byP = newDivisor(b.n), newDivisor(b.p)
	b.one = fraction{b.p / b.n, b.p % b.n}
	b.full, b.most = b.cost(m.Burst), b.cost(m.Burst+m.Debt)
	return b
}

func (b *tokenBucket) Numbers() Numbers { return b.numbers }
func (*tokenBucket) CountsDenied() bool { return false }
func (b *tokenBucket) Max() int64       { return b.numbers.Burst }
func (b *tokenBucket) Words() int       { return 2 }
func (b *tokenBucket) MaxWords() int    { return 2 }

// used returns the time until the bucket is full.
func (b *tokenBucket) used(s []int64, now int64) fraction {
	if len(s) < 2 || s[0] < now {
		return fraction{}
	}
	return fraction{s[0] - now, s[1]}
}

func (b *tokenBucket) Admits(s []int64, now, n int64) bool {
	return n <= b.numbers.Burst && !b.full.less(b.add(b.used(s, now), b.cost(n)))
}

func (b *tokenBucket) Charge(s []int64, now, n int64) []int64 {
	u := b.add(b.used(s, now), b.cost(n))
	s[0], s[1] = now+u.t, u.f
	return s
}

func (b *tokenBucket) Refuse(s []int64, _, _ int64) []int64 { return s }

// Report is bounded by the Debt: a debt without a bound could not be told from an error of the clock.
func (b *tokenBucket) Report(s []int64, now, n, _ int64) []int64 {
	return b.count(s, now, n, b.most)
}

func (b *tokenBucket) Read(s []int64, now, n int64) Reading { return b.read(b.used(s, now), n) }

// read is Read of a bucket that fills in that time.
func (b *tokenBucket) read(used fraction, n int64) Reading {
	if used == (fraction{}) {
		r := Reading{Remaining: b.numbers.Burst}
		if n > b.numbers.Burst {
			r.RetryAfter = Never
		}
		return r
	}
	r := Reading{ResetAfter: used.ceil()}
	left := b.sub(b.full, used)
	if left.t < 0 { // the clock went back, or the bucket shrank
		r.NextAfter = b.sub(b.cost(1), left).ceil()
	} else {
		var part int64 // of the next unit, in 1/n microseconds
		r.Remaining, part = b.units(left)
		r.NextAfter, _ = b.byN.divide(b.p - part + b.n - 1)
	}
	if n > b.numbers.Burst {
		r.RetryAfter = Never
	} else if need := b.add(used, b.cost(n)); b.full.less(need) {
		r.RetryAfter = b.sub(need, b.full).ceil()
	}
	return r
}

// units divides a span by the time of one unit.
func (b *tokenBucket) units(x fraction) (whole, part int64) {
	hi, lo := bits.Mul64(uint64(x.t), uint64(b.n))
	lo, carry := bits.Add64(lo, uint64(x.f), 0)
	if hi += carry; hi == 0 && lo <= math.MaxInt64 {
		return b.byP.divide(int64(lo))
	}
	q, rem := bits.Div64(hi, lo, uint64(b.p))
	return int64(q), int64(rem)
}

// GiveBack returns less by what has refilled since the charge: had the units not been
// taken, the bucket could have been full, and would not have filled any further.
func (b *tokenBucket) GiveBack(s []int64, now, at, n int64) {
	back := b.cost(min(n, b.numbers.Burst))
	back.t -= upTo(now, at)
	if back.t < 0 {
		return
	}
	left := b.sub(fraction{s[0], s[1]}, back)
	if left.t < 0 {
		left = fraction{}
	}
	s[0], s[1] = left.t, left.f
}

// Adopt preserves the number of used units: 100 used at 100 per second are still 100 used
// at 1 per second.
func (b *tokenBucket) Adopt(s []int64, now int64, from Numbers) []int64 {
	old := newTokenBucket(from)
	n, part := old.units(old.used(s, now))
	if part > 0 {
		n++
	}
	return b.Count(make([]int64, 2), now, n, old.FreshAt(s))
}

// Count lets the bucket go into debt, since what was admitted under another may exceed its
// burst. It need not be in debt for longer than the other is: if it refills faster, it
// never is. If it refills more slowly, it is then at most empty, or the other would have
// kept it in debt for hours by what it admits in minutes. In any time no more is admitted
// than one of the two admits in that time: as long as the slower one is empty, it admits
// what refills, which is less than what the faster would have.
func (b *tokenBucket) Count(s []int64, now, n, until int64) []int64 {
	return b.count(s, now, n, fraction{t: max(b.full.ceil(), until-now)})
}

// count adds n units, until the bucket needs that long to fill at most.
func (b *tokenBucket) count(s []int64, now, n int64, most fraction) []int64 {
	used := b.used(s, now)
	if !used.less(most) {
		return s
	}
	sum := most
	if fit, _ := b.units(most); n <= fit {
		if u := b.add(used, b.wideCost(n)); u.less(most) {
			sum = u
		}
	}
	s[0], s[1] = now+sum.t, sum.f
	return s
}

// wideCost is cost of more units than the burst and the debt.
func (b *tokenBucket) wideCost(c int64) fraction {
	hi, lo := bits.Mul64(uint64(c), uint64(b.one.f))
	t, f := bits.Div64(hi, lo, uint64(b.n))
	return fraction{c*b.one.t + int64(t), int64(f)}
}

func (b *tokenBucket) Redate(s []int64, now, longest int64) []int64 {
	if s[0]-now <= b.Window()+max(b.Reach(), longest) {
		return nil
	}
	return []int64{now + b.full.t, b.full.f}
}

func (b *tokenBucket) Window() int64 { return b.full.ceil() }
func (b *tokenBucket) Reach() int64  { return b.most.ceil() }

func (b *tokenBucket) FreshAt(s []int64) int64 {
	return fraction{s[0], s[1]}.ceil()
}

func (b *tokenBucket) Constants() []int64 {
	m := &b.numbers
	return []int64{m.Limit, m.Period, m.Burst, m.Debt, b.one.t, b.one.f, b.n, b.full.t, b.full.f, b.most.t, b.most.f}
}
