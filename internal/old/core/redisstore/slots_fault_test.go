package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A fleet is some stores that hold slots of the same keys, and one that only counts.
type fleet struct {
	stores  []*Store
	slots   []*core.Slots
	held    [][]*core.Slot
	counter *core.Slots
	lost    atomic.Int64
	stated  atomic.Int64
}

const fleetKeys, fleetLimit = 4, 6

// newFleet has two stores that hold three slots of each key, all that there are.
func newFleet(t *testing.T, c Config, open func(Config) *Store) *fleet {
	t.Helper()
	f := &fleet{}
	c.Failure, c.SlotTTL = FailClosed, shortTTL
	c.Observer = &core.Observer{
		SlotsLost:     func(n int64) { f.lost.Add(n) },
		SlotsRestated: func(n int) { f.stated.Add(int64(n)) },
	}
	for range 2 {
		s := open(c)
		slots := newSlots(t, s, "ws", fleetLimit)
		f.stores, f.slots, f.held = append(f.stores, s), append(f.slots, slots), append(f.held, nil)
		for k := range fleetKeys {
			for range fleetLimit / 2 {
				i := len(f.held) - 1
				f.held[i] = append(f.held[i], acquires(t, slots, fleetKey(k)))
			}
		}
	}
	f.counter = newSlots(t, open(Config{SlotTTL: shortTTL}), "ws", fleetLimit)
	return f
}

func fleetKey(k int) string { return fmt.Sprint("key", k) }

// right waits until so many slots of each key are counted.
func (f *fleet) right(t *testing.T, want int64) {
	t.Helper()
	eventually(t, "the counts to be right", func() bool {
		for k := range fleetKeys {
			if n, err := f.counter.Count(t.Context(), fleetKey(k)); err != nil || n != want {
				return false
			}
		}
		return true
	})
}

func (f *fleet) release() {
	for _, held := range f.held {
		for _, slot := range held {
			slot.Release()
		}
	}
}

func (f *fleet) noneLost(t *testing.T) {
	t.Helper()
	for _, held := range f.held {
		for _, slot := range held {
			select {
			case <-slot.Lost():
				t.Fatal("a slot was lost")
			default:
			}
		}
	}
}

// fill acquires slots of each key through each store until it is refused, and returns
// them by key. No store holds more than the limit then.
func (f *fleet) fill(t *testing.T) (more [fleetKeys][]*core.Slot) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range f.slots {
		for k := range fleetKeys {
			all.Go(func() {
				for own := fleetLimit/2 + 1; ; own++ {
					slot, err := f.slots[i].Acquire(t.Context(), fleetKey(k))
					for errors.Is(err, core.ErrUnavailable) {
						slot, err = f.slots[i].Acquire(t.Context(), fleetKey(k))
					}
					if err != nil {
						if !errors.Is(err, core.ErrFull) {
							t.Error(err)
						}
						return
					}
					mu.Lock()
					more[k] = append(more[k], slot)
					mu.Unlock()
					if own > fleetLimit {
						t.Errorf("a store holds %d slots of %d", own, fleetLimit)
						return
					}
				}
			})
		}
	}
	all.Wait()
	return more
}

// A server that has forgotten everything is told again, without anybody losing a slot:
// within a beat, or by whatever is acquired meanwhile. What it grants then is counted too,
// and no more than the limit.
func TestSlotsAreToldAgain(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*redistest.Server){
		"FLUSHALL":     func(s *redistest.Server) { s.Flush() },
		"restart":      func(s *redistest.Server) { s.Restart() },
		"SCRIPT FLUSH": func(s *redistest.Server) { s.Flush(); s.Do("SCRIPT", "FLUSH") },
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, busy: %v", name, busy), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				f := newFleet(t, Config{Timeout: 2 * time.Second}, func(c Config) *Store { return open(t, c, server.Addr()) })
				f.right(t, fleetLimit)
				told := f.stated.Load()
				forget(server)
				start := time.Now()
				if busy {
					f.fillAndRelease(t)
				}
				f.right(t, fleetLimit)
				t.Logf("beats every %v: right again after %v", shortTTL/3, time.Since(start))
				for k := range fleetKeys {
					refused(t, f.counter, fleetKey(k))
				}
				if f.stated.Load() == told {
					t.Error("nobody was told that all was stated again")
				}
				f.noneLost(t)
				f.release()
				f.right(t, 0)
			})
		}
	}
}

