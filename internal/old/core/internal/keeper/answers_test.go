package keeper

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
)

// Without the server, what the others held by the last answer counts for a TTL.
func TestTakeCountsTheOthers(t *testing.T) {
	alone(t, func(k *tester) {
		const limit = 5
		for _, key := range []string{"held", "released", "refused", "freed"} {
			k.server.state(key, &Op{ID: "other", Seq: 1, Held: 3})
		}
		k.acquires("held", limit)
		k.acquires("released", limit).Release()
		if k.acquire("refused", 3, simTTL) != nil {
			t.Error("granted above the limit")
		}
		k.acquires("freed", limit).Release()
		k.locked(func() { k.server.state("freed", &Op{ID: "other", Seq: 2}) })
		k.acquires("freed", limit).Release()
		time.Sleep(simBeat / 2)
		k.set(true, nil)
		room := func(when string, want map[string]int64) {
			t.Helper()
			for key, n := range want {
				if h, held := k.Take("ws", key, limit, limit-n, true); h != nil || held != limit-n {
					t.Errorf("%s, %s: below a limit of %d with %d held", when, key, limit-n, held)
				}
				h, held := k.Take("ws", key, limit, limit-n+1, true)
				if h == nil || held != limit-n+1 {
					t.Errorf("%s, %s: none below a limit of %d with %d held", when, key, limit-n+1, held)
					continue
				}
				h.Release()
			}
			if h, held := k.Take("ws", "refused", 1, 1, false); h == nil || held != 1 {
				t.Errorf("%s: the others count although they should not: %d", when, held)
			} else {
				h.Release()
			}
		}
		room("at once", map[string]int64{"held": 1, "released": 2, "refused": 2, "freed": 5, "never asked": 5})
		time.Sleep(simTTL)
		room("after a TTL", map[string]int64{"held": 4, "released": 5, "refused": 5, "freed": 5})
	})
}

// However many keys there are, the answers that are remembered are bounded, and are of the
// right key.
func TestAnswersOfManyKeys(t *testing.T) {
	k := New(nil, Config{})
	for i := range 3 * maxAnswers {
		k.answers.note("ws", fmt.Sprint(i), int64(i+1), 1)
	}
	known := 0
	for i := range 3 * maxAnswers {
		switch n := k.answers.others("ws", fmt.Sprint(i), 0); n {
		case 0:
		case int64(i + 1):
			known++
		default:
			t.Errorf("key %d: %d", i, n)
		}
	}
	if known < maxAnswers/2 || known > maxAnswers {
		t.Errorf("%d keys are known", known)
	}
}

// While the server is silent, no more than a bounded number of acquires wait; the others
// are told so at once. In the end none waits, and no slot is held.
func TestAcquiresThatWaitAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		acquire := func(key int, within time.Duration) (*Hold, error) {
			h, _, err := k.Acquire(t.Context(), time.Now().Add(within), "ws", fmt.Sprint(key), 1, 1)
			return h, err
		}
		if h, err := acquire(-1, simTTL); h == nil {
			t.Fatal(err)
		}
		time.Sleep(simBeat / 2)
		silence := make(chan struct{})
		s.locked(func() { s.hold = silence })
		var all sync.WaitGroup
		for i := range maxWaiting {
			all.Go(func() {
				if h, err := acquire(i%100, simTTL/4); h != nil || err == nil || errors.Is(err, errCrowd) {
					t.Errorf("%v, %v", h, err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		for range 10 {
			if _, err := acquire(-2, simTTL/4); !errors.Is(err, errCrowd) {
				t.Error(err)
			}
		}
		if time.Since(start) > 0 {
			t.Error("it waited")
		}
		all.Wait()
		k.mu.Lock()
		if k.waiting != 0 {
			t.Errorf("%d wait", k.waiting)
		}
		k.mu.Unlock()
		s.locked(func() { s.hold = nil })
		close(silence)
		time.Sleep(3 * simTTL)
		s.locked(func() {
			held := int64(0)
			for _, fields := range s.server.keys {
				for _, f := range fields {
					held += f.Count
				}
			}
			if held != 1 {
				t.Errorf("%d slots are stated, and one is held", held)
			}
		})
		if h, err := acquire(-2, simTTL); h == nil {
			t.Error(err)
		}
		if err := k.Close(t.Context(), "ws"); err != nil {
			t.Error(err)
		}
	})
}
