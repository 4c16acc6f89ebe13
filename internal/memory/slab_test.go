package memory

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// States of a slab stay what they are while others come and go, and its bytes are those that it has.
func TestSlab(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, length := range []int{3, 7, 13, 63, 64, 1027} {
		s := newSlab(length)
		var bytes atomic.Int64
		var places []uint64               // of each hash, which is its index and 1
		model := make(map[uint64][]int64) // by hash
		where := make(map[uint64]uint64)  // of each hash that has a state
		for range 5000 {
			if random.IntN(5) < 3 && len(places) < 3000 {
				hash := uint64(len(places) + 1)
				place := s.add(hash, &bytes)
				places = append(places, place)
				state := s.state(place)
				if slices.ContainsFunc(state, func(word int64) bool { return word != 0 }) {
					t.Fatal("a new state is not zero")
				}
				for i := range state {
					state[i] = random.Int64()
				}
				model[hash] = slices.Clone(state)
				where[hash] = place
			} else if len(where) > 0 {
				hash := uint64(random.IntN(len(places)) + 1)
				place, has := where[hash]
				if !has {
					continue
				}
				moved := s.remove(place, &bytes)
				delete(model, hash)
				delete(where, hash)
				if moved != hash {
					where[moved] = place
				}
			}
		}
		held := int64(0)
		for _, chunk := range s.chunks {
			held += 8*int64(len(chunk)) + chunkOverhead
		}
		if bytes.Load() != held || held > 2*8*int64(length+1)*int64(len(model)+8) {
			t.Errorf("%d states of %d words: %d bytes are counted, %d are held", len(model), length, bytes.Load(), held)
		}
		for hash, want := range model {
			if got := s.state(where[hash]); !slices.Equal(got, want) {
				t.Fatalf("length %d: state %d has changed", length, hash)
			}
		}
	}
}

// Keys of one shard count right while their states grow, move and go, and some of them are hot.
func TestStatesMove(t *testing.T) {
	states := New(0)
	var policies []step.Policy
	for i, limit := range []int64{200, 100} {
		policy, err := step.New("api", strconv.Itoa(i), step.Numbers{Kind: step.SlidingLog, Limit: limit, Period: 3600_000_000})
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, policy)
	}
	var keys []string
	for i := 0; len(keys) < 12; i++ {
		key := strconv.Itoa(i)
		if step.Hash(key)%shards == 7 {
			keys = append(keys, key)
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	used := make(map[string]int64)
	ask := func(mode step.Mode, key string, count int) (allowed bool, left int64) {
		cells := make([]step.Cell, count)
		for i := range cells {
			cells[i].Set(&policies[i], key, step.Hash(key), 1)
		}
		var receipt store.Receipt
		allowed = states.Answer(mode, cells, &receipt)
		return allowed, cells[count-1].Remaining
	}
	for range 3000 {
		key := keys[random.IntN(len(keys))]
		if random.IntN(4) == 0 {
			ask(step.Reset, key, 2)
			used[key] = 0
			continue
		}
		for range 1 + random.IntN(50) {
			allowed, left := ask(step.Allow, key, 2)
			fits := used[key] < 100
			if fits {
				used[key]++
			}
			if allowed != fits || left != 100-used[key] {
				t.Fatalf("key %s, of which %d are used: %t, %d are left", key, used[key], allowed, left)
			}
		}
	}
	for _, key := range keys {
		ask(step.Reset, key, 2)
	}
	if use := states.Use(); use.Keys != 0 || states.shared.longBytes.Load() != 0 {
		t.Errorf("%+v, of which %d are long", use, states.shared.longBytes.Load())
	}
}
