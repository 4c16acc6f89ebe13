package redisstore

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/core"
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

func per(n int64, d time.Duration) core.Rate { return core.Rate{Events: n, Per: d} }

const (
	day     = 24 * time.Hour
	largest = "largest"
)

func families() []family {
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
		{"two", [][]core.Policy{
			{bucket.Named("a"), long.Named("b")},
			{long.Named("b"), core.TokenBucket(per(3, second), 2).Named("a")},
			{long.Named("a"), bucket.Named("b")}, // other algorithms under these names: other states
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
	plans  [][][2]*core.Limiter // of each family: the store's and the reference's
	among  []int                // the families and
	keys   []string             // the keys that questions are about
	held   [][2]core.Decision   // charges to settle
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
	s.instant = func() string { return strconv.FormatInt(c.now(), 10) }
}

func newWalk(t *testing.T, seed uint64, store core.Store, c clock) *walk {
	w := &walk{
		T:      t,
		rng:    rand.New(rand.NewPCG(seed, 1)),
		clock:  c,
		keys:   []string{"x", "{}", ""},
		counts: make(map[string]int),
	}
	ref := newReference(c.now)
	for _, f := range families() {
		var plans [][2]*core.Limiter
		for _, p := range f.plans {
			plans = append(plans, [2]*core.Limiter{newLimiter(t, store, f.name, p...), newLimiter(t, ref, f.name, p...)})
		}
		if !strings.HasPrefix(f.name, largest) {
			w.among = append(w.among, len(w.plans))
		}
		w.plans = append(w.plans, plans)
	}
	return w
}

func (w *walk) steps(n int) {
	for i := range n {
		if w.Failed() {
			w.Fatalf("after %d steps", i)
		}
		w.tick()
		w.step()
	}
	w.sum(n)
}

func (w *walk) step() {
	switch x := w.rng.IntN(100); {
	case x < 62:
		w.ask()
	case x < 74:
		w.peek()
	case x < 86:
		w.askAll()
	case x < 98:
		w.settle()
	default:
		w.reset()
	}
}

// sum checks that a walk of so many steps saw something of everything.
func (w *walk) sum(n int) {
	w.Logf("%v", w.counts)
	for _, what := range []string{"allowed", "refused", "allowed together", "refused together", "gave back", "charged more"} {
		if w.counts[what] < n/100 {
			w.Errorf("%s: only %d of %d steps", what, w.counts[what], n)
		}
	}
}

// tick moves the clock: by spans of all magnitudes, and at times backwards.
func (w *walk) tick() {
	upTo := func(most float64) int64 { return int64(math.Exp(w.rng.Float64() * math.Log(most))) }
	switch x := w.rng.IntN(1000); {
	case x < 400:
	case x < 950:
		w.clock.move(upTo(500_000))
	case x < 975:
		w.clock.move(upTo(5_000_000))
	case x < 990:
		w.clock.move(-upTo(1_500_000))
	case x < 999:
		w.clock.move(upTo(4e12))
	default:
		w.clock.move(-upTo(1e11))
	}
}

// charge draws one, for the store and for the reference.
func (w *walk) charge() (got, want core.Charge) {
	plans := w.plans[w.among[w.rng.IntN(len(w.among))]]
	plan := plans[w.rng.IntN(len(plans))]
	key := w.keys[w.rng.IntN(len(w.keys))]
	most := int64(math.MaxInt64)
	for _, c := range plan[0].Cells() {
		most = min(most, c.Step.Max())
	}
	n := int64(1)
	switch w.rng.IntN(10) {
	case 0, 1:
		n += w.rng.Int64N(4)
	case 2:
		n += w.rng.Int64N(most)
	}
	return core.Charge{Limiter: plan[0], Key: key, N: n}, core.Charge{Limiter: plan[1], Key: key, N: n}
}

func (w *walk) ask() {
	got, want := w.charge()
	d, err := got.Limiter.AllowN(w.Context(), got.Key, got.N)
	e, err2 := want.Limiter.AllowN(w.Context(), want.Key, want.N)
	w.count(d.Allowed, "")
	w.compare(d, e, err, err2, got)
}

func (w *walk) peek() {
	got, want := w.charge()
	d, err := got.Limiter.Peek(w.Context(), got.Key)
	e, err2 := want.Limiter.Peek(w.Context(), want.Key)
	w.compare(d, e, err, err2, got)
}

func (w *walk) askAll() {
	var got, want []core.Charge
	for range 2 + w.rng.IntN(3) {
		g, h := w.charge()
		if !slices.ContainsFunc(got, func(c core.Charge) bool { return c.Key == g.Key && c.Limiter.Name() == g.Limiter.Name() }) {
			got, want = append(got, g), append(want, h)
		}
	}
	d, err := core.AllowAll(w.Context(), got...)
	e, err2 := core.AllowAll(w.Context(), want...)
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
	if d.Source == core.SourceCache { // it knows nothing of smaller charges since
		w.counts["cached"]++
		same = !d.Allowed && !e.Allowed && 0 < d.RetryAfter && d.RetryAfter <= e.RetryAfter
	}
	if !same {
		w.Errorf("%s\ngot  %s\nwant %s", w.about(about), describe(&d), describe(&e))
	}
	if d.Allowed && w.rng.IntN(3) == 0 {
		w.held = append(w.held, [2]core.Decision{d, e})
	}
}

func (w *walk) about(cs []core.Charge) (s string) {
	for _, c := range cs {
		s += fmt.Sprintf("%d units of %q, key %q, %v, at %d; ", c.N, c.Limiter.Name(), c.Key, c.Limiter.Policies(), w.clock.now())
	}
	return s
}

func (w *walk) settle() {
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

func newWalkOn(t *testing.T, addr string, seed uint64) *walk {
	s := open(t, Config{Failure: FailClosed, MemoryFor: -1, Prefix: "walk" + strconv.FormatUint(seed, 10)}, addr)
	c := handClock()
	c.tell(s)
	return newWalk(t, seed, s, c)
}

func TestDecisionsAreThoseOfTheSteps(t *testing.T) {
	server := redistest.Start(t)
	t.Run("Redis", func(t *testing.T) {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				newWalkOn(t, server.Addr(), seed).steps(25_000)
			})
		}
	})
	t.Run("Redis, the largest states", func(t *testing.T) {
		w := newWalkOn(t, server.Addr(), 50)
		w.among = []int{len(w.plans) - 2, len(w.plans) - 1}
		w.steps(1000)
	})
	t.Run("Redis without the struct library", func(t *testing.T) {
		withoutStruct(t)
		newWalkOn(t, server.Addr(), 100).steps(10_000)
	})
	t.Run("miniredis", func(t *testing.T) {
		newWalkOn(t, miniredis.RunT(t).Addr(), 200).steps(5_000)
	})
}

