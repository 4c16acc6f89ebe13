package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
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
	*Store

	link   *link
	shared *memory.Store
}

func play(t *testing.T, life time.Duration, f func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sc := &scene{T: t, shared: memory.New(0)}
		sc.link = &link{Store: sc.shared, even: true, rng: rand.New(rand.NewPCG(1, 1))}
		sc.Store = New(sc.link, sc.link, life, 100*time.Millisecond)
		defer func() {
			if err := sc.Store.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		f(sc)
	})
}

// ask asks about units of limiters, and returns the cells and the answer.
func (sc *scene) ask(n int64, ls ...limiter) ([]step.Cell, bool) {
	sc.Helper()
	var cells []step.Cell
	for _, l := range ls {
		cells = append(cells, l.cells(key, n)...)
	}
	allowed, err := ask(context.Background(), sc.Store, cells)
	if err != nil {
		sc.Error(err)
	}
	return cells, allowed
}

// warm asks for so many units, one each 2 ms.
func (sc *scene) warm(l limiter, units int) {
	sc.Helper()
	for range units {
		time.Sleep(2 * time.Millisecond)
		if _, allowed := sc.ask(1, l); !allowed {
			sc.Fatal("refused")
		}
	}
}

// left returns what the lease of a key has.
func (sc *scene) left(l limiter) (n int64) {
	sc.entryOf(l, func(e *entry) { n = e.held(sc.now()) })
	return n
}

// used returns how many units the shared store counts.
func (sc *scene) used(l limiter) int64 {
	cells := l.cells(key, 1)
	if _, err := sc.shared.Ask(context.Background(), step.Peek, cells); err != nil {
		sc.Error(err)
	}
	return l[0].Capacity() - cells[0].Remaining
}

func (sc *scene) send(mode step.Mode, cells []step.Cell) {
	sc.Helper()
	if _, err := sc.Store.Ask(context.Background(), mode, cells); err != nil {
		sc.Error(err)
	}
}

// by returns cells whose units are corrected by n.
func by(cells []step.Cell, n int64) []step.Cell { return withUnits(cells, n) }

var log = step.Numbers{Algorithm: step.SlidingLog, Limit: 2, Period: 60e6}

// A hot key is decided here, and the store counts all that is spent.
func TestSpend(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour), sliding(900, time.Minute, 10))
		sc.warm(l, 200)
		if calls := sc.link.calls.Load(); calls > 20 {
			t.Errorf("%d calls", calls)
		}
		before := sc.left(l)
		cells, allowed := sc.ask(1, l)
		if !allowed || cells[1].Source != step.SourceLease || cells[1].At == 0 || sc.left(l) != before-1 {
			t.Errorf("%+v, %d left", cells, sc.left(l))
		}
		if cells[0].Remaining != 799 || cells[1].Remaining != 699 || cells[1].NextAfter == 0 || cells[1].ResetAfter == 0 {
			t.Errorf("%+v", cells)
		}
		if used := sc.used(l); used != 201+sc.left(l) {
			t.Errorf("the store counts %d", used)
		}
		// A check, and a peek, see what is leased and spend nothing.
		if cells, allowed = sc.ask(0, l); !allowed || cells[0].Remaining != 799 {
			t.Errorf("%+v", cells)
		}
		cells = l.cells(key, 2)
		allowed, _ = sc.Store.Ask(context.Background(), step.Peek, cells)
		if !allowed || cells[1].Remaining != 699 || cells[0].Remaining != 799 {
			t.Errorf("%+v", cells)
		}
	})
}

