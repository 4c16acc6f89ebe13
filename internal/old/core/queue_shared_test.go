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

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A stage is slots of users, and those of a service that all share.
type stage struct {
	t              *testing.T
	users, service *core.Slots
	reversed       bool // the claims
}

func newStage(t *testing.T, perUser, all int64, reversed bool) *stage {
	shop := memstore.New(memstore.Config{})
	return &stage{t, newSlots(t, shop, "user", perUser), newSlots(t, shop, "service", all), reversed}
}

func (s *stage) claims(users *core.Slots, user string) []core.Claim {
	claims := []core.Claim{{Slots: users, Key: user}, {Slots: s.service, Key: "all"}}
	if s.reversed {
		slices.Reverse(claims)
	}
	return claims
}

func (s *stage) call(waiters int, user string) *caller {
	return call(s.t, waiters, s.claims(s.users, user)...)
}

// refusedBy returns the name of the slots that refused a caller; empty: it was not refused.
func refusedBy(c *caller) string {
	var full *core.FullError
	if c.done.Load() && errors.As(c.err, &full) {
		return full.Slots
	}
	return ""
}

// inBothOrders runs a test with the claims in either order.
func inBothOrders(t *testing.T, test func(t *testing.T, reversed bool)) {
	for _, reversed := range []bool{false, true} {
		t.Run(fmt.Sprintf("reversed %v", reversed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, reversed) })
		})
	}
}

// One user's waiting requests do not take the line of a slot that all share: others wait there,
// and are served in turn.
func TestAcquireAllWaitSharedLine(t *testing.T) {
	inBothOrders(t, func(t *testing.T, reversed bool) {
		s := newStage(t, 2, 4, reversed)
		var busy, annas, others []*caller
		for i := range 4 {
			busy = append(busy, s.call(5, fmt.Sprint("busy ", i)))
		}
		for range 7 {
			annas = append(annas, s.call(5, "anna"))
		}
		for i := range 4 {
			others = append(others, s.call(5, fmt.Sprint("other ", i)))
		}
		for i, c := range annas {
			if c.done.Load() {
				t.Errorf("anna's request %d: %v", i, c.err)
			}
		}
		for i, c := range others[:3] {
			if c.done.Load() {
				t.Errorf("other %d: %v", i, c.err)
			}
		}
		if got := refusedBy(others[3]); got != "service" { // five wait: two of anna's, and three others
			t.Errorf("the sixth in the shared line: %q, %v", got, others[3].err)
		}
		if c := s.call(5, "anna"); refusedBy(c) != "service" { // five wait in her own
			t.Error(c.err)
		}
		for _, c := range busy {
			c.slot.Release()
			synctest.Wait()
		}
		for i, want := range []bool{true, true, true, true} {
			if c := []*caller{annas[0], annas[1], others[0], others[1]}[i]; c.done.Load() != want || c.err != nil {
				t.Errorf("caller %d: %v, %v", i, c.done.Load(), c.err)
			}
		}
		for _, c := range slices.Concat(annas, others) {
			c.hangUp()
		}
		synctest.Wait()
		for _, c := range slices.Concat(annas, others) {
			if c.slot != nil {
				c.slot.Release()
			}
		}
		nobodyWaits(t, s.users, s.service)
		if n := s.users.Lines() + s.service.Lines(); n != 0 {
			t.Errorf("%d lines are left", n)
		}
	})
}

// Who leaves the line that all share makes room there for the user's next.
func TestAcquireAllWaitNextOfAKey(t *testing.T) {
	inBothOrders(t, func(t *testing.T, reversed bool) {
		s := newStage(t, 1, 1, reversed)
		if reversed {
			s = newStage(t, 1, 2, reversed) // of equal limits, the first claim is the user's
			s.call(5, "idle")
		}
		busy := s.call(5, "busy")
		first, second := s.call(5, "anna"), s.call(5, "anna")
		other := s.call(5, "other")
		first.hangUp()
		synctest.Wait()
		if got := s.service.Line("all"); len(got) != 2 {
			t.Fatalf("%d wait for the service", len(got))
		}
		busy.slot.Release()
		synctest.Wait()
		if !second.done.Load() || second.err != nil || other.done.Load() { // she came before
			t.Fatal(second.done.Load(), second.err, other.done.Load())
		}
		second.slot.Release()
		synctest.Wait()
		if !other.done.Load() || other.err != nil {
			t.Error(other.err)
		}
	})
}

