package memory

import (
	"math"
	"math/bits"
	"math/rand/v2"
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
	// hot is the entry that was asked for hotAfter times in a row, or empty. Its place has the hash, and what
	// was before. All that looks at other entries puts it back first.
	hot  entry
	last uint64 // the hash that was asked for last
	row  uint32 // so many times

	places []entry // size of them, and some for entries pushed beyond the end; the last is empty
	size   uint64
	count  int
	hand   int // where the next sweep, or search for long states, begins
	shared *shared

	long  [][]int64
	free  []uint32 // unused indexes of long
	grown bool     // it has taken memory
}

// nothing is the places of an empty table.
var nothing [1]entry

type entry struct {
	hash  uint64   // 0: empty
	words [2]int64 // the state; of a long one, its first word, and its index in table.long
	tag   uint32   // of the policy, and the bit long
	until uint32   // until which instant it is used up or, with the bit refused, a charge is refused
}

const (
	long    = 1 // the state is in table.long
	refused = 1
)

const (
	entryBytes = int64(unsafe.Sizeof(entry{}))
	longBytes  = 40 // of a long state besides its words: slice, number, rounding

	hotAfter = 32

	minSize    = 8
	sampleSize = 24  // entries of which one is evicted
	sampleRun  = 4   // of them that are neighbours
	maxLooks   = 256 // places that are searched for long entries while the lock is held
)

// shared is what the tables of a store share.
type shared struct {
	max     int64 // bytes
	origin  int64 // when the store was made
	tables  atomic.Int64
	longs   atomic.Int64
	evicted atomic.Uint64 // entries that still counted
}

func (b *shared) used() int64 { return b.tables.Load() + b.longs.Load() }

// allowsTable reports whether a table may grow by more places to size. All tables together take at most
// three quarters of the bytes, to leave room for long states. A table may always have its share of half,
// even if long states have taken it; those are then reclaimed.
func (b *shared) allowsTable(size, more int64) bool {
	more *= entryBytes
	return size*entryBytes <= b.max/2/shards ||
		b.tables.Load()+more <= b.max/4*3 && b.used()+more <= b.max
}

// overrun reports whether long states must be evicted. They may always have a quarter of the bytes.
func (b *shared) overrun() bool { return b.longs.Load() > b.max/4 && b.used() > b.max }

// coarse returns an instant in eighths of a second since the store was made.
func (b *shared) coarse(at int64) uint32 {
	return uint32(min(max(at-b.origin, 0)>>17, math.MaxUint32>>1))
}

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

// hash returns the hash of a cell. The table places it by its high bits; the shard was chosen by the low bits
// of the key's. 0 marks an empty place.
func hash(c *step.Cell) uint64 { return max(c.Hash^c.Policy.ID, 1) }

// find returns the entry of a cell, or nil.
func (t *table) find(c *step.Cell) *entry {
	if t.hot.hash == hash(c) && t.hot.tag == c.Policy.Tag {
		return &t.hot
	}
	return t.findOther(c)
}

func (t *table) findOther(c *step.Cell) *entry {
	h := hash(c)
	i, found := t.search(h)
	if !found || t.places[i].tag != c.Policy.Tag {
		return nil
	}
	if t.row++; t.last != h {
		t.last, t.row = h, 0
	}
	if t.row < hotAfter {
		return &t.places[i]
	}
	t.cool()
	t.hot = t.places[i]
	return &t.hot
}

// cool puts the hot entry back to its place.
func (t *table) cool() {
	if t.hot.hash != 0 {
		i, _ := t.search(t.hot.hash)
		t.places[i], t.hot, t.row = t.hot, entry{}, 0
	}
}

// insert adds an entry with a new state. Others may move, or be evicted. One of the same hash, which is of
// another policy, is replaced.
func (t *table) insert(c *step.Cell, now int64) *entry {
	h, p := hash(c), c.Policy
	if _, found := t.search(h); found { // of another policy
		t.remove(h)
	}
	if uint64(t.count) >= t.size*4/5 {
		t.makeRoom(now)
	}
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
	*e = entry{hash: h, tag: p.Tag}
	if e.tag&long != 0 {
		e.words[1] = int64(t.reserve(p.New()))
	}
	return e
}

