package memstore

import "github.com/headgate/headgate/internal/old/core/step"

// A beside is what an entry has besides its state, if its key is charged under several
// sets of parameters: see [step.Variant]. The state is that of the last ones used.
type beside struct {
	until  int64 // of the entry's state
	others []step.Variant
}

// besideBytes is about what a beside and each of its states take besides their words: in
// the map, slices and rounding.
const besideBytes = 96

func (b *beside) bytes() int64 {
	n := int64(besideBytes)
	for _, o := range b.others {
		n += besideBytes + 8*int64(len(o.State))
	}
	return n
}

// set saves a cell in its entry. That of a plain one is of its step, and has no others.
func (t *table) set(e *entry, c *step.Cell, plain bool) {
	if plain {
		if state := t.state(e); &c.Own.State[0] != &state[0] {
			t.setState(e, c.Own.State)
		}
		return
	}
	t.setStep(e, c.Own.Step)
	t.setState(e, c.Own.State)
	t.setBeside(e, &beside{c.Own.Until, c.Others})
}

// setBeside replaces what an entry has besides its state. With no others, that is nothing.
func (t *table) setBeside(e *entry, b *beside) {
	if e.kind&several != 0 {
		t.budget.long.Add(-t.besides[e.hash].bytes())
		delete(t.besides, e.hash)
		e.kind &^= several
	}
	if len(b.others) == 0 {
		return
	}
	if t.besides == nil {
		t.besides = make(map[uint64]*beside)
	}
	t.besides[e.hash] = b
	t.budget.long.Add(b.bytes())
	e.kind |= several
}

// freshAt returns the instant from which an entry need not be kept.
func (t *table) freshAt(e *entry) int64 {
	if e.kind&several == 0 {
		return t.step(e).FreshAt(t.state(e))
	}
	b := t.besides[e.hash]
	until := b.until
	for _, o := range b.others {
		until = max(until, o.Until)
	}
	return until
}
