package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// report returns the medians in Markdown, and of the ratios also the range over the rounds.
func (b *bench) report(version string) string {
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	processors := fmt.Sprintf("%d processors for everything", runtime.NumCPU())
	if b.apart {
		processors = "a processor for Redis and another for the clients"
	}
	line("Redis %s on loopback, %s, %s; medians of %d rounds, in each of which every system was measured for %v, in %d slices; %s keys, all known.",
		version, runtime.Version(), processors, b.rounds, b.duration, b.slices, thousands(float64(b.keys)))
	line("Server and client time is the processor time that Redis and this program used for each decision; commands are those that Redis executed, in scripts too.")
	line("The ratios are to %s in the same round: the median, and the range over the rounds.", reference)
	for i, sc := range scenarios {
		line("\n## %s\n", sc.name)
		line("| system | decisions/s | ratio | p50 µs | p99 µs | server µs | ratio | client µs | commands | allocations |")
		line("|---%s|", strings.Repeat("|--:", 9))
		base := b.found(i, reference)
		for _, c := range b.contestants {
			if len(c.found[i]) == 0 {
				continue
			}
			f := medians(c.found[i])
			line("| %s%s | %s | %s | %s | %s | %s | %s | %s | %s | %.1f |", c.name, c.faults(f),
				thousands(f.perSecond), ratios(c.found[i], base, func(f figures) float64 { return f.perSecond }),
				significant(f.p50), significant(f.p99),
				significant(f.serverCPU), ratios(c.found[i], base, func(f figures) float64 { return f.serverCPU }),
				significant(f.clientCPU), significant(f.commands), f.allocs)
		}
	}
	return s.String()
}

// ratios returns the median ratio of a figure to that of the reference in the same round, and the
// range over the rounds.
func ratios(of, base []figures, get func(figures) float64) string {
	var all []float64
	for round := range min(len(of), len(base)) {
		if x := get(base[round]); x > 0 {
			all = append(all, get(of[round])/x)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	n := len(all)
	median := significant((all[(n-1)/2]+all[n/2])/2) + " x"
	if least, most := significant(all[0]), significant(all[n-1]); least != most {
		median += " (" + least + "–" + most + ")"
	}
	return median
}

// faults reports errors and wrong decisions.
func (c *contestant) faults(f figures) string {
	var s string
	if f.errors > 0 {
		s += fmt.Sprintf(" (errors: %.2g %%)", 100*f.errors)
	}
	if f.wrong > 0 && c.name != counter {
		s += fmt.Sprintf(" (wrong: %.2g %%)", 100*f.wrong)
	}
	return s
}

// found returns what was measured of a system in a scenario, by round.
func (b *bench) found(scenario int, name string) []figures {
	for _, c := range b.contestants {
		if c.name == name {
			return c.found[scenario]
		}
	}
	return nil
}

// thousands formats a whole number with separators.
func thousands(x float64) string {
	s := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// significant formats with about three digits.
func significant(x float64) string {
	switch {
	case x >= 1000:
		return thousands(x)
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	default:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
}
