package step

// A log stores the instant of every unit that still counts, so it admits at most the limit in any half-open
// window of one period, to the microsecond.
//
// The state is a ring, oldest first: [end, first, count, ring ...]. A charge of n units writes n entries. The ring
// grows as the key fills, to at most MaxLog: plans with other limits share it. With three instants a, b and c,
// the oldest first, a ring of six may be
//
//	[end, 4, 3, c, -, -, -, a, b]
const (
	logEnd   = iota // one period after the latest instant of any charge, including one given back
	logFirst        // index in the ring of the oldest entry
	logCount        // entries
	logRing         // where the ring begins

	logStart = 4 // entries of a new ring
)

// entry returns the i-th oldest instant.
func entry(state []int64, i int64) int64 {
	ring := state[logRing:]
	i += state[logFirst]
	if i >= int64(len(ring)) {
		i -= int64(len(ring))
	}
	return ring[i]
}

// drop removes the n oldest entries.
func drop(state []int64, n int64) {
	state[logCount] -= n
	state[logFirst] += n
	size := int64(len(state) - logRing)
	if state[logFirst] >= size {
		state[logFirst] -= size
	}
}

// expire removes the entries that have expired. It gallops from the old end, then bisects: usually few have. At most
// 2 log2(count) entries are read.
func (p *Policy) expire(state []int64, now int64) {
	count := state[logCount]
	cut := max(now-p.Period, state[logEnd]-2*p.Period) // expired: at or before
	if count == 0 || entry(state, 0) > cut {
		return
	}
	// Gallop: the entry at half of the probe has expired, and that at the probe has not, if there is one.
	probe := int64(1)
	for probe < count && entry(state, probe) <= cut {
		probe *= 2
	}
	// Bisect between them.
	expired := probe / 2
	stays := min(probe, count)
	for stays-expired > 1 {
		middle := expired + (stays-expired)/2
		if entry(state, middle) <= cut {
			expired = middle
		} else {
			stays = middle
		}
	}
	drop(state, stays)
}

// longer returns the length of a state whose ring has room for n more units, if they fit or are to be counted anyway:
// its own, or that of a ring that is at least doubled, as far as the limit needs it.
func (p *Policy) longer(state []int64, now, n int64, anyway bool) int64 {
	length := int64(len(state))
	size := length - logRing
	if state[logCount]+n <= size || size == MaxLog {
		return length
	}
	// The ring is full. Perhaps only with what has expired.
	p.expire(state, now)
	want := state[logCount] + n
	most := p.capacity
	if anyway {
		most = MaxLog
		want = min(want, most)
	}
	if want <= size || want > most {
		return length
	}
	return logRing + max(want, min(2*size, p.capacity))
}

// Grow copies a state to a longer one. The entries are copied in their order, so the new ring begins with the oldest.
func Grow(longer, state []int64) {
	copy(longer, state[:logRing])
	longer[logFirst] = 0
	for i := range state[logCount] {
		longer[logRing+i] = entry(state, i)
	}
}

// push adds n units to a state of which has expired what has, and in which there is room. If they do not fit they push
// out the oldest entries, since only the newest decide.
func (p *Policy) push(state []int64, now, n int64) {
	ring := state[logRing:]
	size := int64(len(ring))
	added := min(n, size)
	drop(state, max(state[logCount]+added-size, 0))
	// If the clock has gone back, the units are as of the latest charge: entries stay in order.
	state[logEnd] = max(now+p.Period, state[logEnd])
	instant := state[logEnd] - p.Period
	index := state[logFirst] + state[logCount]
	for range added {
		if index >= size {
			index -= size
		}
		ring[index] = instant
		index++
	}
	state[logCount] += added
}

// takeLog is Take of a log. For units that fit, the ring has room: see longer.
func (p *Policy) takeLog(state []int64, now, n int64, charge bool, cell *Cell) bool {
	p.expire(state, now)
	fits := state[logCount]+n <= p.capacity
	if fits && charge {
		p.push(state, now, n)
	}
	// If more count than fit, under a smaller plan, the oldest of those within the limit is the next to make room.
	count := state[logCount]
	cell.Shortfall = 0
	cell.Reading = Reading{Remaining: max(p.capacity-count, 0)}
	if count > 0 {
		cell.NextAfter = entry(state, max(count-p.capacity, 0)) + p.Period - now
		cell.ResetAfter = entry(state, count-1) + p.Period - now
	}
	if !fits {
		cell.Shortfall = 1
		cell.RetryAfter = entry(state, count+n-p.capacity-1) + p.Period - now
	}
	return fits
}

// settleLog counts n more units than were charged at an instant, or gives back -n of them.
func (p *Policy) settleLog(state []int64, now, chargedAt, n int64) {
	if n > 0 {
		p.push(state, now, n)
	} else {
		p.refundLog(state, now, chargedAt, -n)
	}
}

// refundLog frees the oldest units, not those of the charge. The entries that stay are newer than those really used, so
// the key can only be refused longer.
func (p *Policy) refundLog(state []int64, now, chargedAt, n int64) {
	p.expire(state, now)
	latest := max(now, state[logEnd]-p.Period)
	if latest-chargedAt < p.Period {
		drop(state, min(n, state[logCount]))
	}
}
