package main

import (
	"fmt"
	"math"
	"strings"
)

// plot draws wrong verdicts against the resolution of a sliding window, both on
// logarithmic scales, as an SVG that follows the reader's light or dark scheme.
func plot(results []result) string {
	const (
		width, height            = 760, 470
		left, right, top, bottom = 70, 590, 62, 410
	)
	lo, hi := math.Inf(1), math.Inf(-1)
	share := func(r result, i int) float64 {
		return 100 * float64(r.Tallies[i].wrong()) / float64(r.Requests)
	}
	ps := policies()
	drawn := func(p policy) bool { return p.Resolution > 0 && !p.CountDenied }
	for _, r := range results {
		for i, p := range ps {
			if s := share(r, i); drawn(p) && s > 0 {
				lo, hi = min(lo, math.Floor(math.Log10(s))), max(hi, math.Ceil(math.Log10(s)))
			}
		}
	}
	if lo >= hi { // nothing wrong, or all on one line
		lo, hi = -3, 2
	}
	last := resolutions[len(resolutions)-1]
	x := func(k int64) float64 {
		return left + (right-left)*math.Log(float64(k))/math.Log(float64(last))
	}
	y := func(percent float64) float64 {
		return bottom - (bottom-top)*(math.Log10(percent)-lo)/(hi-lo)
	}

	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Wrong verdicts of a sliding window by its resolution">`, width, height)
	line(`<style>
text { font: 13px system-ui, sans-serif; fill: #444 }
.title { font-size: 15px; font-weight: 600; fill: #111 }
.paper { fill: #fff } .grid { stroke: #e2e2e2 }
.line { fill: none; stroke-width: 2 } .dash { stroke-dasharray: 5 4 } .key { stroke: #444 }
.t0 { stroke: #c2410c } .t1 { stroke: #1d4ed8 } .t2 { stroke: #047857 }
.d0 { fill: #c2410c } .d1 { fill: #1d4ed8 } .d2 { fill: #047857 }
@media (prefers-color-scheme: dark) {
text { fill: #bbb } .title { fill: #eee }
.paper { fill: #16181d } .grid { stroke: #33363d } .key { stroke: #bbb }
.t0 { stroke: #fb923c } .t1 { stroke: #7aa2ff } .t2 { stroke: #34d399 }
.d0 { fill: #fb923c } .d1 { fill: #7aa2ff } .d2 { fill: #34d399 }
}
</style>`)
	line(`<rect class="paper" width="%d" height="%d" rx="6"/>`, width, height)
	line(`<text class="title" x="%d" y="26">Wrong verdicts of a sliding window, %% of all requests</text>`, left)
	line(`<line class="line key" x1="%d" x2="%d" y1="42" y2="42"/><text x="%d" y="46">estimate</text>`, left, left+28, left+34)
	line(`<line class="line key dash" x1="%d" x2="%d" y1="42" y2="42"/><text x="%d" y="46">never over</text>`, left+110, left+138, left+144)

	for e := lo; e <= hi; e++ {
		at := y(math.Pow(10, e))
		line(`<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, left, right, at, at)
		line(`<text x="%d" y="%.1f" text-anchor="end">%g %%</text>`, left-8, at+4, math.Pow(10, e))
	}
	for _, k := range resolutions {
		if k == 12 { // too close to 10 for a label
			continue
		}
		line(`<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, x(k), x(k), top, bottom)
		line(`<text x="%.1f" y="%d" text-anchor="middle">%d</text>`, x(k), bottom+20, k)
	}
	line(`<text x="%d" y="%d" text-anchor="middle">resolution: sub-windows per window, 8 bytes each</text>`, (left+right)/2, bottom+44)

	label := math.Inf(-1) // where the last one stands
	for j, r := range results {
		var end float64
		for _, never := range []bool{false, true} {
			var points []string
			for i, p := range ps {
				if s := share(r, i); drawn(p) && p.NeverOver == never && s > 0 {
					points = append(points, fmt.Sprintf("%.1f,%.1f", x(p.Resolution), y(s)))
					line(`<circle class="d%d" cx="%.1f" cy="%.1f" r="3"/>`, j, x(p.Resolution), y(s))
					if !never {
						end = y(s)
					}
				}
			}
			class := ""
			if never {
				class = " dash"
			}
			line(`<polyline class="line t%d%s" points="%s"/>`, j, class, strings.Join(points, " "))
		}
		if math.Abs(end-label) < 16 {
			end = label + 16
		}
		label = end
		line(`<text class="d%d" x="%d" y="%.1f" style="font-weight:600">%s</text>`, j, right+10, end+4, traffics[j].name)
	}
	line(`</svg>`)
	return b.String()
}
