package redisstore

import (
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
	"github.com/headgate/headgate/internal/redistest"
)

// The plans of a family are policies of one limiter at different times: it may
// change from one to another between any two questions.
type family struct {
	name  string
	plans [][]core.Policy
}

func one(ps ...core.Policy) (plans [][]core.Policy) {
	for _, p := range ps {
		plans = append(plans, []core.Policy{p})
	}
	return plans
}

// nine policies are more than the states that a key may have.
func nine(of func(n int64) core.Policy) (ps []core.Policy) {
	for n := range int64(step.MaxVariants + 1) {
		ps = append(ps, of(n+1))
	}
	return ps
}

func per(n int64, d time.Duration) core.Rate { return core.Rate{Events: n, Per: d} }

const (
	day     = 24 * time.Hour
	largest = "largest"
	plansOf = "plans of " // which are of interest together only
)

// families are some that are drawn, and some that are always there.
func families(rng *rand.Rand) (all []family) {
	for i := range 10 {
		all = append(all, drawFamily(rng, fmt.Sprint("drawn ", i)))
	}
	return append(all, fixedFamilies()...)
}

// drawFamily draws up to nine plans, each of up to three policies of the same algorithms.
func drawFamily(rng *rand.Rand, name string) family {
	f := family{name: name}
	algorithms := make([]int, 1+rng.IntN(3))
	for i := range algorithms {
		algorithms[i] = rng.IntN(5)
	}
	for range 1 + rng.IntN(9) {
		var plan []core.Policy
		for i, a := range algorithms {
			plan = append(plan, drawPolicy(rng, a).Named(strconv.Itoa(i)))
		}
		f.plans = append(f.plans, plan)
	}
	return f
}

// drawPolicy draws one of the algorithms. A quarter of all have a period of a second, so that
// some differ in their limits only.
func drawPolicy(rng *rand.Rand, algorithm int) core.Policy {
	limit, period := upTo(rng, 200), time.Second
	if rng.IntN(4) > 0 {
		period = max(time.Millisecond, time.Duration(upTo(rng, 1e7))*time.Microsecond)
	}
	rate := per(limit, period)
	var p core.Policy
	switch algorithm {
	case 0:
		bucket := core.TokenBucket(rate, upTo(rng, 200))
		if rng.IntN(2) == 0 {
			bucket = bucket.Debt(upTo(rng, 1000) - 1)
		}
		return bucket
	case 1:
		return core.MinInterval(period)
	case 2:
		p = core.FixedWindow(rate)
		if rng.IntN(2) == 0 {
			p = p.FromFirst()
		}
	case 3:
		p = core.SlidingLog(rate)
	default:
		p = core.SlidingWindow(rate).Resolution(int(upTo(rng, 30)))
		if rng.IntN(2) == 0 {
			p = p.NeverOver()
		}
	}
	if rng.IntN(3) == 0 {
		p = p.CountDenied()
	}
	return p
}

// upTo draws a number of any magnitude.
func upTo(rng *rand.Rand, most float64) int64 {
	return int64(math.Exp(rng.Float64() * math.Log(most)))
}

