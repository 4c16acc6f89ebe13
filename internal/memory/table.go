package memory

import (
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/headgate/headgate/internal/step"
)

// A table maps hashes to states. Its places hold entries in the order of their hashes, with gaps: an entry
// is at or shortly after the place that its hash, read as a fraction of 2^64, points to. So a search ends
// at the first larger hash, resizing is one pass, and any size is possible.
//
// Entries contain no pointers, so the garbage collector does not scan them. States of two words are in the
// entry; longer ones are separate.
type table struct {
	// hot is an entry of the key that was asked for hotAfter times in a row, or empty, and second another: nearly all
	// limiters have one or two policies. Their places have the hashes, and what was before. All that looks at other
	// entries puts them back first.
	hot       entry
	lastKey   uint64 // the key that was asked for last
	second    entry
	asksInRow uint32 // so many times
	grown     bool   // it has taken memory

	places    []entry // size of them, and some for entries pushed beyond the end; the last is empty
	size      uint64
	count     uint32
	nextPlace uint32 // where the next sweep, or search for long states, begins
	shared    *shared

	chunks [][]int64 // of all slabs; nil: there is none of that number
	slabs  *[]slab   // of long states, each of another length; nil: there are none
}

// nothing is the places of an empty table.
var nothing [1]entry

type entry struct {
	hash      uint64   // 0: empty
	words     [2]int64 // the state; of a long one, its first word, and where it is: a ref
	tag       uint32   // of the policy, and the bit long
	waitUntil uint32   // the coarse instant until which no unit is left or, with the bit refused, a charge is refused
}

// Each is the lowest bit of a field of its own.
const (
	long    = 1 // of the tag: the state is in a slab
	refused = 1 // of waitUntil
)

const (
	entryBytes = int64(unsafe.Sizeof(entry{}))

	hotAfter = 32

	minSize    = 8
	sampleSize = 24  // entries of which one is evicted
	sampleRun  = 4   // of them that are neighbours
	maxLooks   = 256 // places that are searched for long entries while the lock is held
)

// shared is what the tables of a store share.
type shared struct {
	maxBytes   int64 // bytes
	origin     int64 // when the store was made
	tableBytes atomic.Int64
	longBytes  atomic.Int64
	evicted    atomic.Uint64 // entries that still counted
}

// used returns the bytes of all tables and long states.
func (b *shared) used() int64 { return b.tableBytes.Load() + b.longBytes.Load() }

// allowsTable reports whether a table may grow by more places to size. All tables together take at most
// three quarters of the bytes, to leave room for long states. A table may always have its share of half,
// even if long states have taken it; those are then reclaimed.
func (b *shared) allowsTable(size, more int64) bool {
	more *= entryBytes
	tablesFit := b.tableBytes.Load()+more <= b.maxBytes/4*3
	return size*entryBytes <= b.maxBytes/2/shards || tablesFit && b.used()+more <= b.maxBytes
}

// overrun reports whether long states must be evicted. They may always have a quarter of the bytes.
func (b *shared) overrun() bool { return b.longBytes.Load() > b.maxBytes/4 && b.used() > b.maxBytes }

// coarse returns an instant in eighths of a second since the store was made.
func (b *shared) coarse(instant int64) uint32 {
	return uint32(min(max(instant-b.origin, 0)>>17, math.MaxUint32>>1))
}

// place returns where a search for a hash begins.
func (t *table) place(hash uint64) int {
	high, _ := bits.Mul64(hash, t.size)
	return int(high)
}

// search returns the place of the hash, or the one where it would be inserted.
func (t *table) search(hash uint64) (i int, found bool) {
	for i = t.place(hash); ; i++ {
		met := t.places[i].hash
		if met >= hash || met == 0 {
			return i, met == hash
		}
	}
}

// hash returns the hash of a cell. The table places it by its high bits; the shard was chosen by the low bits
// of the key's. 0 marks an empty place.
func hash(cell *step.Cell) uint64 { return max(cell.Hash^cell.Policy.ID, 1) }

// find returns the entry of a cell, or nil.
func (t *table) find(cell *step.Cell) *entry {
	h := hash(cell)
	switch tag := cell.Policy.Tag; {
	case t.hot.hash == h && t.hot.tag == tag:
		return &t.hot
	case t.second.hash == h && t.second.tag == tag:
		return &t.second
	}
	return t.findOther(cell)
}

