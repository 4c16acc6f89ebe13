package core_test

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

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A caller waits for slots, in a goroutine.
type caller struct {
	claims []core.Claim
	hangUp context.CancelFunc
	done   atomic.Bool
	slot   *core.Slot
	err    error
}

// queued returns claims in whose lines so many may wait.
func queued(waiters int, claims []core.Claim) []core.Claim {
	all := slices.Clone(claims)
	for i := range all {
		all[i].Queue = waiters
	}
	return all
}

func call(t *testing.T, waiters int, claims ...core.Claim) *caller {
	ctx, cancel := context.WithCancel(t.Context())
	c := &caller{claims: claims, hangUp: cancel}
	go func() {
		c.slot, c.err = core.AcquireAllWait(ctx, queued(waiters, claims)...)
		c.done.Store(true)
	}()
	synctest.Wait()
	return c
}

func nobodyWaits(t *testing.T, all ...*core.Slots) {
	t.Helper()
	for _, s := range all {
		if callers, keys := s.Waiting(); callers != 0 || keys != 0 {
			t.Errorf("%d callers wait for %d keys of %q", callers, keys, s.Name())
		}
	}
}

// Callers come, leave, hang up and do not wait, at random. What is granted, refused and waited
// for is what a list for each key says, at once.
func TestAcquireWaitModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, waiters, keys = 3, 4, 2
		slots := newSlots(t, memstore.New(memstore.Config{}), "jobs", limit)
		plan, err := slots.With(limit)
		if err != nil {
			t.Fatal(err)
		}
		var held, waiting [keys][]*caller
		begin := time.Now()
		for range 4000 {
			k := rand.IntN(keys)
			switch rand.IntN(4) {
			case 0, 1:
				c := call(t, waiters, core.Claim{Slots: []*core.Slots{slots, plan}[rand.IntN(2)], Key: fmt.Sprint(k)})
				switch {
				case len(held[k]) < limit:
					held[k] = append(held[k], c)
				case len(waiting[k]) < waiters:
					waiting[k] = append(waiting[k], c)
				case !c.done.Load() || !errors.Is(c.err, core.ErrFull) || c.slot != nil:
					t.Fatalf("one more than may wait: %v %v", c.done.Load(), c.err)
				}
			case 2:
				if n := len(held[k]); n > 0 {
					i := rand.IntN(n)
					held[k][i].slot.Release()
					held[k] = slices.Delete(held[k], i, i+1)
					if len(waiting[k]) > 0 {
						held[k], waiting[k] = append(held[k], waiting[k][0]), waiting[k][1:]
					}
				}
			default:
				if n := len(waiting[k]); n > 0 {
					i := rand.IntN(n)
					c := waiting[k][i]
					c.hangUp()
					synctest.Wait()
					var full *core.FullError
					if !c.done.Load() || !errors.Is(c.err, context.Canceled) || !errors.As(c.err, &full) || full.Limit != limit {
						t.Fatalf("one that hung up: %v %v", c.done.Load(), c.err)
					}
					waiting[k] = slices.Delete(waiting[k], i, i+1)
				}
			}
			synctest.Wait()
			for k := range keys {
				for _, c := range held[k] {
					if !c.done.Load() || c.err != nil {
						t.Fatalf("one whose turn it is waits, or has %v", c.err)
					}
				}
				for _, c := range waiting[k] {
					if c.done.Load() {
						t.Fatalf("one who should wait has %v, %v", c.slot, c.err)
					}
				}
			}
		}
		if time.Since(begin) > 0 {
			t.Error("somebody waited for the time to pass")
		}
		for k := range keys {
			for _, c := range waiting[k] {
				c.hangUp()
			}
		}
		synctest.Wait()
		nobodyWaits(t, slots)
	})
}

// Of several claims, at any moment one that a caller waits for is full: nobody waits without a
// cause, and nothing is left behind.
func TestAcquireAllWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop := memstore.New(memstore.Config{})
		users, service := newSlots(t, shop, "user", 2), newSlots(t, shop, "service", 3)
		var all []*caller
		begin := time.Now()
		for range 4000 {
			if len(all) > 0 && rand.IntN(2) == 0 {
				i := rand.IntN(len(all))
				if c := all[i]; c.done.Load() {
					c.slot.Release()
				} else {
					c.hangUp()
				}
				all = slices.Delete(all, i, i+1)
			} else {
				c := call(t, 5, core.Claim{Slots: users, Key: fmt.Sprint(rand.IntN(3))}, core.Claim{Slots: service, Key: "all"})
				var full *core.FullError
				if !c.done.Load() || c.err == nil {
					all = append(all, c)
				} else if callers, _ := []*core.Slots{users, service}[0].Waiting(); !errors.As(c.err, &full) || callers == 0 && full.Claim == 0 {
					t.Fatal(c.err)
				}
			}
			synctest.Wait()
			for _, c := range all {
				if c.done.Load() && c.err != nil { // the line that it moved to was full
					continue
				}
				if !c.done.Load() && held(t, users, c.claims[0].Key) < 2 && held(t, service, "all") < 3 {
					t.Fatal("one waits for what is free")
				}
			}
			all = slices.DeleteFunc(all, func(c *caller) bool { return c.done.Load() && c.err != nil })
		}
		if time.Since(begin) > 0 {
			t.Error("somebody waited for the time to pass")
		}
		for _, c := range all {
			c.hangUp()
			if c.done.Load() {
				c.slot.Release()
			}
		}
		synctest.Wait()
		for _, c := range all { // granted after the others had released
			if c.slot != nil {
				c.slot.Release()
			}
		}
		nobodyWaits(t, users, service)
		if n := held(t, service, "all"); n != 0 {
			t.Errorf("%d are held", n)
		}
	})
}

