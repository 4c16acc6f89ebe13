package counts

import "time"

func now() time.Time { return time.Now() }

// Flush writes the records that are due.
func Flush(s *Stats) {
	for _, l := range s.limiters.all() {
		l.log()
	}
	for _, k := range s.slots.all() {
		k.log()
	}
}

// A Sketch counts texts.
type Sketch struct{ *sketch }

// NewSketch returns an empty one.
func NewSketch() Sketch { return Sketch{newSketch(now())} }

// Count counts a text that is a number.
func (s Sketch) Count(key uint64, name func() string) {
	p, taken := s.find(key)
	if taken {
		p.name = name()
	}
	p.count++
}

// Read returns the counts.
func (s Sketch) Read() *Top { return s.read(now()) }

func Reason(err error) string { return reasonText(reason(err)) }