// A waiter with a larger limit does not wait behind one with a smaller limit of the same key, nor is
// it refused because their line is full; and each is told its own limit and what is held.
func TestAcquireWaitLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small := newSlots(t, memstore.New(memstore.Config{}), "jobs", 1)
		large, err := small.With(3)
		if err != nil {
			t.Fatal(err)
		}
		claim := func(s *core.Slots) core.Claim { return core.Claim{Slots: s, Key: "key"} }
		held := []*caller{call(t, 1, claim(small)), call(t, 1, claim(large))}
		waits := call(t, 1, claim(small))
		held = append(held, call(t, 1, claim(large)))
		for i, c := range held {
			if !c.done.Load() || c.err != nil {
				t.Fatalf("caller %d: %v, %v", i, c.done.Load(), c.err)
			}
		}
		for _, s := range []*core.Slots{small, large} {
			var full *core.FullError
			if c := call(t, 1, claim(s)); !errors.As(c.err, &full) || full.Limit != s.Limit() || full.Held != max(2, s.Limit()) {
				t.Errorf("limit %d: %v", s.Limit(), c.err)
			}
		}
		next := call(t, 2, claim(large))
		begin := time.Now()
		held[0].slot.Release() // two are held: the first in line wants the first
		synctest.Wait()
		if !next.done.Load() || next.err != nil || waits.done.Load() || time.Since(begin) > 0 {
			t.Fatal(next.done.Load(), next.err, waits.done.Load())
		}
		for _, c := range []*caller{held[1], held[2], next} {
			c.slot.Release()
			synctest.Wait()
		}
		if !waits.done.Load() || waits.err != nil {
			t.Error(waits.err)
		}
	})
}

// Users of several plans come, leave and hang up at random. At any moment:
//
//   - nobody waits who could have slots of both, and nobody has waited for the time to pass;
//   - of a user and a plan, those who came first are served first;
//   - of those that wait for the service, a user's are no more than the plan leaves room for;
//   - who was refused found a line full.
func TestAcquireAllWaitModel(t *testing.T) {
	inBothOrders(t, func(t *testing.T, reversed bool) {
		for range 30 {
			newFair(t, reversed).run(300)
		}
	})
}

// A fair is a random schedule of the model.
type fair struct {
	*stage

	plans []*core.Slots
	all   []*visitor // that hold or wait, in the order in which they came
	most  int

	before []string // who waited for the service before the last step
}

type visitor struct {
	*caller

	user string
	plan int
}

func newFair(t *testing.T, reversed bool) *fair {
	f := &fair{stage: newStage(t, 2, 4, reversed), most: 3 + rand.IntN(4)}
	f.plans = []*core.Slots{f.users}
	for _, limit := range [][]int64{nil, {0, 1, 3}}[rand.IntN(2)] {
		plan, err := f.users.With(limit)
		if err != nil {
			t.Fatal(err)
		}
		f.plans = append(f.plans, plan)
	}
	return f
}

func (v *visitor) holds() bool { return v.done.Load() }

// count counts those who hold, or wait.
func (f *fair) count(user string, holds bool) (n int64) {
	for _, v := range f.all {
		if (user == "" || v.user == user) && v.holds() == holds {
			n++
		}
	}
	return n
}

func (f *fair) limit(v *visitor) int64 { return f.plans[v.plan].Limit() }

func (f *fair) run(steps int) {
	begin := time.Now()
	for range steps {
		f.before = f.service.Line("all")
		if len(f.all) > 0 && rand.IntN(2) == 0 {
			i := rand.IntN(len(f.all))
			v := f.all[i]
			f.all = slices.Delete(f.all, i, i+1)
			if v.holds() {
				v.slot.Release()
			} else {
				v.hangUp()
			}
		} else {
			v := &visitor{user: fmt.Sprint("user ", rand.IntN(4)), plan: rand.IntN(len(f.plans))}
			v.caller = call(f.t, f.most, f.claims(f.plans[v.plan], v.user)...)
			f.all = append(f.all, v)
		}
		synctest.Wait()
		f.check()
	}
	if time.Since(begin) > 0 {
		f.t.Fatal("somebody waited for the time to pass")
	}
	for _, v := range f.all {
		v.hangUp()
	}
	synctest.Wait()
	for _, v := range f.all {
		if v.slot != nil {
			v.slot.Release()
		}
	}
	nobodyWaits(f.t, f.users, f.service)
	if n := f.users.Lines() + f.service.Lines(); n != 0 {
		f.t.Fatalf("%d lines are left", n)
	}
}

