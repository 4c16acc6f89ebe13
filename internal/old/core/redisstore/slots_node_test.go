package redisstore

import (
	"errors"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/redistest"
)

// Each server has a limit of its own beside that of the fleet: neither is exceeded, nothing
// is refused for which both have room, and what Redis refuses or cannot answer is not held.
func TestSlotsOfANode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const nodes, most, limit = 3, 10, 25
	claims := make([][]core.Claim, nodes)
	for i := range claims {
		node, err := core.NewSlots(memstore.New(memstore.Config{}), "node", most)
		if err != nil {
			t.Fatal(err)
		}
		claims[i] = []core.Claim{{Slots: newSlots(t, open(t, Config{Failure: FailClosed}, server.Addr()), "all", limit), Key: "all"}, {Slots: node, Key: "node"}}
	}
	count := func(c core.Claim) int64 {
		t.Helper()
		n, err := c.Slots.Count(t.Context(), c.Key)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var mu sync.Mutex
	var held []*core.Slot
	var callers sync.WaitGroup
	for _, c := range claims {
		for range 2 * most {
			callers.Go(func() {
				slot, err := core.AcquireAll(t.Context(), c...)
				switch {
				case err == nil:
					mu.Lock()
					held = append(held, slot)
					mu.Unlock()
				case !errors.Is(err, core.ErrFull):
					t.Error(err)
				}
			})
		}
	}
	callers.Wait()
	if n := count(claims[0][0]); len(held) > limit || n != int64(len(held)) {
		t.Errorf("%d are held of %d, %d counted", len(held), limit, n)
	}
	for _, c := range claims { // a claim that Redis refused may have kept another out
		for i := most; i > 0 && count(c[1]) < most && count(c[0]) < limit; i-- {
			held = append(held, acquiresAll(t, c))
		}
	}
	if n := count(claims[0][0]); len(held) != limit || n != limit {
		t.Fatalf("%d are held, %d counted", len(held), n)
	}
	for _, c := range claims {
		want := "all"
		if count(c[1]) == most {
			want = "node"
		}
		var full *core.FullError
		if _, err := core.AcquireAll(t.Context(), c...); !errors.As(err, &full) || full.Slots != want {
			t.Errorf("%v, want %q to be full", err, want)
		}
	}
	for _, slot := range held {
		slot.Release()
	}
	server.Kill()
	eventually(t, "Redis to be away", func() bool {
		_, err := core.AcquireAll(t.Context(), claims[0]...)
		return errors.Is(err, core.ErrUnavailable)
	})
	for i, c := range claims {
		if n := count(c[1]); n != 0 {
			t.Errorf("node %d holds %d", i, n)
		}
	}
}

// acquiresAll takes slots, in time.
func acquiresAll(t *testing.T, claims []core.Claim) (slot *core.Slot) {
	t.Helper()
	eventually(t, "slots", func() bool {
		var err error
		slot, err = core.AcquireAll(t.Context(), claims...)
		return err == nil
	})
	return slot
}
