package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/step"
)

func number(k int64) string { return strconv.FormatInt(k, 10) }

// percent formats a part of a whole with two significant digits.
func percent(part, whole int64) string {
	if part == 0 || whole == 0 {
		return "0"
	}
	p := 100 * float64(part) / float64(whole)
	digits := max(0, 1-int(math.Floor(math.Log10(p))))
	return strconv.FormatFloat(p, 'f', digits, 64)
}

// times formats a number of admitted requests as a multiple of the limit.
func times(n int) string { return fmt.Sprintf("%.2f x", float64(n)/limit) }

// bytes returns the size of a policy's state for a key.
func bytes(p policy) string {
	made, err := step.New("study", "study", p.Numbers)
	if err != nil {
		panic(err)
	}
	first, longest := made.Lengths()
	if first == longest {
		return number(8 * first)
	}
	return fmt.Sprintf("%d to %d", 8*first, 8*longest)
}

// millions formats a large number.
func millions(n int64) string {
	if n < 1e6 {
		return number(n)
	}
	return fmt.Sprintf("%.1f million", float64(n)/1e6)
}

// report returns the study in Markdown.
func report(results []result, requests, sources int, seed uint64) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	header := func(columns ...string) {
		line("| %s |", strings.Join(columns, " | "))
		line("|---%s|", strings.Repeat("|--:", len(columns)-1))
	}
	ps := policies()

	line("About %s requests in each traffic, %d sources, seed %d; a limit of %d per %d s.", millions(int64(requests)), sources, seed, limit, period/1_000_000)
	line("A verdict is wrong if an exact limiter, asked the same questions, answers otherwise. Percentages are of all requests.")
	line("A promise is kept if at most %d requests were admitted in the period that ends with each.", limit)
	line("The number behind a sliding window is its resolution.")
	line("")
	header("traffic", "requests", "from sources", "within", "from sources over the limit", "refused by an exact limiter")
	for i, r := range results {
		line("| %s | %s | %d | %s | %.2g %% | %s %% |", traffics[i].name, millions(r.Requests), r.Sources,
			span(r.Periods*period/60e6), 100*r.ByOver, percent(r.Refused, r.Requests))
	}

	line("\n## Wrong verdicts, and the fullest window\n")
	columns := []string{"policy"}
	for _, t := range traffics {
		columns = append(columns, t.name)
	}
	header(append(columns, "fullest window", "bytes per key")...)
	for i, p := range ps {
		if p.CountDenied {
			continue
		}
		cells, fullest := []string{p.name}, 0
		for _, r := range results {
			cells = append(cells, percent(r.Tallies[i].wrong(), r.Requests)+" %")
			fullest = max(fullest, r.Tallies[i].fullest())
		}
		line("| %s |", strings.Join(append(cells, times(fullest), bytes(p)), " | "))
	}

	for j, r := range results {
		line("\n## In detail: %s\n", traffics[j].name)
		header("policy", "wrongly admitted", "wrongly refused", "over its own promise", "under it", "admits, of the exact", "fullest window", "of the median source")
		for i, p := range ps {
			if p.CountDenied {
				continue
			}
			t := &r.Tallies[i]
			line("| %s | %s %% | %s %% | %s %% | %s %% | %.2f %% | %s | %s |", p.name,
				percent(t.WronglyAdmitted, r.Requests), percent(t.WronglyRefused, r.Requests),
				percent(t.Over, r.Requests), percent(t.Under, r.Requests),
				100*float64(t.Admitted)/float64(r.Requests-r.Refused), times(t.fullest()), times(t.typical()))
		}
	}

	line("\n## When refused attempts count too\n")
	header("traffic", "policy", "wrongly admitted", "wrongly refused", "wrong")
	for j, r := range results {
		for i, p := range ps {
			if !p.CountDenied {
				continue
			}
			t := &r.Tallies[i]
			line("| %s | %s | %s %% | %s %% | %s %% |", traffics[j].name, p.name,
				percent(t.WronglyAdmitted, r.Requests), percent(t.WronglyRefused, r.Requests), percent(t.wrong(), r.Requests))
		}
	}
	return b.String()
}

// span formats minutes.
func span(minutes float64) string {
	switch {
	case minutes < 120:
		return fmt.Sprintf("%.0f minutes", minutes)
	case minutes < 48*60:
		return fmt.Sprintf("%.0f hours", minutes/60)
	default:
		return fmt.Sprintf("%.0f days", minutes/60/24)
	}
}
