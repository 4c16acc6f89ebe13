package step

// slidingLog stores the instant of every unit that still counts, so it admits at most
// Limit units in any half-open window of one Period, to the microsecond.
//
// Its state is a ring, oldest first: [first, count, newest, over, ring ...]. Whether c units
// fit depends on a single entry, the one that must have expired; a charge writes c
// entries. The ring grows as the key fills, to at most Limit entries of a word each.
type slidingLog struct{ numbers Numbers }

const (
	logFirst  = iota // index in the ring of the oldest entry
	logCount         // entries
	logNewest        // latest instant of any charge, including one that was given back
	logOver          // units that were counted and are not in the ring; none are newer than its oldest
	logRing          // where the ring begins

	logStart = 4 // entries of a new ring
)

func (l *slidingLog) Numbers() Numbers   { return l.numbers }
func (l *slidingLog) CountsDenied() bool { return l.numbers.CountDenied }
func (l *slidingLog) Max() int64         { return l.numbers.Limit }
func (l *slidingLog) Words() int         { return logRing + int(min(l.numbers.Limit, logStart)) }
func (l *slidingLog) MaxWords() int      { return logRing + int(l.numbers.Limit) }

// entry returns the i-th oldest instant.
func entry(s []int64, i int64) int64 {
	ring := s[logRing:]
	i += s[logFirst]
	if i >= int64(len(ring)) {
		i -= int64(len(ring))
	}
	return ring[i]
}

// split returns how many of the oldest entries have expired, and how many count.
func (l *slidingLog) split(s []int64, now int64) (dead, live int64) {
	if len(s) == 0 || s[logCount] == 0 {
		return 0, 0
	}
	count := s[logCount]
	cut := max(now, s[logNewest]) - l.numbers.Period // expired: at or before
	if entry(s, 0) > cut {
		return 0, count
	}
	// Gallop from the old end, then bisect: usually few entries have expired. If it is one
	// or two, sort.Search over all of a long log takes 2 to 5 times as long even when the
	// log is in the cache. At most 2 log2(count) entries are read.
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
	return hi, count - hi
}

func (l *slidingLog) Admits(s []int64, now, n int64) bool {
	if n > l.numbers.Limit {
		return false
	}
	if len(s) == 0 {
		return true
	}
	over := s[logCount] + n - l.numbers.Limit // entries that must have expired
	if over <= 0 {
		return true
	}
	return max(now, s[logNewest])-entry(s, over-1) >= l.numbers.Period
}

func (l *slidingLog) Charge(s []int64, now, n int64) []int64 {
	dead, live := l.split(s, now)
	drop(s, dead)
	s[logOver] = 0 // or nothing would be admitted
	return l.push(s, now, live, n)
}

// push appends n entries to the live ones; there are no others.
func (l *slidingLog) push(s []int64, now, live, n int64) []int64 {
	s = l.grow(s, live+n)
	s[logNewest] = max(now, s[logNewest])
	ring := s[logRing:]
	at := s[logFirst] + live
	for range n {
		if at >= int64(len(ring)) {
			at -= int64(len(ring))
		}
		ring[at] = s[logNewest]
		at++
	}
	s[logCount] = live + n
	return s
}

// drop removes the n oldest entries.
func drop(s []int64, n int64) {
	s[logCount] -= n
	s[logFirst] += n
	if ring := int64(len(s) - logRing); s[logFirst] >= ring {
		s[logFirst] -= ring
	}
}

// grow returns a state whose ring has room for want entries. A ring that is too small is
// at least doubled, as far as the limit needs it.
func (l *slidingLog) grow(s []int64, want int64) []int64 {
	size := int64(len(s) - logRing)
	if want <= size {
		return s
	}
	size = max(want, min(2*size, l.numbers.Limit))
	grown := make([]int64, logRing+size)
	grown[logCount], grown[logNewest], grown[logOver] = s[logCount], s[logNewest], s[logOver]
	for i := range s[logCount] {
		grown[logRing+i] = entry(s, i)
	}
	return grown
}

