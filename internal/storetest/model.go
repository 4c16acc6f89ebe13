// Package storetest tests stores: a random walk against a slow and obvious model of what policies mean.
package storetest

import (
	"math/big"

	"github.com/headgate/headgate/internal/step"
)

// A model is what a policy means for one key, with lists, maps and fractions of any size. It shares nothing with package
// step but the numbers. Instants do not decrease.
type model interface {
	// used is what counts against the limit. It may be more, after a report, or under a smaller plan.
	used(now int64) *big.Rat

	charge(now, n int64)
	refuse(now, n, limit int64) // an attempt that counts, up to the limit
	report(now, n int64)
	giveBack(now, at, n int64)
}

func newModel(m step.Numbers) model {
	switch m.Kind {
	case step.TokenBucket:
		return &bucket{m: m, used_: new(big.Rat)}
	case step.FixedWindow:
		if m.FromFirst {
			return &opened{period: m.Period}
		}
		return &counts{sub: m.Period, over: true, at: map[int64]int64{}}
	case step.Calendar:
		return newDated(m)
	case step.SlidingWindow:
		sub := (m.Period + m.Resolution - 1) / m.Resolution
		return &counts{sub: sub, k: m.Resolution, over: m.NeverOver, at: map[int64]int64{}}
	case step.SlidingLog:
		return &list{period: m.Period}
	case step.MinInterval:
		return &interval{period: m.Period, last: -1 << 62}
	default:
		panic(step.Missing(m.Kind))
	}
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// A bucket is what is used of it at an instant.
type bucket struct {
	m       step.Numbers
	used_   *big.Rat
	instant int64
}

func (b *bucket) used(now int64) *big.Rat {
	refill := big.NewRat(b.m.Limit, b.m.Period)
	used := new(big.Rat).Sub(b.used_, refill.Mul(refill, rat(now-b.instant)))
	if used.Sign() < 0 {
		return new(big.Rat)
	}
	return used
}

func (b *bucket) add(now int64, n *big.Rat) {
	b.used_, b.instant = n.Add(n, b.used(now)), now
}

func (b *bucket) charge(now, n int64)        { b.add(now, rat(n)) }
func (b *bucket) refuse(int64, int64, int64) {}

// report goes into debt by as much as the policy allows.
func (b *bucket) report(now, n int64) {
	most := rat(b.m.Burst + b.m.Debt)
	before := b.used(now)
	if b.add(now, rat(n)); b.used_.Cmp(most) > 0 {
		b.used_ = most
	}
	if b.used_.Cmp(before) < 0 {
		b.used_ = before
	}
}

// giveBack leaves out what has refilled since, which a full bucket would not have taken.
func (b *bucket) giveBack(now, at, n int64) {
	refill := big.NewRat(b.m.Limit, b.m.Period)
	back := rat(n)
	if back.Sub(back, refill.Mul(refill, rat(now-at))); back.Sign() <= 0 {
		return
	}
	if b.add(now, back.Neg(back)); b.used_.Sign() < 0 {
		b.used_ = new(big.Rat)
	}
}

// counts are those of numbered sub-windows: k and the part of one more that is inside a period. A window of the clock
// has none of these but the newest.
type counts struct {
	sub, k int64
	over   bool // the oldest counts in full
	at     map[int64]int64
}

func (c *counts) used(now int64) *big.Rat {
	newest, sum := now/c.sub, new(big.Rat)
	for i := newest - c.k + 1; i <= newest; i++ {
		sum.Add(sum, rat(c.at[i]))
	}
	if c.k == 0 {
		return sum.Add(sum, rat(c.at[newest]))
	}
	oldest := rat(c.at[newest-c.k])
	if !c.over {
		oldest.Mul(oldest, big.NewRat(c.sub-now%c.sub, c.sub))
	}
	return sum.Add(sum, oldest)
}

func (c *counts) charge(now, n int64) { c.at[now/c.sub] += n }

func (c *counts) refuse(now, n, limit int64) {
	if c.k > 0 { // far above what could matter
		limit = max(limit, step.MaxInt/(step.MaxResolution+2))
	}
	i := now / c.sub
	c.at[i] = max(c.at[i], min(c.at[i]+n, limit))
}

func (c *counts) report(now, n int64) { c.at[now/c.sub] += n }

func (c *counts) giveBack(now, at, n int64) {
	if i := at / c.sub; now/c.sub-i <= c.k {
		c.at[i] = max(c.at[i]-n, 0)
	}
}

// opened is a window that begins with its first unit.
type opened struct{ period, start, units int64 }

func (o *opened) used(now int64) *big.Rat {
	if now >= o.start+o.period {
		return new(big.Rat)
	}
	return rat(o.units)
}

func (o *opened) charge(now, n int64) {
	if o.units == 0 || now >= o.start+o.period {
		o.start, o.units = now, 0
	}
	o.units += n
}

func (o *opened) refuse(now, n, limit int64) {
	if used := o.used(now).Num().Int64(); used < limit {
		o.charge(now, min(n, limit-used))
	}
}

func (o *opened) report(now, n int64) { o.charge(now, n) }

func (o *opened) giveBack(now, at, n int64) {
	if now < o.start+o.period && o.start <= at && at < o.start+o.period {
		o.units = max(o.units-n, 0)
	}
}

// list has the instants of units, oldest first: the newest 1,024.
type list struct {
	period int64
	at     []int64
}

// expire forgets what has expired.
func (l *list) expire(now int64) {
	for len(l.at) > 0 && now-l.at[0] >= l.period {
		l.at = l.at[1:]
	}
}

func (l *list) used(now int64) *big.Rat {
	n := int64(0)
	for _, at := range l.at {
		if now-at < l.period {
			n++
		}
	}
	return rat(n)
}

func (l *list) charge(now, n int64) {
	l.expire(now)
	for range n {
		l.at = append(l.at, now)
	}
	l.at = l.at[max(len(l.at)-step.MaxLog, 0):]
}

func (l *list) refuse(now, n, _ int64) { l.charge(now, n) }
func (l *list) report(now, n int64)    { l.charge(now, n) }

func (l *list) giveBack(now, at, n int64) {
	if l.expire(now); now-at < l.period {
		l.at = l.at[min(n, int64(len(l.at))):]
	}
}

// interval has the instant of the last call.
type interval struct{ period, last int64 }

func (i *interval) used(now int64) *big.Rat {
	if now-i.last < i.period {
		return rat(1)
	}
	return new(big.Rat)
}

func (i *interval) charge(now, _ int64)        { i.last = now }
func (i *interval) refuse(int64, int64, int64) {}

// report notes a call. If another still counts, this one is a microsecond later, as that may be given back.
func (i *interval) report(now, _ int64) {
	if i.used(now).Sign() > 0 {
		now++
	}
	i.last = max(i.last, now)
}

func (i *interval) giveBack(_, at, _ int64) {
	if i.last == at {
		i.last = -1 << 62
	}
}
