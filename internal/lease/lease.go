// Package lease decides about busy keys in this process, with units that a slower store has charged before.
//
// A call about a busy key charges more units than are asked for. What is left over is the lease of the key: this
// process spends it without a call. All of it is spent before the end of the part of time to which the store has
// charged it: the window of a FixedWindow or a Calendar, or the sub-window of a SlidingWindow. Within that part it
// makes no difference to the policy when a unit is spent. So at any instant the store has counted whatever all
// processes have admitted, and what it promises holds for all of them, with no protocol between them.
//
// A decision about one limiter and key goes this way (decide.go):
//
//  1. The lease has the units: they are spent.
//  2. The store has refused a moment ago: the answer is a refusal.
//  3. A call is under way that charges units for all who wait: wait for it, once.
//  4. Otherwise ask the store, for more units if the key is busy (borrow.go).
//
// A decision about several limiters spends what leases hold and asks the store for the others (several.go). What is not
// spent goes back to the store (back.go). Entries of busy keys are here, and nothing is kept of others.
package lease

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/hidden"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

const (
	shards   = 64
	maxBytes = 64 << 20 // of entries: calls for further keys are passed on
	seenBits = 12       // of the hashes of keys that were asked for once
)

// Leases are [store.Rates] whose units are charged ahead in another. They are safe for concurrent use.
type Leases struct {
	next     store.Rates
	uncached store.Rates   // next without a memory of refusals
	life     int64         // of a lease at most, in nanoseconds
	timeout  time.Duration // of a decision
	origin   time.Time
	clock    func() instant // for tests

	bytes     atomic.Int64                 // of entries, about
	askedOnce [1 << seenBits]atomic.Uint64 // keys that were asked for in this epoch or the last: see askedBefore
	shards    [shards]shard

	mu           sync.Mutex // may be locked after a shard, not before
	sweepPlanned bool       // a sweep will be
	closed       bool
	work         sync.WaitGroup // in the background
}

// A shard has the entries of some keys.
type shard struct {
	mu       sync.Mutex
	entries  map[uint64]*entry
	calls    uint32
	receipts *store.Receipts // of the next calls
	_        [32]byte        // so that each has a cache line of its own
}

// New returns a store that leases from another, each time for at most a life. Uncached is the same without a memory of
// refusals. A decision may take as long as the timeout.
func New(next, uncached store.Rates, life, timeout time.Duration) *Leases {
	s := &Leases{next: next, uncached: uncached, life: int64(life), timeout: timeout, origin: time.Now()}
	for i := range s.shards {
		s.shards[i].entries = make(map[uint64]*entry)
	}
	return s
}

// Prepare implements [store.Rates].
func (s *Leases) Prepare(policies []step.Policy) error { return s.next.Prepare(policies) }

// An instant is a time by two clocks. The monotonic one stands still while a machine is suspended, and the other may
// be set.
type instant struct{ monotonic, wall int64 } // nanoseconds

// add returns the instant that is later by a span of nanoseconds.
func (i instant) add(span int64) instant { return instant{i.monotonic + span, i.wall + span} }

// now returns the instant, the monotonic part of which counts from when the store was made.
func (s *Leases) now() instant {
	if s.clock != nil {
		return s.clock()
	}
	now := time.Now()
	return instant{int64(now.Sub(s.origin)), now.UnixNano()}
}

// An entry is what is known of a busy key of a limiter. The policies of a limiter are charged and leased together.
//
// The end of a name says which clock that is: AtStore, the store's, in microseconds, as in cells; ByMonotonic, the
// monotonic one of this process, in nanoseconds; Here, that and the one on its wall.
type entry struct {
	// The lease: units that the store has charged to one part of time. It is over as soon as a clock here says so.
	units          int64
	chargedAtStore int64 // the first of them
	partEndAtStore int64
	endsHere       instant

	// The key and its policies, with the latest answer of the store, to which readings here are added up.
	cells           []step.Cell
	readAtStore     int64 // 0: it has not answered yet
	readByMonotonic int64 // when that came
	roundTrip       int64 // how long that took, in nanoseconds

	// The latest refusal: until it ends, so many units are refused here, and the store is not asked.
	refusedUnits            int64
	refusalEndByMonotonic   int64
	firstRefusalByMonotonic int64 // since the store last admitted something; 0: none
	yieldEndByMonotonic     int64 // until then its lease is not yielded again

	callDone chan struct{} // closed when the call has ended that leases units; nil: there is none
	resets   int           // what was charged before the last of them may be forgotten
	demand   demand
}

// live reports whether the lease is not over.
func (e *entry) live(now instant) bool {
	return now.monotonic < e.endsHere.monotonic && now.wall < e.endsHere.wall
}

// liveUnits returns the units of a lease that is not over.
func (e *entry) liveUnits(now instant) int64 {
	if e.live(now) {
		return e.units
	}
	return 0
}

// size returns about how many bytes an entry takes.
func (e *entry) size() int64 {
	return 320 + int64(len(e.cells))*96 + int64(len(e.cells[0].Key.Reveal()))
}

