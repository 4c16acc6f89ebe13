package lease

import "time"

// An instant is read from both clocks of this machine, in nanoseconds. The monotonic one
// may stand still while the machine is suspended, the other may be set.
type instant struct{ mono, wall int64 }

// clock returns a function that reads both clocks at once.
func clock() func() instant {
	start := time.Now()
	return func() instant {
		now := time.Now()
		return instant{int64(now.Sub(start)), now.UnixNano()}
	}
}

func (t instant) add(ns int64) instant { return instant{t.mono + ns, t.wall + ns} }

// before reports whether both clocks say so.
func (t instant) before(u instant) bool { return t.mono < u.mono && t.wall < u.wall }

// later returns the later time of each clock.
func (t instant) later(u instant) instant {
	return instant{max(t.mono, u.mono), max(t.wall, u.wall)}
}

// earlier returns the earlier time of each clock.
func (t instant) earlier(u instant) instant {
	return instant{min(t.mono, u.mono), min(t.wall, u.wall)}
}

// life returns for how long a lease may be used, in nanoseconds from before it was sent for,
// if the store counts it for that many microseconds from its instant on. The store's
// instant is rounded down, and one clock may be slow, and the other fast, by 500 ppm.
func life(span int64) int64 {
	ns := (span - 1) * 1000
	return ns - ns/1000 - 1
}
