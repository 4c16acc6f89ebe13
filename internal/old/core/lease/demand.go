package lease

import (
	"time"

	"github.com/headgate/headgate/internal/old/core/step"
)

// A demand counts the units that a key is asked for, in spans of one length: those of the
// current span, and of the one before.
type demand struct {
	start    int64 // of the current span, in monotonic nanoseconds
	now, old int64
	began    int64 // when it was first asked for, of late
}

// add counts n units.
func (d *demand) add(at, span, n int64) {
	if passed := at - d.start; passed >= span {
		d.old = 0
		if passed < 2*span {
			d.old = d.now
		} else {
			d.began = at
		}
		d.start, d.now = at-passed%span, 0
	}
	d.now = min(d.now+n, step.MaxInt)
}

// take takes n units back that were counted in vain.
func (d *demand) take(n int64) { d.now = max(d.now-n, 0) }

// count returns about how many there were in the last span.
func (d *demand) count(at, span int64) float64 {
	now, old, passed := d.now, d.old, at-d.start
	if passed >= span {
		now, old, passed = 0, now, passed-span
	}
	return float64(now) + float64(old)*max(1-float64(passed)/float64(span), 0)
}

// units returns about how many there are in a span. Of a long span, the first second tells.
func (d *demand) units(at, span int64) float64 {
	seen := max(at-d.began, int64(time.Second))
	return d.count(at, span) * max(float64(span)/float64(seen), 1)
}

// idle reports whether nothing was asked for in the last span.
func (d *demand) idle(at, span int64) bool { return at-d.start >= 2*span }
