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
// Each question has one entry, where a newer refusal replaces an older one. Each key has a counter, which is raised
// when an operation ends that may have written, or has shown that something was given back. A refusal counts for as
// long as the counters of its keys are what they were when it was sent. Keys and questions with equal hashes share
// them, which costs a call.
//
//	counter of a key   |--- 48 bits: changes so far ---|- 16 bits: operations that give back now -|
//
// Only sums of counters are compared, so that a question of many keys has one number. They only grow, but for the low
// bits, and while one of these is set nothing is remembered or served.
type refusals struct {
	start    time.Time
	ttl      time.Duration
	entries  [1 << entryBits]atomic.Pointer[refusal]
	counters [counterCount]atomic.Uint64 // in the low bits, how many operations may give back at the moment
}

const (
	oneGivingBack = 1
	oneChange     = 1 << 16
)

// A refusal is never changed.
type refusal struct {
	cells   []step.Cell // with keys of its own
	version uint64

	// Since the start of the refusals. Its spans count from when the answer came, its end from when it was asked.
	answerTime, endTime time.Duration
}

// A lookup is what was found out about a question before it was sent.
type lookup struct {
	entry      *atomic.Pointer[refusal]
	version    uint64
	askTime    time.Duration // since the start of the refusals
	givingBack bool          // units of its keys may be given back at the moment
}

func (r *refusals) counter(cell *step.Cell) *atomic.Uint64 {
	return &r.counters[cell.Hash%counterCount]
}

// version returns the sum of the counters, and whether anything may be given back.
func (r *refusals) version(cells []step.Cell) (sum uint64, givingBack bool) {
	for i := range cells {
		n := r.counter(&cells[i]).Load()
		sum += n
		givingBack = givingBack || n%oneChange != 0
	}
	return sum, givingBack
}

// decide answers a question that is refused as far as is known.
func (r *refusals) lookUp(cells []step.Cell) (found lookup, refused bool) {
	var hash uint64
	for i := range cells {
		cell := &cells[i]
		hash += (cell.Hash ^ cell.Policy.ID) + uint64(cell.Units)
		hash *= 0x9e3779b97f4a7c15 // which spreads the units to the high bits
	}
	found.entry = &r.entries[hash>>(64-entryBits)]
	found.askTime = time.Since(r.start)
	found.version, found.givingBack = r.version(cells)

	old := found.entry.Load()
	if old == nil || found.askTime >= old.endTime || !old.about(cells) {
		return found, false
	}
	if found.givingBack || old.version != found.version {
		return found, false
	}
	// So much of each span has passed since. One of 0 would say that the units fit.
	age := (found.askTime - old.answerTime).Microseconds()
	for i := range cells {
		cell := &cells[i]
		cell.Instant = old.cells[i].Instant + age
		cell.Source = step.SourceCache
		cell.Shortfall = old.cells[i].Shortfall
		cell.Reading = old.cells[i].Reading
		for _, span := range [...]*int64{&cell.NextAfter, &cell.ResetAfter, &cell.RetryAfter} {
			if *span > 0 {
				*span = max(*span-age, 1)
			}
		}
	}
	return found, true
}

// about reports whether a question is the one that was refused.
func (r *refusal) about(cells []step.Cell) bool {
	if len(r.cells) != len(cells) {
		return false
	}
	for i := range cells {
		old := &r.cells[i]
		cell := &cells[i]
		if old.Policy != cell.Policy || old.Units != cell.Units || old.Key.Reveal() != cell.Key.Reveal() {
			return false
		}
	}
	return true
}

// keep remembers a refusal, unless a key has changed since it was sent, or refused attempts count.
func (r *refusals) keep(found lookup, cells []step.Cell) {
	span := r.ttl // until the first of the policies that refuse may admit, or has one more unit left
	size := 0
	for i := range cells {
		cell := &cells[i]
		size += len(cell.Key.Reveal())
		if cell.Policy.CountDenied || size > maxKeptKeys || len(cells) > maxKeptCells {
			return
		}
		if cell.Shortfall > 0 && cell.RetryAfter != step.Never {
			// With one unit more left, the answer is another. And a check of no units is admitted as soon as the policy
			// is no longer above its limit, which may be sooner.
			change := min(cell.NextAfter, cell.RetryAfter)
			span = min(span, time.Duration(change)*time.Microsecond)
		}
	}
	// What has changed since it was sent may have come before or after it at the server: nobody knows.
	version, _ := r.version(cells)
	if found.givingBack || version != found.version {
		return
	}
	// A refusal is read without a lock, and outlives the question.
	own := append([]step.Cell(nil), cells...)
	for i := range own {
		own[i].Key = hidden.Of(strings.Clone(own[i].Key.Reveal())) // it may be a part of a long header
	}
	found.entry.Store(&refusal{
		cells: own, version: found.version, answerTime: time.Since(r.start), endTime: found.askTime + span,
	})
}

// add adds to the counters of the keys.
func (r *refusals) add(cells []step.Cell, n uint64) {
	for i := range cells {
		if i == 0 || cells[i].Hash != cells[i-1].Hash { // the cells of a key stand together
			r.counter(&cells[i]).Add(n)
		}
	}
}

// beginGivingBack notes that units of the keys may be given back until the function that it returns is called. It
// counts as a change when it ends, also after an error: the server may have done it.
func (r *refusals) beginGivingBack(cells []step.Cell) (end func()) {
	if r == nil {
		return func() {}
	}
	r.add(cells, oneGivingBack)
	return func() { r.add(cells, oneChange-oneGivingBack) }
}
