package redisrates

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/step"
)

// Each kind of policies, and each algorithm, is decided and settled by the scripts.
func TestEachKindAndAlgorithm(t *testing.T) {
	rests := map[string]string{
		"token-bucket":   "60/hour",
		"fixed-window":   "60/hour from-first",
		"sliding-window": "60/hour",
		"sliding-log":    "60/hour",
		"min-interval":   "1h",
		"calendar":       "60/year",
		"unlimited":      "", // is asked no store
		"blocked":        "",
	}
	s := open(t, Config{}, redistest.Start(t).Addr())
	seen := map[step.Algorithm]bool{}
	for _, word := range step.Words() {
		rest, known := rests[word]
		if !known {
			t.Error("the test has no policy", word)
		}
		if rest == "" {
			continue
		}
		m, err := step.Parse(word + " " + rest)
		if err != nil {
			t.Fatal(err)
		}
		p := &s.limiter(t, word, m)[0]
		seen[p.Stored().Algorithm] = true
		first := s.charge(t, p, "key", 1)
		refund := first
		refund.Units = -1
		if _, err := s.Ask(t.Context(), step.Settle, []step.Cell{refund}); err != nil {
			t.Error(word, err)
		}
		again := s.charge(t, p, "key", 1)
		if again.Source != step.SourceStore || again.Shortfall > 0 || again.Remaining != first.Remaining {
			t.Errorf("%s: first %+v, and after that was given back %s %+v", word, first.Reading, again.Source, again.Reading)
		}
	}
	for algorithm := step.Level; algorithm < step.AlgorithmEnd; algorithm++ {
		if !seen[algorithm] {
			t.Errorf("no policy of the test has algorithm %d", algorithm)
		}
		// In decide.lua the second is about the command that changes a value in place.
		isIt := fmt.Sprintf("if algorithm == %d then", algorithm)
		row := fmt.Sprintf("\n--   %d ", algorithm)
		if strings.Count(decideSource, isIt) < 2 || !strings.Contains(decideSource, row) {
			t.Errorf("decide.lua lacks algorithm %d", algorithm)
		}
		if !strings.Contains(settleSource, isIt) || !strings.Contains(settleSource, row) {
			t.Errorf("settle.lua lacks algorithm %d", algorithm)
		}
	}
}
