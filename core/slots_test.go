package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/redistest"
)

// A slotScene holds for each store.
type slotScene struct {
	t     *testing.T
	store core.Store
	pause func() // until what was released is known
}

func (s slotScene) acquires(slots *core.Slots, key string) *core.Slot {
	s.t.Helper()
	slot, err := slots.Acquire(s.t.Context(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	return slot
}

func (s slotScene) full(slots *core.Slots, key string) {
	s.t.Helper()
	if _, err := slots.Acquire(s.t.Context(), key); !errors.Is(err, core.ErrFull) || strings.Contains(err.Error(), key) {
		s.t.Errorf("not full: %v", err)
	}
}

func (s slotScene) counts(slots *core.Slots, key string, want int64) {
	s.t.Helper()
	if n, err := slots.Count(s.t.Context(), key); n != want || err != nil {
		s.t.Errorf("%d slots of %s are held, want %d, %v", n, key, want, err)
	}
}

// Each plan has its limit, and all count the same. A slot is released once, whoever calls how often.
func (s slotScene) limits() {
	x := core.NewSlots(s.store, "x", 2).WithPlan("gold", 3).WithPlanFunc(func(plan string) (int64, error) {
		return map[string]int64{"silver": 4}[plan] - map[string]int64{"unknown": 1}[plan], nil
	})
	var all []*core.Slot
	for _, plan := range []string{"", "", "gold", "silver"} {
		all = append(all, s.acquires(x.Plan(plan), "key"))
	}
	for _, plan := range []string{"", "gold", "silver", "unknown", "zero"} {
		s.full(x.Plan(plan), "key")
	}
	s.counts(x, "key", 4)
	s.acquires(x, "other key")
	s.acquires(core.NewSlots(s.store, "y", 1), "key")
	for _, slot := range all {
		var twice sync.WaitGroup
		for range 3 {
			twice.Go(slot.Release)
		}
		twice.Wait()
	}
	s.counts(x, "key", 0)
	none := core.NewSlots(s.store, "none", 0)
	if _, err := none.Wait(s.t.Context(), "key", 5); !errors.Is(err, core.ErrFull) {
		s.t.Error(err)
	}
}

// Those who wait are served in their order, but none behind one whom a slot would not suit. The line is bounded.
func (s slotScene) line() {
	x := core.NewSlots(s.store, "x", 1).WithPlan("gold", 2)
	slot := s.acquires(x, "key")
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for i := range 5 {
		all.Go(func() {
			slot, err := x.Wait(s.t.Context(), "key", 5)
			if err != nil {
				s.t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			slot.Release()
		})
		s.pause()
	}
	if _, err := x.Wait(s.t.Context(), "key", 5); !errors.Is(err, core.ErrFull) {
		s.t.Error("a sixth waits", err)
	}
	gold, err := x.Plan("gold").Wait(s.t.Context(), "key", 9)
	if err != nil {
		s.t.Fatal("behind a smaller limit", err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := x.Wait(ctx, "key", 9); !errors.Is(err, core.ErrFull) || !errors.Is(err, context.DeadlineExceeded) {
		s.t.Error(err)
	}
	gold.Release()
	slot.Release()
	all.Wait()
	if !slices.IsSorted(order) {
		s.t.Error(order)
	}
}

func (s slotScene) take(ctx context.Context, claims ...backend.Claim) (*backend.Slot, error) {
	slot := new(backend.Slot)
	return slot, slot.Take(ctx, claims)
}

// A user who waits in a shared line has no more requests there than slots of the user's own, since who waits holds these.
func (s slotScene) shared() {
	user, shop := core.NewSlots(s.store, "user", 2), core.NewSlots(s.store, "shop", 1)
	busy := s.acquires(shop, "all")
	ctx, cancel := context.WithCancel(s.t.Context())
	var mu sync.Mutex
	waiting, most, refused := 0, 0, 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			own, err := s.take(ctx, backend.Claim{Slots: user.Backend(), Key: "anna"})
			mu.Lock()
			if err != nil {
				refused++
				mu.Unlock()
				return
			}
			waiting++
			most = max(most, waiting)
			mu.Unlock()
			_, err = s.take(ctx, backend.Claim{Slots: shop.Backend(), Key: "all", Queue: 100})
			mu.Lock()
			waiting--
			mu.Unlock()
			if err == nil {
				s.t.Error("granted")
			}
			own.Release()
		})
	}
	for settled := false; !settled; {
		s.pause()
		mu.Lock()
		settled = waiting+refused == 20
		mu.Unlock()
	}
	s.counts(user, "anna", 2)
	s.counts(user, "bert", 0)
	cancel()
	all.Wait()
	if most != 2 || refused != 18 {
		s.t.Errorf("%d stood in line, %d were refused", most, refused)
	}
	busy.Release()
}

// Several claims are granted together or not at all.
func (s slotScene) allOrNone() {
	a, b := core.NewSlots(s.store, "a", 1), core.NewSlots(s.store, "b", 1)
	claims := []backend.Claim{{Slots: a.Backend(), Key: "key"}, {Slots: b.Backend(), Key: "key"}}
	slot, err := s.take(s.t.Context(), claims...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.counts(a, "key", 1)
	slot.Release()
	s.pause()
	held := s.acquires(b, "key")
	if _, err := s.take(s.t.Context(), claims...); !errors.Is(err, core.ErrFull) {
		s.t.Error(err)
	}
	s.pause()
	s.counts(a, "key", 0)
	held.Release()

	// With one more than the limit, of several newcomers one is granted at a time.
	more := backend.Claim{Slots: a.Backend(), Key: "more", OneMore: true}
	first, err := s.take(s.t.Context(), more)
	second, fault := s.take(s.t.Context(), more)
	if err != nil || fault != nil || first.Above() != -1 || second.Above() != 0 ||
		first.Answers()[0].Remaining != 0 || second.Answers()[0].Remaining != 0 {
		s.t.Error(err, fault, first.Answers(), second.Answers())
	}
	if _, err := s.take(s.t.Context(), more); !errors.Is(err, core.ErrFull) {
		s.t.Error(err)
	}
	none := backend.Claim{Slots: core.NewSlots(s.store, "none", 0).Backend(), Key: "key", OneMore: true}
	if _, err := s.take(s.t.Context(), none); !errors.Is(err, core.ErrFull) {
		s.t.Error(err)
	}
}

// Close frees the slots of one name, and ends the waits for them. Others, and slots made anew, are as they were.
func (s slotScene) closing() {
	x, y := core.NewSlots(s.store, "x", 1), core.NewSlots(s.store, "y", 1)
	slot := s.acquires(x, "key")
	s.acquires(y, "key")
	waits := make(chan error, 1)
	go func() {
		_, err := x.Wait(s.t.Context(), "key", 1)
		waits <- err
	}()
	s.pause()
	for range 2 {
		if err := x.WithPlan("gold", 2).Close(s.t.Context()); err != nil {
			s.t.Error(err)
		}
	}
	if err := <-waits; !errors.Is(err, core.ErrClosed) {
		s.t.Error(err)
	}
	if _, err := x.Acquire(s.t.Context(), "key"); !errors.Is(err, core.ErrClosed) {
		s.t.Error(err)
	}
	again := core.NewSlots(s.store, "x", 1)
	s.acquires(again, "key")
	slot.Release()
	s.counts(again, "key", 1)
	s.counts(y, "key", 1)
}

// Whatever many callers do at once, no key holds more than its limit, and nothing is left.
func (s slotScene) load() {
	x := core.NewSlots(s.store, "x", 3)
	var mu sync.Mutex
	held := make(map[string]int)
	var all sync.WaitGroup
	for g := range 20 {
		all.Go(func() {
			for i := range 50 {
				key := fmt.Sprint("key", (g+i)%3)
				slot, err := x.Wait(s.t.Context(), key, i%2*20)
				if err != nil {
					if !errors.Is(err, core.ErrFull) {
						s.t.Error(err)
					}
					continue
				}
				mu.Lock()
				if held[key]++; held[key] > 3 {
					s.t.Errorf("%d of 3 are held", held[key])
				}
				mu.Unlock()
				if rand.IntN(10) == 0 {
					<-time.After(time.Millisecond)
				}
				mu.Lock()
				held[key]--
				mu.Unlock()
				slot.Release()
			}
		})
	}
	all.Wait()
	s.pause()
	for i := range 3 {
		s.counts(x, fmt.Sprint("key", i), 0)
	}
}

func TestSlotsOfEachStore(t *testing.T) {
	server := redistest.Start(t)
	for name, scene := range map[string]func(slotScene){
		"limits": slotScene.limits, "line": slotScene.line, "shared line": slotScene.shared, "all or none": slotScene.allOrNone,
		"closing": slotScene.closing, "load": slotScene.load,
	} {
		t.Run("memory/"+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { scene(slotScene{t, new(core.MemoryStore), synctest.Wait}) })
		})
		for kind, addr := range map[string]func(t *testing.T) string{
			"Redis":     func(*testing.T) string { return server.Addr() },
			"miniredis": func(t *testing.T) string { return miniredis.RunT(t).Addr() },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				s, err := redisstore.Open("redis://"+addr(t), redisstore.Config{Prefix: t.Name(), Failure: redisstore.FailClosed})
				if err != nil {
					t.Fatal(err)
				}
				scene(slotScene{t, s, func() { <-time.After(60 * time.Millisecond) }})
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// An observer that panics leaves no slot held. What it is told, it is told in the context of the call.
func TestSlotsOfObserversThatPanic(t *testing.T) {
	panics := true
	store := &core.MemoryStore{Observers: []*core.Observer{{
		Acquired: func(context.Context, core.SlotEvent) {
			if panics {
				panic("on purpose")
			}
		},
	}}}
	x := core.NewSlots(store, "x", 1)
	func() {
		defer func() { _ = recover() }()
		_, _ = x.Acquire(t.Context(), "key")
	}()
	panics = false
	if _, err := x.Acquire(t.Context(), "key"); err != nil {
		t.Error(err)
	}
	if _, err := x.Acquire(nil, "key"); !errors.Is(err, core.ErrInvalid) { //nolint:staticcheck // it is the fault
		t.Error(err)
	}
}

// Wrong arguments panic, and say what is wrong.
func TestSlotsOfWrongArguments(t *testing.T) {
	s := new(core.MemoryStore)
	x := core.NewSlots(s, "x", 1)
	for want, f := range map[string]func(){
		"the store is nil":     func() { core.NewSlots(nil, "x", 1) },
		"the name is empty":    func() { core.NewSlots(s, "", 1) },
		"only printable ASCII": func() { core.NewSlots(s, "é", 1) },
		"a limit of -1 slots":  func() { core.NewSlots(s, "x", -1) },
		"a limit of -2 slots":  func() { x.WithPlan("gold", -2) },
		`the plan "" is`:       func() { x.WithPlan("", 2) },
		"the function is nil":  func() { x.WithPlanFunc(nil) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			}()
			f()
		}()
	}
	if zero := new(core.Slot); zero.Lost() != nil {
		t.Error("who holds nothing can lose it")
	}
}
