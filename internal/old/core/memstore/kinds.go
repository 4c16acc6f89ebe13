package memstore

import (
	"unique"

	"github.com/headgate/headgate/internal/old/core/step"
)

// kinds numbers the steps that states were stored with. It drops those that no entry
// refers to, so that limits which change often take no memory.
type kinds struct {
	all   []kind
	index map[step.Numbers]uint32
	free  []uint32
	last  uint32 // result of the last take
}

type kind struct {
	step    step.Step
	numbers numbers
	entries int
}

// numbers are those of a step, so that they can be compared at once: limiters with equal ones
// have steps of their own.
type numbers = unique.Handle[step.Numbers]

// idleKinds is the number of kinds up to which none is dropped.
const idleKinds = 8

// take returns the number of the step, and counts an entry that refers to it.
func (k *kinds) take(s step.Step) uint32 {
	if int(k.last) >= len(k.all) || k.all[k.last].step != s {
		k.last = k.number(s)
	}
	k.all[k.last].entries++
	return k.last
}

func (k *kinds) number(s step.Step) uint32 {
	if n, ok := k.index[s.Numbers()]; ok {
		return n
	}
	if k.index == nil {
		k.index = make(map[step.Numbers]uint32)
	}
	added := kind{step: s, numbers: unique.Make(s.Numbers())}
	var n uint32
	if last := len(k.free) - 1; last >= 0 {
		n = k.free[last]
		k.free = k.free[:last]
		k.all[n] = added
	} else {
		n = uint32(len(k.all))
		k.all = append(k.all, added)
	}
	k.index[s.Numbers()] = n
	return n
}

// drop uncounts an entry that refers to the number.
func (k *kinds) drop(n uint32) {
	d := &k.all[n]
	d.entries--
	if d.entries == 0 && len(k.index) > idleKinds {
		delete(k.index, d.step.Numbers())
		*d = kind{}
		k.free = append(k.free, n)
	}
}
