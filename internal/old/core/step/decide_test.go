package step_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// A slowStore is a store that is plainly right: it writes the order of a decision out with the
// functions of one state, of which it makes a copy wherever it needs one.
type slowStore struct{ cells [][]step.Variant }

// load returns the variants of a cell as a policy of p finds them, and whether they are to be
// saved even if nothing is charged.
func (s *slowStore) load(i int, p step.Step, now int64) (own step.Variant, others []step.Variant, dirty bool) {
	var all []step.Variant
	for _, v := range s.cells[i] {
		all = append(all, step.Variant{Step: v.Step, State: slices.Clone(v.State), Until: v.Until})
	}
	own.Step = p
	switch {
	case len(all) == 0:
	case len(all) == 1 && all[0].Step.FreshAt(all[0].State) <= now:
		if step.Alike(all[0].Step, p) {
			own.State = all[0].State
		}
	case len(all) == 1 && step.Alike(all[0].Step, p):
		own = step.Variant{Step: step.Larger(p, all[0].Step), State: all[0].State}
	case len(all) == 1:
		all[0] = step.Keep(all[0].Step, all[0].State, now, nil)
		fallthrough
	default:
		own, others = step.Take(all, p, now)
		dirty = true
	}
	return own, others, step.Redate(p, &own, others, now) || dirty
}

func (s *slowStore) save(i int, own step.Variant, others []step.Variant, now, charged int64) {
	own = step.Keep(own.Step, own.State, now, others)
	if charged > 0 {
		step.Count(others, own, now, charged)
	}
	s.cells[i] = append([]step.Variant{own}, others...)
}

// An outcome is what a decision tells.
type outcome struct {
	allowed  bool
	granted  int64
	admitted []bool
	without  []int64 // room, of what is counted anyway
	readings []step.Reading
}

func (s *slowStore) decide(steps []step.Step, units []int64, anyway []bool, now int64, mode step.Mode, extra int64) outcome {
	o := outcome{allowed: mode != step.Refuse}
	for i, p := range steps {
		own, _, _ := s.load(i, p, now)
		o.admitted = append(o.admitted, p.Admits(own.State, now, step.Asked(p, units[i])))
		o.allowed = o.allowed && (o.admitted[i] || anyway[i])
	}
	for ; o.allowed && o.granted < extra; o.granted++ {
		for i, p := range steps {
			if own, _, _ := s.load(i, p, now); !p.Admits(own.State, now, units[i]+o.granted+1) {
				extra = o.granted
			}
		}
		if o.granted >= extra {
			break
		}
	}
	for i, p := range steps {
		own, others, dirty := s.load(i, p, now)
		if anyway[i] || units[i] == 0 {
			o.add(s.apart(i, p, units[i], anyway[i], now, mode))
			continue
		}
		state, need := own.State, units[i]
		if o.allowed {
			need = 0
		}
		counts := !o.allowed && p.Numbers().CountDenied
		if counts || o.allowed && mode == step.Allow {
			if state == nil {
				state = make([]int64, p.Words())
			}
			if counts {
				state = p.Refuse(state, now, units[i])
			} else {
				state = p.Charge(state, now, units[i]+o.granted)
			}
		}
		own.State = state
		switch {
		case mode == step.Peek:
		case o.allowed:
			s.save(i, own, others, now, units[i]+o.granted)
		case counts || dirty && state != nil:
			s.save(i, own, others, now, 0)
		}
		o.add(p.Read(state, now, need), 0)
	}
	return o
}

func (o *outcome) add(r step.Reading, without int64) {
	o.readings, o.without = append(o.readings, r), append(o.without, without)
}

