package memstore

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/headgate/headgate/internal/old/core/step"
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
	hand    int // where the next sweep, or search for long states, begins
	kinds   kinds
	budget  *budget
	evicted uint64

	long [][]int64
	free []uint32 // unused indexes of long

	besides map[uint64]*beside // by the hash of entries with the bit several
}

type entry struct {
	hash    uint64   // 0: empty
	words   [2]int64 // the state; of a long one, its index in table.long
	kind    uint32   // the number of the step that the state was stored with, and two bits
	refused uint32   // the largest charge that was refused and has not fitted since, or 0
}

// The bits of entry.kind.
const (
	long      = 1 << 31 // the state is in table.long
	several   = 1 << 30 // it has states of other parameters beside its own
	entryBits = long | several
)

const (
	entryBytes = int64(unsafe.Sizeof(entry{}))
	longBytes  = 40 // of a long state besides its words: slice, number, rounding

	minSize    = 8
	sampleSize = 24  // entries of which one is evicted
	sampleRun  = 4   // of them that are neighbours
	maxLooks   = 256 // places that are searched for long entries while the lock is held
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

// insert adds an entry for a hash that the table does not hold, with a state, of which it keeps
// a long one. Entries found before may move, or be evicted.
func (t *table) insert(hash uint64, s step.Step, state []int64, now int64) *entry {
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
	t.setState(e, state)
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
		s := newSample()
		const parts = sampleSize / sampleRun
		for i := range uint64(parts) {
			place := (s.salt + i*uint64(len(t.places))/parts) % uint64(len(t.places))
			t.choose(&s, nil, now, int(place), len(t.places)/parts, anyEntry)
		}
		if s.size() > 0 {
			t.evict(s.choice(), now)
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
	t.setBeside(e, &beside{})
	t.kinds.drop(e.kind &^ entryBits)
	if e.kind&long != 0 {
		t.budget.long.Add(-longBytes - 8*int64(len(t.state(e))))
		i := e.words[0]
		t.long[i] = nil
		t.free = append(t.free, uint32(i))
	}
}

// dropFresh removes the entry at i if it is fresh.
func (t *table) dropFresh(i int, now int64) bool {
	e := &t.places[i]
	if e.hash == 0 || t.freshAt(e) > now {
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
	from  *shard // set by reclaim
	rank  rank
	fresh int64  // the instant
	lot   uint64 // decides between equals, in each sample anew
}

// A rank says what evicting an entry would admit. What is left does not tell: under a limit
// of one unit, each key of a flood is used up, and a key that is refused 4,000 units may have
// 2,000 left.
type rank uint8

const (
	rankRoom    rank = iota // to a key that has units left, nothing that it was refused
	rankUsedUp              // a unit, to a key that was refused nothing
	rankRefused             // what the key was refused
)

func (c candidate) before(d candidate) bool {
	if c.rank != d.rank {
		return c.rank < d.rank
	}
	if c.fresh != d.fresh {
		return c.fresh < d.fresh
	}
	return c.lot < d.lot
}

// rank returns the rank of an entry.
func (t *table) rank(e *entry, now int64) rank {
	s, state := t.step(e), t.state(e)
	switch {
	case e.refuses(s, state, now):
		return rankRefused
	case s.Admits(state, now, 1):
		return rankRoom
	default:
		return rankUsedUp
	}
}

func anyEntry(*entry) bool { return true }

// longEntry reports whether more is kept of an entry than itself.
func longEntry(e *entry) bool { return e.kind&entryBits != 0 }

// A sample is the candidates of which one is evicted.
type sample struct {
	salt          uint64
	open, refused group
}

// newSample returns an empty sample. Lots are drawn, because keys of one window are all
// fresh at its end: by their order, a key might be evicted each time that it is charged.
func newSample() sample {
	return sample{salt: rand.Uint64()}
}

// A group are the candidates of rankRefused, or the others.
type group struct {
	count int
	best  candidate
}

func (g *group) add(c candidate) {
	if g.count == 0 || c.before(g.best) {
		g.best = c
	}
	g.count++
}

func (s *sample) add(c candidate) {
	c.lot = c.hash ^ s.salt
	if c.rank == rankRefused {
		s.refused.add(c)
	} else {
		s.open.add(c)
	}
}

func (s *sample) size() int { return s.open.count + s.refused.count }

// choice returns the candidate to evict. Refused keys are spared as long as they are at
// most 7 of 8: if they took all the room, each new key would be evicted at once, and would
// never be limited.
func (s *sample) choice() candidate {
	if s.refused.count > s.size()*7/8 {
		return s.refused.best
	}
	return s.open.best
}

// choose adds the next few entries of a kind to the sample, and returns where to go on. It
// looks at no more places than it may.
//
// A sample has such runs from all over the table, or from several shards, which are drawn:
// among entries that were always sampled together, those that are not refused would run out.
func (t *table) choose(s *sample, from *shard, now int64, place, looks int, of func(*entry) bool) (next int) {
	enough := s.size() + sampleRun
	for range min(looks, len(t.places)) {
		if s.size() == enough {
			break
		}
		if place >= len(t.places) {
			place = 0
		}
		e := &t.places[place]
		place++
		if e.hash != 0 && of(e) {
			s.add(candidate{hash: e.hash, from: from, rank: t.rank(e, now), fresh: t.freshAt(e)})
		}
	}
	return place
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
	if e.kind&long != 0 {
		return t.long[e.words[0]]
	}
	return e.words[:]
}

// setState replaces the state, by one that may have another length.
func (t *table) setState(e *entry, state []int64) {
	if e.kind&long == 0 && len(state) <= len(e.words) {
		copy(e.words[:], state)
		return
	}
	if e.kind&long == 0 {
		e.kind |= long
		e.words[0] = int64(t.reserve())
	}
	old := &t.long[e.words[0]]
	t.budget.long.Add(8 * int64(len(state)-len(*old)))
	*old = state
}

// reserve returns an unused index of a long state.
func (t *table) reserve() uint32 {
	t.budget.long.Add(longBytes)
	if last := len(t.free) - 1; last >= 0 {
		i := t.free[last]
		t.free = t.free[:last]
		return i
	}
	t.long = append(t.long, nil)
	return uint32(len(t.long) - 1)
}

func (t *table) step(e *entry) step.Step { return t.kinds.all[e.kind&^entryBits].step }

// has reports whether the state was stored with the policy's numbers.
func (t *table) has(e *entry, p *policy) bool {
	return t.kinds.all[e.kind&^entryBits].numbers == p.numbers
}

func (t *table) setStep(e *entry, s step.Step) {
	kind := t.kinds.take(s) // first, so that a kind is not dropped and added again
	t.kinds.drop(e.kind &^ entryBits)
	e.kind = kind | e.kind&entryBits
}

// refuse notes that n units were refused. The larger refusal stands for the longer time.
// It writes only what is new, so that refusals rarely change memory that other cores have
// read.
func (e *entry) refuse(n int64) {
	if n := uint32(min(n, math.MaxUint32)); n > e.refused {
		e.refused = n
	}
}

// refuses reports whether the refusal that was noted stands: whether its units still do
// not fit. One of more units than are noted exactly stands until as many fit as ever do.
func (e *entry) refuses(s step.Step, state []int64, now int64) bool {
	if e.refused == 0 {
		return false
	}
	n := s.Max()
	if e.refused < math.MaxUint32 {
		n = min(n, int64(e.refused))
	}
	return !s.Admits(state, now, n)
}
