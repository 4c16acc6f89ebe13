package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
	"github.com/headgate/headgate/internal/storetest"
)

// A scene is a store that leases from one in memory, in a bubble.
type scene struct {
	*testing.T
	*server

	shared *memory.States
}

func play(t *testing.T, life time.Duration, f func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New(0)
		sc := &scene{t, &server{link: newLink(shared)}, shared}
		sc.Leases = New(sc.link, sc.link, life, 100*time.Millisecond)
		sc.clock = sc.clocks
		defer sc.Close(context.Background())
		f(sc)
		time.Sleep(time.Second) // all calls end
	})
}

// ask asks for a unit of a limiter, and returns the cells.
func (sc *scene) ask(l limiter) []step.Cell {
	sc.Helper()
	cells := l.cells(key, 1)
	if allowed, err := ask(context.Background(), sc.Leases, cells); err != nil || !allowed {
		sc.Error(allowed, err)
	}
	return cells
}

// warm asks for many units, one each 2 ms, and then until the lease has none.
func (sc *scene) warm(l limiter) {
	sc.Helper()
	for i := 0; i < 100 || sc.left(l) > 0; i++ {
		time.Sleep(2 * time.Millisecond)
		sc.ask(l)
	}
}

// send begins a call of the store that takes so long to arrive.
func (sc *scene) send(out time.Duration, f func()) {
	sc.link.slow.Store(int64(out))
	go f()
	synctest.Wait()
}

// left returns what the lease of a key has.
func (sc *scene) left(l limiter) (n int64) {
	sc.entryOf(l, func(e *entry) { n = e.liveUnits(sc.now()) })
	return n
}

// A walk puts random questions to a server with leases, and to a store without them.
type walk struct {
	*scene

	rng      *rand.Rand
	alone    *memory.States
	numbers  []step.Numbers
	limiters []limiter // as in a schedule
	plan     int       // api or half
	receipts []receipt
	holds    time.Duration // a refusal, which is then not asked for again
	refused  time.Time
}

// A receipt is the cells of an admission, by the server and by the store alone.
type receipt struct{ here, alone []step.Cell }

// A server that is the only one decides as the store would decide without leases, without a call if its lease has the units,
// and without a lease the store counts the same. There are two exceptions: in a sliding window, whose units expire all
// the time, a refusal holds for a while; and several charges may be refused while a lease has too little for one of them.
func TestOneServerIsExact(t *testing.T) {
	for seed := *begin; seed < *begin+*schedules/2; seed++ {
		play(t, leaseFor, func(sc *scene) {
			rng := rand.New(rand.NewPCG(uint64(seed), 3))
			w := &walk{scene: sc, rng: rng, alone: memory.New(0), numbers: sets()[rng.IntN(len(sets()))]}
			w.limiters = limiters(w.numbers, 100)
			if slices.ContainsFunc(w.numbers, func(m step.Numbers) bool { return m.Kind == step.SlidingWindow && !m.NeverOver }) {
				w.holds = leaseFor / partsOfLife
			}
			for i := range 3000 {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(3*time.Millisecond)))
				if rng.IntN(300) == 0 {
					w.lull(seed%2 == 0)
				}
				switch synctest.Wait(); i {
				case 2500:
					time.Sleep(5 * time.Second)
					if synctest.Wait(); w.bytes.Load() != 0 || w.sweepPlanned {
						t.Error("something is kept for idle keys")
					}
				case 2900:
					_ = w.Close(context.Background())
				}
				if w.step(); t.Failed() {
					t.Fatalf("seed %d, question %d: %v", seed, i, w.numbers)
				}
			}
			if w.bytes.Load() != 0 {
				t.Error("a closed store leases")
			}
		})
	}
}

// lull lets time pass. A clock is wrong then: the machine is suspended, or the wall clock is set.
func (w *walk) lull(suspended bool) {
	time.Sleep(leaseFor / partsOfLife) // no refusal holds any more
	span := time.Duration(w.rng.IntN(600)) * time.Millisecond
	if suspended {
		w.suspended.Add(int64(span))
	} else {
		w.stepped.Add(w.rng.Int64N(4e9) - 2e9)
	}
	time.Sleep(span)
}