// findOther is find for an entry that is not hot, and may become it.
func (t *table) findOther(cell *step.Cell) *entry {
	h := hash(cell)
	i, found := t.search(h)
	if !found || t.places[i].tag != cell.Policy.Tag {
		return nil
	}
	t.asksInRow++
	if t.lastKey != cell.Hash {
		t.lastKey = cell.Hash
		t.asksInRow = 0
	}
	if t.asksInRow < hotAfter {
		return &t.places[i]
	}
	// There is room for two. With a third, those that are there go back.
	if t.second.hash != 0 {
		t.cool()
	}
	if t.hot.hash != 0 {
		t.second = t.hot
	}
	t.hot = t.places[i]
	return &t.hot
}

// cool puts the hot entries back to their places.
func (t *table) cool() {
	for _, hot := range []*entry{&t.hot, &t.second} {
		if hot.hash != 0 {
			i, _ := t.search(hot.hash)
			t.places[i] = *hot
			*hot = entry{}
			t.asksInRow = 0
		}
	}
}

// insert adds an entry with a new state. Others may move, or be evicted. One of the same hash, which is of
// another policy, is replaced.
func (t *table) insert(cell *step.Cell, now int64) *entry {
	h := hash(cell)
	_, found := t.search(h)
	if found { // of another policy
		t.remove(h)
	}
	if uint64(t.count) >= t.size*4/5 {
		t.makeRoom(now)
	}
	// Those from its place to the next gap make room for it. The last place stays empty, as it ends searches.
	i, _ := t.search(h)
	gap := i
	for t.places[gap].hash != 0 {
		gap++
	}
	if gap == len(t.places)-1 {
		t.extend()
	}
	copy(t.places[i+1:gap+1], t.places[i:gap])
	t.count++
	e := &t.places[i]
	*e = entry{hash: h, tag: cell.Policy.Tag}
	if e.tag&long != 0 {
		length, _ := cell.Policy.Lengths()
		e.words[1] = t.reserve(h, int(length))
	}
	return e
}

// makeRoom drops the fresh entries and, if that is not enough, lets the table grow by a quarter. If there
// is no memory for that, it evicts an entry instead.
func (t *table) makeRoom(now int64) {
	t.cool()
	grown := t.size + t.size/4 + minSize
	more := placesFor(grown) - uint64(len(t.places))
	if !t.shared.allowsTable(int64(grown), int64(more)) {
		t.evictOne(now)
		return
	}
	// Often many have become fresh since the table last grew, and it need not.
	for i := 0; i < len(t.places); {
		if !t.dropFresh(i, now) {
			i++
		}
	}
	if uint64(t.count) >= t.size*5/8 {
		t.resize(grown)
	}
}

// placesFor returns size, and the places for entries pushed beyond the end.
func placesFor(size uint64) uint64 { return size + minSize + min(size/8, 56) }

// resize moves the entries, in the same order, to a table of another size.
func (t *table) resize(size uint64) {
	old := t.places
	t.size = size
	t.places = make([]entry, placesFor(size))
	t.nextPlace = 0
	t.grown = true
	t.shared.tableBytes.Add(int64(len(t.places)-len(old)) * entryBytes)
	// The old table has the entries in their order: each goes to its place, or behind the one before.
	next := 0
	for _, e := range old {
		if e.hash == 0 {
			continue
		}
		i := max(next, t.place(e.hash))
		if i == len(t.places)-1 {
			t.extend()
		}
		t.places[i] = e
		next = i + 1
	}
}

// extend adds places at the end. That is needed very rarely, when many of the largest hashes are close
// together.
func (t *table) extend() {
	t.places = append(t.places, make([]entry, minSize)...)
	t.shared.tableBytes.Add(minSize * entryBytes)
}

// remove removes the entry of the hash, if there is one.
func (t *table) remove(hash uint64) {
	t.cool()
	i, found := t.search(hash)
	if found {
		t.removeAt(i)
	}
}

// removeAt removes the entry at i and closes the gap, so that no search ends in it.
func (t *table) removeAt(i int) {
	e := &t.places[i]
	if e.tag&long != 0 {
		t.release(e.words[1])
	}
	t.count--
	// Those behind it that are not at their place, up to the next gap, come nearer to it by one.
	end := i + 1
	for t.places[end].hash != 0 && t.place(t.places[end].hash) < end {
		end++
	}
	copy(t.places[i:end-1], t.places[i+1:end])
	t.places[end-1] = entry{}
}

