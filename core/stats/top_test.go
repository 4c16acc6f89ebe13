package stats

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A stream is what is counted, beside the exact counts.
type stream struct {
	sketch *sketch
	counts map[uint64]uint64
	total  uint64
}

func (s *stream) add(key uint64) {
	p, taken := s.sketch.find(key)
	if taken {
		p.Name = strconv.FormatUint(key, 10)
	}
	p.Refusals++
	s.counts[key]++
	s.total++
}

// check compares the sketch with the exact counts, and returns its keys.
func (s *stream) check(t *testing.T) []refusedKey {
	t.Helper()
	top := s.sketch.read(time.Now())
	if top.Refusals != s.total || len(top.Keys) != min(len(s.counts), 128) {
		t.Fatalf("%d of %d counted, %d of %d keys shown", top.Refusals, s.total, len(top.Keys), len(s.counts))
	}
	shown := make(map[uint64]bool)
	for i, k := range top.Keys {
		key, err := strconv.ParseUint(k.Name, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		shown[key] = true
		if exact := s.counts[key]; k.Refusals < exact || k.Refusals-k.Error > exact {
			t.Fatalf("%s: %d with an error of %d, exactly %d", k.Name, k.Refusals, k.Error, exact)
		}
		if k.Error > s.total/128 {
			t.Fatalf("%s: an error of %d in %d", k.Name, k.Error, s.total)
		}
		if i > 0 && k.Refusals > top.Keys[i-1].Refusals {
			t.Fatalf("%v are not sorted", top.Keys)
		}
	}
	for key, n := range s.counts {
		if n > s.total/128 && !shown[key] {
			t.Fatalf("%d of %d are not shown", n, s.total)
		}
	}
	return top.Keys
}

// TestTopOfZipf: the ten keys that are refused most are the first ten.
func TestTopOfZipf(t *testing.T) {
	s := &stream{newSketch(time.Now()), make(map[uint64]uint64), 0}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 1, 1_000_000)
	for range 300_000 {
		s.add(zipf.Uint64())
	}
	shown := s.check(t)
	type exact struct{ key, count uint64 }
	var all []exact
	for key, n := range s.counts {
		all = append(all, exact{key, n})
	}
	slices.SortFunc(all, func(a, b exact) int { return int(b.count) - int(a.count) })
	for i, x := range all[:10] {
		if shown[i].Name != strconv.FormatUint(x.key, 10) {
			t.Errorf("place %d: %+v, want %+v", i+1, shown[i], x)
		}
	}
}

// TestTopOfAnything: no count is wrong by more than its error, whatever is counted.
func TestTopOfAnything(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := &stream{newSketch(time.Now()), make(map[uint64]uint64), 0}
		keys := 1 + rng.Uint64N(500)
		for i := range uint64(rng.IntN(5000)) {
			switch rng.IntN(3) {
			case 0:
				s.add(rng.Uint64N(keys))
			case 1:
				s.add(rng.Uint64N(1 + keys/50))
			default:
				s.add(1000 + i) // never again
			}
		}
		s.check(t)
	}
}
