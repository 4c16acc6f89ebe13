package step

// A log stores the instant of every unit that still counts, so it admits at most the limit in any half-open
// window of one period, to the microsecond.
//
// The state is a ring, oldest first: [end, first, count, ring ...]. A charge of n units writes n entries. The ring grows
// as the key fills, to at most MaxLog: plans with other limits share it.
const (
	logEnd   = iota // one period after the latest instant of any charge, including one given back
	logFirst        // index in the ring of the oldest entry
	logCount        // entries
	logRing         // where the ring begins

	logStart = 4 // entries of a new ring
)

// entry returns the i-th oldest instant.
func entry(s []int64, i int64) int64 {
	ring := s[logRing:]
	if i += s[logFirst]; i >= int64(len(ring)) {
		i -= int64(len(ring))
	}
	return ring[i]
}

// drop removes the n oldest entries.
func drop(s []int64, n int64) {
	s[logCount] -= n
	s[logFirst] += n
	if ring := int64(len(s) - logRing); s[logFirst] >= ring {
		s[logFirst] -= ring
	}
}

// expire removes the entries that have expired. It gallops from the old end, then bisects: usually few have. At most
// 2 log2(count) entries are read.
func (p *Policy) expire(s []int64, now int64) {
	count, cut := s[logCount], max(now-p.Period, s[logEnd]-2*p.Period) // expired: at or before
	if count == 0 || entry(s, 0) > cut {
		return
	}
	probe := int64(1)
	for probe < count && entry(s, probe) <= cut {
		probe *= 2
	}
	lo, hi := probe/2, min(probe, count)
	for hi-lo > 1 {
		if mid := lo + (hi-lo)/2; entry(s, mid) <= cut {
			lo = mid
		} else {
			hi = mid
		}
	}
	drop(s, hi)
}

// grow returns a state whose ring has room for n more units, if they fit or are to be counted anyway. A ring that is too
// small is at least doubled, as far as the limit needs it.
func (p *Policy) grow(s []int64, now, n int64, anyway bool) []int64 {
	size, want := int64(len(s)-logRing), s[logCount]+n
	if want <= size || size == MaxLog {
		return s
	}
	p.expire(s, now)
	most := p.limit
	if anyway {
		most = MaxLog
	}
	if want = s[logCount] + n; want > most && anyway {
		want = most
	}
	if want <= size || want > most {
		return s
	}
	grown := make([]int64, logRing+max(want, min(2*size, p.limit)))
	copy(grown, s[:logRing])
	grown[logFirst] = 0
	for i := range s[logCount] {
		grown[logRing+i] = entry(s, i)
	}
	return grown
}

// push adds n units, for which there is room. If they do not fit they push out the oldest entries, since only the newest
// decide.
func (p *Policy) push(s []int64, now, n int64) {
	p.expire(s, now)
	ring := s[logRing:]
	kept := min(n, int64(len(ring)))
	drop(s, max(s[logCount]+kept-int64(len(ring)), 0))
	s[logEnd] = max(now+p.Period, s[logEnd])
	at := s[logFirst] + s[logCount]
	for range kept {
		if at >= int64(len(ring)) {
			at -= int64(len(ring))
		}
		ring[at] = s[logEnd] - p.Period
		at++
	}
	s[logCount] += kept
}

// settleLog counts n more units than were charged at an instant, or gives back -n of them.
func (p *Policy) settleLog(s []int64, now, at, n int64) {
	if n > 0 {
		p.push(s, now, n)
	} else {
		p.unlog(s, now, at, -n)
	}
}

// unlog frees the oldest units, not those of the charge. The entries that stay are newer than those really used, so the
// key can only be refused longer.
func (p *Policy) unlog(s []int64, now, at, n int64) {
	p.expire(s, now)
	if max(now, s[logEnd]-p.Period)-at < p.Period {
		drop(s, min(n, s[logCount]))
	}
}

func (p *Policy) takeLog(s []int64, now, n int64, charge bool, c *Cell) bool {
	p.expire(s, now)
	fits := s[logCount]+n <= p.limit
	if fits && charge {
		p.push(s, now, n)
	}
	live, r := s[logCount], &c.Reading
	c.Shortfall, r.Remaining, r.NextAfter, r.ResetAfter, r.RetryAfter = 0, max(p.limit-live, 0), 0, 0, 0
	if live > 0 {
		r.NextAfter = entry(s, max(live-p.limit, 0)) + p.Period - now
		r.ResetAfter = entry(s, live-1) + p.Period - now
	}
	if !fits {
		c.Shortfall, r.RetryAfter = 1, entry(s, live+n-p.limit-1)+p.Period-now
	}
	return fits
}
