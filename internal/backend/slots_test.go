package backend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/store"
)

// refusing is a registry that fails for one name.
type refusing struct {
	*slots.Memory

	name string
	err  error
}

func (r *refusing) Acquire(ctx context.Context, c slots.Acquisition) (slots.Grant, error) {
	if c.Name == r.name {
		return slots.Grant{}, r.err
	}
	return r.Memory.Acquire(ctx, c)
}

// Take takes all or none, and tells the observer of all that were granted; of the one that is full; or of all, if nobody
// has decided.
func TestTake(t *testing.T) {
	away := errors.New("away")
	for _, test := range []struct {
		fails string
		err   error
		told  []string
	}{
		{"", nil, []string{"a granted", "b granted", "c granted"}},
		{"a", &slots.FullError{Name: "a"}, []string{"a full"}},
		{"b", &slots.FullError{Name: "b"}, []string{"b full"}},
		{"b", away, []string{"a failed", "b failed", "c failed"}},
		{"c", slots.ErrClosed, []string{"a failed", "b failed", "c failed"}},
	} {
		t.Run(fmt.Sprint(test.fails, " ", test.err), func(t *testing.T) {
			var told []string
			registry := &refusing{new(slots.Memory), test.fails, test.err}
			stores := &backend.Stores{Slots: registry, Observer: &store.Observer{
				Acquired: func(_ context.Context, event store.SlotEvent) {
					became := "full"
					if event.Granted {
						became = "granted"
					} else if event.Err != nil {
						became = "failed"
					}
					told = append(told, event.Slots+" "+became)
				},
				Released: func(name string) { told = append(told, name+" released") },
			}}
			var claims []backend.Claim
			for _, name := range []string{"a", "b", "c"} {
				claims = append(claims, backend.Claim{Slots: backend.NewSlotLimit(stores, name, 1), Key: "anna"})
			}
			slot := new(backend.Slot)
			if err := slot.Take(t.Context(), claims); !errors.Is(err, test.err) {
				t.Errorf("%v, not %v", err, test.err)
			}
			if !slices.Equal(told, test.told) {
				t.Errorf("the observer was told %v, not %v", told, test.told)
			}
			holds := func(want int64) {
				t.Helper()
				for _, claim := range claims {
					if held, err := claim.Slots.Count(t.Context(), "anna"); err != nil || held != want {
						t.Errorf("%d slots %s are held, not %d (%v)", held, claim.Slots.Name(), want, err)
					}
				}
			}
			var released []string // once, though Release is called twice
			if test.err == nil {
				released = []string{"a released", "b released", "c released"}
				holds(1)
			}
			told = nil
			slot.Release()
			slot.Release()
			holds(0)
			if !slices.Equal(told, released) {
				t.Errorf("of the release, the observer was told %v, not %v", told, released)
			}
		})
	}
}

// Slots that are closed while one is acquired are not held.
func TestTakeMeanwhileClosed(t *testing.T) {
	memory := new(slots.Memory)
	closing := &closingRegistry{Memory: memory}
	stores := &backend.Stores{Slots: closing}
	limit := backend.NewSlotLimit(stores, "a", 1)
	closing.close = func() { _ = limit.Close(t.Context()) }
	slot := new(backend.Slot)
	err := slot.Take(t.Context(), []backend.Claim{{Slots: limit, Key: "anna"}})
	held, _ := memory.Count(t.Context(), "a", "anna")
	if !errors.Is(err, slots.ErrClosed) || held != 0 {
		t.Errorf("%v, and %d are held", err, held)
	}
}

// A closingRegistry is closed when it has granted a slot.
type closingRegistry struct {
	*slots.Memory

	close func()
}

func (c *closingRegistry) Acquire(ctx context.Context, claim slots.Acquisition) (slots.Grant, error) {
	grant, err := c.Memory.Acquire(ctx, claim)
	c.close()
	return grant, err
}

// A Slot that takes more holds it, too, and loses nothing if there is no more.
func TestTakeMore(t *testing.T) {
	var released []string
	stores := &backend.Stores{Slots: new(slots.Memory), Observer: &store.Observer{
		Released: func(name string) { released = append(released, name) },
	}}
	claim := func(name string) []backend.Claim {
		return []backend.Claim{{Slots: backend.NewSlotLimit(stores, name, 1), Key: "anna"}}
	}
	slot := new(backend.Slot)
	for _, test := range []struct {
		name string
		err  error
	}{{"a", nil}, {"a", slots.ErrFull}, {"b", nil}} {
		if err := slot.Take(t.Context(), claim(test.name)); !errors.Is(err, test.err) {
			t.Errorf("%s: %v, not %v", test.name, err, test.err)
		}
	}
	if len(slot.Answers()) != 2 {
		t.Errorf("%v", slot.Answers())
	}
	slot.Release()
	if !slices.Equal(released, []string{"a", "b"}) {
		t.Errorf("%v are released", released)
	}
}
