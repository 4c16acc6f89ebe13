// Package lease decides about busy keys in this process, with units that a slower store has charged before.
//
// A call about a busy key charges more units than are asked for. What is left over is the lease of the key: this process
// spends it without a call. All of it is spent before the end of the part of time to which the store has charged it:
// the window of a FixedWindow or a Calendar, or the sub-window of a SlidingWindow. Within that part it makes no
// difference to the policy when a unit is spent. So at any instant the store has counted whatever all processes have
// admitted, and what it promises holds for all of them, with no protocol between them.
//
// A decision about one limiter and key goes this way (decide.go):
//
//  1. The lease has the units: they are spent.
//  2. The store has refused a moment ago: the answer is a refusal.
//  3. A call is under way that charges units for all who wait: wait for it, once.
//  4. Otherwise ask the store, for more units if the key is busy (borrow.go).
//
// A decision about several limiters spends what leases hold and asks the store for the others (several.go). What is not
// spent goes back to the store (back.go).
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
	next    store.Rates
	fresh   store.Rates   // next without a memory of refusals
	life    int64         // of a lease at most, in nanoseconds
	timeout time.Duration // of a decision
	begin   time.Time
	clock   func() instant // for tests

	bytes  atomic.Int64 // of entries, about
	seen   [1 << seenBits]atomic.Uint64
	shards [shards]shard

	mu     sync.Mutex // may be locked after a shard, not before
	sweeps bool       // a sweep will be
	closed bool
	work   sync.WaitGroup // in the background
}

// A shard has the entries of some keys.
type shard struct {
	mu       sync.Mutex
	entries  map[uint64]*entry
	calls    uint32
	receipts *store.Receipts // of the next calls
	_        [32]byte        // so that each has a cache line of its own
}

// New returns a store that leases from another, each time for at most a life. Fresh is the same without a memory of
// refusals. A decision may take as long as the timeout.
func New(next, fresh store.Rates, life, timeout time.Duration) *Leases {
	s := &Leases{next: next, fresh: fresh, life: int64(life), timeout: timeout, begin: time.Now()}
	for i := range s.shards {
		s.shards[i].entries = make(map[uint64]*entry)
	}
	return s
}

// Prepare implements [store.Rates].
func (s *Leases) Prepare(policies []step.Policy) error { return s.next.Prepare(policies) }

// An instant is a time by two clocks. The monotonic one stands still while a machine is suspended, and the other may
// be set.
type instant struct{ mono, wall int64 } // nanoseconds

func (i instant) add(span int64) instant { return instant{i.mono + span, i.wall + span} }

func (s *Leases) now() instant {
	if s.clock != nil {
		return s.clock()
	}
	now := time.Now()
	return instant{int64(now.Sub(s.begin)), now.UnixNano()}
}

// An entry is what is known of a busy key of a limiter. The policies of a limiter are charged and leased together.
type entry struct {
	left    int64   // units of the lease
	at, end int64   // on the store's clock: its first charge; the end of the part of time in which it was charged
	until   instant // the lease is over as soon as one of the clocks says so

	cells     []step.Cell // as the store last answered them
	said      int64       // when it did, by the monotonic clock
	as        int64       // and on its own; 0: it has not answered yet
	roundTrip int64       // how long that took, in nanoseconds

	pause   int64 // until then so many units are refused here, as the store has refused them
	refused int64
	since   int64 // the first refusal since the store last admitted something; 0: none

	call   chan struct{} // closed when the call has ended that leases units; nil: there is none
	resets int           // what was charged before the last of them may be forgotten
	demand demand
}

// live reports whether the lease is not over.
func (e *entry) live(now instant) bool { return now.mono < e.until.mono && now.wall < e.until.wall }

// held returns the units of a lease that is not over.
func (e *entry) held(now instant) int64 {
	if e.live(now) {
		return e.left
	}
	return 0
}

// size returns about how many bytes an entry takes.
func (e *entry) size() int64 {
	return 320 + int64(len(e.cells))*96 + int64(len(e.cells[0].Key.Reveal()))
}