func fixedFamilies() []family {
	second, half := time.Second, time.Second/2
	bucket := core.TokenBucket(per(7, second), 7)
	window := core.FixedWindow(per(7, second))
	sliding := core.SlidingWindow(per(10, second))
	short := core.SlidingLog(per(10, second))
	long := core.SlidingLog(per(100, 5*second))
	apart := core.MinInterval(100 * time.Millisecond)
	return []family{
		{"bucket", one(bucket, core.TokenBucket(per(100, second), 20), core.TokenBucket(core.PerDay(1_000_000), 1000))},
		{"slow bucket", one(core.TokenBucket(per(1, 366*day), 5), core.TokenBucket(per(1_000_000_000, 30*day), 1_000_000))},
		{"window", one(window, core.FixedWindow(per(100, 7*second+time.Microsecond)))},
		{"denied window", one(window.CountDenied(), window)},
		{"window from the first", one(window.FromFirst(), window, core.FixedWindow(per(9, second)).CountDenied().FromFirst(), core.FixedWindow(per(1000, 3650*day)).FromFirst())},
		{"sliding", one(sliding, core.SlidingWindow(per(12, 2*second+7*time.Microsecond)).Resolution(3).NeverOver(),
			core.SlidingWindow(per(9, second)).Resolution(1))},
		{"denied sliding", one(core.SlidingWindow(per(9, second)).Resolution(2).CountDenied(), sliding)},
		{"fine", one(core.SlidingWindow(per(50, second)).Resolution(60), core.SlidingWindow(per(50, second)).Resolution(59))},
		{"huge", one(core.SlidingWindow(per(1_000_000_000_000, 30*day)).Resolution(4),
			core.SlidingWindow(per(math.MaxInt64>>10, 100*365*day)).Resolution(7))},
		{"log", one(short, core.SlidingLog(per(6, half)))},
		{"denied log", one(short.CountDenied(), short)},
		{"ranged log", one(long, core.SlidingLog(per(65, 3*second)), core.SlidingLog(per(70, second)).CountDenied())},
		{"log of all sizes", one(core.SlidingLog(per(64, second)), core.SlidingLog(per(65, second)), core.SlidingLog(per(1000, second)))},
		{"apart", one(apart, core.MinInterval(300*time.Millisecond))},
		{plansOf + "one rate", one(bucket, core.TokenBucket(per(7, second), 40), core.TokenBucket(per(100, second), 50), bucket.Debt(60), core.TokenBucket(per(7, second), 20).Debt(0))},
		{plansOf + "one period", one(short, core.SlidingLog(per(40, second)), core.SlidingLog(per(30, 3*second)))},
		{plansOf + "buckets", one(nine(func(n int64) core.Policy { return core.TokenBucket(per(n*n, second), 11-n) })...)},
		{plansOf + "windows", one(nine(func(n int64) core.Policy { return core.FixedWindow(per(3*n, time.Duration(n)*half)) })...)},
		{plansOf + "logs", one(nine(func(n int64) core.Policy { return core.SlidingLog(per(20/n, time.Duration(n)*half)) })...)},
		{"two", [][]core.Policy{
			{bucket.Named("a"), long.Named("b")},
			{long.Named("b"), core.TokenBucket(per(3, second), 2).Named("a")},
			{long.Named("a"), bucket.Named("b")}, // other algorithms under these names: other states
		}},
		{"sets", [][]core.Policy{ // of policies, which have records in common
			{bucket.Named("a")},
			{bucket.Named("a"), window.Named("b")},
			{sliding.Named("c"), core.FixedWindow(per(9, 3*second)).Named("b")},
			{window.CountDenied().Named("b"), apart.Named("d"), bucket.Named("a")},
			{apart.Named("a"), sliding.Named("b"), short.Named("c")},
		}},
		{"denied two", [][]core.Policy{
			{apart.Named("a"), window.CountDenied().Named("b")},
			{sliding.Named("a"), long.CountDenied().Named("b"), short.CountDenied().Named("c")},
		}},
		{"four", [][]core.Policy{
			{sliding.CountDenied().Named("1"), bucket.Named("2"), long.CountDenied().Named("3"), window.CountDenied().Named("4")},
			{
				core.SlidingWindow(per(12, 2*second)).Resolution(3).Named("1"), core.TokenBucket(per(100, second), 20).Named("2"),
				core.SlidingLog(per(70, second)).Named("3"), core.FixedWindow(per(9, 3*second)).Named("4"),
			},
		}},
		{"five", [][]core.Policy{{
			bucket.Named("1"), window.Named("2"), core.SlidingWindow(per(12, second)).Resolution(5).Named("3"),
			short.Named("4"), core.MinInterval(20 * time.Millisecond).Named("5"),
		}}},
		{"eight", [][]core.Policy{{
			bucket.Named("1"), window.Named("2"), sliding.Named("3"), short.Named("4"),
			long.Named("5"), apart.Named("6"), core.TokenBucket(per(20, second), 10).Named("7"), window.CountDenied().Named("8"),
		}}},
		// The largest states, which take a server as much as all others together.
		{largest, one(core.SlidingWindow(per(50, second)).Resolution(1000), core.SlidingWindow(per(50, second)).Resolution(999))},
		{largest + " log", one(core.SlidingLog(per(10_000, second)))},
	}
}

