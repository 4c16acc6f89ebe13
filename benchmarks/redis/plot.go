package main

import (
	"fmt"
	"math"
	"strings"
)

// plotted is the scenario that the picture shows.
const plotted = 2

// A chart is two rows of bars beside each other, with a name for each pair.
type chart struct {
	title, label string
	panels       [2]string // what they show
	logarithmic  bool      // one step of the scale is ten times more
	bars         []bar
}

type bar struct {
	name   string
	class  string // ours, theirs or floor
	values [2]float64
	labels [2]string
}

// classOf says whose a system is.
func classOf(name string) string {
	switch {
	case strings.HasPrefix(name, "headgate"):
		return "ours"
	case strings.HasPrefix(name, "floor"):
		return "floor"
	}
	return "theirs"
}

// plot draws decisions a second, and what they cost the server.
func (b *bench) plot() string {
	c := chart{
		title:  "Limits in Redis: " + scenarios[plotted].name,
		label:  "Decisions a second and server time of limits in Redis",
		panels: [2]string{"decisions a second: more is better", "server time of each, µs: less is better"},
	}
	for _, s := range b.contestants {
		if len(s.found[plotted]) > 0 {
			f := medians(s.found[plotted])
			c.bars = append(c.bars, bar{
				s.name, classOf(s.name),
				[2]float64{f.perSecond, f.serverCPU}, [2]string{thousands(f.perSecond), significant(f.serverCPU)},
			})
		}
	}
	return c.draw()
}

// plotHot draws the same for a hot key that processes share.
func plotHot(lines []line) string {
	c := chart{
		title:       "One hot key in Redis, shared by processes, 32 goroutines each",
		label:       "Decisions a second and server time of a hot key in Redis",
		panels:      [2]string{"decisions a second: more is better", "server time of each, µs: less is better"},
		logarithmic: true,
	}
	for _, l := range lines {
		if l.load != notReached {
			continue
		}
		name := fmt.Sprintf("%s, %d processes", l.system, l.processes)
		if l.processes == 1 {
			name = l.system + ", 1 process"
		}
		c.bars = append(c.bars, bar{
			name, classOf(name),
			[2]float64{l.decisions, l.cpu}, [2]string{thousands(l.decisions), fmt.Sprintf("%.2g", l.cpu)},
		})
	}
	return c.draw()
}

// draw returns an SVG that follows the reader's light or dark scheme.
func (c chart) draw() string {
	const (
		row, top    = 22, 74
		names       = 290 // where names end and bars begin
		panel, next = 260, 420
	)
	height := top + row*len(c.bars) + 16
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`,
		names+next+panel+70, height, c.label)
	line(`<style>
text { font: 13px system-ui, sans-serif; fill: #444 }
.title { font-size: 15px; font-weight: 600; fill: #111 }
.name { text-anchor: end }
.paper { fill: #fff } .ours { fill: #1d4ed8 } .theirs { fill: #c2410c } .floor { fill: #9aa0a6 } .grid { stroke: #ddd }
@media (prefers-color-scheme: dark) {
text { fill: #bbb } .title { fill: #eee }
.paper { fill: #16181d } .ours { fill: #7aa2ff } .theirs { fill: #fb923c } .floor { fill: #6b7078 } .grid { stroke: #333 }
}
</style>`)
	line(`<rect class="paper" width="100%%" height="100%%" rx="6"/>`)
	line(`<text class="title" x="16" y="28">%s</text>`, c.title)
	for p, what := range c.panels {
		x := float64(names + p*next)
		least, most := math.Inf(1), 0.0
		for _, b := range c.bars {
			least, most = min(least, b.values[p]), max(most, b.values[p])
		}
		width := func(value float64) float64 { return panel * value / most }
		if c.logarithmic {
			what += ", each line ten times"
			first := math.Floor(math.Log10(max(least, 1e-6)) - 0.01)
			span := math.Log10(most) - first
			width = func(value float64) float64 { return panel * max(math.Log10(max(value, 1e-6))-first, 0) / span }
			for e := first + 1; e <= math.Log10(most); e++ {
				at := x + width(math.Pow(10, e))
				line(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, at, top-6, at, height-12)
			}
		}
		line(`<text x="%.0f" y="58">%s</text>`, x, what)
		for i, b := range c.bars {
			y := top + row*i
			if p == 0 {
				line(`<text class="name" x="%d" y="%d">%s</text>`, names-8, y+12, b.name)
			}
			w := width(b.values[p])
			line(`<rect class="%s" x="%.0f" y="%d" width="%.1f" height="%d" rx="2"/>`, b.class, x, y, w, row-6)
			line(`<text x="%.1f" y="%d">%s</text>`, x+w+6, y+12, b.labels[p])
		}
	}
	line(`</svg>`)
	return s.String()
}