// is reports whether an entry is of these policies. A lease belongs to the numbers of a limiter, not to its name: after a
// change of plan, the key has no lease. Policies of a document that was loaded again are equal.
func (e *entry) is(charge []step.Cell) bool {
	if len(charge) != len(e.cells) {
		return false
	}
	for i := range charge {
		p, q := charge[i].Policy, e.cells[i].Policy
		if p != q && (p.ID != q.ID || p.Numbers != q.Numbers || p.Last != q.Last) {
			return false
		}
	}
	return true
}

// name returns the number under which a shard has the entry of a charge: all plans of a key have one, if their first
// policies share their state.
func name(c *step.Cell) uint64 { return (c.Hash ^ c.Policy.ID) * 0x9e3779b97f4a7c15 }

// lock locks and returns the shard of a charge.
func (s *Leases) lock(charge []step.Cell) *shard {
	sh := &s.shards[charge[0].Hash%shards]
	sh.mu.Lock()
	return sh
}

// find returns the entry of a key, under any plan, or nil. The shard is locked, as for all that takes one.
func (sh *shard) find(c *step.Cell) *entry {
	e := sh.entries[name(c)]
	if e == nil || e.cells[0].Policy.ID != c.Policy.ID || e.cells[0].Key != c.Key && e.cells[0].Key.Reveal() != c.Key.Reveal() {
		return nil
	}
	return e
}

// of returns the entry of a charge, or nil.
func (sh *shard) of(charge []step.Cell) *entry {
	if e := sh.find(&charge[0]); e != nil && e.is(charge) {
		return e
	}
	return nil
}

// entry returns the entry of a charge, which may be new. It is nil if the key is not busy, or there is no room.
func (s *Leases) entry(sh *shard, charge []step.Cell, now instant) *entry {
	e := sh.find(&charge[0])
	switch {
	case e != nil && e.is(charge):
		return e
	case e != nil: // another plan
		s.giveBack(e.finish())
		s.drop(sh, e)
	case sh.entries[name(&charge[0])] != nil || !s.askedBefore(&charge[0], now): // another key is busy, or this is not
		return nil
	}
	e = &entry{cells: append([]step.Cell(nil), charge...)}
	if s.bytes.Add(e.size()) > maxBytes || !s.sweepSoon() {
		s.bytes.Add(-e.size())
		return nil
	}
	key := hidden.Of(strings.Clone(charge[0].Key.Reveal())) // it may be a part of a long header
	for i := range e.cells {
		e.cells[i].Key = key
	}
	sh.entries[name(&charge[0])] = e
	return e
}

// drop removes an entry.
func (s *Leases) drop(sh *shard, e *entry) {
	delete(sh.entries, name(&e.cells[0]))
	s.bytes.Add(-e.size())
}

// askedBefore reports whether a key was asked for in this life of a lease or the one before, and notes that it is: keys
// that are not busy have no entries. Keys with equal hashes share a place.
func (s *Leases) askedBefore(c *step.Cell, now instant) bool {
	const epochs = 0xff
	key, epoch := name(c)|epochs, uint64(now.mono/s.life)&epochs
	seen := s.seen[key>>(64-seenBits)].Swap(key&^epochs | epoch)
	return seen|epochs == key && (epoch-seen)&epochs <= 1
}

// leasable reports whether what is charged can be leased.
func leasable(charge []step.Cell) bool { return end(charge, 0) > 0 }

// end returns the end of the part of time in which all policies of a charge count what is charged at an instant, or 0 if
// it cannot be leased.
func end(charge []step.Cell, at int64) (first int64) {
	first = step.MaxInt
	for i := range charge {
		first = min(first, charge[i].Policy.LeaseEnd(at))
	}
	return first
}

// A demand counts units in the time of a lease's life, and those of the time before.
type demand struct{ start, count, before int64 }

func (d *demand) add(now, life, n int64) {
	if passed := now - d.start; passed >= life {
		d.before = d.count
		if passed >= 2*life {
			d.before = 0
		}
		d.start, d.count = now-passed%life, 0
	}
	d.count += n
}

// units returns about how many are asked for in a life.
func (d *demand) units(now, life int64) float64 {
	d.add(now, life, 0)
	return float64(d.count) + float64(d.before)*float64(life-now+d.start)/float64(life)
}