// Units that are given back are spent again, without a call, in whatever call of the same part of time they were charged;
// later they go to the store. What is used beyond a charge is taken from the lease, too.
func TestSettle(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(10_000, time.Minute))
		sc.warm(l, 200)
		cells, _ := sc.ask(5, l)
		left, calls := sc.left(l), sc.link.calls.Load()+sc.link.settles.Load()
		sc.send(step.Settle, by(cells, -3))
		if sc.left(l) != left+3 {
			t.Errorf("%d left", sc.left(l))
		}
		more := by(cells, 2)
		if sc.send(step.Settle, more); sc.left(l) != left+1 || more[0].Short != 0 {
			t.Errorf("%d left, %+v", sc.left(l), more)
		}
		if n := sc.link.calls.Load() + sc.link.settles.Load(); n != calls {
			t.Errorf("%d calls", n-calls)
		}
		time.Sleep(3 * time.Second) // the lease is over
		used := sc.used(l)
		if sc.send(step.Settle, by(cells, -2)); used != 204 || sc.used(l) != 202 {
			t.Errorf("%d are used, then %d", used, sc.used(l))
		}
		time.Sleep(time.Minute) // and the window
		sc.ask(1, l)
		if sc.send(step.Settle, by(cells, -2)); sc.used(l) != 1 {
			t.Errorf("%d are used", sc.used(l))
		}
	})
}

// A report ends the lease of its key, so that it says what is left, and what had no room.
func TestReport(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l, 100)
		cells := l.cells(key, 950)
		if sc.send(step.Settle, cells); cells[0].Remaining != 0 || cells[0].Short != 50 || sc.left(l) != 0 {
			t.Errorf("%+v", cells)
		}
	})
}

// A question of several charges is all or nothing: it spends what is leased, asks for the others in one call, and puts
// back what it spent if the store refuses or fails.
func TestAllOrNothing(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		a, b, c := newLimiter("a", fixed(1000, time.Minute)), newLimiter("b", log), newLimiter("c", fixed(10, time.Minute))
		sc.warm(a, 200)
		for i := range 4 {
			before, calls := sc.left(a), sc.link.calls.Load()
			cells, allowed := sc.ask(1, b, a)
			if allowed != (i < 2) || cells[1].Short != 0 || (cells[0].Short > 0) != (i >= 2) || sc.link.calls.Load() != calls+1 {
				t.Fatalf("%d: %v %+v", i, allowed, cells)
			}
			if allowed {
				before--
			}
			if sc.left(a) != before || cells[1].Remaining != 1000-200-min(int64(i)+1, 2) {
				t.Errorf("%d: %d left, not %d: %+v", i, sc.left(a), before, cells)
			}
		}
		before := sc.left(a)
		sc.link.dead.Store(true)
		cells := append(a.cells(key, 1), c.cells(key, 1)...)
		if _, err := ask(context.Background(), sc.Store, cells); !errors.Is(err, errLink) || sc.left(a) != before {
			t.Error(err, sc.left(a), before)
		}
		sc.link.dead.Store(false)
		// Each charge goes back where it was made.
		cells, _ = sc.ask(1, a, c)
		left, used := sc.left(a), sc.used(c)
		sc.send(step.Settle, by(cells, -1))
		if sc.left(a) != left+1 || sc.used(c) != used-1 {
			t.Errorf("%d left, %d used", sc.left(a), sc.used(c))
		}
	})
}

// Busy keys of questions of several charges are leased beside them, so that soon no call is needed.
func TestLeasedBeside(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		a, b := newLimiter("a", fixed(1000, time.Minute)), newLimiter("b", sliding(1000, time.Minute, 10))
		for range 200 {
			time.Sleep(2 * time.Millisecond)
			sc.ask(1, a, b)
		}
		if n := sc.link.calls.Load(); n > 80 || sc.used(a) != 200+sc.left(a) || sc.used(b) != 200+sc.left(b) {
			t.Errorf("%d calls, %d and %d used", n, sc.used(a), sc.used(b))
		}
	})
}

// A refusal of a question of several charges refuses no other question.
func TestOthersAreNotRefused(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		a, b := newLimiter("a", fixed(1000, time.Minute)), newLimiter("b", fixed(5, time.Minute))
		for range 10 {
			sc.ask(1, a, b)
		}
		for n := range int64(3) {
			if cells, allowed := sc.ask(n, a); !allowed {
				t.Errorf("%+v", cells)
			}
		}
	})
}

