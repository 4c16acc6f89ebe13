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

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A fleet is a store that several processes share, as far as Shared says. It can be away.
type fleet struct {
	*memstore.Store

	err  error
	lost chan struct{}
}

type fleetHold struct {
	store.Hold

	fleet *fleet
}

func (*fleet) Shared() bool { return true }

func (f *fleet) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	if f.err != nil {
		return store.Grant{}, f.err
	}
	g, err := f.Store.AcquireSlots(ctx, claims)
	g.Hold = fleetHold{g.Hold, f}
	return g, err
}

func (h fleetHold) Lost() <-chan struct{} { return h.fleet.lost }

func newFleet(o *core.Observer) *fleet {
	return &fleet{Store: memstore.New(memstore.Config{Observer: o}), lost: make(chan struct{})}
}

func held(t *testing.T, slots *core.Slots, key string) int64 {
	t.Helper()
	n, err := slots.Count(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Claims of several stores are granted all or not at all: what is counted is what a list of
// the slots that are held says, and a refusal names the claim that was full.
func TestSeveralStores(t *testing.T) {
	stores := []core.SlotStore{memstore.New(memstore.Config{}), newFleet(nil), memstore.New(memstore.Config{})}
	var slots []*core.Slots
	for i, s := range stores {
		for j := range 2 {
			slots = append(slots, newSlots(t, s, fmt.Sprint("slots", i, j), int64(1+j)))
		}
	}
	type entry struct {
		slot   *core.Slot
		claims []core.Claim
	}
	var all []entry
	counts := func(c core.Claim) (n int64) {
		for _, e := range all {
			if slices.Contains(e.claims, c) {
				n++
			}
		}
		return n
	}
	for range 5000 {
		if len(all) > 0 && rand.IntN(3) == 0 {
			i := rand.IntN(len(all))
			all[i].slot.Release()
			all = slices.Delete(all, i, i+1)
			continue
		}
		var claims []core.Claim
		for _, i := range rand.Perm(len(slots))[:1+rand.IntN(len(slots))] {
			claims = append(claims, core.Claim{Slots: slots[i], Key: fmt.Sprint(rand.IntN(2))})
		}
		slot, err := core.AcquireAll(t.Context(), claims...)
		full := slices.ContainsFunc(claims, func(c core.Claim) bool { return counts(c) == c.Slots.Limit() })
		var refused *core.FullError
		switch {
		case errors.As(err, &refused):
			c := claims[refused.Claim]
			if n := counts(c); !full || refused.Slots != c.Slots.Name() || refused.Held != n || refused.Limit != n || n != c.Slots.Limit() {
				t.Fatalf("refused by %+v, but %d are held", refused, n)
			}
		case err != nil || full:
			t.Fatalf("granted although one was full, or %v", err)
		default:
			all = append(all, entry{slot, claims})
			for i, o := range slot.Occupancies() {
				if want := (core.Occupancy{Slots: claims[i].Slots.Name(), Limit: claims[i].Slots.Limit(), Held: counts(claims[i])}); o != want {
					t.Fatalf("claim %d: %+v, not %+v", i, o, want)
				}
			}
		}
		for _, s := range slots {
			for _, key := range []string{"0", "1"} {
				if got, want := held(t, s, key), counts(core.Claim{Slots: s, Key: key}); got != want {
					t.Fatalf("%d are held of %q, not %d", got, s.Name(), want)
				}
			}
		}
	}
}

// However many ask at once, neither store grants more than its limit, and as many as the
// smaller one are granted.
func TestSeveralStoresAtOnce(t *testing.T) {
	node, all := newSlots(t, memstore.New(memstore.Config{}), "node", 3), newSlots(t, newFleet(nil), "all", 5)
	var mu sync.Mutex
	var granted []*core.Slot
	var callers sync.WaitGroup
	for range 32 {
		callers.Go(func() {
			for range 20 {
				slot, err := core.AcquireAll(t.Context(), core.Claim{Slots: all, Key: "a"}, core.Claim{Slots: node, Key: "b"})
				if err != nil {
					continue
				}
				if n := held(t, node, "b"); n > 3 {
					t.Errorf("%d are held of 3", n)
				}
				mu.Lock()
				granted = append(granted, slot)
				if len(granted) > 2 {
					granted[0].Release()
					granted = granted[1:]
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	for _, s := range granted {
		s.Release()
	}
	if n, m := held(t, node, "b"), held(t, all, "a"); n+m != 0 {
		t.Errorf("%d and %d are left", n, m)
	}
}

// If the shared store cannot answer, what the other had granted is given back.
func TestSharedStoreAway(t *testing.T) {
	var told []string
	observer := func(name string) *core.Observer {
		return &core.Observer{
			SlotAcquired: func(_ context.Context, e core.SlotEvent) {
				told = append(told, fmt.Sprint(name, " ", e.Slots, " ", e.Granted, " ", e.Source, " ", e.Err, " ", e.Took > 0))
			},
			SlotReleased: func(slots string) { told = append(told, name+" "+slots+" released") },
			Timed:        name == "second",
		}
	}
	f := newFleet(observer("first"))
	node, all := newSlots(t, memstore.New(memstore.Config{Observer: observer("second")}), "node", 1), newSlots(t, f, "all", 1)
	acquire := func() (*core.Slot, error) {
		return core.AcquireAll(t.Context(), core.Claim{Slots: node, Key: "secret"}, core.Claim{Slots: all, Key: "secret"})
	}
	f.err = core.ErrUnavailable
	if slot, err := acquire(); slot != nil || !errors.Is(err, core.ErrUnavailable) || held(t, node, "secret") != 0 {
		t.Error(err)
	}
	f.err = nil
	slot, err := acquire()
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %s", slot, slot, new(core.Slot)); strings.Contains(text, "secret") || !strings.Contains(text, `a slot of "node" and "all"`) {
		t.Error(text)
	}
	if _, err := acquire(); !errors.Is(err, core.ErrFull) {
		t.Error(err)
	}
	slot.Release()
	slot.Release()
	want := []string{
		"second node false none headgate: the store is not available true", "first all false none headgate: the store is not available false",
		"second node true store <nil> true", "first all true store <nil> false",
		"second node false store <nil> true",
		"second node released", "first all released",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q\nnot  %q", told, want)
	}
}

// If a store panics, or an Observer does, nothing is held.
func TestSeveralStoresPanic(t *testing.T) {
	for name, f := range map[string]*fleet{
		"the store":    {},
		"the Observer": newFleet(&core.Observer{SlotAcquired: func(context.Context, core.SlotEvent) { panic("on purpose") }}),
	} {
		var s core.SlotStore = f
		if f.Store == nil {
			s = &panicking{newFleet(nil)}
		}
		node, all := newSlots(t, memstore.New(memstore.Config{}), "node", 1), newSlots(t, s, "all", 1)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_, _ = core.AcquireAll(t.Context(), core.Claim{Slots: node, Key: "a"}, core.Claim{Slots: all, Key: "a"})
		}()
		if n := held(t, node, "a"); n != 0 {
			t.Errorf("%s: %d are held", name, n)
		}
	}
}

type panicking struct{ *fleet }

func (*panicking) AcquireSlots(context.Context, []store.Claim) (store.Grant, error) {
	panic("on purpose")
}

// Only the shared store loses slots.
func TestSeveralStoresLose(t *testing.T) {
	f := newFleet(nil)
	node, all := newSlots(t, memstore.New(memstore.Config{}), "node", 1), newSlots(t, f, "all", 1)
	slot, err := core.AcquireAll(t.Context(), core.Claim{Slots: all, Key: "a"}, core.Claim{Slots: node, Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if slot.Lost() != f.lost {
		t.Error("the channel is not that of the shared store")
	}
	slot.Release()
	if held(t, node, "a")+held(t, all, "a") != 0 {
		t.Error("a slot is held")
	}
}
