package memstore

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

func mustStep(t testing.TB, m step.Numbers) step.Step {
	t.Helper()
	s, err := step.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// check holds what must be true of a table after every operation.
func check(t testing.TB, tb *table) {
	t.Helper()
	var last uint64
	count, long := 0, int64(0)
	entries := make(map[uint32]int)
	for i := range tb.places {
		e := &tb.places[i]
		if e.hash == 0 {
			continue
		}
		count++
		entries[e.kind&^refused]++
		if e.hash <= last {
			t.Fatalf("place %d: hash %x after %x", i, e.hash, last)
		}
		last = e.hash
		if tb.find(e.hash) != e {
			t.Fatalf("place %d: its entry is not found", i)
		}
		if e.long > 0 {
			long += longBytes + 8*int64(len(tb.long[e.long-1]))
		}
	}
	if count != tb.count {
		t.Fatalf("count is %d, there are %d entries", tb.count, count)
	}
	if n := len(tb.places); n > 0 && tb.places[n-1].hash != 0 {
		t.Fatal("the last place is not empty")
	}
	if got := tb.budget.tables.Load(); got != int64(len(tb.places))*entryBytes {
		t.Fatalf("the budget counts %d bytes of places, there are %d", got, int64(len(tb.places))*entryBytes)
	}
	if got := tb.budget.long.Load(); got != long {
		t.Fatalf("the budget counts %d bytes of long states, there are %d", got, long)
	}
	for i, k := range tb.kinds.all {
		if k.entries != entries[uint32(i)] {
			t.Fatalf("kind %d counts %d entries, there are %d", i, k.entries, entries[uint32(i)])
		}
	}
}

// A table does what a map does, whatever is inserted, changed, removed and swept.
func TestTableIsAMap(t *testing.T) {
	steps := []step.Step{
		mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 10, Period: 1000, Burst: 10}),
		mustStep(t, step.Numbers{Algorithm: step.SlidingLog, Limit: 20, Period: 3000}),
		mustStep(t, step.Numbers{Algorithm: step.SlidingWindow, Limit: 20, Period: 2000, Resolution: 4}),
	}
	for limit := int64(1); limit <= 2*idleKinds; limit++ {
		steps = append(steps, mustStep(t, step.Numbers{Algorithm: step.FixedWindow, Limit: limit, Period: 5000}))
	}
	type kept struct {
		step  step.Step
		state []int64
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		tb := &table{budget: &budget{max: 1 << 40}}
		model := make(map[uint64]kept)
		now := int64(1_000_000)
		for range 3000 {
			hash := rng.Uint64N(400) * (1 << 54) // crowded, and in few places
			if rng.IntN(2) == 0 {
				hash += rng.Uint64N(3)
			}
			hash = max(hash, 1)
			switch rng.IntN(10) {
			case 0:
				tb.remove(hash)
				delete(model, hash)
			case 1:
				now += rng.Int64N(2000)
				tb.sweep(now, rng.IntN(100))
				for h, k := range model {
					if k.step.FreshAt(k.state) <= now && tb.find(h) == nil {
						delete(model, h)
					}
				}
			default:
				s := steps[rng.IntN(len(steps))]
				e := tb.find(hash)
				if e != nil && tb.step(e) != s {
					continue
				}
				if e == nil {
					tb.insert(hash, s, now)
					for h, k := range model { // making room drops what is fresh
						if k.step.FreshAt(k.state) <= now && tb.find(h) == nil {
							delete(model, h)
						}
					}
					model[hash] = kept{s, make([]int64, s.Words())}
					e = tb.find(hash)
				}
				old := tb.state(e)
				state := s.Charge(old, now, 1)
				if len(state) != len(old) {
					tb.setState(e, state)
				}
				k := model[hash]
				k.state = s.Charge(k.state, now, 1)
				model[hash] = k
			}
			if len(model) != tb.count {
				t.Fatalf("%d entries, want %d", tb.count, len(model))
			}
		}
		check(t, tb)
		for h, k := range model {
			e := tb.find(h)
			if e == nil {
				t.Fatalf("entry %x is gone", h)
			}
			if got, want := k.step.Read(tb.state(e), now, 1), k.step.Read(k.state, now, 1); got != want {
				t.Fatalf("entry %x reads %+v, want %+v", h, got, want)
			}
		}
		tb.sweep(now+1_000_000, len(tb.places))
		tb.sweep(now+1_000_000, len(tb.places))
		check(t, tb)
		if tb.count != 0 {
			t.Fatalf("%d entries are left when all are fresh", tb.count)
		}
		if tb.long != nil || tb.free != nil {
			t.Fatal("an empty table keeps room for long states")
		}
	}
}