// fillAndRelease acquires what it gets, and expects that all of it is counted.
func (f *fleet) fillAndRelease(t *testing.T) {
	t.Helper()
	granted := 0
	for k, more := range f.fill(t) {
		if len(more) > fleetLimit {
			t.Errorf("%d slots more are held, of %d", len(more), fleetLimit)
		}
		eventually(t, "all to be counted", func() bool {
			n, err := f.counter.Count(t.Context(), fleetKey(k))
			return err == nil && n == int64(fleetLimit+len(more))
		})
		for _, slot := range more {
			slot.Release()
		}
		granted += len(more)
	}
	t.Logf("%d slots were granted by a server that had forgotten the others", granted)
}

// Whoever asks while the server loses its data is not refused: every caller holds one slot
// at a time, and there are more.
func TestALossRefusesNobody(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*redistest.Server){
		"FLUSHALL": func(s *redistest.Server) { s.Flush() },
		"restart":  func(s *redistest.Server) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const callers, losses = 16, 10
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			s := open(t, Config{Failure: FailClosed, SlotTTL: shortTTL}, proxy.Addr())
			slots := newSlots(t, s, "ws", 1000)
			acquires(t, slots, "kept")
			proxy.Delay(2 * time.Millisecond)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var granted atomic.Int64
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					for ctx.Err() == nil {
						slot, err := slots.Acquire(t.Context(), fleetKey(i%fleetKeys))
						switch {
						case err == nil:
							granted.Add(1)
							slot.Release()
						case errors.Is(err, core.ErrUnavailable):
							<-time.After(time.Millisecond)
						default:
							t.Error(err)
						}
					}
				})
			}
			incarnation := func() string {
				ids, _ := s.Client().HKeys(t.Context(), s.backend.names.slots("ws", "kept")).Result()
				return strings.Join(ids, " ")
			}
			for range losses {
				before, old := granted.Load(), incarnation()
				forget(server)
				eventually(t, "another incarnation", func() bool { now := incarnation(); return now != "" && now != old })
				eventually(t, "grants", func() bool { return granted.Load() > before })
			}
			stop()
			all.Wait()
			t.Logf("%d grants", granted.Load())
			if err := slots.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A touch of any key finds out that something was lost, and puts all of it right at
// once: nobody waits for a beat.
func TestALossIsFoundByTheNextTouch(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{SlotTTL: time.Hour}, server.Addr())
	slots := newSlots(t, s, "ws", 10)
	counter := newSlots(t, open(t, Config{SlotTTL: time.Hour}, server.Addr()), "ws", 10)
	for k := range 300 {
		acquires(t, slots, fleetKey(k))
	}
	touched := acquires(t, slots, "touched")
	acquires(t, slots, "touched")
	eventually(t, "the last to be stated", func() bool {
		n, err := counter.Count(t.Context(), "touched")
		return n == 2 && err == nil
	})
	server.Flush()
	touched.Release()
	eventually(t, "all to be told again", func() bool {
		for k := range 300 {
			if n, err := counter.Count(t.Context(), fleetKey(k)); n != 1 || err != nil {
				return false
			}
		}
		return true
	})
}

