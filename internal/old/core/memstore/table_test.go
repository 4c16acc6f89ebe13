package memstore

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
)

func mustStep(t testing.TB, m step.Numbers) step.Step {
	t.Helper()
	s, err := step.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// insertNew inserts an entry with the state of a new key.
func insertNew(tb *table, hash uint64, s step.Step, now int64) *entry {
	return tb.insert(hash, s, make([]int64, s.Words()), now)
}

// check holds what must be true of a table after every operation.
func check(t testing.TB, tb *table) {
	t.Helper()
	var last uint64
	count, bytes, beside := 0, int64(0), 0
	entries := make(map[uint32]int)
	for i := range tb.places {
		e := &tb.places[i]
		if e.hash == 0 {
			continue
		}
		count++
		entries[e.kind&^entryBits]++
		if e.hash <= last {
			t.Fatalf("place %d: hash %x after %x", i, e.hash, last)
		}
		last = e.hash
		if tb.find(e.hash) != e {
			t.Fatalf("place %d: its entry is not found", i)
		}
		if e.kind&long != 0 {
			bytes += longBytes + 8*int64(len(tb.state(e)))
		}
		if e.kind&several != 0 {
			beside++
			bytes += tb.besides[e.hash].bytes()
		}
	}
	if len(tb.besides) != beside {
		t.Fatalf("%d entries have others beside, of %d kept", beside, len(tb.besides))
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
	if got := tb.budget.long.Load(); got != bytes {
		t.Fatalf("the budget counts %d bytes of long states, there are %d", got, bytes)
	}
	for i, k := range tb.kinds.all {
		if k.entries != entries[uint32(i)] {
			t.Fatalf("kind %d counts %d entries, there are %d", i, k.entries, entries[uint32(i)])
		}
	}
}

// A table does what a map does, whatever is inserted, changed, removed and swept.
func TestTableIsAMap(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
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
					insertNew(tb, hash, s, now)
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

// TestEvictionOrder: a full table evicts first the keys that were refused nothing that
// would not fit by now, of these first those that have units left, then those that are
// used up; and last the keys whose refusal stands, although these were charged before all
// others.
func TestEvictionOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const day = 86_400_000_000
	s := mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 5, Period: day, Burst: 5})
	plan := mustStep(t, step.Numbers{Algorithm: step.TokenBucket, Limit: 2, Period: day, Burst: 2})
	const now = int64(10_000_000)
	type keys struct{ charged, refused int64 } // units
	for _, test := range []struct {
		name         string
		first, flood keys
		spared       bool
		plans        bool // the first were moved to another plan
	}{
		{name: "used up, refused; the flood has some left", first: keys{5, 1}, flood: keys{4, 0}, spared: true},
		{name: "used up, refused; the flood has some left and was refused what fits", first: keys{5, 1}, flood: keys{4, 1}, spared: true},
		{name: "used up, refused; the flood is used up", first: keys{5, 1}, flood: keys{5, 0}, spared: true},
		{name: "used up, refused; the flood is refused", first: keys{5, 1}, flood: keys{5, 1}},
		{name: "used up, refused, moved to another plan; the flood is used up", first: keys{5, 3}, flood: keys{5, 0}, spared: true, plans: true},
		{name: "used up; the flood has some left", first: keys{5, 0}, flood: keys{4, 0}, spared: true},
		{name: "used up; the flood is used up", first: keys{5, 0}, flood: keys{5, 0}},
		{name: "some left, refused more; the flood has some left", first: keys{3, 3}, flood: keys{3, 0}, spared: true},
		{name: "some left, refused more; the flood is used up", first: keys{3, 3}, flood: keys{5, 0}, spared: true},
		{name: "some left, refused more than a uint32 holds; the flood is used up", first: keys{1, 1 << 40}, flood: keys{5, 0}, spared: true},
		{name: "some left, refused what fits; the flood is used up", first: keys{3, 2}, flood: keys{5, 0}},
		{name: "none used, refused; the flood has some left", first: keys{0, 5}, flood: keys{1, 0}},
		{name: "none used, refused more than a uint32 holds; the flood has some left", first: keys{0, 1 << 40}, flood: keys{1, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tb := smallTable()
			rng := rand.New(rand.NewPCG(1, 2))
			insert := func(at int64, k keys) uint64 {
				hash := rng.Uint64()
				e := insertNew(tb, hash, s, at)
				s.Charge(tb.state(e), at, k.charged)
				if k.refused > 0 {
					e.refuse(k.refused)
				}
				return hash
			}
			first := make([]uint64, 8)
			for i := range first {
				first[i] = insert(now, test.first)
				if test.plans {
					tb.setStep(tb.find(first[i]), plan)
				}
			}
			for range 10_000 {
				insert(now+1_000_000, test.flood) // it is fresh later
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

// TestShareOfTheRefused: keys that are refused are spared up to 7 of 8, so that they leave
// some room to others.
func TestShareOfTheRefused(t *testing.T) {
	for _, test := range []struct {
		ranks string // r refused, u used up, o with units left; each is fresh later than those before
		want  int
	}{
		{"r", 0},
		{"o", 0},
		{"ro", 1},
		{"rrrrrruo", 7},
		{"rrrrrrru", 7},
		{"rrrrrrrr", 0},
		{"orrrrrrrr", 1},
		{strings.Repeat("r", 28) + "uuoo", 30},
		{"uoo" + strings.Repeat("r", 29), 3},
		{strings.Repeat("r", 16) + strings.Repeat("u", 16), 16},
		{strings.Repeat("o", 32), 0},
	} {
		var s sample
		for i, r := range test.ranks {
			s.add(candidate{hash: uint64(i), rank: map[rune]rank{'r': rankRefused, 'u': rankUsedUp, 'o': rankRoom}[r], fresh: int64(i)})
		}
		if got := int(s.choice().hash); got != test.want {
			t.Errorf("%s: %d is evicted, want %d", test.ranks, got, test.want)
		}
	}
}

// TestLargeRefusals: more units than are noted exactly, or than a smaller plan admits, are
// refused until all fit.
func TestLargeRefusals(t *testing.T) {
	s := mustStep(t, step.Numbers{Algorithm: step.FixedWindow, Limit: 1 << 40, Period: 1_000_000})
	tb := &table{budget: &budget{max: 1 << 40}}
	e := insertNew(tb, 1, s, 0)
	s.Charge(tb.state(e), 0, 1<<40-1<<35)
	if got := tb.rank(e, 0); got != rankRoom {
		t.Errorf("rank %d before the refusal", got)
	}
	e.refuse(1 << 36)
	if got := tb.rank(e, 0); got != rankRefused {
		t.Errorf("rank %d after it", got)
	}
	if got := tb.rank(e, 1_000_000); got != rankRoom {
		t.Errorf("rank %d when it has ended", got)
	}

	e = insertNew(tb, 2, s, 0)
	s.Charge(tb.state(e), 0, 1)
	e.refuse(50)
	tb.setStep(e, mustStep(t, step.Numbers{Algorithm: step.FixedWindow, Limit: 10, Period: 1_000_000}))
	if got := tb.rank(e, 0); got != rankRefused {
		t.Errorf("rank %d under a smaller plan", got)
	}
	if got := tb.rank(e, 1_000_000); got != rankRoom {
		t.Errorf("rank %d under a smaller plan, when all fit", got)
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
				if e := &tb.places[j]; e.refused > 0 {
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

// TestRefusalsLapse: a refusal stands until the units that were refused would fit. It
// does not stand again when they are used up after that.
func TestRefusalsLapse(t *testing.T) {
	bucket := []core.Policy{core.TokenBucket(core.PerHour(4), 4)}
	allow := func(t *testing.T, l *core.Limiter, n int64, want bool) core.Decision {
		t.Helper()
		d, err := l.AllowN(t.Context(), "key", n)
		if err != nil || d.Allowed != want {
			t.Fatal(d, err)
		}
		return d
	}
	for _, test := range []struct {
		name     string
		policies []core.Policy
		calls    func(t *testing.T, l *core.Limiter, at func(time.Duration, rank)) // at checks the rank after a time
	}{
		{"charged", bucket, func(t *testing.T, l *core.Limiter, at func(time.Duration, rank)) {
			allow(t, l, 3, true)
			allow(t, l, 2, false)
			at(0, rankRefused)
			allow(t, l, 1, true)
			allow(t, l, 1, false)
			at(29*time.Minute, rankRefused)
			at(time.Minute, rankRoom)
			allow(t, l, 2, true)
			at(0, rankUsedUp)
		}},
		{"settled", bucket, func(t *testing.T, l *core.Limiter, at func(time.Duration, rank)) {
			d := allow(t, l, 3, true)
			allow(t, l, 2, false)
			at(0, rankRefused)
			at(15*time.Minute, rankRoom)
			if _, err := d.Settle(t.Context(), 5); err != nil {
				t.Fatal(err)
			}
			at(0, rankUsedUp)
		}},
		{"given back", bucket, func(t *testing.T, l *core.Limiter, at func(time.Duration, rank)) {
			d := allow(t, l, 3, true)
			allow(t, l, 4, false)
			at(0, rankRefused)
			if _, err := d.Settle(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			at(0, rankRefused)
			at(15*time.Minute, rankRoom)
		}},
		{
			"refused and counted",
			[]core.Policy{core.SlidingLog(core.PerHour(4)).CountDenied().Named("log"), core.MinInterval(100 * time.Hour).Named("pace")},
			func(t *testing.T, l *core.Limiter, at func(time.Duration, rank)) {
				allow(t, l, 1, true)
				at(30*time.Minute, rankRoom)
				allow(t, l, 3, false) // it fits into the log
				at(0, rankUsedUp)
				allow(t, l, 1, false)
				at(0, rankRefused)
				at(time.Hour, rankRoom)
				for range 4 {
					allow(t, l, 1, false)
				}
				at(0, rankUsedUp)
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(Config{})
			l := newLimiter(t, s, "api", test.policies...)
			test.calls(t, l, func(later time.Duration, want rank) {
				t.Helper()
				s.shift(later)
				key, sh := s.locate("key")
				e := sh.table.find(mix(key, s.prepared(l.Prepared()).policies[0].hash))
				if got := sh.table.rank(e, s.now()); got != want {
					t.Errorf("rank %d, want %d", got, want)
				}
			})
		})
	}
}

// TestReclaimSparesTheRefused: of few large states, in few of the shards, that of a refused
// key is kept, whether another is charged or settled.
func TestReclaimSparesTheRefused(t *testing.T) {
	for _, settle := range []bool{false, true} {
		s := New(Config{MaxBytes: minBytes})
		bucket := newLimiter(t, s, "bucket", core.TokenBucket(core.PerDay(1), 1))
		logs := newLimiter(t, s, "logs", core.SlidingLog(core.PerDay(20_000))) // room for 6
		refused := []store.Charge{{Limiter: logs.Prepared(), Key: "abuser", N: 20_000}, {Limiter: logs.Prepared(), Key: "abuser", N: 1}}
		for i, c := range refused {
			var r store.Result
			if err := asking.Decide(t.Context(), s, store.Allow, &r, c); err != nil || r.Allowed != (i == 0) {
				t.Fatal(r, err)
			}
		}
		for i := range 500 {
			key := strconv.Itoa(i)
			n := int64(20_000)
			if settle {
				n = 1
			}
			d, err := core.AllowAll(t.Context(), core.Charge{Limiter: bucket, Key: key, N: 1}, core.Charge{Limiter: logs, Key: key, N: n})
			if err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if settle {
				if _, err := d.Settle(t.Context(), 1, 20_000); err != nil {
					t.Fatal(err)
				}
			}
			var r store.Result
			if err := asking.Decide(t.Context(), s, store.Peek, &r, refused[1]); err != nil || r.Allowed {
				t.Fatalf("after %d keys the refused one is forgotten, %v", i+1, err)
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
		e := insertNew(tb, rng.Uint64(), s, at)
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
	e := insertNew(tb, hash, s, at)
	s.Charge(tb.state(e), at, 1)
}

// TestReclaimEvictsItsChoice: of the long states that reclaim samples, it evicts the
// one nearest to fresh, and not one of those that follow.
func TestReclaimEvictsItsChoice(t *testing.T) {
	for first := range sampleRun { // the place of the candidate among those sampled
		s := New(Config{})
		sh := &s.shards[0]
		now := s.now()
		const gap = 1 << 58
		for i := range uint64(3 * sampleRun) {
			at := now
			if i == uint64(first) {
				at = now - 1000 // so it is fresh sooner
			}
			insertLong(t, &sh.table, (i+1)*gap, at)
		}
		sh.table.hand = 0
		s.budget.max = s.budget.used() - 1 // one eviction is enough
		s.reclaim(now)
		if n := sh.table.count; n != 3*sampleRun-1 {
			t.Fatalf("%d entries are left of %d, want one eviction", n, 3*sampleRun)
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
		e := insertNew(tb, rng.Uint64(), short, 0)
		short.Charge(tb.state(e), 0, 1)
	}
	insertLong(t, tb, rng.Uint64(), 0)
	for calls := 1; ; calls++ {
		before := tb.hand
		var s sample
		tb.hand = tb.choose(&s, nil, 0, tb.hand, maxLooks, longEntry)
		if looked := tb.hand - before; looked > maxLooks {
			t.Fatalf("call %d looked at %d places, more than %d", calls, looked, maxLooks)
		}
		if s.size() > 0 {
			break
		}
		if calls > len(tb.places)/maxLooks+1 {
			t.Fatalf("the long entry was not found in %d calls", calls)
		}
	}
}

func TestKindsAreForgotten(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	for _, a := range []step.Algorithm{step.FixedWindow, step.SlidingLog} {
		tb := &table{budget: &budget{max: 1 << 40}}
		for limit := int64(1); limit <= 10_000; limit++ {
			s := mustStep(t, step.Numbers{Algorithm: a, Limit: limit, Period: 1000})
			e := tb.find(42)
			if e == nil {
				e = insertNew(tb, 42, s, 0)
			} else {
				tb.setStep(e, s)
			}
			tb.setState(e, s.Charge(tb.state(e), 0, 1))
		}
		check(t, tb)
		if n := len(tb.kinds.all); n > idleKinds+2 {
			t.Errorf("%v: %d kinds are kept for one entry", a, n)
		}
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
		e := insertNew(tb, h, s, 0)
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
