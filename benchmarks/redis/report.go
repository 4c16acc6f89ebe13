package main

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
)

// report returns the medians in Markdown.
func (b *bench) report(version string) string {
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line("Redis %s on loopback, %s, %d processors for everything; medians of %d measurements of %v each; %s keys, all known.",
		version, runtime.Version(), runtime.NumCPU(), b.rounds, b.duration, thousands(float64(b.keys)))
	line("Server time is what Redis used for each decision; commands are those that it executed, in scripts too.")
	line("The ratios are to %s.", reference)
	for i, sc := range scenarios {
		line("\n## %s\n", sc.name)
		line("| system | decisions/s | ratio | p50 µs | p99 µs | server µs | ratio | commands | allocations |")
		line("|---%s|", strings.Repeat("|--:", 8))
		base, compared := b.medians(i, reference)
		ratio := func(x, of float64) string {
			if !compared || of == 0 {
				return ""
			}
			return significant(x/of) + " x"
		}
		for _, c := range b.contestants {
			if len(c.found[i]) == 0 {
				continue
			}
			f := medians(c.found[i])
			line("| %s%s | %s | %s | %s | %s | %s | %s | %s | %.1f |", c.name, c.faults(f),
				thousands(f.perSecond), ratio(f.perSecond, base.perSecond),
				significant(f.p50), significant(f.p99),
				significant(f.serverCPU), ratio(f.serverCPU, base.serverCPU),
				significant(f.commands), f.allocs)
		}
	}
	return s.String()
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

// medians returns those of a system in a scenario, if it was measured.
func (b *bench) medians(scenario int, name string) (figures, bool) {
	for _, c := range b.contestants {
		if c.name == name && len(c.found[scenario]) > 0 {
			return medians(c.found[scenario]), true
		}
	}
	return figures{}, false
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
