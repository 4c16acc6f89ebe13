// Package pictures draws the pictures of the documents from real decisions:
//
//	go test ./internal/pictures -update
package pictures

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

var update = flag.Bool("update", false, "draw the pictures anew")

const (
	events = 10
	period = 10 * time.Second
	shown  = 4 * period
)

// A lane is a policy, and the requests that it admitted and refused.
type lane struct {
	name              string
	policy            core.Policy
	admitted, refused []time.Duration
}

// requests are one each two seconds, and two bursts: at 9 s of 20 within a second, and at 32 s of 10 at once.
func requests() (at []time.Duration) {
	for t := time.Duration(0); t < shown; t += 100 * time.Millisecond {
		switch {
		case t >= 9*time.Second && t < 11*time.Second:
			at = append(at, t)
		case t == 32*time.Second:
			at = append(at, t, t, t, t, t, t, t, t, t, t)
		case t%(2*time.Second) == 0:
			at = append(at, t)
		}
	}
	return at
}

// The picture of a burst under four policies shows what they decide.
func TestBurst(t *testing.T) {
	lanes := []*lane{
		{name: "FixedWindow", policy: core.FixedWindow(events, period)},
		{name: "SlidingWindow", policy: core.SlidingWindow(events, period)},
		{name: "SlidingLog", policy: core.SlidingLog(events, period)},
		{name: "TokenBucket", policy: core.TokenBucket(events, period)},
	}
	synctest.Test(t, func(t *testing.T) {
		store, start := new(core.MemoryStore), time.Now()
		for _, at := range requests() {
			time.Sleep(time.Until(start.Add(at)))
			for _, l := range lanes {
				d, err := core.NewLimiter(store, l.name, l.policy).Allow(t.Context(), "key")
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					l.admitted = append(l.admitted, at)
				} else {
					l.refused = append(l.refused, at)
				}
			}
		}
	})
	const file = "../../docs/images/burst.svg"
	got := draw(lanes)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got {
		t.Errorf("%s differs: draw it with -update (%v)", file, err)
	}
}

// most returns the most requests that were admitted within a period.
func most(at []time.Duration) (n int) {
	for i := range at {
		for j := i; j < len(at) && at[j]-at[i] < period; j++ {
			n = max(n, j-i+1)
		}
	}
	return n
}

// draw returns an SVG that follows the reader's light or dark scheme.
func draw(lanes []*lane) string {
	const left, top, width, height, row = 130, 70, 640, 340, 60
	var s strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	x := func(at time.Duration) float64 { return left + width*at.Seconds()/shown.Seconds() }

	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="A burst under four policies">`, left+width+170, height)
	line(`<style>
text { font: 13px system-ui, sans-serif; fill: #444 }
.title { font-size: 15px; font-weight: 600; fill: #111 }
.name { text-anchor: end } .at { text-anchor: middle }
.paper { fill: #fff } .admitted { stroke: #1d4ed8 } .refused { stroke: #c2410c } .grid { stroke: #ddd }
@media (prefers-color-scheme: dark) {
text { fill: #bbb } .title { fill: #eee }
.paper { fill: #16181d } .admitted { stroke: #7aa2ff } .refused { stroke: #fb923c } .grid { stroke: #333 }
}
line { stroke-width: 2 } .grid { stroke-width: 1 }
</style>`)
	line(`<rect class="paper" width="100%%" height="100%%" rx="6"/>`)
	line(`<text class="title" x="16" y="28">10 requests in 10 seconds, under four policies</text>`)
	line(`<text x="16" y="48">Up: admitted. Down: refused. The client sends a request every 2 s, 10 a second from 9 s to 11 s, and 10 at once at 32 s.</text>`)
	for at := time.Duration(0); at <= shown; at += period {
		line(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x(at), top, x(at), top+row*len(lanes)-4)
		line(`<text class="at" x="%.1f" y="%d">%g s</text>`, x(at), top+row*len(lanes)+16, at.Seconds())
	}
	for i, l := range lanes {
		middle := top + row*i + 30
		line(`<text class="name" x="%d" y="%d">%s</text>`, left-12, middle+4, l.name)
		line(`<text x="%d" y="%d">at most %d in any 10 s</text>`, left+width+14, middle+4, most(l.admitted))
		bars := func(class string, ats []time.Duration, step int) {
			for j, k := 0, 0; j < len(ats); j++ {
				if k++; j+1 < len(ats) && ats[j+1] == ats[j] {
					continue
				}
				line(`<line class="%s" x1="%.1f" y1="%d" x2="%.1f" y2="%.1f"/>`, class, x(ats[j]), middle, x(ats[j]), float64(middle)+float64(step)*(10+1.6*float64(k-1)))
				k = 0
			}
		}
		bars("admitted", l.admitted, -1)
		bars("refused", l.refused, 1)
	}
	line(`</svg>`)
	return s.String()
}