// What is released otherwise is found within 200 ms.
func TestAcquireWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop := memstore.New(memstore.Config{})
		ours, theirs := newSlots(t, shop, "jobs", 1), newSlots(t, shop, "jobs", 1)
		slot, err := theirs.Acquire(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		first, second := call(t, 2, core.Claim{Slots: ours, Key: "key"}), call(t, 2, core.Claim{Slots: ours, Key: "key"})
		time.Sleep(time.Hour)
		slot.Release()
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if !first.done.Load() || first.err != nil || second.done.Load() {
			t.Fatal(first.done.Load(), first.err, second.done.Load())
		}
		first.slot.Release()
		synctest.Wait()
		if !second.done.Load() || second.err != nil {
			t.Error(second.err)
		}
	})
}

// Closed slots are told to all who wait for them, whether they are the first or not.
func TestAcquireWaitClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := newSlots(t, memstore.New(memstore.Config{}), "jobs", 0)
		var all []*caller
		for i := range 10 {
			all = append(all, call(t, 5, core.Claim{Slots: slots, Key: fmt.Sprint(i % 2)}))
		}
		if err := slots.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, c := range all {
			if !c.done.Load() || !errors.Is(c.err, core.ErrClosed) {
				t.Error(c.done.Load(), c.err)
			}
		}
		nobodyWaits(t, slots)
	})
}

// One call is one event, however often it asked: a grant, or a refusal if it waited in vain.
func TestAcquireWaitIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []core.SlotEvent
		o := &core.Observer{Timed: true, SlotAcquired: func(_ context.Context, e core.SlotEvent) { told = append(told, e) }}
		slots := newSlots(t, memstore.New(memstore.Config{Observer: o}), "jobs", 1)
		first := call(t, 1, core.Claim{Slots: slots, Key: "key"})
		second := call(t, 1, core.Claim{Slots: slots, Key: "key"})
		call(t, 1, core.Claim{Slots: slots, Key: "key"})
		time.Sleep(time.Second)
		first.slot.Release()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := slots.AcquireWait(ctx, "key", 1); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, core.ErrFull) {
			t.Error(err)
		}
		second.slot.Release()
		want := []core.SlotEvent{
			{Slots: "jobs", Granted: true, Source: core.SourceStore},
			{Slots: "jobs", Source: core.SourceCache}, // nobody asked the store: another waited
			{Slots: "jobs", Granted: true, Source: core.SourceStore, Took: time.Second},
			{Slots: "jobs", Source: core.SourceStore, Took: time.Minute},
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %+v\nnot  %+v", told, want)
		}
	})
}

// A slot that is released, or that nobody gets because an Observer panics, wakes the next.
func TestAcquireWaitWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		panics := false
		f := newFleet(&core.Observer{SlotAcquired: func(context.Context, core.SlotEvent) {
			if panics {
				panics = false
				panic("on purpose")
			}
		}})
		slots := newSlots(t, f, "jobs", 1)
		begin := time.Now()
		first, second := call(t, 2, core.Claim{Slots: slots, Key: "key"}), call(t, 2, core.Claim{Slots: slots, Key: "key"})
		first.slot.Release()
		synctest.Wait()
		if !second.done.Load() || second.err != nil {
			t.Fatal(second.err)
		}
		panicked := make(chan any)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = slots.AcquireWait(t.Context(), "key", 2)
		}()
		synctest.Wait()
		last := call(t, 2, core.Claim{Slots: slots, Key: "key"})
		panics = true
		second.slot.Release()
		if <-panicked == nil {
			t.Error("no panic")
		}
		synctest.Wait()
		if !last.done.Load() || time.Since(begin) > 0 {
			t.Error(last.done.Load(), last.err, time.Since(begin))
		}
	})
}

func TestAcquireWaitErrors(t *testing.T) {
	f := newFleet(nil)
	slots := newSlots(t, f, "jobs", 0)
	if _, err := slots.AcquireWait(t.Context(), "key", -1); !errors.Is(err, core.ErrFull) {
		t.Error(err)
	}
	if _, err := core.AcquireAllWait(t.Context()); !errors.Is(err, core.ErrQuestion) {
		t.Error(err)
	}
	if _, err := core.AcquireAllWait(nil, core.Claim{Slots: slots}); !errors.Is(err, core.ErrQuestion) { //nolint:staticcheck // on purpose
		t.Error(err)
	}
	f.err = core.ErrUnavailable
	if _, err := slots.AcquireWait(t.Context(), "key", 1); !errors.Is(err, core.ErrUnavailable) {
		t.Error(err)
	}
	nobodyWaits(t, slots)
}

