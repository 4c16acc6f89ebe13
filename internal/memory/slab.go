package memory

import (
	"math/bits"
	"sync/atomic"
)

// A slab holds the long states of one length, one behind the other in chunks. So a state is found by one load, nothing
// is copied when another comes, and the garbage collector has few objects. There are no gaps: the last state takes the
// place of one that is removed, and the last chunk goes when it is empty. So each state has the hash of its entry
// behind it, which has to learn where it is:
//
//	chunk 0: state 0, hash, ... state 7, hash
//	chunk 1: state 8, hash, ... state 15, hash
type slab struct {
	length int // of a state, in words
	shift  int // the first chunks have 1<<shift states
	count  int // states
	chunks [][]int64
}

const (
	wordBits      = 32  // of the place of a state: below them is its word in its chunk, and above them the chunk
	firstWords    = 128 // of the first chunks at most, unless a state is longer
	chunkOverhead = 40  // bytes of a chunk besides its words: its slice, and what the runtime rounds up
)

func newSlab(length int) slab {
	return slab{length: length, shift: bits.Len(uint(firstWords/(length+1)|1)) - 1}
}

// state returns the state at a place.
func (s *slab) state(place uint64) []int64 {
	return s.chunks[place>>wordBits][uint32(place):][:s.length]
}

// hash returns the hash of the entry of the state at a place.
func (s *slab) hash(place uint64) *int64 {
	return &s.chunks[place>>wordBits][int(uint32(place))+s.length]
}

// place returns the place of the state of a number. The first eight chunks are of one size, the next four of twice
// that, and so on: so no more than a quarter of the room is empty.
func (s *slab) place(number int) uint64 {
	unit := number >> s.shift
	double := max(bits.Len(uint(unit))-3, 0)
	chunk := 4*double + unit>>double
	inChunk := number & (1<<(s.shift+double) - 1)
	return uint64(chunk)<<wordBits | uint64(inChunk*(s.length+1))
}

// add adds a state of zeros for the entry of a hash, and returns its place. The bytes are those of all slabs.
func (s *slab) add(hash uint64, bytes *atomic.Int64) (place uint64) {
	place = s.place(s.count)
	if int(place>>wordBits) == len(s.chunks) {
		double := max(len(s.chunks)/4-1, 0)
		chunk := make([]int64, (s.length+1)<<(s.shift+double))
		s.chunks = append(s.chunks, chunk)
		bytes.Add(8*int64(len(chunk)) + chunkOverhead)
	}
	s.count++
	*s.hash(place) = int64(hash)
	return place
}

// remove removes the state at a place, and returns the hash of the entry whose state is there now: its own, if it was
// the last.
func (s *slab) remove(place uint64, bytes *atomic.Int64) (moved uint64) {
	s.count--
	last := s.place(s.count)
	moved = uint64(*s.hash(last))
	copy(s.state(place), s.state(last))
	*s.hash(place) = int64(moved)
	clear(s.state(last))
	// A chunk that is empty is memory that others may take.
	if uint32(last) == 0 {
		chunk := last >> wordBits
		bytes.Add(-8*int64(len(s.chunks[chunk])) - chunkOverhead)
		s.chunks[chunk] = nil
		s.chunks = s.chunks[:chunk]
	}
	return moved
}
