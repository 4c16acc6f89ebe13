package redisrates

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
)

const (
	entryBits    = 14 // of the hash that chooses an entry
	counterCount = 1 << 16

	// What an entry holds is bounded, so that all of them take at most 16 MB.
	maxKeptKeys  = 256 // bytes
	maxKeptCells = 8
)

// Refusals are remembered, so that a question that was just refused is refused again without a call. It is the answer
// of the server as far as this process can know: changes by others are seen when it ends.
//
// Each question has one entry, where a newer refusal replaces an older one. Each key has a counter, which is raised when
// an operation ends that may have written, or has shown that something was given back. A refusal counts for as long as
// the counters of its keys are what they were when it was sent. Keys and questions with equal hashes share them, which
// costs a call.
type refusals struct {
	start    time.Time
	ttl      time.Duration
	entries  [1 << entryBits]atomic.Pointer[refusal]
	counters [counterCount]atomic.Uint64 // in the low bits, how many operations may give back at the moment
}

const (
	oneOpen  = 1
	oneRaise = 1 << 16
)

// A refusal is never changed.
type refusal struct {
	cells       []step.Cell // with keys of its own
	version     uint64
	from, until time.Duration // since start: its spans count from when the answer came, its end from when it was asked
}

// A lookup is what was found out about a question before it was sent.
type lookup struct {
	entry   *atomic.Pointer[refusal]
	version uint64
	at      time.Duration
	open    bool
}

func (r *refusals) counter(c *step.Cell) *atomic.Uint64 { return &r.counters[c.Hash%counterCount] }

// version returns the sum of the counters, and whether anything may be given back.
func (r *refusals) version(cells []step.Cell) (sum uint64, open bool) {
	for i := range cells {
		n := r.counter(&cells[i]).Load()
		sum += n
		open = open || n%oneRaise != 0
	}
	return sum, open
}

// answer answers a question that is refused as far as is known.
func (r *refusals) answer(cells []step.Cell) (l lookup, refused bool) {
	var hash uint64
	for i := range cells {
		c := &cells[i]
		hash = (hash + (c.Hash ^ c.Policy.ID) + uint64(c.Units)) * 0x9e3779b97f4a7c15 // which spreads N to the high bits
	}
	l.entry, l.at = &r.entries[hash>>(64-entryBits)], time.Since(r.start)
	l.version, l.open = r.version(cells)
	old := l.entry.Load()
	if old == nil || l.at >= old.until || l.open || old.version != l.version || len(old.cells) != len(cells) {
		return l, false
	}
	for i := range cells {
		if a, b := &old.cells[i], &cells[i]; a.Policy != b.Policy || a.Units != b.Units || a.Key.Reveal() != b.Key.Reveal() {
			return l, false
		}
	}
	age := (l.at - old.from).Microseconds()
	for i := range cells {
		c, o := &cells[i], &old.cells[i]
		c.Instant, c.Source, c.Shortfall, c.Reading = o.Instant+age, step.SourceCache, o.Shortfall, o.Reading
		for _, span := range [...]*int64{&c.NextAfter, &c.ResetAfter, &c.RetryAfter} {
			if *span > 0 {
				*span = max(*span-age, 1)
			}
		}
	}
	return l, true
}

// keep remembers a refusal, unless a key has changed since it was sent, or refused attempts count.
func (r *refusals) keep(l lookup, cells []step.Cell) {
	span, size := r.ttl, 0 // until the first of the policies that refuse has one more unit left
	for i := range cells {
		c := &cells[i]
		if size += len(c.Key.Reveal()); c.Policy.CountDenied || size > maxKeptKeys || len(cells) > maxKeptCells {
			return
		}
		if c.Shortfall > 0 && c.RetryAfter != step.Never {
			span = min(span, time.Duration(c.NextAfter)*time.Microsecond)
		}
	}
	if version, _ := r.version(cells); l.open || version != l.version {
		return
	}
	own := append([]step.Cell(nil), cells...)
	for i := range own {
		own[i].Key = hidden.Of(strings.Clone(own[i].Key.Reveal())) // it may be a part of a long header
	}
	l.entry.Store(&refusal{own, l.version, time.Since(r.start), l.at + span})
}

// add adds to the counters of the keys.
func (r *refusals) add(cells []step.Cell, n uint64) {
	for i := range cells {
		if i == 0 || cells[i].Hash != cells[i-1].Hash {
			r.counter(&cells[i]).Add(n)
		}
	}
}

// begin notes that units of the keys may be given back until the function that it returns is called.
func (r *refusals) begin(cells []step.Cell) (end func()) {
	if r == nil {
		return func() {}
	}
	r.add(cells, oneOpen)
	return func() { r.add(cells, oneRaise-oneOpen) }
}
