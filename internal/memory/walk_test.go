package memory_test

import (
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/memory"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/storetest"
)

var (
	questions = flag.Int("questions", 20_000, "how many `questions` the random walk asks")
	seed      = flag.Uint64("seed", 1, "of the random walk")
)

func TestWalk(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	synctest.Test(t, func(t *testing.T) {
		storetest.Walk(t, *seed, *questions, storetest.Subject{Store: memory.New(0), Sleep: time.Sleep, Skip: func(m step.Numbers) bool {
			return m.Kind == step.Calendar // years would pass
		}})
	})
}