func (w *walk) step() {
	n := 1 + w.rng.Int64N(4)
	switch op := w.rng.IntN(300); {
	case op < 1: // another plan: what the first has leased goes back meanwhile
		w.plan = half - w.plan
		w.both(step.Allow, false, charge{w.plan, 1})
		time.Sleep(leaseFor / partsOfLife)
	case op < 2:
		w.both(step.Reset, true, charge{w.plan, 0})
		w.receipts = nil
	case op < 7: // a document is loaded again
		w.limiters = limiters(w.numbers, 100)
	case op < 12: // a report, for which there may be no room: what is given back later only lessens the debt
		w.both(step.Settle, true, charge{w.plan, n})
		w.receipts = nil
	case op < 17:
		w.both(step.Peek, false, charge{w.plan, n})
	case op < 22: // a check
		w.both(step.Allow, false, charge{w.plan, 0})
	case op < 47:
		cs := []charge{{w.plan, n}, {beside, n}, {log, n}}
		w.rng.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
		w.link.dead.Store(w.rng.IntN(10) == 0) // then the call fails
		w.both(step.Allow, false, cs[:2+w.rng.IntN(2)]...)
		w.link.dead.Store(false)
	case op < 72: // some time ago, it was less
		if len(w.receipts) > 0 {
			i := w.rng.IntN(len(w.receipts))
			w.settle(w.receipts[i], -1-w.rng.Int64N(w.receipts[i].here[0].Units))
			w.receipts = slices.Delete(w.receipts, i, i+1)
		}
	default:
		which := []int{w.plan, w.plan, w.plan, w.plan, w.plan, w.plan, beside, log}[w.rng.IntN(8)]
		if which == w.plan && time.Since(w.refused) < w.holds {
			return
		}
		w.one(charge{which, n})
	}
	w.compare()
}

// one asks for a charge. It needs no call if the lease has the units, or if they were refused a moment ago.
func (w *walk) one(c charge) {
	known, calls := false, w.link.calls.Load()
	w.entryOf(w.limiters[c.which], func(e *entry) {
		now := w.now()
		known = e.liveUnits(now) >= c.n || e.refusedUnits == c.n && now.monotonic < e.refusalEndByMonotonic
	})
	allowed := w.both(step.Allow, true, c)
	if known && w.link.calls.Load() != calls {
		w.Error("a call, though the answer is known")
	}
	switch {
	case !allowed && c.which == w.plan:
		w.refused = time.Now()
	case allowed && w.rng.IntN(20) == 0 && remaining(w.alone, w.limiters[c.which]) > 0: // it was more
		w.settle(w.receipts[len(w.receipts)-1], 1)
	}
}

// both asks the server, and then the store alone: it decides the same, or if this is not exact, it does not refuse what
// the server admits.
func (w *walk) both(mode step.Mode, exact bool, cs ...charge) (allowed bool) {
	here, alone := cellsOf(w.limiters, cs), cellsOf(w.limiters, cs)
	if mode == step.Allow {
		allowed, _ = ask(context.Background(), w.Leases, here)
	} else {
		allowed, _ = w.Leases.Ask(context.Background(), mode, here)
	}
	if !allowed && !exact {
		return false
	}
	same, _ := w.alone.Ask(context.Background(), mode, alone)
	if allowed && mode == step.Allow && cs[0].n > 0 {
		w.receipts = append(w.receipts, receipt{here, alone})
	}
	for i := range here {
		a, b := &here[i], &alone[i]
		late := a.RetryAfter - b.RetryAfter
		report := mode == step.Settle && (a.Shortfall != b.Shortfall || a.Remaining != b.Remaining)
		if report || same != allowed || a.Units != b.Units || !allowed && (late < 0 && (a.Source == step.SourceStore || a.RetryAfter == 0) || late > 1 && w.holds == 0) {
			w.Errorf("mode %v: %v with leases: %+v; %v without: %+v", mode, allowed, *a, same, *b)
		}
	}
	return allowed
}

// settle corrects an admission by n units: without a call, if the lease has them, or is of the same part of time.
func (w *walk) settle(r receipt, n int64) {
	synctest.Wait()
	known, calls := false, w.link.calls.Load()
	w.entryOf(w.limiters[w.plan], func(e *entry) {
		same := r.here[0].Instant >= e.chargedAtStore && r.here[0].Instant < e.partEndAtStore
		known = e.isFor(r.here) && e.live(w.now()) && (n > 0 && e.units >= n || n < 0 && same)
	})
	_, _ = w.Leases.Ask(context.Background(), step.Settle, withUnits(r.here, n))
	_, _ = w.alone.Ask(context.Background(), step.Settle, withUnits(r.alone, n))
	if known && w.link.calls.Load() != calls {
		w.Errorf("a call for a settlement of %d", n)
	}
}