// A walk asks a store and the reference the same random questions.
type walk struct {
	*testing.T
	rng    *rand.Rand
	clock  clock
	ref    *reference.Store
	names  []string             // of the families
	plans  [][][2]*core.Limiter // of each: the store's and the reference's
	among  []int                // the families and
	keys   []string             // the keys that questions are about
	held   [][2]core.Decision   // charges to settle
	extras [][2]store.Charge
	counts map[string]int
}

// A clock is what the store and the reference are told the time by.
type clock struct {
	now  func() int64
	move func(by int64)
}

// handClock goes where it is moved.
func handClock() clock {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro()
	return clock{func() int64 { return now }, func(by int64) { now += by }}
}

// bubbleClock is that of a bubble of package synctest, which never goes back.
func bubbleClock() clock {
	return clock{
		func() int64 { return time.Now().UnixMicro() },
		func(by int64) { time.Sleep(time.Duration(by) * time.Microsecond) },
	}
}

// tell makes a store decide by the clock.
func (c clock) tell(s *Store) {
	s.backend.instant = func() string { return strconv.FormatInt(c.now(), 10) }
}

// newRand returns numbers that depend on the seed, which it tells, the test and the names.
func newRand(t *testing.T, names ...string) *rand.Rand {
	seed := *walkSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("with -seed %d", seed)
	return rand.New(rand.NewPCG(seed, uint64(crc32.ChecksumIEEE([]byte(t.Name()+strings.Join(names, ""))))))
}

// newWalk returns a walk whose way depends on the seed, the test and the name.
func newWalk(t *testing.T, store core.Store, c clock, name string) *walk {
	w := &walk{
		T:      t,
		rng:    newRand(t, name),
		clock:  c,
		keys:   []string{"x", "{}", ""},
		counts: make(map[string]int),
	}
	w.ref = reference.New(c.now)
	for _, f := range families(w.rng) {
		var plans [][2]*core.Limiter
		for _, p := range f.plans {
			plans = append(plans, [2]*core.Limiter{newLimiter(t, store, f.name, p...), newLimiter(t, w.ref, f.name, p...)})
		}
		w.names = append(w.names, f.name)
		if !strings.HasPrefix(f.name, largest) {
			w.among = append(w.among, len(w.plans))
		}
		w.plans = append(w.plans, plans)
	}
	return w
}

// share makes the walk stay among every of-th of the families, from the i-th on, so that it comes back to
// their keys. Walks with all shares see all families.
func (w *walk) share(i, of int) *walk {
	var among []int
	for ; i < len(w.among); i += of {
		among = append(among, w.among[i])
	}
	w.among = among
	return w
}

// steps walks so far that something of everything happens.
func (w *walk) steps(n int) {
	w.walk(n)
	w.sum(n)
}

func (w *walk) walk(n int) {
	for i := range n {
		if w.Failed() {
			w.Fatalf("after %d steps", i)
		}
		w.tick()
		w.step()
	}
}

func (w *walk) step() {
	switch x := w.rng.IntN(100); {
	case x < 40:
		w.ask()
	case x < 50:
		w.report()
	case x < 62:
		w.askExtra()
	case x < 74:
		w.peek()
	case x < 86:
		w.askAll()
	case x < 97:
		w.settle()
	default:
		w.reset()
	}
}

// sum checks that a walk of so many steps saw something of everything.
func (w *walk) sum(n int) {
	w.Logf("%v", w.counts)
	for _, what := range []string{"allowed", "refused", "allowed together", "refused together", "extra", "gave back", "charged more", "reported", "reported above", "checked"} {
		if w.counts[what] < n/200 {
			w.Errorf("%s: only %d of %d steps", what, w.counts[what], n)
		}
	}
}

// tick moves the clock: by spans of all magnitudes, and at times backwards.
func (w *walk) tick() {
	switch x := w.rng.IntN(1000); {
	case x < 400:
	case x < 950:
		w.clock.move(upTo(w.rng, 500_000))
	case x < 975:
		w.clock.move(upTo(w.rng, 5_000_000))
	case x < 990:
		w.clock.move(-upTo(w.rng, 1_500_000))
	case x < 999:
		w.clock.move(upTo(w.rng, 4e12))
	default:
		w.clock.move(-upTo(w.rng, 1e11))
	}
}