func (l *slidingLog) Refuse(s []int64, now, n int64) []int64 {
	return l.Report(s, now, n, l.numbers.Limit)
}

// Report lets the units push out the oldest entries, since only the newest decide: as many as most,
// or as a higher limit has admitted. What is given back is taken from the others first.
func (l *slidingLog) Report(s []int64, now, n, most int64) []int64 {
	dead, live := l.split(s, now)
	if drop(s, dead); dead > 0 {
		s[logOver] = 0
	}
	kept := min(n, most)
	pushed := max(live+kept-max(most, live), 0)
	drop(s, pushed)
	s[logOver] = saturate(s[logOver], n-kept+pushed, MaxInt)
	return l.push(s, now, live-pushed, kept)
}

func (l *slidingLog) Read(s []int64, now, n int64) Reading {
	dead, live := l.split(s, now)
	var first, next, last int64 // instants that must expire
	if live > 0 {
		if over := live + n - l.numbers.Limit; over > 0 && over <= live {
			first = entry(s, dead+over-1)
		}
		next = entry(s, dead+max(live-l.numbers.Limit, 0))
		last = entry(s, dead+live-1)
	}
	return l.reading(now, n, live, first, next, last)
}

// reading is Read given what it needs of the ring: the number of entries that count, and
// the instants that must expire before n units fit, before one more unit fits, and
// before no unit is used.
func (l *slidingLog) reading(now, n, live, first, next, last int64) Reading {
	period := l.numbers.Period
	r := Reading{Remaining: max(l.numbers.Limit-live, 0)}
	if live > 0 {
		r.NextAfter = next + period - now
		r.ResetAfter = last + period - now
	}
	switch {
	case n > l.numbers.Limit:
		r.RetryAfter = Never
	case n > r.Remaining:
		r.RetryAfter = first + period - now
	}
	return r
}

// GiveBack frees the oldest units, not those of the charge. The entries that stay are
// newer than those really used, so the key can only be refused longer.
func (l *slidingLog) GiveBack(s []int64, now, at, n int64) {
	dead, live := l.split(s, now)
	if live == 0 {
		return
	}
	if max(now, s[logNewest])-at >= l.numbers.Period {
		return
	}
	if dead > 0 {
		s[logOver] = 0
	}
	over := min(n, s[logOver])
	s[logOver] -= over
	drop(s, dead+min(n-over, live))
}

// Adopt copies the newest entries, as many as decide.
func (l *slidingLog) Adopt(s []int64, _ int64, _ Numbers) []int64 {
	count := min(s[logCount], l.numbers.Limit)
	adopted := make([]int64, logRing+max(count, min(l.numbers.Limit, logStart)))
	adopted[logCount], adopted[logNewest] = count, s[logNewest]
	for i := range count {
		adopted[logRing+i] = entry(s, s[logCount]-count+i)
	}
	return adopted
}

func (l *slidingLog) Count(s []int64, now, n, _ int64) []int64 { return l.Refuse(s, now, n) }

func (l *slidingLog) Redate(s []int64, now, _ int64) []int64 {
	if s[logNewest]-now <= l.Window() {
		return nil
	}
	count := max(s[logCount], l.numbers.Limit)
	full := make([]int64, logRing+count)
	full[logCount], full[logNewest] = count, now
	for i := range full[logRing:] {
		full[logRing+i] = now
	}
	return full
}

func (l *slidingLog) Window() int64 { return l.numbers.Period }
func (l *slidingLog) Reach() int64  { return l.numbers.Period }

func (l *slidingLog) FreshAt(s []int64) int64 {
	if s[logCount] == 0 {
		return s[logNewest]
	}
	return entry(s, s[logCount]-1) + l.numbers.Period
}

func (l *slidingLog) Constants() []int64 {
	return []int64{l.numbers.Period, l.numbers.Limit}
}
