package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Figures are the results of one measurement, or the medians of several. Times are in
// microseconds.
type figures struct {
	requests  float64
	perSecond float64
	p50, p99  float64
	cpu       float64 // of the server, for each request
}

// study measures all servers in turn, as often as there are rounds, so that what changes
// over time affects all of them.
func study(ctx context.Context, c config) (all []*contestant, err error) {
	all = slices.DeleteFunc(contestants(), func(x *contestant) bool { return !c.run.MatchString(x.name) })
	for _, x := range all {
		defer func() { err = errors.Join(err, x.stop()) }()
		if err := x.start(ctx); err != nil {
			return nil, err
		}
	}
	for round := range c.rounds + 1 { // the first warms up, and does not count
		for i, x := range all {
			left := time.Duration((c.rounds-round+1)*len(all)-i) * c.duration
			fmt.Fprintf(os.Stderr, "\r\x1b[Kround %d of %d, %s; %v left", round, c.rounds, x.name, left)
			before := x.server.cpu()
			f, err := c.load.run(ctx, x.server.url, c.connections, c.duration)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			f.cpu = float64((x.server.cpu() - before).Microseconds()) / f.requests
			if round > 0 {
				x.found = append(x.found, f)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	return all, nil
}

func (c *contestant) median(of func(figures) float64) float64 {
	var all []float64
	for _, f := range c.found {
		all = append(all, of(f))
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

// report returns the medians in Markdown.
func report(c config, found []*contestant) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s with %d connections on loopback, %s, %d processors, of which a server has one; medians of %d measurements of %v.\n\n",
		c.load.name, c.connections, runtime.Version(), runtime.NumCPU(), c.rounds, c.duration)
	fmt.Fprintln(&s, "| server | requests/s | of no limit | p50 µs | p99 µs | CPU µs/request | added |")
	fmt.Fprintln(&s, "|---|--:|--:|--:|--:|--:|--:|")
	var bare *contestant
	for _, x := range found {
		rate, cpu := func(f figures) float64 { return f.perSecond }, func(f figures) float64 { return f.cpu }
		share, added := "", ""
		if x.system == "" {
			bare = x
		} else if bare != nil && bare.framework == x.framework {
			share = fmt.Sprintf("%.1f %%", 100*x.median(rate)/bare.median(rate))
			added = fmt.Sprintf("%+.2f", x.median(cpu)-bare.median(cpu))
		}
		fmt.Fprintf(&s, "| %s | %.0f | %s | %.0f | %.0f | %.2f | %s |\n", x.name, x.median(rate), share,
			x.median(func(f figures) float64 { return f.p50 }), x.median(func(f figures) float64 { return f.p99 }),
			x.median(cpu), added)
	}
	return s.String()
}