// What cannot be leased is passed on as it is: storetest says that it is answered as the store answers.
func TestPassedOn(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		from := step.Numbers{Algorithm: step.FixedWindow, Limit: 100, Period: 60e6, FromFirst: true}
		denied := sliding(100, time.Minute, 10)
		denied.CountDenied = true
		bucket := step.Numbers{Algorithm: step.TokenBucket, Limit: 100, Burst: 100, Period: 60e6}
		for _, l := range []limiter{newLimiter("a", from), newLimiter("b", denied), newLimiter("c", bucket), newLimiter("d", fixed(100, time.Minute), bucket)} {
			sc.warm(l, 50)
			if cells, _ := sc.ask(1, l); cells[0].Source != step.SourceStore || sc.bytes.Load() != 0 {
				t.Errorf("%+v", cells)
			}
		}
		storetest.Walk(t, rand.Uint64(), 4000, storetest.Subject{Store: sc.Store, Sleep: time.Sleep, Skip: func(m step.Numbers) bool {
			p, err := step.New("l", "p", m)
			return err != nil || p.LeaseEnd(0) > 0
		}})
	})
}

// A key that is asked for here only is refused exactly when the store would refuse it. Only in a sliding window, whose
// units expire all the time, a refusal holds for a while.
func TestOneServerIsExact(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			m := sets()[rng.IntN(len(sets()))]
			l := newLimiter("api", m...)
			shared, alone := memory.New(0), memory.New(0)
			s := New(shared, shared, 200*time.Millisecond, time.Second)
			defer s.Close(context.Background())
			held := time.Duration(0)
			for _, m := range m {
				if m.Algorithm == step.SlidingWindow && !m.NeverOver {
					held = 10 * time.Millisecond
				}
			}
			refused := time.Now().Add(-time.Second)
			for range 3000 {
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(3*time.Millisecond)))
				n := 1 + rng.Int64N(4)
				cells, same := l.cells(key, n), l.cells(key, n)
				if time.Since(refused) < held {
					continue
				}
				a, _ := ask(context.Background(), s, cells)
				b, _ := alone.Ask(context.Background(), step.Allow, same)
				if a != b {
					t.Fatalf("seed %d: %v with leases, %v without, %v: %+v, %+v", seed, a, b, m, cells, same)
				}
				if !a {
					refused = time.Now()
					for i := range cells {
						if cells[i].RetryAfter < same[i].RetryAfter || held == 0 && cells[i].RetryAfter > same[i].RetryAfter+1 {
							t.Fatalf("seed %d: retry after %v, not %v", seed, cells[i].RetryAfter, same[i].RetryAfter)
						}
					}
				}
				if rng.IntN(20) == 0 && a { // give back
					s.Ask(context.Background(), step.Settle, by(cells, -n))
					alone.Ask(context.Background(), step.Settle, by(same, -n))
				}
			}
		})
	}
}

// A lease is over with its part of time and its life, and when either clock says so. Then it goes back.
func TestEnd(t *testing.T) {
	for what, c := range map[string]struct {
		passed, jump time.Duration // of both clocks, and of the wall clock alone
		live         bool
	}{
		"soon":         {passed: 50 * time.Millisecond, live: true},
		"its life":     {passed: 201 * time.Millisecond},
		"suspended":    {passed: time.Millisecond, jump: 210 * time.Millisecond},
		"set back":     {passed: 201 * time.Millisecond, jump: -time.Hour},
		"set back now": {passed: 50 * time.Millisecond, jump: -time.Hour, live: true},
	} {
		play(t, 200*time.Millisecond, func(sc *scene) {
			var jump atomic.Int64
			sc.clock = func() instant {
				now := time.Now()
				return instant{int64(now.Sub(sc.begin)), now.UnixNano() + jump.Load()}
			}
			l := newLimiter("api", fixed(1000, time.Hour))
			sc.warm(l, 100)
			before := sc.link.calls.Load()
			for sc.ask(1, l); sc.link.calls.Load() == before; sc.ask(1, l) {
			} // a lease begins
			time.Sleep(c.passed)
			if jump.Store(int64(c.jump)); sc.left(l) > 0 != c.live {
				t.Errorf("%s: %d left", what, sc.left(l))
			}
		})
	}
	play(t, time.Minute, func(sc *scene) { // the sub-window is shorter
		l := newLimiter("api", sliding(10_000, time.Second, 10))
		sc.warm(l, 300)
		time.Sleep(100 * time.Millisecond)
		if sc.left(l) > 0 {
			t.Error("a lease outlives its sub-window")
		}
		time.Sleep(60 * time.Millisecond)
		if sc.used(l) != 300 {
			t.Errorf("%d are used", sc.used(l))
		}
	})
}

