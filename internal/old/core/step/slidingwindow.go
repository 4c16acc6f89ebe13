package step

import (
	"math/bits"

	"github.com/headgate/headgate/internal/old/core/internal/whole"
)

// slidingWindow estimates a rolling window from the counts of sub-windows. The newest
// sub-window and the Resolution-1 before it lie inside the window and count in full.
// The one before those is partly outside: it is weighted by the part that is inside, as
// if its events were spread evenly, or counts in full with NeverOver.
//
// Its state is [start, c0, c1 ... ck]: the start of the newest sub-window, its
// count, and the counts before it.
type slidingWindow struct {
	numbers Numbers
	k       int64
	sub     int64 // length of a sub-window, rounded up so that they cover the period
	most    int64 // limit to which refused attempts increase a count
}

// manyDenied is the count of a sub-window beyond which refused attempts are not counted,
// or the limit if that is higher. It is far above what could matter, and low enough that
// the sum of all counts is at most MaxInt.
const manyDenied = MaxInt / (MaxResolution + 2)

func newSlidingWindow(m Numbers) *slidingWindow {
	return &slidingWindow{
		numbers: m,
		k:       m.Resolution,
		sub:     whole.CeilDiv(m.Period, m.Resolution),
		most:    max(m.Limit, manyDenied),
	}
}

func (w *slidingWindow) Numbers() Numbers   { return w.numbers }
func (w *slidingWindow) CountsDenied() bool { return w.numbers.CountDenied }
func (w *slidingWindow) Max() int64         { return w.numbers.Limit }
func (w *slidingWindow) Words() int         { return int(w.k) + 2 }
func (w *slidingWindow) MaxWords() int      { return w.Words() }

// A view is the state as seen from one sub-window.
type view struct {
	start int64   // of the sub-window
	inner []int64 // counts inside the window, newest first, without leading zeros
	sum   int64   // of inner
	old   int64   // count of the sub-window that is partly outside
}

// at returns the view from the sub-window that now belongs to.
func (w *slidingWindow) at(s []int64, now int64) view {
	v := view{start: align(now, w.sub)}
	if len(s) == 0 {
		return v
	}
	v.start = max(v.start, s[0])
	passed := (v.start - s[0]) / w.sub
	if passed > w.k {
		return v
	}
	v.inner = s[1 : 1+w.k-passed]
	for _, c := range v.inner {
		v.sum += c
	}
	v.old = s[1+w.k-passed]
	return v
}

// fits reports whether n units fit at an offset into the view's sub-window:
//
//	old * (sub-offset)/sub + sum + n <= limit
//
// multiplied out, since a quotient that is rounded down would admit one too many.
func (w *slidingWindow) fits(v view, offset, n int64) bool {
	room := w.numbers.Limit - v.sum - n
	if room < 0 {
		return false
	}
	if w.numbers.NeverOver {
		return v.old <= room
	}
	oldHi, oldLo := bits.Mul64(uint64(v.old), uint64(w.sub-offset))
	roomHi, roomLo := bits.Mul64(uint64(room), uint64(w.sub))
	return oldHi < roomHi || oldHi == roomHi && oldLo <= roomLo
}

// offset returns how far now is inside the view's sub-window, or 0 if the clock went
// back.
func (v view) offset(now int64) int64 { return max(now-v.start, 0) }

func (w *slidingWindow) Admits(s []int64, now, n int64) bool {
	v := w.at(s, now)
	return w.fits(v, v.offset(now), n)
}

func (w *slidingWindow) Charge(s []int64, now, n int64) []int64 {
	w.roll(s, now)
	s[1] += n
	return s
}

func (w *slidingWindow) Refuse(s []int64, now, n int64) []int64 {
	return w.count(s, now, n, w.most)
}

func (w *slidingWindow) Report(s []int64, now, n, _ int64) []int64 {
	return w.count(s, now, n, MaxInt)
}

// count adds n units to the newest count, but not beyond most, nor those of a window beyond MaxInt.
func (w *slidingWindow) count(s []int64, now, n, most int64) []int64 {
	w.roll(s, now)
	others := int64(0)
	for _, c := range s[2 : 1+w.k] {
		others += c
	}
	s[1] = saturate(s[1], n, min(most, MaxInt-others))
	return s
}

