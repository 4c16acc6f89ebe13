package keeper

import (
	"hash/maphash"
	"math"
	"time"
)

// answers remembers how many slots of a key others held by the last answer about it. It has
// room for maxAnswers keys, and forgets one for another.
type answers struct {
	seed maphash.Seed
	all  []answer // nil until others hold something
}

const maxAnswers = 1 << 16

// An answer is one of a key; two keys with the same hash are taken for one.
type answer struct {
	check  uint32 // the part of the hash that is not its place
	others uint32 // at most; 0: there is no answer
	at     time.Duration
}

func (a *answers) find(name, key string) (place *answer, check uint32) {
	var h maphash.Hash
	h.SetSeed(a.seed)
	_, _ = h.WriteString(name)
	_ = h.WriteByte(0) // names are printable
	_, _ = h.WriteString(key)
	sum := h.Sum64()
	return &a.all[sum%maxAnswers], uint32(sum >> 32)
}

// note notes an answer.
func (a *answers) note(name, key string, others int64, at time.Duration) {
	if a.all == nil {
		if others == 0 {
			return
		}
		a.all = make([]answer, maxAnswers)
	}
	place, check := a.find(name, key)
	if others > 0 || place.check == check {
		*place = answer{check, uint32(min(max(others, 0), math.MaxUint32)), at}
	}
}

// others returns how many slots others held by an answer that is younger than since.
func (a *answers) others(name, key string, since time.Duration) int64 {
	if a.all == nil {
		return 0
	}
	if place, check := a.find(name, key); place.check == check && place.at > since {
		return int64(place.others)
	}
	return 0
}