func TestSlotsSurviveAFailover(t *testing.T) {
	notShort(t)
	t.Parallel()
	deployment := redistest.StartSentinel(t)
	f := newFleet(t, Config{Timeout: 500 * time.Millisecond}, func(c Config) *Store {
		return openWith(t, c, &redis.UniversalOptions{Addrs: deployment.Addrs(), MasterName: redistest.MasterName})
	})
	f.right(t, fleetLimit)
	// The replica does not hear of the last releases and acquires.
	deployment.Replica().Pause()
	for k := range fleetKeys {
		f.held[0][k*3].Release()
		f.held[1][k*3].Release()
		f.held[0][k*3] = acquires(t, f.slots[0], fleetKey(k))
	}
	f.right(t, fleetLimit-1)
	old := deployment.KillMaster()
	killed := time.Now()
	for _, s := range deployment.Servers {
		if s != old {
			s.Resume()
		}
	}
	deployment.WaitFailover(old)
	over := time.Now()
	f.right(t, fleetLimit-1)
	t.Logf("right again %v after the master was killed, %v after the failover", time.Since(killed), time.Since(over))
	f.noneLost(t)
	f.release()
	f.right(t, 0)
}

// When nobody reaches Redis for long, nobody loses a slot.
func TestSlotsSurviveAnOutage(t *testing.T) {
	t.Parallel()
	for _, o := range outages {
		if o.name == "slow" || o.name == "killed" || o.name == "cut off" { // it answers; it forgets; as paused
			continue
		}
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			f := newFleet(t, Config{Timeout: 200 * time.Millisecond}, func(c Config) *Store { return open(t, c, proxy.Addr()) })
			o.begin(server, proxy)
			start := time.Now()
			f.held[0][0].Release()
			eventually(t, "several TTLs to be over", func() bool {
				_, err := f.slots[1].Acquire(t.Context(), fleetKey(0))
				if err == nil {
					t.Fatal("a slot was granted without Redis")
				}
				return time.Since(start) > 2*shortTTL
			})
			o.end(server, proxy)
			eventually(t, "the release to be told", func() bool {
				n, err := f.counter.Count(t.Context(), fleetKey(0))
				return err == nil && n == fleetLimit-1
			})
			last := acquires(t, f.slots[1], fleetKey(0))
			for k := range fleetKeys {
				refused(t, f.slots[1], fleetKey(k))
			}
			f.right(t, fleetLimit)
			f.noneLost(t)
			if n := f.lost.Load(); n > 0 {
				t.Errorf("%d slots were lost", n)
			}
			last.Release()
			f.release()
			f.right(t, 0)
		})
	}
}

// Who alone does not reach Redis loses its slots to others after a TTL, is told so, and
// holds no more than its own above the limit.
func TestSlotsOfThePartitioned(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	n := 0
	f := newFleet(t, Config{Timeout: 200 * time.Millisecond}, func(c Config) *Store {
		if n++; n == 1 {
			return open(t, c, proxy.Addr())
		}
		c.Timeout = patient
		return open(t, c, server.Addr())
	})
	f.right(t, fleetLimit)
	proxy.Hold()
	start := time.Now()
	var taken []*core.Slot
	for range 3 {
		taken = append(taken, acquires(t, f.slots[1], fleetKey(0)))
	}
	t.Logf("TTL %v: free %v after the partition", shortTTL, time.Since(start))
	refused(t, f.slots[1], fleetKey(0))
	select {
	case <-f.held[0][0].Lost():
		t.Error("silence was taken for a loss")
	default:
	}
	proxy.Heal()
	healed := time.Now()
	for _, slot := range f.held[0] {
		<-slot.Lost()
	}
	known := time.Since(healed)
	eventually(t, "all to be counted", func() bool {
		n, err := f.counter.Count(t.Context(), fleetKey(0))
		return err == nil && n == fleetLimit+3
	})
	t.Logf("known %v after the partition, counted after %v", known, time.Since(healed))
	eventually(t, "to be told what was lost", func() bool { return f.lost.Load() == int64(len(f.held[0])) })
	for _, slot := range taken {
		slot.Release()
	}
	f.right(t, fleetLimit)
	for _, slot := range f.held[1] {
		select {
		case <-slot.Lost():
			t.Fatal("who lives has lost a slot")
		default:
		}
	}
	f.release()
	f.right(t, 0)
}