// isFor reports whether an entry is of these policies. A lease belongs to the numbers of a limiter, not to its name:
// after a change of plan, the key has no lease. Policies of a document that was loaded again are equal.
func (e *entry) isFor(charge []step.Cell) bool {
	if len(charge) != len(e.cells) {
		return false
	}
	for i := range charge {
		if !samePolicy(charge[i].Policy, e.cells[i].Policy) {
			return false
		}
	}
	return true
}

// samePolicy reports whether two policies count, and answer, alike.
func samePolicy(policy, other *step.Policy) bool {
	return policy == other || policy.ID == other.ID && policy.Numbers == other.Numbers && policy.Last == other.Last
}

// entryKey returns the number under which a shard has the entry of a charge: all plans of a key have one, if their
// first policies share their state.
func entryKey(cell *step.Cell) uint64 { return (cell.Hash ^ cell.Policy.ID) * 0x9e3779b97f4a7c15 }

// lock locks and returns the shard of a charge.
func (s *Leases) lock(charge []step.Cell) *shard {
	sh := &s.shards[charge[0].Hash%shards]
	sh.mu.Lock()
	return sh
}

// find returns the entry of a key, under any plan, or nil. The shard is locked, as for all that takes one.
func (sh *shard) find(cell *step.Cell) *entry {
	e := sh.entries[entryKey(cell)]
	if e == nil {
		return nil
	}
	first := &e.cells[0]
	sameKey := first.Key == cell.Key || first.Key.Reveal() == cell.Key.Reveal()
	if first.Policy.ID != cell.Policy.ID || !sameKey {
		return nil
	}
	return e
}

// entryFor returns the entry of a charge, or nil.
func (sh *shard) entryFor(charge []step.Cell) *entry {
	e := sh.find(&charge[0])
	if e != nil && e.isFor(charge) {
		return e
	}
	return nil
}

// busyEntry returns the entry of a charge, which may be new. It is nil if the key is not busy, or there is no room.
func (s *Leases) busyEntry(sh *shard, charge []step.Cell, now instant) *entry {
	e := sh.find(&charge[0])
	switch {
	case e != nil && e.isFor(charge):
		return e
	case e != nil: // another plan
		s.giveBack(e.finish())
		s.drop(sh, e)
	case sh.entries[entryKey(&charge[0])] != nil: // of another key, whose hash is equal
		return nil
	case !s.askedBefore(&charge[0], now):
		return nil
	}
	// A new entry, if there is room, and if a sweep will give back what it leases.
	e = &entry{cells: append([]step.Cell(nil), charge...)}
	if s.bytes.Add(e.size()) > maxBytes || !s.sweepSoon() {
		s.bytes.Add(-e.size())
		return nil
	}
	// The key is copied, as it may be a part of a long header.
	key := hidden.Of(strings.Clone(charge[0].Key.Reveal()))
	for i := range e.cells {
		e.cells[i].Key = key
	}
	sh.entries[entryKey(&charge[0])] = e
	return e
}

func (s *Leases) drop(sh *shard, e *entry) {
	delete(sh.entries, entryKey(&e.cells[0]))
	s.bytes.Add(-e.size())
}

// askedBefore reports whether a key was asked for in this epoch or the one before, and notes that it is: keys that are
// not busy have no entries. An epoch lasts as long as a lease may. Keys with equal hashes share a place.
func (s *Leases) askedBefore(cell *step.Cell, now instant) bool {
	// A place has the upper bits of the latest key, and in the lower ones the epoch in which that was asked for.
	const epochs = 0xff
	key := entryKey(cell) | epochs
	epoch := uint64(now.monotonic/s.life) & epochs
	seen := s.askedOnce[key>>(64-seenBits)].Swap(key&^epochs | epoch)
	return seen|epochs == key && (epoch-seen)&epochs <= 1
}

// leasable reports whether what is charged can be leased.
func leasable(charge []step.Cell) bool { return partEnd(charge, 0) > 0 }

// partEnd returns the end of the part of time in which all policies of a charge count what is charged at an
// instant, or 0 if it cannot be leased.
func partEnd(charge []step.Cell, instant int64) (first int64) {
	// Each policy counts alike only within its own part, so the first end is that of all.
	first = step.MaxInt
	for i := range charge {
		first = min(first, charge[i].Policy.LeaseEnd(instant))
	}
	return first
}

// A demand counts units in the time of a lease's life, and those of the time before.
type demand struct {
	startByMonotonic  int64
	current, previous int64 // units
}

// add counts n units.
func (d *demand) add(now, life, n int64) {
	passed := now - d.startByMonotonic
	if passed >= life {
		d.previous = d.current
		if passed >= 2*life {
			d.previous = 0
		}
		d.startByMonotonic = now - passed%life
		d.current = 0
	}
	d.current += n
}

// units returns about how many are asked for in a life: those of this one, and of the one before the part that is less
// than a life ago.
func (d *demand) units(now, life int64) float64 {
	d.add(now, life, 0)
	rest := float64(life-now+d.startByMonotonic) / float64(life)
	return float64(d.current) + float64(d.previous)*rest
}
