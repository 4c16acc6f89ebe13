package redisstore

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A Redis that answers later than the Timeout of limits is not away: slots wait for it, so
// that the limit holds although FailLocal would grant more.
func TestSlotsOfASlowRedis(t *testing.T) {
	t.Parallel()
	const limit, stores = 3, 3
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Delay(120 * time.Millisecond)
	var mu sync.Mutex
	var all sync.WaitGroup
	granted := 0
	for range stores {
		slots := newSlots(t, open(t, Config{Timeout: 100 * time.Millisecond, SlotTimeout: patient, SlotTTL: time.Hour}, proxy.Addr()), "ws", limit)
		for range 2 * limit {
			all.Go(func() {
				slot, err := slots.Acquire(t.Context(), "key")
				switch {
				case errors.Is(err, core.ErrFull):
				case err != nil:
					t.Error(err)
				case slot.Source() != core.SourceStore:
					t.Errorf("granted by %v", slot.Source())
				default:
					mu.Lock()
					granted++
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if granted != limit {
		t.Errorf("%d granted, want %d", granted, limit)
	}
}

// While Redis is away, FailLocal counts what the others held by the last answer about the
// key.
func TestSlotsWithoutRedisCountTheOthers(t *testing.T) {
	t.Parallel()
	const limit = 5
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	other := newSlots(t, open(t, Config{}, server.Addr()), "ws", limit)
	slots := newSlots(t, open(t, Config{}, proxy.Addr()), "ws", limit)
	for range 3 {
		acquires(t, other, "known")
		acquires(t, other, "unknown")
	}
	acquires(t, slots, "known").Release()
	proxy.Cut()
	for key, want := range map[string]int{"known": 2, "unknown": 5} {
		granted := 0
		for range 2 * limit {
			_, err := slots.Acquire(t.Context(), key)
			var full *core.FullError
			switch {
			case err == nil:
				granted++
			case !errors.As(err, &full) || full.Held != limit:
				t.Errorf("%s: %v", key, err)
			}
		}
		if granted != want {
			t.Errorf("%s: %d granted, want %d", key, granted, want)
		}
	}
}

// Handshakes that wait while Redis is silent are answered by Failure after the SlotTimeout,
// and whatever they have sent counts no slot twice, and loses none, when Redis is back.
func TestHandshakesWhileRedisIsSilent(t *testing.T) {
	t.Parallel()
	const keys, limit, tries = 10, 2, 6
	for _, failure := range []Failure{FailLocal, FailClosed} {
		server := redistest.Start(t)
		proxy := redistest.NewProxy(t, server.Addr())
		s := open(t, Config{Failure: failure, SlotTimeout: 300 * time.Millisecond}, proxy.Addr())
		slots := newSlots(t, s, "ws", limit)
		before := acquires(t, slots, "key0")
		proxy.Hold() // and delivers it later
		var mu sync.Mutex
		var all sync.WaitGroup
		held := map[string][]*core.Slot{"key0": {before}}
		for i := range keys * tries {
			key := fmt.Sprint("key", i%keys)
			all.Go(func() {
				slot, err := slots.Acquire(t.Context(), key)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && slot.Source() == core.SourceLocal:
					held[key] = append(held[key], slot)
				case errors.Is(err, core.ErrFull) && failure == FailLocal:
				case !errors.Is(err, core.ErrUnavailable) || failure != FailClosed:
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		proxy.Heal()
		counter := newSlots(t, open(t, Config{}, server.Addr()), "ws", limit)
		for i := range keys {
			key := fmt.Sprint("key", i)
			if n := len(held[key]); failure == FailLocal && n != limit {
				t.Errorf("%s: %d are held", key, n)
			}
			for _, left := range []int{len(held[key]), 0} {
				eventually(t, "the count to be right", func() bool {
					n, err := counter.Count(t.Context(), key)
					return err == nil && n == int64(left)
				})
				for _, slot := range held[key] {
					slot.Release()
				}
			}
		}
	}
}