// Plans of other limits have no lease of the same key: it goes back. Equal policies, loaded again, have the same.
func TestPlans(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour), sliding(500, time.Minute, 10))
		for _, other := range []limiter{
			newLimiter("api", fixed(900, time.Hour), sliding(500, time.Minute, 10)),
			newLimiter("api", fixed(1000, time.Hour), neverOver(sliding(500, time.Minute, 10))),
			newLimiter("api", fixed(1000, time.Hour)),
		} {
			sc.warm(l, 50)
			again := newLimiter("api", fixed(1000, time.Hour), sliding(500, time.Minute, 10))
			if cells, _ := sc.ask(1, again); cells[0].Source != step.SourceLease {
				t.Error("a limiter that was made again has no lease")
			}
			if cells, _ := sc.ask(1, other); cells[0].Source != step.SourceStore {
				t.Error("another plan has the lease")
			}
			time.Sleep(100 * time.Millisecond)
			if n := sc.used(l); n%52 != 0 {
				t.Errorf("%d are used: the lease did not go back", n)
			}
		}
	})
	play(t, time.Second, func(sc *scene) { // nor is what a call leases that is under way when the plan changes
		l, other := newLimiter("api", fixed(1000, time.Hour)), newLimiter("api", fixed(900, time.Hour))
		sc.warm(l, 20)
		for sc.left(l) > 0 {
			sc.ask(1, l)
		}
		used := sc.used(l)
		sc.link.slow.Store(int64(10 * time.Millisecond))
		go sc.ask(1, l)
		synctest.Wait()
		sc.ask(1, other)
		time.Sleep(200 * time.Millisecond)
		if n := sc.used(l); n != used+2 || sc.left(l) != 0 {
			t.Errorf("%d are used, not %d", n, used+2)
		}
	})
	play(t, time.Second, func(sc *scene) { // two limiters with the policies of one are not that
		l := newLimiter("api", fixed(1000, time.Hour), fixed(2000, time.Minute))
		sc.warm(l, 50)
		one := l[0]
		one.Last = true
		if allowed, _ := sc.Answer(step.Allow, append(limiter{one}.cells(key, 1), l[1:].cells("another", 1)...), nil); allowed {
			t.Error("another key has the lease")
		}
	})
}

// A reset drops the lease, and what waits to be given back. Whatever was charged before it is not leased after it.
func TestReset(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l, 100)
		other := newLimiter("api", fixed(500, time.Hour))
		both := append(other.cells(key, 0)[:0:0], l.cells(key, 0)...)
		sc.send(step.Reset, both)
		if sc.left(l) != 0 || sc.used(l) != 0 {
			t.Errorf("%d left, %d used", sc.left(l), sc.used(l))
		}
	})
	for what, c := range map[string]struct{ charged, back time.Duration }{
		"a call that ends after the reset":  {5 * time.Millisecond, 100 * time.Millisecond},
		"a call that ends during the reset": {5 * time.Millisecond, 5 * time.Millisecond},
	} {
		play(t, time.Second, func(sc *scene) {
			l := newLimiter("api", fixed(1000, time.Hour))
			sc.warm(l, 20)
			for sc.left(l) > 0 {
				sc.ask(1, l)
			}
			calls := sc.link.calls.Load()
			sc.link.slow.Store(int64(20 * time.Millisecond))
			done := make(chan bool)
			go func() {
				sc.send(step.Reset, l.cells(key, 0)) // the store forgets after 20 ms
				close(done)
			}()
			time.Sleep(time.Millisecond)
			sc.link.slow.Store(int64(c.charged))
			go sc.ask(1, l)
			time.Sleep(time.Millisecond)
			sc.link.slow.Store(int64(c.back))
			time.Sleep(c.charged + time.Millisecond)
			sc.link.slow.Store(0)
			<-done
			if sc.left(l) != 0 || sc.used(l) != 0 || sc.link.calls.Load() == calls {
				t.Errorf("%s: after the reset, %d left, %d used", what, sc.left(l), sc.used(l))
			}
			time.Sleep(200 * time.Millisecond)
			if sc.left(l) != 0 || sc.used(l) != 0 {
				t.Errorf("%s: %d left, %d used", what, sc.left(l), sc.used(l))
			}
		})
	}
	play(t, time.Second, func(sc *scene) { // nothing is spent while the call is under way
		l := newLimiter("api", fixed(1000, time.Hour))
		for sc.warm(l, 20); sc.left(l) == 0; {
			sc.ask(1, l)
		}
		sc.link.slow.Store(int64(20 * time.Millisecond))
		go sc.send(step.Reset, l.cells(key, 0))
		if synctest.Wait(); sc.left(l) != 0 {
			t.Errorf("%d left", sc.left(l))
		}
		time.Sleep(50 * time.Millisecond)
	})
}