// apart concludes a cell that only checks, or that counts units one by one, as one which has room
// for the first ones would.
func (s *slowStore) apart(i int, p step.Step, units int64, anyway bool, now int64, mode step.Mode) (r step.Reading, without int64) {
	own, others, dirty := s.load(i, p, now)
	need := step.Asked(p, 0)
	if anyway && units > 0 {
		need = 1
		for without = units; without > 0 && p.Admits(own.State, now, units-without+1); without-- {
			continue
		}
	}
	if anyway && units > 0 && mode != step.Peek {
		if own.State == nil {
			own.State = make([]int64, p.Words())
		}
		own.State = p.Report(own.State, now, units, own.Step.Max())
		s.save(i, own, others, now, units)
	} else if mode != step.Peek && dirty && own.State != nil {
		s.save(i, own, others, now, 0)
	}
	return p.Read(own.State, now, need), without
}

// TestDecide: with all that a charge may be, a store that only finds and saves cells decides as one that writes the order out,
// about one to three cells, under one or several sets of parameters, while the clock goes on,
// steps back, and returns from far ahead.
func TestDecide(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	seen := map[string]int{}
	for name, family := range families() {
		for round := range 60 {
			slow := &slowStore{make([][]step.Variant, 3)}
			fast := make([][]step.Variant, 3)
			now := noon
			for move := range 80 {
				now += rng.Int64N(3) * rng.Int64N(1+window(family[rng.IntN(len(family))])) / 5
				if rng.IntN(40) == 0 {
					now -= rng.Int64N(day)
				}
				mode, extra := []step.Mode{step.Allow, step.Allow, step.Peek, step.Refuse}[rng.IntN(4)], max(rng.Int64N(8)-4, 0)
				var steps []step.Step
				var units []int64
				var anyway []bool
				var cells []step.Cell
				for i := range 1 + rng.IntN(3) {
					m := family[rng.IntN(1+round%len(family))]
					p := newKey(t, m).step
					steps, units, anyway = append(steps, p), append(units, 1+rng.Int64N(min(p.Max(), 5))), append(anyway, rng.IntN(5) == 0)
					switch {
					case extra == 0 && rng.IntN(5) == 0:
						units[i] = 0
					case extra > 0:
						anyway[i] = false
					case anyway[i]:
						units[i] = 1 + rng.Int64N(3*min(p.Max(), 100))
					}
					cell := step.Cell{Step: p, Units: units[i], Anyway: anyway[i], Own: step.Variant{Step: p}}
					for j, v := range fast[i] {
						if mode != step.Peek { // which must not modify it
							v.State = slices.Clone(v.State)
						}
						if j == 0 {
							cell.Own = v
						} else {
							cell.Others = append(cell.Others, v)
						}
					}
					cells = append(cells, cell)
				}
				want := slow.decide(steps, units, anyway, now, mode, extra)
				var got outcome
				got.allowed, got.granted = step.Decide(cells, now, mode, extra)
				for i := range cells {
					c := &cells[i]
					got.admitted = append(got.admitted, c.Admitted)
					got.add(c.Reading, c.Uncovered)
					if c.Changed {
						fast[i] = append([]step.Variant{c.Own}, c.Others...)
					}
					if a, b := numbersOf(fast[i]), numbersOf(slow.cells[i]); a != b {
						t.Fatalf("seed %d, %s, move %d, mode %d, %d units, anyway %t, %d extra: cell %d is\n%s, want\n%s\n%+v, want\n%+v", seed, name, move, mode, units, anyway, extra, i, a, b, got, want)
					}
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, %s, move %d, mode %d, %d units, anyway %t, %d extra:\n%+v, want\n%+v", seed, name, move, mode, units, anyway, extra, got, want)
				}
				seen[fmt.Sprintf("mode %d, allowed %t, granted %t", mode, got.allowed, got.granted > 0)]++
			}
		}
	}
	if len(seen) < 7 { // Refuse never allows, and a refusal grants nothing
		t.Errorf("seed %d: only %v", seed, seen)
	}
}

// numbersOf describes variants. That of a cell with one depends on no Until.
func numbersOf(all []step.Variant) string {
	s := ""
	for _, v := range all {
		if len(all) == 1 {
			v.Until = 0
		}
		s += fmt.Sprintf("%+v %v until %d; ", v.Step.Numbers(), v.State, v.Until)
	}
	return s
}
