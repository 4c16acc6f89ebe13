package memstore

import (
	"math/bits"
	"unsafe"

	"github.com/headgate/headgate/core/step"
)

// A table maps hashes to states. Its places hold entries in the order of their hashes,
// with gaps: an entry is at or shortly after the place that its hash, read as a fraction
// of 2^64, points to. So a search ends at the first larger hash, resizing is one pass, and
// any size is possible.
//
// Entries contain no pointers, so the garbage collector does not scan them. States of one
// or two words are in the entry; longer ones are separate.
type table struct {
	places  []entry // size of them, and some for entries pushed beyond the end; the last is empty
	size    uint64
	count   int
	hand    int // where the next sweep, or search for a victim, begins
	kinds   kinds
	budget  *budget
	evicted uint64

	long [][]int64
	free []uint32 // unused numbers of long
}

type entry struct {
	hash  uint64 // 0: empty
	words [2]int64
	long  uint32 // 1 + the state's index in table.long, or 0
	kind  uint32 // the number of the step that the state was stored with, and the refused bit
}

// refused is the bit of entry.kind that is set once the entry has refused a charge.
const refused = 1 << 31

const (
	entryBytes = int64(unsafe.Sizeof(entry{}))
	longBytes  = 40 // of a long state besides its words: slice, number, rounding

	minSize  = 8
	sample   = 16  // entries among which one is chosen to be evicted
	maxLooks = 256 // places searched for long entries while the lock is held
)

func (t *table) place(hash uint64) int {
	hi, _ := bits.Mul64(hash, t.size)
	return int(hi)
}

// search returns the place of the hash, or the one where it would be inserted.
func (t *table) search(hash uint64) (i int, found bool) {
	for i = t.place(hash); ; i++ {
		if h := t.places[i].hash; h >= hash || h == 0 {
			return i, h == hash
		}
	}
}

func (t *table) find(hash uint64) *entry {
	if t.size == 0 {
		return nil
	}
	if i, found := t.search(hash); found {
		return &t.places[i]
	}
	return nil
}

// insert adds an entry for a hash that the table does not hold. Entries found before may
// move, or be evicted.
func (t *table) insert(hash uint64, s step.Step, now int64) *entry {
	if uint64(t.count) >= t.size*4/5 {
		t.makeRoom(now)
	}
	i, gap := t.gap(hash)
	if gap == len(t.places)-1 {
		t.extend()
	}
	copy(t.places[i+1:gap+1], t.places[i:gap])
	e := &t.places[i]
	*e = entry{hash: hash, kind: t.kinds.take(s)}
	t.count++
	if words := s.Words(); words > len(e.words) {
		t.setState(e, make([]int64, words))
	}
	return e
}

// gap returns where the hash goes, and the first empty place from there on.
func (t *table) gap(hash uint64) (i, gap int) {
	i, _ = t.search(hash)
	for gap = i; t.places[gap].hash != 0; gap++ {
	}
	return i, gap
}

