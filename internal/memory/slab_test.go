package memory

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// Keys of one shard count right while their long states, of several lengths, come, grow, move and go, and some of them are
// hot; and their bytes are those that the shard has.
func TestStatesMove(t *testing.T) {
	const limit, hour = 100, 3600_000_000
	log := step.Numbers{Kind: step.SlidingLog, Limit: limit, Period: hour}
	window := func(resolution int64) step.Numbers {
		return step.Numbers{Kind: step.SlidingWindow, Limit: limit, Period: hour, Resolution: resolution}
	}
	for _, numbers := range [][]step.Numbers{{log, log}, {window(1), window(60)}, {window(1000), log}, {window(10)}} {
		states := New(0)
		var policies []step.Policy
		for i, of := range numbers {
			policy, err := step.New("api", strconv.Itoa(i), of)
			if err != nil {
				t.Fatal(err)
			}
			policies = append(policies, policy)
		}
		const number = 7
		var keys []string
		for i := 0; len(keys) < 50; i++ {
			if key := strconv.Itoa(i); step.Hash(key)%shards == number {
				keys = append(keys, key)
			}
		}
		random := rand.New(rand.NewPCG(3, 4))
		used := make(map[string]int64)
		ask := func(mode step.Mode, key string) (allowed bool, left int64) {
			cells := make([]step.Cell, len(policies))
			for i := range cells {
				cells[i].Set(&policies[i], key, step.Hash(key), 1)
			}
			var receipt store.Receipt
			allowed = states.Answer(mode, cells, &receipt)
			return allowed, cells[len(cells)-1].Remaining
		}
		for range 3000 {
			key := keys[random.IntN(len(keys))]
			if random.IntN(4) == 0 {
				ask(step.Reset, key)
				used[key] = 0
				continue
			}
			for range 1 + random.IntN(50) {
				allowed, left := ask(step.Allow, key)
				fits := used[key] < limit
				if fits {
					used[key]++
				}
				if allowed != fits || left != limit-used[key] {
					t.Fatalf("key %s, of which %d are used: %t, %d are left", key, used[key], allowed, left)
				}
			}
			held := int64(0)
			for _, chunk := range states.shards[number].table.chunks {
				if chunk != nil {
					held += 8*int64(len(chunk)) + chunkOverhead
				}
			}
			if counted := states.shared.longBytes.Load(); counted != held {
				t.Fatalf("%d bytes are counted, and %d are held", counted, held)
			}
		}
		for _, key := range keys {
			ask(step.Reset, key)
		}
		if use := states.Use(); use.Keys != 0 || states.shared.longBytes.Load() != 0 {
			t.Errorf("%+v, of which %d are long", use, states.shared.longBytes.Load())
		}
	}
}
