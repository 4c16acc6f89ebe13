package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
)

// A testServer answers all processes after some time.
type testServer struct {
	mu      sync.Mutex
	model   *model
	latency time.Duration // there and back, at most
	calls   int           // about slots
}

// A wire is what one process sees of a testServer.
type wire struct {
	*testServer

	cut    bool // nothing arrives
	silent bool // nothing is answered
}

func (w *wire) do(ctx context.Context, f func()) error {
	time.Sleep(rand.N(w.latency/2 + 1))
	w.mu.Lock()
	cut, silent := w.cut, w.silent
	if !cut {
		f()
	}
	w.mu.Unlock()
	if cut {
		return errCut
	}
	if silent {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(rand.N(w.latency/2 + 1))
	return nil
}

func (w *wire) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (*wire) Shard(string, string) int { return 0 }

func (w *wire) Run(ctx context.Context, all []*Statement) error {
	err := w.do(ctx, func() {
		w.model.now = time.Now().UnixMicro()
		for _, s := range all {
			w.model.state(s)
			w.calls++
		}
	})
	for _, s := range all {
		s.Err = err
	}
	return err
}

func (w *wire) Beat(ctx context.Context, b *Beat) error {
	return w.do(ctx, func() { w.model.beat(time.Now().UnixMicro(), b) })
}

func newServer(latency time.Duration) *testServer {
	return &testServer{model: newModel(), latency: latency}
}

func (s *testServer) keeper(f outage.Failure) (*Keeper, *wire) {
	w := &wire{testServer: s}
	return New(w, Config{TTL: simTTL, Timeout: simTimeout * 5, Shards: 1, Failure: f}), w
}

func claim(limit int64, queue int) slots.Acquisition {
	return slots.Acquisition{Name: "ws", Key: "key", Limit: limit, Queue: queue}
}

func acquires(t *testing.T, k *Keeper, c slots.Acquisition) slots.Grant {
	t.Helper()
	g, err := k.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A wait that ends with its context is ErrFull around the cause if the server has answered in it, wherever its question
// is then: in line, not sent, or on its way. A wait that ends before any answer is ErrUnavailable.
func TestWaitThatEndsIsFull(t *testing.T) {
	for _, latency := range []time.Duration{0, 2 * time.Millisecond, 60 * time.Millisecond} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("latency %v, silent %v", latency, silent), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testWaits(t, latency, silent) })
			})
		}
	}
}

func testWaits(t *testing.T, latency time.Duration, silent bool) {
	s := newServer(latency)
	holder, _ := s.keeper(outage.FailClosed)
	h := acquires(t, holder, claim(1, 0))
	k, w := s.keeper(outage.FailClosed)
	if _, err := k.Acquire(t.Context(), claim(1, 0)); !errors.Is(err, slots.ErrFull) {
		t.Fatal(err)
	}
	time.Sleep(simTTL) // so that the refusal is not remembered
	w.set(func() { w.silent = silent })
	full, unanswered := 0, 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			long := 2*latency + time.Millisecond + rand.N(200*time.Millisecond) // an answer comes in time
			if silent {
				long = rand.N(200 * time.Millisecond)
			}
			ctx, cancel := context.WithTimeout(t.Context(), long)
			defer cancel()
			_, err := k.Acquire(ctx, claim(1, 100))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !errors.Is(err, context.DeadlineExceeded):
				t.Error(err)
			case errors.Is(err, slots.ErrFull):
				full++
			case errors.Is(err, slots.ErrUnavailable):
				unanswered++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if silent && full > 0 || !silent && unanswered > 0 {
		t.Errorf("%d waits are full, %d had no answer", full, unanswered)
	}
	h.Release()
	w.set(func() { w.silent = false })
	time.Sleep(3 * simTTL)
	acquires(t, k, claim(1, 0)).Release() // none of them holds a slot
	k.die()
	holder.die()
	time.Sleep(simTTL)
}