// When nobody asks any more, nothing is kept and nothing runs; what was leased is back.
func TestIdle(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", sliding(1000, time.Minute, 10))
		sc.warm(l, 200)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if sc.bytes.Load() != 0 || sc.sweeps || sc.used(l) != 200 {
			t.Error(sc.bytes.Load(), sc.sweeps, sc.used(l))
		}
		sc.warm(l, 200) // and it begins anew
		if err := sc.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if sc.used(l) != 400 || sc.bytes.Load() != 0 {
			t.Error(sc.used(l))
		}
		if cells, _ := sc.ask(1, l); cells[0].Source != step.SourceStore {
			t.Error("a closed store leases")
		}
		sc.ask(1, l)
		if sc.used(l) != 402 {
			t.Error(sc.used(l))
		}
	})
}

// Keys that are not busy take no memory, and busy ones a bounded amount: others are passed on.
func TestMemory(t *testing.T) {
	play(t, time.Minute, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		for i := range 100_000 {
			_, _ = ask(context.Background(), sc.Store, l.cells(fmt.Sprint(i), 1))
		}
		if n := sc.bytes.Load(); n > 100*500 {
			t.Errorf("%d bytes for keys that were asked for once", n)
		}
		const keys = 5000
		name := func(i int) string { return fmt.Sprintf("a key of some forty characters, as usual %d", i) }
		for i := range keys { // so that the store in memory has them, and does not count below
			_, _ = sc.shared.Ask(context.Background(), step.Allow, l.cells(name(i), 1))
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		counted := sc.bytes.Load()
		for i := range keys {
			for range 3 {
				_, _ = ask(context.Background(), sc.Store, l.cells(name(i), 1))
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		counted = (sc.bytes.Load() - counted) / keys
		takes := int64(after.HeapAlloc-before.HeapAlloc) / keys
		t.Logf("%d bytes a key, counted as %d", takes, counted)
		if takes > counted*5/4 {
			t.Error("they are counted as too few")
		}
		sc.bytes.Add(maxBytes - sc.bytes.Load() - 1000)
		for i := range 10 {
			name := fmt.Sprintf("one more key %d", i)
			for range 3 {
				if allowed, err := ask(context.Background(), sc.Store, l.cells(name, 1)); !allowed || err != nil {
					t.Error(allowed, err)
				}
			}
		}
		if n := sc.bytes.Load(); n > maxBytes {
			t.Errorf("%d bytes", n)
		}
	})
}

// failing is a store that decides by itself while its server is away, as redisstore does.
type failing struct {
	store.Store

	local store.Store
	away  bool
}

func (f *failing) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (bool, error) {
	switch {
	case mode == step.Settle && cells[0].Source == step.SourceLocal, mode != step.Settle && f.away:
		allowed, err := f.local.Ask(ctx, mode, cells)
		for i := range cells {
			cells[i].Source = step.SourceLocal
		}
		return allowed, err
	case f.away:
		return false, errLink
	}
	return f.Store.Ask(ctx, mode, cells)
}

// Only the store leases. While its server is away, leases are spent to their end, and then each call is decided there.
func TestServerIsAway(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		f := &failing{Store: sc.shared, local: memory.New(0)}
		sc.next, sc.fresh = f, f
		l, other := newLimiter("api", fixed(1000, time.Hour)), newLimiter("other", fixed(1000, time.Hour))
		sc.warm(l, 200)
		f.away = true
		leased, local := int64(0), int64(0)
		for i := range 300 {
			time.Sleep(2 * time.Millisecond)
			charges := []limiter{l, other}
			if i%10 > 0 {
				charges = charges[:1]
			}
			cells, allowed := sc.ask(1, charges...)
			if !allowed {
				t.Fatalf("%d %+v", i, cells)
			}
			if cells[0].Source == step.SourceLease {
				leased++
			} else if local++; cells[0].Source != step.SourceLocal {
				t.Errorf("%+v", cells)
			}
			if i == 299 { // it goes back where it was made
				sc.send(step.Settle, by(cells, -1))
				local--
			}
		}
		time.Sleep(100 * time.Millisecond)
		cells := l.cells(key, 1)
		_, _ = f.local.Ask(context.Background(), step.Peek, cells)
		if used := 1000 - cells[0].Remaining; used != local || leased == 0 {
			t.Errorf("%d units are used of %d, beside %d of leases", used, local, leased)
		}
		f.away = false
		time.Sleep(3 * time.Second)
		if used := sc.used(l); used != 200+leased {
			t.Errorf("%d units are used in the store, not %d", used, 200+leased)
		}
	})
}