// charge draws one, for the store and for the reference.
func (w *walk) charge() (got, want core.Charge) {
	plans := w.plans[w.among[w.rng.IntN(len(w.among))]]
	plan := plans[w.rng.IntN(len(plans))]
	key := w.keys[w.rng.IntN(len(w.keys))]
	most := plan[0].Prepared().Spec().Most()
	n := int64(1)
	switch w.rng.IntN(20) {
	case 0, 1, 2, 3:
		n += w.rng.Int64N(4)
	case 4, 5:
		n += w.rng.Int64N(most)
	case 6:
		n = 0
		w.counts["checked"]++
	}
	return core.Charge{Limiter: plan[0], Key: key, N: n}, core.Charge{Limiter: plan[1], Key: key, N: n}
}

func (w *walk) ask() {
	got, want := w.charge()
	d, err := got.Limiter.AllowN(w.Context(), got.Key, got.N)
	w.ref.Forgets = d.Source == core.SourceCache
	e, err2 := want.Limiter.AllowN(w.Context(), want.Key, want.N)
	w.ref.Forgets = false
	w.count(d.Allowed, "")
	w.compare(d, e, err, err2, got)
}

// askExtra asks for more units than are needed, or what would be granted.
func (w *walk) askExtra() {
	got, want := w.charge()
	got.N = max(got.N, 1)
	want.N = got.N
	cs := stored(got, want)
	extra := 1 + w.rng.Int64N(10)
	switch w.rng.IntN(4) {
	case 0:
		extra = 1 + w.rng.Int64N(got.Limiter.Prepared().Spec().Most())
	case 1:
		extra = math.MaxInt64
	}
	mode, peek := store.Allow, w.rng.IntN(4) == 0
	if peek {
		mode = store.Peek
	}
	r, err := asking.Ask(w.Context(), got.Limiter.Store(), &store.Question{Mode: mode, Charges: cs[:1], Extra: extra})
	w.ref.Forgets = r.Source == core.SourceCache
	q, err2 := asking.Ask(w.Context(), want.Limiter.Store(), &store.Question{Mode: mode, Charges: cs[1:], Extra: extra})
	w.ref.Forgets = false
	w.count(r.Allowed, "")
	if err != nil || err2 != nil {
		w.Errorf("errors: %v; %v", err, err2)
		return
	}
	same := r.Allowed == q.Allowed && r.Extra == q.Extra
	if r.Source == core.SourceCache {
		w.counts["cached"]++
	} else {
		same = slices.Equal(readings(r), readings(q))
	}
	if !same {
		w.Errorf("%s%d extra, a peek %t\ngot  %+v\nwant %+v", w.about(cs[:1]), extra, peek, readings(r), readings(q))
	}
	if r.Extra > 0 {
		w.counts["extra"]++
	}
	if r.Allowed && !peek && w.rng.IntN(3) == 0 {
		n := cs[0].N + r.Extra
		actual := w.rng.Int64N(min(2*n, step.MaxInt))
		var pair [2]store.Charge
		for i, c := range cs {
			c.N = n
			pair[i] = asking.Settled(c, &r, actual)
		}
		w.extras = append(w.extras, pair)
	}
}

// settleExtra settles a charge with its extra units.
func (w *walk) settleExtra() {
	i := w.rng.IntN(len(w.extras))
	pair := w.extras[i]
	got, want := pair[:1], pair[1:]
	w.extras = slices.Delete(w.extras, i, i+1)
	stores := w.plans[0][0]
	err, err2 := asking.Settle(w.Context(), stores[0].Store(), got...), asking.Settle(w.Context(), stores[1].Store(), want...)
	if got[0].Uncovered != want[0].Uncovered || err != nil || err2 != nil {
		w.Errorf("%d settled to %d: %d units uncovered, want %d; %v, want %v", got[0].N, got[0].Actual, got[0].Uncovered, want[0].Uncovered, err, err2)
	}
}

// used draws how much was used, of a charge.
func (w *walk) used(c *core.Charge) int64 {
	most := c.Limiter.Prepared().Spec().Most()
	switch w.rng.IntN(8) {
	case 0:
		return 1 + w.rng.Int64N(step.MaxInt)
	case 1:
		return 1 + most
	case 2, 3:
		return 1 + w.rng.Int64N(min(3*min(most, step.MaxInt/3), 100_000))
	}
	return 1 + w.rng.Int64N(min(most, 10))
}