func (f *fair) check() {
	f.t.Helper()
	shared := f.service.Line("all")
	f.all = slices.DeleteFunc(f.all, func(v *visitor) bool {
		if !v.done.Load() || v.err == nil {
			return false
		}
		if refusedBy(v.caller) == "" {
			f.t.Fatal(v.err)
		}
		if own := f.users.Line(v.user); len(own) < f.most && len(f.before) < f.most && len(shared) < f.most {
			f.t.Fatalf("refused by %q, while %d wait for it and %d for the service, of %d", refusedBy(v.caller), len(own), len(shared), f.most)
		}
		return true
	})
	waits := make(map[string]int64) // for the service, by user
	for _, key := range shared {
		waits[key]++
	}
	for i, v := range f.all {
		if v.holds() {
			continue
		}
		if f.count(v.user, true) < f.limit(v) && f.count("", true) < f.service.Limit() {
			f.t.Fatal("one waits for what is free")
		}
		for _, later := range f.all[i+1:] {
			if later.user == v.user && later.plan == v.plan && later.holds() {
				f.t.Fatal("one waits, who came before another that was served")
			}
		}
	}
	for user, n := range waits {
		var largest int64
		for _, v := range f.all {
			if v.user == user {
				largest = max(largest, f.limit(v))
			}
		}
		if held := f.count(user, true); held+n > max(largest, held) {
			f.t.Fatalf("%d wait for the service, %d are held, of %d", n, held, largest)
		}
	}
}

// A late store answers after some time, in which others come, leave and release.
type late struct{ *memstore.Store }

func (s *late) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	time.Sleep(rand.N(10 * time.Microsecond))
	defer time.Sleep(rand.N(10 * time.Microsecond))
	return s.Store.AcquireSlots(ctx, claims)
}

// Whoever comes, gives up or releases at whatever instant, no wake-up is lost: nobody is found only
// because after some time he asks again. Nothing is left behind.
func TestAcquireAllWaitLosesNoWakeUp(t *testing.T) {
	const callers, rounds = 24, 40
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			users, service := newSlots(t, &late{memstore.New(memstore.Config{})}, "user", 2), newSlots(t, &late{memstore.New(memstore.Config{})}, "service", 4)
			large, err := users.With(3)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			var served atomic.Int64
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					for range rounds {
						claims := []core.Claim{{Slots: []*core.Slots{users, large}[rand.IntN(2)], Key: fmt.Sprint(i % 5)}, {Slots: service, Key: "all"}}
						if rand.IntN(2) == 0 {
							slices.Reverse(claims)
						}
						if rand.IntN(8) == 0 {
							claims = claims[:1]
						}
						ctx, cancel := context.WithTimeout(t.Context(), []time.Duration{time.Hour, rand.N(time.Millisecond)}[rand.IntN(2)])
						slot, err := core.AcquireAllWait(ctx, queued(callers, claims)...)
						if cancel(); err == nil {
							served.Add(1)
							time.Sleep(rand.N(50 * time.Microsecond))
							slot.Release()
						}
					}
				})
			}
			all.Wait()
			if took := time.Since(begin); took > 150*time.Millisecond || served.Load() < callers*rounds/2 {
				t.Errorf("%d of %d were served, in %v", served.Load(), callers*rounds, took)
			}
			nobodyWaits(t, users, service)
			if n := users.Lines() + service.Lines(); n != 0 {
				t.Errorf("%d lines are left", n)
			}
			if n := held(t, service, "all"); n != 0 {
				t.Errorf("%d are held", n)
			}
		})
	}
}

// A keeping store keeps what there is for those who wait elsewhere.
type keeping struct{ *memstore.Store }

func (s *keeping) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	for i, c := range claims {
		if c.Waiting > 0 {
			return store.Grant{}, &store.FullError{Claim: i, Occupancy: store.Occupancy{Held: c.Limit, Limit: c.Limit}, Again: 20 * time.Millisecond}
		}
	}
	return s.Store.AcquireSlots(ctx, claims)
}

// Who may not wait is not refused because of what is kept for those who wait. Who waits asks again
// when the store says, with the number of those who wait.
func TestAcquireWaitForWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &keeping{memstore.New(memstore.Config{})}
		slots := newSlots(t, s, "jobs", 1)
		if c := call(t, 0, core.Claim{Slots: slots, Key: "other"}); c.err != nil {
			t.Error(c.err)
		}
		var asked []time.Duration
		var waiting []int
		begin := time.Now()
		watched := newSlots(t, &watching{s.Store, func(c store.Claim) error {
			asked, waiting = append(asked, time.Since(begin)), append(waiting, c.Waiting)
			return &store.FullError{Occupancy: store.Occupancy{Held: 1, Limit: 1}, Again: 20 * time.Millisecond}
		}}, "jobs", 1)
		c := call(t, 9, core.Claim{Slots: watched, Key: "key"})
		d := call(t, 9, core.Claim{Slots: watched, Key: "key"})
		time.Sleep(110 * time.Millisecond)
		c.hangUp()
		d.hangUp()
		synctest.Wait()
		if n := len(asked); n < 7 || n > 10 || waiting[0] != 1 || waiting[n-1] > 2 || waiting[n-2] != 2 {
			t.Errorf("asked after %v, for %v", asked, waiting)
		}
	})
}

// A watching store answers as it is told.
type watching struct {
	*memstore.Store

	answer func(store.Claim) error
}

func (s *watching) AcquireSlots(_ context.Context, claims []store.Claim) (store.Grant, error) {
	return store.Grant{}, s.answer(claims[0])
}
