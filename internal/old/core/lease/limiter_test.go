package lease

import (
	"runtime"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

// A Store that is no longer used is freed with what it knows of its keys.
func TestStoresAreFreed(t *testing.T) {
	gone := make(chan struct{})
	bubble.Test(t, func(t *testing.T) {
		s, _ := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		hot := limiterOf(t, s, core.FixedWindow(core.PerDay(1_000_000)))
		for range 100 {
			allow(t, hot, 1)
		}
		if s.entries.Load() == 0 {
			t.Error("the key has no entry")
		}
		runtime.AddCleanup(s, func(gone chan struct{}) { close(gone) }, gone)
	})
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		runtime.GC()
		select {
		case <-gone:
			return
		case <-time.After(time.Millisecond):
		}
	}
	t.Error("it is still there")
}

// Plans that are replaced, as by a document that is read again, bound leases only as long as
// somebody has them.
func TestPlansThatNobodyHasAreForgotten(t *testing.T) {
	s, err := New(memstore.New(memstore.Config{}), Config{})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := core.New(s, "api", core.FixedWindow(core.PerDay(1000)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxGrids {
		if _, err := core.New(s, "api", core.FixedWindow(core.Rate{Events: 1000, Per: time.Duration(i+1) * time.Minute})); err != nil {
			t.Fatal(err)
		}
		if _, err := core.New(s, "other", core.FixedWindow(core.PerMinute(1))); err != nil {
			t.Fatal(err)
		}
	}
	f := s.prepared(kept.Prepared()).family
	for deadline := time.Now().Add(time.Minute); f.plans.Load() > 1; {
		if time.Now().After(deadline) {
			t.Fatalf("%d plans are there", f.plans.Load())
		}
		runtime.GC()
		<-time.After(time.Millisecond)
	}
	day := (24 * time.Hour).Microseconds()
	if p := f.part(day + 1); p != (part{day, 2 * day, 2 * day}) {
		t.Errorf("the part is %v", p)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		s.families.mu.Lock()
		n := len(s.families.byName)
		s.families.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d names are there", n)
		}
		runtime.GC()
		<-time.After(time.Millisecond)
	}
	runtime.KeepAlive(kept)
}
