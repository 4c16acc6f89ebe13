package lease

import "sync/atomic"

// A timing is about what a call takes that others wait for. It is safe for concurrent use.
type timing struct {
	trip   atomic.Int64 // in nanoseconds
	lead   atomic.Int64 // how far ahead of the monotonic clock, when it is sent, the store's is when it arrives, in microseconds
	jitter atomic.Int64 // how much that differs
	known  atomic.Bool  // the three
}

// note notes what a call took. Those for which nobody waits may be many, and wait for one another:
// they tell only of less.
func (c *timing) note(trip, lead int64, flight bool) {
	if !c.known.Load() {
		c.trip.Store(trip)
		c.lead.Store(lead)
		c.known.Store(true)
		return
	}
	old, off := c.trip.Load(), lead-c.lead.Load()
	if flight || trip < old {
		c.trip.Store(old + (trip-old)/8)
	}
	switch late := max(off, -off); {
	case late*1000 > max(trip, old): // a clock was set
		c.lead.Store(lead)
	case flight || off < 0:
		c.lead.Store(c.lead.Load() + off/8)
		c.jitter.Store(c.jitter.Load() + (late-c.jitter.Load())/8)
	}
}