// What is granted without Redis is told when it is back.
func TestSlotsWithoutRedis(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		failure Failure
		servers int
		granted int // of 10, where the limit is 5 and one is held
		limit   int64
		source  core.Source
	}{
		{FailLocal, 0, 4, 5, core.SourceLocal},
		{FailLocal, 2, 2, 3, core.SourceLocal},
		{FailLocal, 100, 0, 1, core.SourceLocal},
		{FailOpen, 0, 10, 5, core.SourceOpen},
		{FailClosed, 0, 0, 5, 0},
	} {
		t.Run(fmt.Sprint(test.failure, test.servers), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			var mu sync.Mutex
			told := make(map[string]int)
			// The SlotTTL is long: after one of silence, beats are tried instead of calls.
			s := open(t, Config{Failure: test.failure, Servers: test.servers, Observer: &core.Observer{
				SlotAcquired: func(_ context.Context, e core.SlotEvent) {
					mu.Lock()
					defer mu.Unlock()
					told[fmt.Sprint(e.Slots, e.Granted, e.Source)]++
				},
			}}, proxy.Addr())
			slots := newSlots(t, s, "ws", 5)
			first := acquires(t, slots, "key")
			proxy.Cut()
			var held []*core.Slot
			for range 10 {
				slot, err := slots.Acquire(t.Context(), "key")
				var full *core.FullError
				switch {
				case err == nil:
					held = append(held, slot)
					if slot.Source() != test.source {
						t.Errorf("granted by %v", slot.Source())
					}
					if o := slot.Occupancies()[0]; o.Limit != test.limit {
						t.Errorf("granted below a limit of %d, want %d", o.Limit, test.limit)
					}
				case test.failure == FailClosed:
					if !errors.Is(err, core.ErrUnavailable) {
						t.Error(err)
					}
				case !errors.As(err, &full) || full.Source != test.source && full.Source != core.SourceCache:
					t.Errorf("%v %+v", err, full)
				case full.Limit != test.limit || full.Remaining() > 0:
					t.Errorf("refused with %d left: %v", full.Remaining(), err)
				}
			}
			if len(held) != test.granted {
				t.Errorf("%d granted, want %d", len(held), test.granted)
			}
			mu.Lock()
			if n := told[fmt.Sprint("ws", true, test.source)]; n != test.granted {
				t.Errorf("told of %v", told)
			}
			mu.Unlock()
			if !s.State().Away {
				t.Error("the breaker is closed")
			}
			for _, key := range []string{"key", "banned"} {
				refused(t, newSlots(t, s, "ws", 0), key)
			}
			proxy.Heal()
			counter := newSlots(t, open(t, Config{}, server.Addr()), "ws", 5)
			counts := func(want int) {
				t.Helper()
				eventually(t, "Redis to be told", func() bool {
					n, err := counter.Count(t.Context(), "key")
					return err == nil && n == int64(want)
				})
			}
			counts(1 + test.granted)
			for _, slot := range append(held, first) {
				slot.Release()
			}
			counts(0)
		})
	}
}

