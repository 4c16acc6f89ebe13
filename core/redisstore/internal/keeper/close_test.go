package keeper

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// openNames acquires some slots of each name.
func openNames(t *testing.T, k *Keeper, names ...string) {
	t.Helper()
	for _, name := range names {
		for i := range 10 {
			h, _, err := k.Acquire(t.Context(), time.Now().Add(simTTL), name, strconv.Itoa(i), 100)
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
// returns, without waiting for its own statements.
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
			bubble(t, func(t *testing.T) {
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
				}
				if d := time.Since(start); d > 0 {
					t.Errorf("Close waited %v", d)
				}
				if n := s.tombstones(id); !test.away && n != 1 {
					t.Errorf("%d tombstones", n)
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
			bubble(t, func(t *testing.T) {
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
