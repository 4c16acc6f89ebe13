// Package linearizability tests that stores are linearizable: each operation takes effect at
// one moment between its call and its return, as if the store made one at a time. The
// sequential model is package step.
package linearizability

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/headgate/headgate/internal/step"
)

// An input is what an operation was called with.
type input struct {
	mode  step.Mode
	cells []step.Cell
}

// An output is what it returned.
type output struct {
	allowed bool
	cells   []step.Cell
}

func (o *output) cached() bool { return o.cells[0].Source == step.SourceCache }

// A state is that of a store. It is never changed.
type state struct {
	now  map[string]int64 // the instant of the latest operation of each key
	kept map[cellOf][]int64
}

type cellOf struct {
	key    string
	policy uint64
}

func of(c *step.Cell) cellOf { return cellOf{c.Key.Reveal(), c.Policy.ID} }

// model is a store that makes one operation at a time.
var model = porcupine.Model{
	Init: func() any { return &state{map[string]int64{}, map[cellOf][]int64{}} },
	Step: func(s, in, out any) (bool, any) {
		i, o := in.(*input), out.(*output)
		next := &state{maps.Clone(s.(*state).now), maps.Clone(s.(*state).kept)}
		if i.mode == step.Reset {
			for j := range i.cells {
				delete(next.kept, of(&i.cells[j]))
			}
			return true, next
		}
		return next.does(i, o), next
	},
	Equal: func(a, b any) bool {
		x, y := a.(*state), b.(*state)
		return maps.Equal(x.now, y.now) && maps.EqualFunc(x.kept, y.kept, slices.Equal)
	},
	DescribeOperation: func(in, out any) string { return describe(in.(*input), out.(*output)) },
}

// does reports whether the output is that of the state, which becomes that after it. The
// instants of a key never go back. A cached refusal has that of its process, and counts nothing.
func (s *state) does(i *input, o *output) bool {
	mode, cached := i.mode, o.cached()
	if cached {
		mode = step.Peek
	}
	now := o.cells[0].Instant
	cells, states, allowed := slices.Clone(i.cells), make([][]int64, len(i.cells)), true
	for j := range cells {
		c := &cells[j]
		if key := c.Key.Reveal(); !cached {
			if now < s.now[key] {
				return false
			}
			s.now[key] = now
		}
		if states[j] = slices.Clone(s.kept[of(c)]); states[j] == nil {
			states[j] = c.Policy.New()
		}
		allowed = (mode == step.Settle || c.Admits(states[j], now)) && allowed
	}
	for j := range cells {
		c := &cells[j]
		states[j] = c.Room(states[j], now, mode == step.Settle)
		if mode == step.Settle {
			c.Settle(states[j], now)
			allowed = allowed && c.Shortfall == 0
		} else if c.Take(states[j], now, allowed && mode == step.Allow); !allowed {
			c.CountRefused(states[j], now, step.Allow)
		}
		got, want := o.cells[j].Reading, c.Reading
		if cached && (c.Shortfall == 0 || got.RetryAfter <= want.RetryAfter) {
			// It refuses rightly, but says what was left when it was made: not what charges in flight have taken since, nor
			// what time has freed.
			got = want
		}
		if o.cells[j].Shortfall != c.Shortfall || got != want {
			return false
		}
		if mode != step.Peek && c.Units != 0 {
			s.kept[of(c)] = states[j]
		}
	}
	return o.allowed == allowed
}

func describe(i *input, o *output) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v by the %v", [...]string{"asked", "peeked", "settled", "reset"}[i.mode], o.allowed, o.cells[0].Source)
	for j, c := range i.cells {
		out := o.cells[j]
		fmt.Fprintf(&b, "; %d of %s (%+v), charged at %d, answered at %d: %d short, %+v", c.Units, c.Key.Reveal(), c.Policy.Numbers, c.Instant, out.Instant, out.Shortfall, out.Reading)
	}
	return b.String()
}
