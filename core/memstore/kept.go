package memstore

import (
	"slices"

	"github.com/headgate/headgate/core/step"
)

// A beside is what an entry has besides its state, if its key is charged under several
// sets of parameters: see [step.Kept]. The state is that of the last ones used.
type beside struct {
	until  int64 // of the entry's state
	others []step.Kept
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

// findBeside finds the state for the part's step where the entry's was stored with other
// numbers, or has others beside it.
func (p *part) findBeside(now int64) {
	t := &p.shard.table
	kept := t.step(p.entry)
	if p.entry.kind&several == 0 && step.Alike(kept, p.policy.step) {
		p.state = t.state(p.entry)
		p.renumber = step.Larger(p.policy.step, kept) == p.policy.step
		return
	}
	p.beside = true
	var room [step.MaxKept]step.Kept
	all := room[:0]
	state := slices.Clone(t.state(p.entry)) // since it may move to the others
	if p.entry.kind&several != 0 {
		b := t.besides[p.entry.hash]
		all = append(append(all, step.Kept{Step: kept, State: state, Until: b.until}), b.others...)
	} else if kept.FreshAt(state) > now {
		all = append(all, step.Keep(kept, state, now, nil))
	}
	own, others := step.Take(all, p.policy.step, now)
	p.step, p.state, p.others = own.Step, own.State, others
}

// saveBeside stores what findBeside found, after n units were charged.
func (p *part) saveBeside(state []int64, now, n int64) {
	own := step.Keep(p.step, state, now, p.others)
	if n > 0 {
		step.Count(p.others, own, now, n)
	}
	t := &p.shard.table
	t.setStep(p.entry, p.step)
	t.setState(p.entry, state)
	t.setBeside(p.entry, &beside{own.Until, p.others})
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