// What is merged and what is cached is not seen in the decisions. Here walkers
// walk side by side, each with keys of its own, in a bubble: there the clock of this
// process, by which cached refusals end, is that of the decisions too.
func TestMergingAndMemoryAreNotSeen(t *testing.T) {
	server := redistest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		const walkers, rounds, steps = 8, 150, 5
		var merged atomic.Int64
		s := open(t, Config{Failure: FailClosed, Hooks: Hooks{Called: func(questions int, _ time.Duration, _ error) {
			if questions > 1 {
				merged.Add(1)
			}
		}}}, server.Addr())
		clock := bubbleClock()
		clock.tell(s)
		var ws []*walk
		for i := range walkers {
			w := newWalk(t, uint64(300+i), s, clock)
			w.keys = []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
			for f := range w.plans {
				w.plans[f] = w.plans[f][:1] // what other numbers give may be seen later
			}
			ws = append(ws, w)
		}
		for range rounds {
			ws[0].tick()
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
		if all := walkers * rounds * steps; cached < all/50 || int(merged.Load()) < all/50 {
			t.Errorf("%d refusals cached and %d calls merged in %d steps", cached, merged.Load(), all)
		}
	})
}

// withoutStruct makes the scripts of stores made afterwards take the branch for servers that lack a library.
func withoutStruct(t *testing.T) {
	whole := prelude
	prelude = strings.Replace(whole, "rawget(_G, 'struct')", "nil", 1)
	if prelude == whole {
		t.Fatal("the library is not looked up as it was")
	}
	t.Cleanup(func() { prelude = whole })
}