// makeRoom drops the fresh entries and, if that is not enough, lets the table grow by a quarter. If there
// is no memory for that, it evicts an entry instead.
func (t *table) makeRoom(now int64) {
	t.cool()
	grown := t.size + t.size/4 + minSize
	if more := placesFor(grown) - uint64(len(t.places)); !t.shared.allowsTable(int64(grown), int64(more)) {
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
	t.hand, t.grown = 0, true
	t.shared.tables.Add(int64(len(t.places)-len(old)) * entryBytes)
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
	t.shared.tables.Add(minSize * entryBytes)
}

// remove removes the entry of the hash, if there is one.
func (t *table) remove(hash uint64) {
	t.cool()
	if i, found := t.search(hash); found {
		t.removeAt(i)
	}
}

// removeAt removes the entry at i and closes the gap, so that no search ends in it.
func (t *table) removeAt(i int) {
	if e := &t.places[i]; e.tag&long != 0 {
		t.shared.longs.Add(-longBytes - 8*int64(len(t.state(e))))
		t.long[e.words[1]] = nil
		t.free = append(t.free, uint32(e.words[1]))
	}
	t.count--
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

// admits reports whether a cell admits its units.
func (t *table) admits(c *step.Cell, now int64) bool { return c.Admits(t.state(t.find(c)), now) }

// take charges a cell if it admits the units and all others do, and reports whether all admit.
func (t *table) take(c *step.Cell, now int64, mode step.Mode, others bool) (allowed bool) {
	e := t.find(c)
	if e == nil && c.Changes(mode, others) { // a key without a state admits all that is asked for
		e = t.insert(c, now)
	}
	state := t.state(e)
	if c.Policy.Grows() {
		state = t.room(e, c, now, false)
	}
	if allowed = c.Take(state, now, others && mode == step.Allow) && others; !allowed && c.Policy.CountDenied {
		c.CountRefused(state, now, mode)
	}
	if e != nil && mode == step.Allow {
		t.save(e, c, state[0], now)
	}
	c.Instant, c.Source = now, step.SourceStore
	return allowed
}

// correct settles the charge of a cell, or resets it. It reports whether the units fitted.
func (t *table) correct(c *step.Cell, now int64, mode step.Mode) bool {
	if mode == step.Reset {
		t.remove(hash(c))
		return true
	}
	e := t.find(c)
	if e == nil && c.Changes(mode, true) {
		e = t.insert(c, now)
	}
	state := t.state(e)
	if c.Policy.Grows() {
		state = t.room(e, c, now, true)
	}
	if c.Settle(state, now); e != nil {
		t.save(e, c, state[0], now)
	}
	c.Instant, c.Source = now, step.SourceStore
	return c.Shortfall == 0
}

// state returns the words of an entry, which may be modified.
func (t *table) state(e *entry) []int64 {
	switch {
	case e == nil:
		return nil
	case e.tag&long != 0:
		return t.long[e.words[1]]
	}
	return e.words[:]
}

// room returns the state with room for the units of a cell.
func (t *table) room(e *entry, c *step.Cell, now int64, anyway bool) []int64 {
	if e == nil {
		return nil
	}
	old := &t.long[e.words[1]]
	state := c.Room(*old, now, anyway)
	if len(state) != len(*old) {
		t.shared.longs.Add(8 * int64(len(state)-len(*old)))
		*old, t.grown = state, true
	}
	return state
}

// save keeps the first word of a state, and notes until when a charge is refused, or no unit is left.
func (t *table) save(e *entry, c *step.Cell, word, now int64) {
	e.words[0] = word
	if c.Shortfall > 0 || c.Remaining == 0 {
		t.note(e, c, now)
	}
}

// reserve returns an unused index for a long state.
func (t *table) reserve(state []int64) int {
	t.shared.longs.Add(longBytes + 8*int64(len(state)))
	t.grown = true
	if last := len(t.free) - 1; last >= 0 {
		i := t.free[last]
		t.free = t.free[:last]
		t.long[i] = state
		return int(i)
	}
	t.long = append(t.long, state)
	return len(t.long) - 1
}

// note notes until when a charge is refused, or no unit is left. What stands is not replaced, unless it is no
// refusal, and this is one: so refusals rarely change memory that other processors have read.
func (t *table) note(e *entry, c *step.Cell, now int64) {
	if stands := e.rank(t.shared.coarse(now)); stands == rankRefused || stands == rankUsedUp && c.Shortfall == 0 {
		return
	}
	e.until = t.shared.coarse(now+c.NextAfter) << 1
	if c.Shortfall > 0 {
		e.until = t.shared.coarse(now+min(c.RetryAfter, step.MaxSpan))<<1 | refused
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
func (e *entry) rank(now uint32) rank {
	switch {
	case e.until>>1 < now || e.until == 0:
		return rankRoom
	case e.until&refused != 0:
		return rankRefused
	default:
		return rankUsedUp
	}
}

func anyEntry(*entry) bool { return true }

func longEntry(e *entry) bool { return e.tag&long != 0 }

// A sample is the candidates of which one is evicted.
type sample struct {
	salt          uint64
	open, refused group
}

// newSample returns an empty sample. Lots are drawn, because keys of one window are all
// fresh at its end: by their order, a key might be evicted each time that it is charged.
func newSample() sample {
	return sample{salt: rand.Uint64()} //nolint:gosec // hashes are secret
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
	t.cool()
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
			s.add(candidate{hash: e.hash, from: from, rank: e.rank(t.shared.coarse(now)), fresh: e.words[0]})
		}
	}
	return place
}

// evict removes a candidate, if it is still there.
func (t *table) evict(c candidate, now int64) {
	t.cool()
	i, found := t.search(c.hash)
	if !found {
		return
	}
	if c.fresh > now {
		t.shared.evicted.Add(1)
	}
	t.removeAt(i)
}
