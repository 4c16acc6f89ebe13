package step_test

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/headgate/headgate/internal/old/core/step"
)

// A model is what one policy means for one key, told slowly: with lists, maps and
// fractions of any size. It shares nothing with the step but its numbers.
//
// An instant is held to be no earlier than what was charged before it: that is how
// a clock that is set back admits nothing extra.
type model interface {
	// used is what counts against the limit at now. It may exceed the limit after a
	// limit was lowered, attempts were counted, or the clock was set back.
	used(now int64) *big.Rat

	charge(now, n int64)
	refuse(now, n int64)

	// report counts units that have been used; a log lists the newest of them, as many as most.
	report(now, n, most int64)

	giveBack(now, at, n int64)

	// fresh is the instant from which nothing counts.
	fresh() int64

	// resize changes the limit, or the burst.
	resize(to step.Numbers)

	// adopt is a model under other numbers that has what this one shows.
	adopt(now int64, to step.Numbers) model

	// count is a charge under other numbers, whose model is fresh at an instant.
	count(now, n, until int64)
}

// window is how long a unit counts at most.
func window(m step.Numbers) int64 {
	switch m.Algorithm {
	case step.TokenBucket:
		return ceil(new(big.Rat).Mul(big.NewRat(m.Period, m.Limit), rat(m.Burst)))
	case step.SlidingWindow:
		return sub(m) * (m.Resolution + 1)
	default:
		return m.Period
	}
}

func newModel(m step.Numbers) model {
	switch m.Algorithm {
	case step.TokenBucket:
		return &bucketModel{m: m}
	case step.FixedWindow:
		if m.FromFirst {
			return &firstModel{m: m}
		}
		return &fixedModel{m: m, counts: map[int64]int64{}}
	case step.SlidingWindow:
		return &slidingModel{m: m, counts: map[int64]int64{}}
	case step.SlidingLog:
		return &logModel{m: m}
	case step.MinInterval:
		return &intervalModel{m: m}
	case step.Unlimited, step.Blocked:
		return constantModel{}
	}
	panic(fmt.Sprintf("no model of %v", m.Algorithm))
}

// limit is the most units that a policy ever grants at once.
func limit(m step.Numbers) int64 {
	switch m.Algorithm {
	case step.TokenBucket:
		return m.Burst
	case step.MinInterval:
		return 1
	case step.Unlimited:
		return step.MaxInt
	case step.Blocked:
		return 0
	default:
		return m.Limit
	}
}

// units is what a charge of n costs: MinInterval counts calls.
func units(m step.Numbers, n int64) int64 {
	if m.Algorithm == step.MinInterval {
		return min(n, 1)
	}
	return n
}

// admits is the one rule of admission: what is used and what is asked for fit
// together.
func admits(d model, m step.Numbers, now, n int64) bool {
	sum := d.used(now)
	sum.Add(sum, rat(units(m, n)))
	return sum.Cmp(rat(limit(m))) <= 0
}

// remaining is how many whole units fit.
func remaining(d model, m step.Numbers, now int64) int64 {
	left := rat(limit(m))
	left.Sub(left, d.used(now))
	return max(floor(left), 0)
}

// bucketModel holds tokens, at an instant. Before that instant there were fewer:
// a debt that time repays.
type bucketModel struct {
	m       step.Numbers
	tokens  *big.Rat // nil: never charged, so full at any time
	instant int64
}

// refill is what a span brings, or costs if it is negative.
func (b *bucketModel) refill(span int64) *big.Rat {
	x := big.NewRat(b.m.Limit, b.m.Period)
	return x.Mul(x, rat(span))
}

func (b *bucketModel) at(now int64) *big.Rat {
	full := rat(b.m.Burst)
	if b.tokens == nil {
		return full
	}
	tokens := b.refill(now - b.instant)
	tokens.Add(tokens, b.tokens)
	if tokens.Cmp(full) > 0 {
		return full
	}
	return tokens
}

func (b *bucketModel) used(now int64) *big.Rat {
	used := rat(b.m.Burst)
	return used.Sub(used, b.at(now))
}

func (b *bucketModel) charge(now, n int64) {
	tokens := b.at(now)
	b.tokens, b.instant = tokens.Sub(tokens, rat(n)), now
}

func (b *bucketModel) refuse(int64, int64) {}

// report goes into debt by as much as the policy allows.
func (b *bucketModel) report(now, n, _ int64) {
	b.upTo(now, n, rat(b.m.Burst+b.m.Debt))
}