// Of many at once, no more hold slots than may, and all get theirs in the end.
func TestAcquireWaitAtOnce(t *testing.T) {
	slots := newSlots(t, &slowStore{memstore.New(memstore.Config{})}, "jobs", 5)
	var holding, served atomic.Int64
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for range 50 {
				slot, err := slots.AcquireWait(t.Context(), "key", 64)
				if err != nil {
					t.Error(err)
					return
				}
				if n := holding.Add(1); n > 5 {
					t.Errorf("%d hold slots of 5", n)
				}
				served.Add(1)
				holding.Add(-1)
				slot.Release()
			}
		})
	}
	callers.Wait()
	if served.Load() != 64*50 {
		t.Errorf("%d were served", served.Load())
	}
	nobodyWaits(t, slots)
}

// A slowStore lets others run between question and answer.
type slowStore struct{ *memstore.Store }

func (s *slowStore) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	g, err := s.Store.AcquireSlots(ctx, claims)
	time.Sleep(0)
	return g, err
}

// A fleeting store refuses, and then does something before it returns.
type fleeting struct {
	*memstore.Store

	then func()
}

func (s *fleeting) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	g, err := s.Store.AcquireSlots(ctx, claims)
	if then := s.then; err != nil && then != nil {
		s.then = nil
		then()
	}
	return g, err
}

// What is released between the refusal and the wait is not waited for.
func TestAcquireWaitOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fleeting{Store: memstore.New(memstore.Config{})}
		slots := newSlots(t, s, "jobs", 1)
		slot, err := slots.Acquire(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		s.then = slot.Release
		begin := time.Now()
		if _, err := slots.AcquireWait(t.Context(), "key", 1); err != nil || time.Since(begin) > 0 {
			t.Error(err, time.Since(begin))
		}
	})
}

// Who moves to another line has the place of his arrival there.
func TestAcquireAllWaitOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shop := memstore.New(memstore.Config{})
		users, service := newSlots(t, shop, "user", 1), newSlots(t, shop, "service", 1)
		anna, all := core.Claim{Slots: users, Key: "anna"}, core.Claim{Slots: service, Key: "all"}
		hers, busy := call(t, 1, anna), call(t, 1, all)
		first := call(t, 9, anna, all)
		time.Sleep(time.Millisecond)
		second := call(t, 9, all)
		hers.slot.Release()
		synctest.Wait() // the first moves
		busy.slot.Release()
		synctest.Wait()
		if !first.done.Load() || second.done.Load() {
			t.Fatal(first.done.Load(), second.done.Load())
		}
		first.slot.Release()
		synctest.Wait()
		if !second.done.Load() || second.err != nil {
			t.Error(second.err)
		}
	})
}

// Each line has its own number of places: who has waited in one, and then finds another full,
// needs a place there.
func TestAcquireAllWaitQueues(t *testing.T) {
	for _, places := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(memstore.Config{})
			a, b := newSlots(t, s, "a", 1), newSlots(t, s, "b", 1)
			first, second := call(t, 0, core.Claim{Slots: a, Key: "k"}), call(t, 0, core.Claim{Slots: b, Key: "k"})
			done := make(chan error, 1)
			go func() {
				slot, err := core.AcquireAllWait(t.Context(), core.Claim{Slots: a, Key: "k", Queue: 1}, core.Claim{Slots: b, Key: "k", Queue: places})
				if err == nil {
					slot.Release()
				}
				done <- err
			}()
			synctest.Wait()
			first.slot.Release()
			synctest.Wait()
			if refused := len(done) == 1; refused != (places == 0) {
				t.Errorf("%d places: refused %t", places, refused)
			}
			second.slot.Release()
			if err := <-done; errors.Is(err, core.ErrFull) != (places == 0) {
				t.Errorf("%d places: %v", places, err)
			}
			nobodyWaits(t, a, b)
		})
	}
}

// Who waits in the line of one of several slots is told that others of them were closed.
func TestCloseOfOneOfSeveral(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Config{})
		a, b, c := core.Must(core.NewSlots(s, "a", 9)), core.Must(core.NewSlots(s, "b", 1)), core.Must(core.NewSlots(s, "c", 9))
		held := core.Must(b.Acquire(t.Context(), "all"))
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(other *core.Slots) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := core.AcquireAllWait(ctx, core.Claim{Slots: other, Key: "x", Queue: 9}, core.Claim{Slots: b, Key: "all", Queue: 9})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first, second := wait(c), wait(a)
		if err := a.Close(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		select {
		case err := <-second:
			if !errors.Is(err, core.ErrClosed) {
				t.Error(err)
			}
		default:
			t.Error("it still waits")
		}
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		held.Release()
	})
}