// How often Redis is called. In a bubble, where no time passes while something runs.
func TestSlotsCallRedisSeldom(t *testing.T) {
	server := redistest.Start(t)
	bubble.Test(t, func(t *testing.T) {
		s, s2 := open(t, Config{SlotTTL: time.Hour}, server.Addr()), open(t, Config{SlotTTL: time.Hour}, server.Addr())
		defer endBeats(s, s2)
		slots, other := newSlots(t, s, "ws", 3), newSlots(t, s2, "ws", 3)
		acquires(t, slots, "another") // registers, and is stated again with the first beat
		acquires(t, other, "another")
		time.Sleep(200 * time.Millisecond)
		calls := func(want int64, what string, do func()) {
			t.Helper()
			server.ResetStats()
			do()
			if n := server.Calls("evalsha", "eval"); n != want {
				t.Errorf("%s: %d calls, want %d", what, n, want)
			}
		}
		var held []*core.Slot
		calls(3, "three slots", func() {
			for range 3 {
				held = append(held, acquires(t, slots, "key"))
			}
		})
		calls(0, "refused by what this process holds", func() {
			for range 100 {
				refused(t, slots, "key")
			}
		})
		server.ResetStats()
		for _, slot := range held {
			slot.Release()
		}
		eventually(t, "the releases to be told", func() bool { return server.Calls("hdel") > 0 })
		if n := server.Calls("evalsha"); n > 3 {
			t.Errorf("%d calls for three releases", n)
		}
		for range 3 {
			acquires(t, other, "key")
		}
		// Asked, and, as the last beat is long ago, who is dead; but not in the next moment.
		calls(2, "refused because of others", func() {
			for range 50 {
				refused(t, slots, "key")
				time.Sleep(time.Millisecond)
			}
		})
		calls(0, "idle", func() { time.Sleep(100 * time.Millisecond) })
		calls(2, "closed", func() { // the tombstone, and one of two keys has a field to remove
			if err := slots.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
}

// endBeats waits, in a bubble, until nothing runs for stores: the next beat finds their
// clients closed.
func endBeats(stores ...*Store) {
	for _, s := range stores {
		_ = s.Client().Close()
	}
	time.Sleep(time.Hour)
}

// Acquires that arrive while others wait are sent together.
func TestAcquiresAreMerged(t *testing.T) {
	server := redistest.Start(t)
	bubble.Test(t, func(t *testing.T) {
		s := open(t, Config{SlotTTL: time.Hour}, server.Addr())
		defer endBeats(s)
		g := &gate{held: make(chan struct{}), open: make(chan struct{})}
		s.Client().AddHook(g)
		slots := newSlots(t, s, "ws", 500)
		acquires(t, slots, "key")
		synctest.Wait() // what it has to say in the background is said
		server.ResetStats()
		g.before.Store(true)
		var granted atomic.Int64
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				switch _, err := slots.Acquire(t.Context(), "key"); {
				case err == nil:
					granted.Add(1)
				case !errors.Is(err, core.ErrFull):
					t.Error(err)
				}
			})
		}
		<-g.held // the first
		synctest.Wait()
		g.open <- struct{}{}
		all.Wait()
		if n := server.Calls("evalsha"); granted.Load() != 499 || n != 2 {
			t.Errorf("%d granted by %d calls", granted.Load(), n)
		}
	})
}

// While the breaker is open, what was released is stated nevertheless: heartbeats show that
// Redis is there. Nothing else is sent.
func TestSlotsAreStatedWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, SlotTTL: shortTTL}, server.Addr())
	slots := newSlots(t, s, "ws", 5)
	slot := acquires(t, slots, "key")
	acquires(t, slots, "key")
	s.Client().AddHook(&failing{fails: func(words []any) bool {
		return isProbe(words) || isOfSlots(words) && words[7] != int64(0) // what is wanted above what is held
	}})
	for !s.State().Away {
		_, _ = slots.Acquire(t.Context(), "key")
	}
	if _, err := slots.Acquire(t.Context(), "key"); !errors.Is(err, core.ErrUnavailable) {
		t.Error(err)
	}
	slot.Release()
	counter := newSlots(t, open(t, Config{}, server.Addr()), "ws", 5)
	eventually(t, "the release to be stated", func() bool {
		n, err := counter.Count(t.Context(), "key")
		return n == 1 && err == nil
	})
}

// After all slots were closed, Redis has no counts of the process, whatever the outcome of
// its calls was: neither of what it held, nor zeros.
func TestClosedSlotsLeaveNoHashes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := open(t, Config{Failure: FailClosed, SlotTTL: 9 * time.Second}, proxy.Addr())
	other := newSlots(t, open(t, Config{}, server.Addr()), "a", 5)
	acquires(t, other, "of another process")
	a, b := newSlots(t, s, "a", 5), newSlots(t, s, "b", 5)
	var held []*core.Slot
	for k := range 200 {
		acquires(t, a, fleetKey(k))
		held = append(held, acquires(t, b, fleetKey(k)))
	}
	proxy.Deafen()
	for _, slot := range held[:50] {
		slot.Release()
	}
	if _, err := a.Acquire(t.Context(), "unknown"); !errors.Is(err, core.ErrUnavailable) {
		t.Error(err)
	}
	proxy.Heal()
	for _, slot := range held[50:] {
		slot.Release()
	}
	for _, slots := range []*core.Slots{a, b} {
		eventually(t, "the slots to be closed", func() bool { return slots.Close(t.Context()) == nil })
	}
	left, err := s.Client().Keys(t.Context(), "*:slots").Result()
	if want := s.backend.names.slots("a", "of another process"); err != nil || len(left) != 1 || left[0] != want {
		t.Errorf("%d hashes are left, %v", len(left), err)
	}
}