// dropFresh removes the entry at i if it is fresh.
func (t *table) dropFresh(i int, now int64) bool {
	e := &t.places[i]
	if e.hash == 0 || e.words[0] >= now { // a bucket has a fraction of a microsecond more
		return false
	}
	t.removeAt(i)
	return true
}

// sweep drops the fresh entries of the next n places. At the end of the table, the table
// shrinks if few entries are left.
func (t *table) sweep(now int64, n int) {
	t.cool()
	for range min(n, len(t.places)) {
		if int(t.nextPlace) >= len(t.places) {
			t.nextPlace = 0
			if t.size > 4*minSize && uint64(t.count) < t.size/4 {
				t.resize(max(2*uint64(t.count), minSize))
			}
		}
		if !t.dropFresh(int(t.nextPlace), now) {
			t.nextPlace++
		}
	}
	if t.count == 0 {
		t.slabs = nil
		t.chunks = nil
	}
}

// admits reports whether a cell admits its units.
func (t *table) admits(cell *step.Cell, now int64) bool {
	return cell.Admits(t.state(t.find(cell)), now)
}

// take charges a cell if it admits the units and all others do, and reports whether all admit.
func (t *table) take(cell *step.Cell, now int64, mode step.Mode, othersAdmit bool) (allowed bool) {
	e := t.find(cell)
	// A key without a state admits the units: no store is asked for what neverFits (internal/backend).
	if e == nil && cell.Changes(mode, othersAdmit) {
		e = t.insert(cell, now)
	}
	state := t.state(e)
	if e != nil && cell.Policy.Grows() {
		state = t.room(e, state, cell, now, false)
	}
	allowed = cell.Take(state, now, othersAdmit && mode == step.Allow) && othersAdmit
	if !allowed && cell.Policy.CountDenied {
		cell.CountRefused(state, now, mode)
	}
	// A peek leaves the entry as it was for the next eviction.
	if e != nil && mode == step.Allow {
		t.save(e, cell, state[0], now)
	}
	cell.Instant = now
	cell.Source = step.SourceStore
	return allowed
}

// correct settles the charge of a cell, or resets it. It reports whether the units fitted.
func (t *table) correct(cell *step.Cell, now int64, mode step.Mode) bool {
	if mode == step.Reset {
		t.remove(hash(cell))
		return true
	}
	e := t.find(cell)
	if e == nil && cell.Changes(mode, true) {
		e = t.insert(cell, now)
	}
	state := t.state(e)
	// What was used counts, whether it fits or not.
	if e != nil && cell.Policy.Grows() {
		state = t.room(e, state, cell, now, true)
	}
	cell.Settle(state, now)
	if e != nil {
		t.save(e, cell, state[0], now)
	}
	cell.Instant = now
	cell.Source = step.SourceStore
	return cell.Shortfall == 0
}

// state returns the words of an entry, which may be modified.
func (t *table) state(entry *entry) []int64 {
	switch {
	case entry == nil:
		return nil
	case entry.tag&long != 0:
		return t.longState(entry.words[1])
	}
	return entry.words[:]
}

// room returns a state with room for the units of a cell: its own, or a longer one.
func (t *table) room(entry *entry, state []int64, cell *step.Cell, now int64, anyway bool) []int64 {
	length := int(cell.Length(state, now, anyway))
	if length == len(state) {
		return state
	}
	at := t.reserve(entry.hash, length)
	step.Grow(t.longState(at), state)
	t.release(entry.words[1]) // which tells an entry, and that may be this one
	entry.words[1] = at
	return t.state(entry)
}

// save keeps the first word of a long state, as a short one is in the entry already, and notes until when a charge is
// refused, or no unit is left.
func (t *table) save(entry *entry, cell *step.Cell, word, now int64) {
	entry.words[0] = word
	if cell.Shortfall > 0 || cell.Remaining == 0 {
		t.note(entry, cell, now)
	}
}

// note notes until when a charge is refused, or no unit is left. What stands is not replaced, unless it is no
// refusal, and this is one: so refusals rarely change memory that other processors have read.
func (t *table) note(entry *entry, cell *step.Cell, now int64) {
	stands := entry.rank(t.shared.coarse(now))
	if stands == rankRefused || stands == rankUsedUp && cell.Shortfall == 0 {
		return
	}
	entry.waitUntil = t.shared.coarse(now+cell.NextAfter) << 1
	if cell.Shortfall > 0 {
		entry.waitUntil = t.shared.coarse(now+min(cell.RetryAfter, step.MaxSpan))<<1 | refused
	}
}