// smallTable returns a table that may not grow beyond 64 places.
func smallTable() *table {
	tb := &table{budget: &budget{max: 2 * shards * 64 * entryBytes}}
	tb.budget.tables.Add(tb.budget.max) // others have taken it all
	return tb
}

// checkSmall is check for a smallTable.
func checkSmall(t *testing.T, tb *table) {
	t.Helper()
	tb.budget.tables.Add(-tb.budget.max)
	check(t, tb)
	tb.budget.tables.Add(tb.budget.max)
	if tb.size > 64 {
		t.Fatalf("the table grew to %d places", tb.size)
	}
}

// TestEvictionOrder: a full table evicts keys that have units left first, then those
// that are used up, and last those that have been refused and would be now, although
// these were charged before all others.
func TestEvictionOrder(t *testing.T) {
	const day = 86_400_000_000
	s := mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 2, Period: day, Burst: 2})
	plan := mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 1, Period: day, Burst: 1})
	const now = int64(10_000_000)
	for _, test := range []struct {
		name          string
		units         int64 // of those that are spared
		refused       bool
		flood         int64 // units of the others
		floodRefused  bool
		spared, plans bool
	}{
		{name: "used up, refused; the flood has some left", units: 2, refused: true, flood: 1, spared: true},
		{name: "used up, refused; the flood has some left and was refused more", units: 2, refused: true, flood: 1, floodRefused: true, spared: true},
		{name: "used up, refused; the flood is used up", units: 2, refused: true, flood: 2, spared: true},
		{name: "used up, refused, moved to another plan; the flood is used up", units: 2, refused: true, flood: 2, spared: true, plans: true},
		{name: "used up; the flood has some left", units: 2, flood: 1, spared: true},
		{name: "used up; the flood is used up and refused", units: 2, flood: 2, floodRefused: true},
		{name: "some left, refused more; the flood is used up", units: 1, refused: true, flood: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			tb := smallTable()
			rng := rand.New(rand.NewPCG(1, 2))
			insert := func(at, n int64, refused bool) uint64 {
				hash := rng.Uint64()
				e := tb.insert(hash, s, at)
				s.Charge(tb.state(e), at, n)
				if refused {
					e.markRefused()
				}
				return hash
			}
			first := make([]uint64, 8)
			for i := range first {
				first[i] = insert(now, test.units, test.refused)
				if test.plans {
					tb.setStep(tb.find(first[i]), plan)
				}
			}
			for range 10_000 {
				insert(now+1_000_000, test.flood, test.floodRefused) // it is fresh later
			}
			checkSmall(t, tb)
			if tb.evicted < 9_000 {
				t.Fatalf("%d evictions were counted", tb.evicted)
			}
			left := 0
			for _, h := range first {
				if tb.find(h) != nil {
					left++
				}
			}
			if spared := left == len(first); spared != test.spared || !spared && left > 0 {
				t.Errorf("%d of %d are left, spared should be %v", left, len(first), test.spared)
			}
		})
	}
}

// TestRefusalsMark: a charge that is refused marks the entries of the policies that refused
// it, and no others. A peek marks none.
func TestRefusalsMark(t *testing.T) {
	s := New(Config{})
	l, err := core.New(s, "api", core.MinInterval(time.Hour).Named("pace"), core.FixedWindow(core.PerDay(2)).CountDenied().Named("day"))
	if err != nil {
		t.Fatal(err)
	}
	marked := func() (algorithms []step.Algorithm) {
		for i := range s.shards {
			tb := &s.shards[i].table
			for j := range tb.places {
				if e := &tb.places[j]; e.kind&refused != 0 {
					algorithms = append(algorithms, tb.step(e).Numbers().Algorithm)
				}
			}
		}
		slices.Sort(algorithms)
		return algorithms
	}
	for i, want := range [][]step.Algorithm{
		nil,
		{step.MinInterval}, // the attempt uses up the day
		{step.FixedWindow, step.MinInterval},
	} {
		if _, err := l.Allow(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got := marked(); !slices.Equal(got, want) {
				t.Errorf("after %d calls %v are marked, want %v", i+1, got, want)
			}
			if d, err := l.Peek(t.Context(), "key"); err != nil || d.Allowed {
				t.Fatal(d, err)
			}
		}
	}
}

// TestEvictionsOfFreshEntriesAreNotCounted: dropping them loses nothing.
func TestEvictionsOfFreshEntriesAreNotCounted(t *testing.T) {
	s := mustStep(t, step.Numbers{Algorithm: step.FixedWindow, Limit: 2, Period: 1_000_000})
	tb := smallTable()
	rng := rand.New(rand.NewPCG(1, 2))
	insert := func(at int64) {
		e := tb.insert(rng.Uint64(), s, at)
		s.Charge(tb.state(e), at, 1)
	}
	for range 1000 {
		insert(0)
	}
	lost, full := tb.evicted, tb.count
	if lost == 0 || lost != uint64(1000-full) {
		t.Fatalf("%d evictions were counted, %d entries are left of 1000", lost, full)
	}
	for range 10 {
		insert(1_000_000) // all others are fresh
	}
	checkSmall(t, tb)
	if tb.count != full {
		t.Fatalf("%d entries, want %d: nothing was evicted", tb.count, full)
	}
	if tb.evicted != lost {
		t.Errorf("%d evictions of fresh entries were counted", tb.evicted-lost)
	}
}