// report counts what was used, of one key or of several.
func (w *walk) report() {
	var got, want []core.Charge
	for range 1 + max(w.rng.IntN(6)-3, 0) {
		g, h := w.charge()
		g.N = w.used(&g)
		h.N = g.N
		if !slices.ContainsFunc(got, func(c core.Charge) bool { return c.Key == g.Key && c.Limiter.Name() == g.Limiter.Name() }) {
			got, want = append(got, g), append(want, h)
		}
	}
	d, above, err := core.ReportAll(w.Context(), got...)
	e, above2, err2 := core.ReportAll(w.Context(), want...)
	w.counts["reported"]++
	if above > 0 {
		w.counts["reported above"]++
	}
	if above != above2 {
		w.Errorf("%s%d units uncovered, want %d", w.about(stored(got...)), above, above2)
	}
	w.compare(d, e, err, err2, got...)
}

func (w *walk) peek() {
	if w.rng.IntN(3) == 0 {
		got, want := w.several()
		d, err := core.PeekAll(w.Context(), got...)
		e, err2 := core.PeekAll(w.Context(), want...)
		w.compare(d, e, err, err2, got...)
		return
	}
	got, want := w.charge()
	d, err := got.Limiter.Peek(w.Context(), got.Key)
	e, err2 := want.Limiter.Peek(w.Context(), want.Key)
	w.compare(d, e, err, err2, got)
}

// several draws charges of one call, some of which count anyway.
func (w *walk) several() (got, want []core.Charge) {
	for range 2 + w.rng.IntN(3) {
		g, h := w.charge()
		if g.Anyway = w.rng.IntN(6) == 0; g.Anyway && g.N > 0 {
			g.N = w.used(&g)
		}
		h.N, h.Anyway = g.N, g.Anyway
		if !slices.ContainsFunc(got, func(c core.Charge) bool { return c.Key == g.Key && c.Limiter.Name() == g.Limiter.Name() }) {
			got, want = append(got, g), append(want, h)
		}
	}
	return got, want
}

func (w *walk) askAll() {
	got, want := w.several()
	d, err := core.AllowAll(w.Context(), got...)
	w.ref.Forgets = d.Source == core.SourceCache
	e, err2 := core.AllowAll(w.Context(), want...)
	w.ref.Forgets = false
	w.count(d.Allowed, " together")
	w.compare(d, e, err, err2, got...)
}

func (w *walk) count(allowed bool, how string) {
	if allowed {
		w.counts["allowed"+how]++
	} else {
		w.counts["refused"+how]++
	}
}

func (w *walk) compare(d, e core.Decision, err, err2 error, about ...core.Charge) {
	w.Helper()
	if err != nil || err2 != nil {
		w.Errorf("errors: %v; %v", err, err2)
		return
	}
	same := describe(&d) == describe(&e)
	if d.Source == core.SourceCache {
		w.counts["cached"]++
		same = sameAsCached(&d, &e)
	}
	if !same {
		w.Errorf("%s\ngot  %s\nwant %s", w.about(stored(about...)), describe(&d), describe(&e))
	}
	if d.Allowed && w.rng.IntN(3) == 0 { // perhaps a report or a peek, which hold nothing
		w.held = append(w.held, [2]core.Decision{d, e})
	}
}

// sameAsCached reports whether a cached refusal d is the decision e, but for units that time
// has freed since d was asked for, and are fewer than it needs.
func sameAsCached(d, e *core.Decision) bool {
	if d.Allowed != e.Allowed || d.Policy != e.Policy || d.Limit != e.Limit || d.ResetAfter != e.ResetAfter || d.RetryAfter != e.RetryAfter ||
		d.Remaining > e.Remaining || d.Len() != e.Len() {
		return false
	}
	for i := range d.Len() {
		a, b := d.Answer(i), e.Answer(i)
		if a.Remaining < b.Remaining {
			a.Remaining, a.NextAfter, a.ResetAfter = b.Remaining, b.NextAfter, b.ResetAfter
		}
		if a != b {
			return false
		}
	}
	return true
}

