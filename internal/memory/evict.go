package memory

import "math/rand/v2"

// A candidate for eviction. Those of a lower rank are better, and among them the one
// that is fresh the soonest.
type candidate struct {
	hash         uint64
	shard        *shard // set by reclaim
	rank         rank
	freshInstant int64  // from which it counts nothing
	lot          uint64 // decides between equals, in each sample anew
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

// before reports whether a candidate is the better one.
func (c candidate) before(other candidate) bool {
	if c.rank != other.rank {
		return c.rank < other.rank
	}
	if c.freshInstant != other.freshInstant {
		return c.freshInstant < other.freshInstant
	}
	return c.lot < other.lot
}

// rank returns the rank of an entry.
func (e *entry) rank(coarseNow uint32) rank {
	switch {
	case e.waitUntil>>1 < coarseNow || e.waitUntil == 0:
		return rankRoom
	case e.waitUntil&refused != 0:
		return rankRefused
	default:
		return rankUsedUp
	}
}

func anyEntry(*entry) bool { return true }

func longEntry(entry *entry) bool { return entry.tag&long != 0 }

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

func (g *group) add(found candidate) {
	if g.count == 0 || found.before(g.best) {
		g.best = found
	}
	g.count++
}

func (s *sample) add(found candidate) {
	found.lot = found.hash ^ s.salt
	if found.rank == rankRefused {
		s.refused.add(found)
	} else {
		s.open.add(found)
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
func (t *table) choose(
	chosen *sample, shard *shard, now int64, place, looks int, wanted func(*entry) bool,
) (next int) {
	t.cool()
	enough := chosen.size() + sampleRun
	for range min(looks, len(t.places)) {
		if chosen.size() == enough {
			break
		}
		if place >= len(t.places) {
			place = 0
		}
		e := &t.places[place]
		place++
		if e.hash != 0 && wanted(e) {
			rank := e.rank(t.shared.coarse(now))
			chosen.add(candidate{hash: e.hash, shard: shard, rank: rank, freshInstant: e.words[0]})
		}
	}
	return place
}

// evictOne evicts the entry that is the best of a sample from all over the table.
func (t *table) evictOne(now int64) {
	chosen := newSample()
	const parts = sampleSize / sampleRun
	for i := range uint64(parts) {
		place := (chosen.salt + i*uint64(len(t.places))/parts) % uint64(len(t.places))
		t.choose(&chosen, nil, now, int(place), len(t.places)/parts, anyEntry)
	}
	if chosen.size() > 0 {
		t.evict(chosen.choice(), now)
	}
}

// evict removes a candidate, if it is still there.
func (t *table) evict(chosen candidate, now int64) {
	t.cool()
	i, found := t.search(chosen.hash)
	if !found {
		return
	}
	if chosen.freshInstant > now {
		t.shared.evicted.Add(1)
	}
	t.removeAt(i)
}
