package memory

import (
	"math/bits"
	"slices"
)

// A slab holds the long states of one length of a table, one behind the other in chunks. So a state is found by one
// load, nothing is copied when another comes, and the garbage collector has few objects. There are no gaps: the last
// state of a slab takes the place of one that is removed, and the last chunk goes when it is empty. So each state has
// the hash of its entry behind it, which has to learn where it is:
//
//	chunk 0: state 0, hash, ... state 7, hash
//	chunk 1: state 8, hash, ... state 15, hash
type slab struct {
	length  int   // of a state, in words
	shift   int   // the first chunks have 1<<shift states
	count   int   // states
	numbers []int // of its chunks, among those of the table
}

// A ref says where a state is: from the highest bits on, the number of its chunk, its length, and its first word.
type ref = int64

const (
	chunkBit  = 44
	lengthBit = 32

	firstWords    = 128 // of the first chunks at most, unless a state is longer
	chunkOverhead = 40  // bytes of a chunk besides its words: its slice, its number, and what the runtime rounds up
)

// longState returns a long state.
func (t *table) longState(at ref) []int64 {
	return t.chunks[at>>chunkBit][uint32(at):][:at>>lengthBit&(1<<(chunkBit-lengthBit)-1)]
}

// hashOf returns the hash of the entry of a long state.
func (t *table) hashOf(at ref) *int64 {
	state := t.longState(at)
	return &state[:len(state)+1][len(state)]
}

// locate returns where the state of a number is, and the index of its chunk in the slab. The first eight chunks are of
// one size, the next four of twice that, and so on: so no more than a quarter of the room is empty.
func (s *slab) locate(number int) (chunk, word int) {
	unit := number >> s.shift
	doublings := max(bits.Len(uint(unit))-3, 0)
	inChunk := number & (1<<(s.shift+doublings) - 1)
	return 4*doublings + unit>>doublings, inChunk * (s.length + 1)
}

// ref returns where the state of a number is. Its chunk is there.
func (s *slab) ref(number int) ref {
	chunk, word := s.locate(number)
	return int64(s.numbers[chunk])<<chunkBit | int64(s.length)<<lengthBit | int64(word)
}

// reserve returns where a new long state of zeros is, for the entry of a hash.
func (t *table) reserve(hash uint64, length int) ref {
	t.grown = true
	s := t.slabOf(length)
	chunk, _ := s.locate(s.count)
	if chunk == len(s.numbers) {
		t.addChunk(s)
	}
	at := s.ref(s.count)
	s.count++
	*t.hashOf(at) = int64(hash)
	return at
}

// slabOf returns the slab of states of a length.
func (t *table) slabOf(length int) *slab {
	if t.slabs == nil {
		t.slabs = new([]slab)
	}
	i := slices.IndexFunc(*t.slabs, func(s slab) bool { return s.length == length })
	if i < 0 {
		i = len(*t.slabs)
		shift := bits.Len(uint(firstWords/(length+1)|1)) - 1
		*t.slabs = append(*t.slabs, slab{length: length, shift: shift})
	}
	return &(*t.slabs)[i]
}

// addChunk adds the next chunk to a slab.
func (t *table) addChunk(s *slab) {
	doublings := max(len(s.numbers)/4-1, 0)
	chunk := make([]int64, (s.length+1)<<(s.shift+doublings))
	number := slices.IndexFunc(t.chunks, func(chunk []int64) bool { return chunk == nil })
	if number < 0 {
		number = len(t.chunks)
		t.chunks = append(t.chunks, nil)
	}
	t.chunks[number] = chunk
	s.numbers = append(s.numbers, number)
	t.shared.longBytes.Add(8*int64(len(chunk)) + chunkOverhead)
}

// release frees a long state. The last of its slab is moved to its place, and its entry is told.
func (t *table) release(at ref) {
	s := t.slabOf(len(t.longState(at)))
	s.count--
	last := s.ref(s.count)
	moved := *t.hashOf(last)
	copy(t.longState(at), t.longState(last))
	*t.hashOf(at) = moved
	clear(t.longState(last))
	t.tell(uint64(moved), at)
	// A chunk that is empty is memory that others may take.
	if uint32(last) == 0 {
		end := len(s.numbers) - 1
		number := s.numbers[end]
		t.shared.longBytes.Add(-8*int64(len(t.chunks[number])) - chunkOverhead)
		t.chunks[number] = nil
		s.numbers = s.numbers[:end]
	}
}

// tell tells an entry where its long state is.
func (t *table) tell(hash uint64, at ref) {
	switch hash {
	case t.hot.hash:
		t.hot.words[1] = at
	case t.second.hash:
		t.second.words[1] = at
	default:
		i, _ := t.search(hash)
		t.places[i].words[1] = at
	}
}