// numbers are the parameters of a limiter's policies.
func numbers(l *store.Limiter) (all []step.Numbers) {
	for _, p := range l.Spec().Policies {
		all = append(all, p.Step.Numbers())
	}
	return all
}

func (w *walk) about(cs []store.Charge) (s string) {
	for _, c := range cs {
		s += fmt.Sprintf("%d units, anyway %t, of %q, key %q, %+v, at %d; ", c.N, c.Anyway, c.Limiter.Spec().Name, c.Key, numbers(c.Limiter), w.clock.now())
	}
	return s
}

func (w *walk) settle() {
	if len(w.extras) > 0 && w.rng.IntN(4) == 0 {
		w.settleExtra()
		return
	}
	if len(w.held) == 0 {
		return
	}
	i := w.rng.IntN(len(w.held))
	pair := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	if w.rng.IntN(2) == 0 {
		w.counts["gave back"]++
		err, err2 := pair[0].Refund(w.Context()), pair[1].Refund(w.Context())
		if !errors.Is(err, err2) {
			w.Errorf("refund: %v, want %v", err, err2)
		}
		return
	}
	actual := []int64{w.rng.Int64N(5)}
	switch w.rng.IntN(4) {
	case 0:
		actual[0] = 1 + w.rng.Int64N(100)
	case 1:
		actual[0] = w.rng.Int64()
	}
	got, err := pair[0].Settle(w.Context(), actual...)
	want, err2 := pair[1].Settle(w.Context(), actual...)
	if err == nil && actual[0] > 0 {
		w.counts["charged more"]++
	}
	if got != want || (err == nil) != (err2 == nil) { // a question of several charges takes more numbers
		w.Errorf("settled to %v: %d units uncovered, want %d; %v, want %v", actual, got, want, err, err2)
	}
}

func (w *walk) reset() {
	w.counts["reset"]++
	got, want := w.charge()
	if err := got.Limiter.Reset(w.Context(), got.Key); err != nil {
		w.Error(err)
	}
	want.Limiter.Reset(w.Context(), want.Key)
}

// newWalkOn returns a walk of which no other sees the keys.
func newWalkOn(t *testing.T, addr, prefix string) *walk {
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1, Prefix: prefix}, addr)
	c := handClock()
	c.tell(s)
	w := newWalk(t, s, c, prefix)
	return w
}

// What is given back under a plan is kept for the largest limit from then on, as all that is
// written is: what is charged under other numbers counts up to it.
func TestGivingBackNotesTheLargestLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, test := range []struct {
		name              string
		small, big, other core.Policy
		left              int64
	}{
		{"bucket", core.TokenBucket(per(7, time.Second), 7), core.TokenBucket(per(7, time.Second), 40), core.TokenBucket(per(100, time.Second), 50), 17},
		{"log", core.SlidingLog(per(7, time.Second)), core.SlidingLog(per(40, time.Second)), core.SlidingLog(per(40, 3*time.Second)), 17},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, redistest.Start(t).Addr())
			clock := handClock()
			clock.tell(s)
			for _, s := range []core.Store{reference.New(clock.now), s} {
				small := newLimiter(t, s, "api", test.small)
				big, other := with(t, small, test.big), with(t, small, test.other)
				held := allow(t, big, "k", 1)
				clock.move(1_000_000) // after which a log gives nothing back
				if err := small.Reset(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				allow(t, small, "k", 3)
				if err := held.Refund(t.Context()); err != nil {
					t.Fatal(err)
				}
				allow(t, other, "k", 20)
				if d, err := big.Peek(t.Context(), "k"); d.Remaining != test.left || err != nil {
					t.Errorf("%T: %d left, want %d; %v", s, d.Remaining, test.left, err)
				}
			}
		})
	}
}

