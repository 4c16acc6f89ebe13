package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// Callers of several servers wait for the slots of one key: no more hold one than may, and
// each gets one in the end, though what others release is found by asking.
func TestSlotsAreWaitedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const servers, callers, limit, waiters = 3, 8, 2, 5
	var holding, refused atomic.Int64
	var all sync.WaitGroup
	for range servers {
		slots := newSlots(t, open(t, Config{Failure: FailClosed}, server.Addr()), "jobs", limit)
		for range callers {
			all.Go(func() {
				for range 5 {
					slot, err := slots.AcquireWait(t.Context(), "key", waiters)
					if errors.Is(err, core.ErrFull) {
						refused.Add(1) // eight ask, of whom two can hold one and five wait
						continue
					} else if err != nil {
						t.Error(err)
						return
					}
					if n := holding.Add(1); n > limit {
						t.Errorf("%d hold slots of %d", n, limit)
					}
					holding.Add(-1)
					slot.Release()
				}
			})
		}
	}
	all.Wait()
	if refused.Load() == servers*callers*5 {
		t.Error("everybody was refused")
	}
}

// What another server releases is found; and who waits when Redis goes is told, not kept.
func TestSlotsOfOthersAreWaitedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ours := newSlots(t, open(t, Config{Failure: FailClosed}, server.Addr()), "jobs", 1)
	theirs := newSlots(t, open(t, Config{Failure: FailClosed}, server.Addr()), "jobs", 1)
	slot := acquires(t, theirs, "key")
	type result struct {
		slot *core.Slot
		err  error
	}
	wait := func() chan result {
		done := make(chan result, 1)
		go func() {
			slot, err := ours.AcquireWait(context.Background(), "key", 1)
			done <- result{slot, err}
		}()
		return done
	}
	done := wait()
	eventually(t, "the second to be refused", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := ours.AcquireWait(ctx, "key", 1)
		return errors.Is(err, core.ErrFull) // one waits already
	})
	slot.Release()
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	got.slot.Release()
	acquires(t, theirs, "key")
	done = wait()
	server.Kill()
	if got := <-done; !errors.Is(got.err, core.ErrUnavailable) {
		t.Error(got.err)
	}
}

// A caller that waits under a small limit does not hold up one with a larger limit, for whom there is room.
func TestLargerLimitIsNotHeldUp(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	acquires(t, newSlots(t, open(t, Config{Failure: FailClosed}, server.Addr()), "jobs", 1), "key")
	small := newSlots(t, open(t, Config{Failure: FailClosed}, server.Addr()), "jobs", 1)
	large, err := small.With(5)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	waits := make(chan error, 1)
	go func() {
		_, err := small.AcquireWait(ctx, "key", 9)
		waits <- err
	}()
	eventually(t, "the other to be refused and to wait, each time with a mark", func() bool { return server.Calls("hset") > 4 })
	if _, err := large.AcquireWait(ctx, "key", 9); err != nil {
		t.Error(err)
	}
	cancel()
	<-waits
}