// compare compares what the stores count while there is no lease.
func (w *walk) compare() {
	synctest.Wait()
	for _, l := range w.limiters[:half] {
		leased := int64(0)
		w.entryOf(l, func(e *entry) {
			if leased = e.units; e.endsHere.monotonic > w.now().monotonic+int64(leaseFor) {
				w.Error("a lease outlives its life")
			}
		})
		if here, alone := remaining(w.shared, l), remaining(w.alone, l); leased == 0 && here != alone {
			w.Errorf("%d are left, not %d", here, alone)
		}
	}
}

// What a lease covers has the fields of a decision, also when it is given back. Two limiters with the policies of one have no part of its lease.
func TestFields(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l, one := newLimiter("api", fixed(1000, time.Hour), sliding(900, time.Minute, 10)), newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l)
		before := remaining(sc.shared, l)
		sc.ask(l)
		c := sc.ask(l)[1]
		if c.Source != step.SourceLease || c.Instant == 0 || c.Remaining != before-2 || c.NextAfter == 0 || c.ResetAfter == 0 {
			t.Errorf("%d, %+v", before, c)
		}
		full := newLimiter("full", fixed(1, time.Hour))
		sc.ask(full)
		both := append(full.cells(key, 1), l.cells(key, 1)...)
		if allowed, _ := ask(context.Background(), sc.Leases, both); allowed || both[2].Remaining != c.Remaining {
			t.Errorf("%v, %+v", allowed, both)
		}
		if allowed, _ := sc.Answer(step.Allow, append(one.cells(key, 1), l[1:].cells("another", 1)...), nil); allowed {
			t.Error("another key has the lease")
		}
	})
}

// What cannot be leased is passed on as it is: storetest says that it is answered as the store answers.
func TestPassedOn(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		storetest.Walk(t, rand.Uint64(), 4000, storetest.Subject{Store: sc.Leases, Sleep: time.Sleep, Skip: func(m step.Numbers) bool {
			p, err := step.New("l", "p", m)
			return err != nil || p.LeaseEnd(0) > 0
		}})
	})
}

// While a call is under way that leases, the plan changes or the key is reset: then nothing is leased.
func TestDuringACall(t *testing.T) {
	l, plan := newLimiter("api", fixed(1000, time.Hour)), newLimiter("api", fixed(900, time.Hour))
	ms := time.Millisecond
	for what, c := range map[string]struct {
		back    time.Duration // of the call
		forgets bool
	}{
		"the call ends after a reset":  {100 * ms, true},
		"the call ends before a reset": {5 * ms, true},
		"another plan asks":            {10 * ms, false},
	} {
		play(t, time.Second, func(sc *scene) {
			sc.warm(l)
			want := remaining(sc.shared, l) - 2
			if c.forgets { // after 20 ms; the call is charged before
				want = 1000
				sc.ask(l) // a lease begins
				sc.send(20*ms, func() { _, _ = sc.Ask(context.Background(), step.Reset, l.cells(key, 0)) })
			}
			if sc.left(l) > 0 {
				t.Errorf("%s: units are spent while the key is reset", what)
			}
			if sc.send(5*ms, func() { sc.ask(l) }); !c.forgets {
				sc.ask(plan)
			}
			sc.link.slow.Store(int64(c.back))
			time.Sleep(15 * ms)
			sc.link.slow.Store(0)
			time.Sleep(150 * ms)
			if n := remaining(sc.shared, l); sc.left(l) != 0 || n != want {
				t.Errorf("%s: %d are leased, and %d are left, not %d", what, sc.left(l), n, want)
			}
		})
	}
}

// Callers that come during a call wait for it, and it charges for all of them. Who gives up waits no longer.
func TestOneCallForAll(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l)
		calls := sc.link.calls.Load()
		sc.link.slow.Store(int64(10 * time.Millisecond))
		for range 21 {
			go sc.ask(l)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := sc.Leases.Ask(ctx, step.Allow, l.cells(key, 1)); err == nil || time.Since(began) > time.Millisecond {
			t.Error(err, time.Since(began))
		}
		time.Sleep(100 * time.Millisecond)
		if n := sc.link.calls.Load() - calls; n > 2 {
			t.Errorf("%d calls", n)
		}
	})
}

