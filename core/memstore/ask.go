package memstore

import (
	"context"
	"slices"

	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/core/store"
)

// Ask implements [store.Store]. It ignores the context, since it does not block.
func (s *Store) Ask(_ context.Context, q *store.Question) error {
	if err := q.Valid(); err != nil {
		return err
	}
	switch {
	case q.Mode == store.Settle:
		s.settle(q.Charges)
	case q.Mode == store.Reset:
		s.reset(q.Charges)
	case len(q.Charges) == 1:
		s.decideOne(q)
	default:
		var room [4]*shard
		locked, now := s.lockAll(room[:0], q.Charges, s.now())
		locked[0].work.decide(s, q, now)
		unlock(locked)
		s.sweep(now)
		s.reclaim(now)
	}
	return nil
}

// decideOne decides about one charge, whose key may be hot.
func (s *Store) decideOne(q *store.Question) {
	c := &q.Charges[0]
	key, sh := s.locate(c.Key)
	var p *policy // under which the key may be hot
	var hash uint64
	if l := s.prepared(c.Limiter); l.leveled && q.Mode == store.Allow && q.Extra == 0 {
		p = &l.policies[0]
		hash = mix(key, p.hash)
		if h := sh.hot.Load(); h.is(p, hash) && h.answer(s, q) {
			return
		}
	}
	s.decideLocked(q, sh, p, hash, s.now())
}

// decideLocked is decideOne of a key that was not hot, by a call that has read the clock.
func (s *Store) decideLocked(q *store.Question, sh *shard, p *policy, hash uint64, now int64) {
	sh.mu.Lock()
	// While it waited, another call may have made the key hot. To end that would make all of
	// them wait again, and again.
	if h := sh.hot.Load(); p != nil && h.is(p, hash) && h.answer(s, q) {
		sh.mu.Unlock()
		return
	}
	now = s.locked(sh, now)
	if e := sh.work.decide(s, q, now); p != nil && e != nil {
		sh.warm(p, e, now, s.hotAfter)
	}
	sweep := sh.tick()
	sh.mu.Unlock()
	if sweep {
		s.sweep(now)
	}
	if s.budget.overrun() {
		s.reclaim(now)
	}
}

// settle corrects charges one after the other, as there may be several of one key.
func (s *Store) settle(cs []store.Charge) {
	locked, now := s.lockAll(nil, cs, s.now())
	for i := range cs {
		c, w := &cs[i], &locked[0].work
		w.find(s, c)
		w.lapse(now)
		for j := range w.cells {
			c.Uncovered = max(c.Uncovered, w.cells[j].Settle(now, c.At, c.N, c.Actual))
		}
		w.save(now)
		w.clear()
	}
	unlock(locked)
	s.reclaim(now)
}

func (s *Store) reset(cs []store.Charge) {
	for i := range cs {
		key, sh := s.locate(cs[i].Key)
		s.lock(sh, s.now())
		for _, p := range s.prepared(cs[i].Limiter).policies {
			sh.table.remove(mix(key, p.hash))
		}
		sh.mu.Unlock()
	}
}

// A work is the cells of a question while it is decided. It is of a shard whose lock is held,
// so that no decision allocates.
type work struct {
	cells []step.Cell
	found []found
	words [][2]int64 // room for the states of new keys
}

// A found is where a cell was found.
type found struct {
	shard *shard
	hash  uint64
	entry *entry // nil: there was none
	plain bool   // the state of the entry is of the policy, and its only one
}

// decide decides a question whose shards are locked. It returns the entry of its only cell, if
// that is plain.
func (w *work) decide(s *Store, q *store.Question, now int64) (plain *entry) {
	for i := range q.Charges {
		w.find(s, &q.Charges[i])
	}
	if q.Mode != store.Peek {
		w.lapse(now)
	}
	r := &q.Result
	r.Start(now, store.SourceStore)
	r.Allowed, r.Extra = step.Decide(w.cells, now, step.Mode(q.Mode), q.Extra)
	for i := range w.cells {
		c := &w.cells[i]
		r.Add(c.Admitted, c.Reading)
	}
	if q.Mode != store.Peek {
		w.save(now)
		w.refuse()
	}
	if len(w.cells) == 1 && w.found[0].plain {
		plain = w.found[0].entry
	}
	w.clear()
	return plain
}

// find appends the cells of a charge.
func (w *work) find(s *Store, c *store.Charge) {
	key, sh := s.locate(c.Key)
	policies := s.prepared(c.Limiter).policies
	w.grow(len(policies))
	for i := range policies {
		p := &policies[i]
		f := found{shard: sh, hash: mix(key, p.hash)}
		f.entry = sh.table.find(f.hash)
		cell := step.Cell{Step: p.step, Units: c.N}
		w.fill(&cell, &f, p)
		w.cells, w.found = append(w.cells, cell), append(w.found, f)
	}
}

// grow makes room for that many more cells, so that the words of those before stay where they are.
func (w *work) grow(more int) {
	if n := len(w.cells) + more; n > len(w.words) {
		old := w.words
		w.words = make([][2]int64, 2*n)
		for i := range w.cells {
			if c := &w.cells[i]; w.found[i].entry == nil && len(c.Own.State) > 0 {
				w.words[i] = old[i]
				c.Own.State = w.words[i][:len(c.Own.State)]
			}
		}
	}
}

// fill sets the variants of a cell. Entries do not move before the question is decided.
func (w *work) fill(c *step.Cell, f *found, p *policy) {
	t, e := &f.shard.table, f.entry
	switch {
	case e == nil:
		c.Own.Step = p.step
		if room := &w.words[len(w.cells)]; p.words <= len(room) {
			clear(room[:])
			c.Own.State = room[:p.words]
		}
	case e.kind&several != 0:
		b := t.besides[e.hash]
		c.Own = step.Variant{Step: t.step(e), State: slices.Clone(t.state(e)), Until: b.until}
		c.Others = b.others
	case t.has(e, p):
		f.plain = true
		c.Own.Step, c.Own.State = p.step, t.state(e)
	default:
		c.Own.Step, c.Own.State = t.step(e), t.state(e)
		if !step.Alike(c.Own.Step, p.step) { // it may become one of the others
			c.Own.State = slices.Clone(c.Own.State)
		}
	}
}

// lapse forgets refusals that no longer stand, before a charge by which they would seem to stand
// again.
func (w *work) lapse(now int64) {
	for i := range w.found {
		f := &w.found[i]
		if e, t := f.entry, &f.shard.table; e != nil && e.refused > 0 && !e.refuses(t.step(e), t.state(e), now) {
			e.refused = 0
		}
	}
}

// save saves the cells that have changed: first those of entries, as others are inserted and move
// them.
func (w *work) save(now int64) {
	for i := range w.cells {
		if c, f := &w.cells[i], &w.found[i]; c.Changed && f.entry != nil {
			f.shard.table.set(f.entry, c, f.plain)
		}
	}
	for i := range w.cells {
		if c, f := &w.cells[i], &w.found[i]; c.Changed && f.entry == nil {
			f.shard.table.insert(f.hash, c.Own.Step, c.Own.State, now)
		}
	}
}

// refuse notes in the entries what was refused.
func (w *work) refuse() {
	for i := range w.cells {
		c, f := &w.cells[i], &w.found[i]
		if c.Admitted {
			continue
		}
		if e := f.shard.table.find(f.hash); e != nil { // which may have moved
			e.refuse(c.Units)
		}
	}
}

// clear empties the work, and lets go of what it refers to.
func (w *work) clear() {
	clear(w.cells)
	w.cells, w.found = w.cells[:0], w.found[:0]
}