// roll moves the counts so that c0 is that of now.
func (w *slidingWindow) roll(s []int64, now int64) {
	start := align(now, w.sub)
	if start <= s[0] {
		return
	}
	passed := min((start-s[0])/w.sub, w.k+1)
	copy(s[1+passed:], s[1:])
	clear(s[1 : 1+passed])
	s[0] = start
}

func (w *slidingWindow) Read(s []int64, now, n int64) Reading {
	v := w.at(s, now)
	var r Reading
	offset := v.offset(now)
	r.Remaining = w.remaining(v, offset)
	if r.Remaining < w.numbers.Limit {
		r.NextAfter = w.earliest(v, now, r.Remaining+1) - now
		r.ResetAfter = upTo(w.FreshAt(s), now)
	}
	switch {
	case n > w.numbers.Limit:
		r.RetryAfter = Never
	case n == r.Remaining+1:
		r.RetryAfter = r.NextAfter
	case n > r.Remaining || n == 0 && r.Remaining == 0 && !w.fits(v, offset, 0):
		r.RetryAfter = w.earliest(v, now, n) - now
	}
	return r
}

func (w *slidingWindow) remaining(v view, offset int64) int64 {
	old := v.old
	if !w.numbers.NeverOver {
		hi, lo := bits.Mul64(uint64(v.old), uint64(w.sub-offset))
		q, rem := bits.Div64(hi, lo, uint64(w.sub))
		old = int64(q)
		if rem > 0 {
			old++
		}
	}
	return max(w.numbers.Limit-v.sum-old, 0)
}

// earliest returns the first instant, from now on, at which n <= limit units fit if
// nothing else is charged: in the first sub-window whose inner counts leave room, as soon
// as the weighted oldest count fits into that room, or else at its end.
func (w *slidingWindow) earliest(v view, now, n int64) int64 {
	room := w.numbers.Limit - v.sum - n
	offset := v.offset(now)
	for i := len(v.inner) - 1; room < 0; i-- {
		v.start += w.sub
		offset = 0
		v.old = v.inner[i]
		room += v.old
	}
	switch {
	case v.old <= room:
		return v.start + offset
	case w.numbers.NeverOver:
		return v.start + w.sub
	}
	hi, lo := bits.Mul64(uint64(room), uint64(w.sub))
	q, _ := bits.Div64(hi, lo, uint64(v.old)) // old > room, so q < sub
	return v.start + max(offset, w.sub-int64(q))
}

func (w *slidingWindow) GiveBack(s []int64, _, at, n int64) {
	if back := (s[0] - align(at, w.sub)) / w.sub; back >= 0 && back <= w.k {
		s[1+back] = max(s[1+back]-n, 0)
	}
}

// Adopt puts each count where its events may have happened at the latest.
func (w *slidingWindow) Adopt(s []int64, now int64, from Numbers) []int64 {
	old := newSlidingWindow(from)
	now = max(now, s[0])
	moved := make([]int64, w.Words())
	moved[0] = align(now, w.sub)
	for i, count := range s[1:old.Words()] {
		last := min(s[0]-int64(i)*old.sub+old.sub-1, now)
		if back := (moved[0] - align(last, w.sub)) / w.sub; back <= w.k {
			moved[1+back] = min(moved[1+back]+count, MaxInt)
		}
	}
	return moved
}

func (w *slidingWindow) Count(s []int64, now, n, _ int64) []int64 {
	return w.count(s, now, n, MaxInt)
}

func (w *slidingWindow) Redate(s []int64, now, _ int64) []int64 {
	if s[0]-now <= w.Window() {
		return nil
	}
	sum := int64(0)
	for _, c := range s[1:w.Words()] {
		sum += c
	}
	full := make([]int64, w.Words())
	full[0], full[1] = align(now, w.sub), min(max(sum, w.numbers.Limit), MaxInt)
	return full
}

func (w *slidingWindow) Window() int64 { return (w.k + 1) * w.sub }
func (w *slidingWindow) Reach() int64  { return w.Window() }

func (w *slidingWindow) FreshAt(s []int64) int64 {
	if len(s) == 0 {
		return 0
	}
	for i, count := range s[1:w.Words()] {
		if count > 0 {
			return s[0] + (w.k+1-int64(i))*w.sub
		}
	}
	return s[0]
}

func (w *slidingWindow) Constants() []int64 {
	never := int64(0)
	if w.numbers.NeverOver {
		never = 1
	}
	return []int64{w.numbers.Period, w.k, w.numbers.Limit, w.sub, never, w.most}
}