// makeRoom drops the fresh entries and, if that is not enough, lets the table grow by a
// quarter. If there is no memory for that, it evicts an entry instead.
func (t *table) makeRoom(now int64) {
	grown := t.size + t.size/4 + minSize
	if more := placesFor(grown) - uint64(len(t.places)); !t.budget.allowsTable(int64(grown), int64(more)) {
		if c, found := t.choose(now, anyEntry, len(t.places)); found {
			t.evict(c, now)
		}
		return
	}
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
	t.hand = 0
	t.budget.tables.Add(int64(len(t.places)-len(old)) * entryBytes)
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

// extend adds places at the end. That is needed very rarely, when many of the largest
// hashes are close together.
func (t *table) extend() {
	t.places = append(t.places, make([]entry, minSize)...)
	t.budget.tables.Add(minSize * entryBytes)
}

// remove removes the entry of the hash, if there is one.
func (t *table) remove(hash uint64) {
	if t.size == 0 {
		return
	}
	if i, found := t.search(hash); found {
		t.removeAt(i)
	}
}

// removeAt removes the entry at i and closes the gap, so that no search ends in it.
func (t *table) removeAt(i int) {
	t.release(&t.places[i])
	t.count--
	end := i + 1
	for t.places[end].hash != 0 && t.place(t.places[end].hash) < end {
		end++
	}
	copy(t.places[i:end-1], t.places[i+1:end])
	t.places[end-1] = entry{}
}

// release frees what the entry refers to.
func (t *table) release(e *entry) {
	t.kinds.drop(e.kind &^ refused)
	if e.long > 0 {
		t.budget.long.Add(-longBytes - 8*int64(len(t.long[e.long-1])))
		t.long[e.long-1] = nil
		t.free = append(t.free, e.long)
	}
}

// dropFresh removes the entry at i if it is fresh.
func (t *table) dropFresh(i int, now int64) bool {
	e := &t.places[i]
	if e.hash == 0 || t.step(e).FreshAt(t.state(e)) > now {
		return false
	}
	t.removeAt(i)
	return true
}

// sweep drops the fresh entries of the next n places. At the end of the table, the table
// shrinks if few entries are left.
func (t *table) sweep(now int64, n int) {
	for range min(n, len(t.places)) {
		if t.hand >= len(t.places) {
			t.hand = 0
			if t.size > 4*minSize && uint64(t.count) < t.size/4 {
				t.resize(max(2*uint64(t.count), minSize))
			}
		}
		if !t.dropFresh(t.hand, now) {
			t.hand++
		}
	}
	if t.count == 0 {
		t.long, t.free = nil, nil
	}
}

// A candidate for eviction. Those of a lower rank are better, and among them the one
// that is fresh the soonest.
type candidate struct {
	hash  uint64
	rank  rank
	fresh int64 // the instant
}

// A rank says what evicting an entry would admit. That a key is used up is not enough to
// spare it: under a limit of one unit, so is each key of a flood.
type rank uint8

const (
	rankRoom    rank = iota // nothing more: the key has units left
	rankUsedUp              // more, to a key that has never been refused
	rankRefused             // more, to a key that has been refused and would be now
)

func (c candidate) before(d candidate) bool {
	if c.rank != d.rank {
		return c.rank < d.rank
	}
	return c.fresh < d.fresh
}

// rank returns the rank of an entry.
func (t *table) rank(e *entry, now int64) rank {
	switch {
	case t.step(e).Read(t.state(e), now, 1).Remaining > 0:
		return rankRoom
	case e.kind&refused == 0:
		return rankUsedUp
	default:
		return rankRefused
	}
}

func anyEntry(*entry) bool    { return true }
func longEntry(e *entry) bool { return e.long > 0 }

// choose samples the next entries of a kind and returns the best to evict. It looks
// at no more than the given number of places; the next call continues from there.
func (t *table) choose(now int64, of func(*entry) bool, looks int) (best candidate, found bool) {
	seen := 0
	for range min(looks, len(t.places)) {
		if t.hand >= len(t.places) {
			t.hand = 0
		}
		e := &t.places[t.hand]
		t.hand++
		if e.hash == 0 || !of(e) {
			continue
		}
		c := candidate{e.hash, t.rank(e, now), t.step(e).FreshAt(t.state(e))}
		if !found || c.before(best) {
			best, found = c, true
		}
		if seen++; seen == sample {
			break
		}
	}
	return best, found
}

// evict removes a candidate, if it is still there.
func (t *table) evict(c candidate, now int64) {
	i, found := t.search(c.hash)
	if !found {
		return
	}
	if c.fresh > now {
		t.evicted++
	}
	t.removeAt(i)
}

// state returns the words of an entry. The caller may modify them.
func (t *table) state(e *entry) []int64 {
	if e.long > 0 {
		return t.long[e.long-1]
	}
	return e.words[:]
}

// setState replaces the state, by one that may have another length.
func (t *table) setState(e *entry, state []int64) {
	if e.long == 0 && len(state) <= len(e.words) {
		copy(e.words[:], state)
		return
	}
	if e.long == 0 {
		e.long = t.reserve()
	}
	old := &t.long[e.long-1]
	t.budget.long.Add(8 * int64(len(state)-len(*old)))
	*old = state
}

// reserve returns an unused number, 1 or more, of a long state.
func (t *table) reserve() uint32 {
	t.budget.long.Add(longBytes)
	if last := len(t.free) - 1; last >= 0 {
		n := t.free[last]
		t.free = t.free[:last]
		return n
	}
	t.long = append(t.long, nil)
	return uint32(len(t.long))
}

func (t *table) step(e *entry) step.Step { return t.kinds.all[e.kind&^refused].step }

func (t *table) setStep(e *entry, s step.Step) {
	kind := t.kinds.take(s) // first, so that a kind is not dropped and added again
	t.kinds.drop(e.kind &^ refused)
	e.kind = kind | e.kind&refused
}

// markRefused notes that the entry has refused a charge. It writes only the first time, so
// that refusals rarely change memory that other cores have read.
func (e *entry) markRefused() {
	if e.kind&refused == 0 {
		e.kind |= refused
	}
}
