package main

import (
	"fmt"
	"strings"
)

// plotted is the scenario that the picture shows.
const plotted = 2

// plot draws decisions a second, and what they cost the server, as an SVG that
// follows the reader's light or dark scheme.
func (b *bench) plot() string {
	const (
		row, top    = 22, 74
		names       = 290 // where names end and bars begin
		panel, next = 260, 420
	)
	var rows []*contestant
	for _, c := range b.contestants {
		if len(c.found[plotted]) > 0 {
			rows = append(rows, c)
		}
	}
	height := top + row*len(rows) + 16
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Decisions a second and server time of limits in Redis">`,
		names+next+panel+70, height)
	line(`<style>
text { font: 13px system-ui, sans-serif; fill: #444 }
.title { font-size: 15px; font-weight: 600; fill: #111 }
.name { text-anchor: end }
.paper { fill: #fff } .ours { fill: #1d4ed8 } .theirs { fill: #c2410c } .floor { fill: #9aa0a6 }
@media (prefers-color-scheme: dark) {
text { fill: #bbb } .title { fill: #eee }
.paper { fill: #16181d } .ours { fill: #7aa2ff } .theirs { fill: #fb923c } .floor { fill: #6b7078 }
}
</style>`)
	line(`<rect class="paper" width="100%%" height="100%%" rx="6"/>`)
	line(`<text class="title" x="16" y="28">Limits in Redis: %s</text>`, scenarios[plotted].name)
	line(`<text x="%d" y="58">decisions a second: more is better</text>`, names)
	line(`<text x="%d" y="58">server time of each, µs: less is better</text>`, names+next)

	var fastest, dearest float64
	for _, c := range rows {
		f := medians(c.found[plotted])
		fastest, dearest = max(fastest, f.perSecond), max(dearest, f.serverCPU)
	}
	for i, c := range rows {
		f := medians(c.found[plotted])
		class := "theirs"
		switch {
		case strings.HasPrefix(c.name, "headgate"):
			class = "ours"
		case strings.HasPrefix(c.name, "floor"):
			class = "floor"
		}
		y := top + row*i
		line(`<text class="name" x="%d" y="%d">%s</text>`, names-8, y+12, c.name)
		bar := func(x int, value, most float64, label string) {
			width := panel * value / most
			line(`<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, class, x, y, width, row-6)
			line(`<text x="%.1f" y="%d">%s</text>`, float64(x)+width+6, y+12, label)
		}
		bar(names, f.perSecond, fastest, thousands(f.perSecond))
		bar(names+next, f.serverCPU, dearest, significant(f.serverCPU))
	}
	line(`</svg>`)
	return s.String()
}
