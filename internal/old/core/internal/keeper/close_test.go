package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
)

// openNames acquires some slots of each name, of keys of its own: the stage's server knows no names.
func openNames(t *testing.T, k *Keeper, names ...string) {
	t.Helper()
	for _, name := range names {
		for i := range 10 {
			h, _, err := k.Acquire(t.Context(), time.Now().Add(simTTL), name, name+strconv.Itoa(i), 100, 100)
			if h == nil || err != nil {
				t.Fatal(h, err)
			}
		}
	}
}

func (k *Keeper) incarnation() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current.epoch.id
}

// tombstones returns how many beats have buried the incarnation.
func (s *stage) tombstones(id string) (n int) {
	s.locked(func() {
		for _, b := range s.beats {
			if slices.Contains(b.Bury, id) {
				n++
			}
		}
	})
	return n
}

// Closing the last name frees the slots of all names, so every Close that still waits
// returns.
func TestCloseOfAllNamesAtOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		away bool
		want error
	}{
		{"the tombstone is written", false, nil},
		{"the tombstone fails", true, errNobody},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, k := newStage()
				openNames(t, k, "a", "b", "c")
				id := k.incarnation()
				hold := make(chan struct{})
				s.locked(func() { s.away, s.hold = test.away, hold })
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				got := make(chan error, 3)
				for _, name := range []string{"a", "b", "c"} {
					go func() { got <- k.Close(ctx, name) }()
				}
				start := time.Now()
				for range 3 {
					if err := <-got; !errors.Is(err, test.want) {
						t.Errorf("%v, want %v", err, test.want)
					}
					if n := s.tombstones(id); !test.away && n != 1 {
						t.Errorf("%d tombstones", n)
					}
				}
				if d := time.Since(start); d > simTTL { // one waits for its statements, to remove what they leave
					t.Errorf("Close waited %v", d)
				}
				close(hold)
				synctest.Wait()
			})
		})
	}
}

// The tombstone is tried even if the caller cannot wait any more: otherwise all slots
// would stay taken for a TTL.
func TestCloseAfterTheDeadline(t *testing.T) {
	for _, test := range []struct {
		name   string
		slow   time.Duration // until the server answers
		left   time.Duration // until the context ends
		buried int
	}{
		{"the context has ended", 0, 0, 1},
		{"the context ends meanwhile", simTTL / 5, simTTL / 10, 1},
		{"nobody answers", time.Hour, simTTL, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, k := newStage()
				openNames(t, k, "a")
				id := k.incarnation()
				synctest.Wait()
				wait := make(chan struct{})
				s.set(false, wait)
				ctx, cancel := context.WithTimeout(t.Context(), test.left)
				defer cancel()
				start := time.Now()
				time.AfterFunc(test.slow, func() { close(wait) })
				err := k.Close(ctx, "a")
				if buried := s.tombstones(id); buried != test.buried || (err == nil) != (buried > 0) {
					t.Errorf("%d tombstones, %v", buried, err)
				}
				if d := time.Since(start); d > simTTL {
					t.Errorf("Close waited %v", d)
				}
			})
		})
	}
}

// After an orderly end, the server has nothing but tombstones of the process: neither
// counts, nor zeros, nor what was on its way.
func TestCloseLeavesNothing(t *testing.T) {
	for _, inFlight := range []bool{false, true} {
		t.Run(fmt.Sprint("in flight: ", inFlight), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s, k := newStage()
				var held []*Hold
				for i := range 3 * batchSize {
					h, _, _ := k.Acquire(t.Context(), time.Now().Add(simTTL), "a", strconv.Itoa(i), 1, 1)
					held = append(held, h)
				}
				openNames(t, k, "b")
				s.locked(func() { s.failing = 2 }) // zeros are kept of that
				for i, h := range held {
					if i%2 == 0 {
						h.Release()
					}
				}
				time.Sleep(simTTL)
				hold := make(chan struct{})
				if inFlight {
					s.locked(func() { s.hold = hold })
					go k.Acquire(t.Context(), time.Now().Add(simTTL), "a", "new", 1, 1)
					synctest.Wait()
					s.locked(func() { s.hold = nil }) // of what comes later
				}
				time.AfterFunc(simTTL/10, func() { close(hold) })
				for _, name := range []string{"b", "a"} {
					if err := k.Close(t.Context(), name); err != nil {
						t.Error(err)
					}
				}
				if n := len(s.server.keys); n > 0 {
					t.Errorf("%d hashes are left", n)
				}
			})
		})
	}
}

// A server that does not answer is not asked again and again to remove what a process has
// left, and its silence is no error: the tombstone has freed all.
func TestCloseErasesWhatItCan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, k := newStage()
		for i := range 3 * batchSize {
			if h, _, err := k.Acquire(t.Context(), time.Now().Add(simTTL), "a", strconv.Itoa(i), 1, 1); h == nil {
				t.Fatal(err)
			}
		}
		time.Sleep(simTTL)
		id := k.incarnation()
		hold := make(chan struct{})
		s.locked(func() { s.hold = hold })
		start := time.Now()
		if err := k.Close(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > simTTL {
			t.Errorf("Close waited %v", d)
		}
		if n := s.tombstones(id); n != 1 {
			t.Errorf("%d tombstones", n)
		}
		close(hold)
	})
}
