// Package turns measures things in turn, in slices of a fraction of a millisecond. So what a
// machine does beside slows all of them down alike, and their ratios hold when their times do
// not.
package turns

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A Subject is measured in turn with others.
type Subject struct {
	Name string

	// Slice does some operations, and returns how long each took, or took more than what it
	// is compared with, in nanoseconds.
	Slice func() float64

	Allocations float64 // of an operation, for the report
	Rival       bool    // the fastest of these is what the others are compared with
}

// A Round has the median of each subject's slices.
type Round []float64

// Measure measures rounds of so many slices of each subject.
func Measure(subjects []Subject, rounds, slices int) []Round {
	all := make([]Round, rounds)
	for i := range all {
		all[i] = round(subjects, slices)
	}
	return all
}

func round(subjects []Subject, n int) Round {
	took := make([][]float64, len(subjects))
	runtime.GC()
	for i := range n {
		for j := range subjects { // each time with another one first
			j = (i + j) % len(subjects)
			took[j] = append(took[j], subjects[j].Slice())
		}
	}
	r := make(Round, len(subjects))
	for j := range took {
		r[j] = Median(took[j])
	}
	return r
}

// Median returns the median.
func Median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// Report returns a table. For each subject it has the median of the rounds, their range, and the
// ratio to the best rival in the same round.
func Report(title string, subjects []Subject, rounds []Round) string {
	var text strings.Builder
	best := make([]float64, len(rounds))
	name := ""
	for i, r := range rounds {
		for j, s := range subjects {
			if s.Rival && (best[i] == 0 || r[j] < best[i]) {
				best[i], name = r[j], s.Name
			}
		}
	}
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("\n## %s\n", title)
	line("| system | ns | range | of the best rival (%s) | range | allocations |", name)
	line("|---%s|", strings.Repeat("|--:", 5))
	for j, s := range subjects {
		var ns, ratio []float64
		for i, r := range rounds {
			ns = append(ns, r[j])
			if best[i] > 0 {
				ratio = append(ratio, r[j]/best[i])
			}
		}
		row := fmt.Sprintf("| %s | %.0f | %.0f to %.0f |", s.Name, Median(ns), slices.Min(ns), slices.Max(ns))
		if len(ratio) > 0 {
			row += fmt.Sprintf(" %.2f | %.2f to %.2f |", Median(ratio), slices.Min(ratio), slices.Max(ratio))
		} else {
			row += " | |"
		}
		line("%s %.0f |", row, s.Allocations)
	}
	return text.String()
}

// Since returns the nanoseconds of each of n operations since start.
func Since(start time.Time, n int) float64 { return float64(time.Since(start)) / float64(n) }