// Callers that come during a call wait for it, and it charges for all of them. Who gives up waits no longer.
func TestTogetherInOneCall(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l, 50)
		sc.link.slow.Store(int64(10 * time.Millisecond))
		for sc.left(l) > 0 {
			sc.ask(1, l)
		}
		calls := sc.link.calls.Load()
		var done sync.WaitGroup
		done.Go(func() { sc.ask(1, l) })
		synctest.Wait()
		began := time.Now()
		for range 20 {
			done.Go(func() { sc.ask(1, l) })
		}
		done.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			if _, err := sc.Store.Ask(ctx, step.Allow, l.cells(key, 1)); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Millisecond {
				t.Error(err, time.Since(began))
			}
		})
		done.Wait()
		if n := sc.link.calls.Load() - calls; n > 2 {
			t.Errorf("%d calls", n)
		}
	})
}

// A call that does not come back holds up nobody, nor does one that panics.
func TestCallsThatFail(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(1000, time.Hour))
		sc.warm(l, 50)
		for sc.left(l) > 0 {
			sc.ask(1, l)
		}
		sc.fresh = panicking{sc.link}
		func() {
			defer func() { _ = recover() }()
			sc.ask(1, l)
			t.Error("no panic")
		}()
		sc.fresh = sc.link
		sc.link.dead.Store(true)
		if _, err := ask(context.Background(), sc.Store, l.cells(key, 1)); !errors.Is(err, errLink) {
			t.Error(err)
		}
		sc.link.dead.Store(false)
		began := time.Now()
		if _, allowed := sc.ask(1, l); !allowed || time.Since(began) > 0 {
			t.Error(allowed, time.Since(began))
		}
	})
}

type panicking struct{ store.Store }

func (panicking) Ask(context.Context, step.Mode, []step.Cell) (bool, error) { panic("an observer") }

// A refusal holds for a moment, for as many units and fewer, and tells how long to wait.
func TestRefusalsHold(t *testing.T) {
	play(t, time.Second, func(sc *scene) {
		l := newLimiter("api", fixed(100, time.Minute))
		sc.warm(l, 99)
		sc.ask(2, l)
		calls := sc.link.calls.Load()
		cells, allowed := sc.ask(2, l)
		if allowed || cells[0].Source != step.SourceLease || sc.link.calls.Load() != calls || cells[0].Remaining != 1 {
			t.Errorf("%v %+v", allowed, cells)
		}
		if rest := time.Minute.Microseconds() - time.Now().UnixMicro()%time.Minute.Microseconds(); cells[0].RetryAfter < rest || cells[0].RetryAfter > rest+1 {
			t.Errorf("retry after %d, not %d", cells[0].RetryAfter, rest)
		}
		if _, allowed = sc.ask(1, l); !allowed {
			t.Error("a unit that is left is refused")
		}
		sc.ask(1, l)
		calls = sc.link.calls.Load()
		for range 1000 {
			time.Sleep(time.Millisecond)
			sc.ask(1, l)
		}
		if n := sc.link.calls.Load() - calls; n < 10 || n > 40 {
			t.Errorf("%d calls in a second of refusals", n)
		}
	})
}
