package memstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
)

// What keys have under several plans is within the bound, and gone when it is over.
func TestSeveralPlansAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, plans := range [][]core.Policy{
		{core.TokenBucket(core.PerHour(10), 10), core.TokenBucket(core.PerMinute(3), 3), core.TokenBucket(core.PerHour(3), 30)},
		{core.FixedWindow(core.PerHour(10)), core.FixedWindow(core.PerMinute(10))},
		{core.SlidingWindow(core.PerHour(10)), core.SlidingWindow(core.PerHour(10)).Resolution(3), core.SlidingWindow(core.PerMinute(10))},
		{core.SlidingLog(core.PerHour(40)), core.SlidingLog(core.PerMinute(90)), core.SlidingLog(core.PerMinute(9))},
		{core.MinInterval(time.Hour), core.MinInterval(time.Minute), core.MinInterval(time.Hour / 2)},
	} {
		t.Run(plans[0].String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const bound = 1 << 20
				s := New(Config{MaxBytes: bound})
				checkAll := func() {
					total := s.budget.used()
					s.budget = budget{max: bound} // which check compares with one table
					for i := range s.shards {
						tb := &s.shards[i].table
						alone := budget{max: bound}
						for j := range tb.places {
							if e := &tb.places[j]; e.hash != 0 && e.kind&long != 0 {
								alone.long.Add(longBytes + 8*int64(len(tb.state(e))))
							}
						}
						for _, b := range tb.besides {
							alone.long.Add(b.bytes())
						}
						alone.tables.Store(int64(len(tb.places)) * entryBytes)
						tb.budget = &alone
						check(t, tb)
						tb.budget = &s.budget
						s.budget.tables.Add(alone.tables.Load())
						s.budget.long.Add(alone.long.Load())
					}
					if got := s.budget.used(); got != total {
						t.Fatalf("%d bytes are counted, of %d", total, got)
					}
				}
				var limiters []*core.Limiter
				for _, p := range plans {
					l, err := core.New(s, "api", p)
					if err != nil {
						t.Fatal(err)
					}
					limiters = append(limiters, l)
				}
				rng := rand.New(rand.NewPCG(1, 1))
				several := 0
				for i := range 25_000 {
					time.Sleep(time.Millisecond)
					key := fmt.Sprint(rng.IntN(6000))
					l := limiters[rng.IntN(len(limiters))]
					if _, err := l.Allow(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					if i%100 == 0 {
						_ = l.Reset(t.Context(), key)
					}
					if got := s.Stats().Bytes; got > bound {
						t.Fatalf("%d bytes after %d calls", got, i)
					}
					if i%5000 == 4999 {
						checkAll()
					}
				}
				for i := range s.shards {
					several += len(s.shards[i].table.besides)
				}
				if evicted := s.Stats().Evicted; several < 50 || evicted == 0 {
					t.Errorf("%d keys have several states, and %d were evicted", several, evicted)
				}
				time.Sleep(100 * time.Hour)
				for range 100 * shards { // one sweep for each
					s.sweep(s.now())
				}
				checkAll()
				if st := s.Stats(); st.Keys > 0 || s.budget.long.Load() > 0 {
					t.Errorf("%+v is left, %d bytes of it long", st, s.budget.long.Load())
				}
			})
		})
	}
}

// A key whose state is fresh under the numbers used last is kept for those of others.
func TestSweepKeepsOthers(t *testing.T) {
	for _, plans := range [][2]core.Policy{
		{core.TokenBucket(core.PerDay(10), 10), core.TokenBucket(core.PerSecond(100), 100)},
		{core.FixedWindow(core.Rate{Events: 10, Per: 400 * 24 * time.Hour}), core.FixedWindow(core.PerSecond(100))},
		{core.SlidingWindow(core.PerDay(10)), core.SlidingWindow(core.PerSecond(100))},
		{core.SlidingLog(core.PerDay(10)), core.SlidingLog(core.PerSecond(100))},
		{core.MinInterval(24 * time.Hour), core.MinInterval(time.Second)},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{})
			var limiters [2]*core.Limiter
			for i, p := range plans {
				var err error
				if limiters[i], err = core.New(s, "api", p); err != nil {
					t.Fatal(err)
				}
			}
			ask := func(l *core.Limiter, n int64) bool {
				d, err := l.AllowN(t.Context(), "key", n)
				if err != nil {
					t.Fatal(err)
				}
				return d.Allowed
			}
			ask(limiters[0], plans[0].Limit())
			time.Sleep(2 * time.Second)
			if !ask(limiters[1], 1) {
				t.Errorf("%v is refused", plans[1])
			}
			time.Sleep(time.Minute)
			for range shards {
				s.sweep(s.now())
			}
			if ask(limiters[0], 1) {
				t.Errorf("%v: used up, and admitted after a sweep", plans[0])
			}
		})
	}
}

// TestLargerPlanThatIsOver: once nothing counts any more that a plan of a larger burst has
// charged, it is forgotten, whether its state has been swept or not.
func TestLargerPlanThatIsOver(t *testing.T) {
	var got [2]core.Decision
	for i := range got {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{})
			plan := func(n int64, r core.Rate) *core.Limiter { return newLimiter(t, s, "api", core.TokenBucket(r, n)) }
			large, small, fast := plan(3600, core.PerSecond(1)), plan(5, core.PerSecond(1)), plan(1000, core.PerSecond(1000))
			allow := func(l *core.Limiter, n int64) core.Decision {
				d, err := l.AllowN(t.Context(), "key", n)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			allow(large, 1)
			time.Sleep(2 * time.Second)
			if i == 0 {
				for range shards {
					s.sweep(s.now())
				}
			}
			allow(small, 4)
			for range 4 { // each second all that the fast one has
				time.Sleep(time.Second)
				allow(fast, 1000)
			}
			got[i] = allow(small, 1)
		})
	}
	if swept, not := got[0], got[1]; swept.Allowed || not.Allowed || swept.RetryAfter > 5*time.Second || swept.RetryAfter != not.RetryAfter {
		t.Errorf("swept: %v; not: %v", swept, not)
	}
}

// TestLargeQuestionsLeaveNoRoom: what a question about many policies needed is not kept.
func TestLargeQuestionsLeaveNoRoom(t *testing.T) {
	s := New(Config{})
	var charges []core.Charge
	for i := range 8 {
		var policies []core.Policy
		for j := range 8 {
			policies = append(policies, core.FixedWindow(core.PerDay(int64(10+j))).Named(fmt.Sprint(j)))
		}
		charges = append(charges, core.Charge{Limiter: newLimiter(t, s, fmt.Sprint(i), policies...), Key: "key", N: 1})
	}
	for range 11 {
		if d, err := core.AllowAll(t.Context(), charges...); err != nil || d.Len() != 64 {
			t.Fatal(d, err)
		}
	}
	for i := range 64 { // the last was refused, by the smallest of each limiter
		d, err := charges[i/8].Limiter.Peek(t.Context(), "key")
		if err != nil || d.Answer(i%8).Remaining != int64(i%8) {
			t.Errorf("%d left of %d, %v", d.Answer(i%8).Remaining, 10+i%8, err)
		}
	}
	for i := range s.shards {
		if n := cap(s.shards[i].work.cells); n > keptCells {
			t.Errorf("shard %d has room for %d cells", i, n)
		}
	}
}
