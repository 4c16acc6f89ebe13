package core_test

import (
	"context"
	"errors"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A sheddingStore grants slots that are shed, or not, as a test says.
type sheddingStore struct {
	*memstore.Store

	during func() // is called while one is shed
	shed   bool
	err    error

	released, sheds int
}

func (s *sheddingStore) AcquireSlots(_ context.Context, claims []store.Claim) (store.Grant, error) {
	return store.Grant{Hold: sheddingHold{s}, Occupancies: make([]store.Occupancy, len(claims))}, nil
}

type sheddingHold struct{ store *sheddingStore }

func (h sheddingHold) Release()             { h.store.released++ }
func (sheddingHold) Lost() <-chan struct{}  { return nil }
func (sheddingHold) Doubt() <-chan struct{} { return nil }

func (h sheddingHold) Shed(context.Context) (bool, error) {
	h.store.sheds++
	if h.store.during != nil {
		h.store.during()
	}
	return h.store.shed, h.store.err
}

// A slot is given back once: by Release, or by Shed.
func TestShed(t *testing.T) {
	failure := errors.New("no answer")
	for _, test := range []struct {
		name     string
		shed     bool
		err      error
		during   func(*core.Slot)
		released int // by Release, when all is over
		sheds    int
	}{
		{name: "kept", released: 1, sheds: 2},
		{name: "shed", shed: true, sheds: 1},
		{name: "unknown", err: failure, released: 1, sheds: 2},
		{name: "released meanwhile, kept", during: (*core.Slot).Release, released: 1, sheds: 1},
		{name: "released meanwhile, shed", during: (*core.Slot).Release, shed: true, sheds: 1},
		{name: "released meanwhile, unknown", during: (*core.Slot).Release, err: failure, released: 1, sheds: 1},
		{name: "twice at once", during: func(s *core.Slot) {
			if shed, err := s.Shed(context.Background()); shed || err != nil {
				panic("shed within Shed")
			}
		}, released: 1, sheds: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			told := 0
			observed := memstore.New(memstore.Config{Observer: &core.Observer{SlotReleased: func(string) { told++ }}})
			s := &sheddingStore{Store: observed, shed: test.shed, err: test.err}
			slot, err := newSlots(t, s, "ws", 1).Acquire(t.Context(), "key")
			if err != nil {
				t.Fatal(err)
			}
			if test.during != nil {
				s.during = func() { test.during(slot) }
			}
			if shed, err := slot.Shed(t.Context()); shed != test.shed || !errors.Is(err, test.err) {
				t.Errorf("%v, %v", shed, err)
			}
			if shed, _ := slot.Shed(t.Context()); shed {
				t.Error("shed again")
			}
			slot.Release()
			slot.Release()
			if shed, err := slot.Shed(t.Context()); shed || err != nil {
				t.Errorf("after Release: %v, %v", shed, err)
			}
			if told != 1 {
				t.Errorf("the Observer was told %d times of the end", told)
			}
			if s.released != test.released || s.sheds != test.sheds {
				t.Errorf("released %d times, want %d; shed %d times, want %d", s.released, test.released, s.sheds, test.sheds)
			}
		})
	}
	slot, err := newSlots(t, memstore.New(memstore.Config{}), "ws", 1).Acquire(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	if shed, err := slot.Shed(nil); shed || !errors.Is(err, core.ErrQuestion) { //nolint:staticcheck // it is what is tested
		t.Errorf("a nil context: %v, %v", shed, err)
	}
	if shed, err := slot.Shed(t.Context()); shed || err != nil || slot.Doubt() != nil {
		t.Errorf("memstore: %v, %v", shed, err)
	}
}
