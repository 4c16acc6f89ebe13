package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

func newSlots(t *testing.T, store core.SlotStore, name string, limit int64) *core.Slots {
	t.Helper()
	s, err := core.NewSlots(store, name, limit)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNewSlotsFaults(t *testing.T) {
	var none *memstore.Store
	store := memstore.New(memstore.Config{})
	for _, test := range []struct {
		name   string
		make   func() (*core.Slots, error)
		faults []string
	}{
		{"good", func() (*core.Slots, error) { return core.NewSlots(store, "ws", 1) }, nil},
		{"nothing may be held", func() (*core.Slots, error) { return core.NewSlots(store, "ws", 0) }, nil},
		{"everything may", func() (*core.Slots, error) { return core.NewSlots(store, "ws", core.NoLimit) }, nil},
		{"all at once", func() (*core.Slots, error) { return core.NewSlots(nil, "", -1) },
			[]string{"a limit of -1 slots is not", "the name is empty", "the store is nil"}},
		{"above what counts", func() (*core.Slots, error) { return core.NewSlots(store, "ws", core.NoLimit+1) }, []string{"a limit of 9007199254740992 slots"}},
		{"a nil pointer", func() (*core.Slots, error) { return core.NewSlots(none, "ws", 1) }, []string{"the store is a nil *memstore.Store"}},
		{"a name for no field", func() (*core.Slots, error) { return core.NewSlots(store, "a\n", 1) }, []string{"only printable ASCII"}},
	} {
		s, err := test.make()
		if len(test.faults) == 0 {
			if err != nil || s == nil {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		var fault *core.ConfigError
		joined, ok := err.(interface{ Unwrap() []error })
		if s != nil || !errors.As(err, &fault) || !ok || len(joined.Unwrap()) != len(test.faults) {
			t.Errorf("%s: %v %v, want %d faults", test.name, s, err, len(test.faults))
			continue
		}
		for i, err := range joined.Unwrap() {
			if !strings.HasPrefix(err.Error(), "headgate: slots ") || !strings.Contains(err.Error(), test.faults[i]) {
				t.Errorf("%s: %v, want %q", test.name, err, test.faults[i])
			}
		}
	}
	if _, err := newSlots(t, store, "ws", 1).With(-1); err == nil {
		t.Error("With accepts a limit of -1")
	}
}

// A strictStore fails the test if it is asked.
type strictStore struct {
	*memstore.Store

	t *testing.T
}

func (s strictStore) AcquireSlots(context.Context, []store.Claim) (store.Grant, error) {
	s.t.Error("the store was asked")
	return store.Grant{}, nil
}

func TestAcquireAllMalformed(t *testing.T) {
	store := &strictStore{memstore.New(memstore.Config{}), t}
	ws := newSlots(t, store, "ws", 1)
	same := newSlots(t, store, "ws", 2)
	one, other := newSlots(t, newFleet(nil), "one", 1), newSlots(t, newFleet(nil), "other", 1)
	for name, claims := range map[string][]core.Claim{
		"nothing":      nil,
		"too many":     slices.Repeat([]core.Claim{{Slots: ws}}, 9),
		"nil":          {{Slots: nil, Key: "a"}},
		"other stores": {{Slots: one, Key: "a"}, {Slots: ws, Key: "a"}, {Slots: other, Key: "a"}},
		"twice":        {{Slots: ws, Key: "secret"}, {Slots: same, Key: "secret"}},
	} {
		if slot, err := core.AcquireAll(t.Context(), claims...); slot != nil || !errors.Is(err, core.ErrQuestion) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v %v", name, slot, err)
		}
	}
}

func TestSlotsShowNoKeys(t *testing.T) {
	slots := newSlots(t, memstore.New(memstore.Config{}), "ws", 1)
	slot, err := slots.Acquire(t.Context(), "secret")
	if err != nil {
		t.Fatal(err)
	}
	if slot.Lost() != nil {
		t.Error("a slot of this process alone may be lost")
	}
	_, full := slots.Acquire(t.Context(), "secret")
	if !errors.Is(full, core.ErrFull) || errors.Is(full, core.ErrClosed) {
		t.Errorf("%v", full)
	}
	for _, x := range []any{full, slots, *slots, slot.Occupancies()} {
		if text := fmt.Sprintf("%v %+v", x, x); strings.Contains(text, "secret") {
			t.Errorf("%T shows the key: %s", x, text)
		}
	}
}

// Closed slots are closed for all that With made, before and after.
func TestCloseClosesPlans(t *testing.T) {
	slots := newSlots(t, memstore.New(memstore.Config{}), "ws", 1)
	plan := func() *core.Slots {
		p, err := slots.With(2)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := plan()
	if err := before.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*core.Slots{slots, before, plan()} {
		if _, err := s.Acquire(t.Context(), "key"); !errors.Is(err, core.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
}

// A stubbornStore fails to close slots until it is willing.
type stubbornStore struct {
	*memstore.Store

	willing bool
	calls   int
}

func (s *stubbornStore) CloseSlots(ctx context.Context, name string) error {
	s.calls++
	if !s.willing {
		return errStore
	}
	return s.Store.CloseSlots(ctx, name)
}

// TestCloseIsRetried: a Close that failed can be repeated, by any plan. Meanwhile the
// slots stay closed. After one that succeeded the store is not called again.
func TestCloseIsRetried(t *testing.T) {
	store := &stubbornStore{Store: memstore.New(memstore.Config{})}
	slots := newSlots(t, store, "ws", 1)
	plan, err := slots.With(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slots.Acquire(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*core.Slots{slots, slots, plan} {
		if err := s.Close(t.Context()); !errors.Is(err, errStore) {
			t.Errorf("Close: %v, want the store's error", err)
		}
		if _, err := plan.Acquire(t.Context(), "key"); !errors.Is(err, core.ErrClosed) {
			t.Errorf("Acquire after it: %v", err)
		}
	}
	store.willing = true
	for _, s := range []*core.Slots{plan, slots} {
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if n, err := slots.Count(t.Context(), "key"); n != 0 || err != nil {
		t.Errorf("%d are held, %v", n, err)
	}
	if store.calls != 4 {
		t.Errorf("the store was called %d times, want 4", store.calls)
	}
}