// Keys that are not busy take no memory, and busy ones a bounded amount, which is counted well: others are passed on.
func TestMemory(t *testing.T) {
	play(t, time.Minute, func(sc *scene) {
		l, keys := newLimiter("api", fixed(1000, time.Hour)), 5000
		asks := func(of string, times int) (taken, counted int64) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			counted = -sc.bytes.Load()
			for i := range keys * times {
				cells := l.cells(fmt.Sprint("a key of some forty characters, as usual ", of, i/times), 1)
				if allowed, err := ask(context.Background(), sc.Leases, cells); !allowed || err != nil {
					t.Error(allowed, err)
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			return int64(after.HeapAlloc - before.HeapAlloc), counted + sc.bytes.Load()
		}
		if _, counted := asks("busy", 1); counted > 50_000 { // now the store in memory has them, and does not count below
			t.Errorf("%d bytes for keys that were asked for once", counted)
		}
		if taken, counted := asks("busy", 3); taken > counted*5/4 {
			t.Errorf("%d bytes are taken, and counted as %d", taken, counted)
		}
		sc.bytes.Store(maxBytes - 1000)
		if asks("more", 3); sc.bytes.Load() > maxBytes {
			t.Errorf("%d bytes", sc.bytes.Load())
		}
	})
}

// A key that one server asks for is admitted when its refusal said so.
func TestRetryAfterSuffices(t *testing.T) {
	for _, m := range []step.Numbers{
		{Kind: step.SlidingWindow, Limit: 600, Period: time.Minute.Microseconds(), Resolution: 10},
		{Kind: step.SlidingWindow, Limit: 600, Period: time.Minute.Microseconds(), Resolution: 10, NeverOver: true},
		{Kind: step.FixedWindow, Limit: 100, Period: time.Second.Microseconds()},
	} {
		play(t, time.Second, func(sc *scene) {
			l := newLimiter("api", m)
			refusals := 0
			for range 3000 {
				cells := l.cells(key, 1)
				allowed, err := ask(context.Background(), sc.Leases, cells)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
				if allowed {
					continue
				}
				refusals++
				time.Sleep(time.Duration(cells[0].RetryAfter) * time.Microsecond)
				sc.ask(l)
			}
			if refusals < 4 {
				t.Errorf("%+v: %d refusals", m, refusals)
			}
		})
	}
}

// Of a caller who leaves while units are leased, no more is lost than what it asked for.
func TestCallersWhoLeaveLoseNoLease(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		const limit = 1_000_000
		l := newLimiter("api", step.Numbers{Kind: step.FixedWindow, Limit: limit, Period: 24 * time.Hour.Microseconds()})
		left, spent := int64(0), int64(0)
		for range 20 {
			for range 500 {
				time.Sleep(2 * time.Millisecond)
				sc.ask(l)
				spent++
			}
			time.Sleep(time.Second) // the lease is over
			sc.link.slow.Store(int64(50 * time.Millisecond))
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			start := time.Now()
			if _, err := ask(ctx, sc.Leases, l.cells(key, 1)); err != nil {
				left++
			}
			if took := time.Since(start); took > time.Millisecond {
				t.Errorf("it took %v", took)
			}
			cancel()
			time.Sleep(200 * time.Millisecond)
			sc.link.slow.Store(0)
		}
		if left < 10 {
			t.Errorf("%d have left", left)
		}
		if err := sc.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		peek := l.cells(key, 1)
		if _, err := sc.shared.Ask(t.Context(), step.Peek, peek); err != nil {
			t.Fatal(err)
		}
		if used := limit - peek[0].Remaining; used > spent+left {
			t.Errorf("%d are used, of which %d were spent, and %d asked for by those who left", used, spent, left)
		}
	})
}

