package outgoing

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// A lockstep is a store whose callers pause after each call: those that come at once go the whole way side by side.
type lockstep struct{ store.Rates }

func (s lockstep) Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (bool, error) {
	allowed, err := s.Rates.Ask(ctx, mode, cells)
	<-time.After(time.Microsecond)
	return allowed, err
}

// Of several blocks the longest applies, also if all come at once: what is given back is no more than was added.
func TestBlocksAtOnce(t *testing.T) {
	for _, millis := range [][]int64{{200, 200, 200, 200}, {200, 100, 150}, {100, 150, 200}, {150, 200, 100, 200}} {
		synctest.Test(t, func(t *testing.T) {
			rates := memory.New(0)
			limiter := backend.NewShared(&backend.Stores{Rates: lockstep{rates}}, "out").Constant(nil)
			gate, err := newGate(limiter, &backend.Policies{Max: step.MaxInt, Constant: true})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			var all sync.WaitGroup
			for _, n := range millis {
				all.Go(func() { gate.block(t.Context(), "peer", n*1000) })
			}
			all.Wait()
			var cell step.Cell
			cell.Set(gate.server, "peer", step.Hash("peer"), 0)
			cells := []step.Cell{cell}
			_, err = rates.Ask(t.Context(), step.Peek, cells)
			until := time.Since(start).Microseconds() + cells[0].RetryAfter
			if err != nil || until < 200_000 || until > 200_010 {
				t.Errorf("%v: blocked until %d us, %v", millis, until, err)
			}
		})
	}
}