// In a process, those who wait are served in their order, but none behind one whom a slot would not suit. The
// line is bounded.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(time.Millisecond)
		k, _ := s.keeper(outage.FailClosed)
		h := acquires(t, k, claim(1, 0))
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				h, err := k.Acquire(t.Context(), claim(1, 5))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				h.Release()
			})
			time.Sleep(5 * time.Millisecond)
		}
		start := time.Now()
		if _, err := k.Acquire(t.Context(), claim(1, 5)); !errors.Is(err, slots.ErrFull) || time.Since(start) > 0 {
			t.Error("a sixth waits", err)
		}
		acquires(t, k, claim(2, 5)).Release() // for whom there is room
		h.Release()
		all.Wait()
		if !slices.IsSorted(order) {
			t.Error(order)
		}
		k.die()
		time.Sleep(simTTL)
	})
}

// A process has so many callers that wait for slots, hold them, and come again.
type crew struct {
	k       *Keeper
	wire    *wire
	granted int
	held    int64
	stop    context.CancelFunc
}

type contest struct {
	*testServer

	t     *testing.T
	limit int64
	hold  time.Duration
	all   sync.WaitGroup
	crews []*crew
	mu    sync.Mutex
}

func (c *contest) add(callers int) *crew {
	ctx, stop := context.WithCancel(c.t.Context())
	one := &crew{stop: stop}
	one.k, one.wire = c.keeper(outage.FailClosed)
	c.mu.Lock()
	c.crews = append(c.crews, one)
	c.mu.Unlock()
	for range callers {
		c.all.Go(func() {
			for ctx.Err() == nil {
				h, err := one.k.Acquire(ctx, claim(c.limit, callers))
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				c.count(one, 1)
				time.Sleep(c.hold)
				c.count(one, -1)
				h.Release()
			}
		})
	}
	return one
}

func (c *contest) count(one *crew, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.granted += int(max(n, 0))
	one.held += n
	var held int64
	for _, o := range c.crews {
		held += o.held
	}
	if held > c.limit {
		c.t.Errorf("%d of %d are held", held, c.limit)
	}
}

func (c *contest) counts(within time.Duration) (all []int, calls int) {
	read := func() (all []int, calls int) {
		c.testServer.mu.Lock()
		calls = c.calls
		c.testServer.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, o := range c.crews {
			all = append(all, o.granted)
		}
		return all, calls
	}
	before, was := read()
	time.Sleep(within)
	all, calls = read()
	for i := range all {
		all[i] -= before[i]
	}
	return all, calls - was
}

func (c *contest) end() {
	for _, o := range c.crews {
		o.stop()
	}
	c.all.Wait()
	for _, o := range c.crews {
		o.k.die()
		o.wire.set(func() { o.wire.cut = false })
	}
	time.Sleep(2 * simTTL)
}

// Of processes that wait for the same slots, none starves, and slots are not idle for long.
func TestTurns(t *testing.T) {
	const ms = time.Millisecond
	type scene struct {
		limit   int64
		hold    time.Duration
		callers []int
		least   int // of the grants, for each, in per cent
		busy    int // of what would be granted if no slot were ever idle, in per cent
	}
	var all []scene
	for _, limit := range []int64{1, 2, 10} {
		for _, hold := range []time.Duration{10 * ms, 100 * ms, 500 * ms} {
			all = append(all, scene{limit, hold, []int{50, 50}, 35, 50})
		}
	}
	all = append(all,
		scene{10, 10 * ms, []int{50}, 100, 80},
		scene{10, 10 * ms, []int{50, 50, 50}, 25, 75},
		scene{10, 500 * ms, []int{50, 50, 50}, 20, 75},
		scene{10, 10 * ms, []int{50, 5}, 25, 75},
		scene{10, 10 * ms, []int{50, 2}, 10, 75},
		scene{1, 100 * ms, []int{10, 10}, 40, 70},
		scene{2, 100 * ms, []int{50, 50, 50, 50, 50}, 14, 60},
		scene{1, 10 * ms, []int{50, 50, 50, 50, 50}, 14, 30},
	)
	for _, s := range all {
		t.Run(fmt.Sprintf("%d slots, held for %v, callers %v", s.limit, s.hold, s.callers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &contest{testServer: newServer(time.Millisecond), t: t, limit: s.limit, hold: s.hold}
				for _, n := range s.callers {
					c.add(n)
					time.Sleep(s.hold / 3)
				}
				time.Sleep(3 * time.Second)
				counts, calls := c.counts(20 * time.Second)
				sum := 0
				for _, n := range counts {
					sum += n
				}
				busy := 100 * sum / (int(20*time.Second/s.hold) * int(s.limit))
				for _, n := range counts {
					if 100*n/sum < s.least {
						t.Errorf("%d %% is too little", 100*n/sum)
					}
				}
				if busy < s.busy {
					t.Errorf("busy %d %%", busy)
				}
				t.Logf("%v, busy %d %%, %.1f calls a grant", counts, busy, float64(calls)/float64(sum))
				c.end()
			})
		})
	}
}