// What a report, or a refused charge, gives back first takes no time of its own: all calls of a decision share a Timeout.
func TestGivingBackSharesTheTimeout(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", step.Numbers{Kind: step.FixedWindow, Limit: 1_000_000, Period: 24 * time.Hour.Microseconds()})
		sc.warm(l)
		for sc.left(l) == 0 {
			time.Sleep(2 * time.Millisecond)
			sc.ask(l)
		}
		sc.link.slow.Store(int64(80 * time.Millisecond)) // each way
		start := time.Now()
		report := l.cells(key, 5)
		if _, err := sc.Leases.Ask(context.Background(), step.Settle, report); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 100*time.Millisecond+160*time.Millisecond {
			t.Errorf("it took %v", took) // the store here has no Timeout of its own
		}
	})
}

// A watched store calls a function before each question.
type watched struct {
	store.Rates

	before func(mode step.Mode, cells []step.Cell)
}

func (s watched) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	s.before(mode, cells)
	return s.Rates.Ask(ctx, mode, cells)
}

// A charge that the store refuses gives the lease back and is asked for once more, whatever others lease meanwhile.
func TestRefusedOnceMore(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l)
		const units = 900
		asked := 0
		sc.uncached = watched{sc.link, func(mode step.Mode, cells []step.Cell) {
			if mode != step.Allow || cells[0].Units != units {
				return
			}
			asked++
			for i := 0; i < 100 && sc.left(l) == 0; i++ {
				_, _ = ask(context.Background(), sc.Leases, l.cells(key, 1))
			}
		}}
		allowed, err := sc.Leases.Ask(context.Background(), step.Allow, l.cells(key, units))
		if allowed || err != nil || asked != 2 {
			t.Errorf("%v, %v, asked for %d times", allowed, err, asked)
		}
	})
}

// A correction that the lease does not cover goes to the store with the instant and the source of its charge, also
// while as many units are refused.
func TestSettledDuringARefusal(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour), fixed(100_000, time.Hour)) // the second does not refuse
		sc.warm(l)
		const units = 5
		correction := sc.ask(l)
		for i := range correction {
			correction[i].Units = units
		}
		want := slices.Clone(correction)
		for sc.left(l) > 0 {
			time.Sleep(time.Millisecond)
			sc.ask(l)
		}
		if _, err := sc.shared.Ask(context.Background(), step.Allow, l.cells(key, remaining(sc.shared, l))); err != nil {
			t.Fatal(err)
		}
		if allowed, err := ask(context.Background(), sc.Leases, l.cells(key, units)); allowed || err != nil {
			t.Fatal(allowed, err)
		}
		if _, answered := sc.Answer(step.Peek, l.cells(key, units), nil); !answered {
			t.Fatal("no refusal holds")
		}
		settled := 0
		sc.next = watched{sc.link, func(mode step.Mode, cells []step.Cell) {
			settled++
			for i := range cells {
				if mode != step.Settle || cells[i].Instant != want[i].Instant || cells[i].Source != want[i].Source {
					t.Errorf("%d, %+v, not %+v", mode, cells[i], want[i])
				}
			}
		}}
		if _, err := sc.Leases.Ask(context.Background(), step.Settle, correction); err != nil || settled != 1 {
			t.Error(err, settled)
		}
	})
}

// A silent store answers nothing, or what redisstore answers then under FailOpen.
type silent struct {
	store.Rates

	open bool
}

func (s silent) Ask(_ context.Context, _ step.Mode, cells []step.Cell) (allowed bool, err error) {
	if !s.open {
		return false, store.ErrUnavailable
	}
	for i := range cells {
		cells[i].Source = step.SourceOpen
		cells[i].Reading = step.Reading{Remaining: cells[i].Policy.Capacity()}
	}
	return true, nil
}

// What was asked for beyond the charge is nobody's business, also if the store does not answer: observers are told of the
// units of the caller, and no more are left than there can be.
func TestUnitsWithoutAnAnswer(t *testing.T) {
	for _, open := range []bool{false, true} {
		play(t, time.Second, func(sc *scene) {
			l := newLimiter("api", fixed(1000, time.Hour))
			sc.warm(l)
			sc.next = silent{sc.link, open}
			sc.uncached = sc.next
			cells := l.cells(key, 1)
			allowed, err := ask(context.Background(), sc.Leases, cells)
			if allowed != open || (err == nil) != open {
				t.Errorf("%v, %v", allowed, err)
			}
			if cells[0].Units != 1 || cells[0].Remaining > 1000 {
				t.Errorf("open %v: %d units, and %d of 1000 are left", open, cells[0].Units, cells[0].Remaining)
			}
		})
	}
}
