package backend_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
)

var seed = flag.Uint64("seed", rand.Uint64(), "of random answers")

// scripted is a store that answers as it is told.
type scripted struct {
	strict

	answer func(cells []step.Cell) bool
}

func (s scripted) Ask(_ context.Context, _ step.Mode, cells []step.Cell) (allowed bool, err error) {
	return s.answer(cells), nil
}

// The totals of any answers are those of a model that says each in the words of its comment.
func TestTotals(t *testing.T) {
	random := rand.New(rand.NewPCG(*seed, 1))
	for range 20_000 {
		count := 1 + random.IntN(4)
		allowed := true
		var cells []step.Cell
		rates := scripted{strict{memory.New(0), t}, func(asked []step.Cell) bool {
			for i := range asked {
				cell := &asked[i]
				cell.Source = step.SourceStore + step.Source(random.IntN(4))
				cell.Remaining = random.Int64N(3)
				cell.ResetAfter = random.Int64N(5)
				cell.Shortfall = random.Int64N(2)
				if cell.Shortfall > 0 {
					cell.RetryAfter = 1 + random.Int64N(3)
				}
				allowed = allowed && cell.Shortfall == 0
			}
			cells = append(cells, asked...)
			return allowed
		}}
		numbers := make([]step.Numbers, count)
		for i := range numbers {
			numbers[i] = fixedWindow(int64(10 + i))
		}
		var d backend.Decision
		err := limiter(t, &backend.Stores{Rates: rates}, "api", numbers...).Decide(t.Context(), step.Allow, "anna", 1, &d)
		if err != nil {
			t.Fatal(err)
		}
		want, degraded := modelTotals(cells, allowed)
		if got := d.Totals(); got != want || d.Degraded() != degraded {
			t.Fatalf("seed %d: totals of %+v, allowed %v: %+v %v, not %+v %v", *seed, cells, allowed, got, d.Degraded(), want, degraded)
		}
	}
}

// modelTotals looks at all cells anew for each number.
func modelTotals(cells []step.Cell, allowed bool) (want backend.Totals, degraded bool) {
	decides := func(cell, other *step.Cell) bool { return cell.Remaining <= other.Remaining }
	if !allowed {
		decides = func(cell, other *step.Cell) bool {
			return cell.Shortfall > 0 && (other.Shortfall == 0 || cell.RetryAfter >= other.RetryAfter)
		}
	}
	want.Remaining = step.MaxInt
	for i := range cells {
		cell := &cells[i]
		want.Remaining = min(want.Remaining, cell.Remaining)
		want.ResetAfter = max(want.ResetAfter, cell.ResetAfter)
		want.RetryAfter = max(want.RetryAfter, cell.RetryAfter)
		if cell.Source == step.SourceLocal || cell.Source == step.SourceOpen {
			degraded = true
		}
		first := want.Decider == nil // of equal ones, the first decides
		for j := range cells {
			first = first && decides(cell, &cells[j])
		}
		if first {
			want.Decider = cell.Policy
		}
	}
	return want, degraded
}
