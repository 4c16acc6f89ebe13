package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
)

// Keys that share a cell, and are asked for in turn, are leased all the same.
func TestKeysOfOneCellAreLeased(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, link := newServer(t, memstore.New(memstore.Config{}), Config{}, 0)
		l := named(t, s, "a", year(1_000_000))
		own := s.prepared(l.Prepared())
		cellOf := func(key string) uint64 { return s.place(own, key).hash % (shardCount * cellCount) }
		keys := []string{"first"}
		for i := 0; len(keys) < 2; i++ {
			if key := fmt.Sprint(i); cellOf(key) == cellOf(keys[0]) {
				keys = append(keys, key)
			}
		}
		ask := func() {
			for _, key := range keys {
				if d, err := l.Allow(t.Context(), key); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		for range 100 {
			ask()
		}
		calls, local := link.calls.Load(), 0
		for range 200 {
			ask()
			for _, key := range keys {
				if d, err := l.Allow(t.Context(), key); err == nil && d.Source == core.SourceLease {
					local++
				}
			}
		}
		if n := link.calls.Load() - calls; n > 100 || local < 350 {
			t.Errorf("%d calls for 800 decisions, %d of 400 were local", n, local)
		}
	})
}