// What is left for a process that waits is granted to others soon after it has died, or has given up.
func TestNothingIsLeftForTheDead(t *testing.T) {
	for name, leave := range map[string]func(*crew){
		"dies":     func(o *crew) { o.wire.set(func() { o.wire.cut = true }); o.stop() },
		"gives up": func(o *crew) { o.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &contest{testServer: newServer(time.Millisecond), t: t, limit: 10, hold: 2 * time.Second}
				works := c.add(20)
				time.Sleep(time.Second)
				waits := c.add(20)
				time.Sleep(450 * time.Millisecond)
				leave(waits)
				time.Sleep(1100 * time.Millisecond)
				c.mu.Lock()
				if works.held != 10 {
					t.Errorf("%d of 10 are held", works.held)
				}
				c.mu.Unlock()
				c.end()
			})
		})
	}
}

// What was taken and given back while the server is away is forgotten: an outage needs no memory for each key.
func TestKeysOfAnOutageAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(time.Millisecond)
		k, w := s.keeper(outage.FailLocal)
		acquires(t, k, claim(9, 0))
		w.set(func() { w.cut = true })
		time.Sleep(2 * simTTL)
		for i := range 10_000 {
			h := acquires(t, k, slots.Acquisition{Name: "ws", Key: fmt.Sprint(i), Limit: 1})
			if h.Source != step.SourceLocal {
				t.Fatal("granted by nobody")
			}
			if i%1000 != 0 {
				h.Release()
			}
			if n := k.entriesLeft(); n > 20 {
				t.Fatalf("%d entries", n)
			}
		}
		w.set(func() { w.cut = false })
		time.Sleep(simTTL)
		w.set(func() {
			for i := 0; i < 10_000; i += 1000 {
				if len(w.model.keys[fmt.Sprint(i)]) != 1 {
					t.Errorf("the slot of %d is not stated", i)
				}
			}
		})
		k.die()
		time.Sleep(simTTL)
	})
}

// Close gives back everything of a name, and nothing of another. A Release afterwards changes nothing.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(time.Millisecond)
		k, w := s.keeper(outage.FailClosed)
		var all []slots.Grant
		for i := range 300 {
			all = append(all, acquires(t, k, slots.Acquisition{Name: "a", Key: fmt.Sprint("a", i), Limit: 1}))
			acquires(t, k, slots.Acquisition{Name: "b", Key: fmt.Sprint("b", i), Limit: 1})
		}
		waits := make(chan error)
		go func() {
			_, err := k.Acquire(t.Context(), slots.Acquisition{Name: "a", Key: "a1", Limit: 1, Queue: 1})
			waits <- err
		}()
		time.Sleep(simTTL)
		closed := make(chan error)
		go func() { closed <- k.Close(t.Context(), "a") }()
		if err := <-waits; !errors.Is(err, slots.ErrClosed) {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		w.set(func() {
			if n := len(w.model.keys); n != 300 {
				t.Errorf("%d keys are left", n)
			}
		})
		again := acquires(t, k, slots.Acquisition{Name: "a", Key: "a1", Limit: 1})
		for _, h := range all {
			h.Release()
		}
		other, _ := s.keeper(outage.FailClosed)
		if _, err := other.Acquire(t.Context(), slots.Acquisition{Name: "a", Key: "a1", Limit: 1}); !errors.Is(err, slots.ErrFull) {
			t.Error(err)
		}
		again.Release()
		w.set(func() { w.cut = true })
		ctx, cancel := context.WithTimeout(t.Context(), simTTL)
		defer cancel()
		if err := k.Close(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		w.set(func() { w.cut = false })
		k.die()
		other.die()
		time.Sleep(2 * simTTL)
	})
}