// A state that is adopted may count more than 2^53 units in all, as each of its counts may be close to
// that. What is reported then adds nothing, and takes nothing away.
func TestReportsOnAdoptedCountsTakeNothingAway(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, redistest.Start(t).Addr())
	clock := handClock()
	clock.tell(s)
	for _, s := range []core.Store{reference.New(clock.now), s} {
		coarse := newLimiter(t, s, "api", core.SlidingWindow(per(9, time.Second)).Resolution(2))
		fine := with(t, coarse, core.SlidingWindow(per(10, time.Second)))
		report := func(l *core.Limiter, n int64) {
			if _, _, err := l.Report(t.Context(), "k", n); err != nil {
				t.Fatal(err)
			}
		}
		report(coarse, step.MaxInt-1)
		clock.move(1_100_000)
		report(coarse, 4)
		report(fine, 5)
		clock.move(900_000)
		if d, err := fine.Peek(t.Context(), "k"); d.Remaining != 6 || err != nil {
			t.Errorf("%T: %d left, want 6; %v", s, d.Remaining, err)
		}
		clock.move(10_000_000)
	}
}

var (
	questions = flag.Int("questions", 3_000, "how many questions each walk of the differential test asks")
	walkSeed  = flag.Uint64("seed", 1, "the seed of random tests; 0 means any")
)

func TestDecisionsAreThoseOfTheSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	server := redistest.Start(t)
	n := *questions
	if testing.Short() {
		n /= 10
	}
	t.Run("Redis", func(t *testing.T) {
		const walks = 4
		for i := range walks {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				newWalkOn(t, server.Addr(), fmt.Sprint("walk", i)).share(i, walks).steps(n)
			})
		}
	})
	t.Run("Redis, the largest states", func(t *testing.T) {
		w := newWalkOn(t, server.Addr(), "largest")
		w.among = []int{len(w.plans) - 2, len(w.plans) - 1}
		w.walk(n / 10)
	})
	t.Run("Redis without the struct library", func(t *testing.T) {
		withoutStruct(t)
		newWalkOn(t, server.Addr(), "without").share(0, 2).steps(n / 2)
	})
	t.Run("miniredis", func(t *testing.T) {
		newWalkOn(t, miniredis.RunT(t).Addr(), "walk").share(1, 2).steps(n / 2)
	})
}

// What is merged and what is cached is not seen in the decisions. Here walkers
// walk side by side, each with keys of its own, in a bubble: there the clock of this
// process, by which cached refusals end, is that of the decisions too.
func TestMergingAndMemoryAreNotSeen(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	proxy.Delay(time.Millisecond) // while a call is under way, others wait to be merged
	bubble.Test(t, func(t *testing.T) {
		const walkers, rounds, steps = 8, 100, 10
		var merged atomic.Int64
		s := open(t, Config{Failure: FailClosed, Observer: &core.Observer{Called: func(e core.CallEvent) {
			if e.Questions > 1 {
				merged.Add(1)
			}
		}}}, proxy.Addr())
		clock := bubbleClock()
		clock.tell(s)
		var ws []*walk
		for i := range walkers {
			w := newWalk(t, s, clock, strconv.Itoa(i))
			w.keys = []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
			w.among = slices.DeleteFunc(w.among, func(f int) bool { return strings.HasPrefix(w.names[f], plansOf) })
			ws = append(ws, w)
		}
		among := ws[0].among
		for round := range rounds {
			ws[0].tick()
			for i, w := range ws { // on few keys, so that refusals are asked for again
				f := (i + round) % len(among)
				w.among = among[f : f+1]
			}
			var all sync.WaitGroup
			for _, w := range ws {
				all.Go(func() {
					for range steps {
						w.step()
					}
				})
			}
			all.Wait()
			if t.Failed() {
				t.FailNow()
			}
		}
		cached := 0
		for _, w := range ws {
			w.sum(rounds * steps)
			cached += w.counts["cached"]
		}
		t.Logf("%d refusals cached, %d calls merged", cached, merged.Load())
		if all := walkers * rounds * steps; cached < all/100 || int(merged.Load()) < all/50 {
			t.Errorf("%d refusals cached and %d calls merged in %d steps", cached, merged.Load(), all)
		}
	})
}

// withoutStruct makes the scripts of stores made afterwards take the branch for servers that lack a library.
func withoutStruct(t *testing.T) {
	whole := decideScript
	decideScript = newScript(strings.Replace(scriptSource, "rawget(_G, 'struct')", "nil", 1))
	if decideScript == whole {
		t.Fatal("the library is not looked up as it was")
	}
	t.Cleanup(func() { decideScript = whole })
}
