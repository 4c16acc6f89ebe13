package store

import "github.com/headgate/headgate/internal/old/core/step"

// A Result is a store's decision, with one reading for each policy of each charge, in
// order. A store begins with [Result.Start].
type Result struct {
	At      int64 // the store's instant, in microseconds since 1970 UTC; of several servers, the earliest
	Extra   int64 // units charged beyond N, or that would be if it is a peek: see Question
	Aged    int64 // how long ago the store decided, in microseconds: 0 unless it is from a memory
	Allowed bool
	Source  Source

	count    uint8
	admitted uint64 // a bit for each reading
	first    [2]step.Reading
	more     *[]step.Reading // the others; a pointer, as it is smaller
}

// MaxReadings is the largest number of readings of a Result, which has one for each policy of each
// charge.
const MaxReadings = 64 // the bits of admitted

// Start empties the result, which then refuses, as of that instant. Its earlier content does not
// matter: it may come from an earlier decision.
func (r *Result) Start(at int64, s Source) {
	r.At, r.Extra, r.Allowed, r.Source, r.Aged = at, 0, false, s, 0
	r.count, r.admitted, r.more = 0, 0, nil
}

// CopyFrom makes r a copy of another result, which is not used at the same time. The copy shares
// the readings beyond the first two, of which neither is changed then.
func (r *Result) CopyFrom(from *Result) {
	r.At, r.Extra, r.Allowed, r.Source, r.Aged = from.At, from.Extra, from.Allowed, from.Source, from.Aged
	r.count, r.admitted, r.more = from.count, from.admitted, from.more
	r.first[0], r.first[1] = from.first[0], step.Reading{}
	if from.count > 1 {
		r.first[1] = from.first[1]
	}
}

// AddAll appends the readings of another result.
func (r *Result) AddAll(from *Result) {
	for i := range from.Len() {
		r.Add(from.Admitted(i), *from.Reading(i))
	}
}

// Add appends the reading of the next policy, and whether that policy alone would have
// admitted the charge.
func (r *Result) Add(admitted bool, x step.Reading) {
	if admitted {
		r.admitted |= 1 << r.count
	}
	if r.Len() < len(r.first) {
		r.first[r.count] = x
	} else {
		r.addMore(x)
	}
	r.count++
}

func (r *Result) addMore(x step.Reading) {
	if r.more == nil {
		r.more = new([]step.Reading)
	}
	*r.more = append(*r.more, x)
}

// Age moves the result later by some microseconds: it shortens the spans of the readings,
// but not below 1 microsecond.
func (r *Result) Age(by int64) {
	r.At, r.Aged = r.At+by, r.Aged+by
	for i := range r.Len() {
		x := r.Reading(i)
		for _, span := range []*int64{&x.NextAfter, &x.ResetAfter, &x.RetryAfter} {
			if *span > 0 && *span != step.Never {
				*span = max(*span-by, 1)
			}
		}
	}
}

// Len returns the number of readings.
func (r *Result) Len() int { return int(r.count) }

// Admitted returns whether the i-th policy alone would have admitted the charge.
func (r *Result) Admitted(i int) bool { return r.admitted&(1<<i) != 0 }

// Reading returns the i-th reading of the result itself, not a copy.
func (r *Result) Reading(i int) *step.Reading {
	if i < len(r.first) {
		return &r.first[i]
	}
	return &(*r.more)[i-len(r.first)]
}