// What a server forgets of a key that nothing happens to is stated again by the sweep: a hash that was evicted, and
// one that would expire.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(time.Millisecond)
		k, w := s.keeper(outage.FailClosed)
		for i := range 100 {
			acquires(t, k, slots.Acquisition{Name: "ws", Key: fmt.Sprint(i), Limit: 1})
		}
		time.Sleep(2 * simTTL)
		for range 3 {
			w.set(func() { delete(w.model.keys, "42") })
			time.Sleep(sweepBeats * simBeat * 11 / 10)
			w.set(func() {
				if len(w.model.keys["42"]) != 1 {
					t.Error("it is not stated again")
				}
			})
		}
		k.die()
		time.Sleep(2 * simTTL)
	})
}

// No more than a bounded number of acquires wait for a server. What is more is no outage, so no Failure grants it: nobody
// knows whether it is above a limit.
func TestAsking(t *testing.T) {
	for _, failure := range []outage.Failure{outage.FailLocal, outage.FailOpen, outage.FailClosed} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(0)
			k, w := s.keeper(failure)
			held := acquires(t, k, claim(1, 0))
			w.set(func() { w.silent = true })
			var all sync.WaitGroup
			for i := range maxAsking {
				all.Go(func() {
					g, err := k.Acquire(t.Context(), slots.Acquisition{Name: "ws", Key: fmt.Sprint(i % 100), Limit: 1})
					switch {
					case err == nil && failure != outage.FailClosed:
						g.Release()
					case errors.Is(err, slots.ErrFull) && failure == outage.FailLocal:
					case errors.Is(err, slots.ErrUnavailable) && failure == outage.FailClosed:
					default:
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			start := time.Now()
			_, err := k.Acquire(t.Context(), slots.Acquisition{Name: "ws", Key: "one more", Limit: 1})
			if !errors.Is(err, slots.ErrUnavailable) || time.Since(start) > 0 {
				t.Error(failure, err, time.Since(start))
			}
			all.Wait()
			held.Release()
			k.mu.Lock()
			if k.asking != 0 || k.entries[entryKey{"ws", "one more"}] != nil {
				t.Error(k.asking, "wait, or the key is kept")
			}
			k.mu.Unlock()
			k.die()
			w.set(func() { w.silent = false })
			time.Sleep(simTTL)
		})
	}
}

// Nothing is kept of keys that a limit of 0 refuses, whether the server answers or not.
func TestNothingIsKeptOfALimitOfZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(time.Millisecond)
		for _, failure := range []outage.Failure{outage.FailLocal, outage.FailOpen, outage.FailClosed} {
			k, w := s.keeper(failure)
			refuse := func() {
				for i := range 1000 {
					c := slots.Acquisition{Name: "ws", Key: fmt.Sprint(i), Limit: -int64(i % 2), OneMore: i%3 == 0, Queue: i % 5}
					_, err := k.Acquire(t.Context(), c)
					var full *slots.FullError
					if !errors.As(err, &full) || full.Limit != 0 || full.Source != step.SourceStore {
						t.Fatal(err)
					}
				}
			}
			refuse()
			acquires(t, k, claim(9, 0)).Release()
			w.set(func() { w.cut = true })
			time.Sleep(2 * simTTL)
			refuse()
			if n := k.entriesLeft(); n > 1 {
				t.Errorf("%d keys are kept", n)
			}
			k.die()
			w.set(func() { w.cut = false })
			time.Sleep(2 * simTTL)
		}
	})
}

// Who is told that the server is back may acquire at once, also if nothing was held.
func TestChangedMayAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{testServer: newServer(time.Millisecond)}
		acquired := make(chan error, 1)
		var k *Keeper
		k = New(w, Config{TTL: simTTL, Timeout: simTimeout, Shards: 1, Failure: outage.FailLocal, Changed: func(reason error) {
			if reason == nil {
				_, err := k.Acquire(t.Context(), claim(1, 0))
				acquired <- err
			}
		}})
		h := acquires(t, k, slots.Acquisition{Name: "ws", Key: "other", Limit: 1})
		w.set(func() { w.cut = true })
		time.Sleep(2 * simTTL)
		h.Release()
		w.set(func() { w.cut = false; delete(w.model.keys, "other") })
		select {
		case err := <-acquired:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * simTTL):
			t.Error("it hangs")
		}
		k.die()
		time.Sleep(2 * simTTL)
	})
}

