package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

// Keys that are asked for once take no memory, and of the others there are as many as have room.
func TestKeysHaveRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, _ := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		l := limiterOf(t, s, core.FixedWindow(core.PerDay(1_000_000)))
		s.maxBytes = 10 * entrySize(s.prepared(l.Prepared()), "12") / 3 * 4
		for i := range 1000 {
			askFor(t, l, fmt.Sprint(i), 1)
		}
		if n := s.entries.Load(); n != 0 {
			t.Errorf("%d entries of keys that were asked for once", n)
		}
		for i := range 100 {
			askFor(t, l, fmt.Sprint(10+i%90), 20)
		}
		if n := s.entries.Load(); n != 10 {
			t.Errorf("%d entries, want 10", n)
		}
	})
}

func askFor(t *testing.T, l *core.Limiter, key string, times int) (d core.Decision) {
	t.Helper()
	for range times {
		var err error
		if d, err = l.Allow(context.Background(), key); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// A long key is not leased, and reaches the store as it is.
func TestLongKeys(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := memstore.New(memstore.Config{})
		s, link := newServer(t, shared, Config{}, 0)
		leased, direct := limiterOf(t, s, core.FixedWindow(core.PerDay(10_000))), limiterOf(t, shared, core.FixedWindow(core.PerDay(10_000)))
		for size, want := range map[int]core.Source{MaxKey: core.SourceLease, MaxKey + 1: core.SourceStore} {
			key := strings.Repeat("k", size)
			before := link.calls.Load()
			if d := askFor(t, leased, key, 100); d.Source != want {
				t.Errorf("%d bytes: decided by %v", size, d.Source)
			}
			if calls := link.calls.Load() - before; (calls == 100) != (want == core.SourceStore) {
				t.Errorf("%d bytes: %d calls", size, calls)
			}
			if err := s.Close(context.Background()); size == MaxKey && err != nil {
				t.Fatal(err)
			}
			s.closed.Store(false)
			if d := askFor(t, direct, key, 1); d.Remaining != 10_000-101 {
				t.Errorf("%d bytes: %d are left", size, d.Remaining)
			}
		}
	})
}

// A generous store admits everything. Settle takes no answer while it hangs, and fails then.
type generous struct {
	core.Store

	hangs atomic.Bool
	back  atomic.Int64 // units
	spent atomic.Int64
	aside atomic.Int64 // calls in the background that hang, too
}

func (g *generous) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode == store.Settle {
		return g.settle(ctx, q.Charges)
	}
	c, r := &q.Charges[0], &q.Result
	if _, background := ctx.Deadline(); background && g.hangs.Load() {
		g.aside.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	g.spent.Add(c.N + q.Extra)
	r.Start(time.Now().UnixMicro(), store.SourceStore)
	r.Allowed, r.Extra = true, q.Extra
	for range c.Limiter.Spec().Policies {
		r.Add(true, step.Reading{Remaining: 1 << 40})
	}
	return nil
}

func (g *generous) settle(ctx context.Context, ss []store.Charge) error {
	if g.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	for i := range ss {
		g.back.Add(ss[i].N - ss[i].Actual)
	}
	return nil
}

// heap returns how much of the heap is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// However many keys there are, and however long, leases take no more memory than is configured,
// also while the store is away and what is to be given back piles up. What is dropped is told.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const most, always, keys = 8 << 20, 1 << 20, 40_000
	for _, size := range []int{16, MaxKey, MaxKey + 1} {
		for _, policies := range []int{1, 8} {
			bubble.Test(t, func(t *testing.T) {
				var lost, times atomic.Int64
				shared := &generous{Store: memstore.New(memstore.Config{Observer: &core.Observer{Settled: func(_ context.Context, e core.SettleEvent) {
					lost.Add(e.Units - e.Actual)
					times.Add(1)
					if e.Limiter != "api" || !errors.Is(e.Err, errNoRoom) && !errors.Is(e.Err, context.DeadlineExceeded) {
						t.Errorf("told of %+v", e)
					}
				}}})}
				before := heap()
				s, err := New(shared, Config{MaxBytes: most})
				if err != nil {
					t.Fatal(err)
				}
				var all []core.Policy
				for i := range policies {
					all = append(all, core.FixedWindow(core.Rate{Events: 1 << 40, Per: time.Minute}).Named(fmt.Sprint(i)))
				}
				l := limiterOf(t, s, all...)
				shared.hangs.Store(true)
				largest := int64(0)
				for range 4 {
					for i := range keys {
						askFor(t, l, fmt.Sprintf("%0*d", size, i), 6)
						if used := s.used.Load(); used > most {
							t.Fatalf("%d bytes are reserved", used)
						}
					}
					time.Sleep(1100 * time.Millisecond) // the leases end
					s.endOver(s.now())                  // the timer hangs in the store
					largest = max(largest, heap()-before)
				}
				if (s.entries.Load() == 0) != (size > MaxKey) || (len(s.returns.queue) == 0) != (size > MaxKey) {
					t.Errorf("keys of %d bytes: %d entries, %d settlements", size, s.entries.Load(), len(s.returns.queue))
				}
				if largest > most+always {
					t.Errorf("keys of %d bytes, %d policies: %d bytes are in use", size, policies, largest)
				}
				t.Logf("keys of %d bytes, %d policies: %d bytes of %d", size, policies, largest, most)
				shared.hangs.Store(false)
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
				if s.used.Load() != 0 || s.entries.Load() != 0 || s.returns.queue != nil {
					t.Errorf("after it is closed, %d bytes are reserved, for %d entries", s.used.Load(), s.entries.Load())
				}
				if left := shared.spent.Load() - shared.back.Load() - lost.Load(); left != 4*keys*6 || (times.Load() == 0) != (size > MaxKey) {
					t.Errorf("%d units count, %d were lost, told %d times", left, lost.Load(), times.Load())
				}
			})
		}
	}
}

// Calls in the background are bounded too, while the store does not answer.
func TestCallsInTheBackgroundAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		shared := &generous{Store: memstore.New(memstore.Config{})}
		s, err := New(shared, Config{MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		l := limiterOf(t, s, core.FixedWindow(core.Rate{Events: 1 << 40, Per: time.Minute}))
		for i := range 1000 {
			askFor(t, l, fmt.Sprint(i), 10)
		}
		shared.hangs.Store(true)
		start := time.Now()
		for i := range 1000 {
			key := fmt.Sprint(i)
			p := s.place(s.prepared(l.Prepared()), key)
			for e := p.find(); e.held(s.now()) > 0; {
				askFor(t, l, key, 1)
			}
		}
		synctest.Wait()
		if n := shared.aside.Load(); n == 0 || n > (1<<20)/callBytes || time.Since(start) > 0 {
			t.Errorf("%d calls at once", n)
		}
		shared.hangs.Store(false)
		time.Sleep(2 * sendFor)
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if s.used.Load() != 0 {
			t.Errorf("%d bytes are reserved", s.used.Load())
		}
	})
}