// insertLong inserts a sliding log with one event at the given instant.
func insertLong(t *testing.T, tb *table, hash uint64, at int64) {
	t.Helper()
	s := mustStep(t, step.Numbers{Algorithm: step.SlidingLog, Limit: 10, Period: 1_000_000_000})
	e := tb.insert(hash, s, at)
	s.Charge(tb.state(e), at, 1)
}

// TestReclaimEvictsItsChoice: of the long states that reclaim samples, it evicts the
// one nearest to fresh, and not one of those that follow.
func TestReclaimEvictsItsChoice(t *testing.T) {
	for first := range sample { // the place of the candidate among those sampled
		s := New(Config{})
		sh := &s.shards[0]
		now := s.now()
		const gap = 1 << 58
		for i := range uint64(3 * sample) {
			at := now
			if i == uint64(first) {
				at = now - 1000 // so it is fresh sooner
			}
			insertLong(t, &sh.table, (i+1)*gap, at)
		}
		sh.table.hand = 0
		s.budget.max = s.budget.used() - 1 // one eviction is enough
		s.reclaim(sh, now)
		if n := sh.table.count; n != 3*sample-1 {
			t.Fatalf("%d entries are left of %d, want one eviction", n, 3*sample)
		}
		if sh.table.find(uint64(first+1)*gap) != nil {
			t.Errorf("candidate %d was not evicted", first)
		}
	}
}

// TestChooseIsBounded: a table with few long entries is not scanned as a whole while
// its lock is held, and the few are found nevertheless.
func TestChooseIsBounded(t *testing.T) {
	short := mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 10, Period: 1000, Burst: 10})
	tb := &table{budget: &budget{max: 1 << 40}}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		e := tb.insert(rng.Uint64(), short, 0)
		short.Charge(tb.state(e), 0, 1)
	}
	insertLong(t, tb, rng.Uint64(), 0)
	for calls := 1; ; calls++ {
		before := tb.hand
		_, found := tb.choose(0, longEntry, maxLooks)
		if looked := tb.hand - before; looked > maxLooks {
			t.Fatalf("call %d looked at %d places, more than %d", calls, looked, maxLooks)
		}
		if found {
			break
		}
		if calls > len(tb.places)/maxLooks+1 {
			t.Fatalf("the long entry was not found in %d calls", calls)
		}
	}
}

func TestKindsAreForgotten(t *testing.T) {
	tb := &table{budget: &budget{max: 1 << 40}}
	for limit := int64(1); limit <= 10_000; limit++ {
		s := mustStep(t, step.Numbers{Algorithm: step.FixedWindow, Limit: limit, Period: 1000})
		e := tb.find(42)
		if e == nil {
			e = tb.insert(42, s, 0)
		} else {
			tb.setStep(e, s)
		}
		s.Charge(tb.state(e), 0, 1)
	}
	check(t, tb)
	if n := len(tb.kinds.all); n > idleKinds+2 {
		t.Errorf("%d kinds are kept for one entry", n)
	}
}

// TestCrowdAtTheEnd: the largest hashes there are may all stand close together.
func TestCrowdAtTheEnd(t *testing.T) {
	s := mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 10, Period: 1000, Burst: 10})
	tb := &table{budget: &budget{max: 1 << 40}}
	var hashes []uint64
	for i := range uint64(2000) {
		hashes = append(hashes, math.MaxUint64-i)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	rng.Shuffle(len(hashes), func(i, j int) { hashes[i], hashes[j] = hashes[j], hashes[i] })
	for i, h := range hashes {
		e := tb.insert(h, s, 0)
		s.Charge(tb.state(e), int64(i), 1)
		if i%100 == 0 {
			check(t, tb)
		}
	}
	if tb.count != len(hashes) || tb.evicted != 0 {
		t.Fatalf("%d entries, %d evicted, of %d", tb.count, tb.evicted, len(hashes))
	}
	tb.resize(uint64(tb.count)) // as tight as it gets
	check(t, tb)
	for i, h := range hashes {
		tb.remove(h)
		if tb.count != len(hashes)-i-1 || tb.find(h) != nil {
			t.Fatalf("%d entries after %d were removed", tb.count, i+1)
		}
		if i%100 == 0 {
			check(t, tb)
		}
	}
}