// giveBack leaves out what has refilled since, which a full bucket would not have
// taken. No more counts than the bucket holds.
func (b *bucketModel) giveBack(now, at, n int64) {
	if b.tokens == nil {
		return
	}
	back := rat(min(n, b.m.Burst))
	back.Sub(back, b.refill(max(now-at, 0)))
	if back.Sign() > 0 {
		b.tokens.Add(b.tokens, back)
	}
}

func (b *bucketModel) fresh() int64 {
	if b.tokens == nil {
		return 0
	}
	missing := rat(b.m.Burst)
	missing.Sub(missing, b.tokens)
	return b.instant + ceil(missing.Mul(missing, big.NewRat(b.m.Period, b.m.Limit)))
}

func (b *bucketModel) resize(to step.Numbers) {
	if b.tokens != nil {
		b.tokens.Add(b.tokens, rat(to.Burst-b.m.Burst))
	}
	b.m = to
}

func (b *bucketModel) adopt(now int64, to step.Numbers) model {
	other := &bucketModel{m: to, tokens: rat(to.Burst), instant: now}
	other.count(now, ceil(b.used(now)), b.fresh())
	return other
}

// count goes into debt for no longer than until, or until the bucket is empty.
func (b *bucketModel) count(now, n, until int64) {
	b.upTo(now, n, b.refill(max(until-now, window(b.m))))
}

func (b *bucketModel) upTo(now, n int64, most *big.Rat) {
	used := b.used(now)
	if used.Cmp(most) >= 0 {
		return
	}
	if used.Add(used, rat(n)); used.Cmp(most) > 0 {
		used = most
	}
	b.tokens, b.instant = used.Sub(rat(b.m.Burst), used), now
}

// fixedModel counts in numbered windows.
type fixedModel struct {
	m      step.Numbers
	counts map[int64]int64
	newest int64 // window that was charged
}

func (f *fixedModel) window(now int64) int64 { return max(now/f.m.Period, f.newest) }

func (f *fixedModel) used(now int64) *big.Rat { return rat(f.counts[f.window(now)]) }

func (f *fixedModel) charge(now, n int64) {
	f.newest = f.window(now)
	f.counts[f.newest] += n
}

func (f *fixedModel) refuse(now, n int64) {
	f.newest = f.window(now)
	saturate(f.counts, f.newest, n, f.m.Limit)
}

func (f *fixedModel) report(now, n, _ int64) {
	f.newest = f.window(now)
	saturate(f.counts, f.newest, n, step.MaxInt)
}

func (f *fixedModel) giveBack(_, at, n int64) {
	w := at / f.m.Period
	f.counts[w] = max(f.counts[w]-n, 0)
}

func (f *fixedModel) fresh() int64 {
	if f.counts[f.newest] == 0 {
		return f.newest * f.m.Period
	}
	return (f.newest + 1) * f.m.Period
}

func (f *fixedModel) resize(to step.Numbers) { f.m = to }

// adopt puts the newest count where its events may have happened at the latest.
func (f *fixedModel) adopt(now int64, to step.Numbers) model {
	start := f.newest * f.m.Period
	return windowWith(to, min(start+f.m.Period-1, max(now, start)), f.counts[f.newest])
}

func (f *fixedModel) count(now, n, _ int64) { f.report(now, n, 0) }

// windowWith is the model of a fixed window with so much at an instant.
func windowWith(m step.Numbers, at, n int64) model {
	if m.FromFirst {
		return &firstModel{m, []openWindow{{at, n}}}
	}
	newest := at / m.Period
	return &fixedModel{m: m, newest: newest, counts: map[int64]int64{newest: n}}
}

// firstModel lists the windows that there have been, each of which began with a unit.
type firstModel struct {
	m       step.Numbers
	windows []openWindow
}

type openWindow struct{ start, units int64 }

// open is the newest window, unless it is over, or has nothing to count any more.
func (f *firstModel) open(now int64) *openWindow {
	if last := len(f.windows) - 1; last >= 0 {
		w := &f.windows[last]
		if now < w.start || now < w.start+f.m.Period && w.units > 0 {
			return w
		}
	}
	return nil
}

func (f *firstModel) used(now int64) *big.Rat {
	if w := f.open(now); w != nil {
		return rat(w.units)
	}
	return new(big.Rat)
}

func (f *firstModel) charge(now, n int64) {
	if w := f.open(now); w != nil {
		w.units += n
	} else {
		f.windows = append(f.windows, openWindow{now, n})
	}
}

func (f *firstModel) refuse(now, n int64) {
	if left := f.m.Limit - floor(f.used(now)); left > 0 {
		f.charge(now, min(n, left))
	}
}

