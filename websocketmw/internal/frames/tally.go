// What is counted. It may not know limits.

package frames

import "math"

// A Unit is what of frames is counted.
type Unit uint8

// What is counted.
const (
	Messages Unit = iota // which begin
	Frames               // of messages, which begin
	Bytes                // of the payload of messages; 1 of an empty frame
	Controls             // control frames, except those that are free
	units
)

// A Tally is a number for each Unit.
type Tally [units]int64

// Unlimited returns room for everything.
func Unlimited() Tally { return Tally{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64} }

// within reports whether there is room for all of t.
func (t *Tally) within(room *Tally) bool {
	return t[Messages] <= room[Messages] && t[Frames] <= room[Frames] && t[Bytes] <= room[Bytes] && t[Controls] <= room[Controls]
}