// A slowBeats answers beats late.
type slowBeats struct {
	*wire

	pause time.Duration
}

func (s *slowBeats) Beat(ctx context.Context, b *Beat) error {
	err := s.wire.Beat(ctx, b)
	pause := time.Duration(0)
	s.set(func() { pause = s.pause })
	time.Sleep(pause)
	return err
}

// If a statement shows a loss while a beat is on its way, the answer to that beat does not register the new incarnation.
func TestBeatOfAnEarlierIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowBeats{wire: &wire{testServer: newServer(0)}}
		k := New(s, Config{TTL: simTTL, Timeout: simBeat, Shards: 1, Failure: outage.FailClosed})
		acquires(t, k, claim(3, 0))
		s.set(func() { s.pause = simBeat / 2 })
		time.Sleep(simBeat + simBeat/4) // a beat was executed, and its answer is on its way
		s.set(func() { s.model = newModel() })
		acquires(t, k, claim(3, 0))
		s.set(func() {
			for id, f := range s.model.keys["key"] {
				if _, ok := s.model.scores[id]; f.Count > 0 && !ok {
					t.Error("slots are stated under an incarnation that is not registered")
				}
			}
		})
		k.die()
		time.Sleep(2 * simTTL)
	})
}

// A refused refuses connections while it is away.
type refused struct {
	*wire

	away atomic.Bool
}

func (r *refused) Run(ctx context.Context, all []*Statement) error {
	if !r.away.Load() {
		return r.wire.Run(ctx, all)
	}
	for _, s := range all {
		s.Err = ErrUnsent
	}
	return ErrUnsent
}

func (r *refused) Beat(ctx context.Context, b *Beat) error {
	if r.away.Load() {
		return ErrUnsent
	}
	return r.wire.Beat(ctx, b)
}

// After an outage slots are granted again, also if nothing was held in it: then the first beat that is answered finds
// nothing to keep, and is the last.
func TestOutageWithNothingHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &refused{wire: &wire{testServer: newServer(0)}}
		k := New(r, Config{TTL: simTTL, Timeout: simTimeout, Shards: 1, Failure: outage.FailClosed})
		acquires(t, k, claim(1, 0)).Release()
		time.Sleep(simBeat + simBeat/4) // the server keeps nothing of it
		r.away.Store(true)
		for range 10 {
			if _, err := k.Acquire(t.Context(), claim(1, 0)); !errors.Is(err, slots.ErrUnavailable) {
				t.Error(err)
			}
		}
		time.Sleep(simBeat / 2)
		r.set(func() { r.model = newModel() })
		r.away.Store(false)
		time.Sleep(simBeat)
		if err := k.Away(); err != nil {
			t.Error(err)
		}
		acquires(t, k, claim(1, 0))
		k.die()
		time.Sleep(2 * simTTL)
	})
}

// While the server is away, a grant says how many slots the key holds as far as that was looked at: under the share of a
// server its own, and otherwise those of the last answer, if that is not old.
func TestHeldWithoutTheServer(t *testing.T) {
	for _, test := range []struct {
		servers     int
		limit, held int64
	}{{4, 2, 2}, {0, 8, 8}} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(time.Millisecond)
			other, _ := s.keeper(outage.FailClosed)
			for range 6 {
				acquires(t, other, claim(8, 0))
			}
			k, w := s.keeper(outage.FailLocal)
			k.config.Servers = test.servers
			acquires(t, k, claim(8, 0))
			w.set(func() { w.cut = true })
			var grant slots.Grant
			for grant.Source != step.SourceLocal { // until calls have failed
				grant = acquires(t, k, slots.Acquisition{Name: "ws", Key: "key", Limit: 8, OneMore: true})
				if grant.Source != step.SourceLocal {
					t.Fatal(grant)
				}
			}
			if grant.Limit != test.limit || grant.Held != test.held {
				t.Errorf("of %d servers: %d of %d are held, not %d of %d", test.servers, grant.Held, grant.Limit, test.held, test.limit)
			}
			other.die()
			k.die()
			w.set(func() { w.cut = false })
			time.Sleep(2 * simTTL)
		})
	}
}