func (f *firstModel) report(now, n, _ int64) {
	f.charge(now, min(n, step.MaxInt-floor(f.used(now))))
}

func (f *firstModel) giveBack(_, at, n int64) {
	for i := range f.windows {
		if w := &f.windows[i]; w.start <= at && at < w.start+f.m.Period {
			w.units = max(w.units-n, 0)
		}
	}
}

func (f *firstModel) fresh() int64 {
	if len(f.windows) == 0 {
		return 0
	}
	w := f.windows[len(f.windows)-1]
	if w.units == 0 {
		return w.start
	}
	return w.start + f.m.Period
}

func (f *firstModel) resize(to step.Numbers) { f.m = to }

// adopt takes the newest window to have begun with its last event, at the latest instant at
// which that may have been.
func (f *firstModel) adopt(now int64, to step.Numbers) model {
	w := f.windows[len(f.windows)-1]
	return windowWith(to, min(w.start+f.m.Period-1, max(now, w.start)), w.units)
}

func (f *firstModel) count(now, n, _ int64) { f.report(now, n, 0) }

// saturate counts refused units up to a number, and takes nothing away.
func saturate(counts map[int64]int64, window, n, limit int64) {
	if counts[window] < limit {
		counts[window] = min(counts[window]+n, limit)
	}
}

// slidingModel counts in numbered sub-windows and adds up those that now's window
// touches.
type slidingModel struct {
	m      step.Numbers
	counts map[int64]int64
	newest int64 // sub-window that was charged
}

// sub is the length of a sub-window: enough of them cover the period.
func sub(m step.Numbers) int64 {
	return ceil(big.NewRat(m.Period, m.Resolution))
}

func (s *slidingModel) used(now int64) *big.Rat {
	length, k := sub(s.m), s.m.Resolution
	window := now / length
	offset := now % length
	if window < s.newest {
		window, offset = s.newest, 0
	}
	sum := new(big.Rat)
	for i, n := range s.counts {
		if window-k < i && i <= window {
			sum.Add(sum, rat(n))
		}
	}
	oldest := rat(s.counts[window-k])
	if !s.m.NeverOver {
		oldest.Mul(oldest, big.NewRat(length-offset, length))
	}
	return sum.Add(sum, oldest)
}

// roll forgets what no window can touch from now on.
func (s *slidingModel) roll(now int64) {
	s.newest = max(now/sub(s.m), s.newest)
	for i := range s.counts {
		if i < s.newest-s.m.Resolution {
			delete(s.counts, i)
		}
	}
}

func (s *slidingModel) charge(now, n int64) {
	s.roll(now)
	s.counts[s.newest] += n
}

func (s *slidingModel) refuse(now, n int64) {
	s.saturate(now, n, max(s.m.Limit, step.MaxInt/(step.MaxResolution+2)))
}

func (s *slidingModel) report(now, n, _ int64) { s.saturate(now, n, step.MaxInt) }

// saturate adds to the newest count, up to a number, and as long as the sum of a window is at most MaxInt.
func (s *slidingModel) saturate(now, n, most int64) {
	s.roll(now)
	left := int64(step.MaxInt)
	for i, count := range s.counts {
		if i != s.newest && i > s.newest-s.m.Resolution {
			left -= count
		}
	}
	saturate(s.counts, s.newest, n, min(most, left))
}

func (s *slidingModel) giveBack(_, at, n int64) {
	i := at / sub(s.m)
	s.counts[i] = max(s.counts[i]-n, 0)
}

func (s *slidingModel) fresh() int64 {
	last := s.newest - s.m.Resolution - 1
	for i, n := range s.counts {
		if n > 0 {
			last = max(last, i)
		}
	}
	return (last + s.m.Resolution + 1) * sub(s.m)
}

func (s *slidingModel) resize(to step.Numbers) { s.m = to }

// adopt puts each count where its events may have happened at the latest.
func (s *slidingModel) adopt(now int64, to step.Numbers) model {
	now = max(now, s.newest*sub(s.m))
	moved := map[int64]int64{}
	for i, n := range s.counts {
		last := min((i+1)*sub(s.m)-1, now)
		moved[last/sub(to)] += n
	}
	other := &slidingModel{m: to, counts: moved, newest: now / sub(to)}
	other.roll(now)
	return other
}

func (s *slidingModel) count(now, n, _ int64) { s.report(now, n, 0) }

// logModel lists the units that were counted, with their instants, oldest first: of those that were
// reported or refused, the newest. over are the others, as long as the oldest in the list counts.
type logModel struct {
	m      step.Numbers
	units  []int64
	newest int64 // of all that were charged, given back or not
	over   int64
}

