package memstore

import (
	"strconv"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
)

// TestSlotsTakeWhatIsHeld: a key that holds no slot takes no memory, in whatever order its
// slots are released.
func TestSlotsTakeWhatIsHeld(t *testing.T) {
	s := New(Config{})
	one, err := core.NewSlots(s, "one", 2)
	if err != nil {
		t.Fatal(err)
	}
	two, err := core.NewSlots(s, "two", 2)
	if err != nil {
		t.Fatal(err)
	}
	held := func() int { return len(s.slots.pools["one"].held) + len(s.slots.pools["two"].held) }
	var slots []*core.Slot
	for i := range 300 {
		key := strconv.Itoa(i % 100)
		claims := []core.Claim{{Slots: one, Key: key}, {Slots: two, Key: key}}
		slot, err := core.AcquireAll(t.Context(), claims[:1+i/100%2]...)
		if refused := i >= 200; (err != nil) != refused {
			t.Fatalf("slot %d: %v", i, err)
		}
		if err == nil {
			slots = append(slots, slot)
		}
	}
	if got := held(); got != 200 {
		t.Errorf("%d keys are kept, want 200", got)
	}
	if n, err := one.Count(t.Context(), "nobody"); n != 0 || err != nil || held() != 200 {
		t.Errorf("a count of a key that holds none: %d, %v, %d keys are kept", n, err, held())
	}
	for i, slot := range slots {
		slot.Release()
		if i == 99 && held() != 200 { // each of these keys holds another
			t.Errorf("%d keys are kept when 100 of 200 slots are released, want 200", held())
		}
	}
	if got := held(); got != 0 {
		t.Errorf("%d keys are kept that hold no slot", got)
	}
}