// Nothing runs before the first acquire, and nothing after the last name is closed, or
// the client.
func TestSlotsLeaveNothingRunning(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{SlotTTL: shortTTL}, server.Addr())
	others := goroutines() // of closed clients, until they would beat
	ended := func() bool {
		for id := range goroutines() {
			if !others[id] {
				return false
			}
		}
		return true
	}
	a, b := newSlots(t, s, "a", 5), newSlots(t, s, "b", 5)
	for range 3 {
		acquires(t, a, "key")
		acquires(t, b, "key")
	}
	eventually(t, "somebody to beat", func() bool { return !ended() })
	if err := errors.Join(a.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Error(err)
	}
	eventually(t, "goroutines to end", ended)
	acquires(t, newSlots(t, s, "a", 5), "key")
	s.Client().Close()
	eventually(t, "goroutines to end", ended)
}

// goroutines returns the numbers of those that were started by package core and below,
// tests not included.
func goroutines() map[string]bool {
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	ids := make(map[string]bool)
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		id, rest, _ := strings.Cut(stack, " [")
		_, starter, _ := strings.Cut(rest, "\ncreated by ")
		if strings.Contains(starter, "headgate/internal/old/core/") && !strings.Contains(starter, "_test.go:") {
			ids[id] = true
		}
	}
	return ids
}

// Who gives up neither opens the breaker nor leaves anything held.
func TestCancelledAcquires(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := open(t, Config{Failure: FailClosed}, proxy.Addr())
	slots := newSlots(t, s, "ws", 100)
	acquires(t, slots, "key")
	proxy.Delay(20 * time.Millisecond)
	var all sync.WaitGroup
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			slot, err := slots.Acquire(ctx, "key")
			switch {
			case err == nil:
				slot.Release()
			case !errors.Is(err, context.Canceled):
				t.Error(err)
			}
		})
		all.Go(func() {
			<-time.After(time.Duration(i) * time.Millisecond)
			cancel()
		})
	}
	all.Wait()
	if s.State().Away {
		t.Error("the breaker is open")
	}
	counter := newSlots(t, open(t, Config{}, server.Addr()), "ws", 100)
	eventually(t, "only one to be held", func() bool {
		n, err := counter.Count(t.Context(), "key")
		return n == 1 && err == nil
	})
}

// A key of another type fails alone, and so does one whose value is none that a script writes.
func TestPoisonedSlots(t *testing.T) {
	t.Parallel()
	for name, poison := range map[string][]string{"type": {"SET", "", "x"}, "value": {"HSET", "", "another", "x"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := open(t, Config{Failure: FailClosed, SlotTTL: shortTTL}, server.Addr())
			slots := newSlots(t, s, "ws", 5)
			acquires(t, slots, "good").Release()
			poison[1] = s.backend.names.slots("ws", "bad")
			server.Do(poison...)
			for range 2 * maxFailures {
				if _, err := slots.Acquire(t.Context(), "bad"); !errors.Is(err, core.ErrUnavailable) {
					t.Error(err)
				}
			}
			if st := s.State(); st.Away {
				t.Errorf("%+v", st)
			}
			if slot, err := slots.Acquire(t.Context(), "good"); err != nil {
				t.Errorf("another key: %v", err)
			} else {
				slot.Release()
			}
			server.Do("DEL", poison[1])
			acquires(t, slots, "bad")
		})
	}
}