// clock is now, or the newest unit if that is later.
func (l *logModel) clock(now int64) int64 { return max(now, l.newest) }

// live is the number of units of the half-open window that ends with now.
func (l *logModel) live(now int64) (n int64) {
	now = l.clock(now)
	for _, at := range l.units {
		if now-l.m.Period < at && at <= now {
			n++
		}
	}
	return n
}

func (l *logModel) used(now int64) *big.Rat { return rat(l.live(now)) }

func (l *logModel) charge(now, n int64) {
	l.over = 0
	l.add(now, n)
}

func (l *logModel) add(now, n int64) {
	l.expire(now)
	l.newest = l.clock(now)
	for range n {
		l.units = append(l.units, l.newest)
	}
}

// expire drops the units that do not count any more, and with the first those that are not listed.
func (l *logModel) expire(now int64) {
	if dead := int64(len(l.units)) - l.live(now); dead > 0 {
		l.units, l.over = l.units[dead:], 0
	}
}

func (l *logModel) refuse(now, n int64) { l.report(now, n, l.m.Limit) }

// report lists no more units than most, or than there were already: the newest.
func (l *logModel) report(now, n, most int64) {
	most = max(most, l.live(now))
	l.expire(now)
	l.over += max(n-most, 0)
	l.add(now, min(n, most))
	for int64(len(l.units)) > most {
		l.units = l.units[1:]
		l.over++
	}
}

// giveBack takes the oldest, listed or not.
func (l *logModel) giveBack(now, at, n int64) {
	if l.live(now) == 0 || l.clock(now)-at >= l.m.Period {
		return
	}
	l.expire(now)
	for ; n > 0 && l.over > 0; n-- {
		l.over--
	}
	l.units = l.units[min(n, int64(len(l.units))):]
}

func (l *logModel) fresh() int64 {
	if len(l.units) == 0 {
		return l.newest
	}
	return l.units[len(l.units)-1] + l.m.Period
}

func (l *logModel) resize(to step.Numbers) { l.m = to }

// adopt takes the newest units, as many as decide.
func (l *logModel) adopt(_ int64, to step.Numbers) model {
	newest := l.units[max(int64(len(l.units))-to.Limit, 0):]
	return &logModel{m: to, units: slices.Clone(newest), newest: l.newest}
}

func (l *logModel) count(now, n, _ int64) { l.refuse(now, n) }

// intervalModel remembers the last call.
type intervalModel struct {
	m      step.Numbers
	called bool // and not given back
	last   int64
}

func (i *intervalModel) used(now int64) *big.Rat {
	if i.called && now-i.last < i.m.Period {
		return rat(1)
	}
	return rat(0)
}

func (i *intervalModel) charge(now, _ int64) { i.called, i.last = true, max(now, i.last) }
func (i *intervalModel) refuse(int64, int64) {}

// report notes a call, a microsecond after one at that instant or later.
func (i *intervalModel) report(now, n, _ int64) {
	if i.called {
		now = max(now, i.last+1)
	}
	i.charge(now, n)
}

func (i *intervalModel) giveBack(_, at, _ int64) {
	if i.last == at {
		i.called = false
	}
}

func (i *intervalModel) fresh() int64 {
	if !i.called {
		return i.last
	}
	return i.last + i.m.Period
}

func (i *intervalModel) resize(to step.Numbers) { i.m = to }

func (i *intervalModel) adopt(_ int64, to step.Numbers) model {
	return &intervalModel{m: to, called: i.called, last: i.last}
}

func (i *intervalModel) count(now, n, _ int64) { i.charge(now, n) }

// constantModel remembers nothing.
type constantModel struct{}

func (constantModel) used(int64) *big.Rat             { return new(big.Rat) }
func (constantModel) charge(int64, int64)             {}
func (constantModel) refuse(int64, int64)             {}
func (constantModel) report(int64, int64, int64)      {}
func (constantModel) giveBack(int64, int64, int64)    {}
func (constantModel) fresh() int64                    { return 0 }
func (constantModel) resize(step.Numbers)             {}
func (constantModel) adopt(int64, step.Numbers) model { return constantModel{} }
func (constantModel) count(int64, int64, int64)       {}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func floor(x *big.Rat) int64 {
	// Div rounds towards minus infinity, the denominator being positive.
	return new(big.Int).Div(x.Num(), x.Denom()).Int64()
}

func ceil(x *big.Rat) int64 { return -floor(new(big.Rat).Neg(x)) }
