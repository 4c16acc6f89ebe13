package memstore

import (
	"context"
	"slices"

	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
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
		w := &locked[0].work
		for i := range q.Charges {
			w.find(s, &q.Charges[i])
		}
		w.decide(q, now)
		sweep := locked[0].tick()
		unlock(locked)
		if sweep {
			s.sweep(now)
		}
		s.reclaim(now)
	}
	return nil
}

// decideOne decides about one charge, whose key may be hot.
func (s *Store) decideOne(q *store.Question) {
	c := &q.Charges[0]
	l := s.prepared(c.Limiter)
	key, sh := s.locate(c.Key)
	mayBeHot := l.leveled && q.Mode == store.Allow && q.Extra == 0 && c.N > 0 && !c.Anyway
	if mayBeHot && sh.hot.Load().answer(s, q, &l.policies[0], key) {
		return
	}
	s.decideLocked(q, l, sh, key, mayBeHot)
}

// decideLocked is decideOne of a key that was not hot, but may become so.
func (s *Store) decideLocked(q *store.Question, l *limiter, sh *shard, key uint64, mayBeHot bool) {
	now := s.now()
	sh.mu.Lock()
	// While it waited, another call may have made the key hot. To end that would make all of
	// them wait again, and again.
	if mayBeHot && sh.hot.Load().answer(s, q, &l.policies[0], key) {
		sh.mu.Unlock()
		return
	}
	now = s.locked(sh, now)
	w := &sh.work
	w.findIn(sh, l, key, &q.Charges[0])
	first := w.found[0]
	if w.decide(q, now); mayBeHot && first.plain {
		sh.warm(&l.policies[0], first.entry, now, s.hotAfter)
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
			cell := &w.cells[j]
			without := cell.Settle(now, c.At, c.N, c.Actual)
			cell.Anyway, cell.Admitted = true, without == 0
			c.Uncovered = max(c.Uncovered, without)
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

// keptCells is how many cells a shard keeps room for: as many as a limiter has policies. More are
// outside the bound on memory, so their room is given up.
const keptCells = 8

// A work is the cells of a question while it is decided. It is of a shard whose lock is held,
// so that a decision about few policies allocates nothing.
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

// decide decides a question whose cells are found, and empties the work.
func (w *work) decide(q *store.Question, now int64) {
	if q.Mode != store.Peek {
		w.lapse(now)
	}
	r := &q.Result
	r.Start(now, store.SourceStore)
	r.Allowed, r.Extra = step.Decide(w.cells, now, step.Mode(q.Mode), q.Extra)
	for i := range w.cells {
		r.Add(w.cells[i].Admitted, w.cells[i].Reading)
	}
	if q.Counts() {
		w.uncovered(q.Charges)
	}
	if q.Mode != store.Peek {
		w.save(now)
	}
	w.clear()
}

// uncovered sets for how many units of each charge there was no room.
func (w *work) uncovered(cs []store.Charge) {
	cells := w.cells
	for i := range cs {
		c := &cs[i]
		c.Uncovered = 0
		for range c.Limiter.Spec().Policies {
			c.Uncovered = max(c.Uncovered, cells[0].Uncovered)
			cells = cells[1:]
		}
	}
}

// find appends the cells of a charge.
func (w *work) find(s *Store, c *store.Charge) {
	key, sh := s.locate(c.Key)
	w.findIn(sh, s.prepared(c.Limiter), key, c)
}

// findIn appends the cells of a charge of a key.
func (w *work) findIn(sh *shard, l *limiter, key uint64, charge *store.Charge) {
	first := len(w.cells)
	w.grow(first + len(l.policies))
	for i := range l.policies {
		p, c, f := &l.policies[i], &w.cells[first+i], &w.found[first+i]
		c.Step, c.Units, c.Anyway = p.step, charge.N, charge.Anyway
		f.shard, f.hash = sh, mix(key, p.hash)
		f.entry = sh.table.find(f.hash)
		f.plain = f.entry != nil && f.entry.kind&several == 0 && sh.table.has(f.entry, p)
		if f.plain {
			c.Own.Step, c.Own.State = p.step, sh.table.state(f.entry)
			continue
		}
		w.words[first+i] = [2]int64{}
		w.fill(c, f, p, w.words[first+i][:])
	}
}

// grow makes room for so many cells.
func (w *work) grow(cells int) {
	if cells > cap(w.cells) {
		old := w.cells
		w.cells, w.words = make([]step.Cell, len(old), cells), make([][2]int64, cells)
		w.found = append(make([]found, 0, cells), w.found...)
		copy(w.cells, old) // whose words stay where they were
	}
	w.cells, w.found = w.cells[:cells], w.found[:cells]
}

// fill sets the variants of a cell that is not plain. Entries do not move before the question is
// decided. A new key has the words for its state, if they are enough.
func (w *work) fill(c *step.Cell, f *found, p *policy, words []int64) {
	t, e := &f.shard.table, f.entry
	switch {
	case e == nil:
		c.Own.Step, c.Own.State = p.step, nil
		if p.words <= len(words) {
			c.Own.State = words[:p.words]
		}
	case e.kind&several != 0:
		b := t.besides[e.hash]
		c.Own = step.Variant{Step: t.step(e), State: slices.Clone(t.state(e)), Until: b.until}
		c.Others = b.others
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

// save saves the cells that have changed, and notes what was refused: first those that have
// entries, as others are inserted and move them.
func (w *work) save(now int64) {
	missing := false
	for i := range w.cells {
		c, f := &w.cells[i], &w.found[i]
		if f.entry == nil {
			missing = missing || c.Changed
			continue
		}
		if c.Changed {
			f.shard.table.set(f.entry, c, f.plain)
		}
		if !c.Admitted {
			f.entry.refuse(refused(c))
		}
	}
	for i := 0; missing && i < len(w.cells); i++ {
		if c, f := &w.cells[i], &w.found[i]; c.Changed && f.entry == nil {
			e := f.shard.table.insert(f.hash, c.Own.Step, c.Own.State, now)
			if !c.Admitted {
				e.refuse(refused(c))
			}
		}
	}
}

// refused returns what a key is noted to be refused: of what was counted anyway, one more unit.
func refused(c *step.Cell) int64 {
	if c.Anyway || c.Units == 0 {
		return 1
	}
	return c.Units
}

// clear empties the work. It lets go of what it refers to, but for plain cells, which are most.
func (w *work) clear() {
	if cap(w.cells) > keptCells {
		*w = work{}
		return
	}
	for i := range w.cells {
		if !w.found[i].plain {
			w.cells[i] = step.Cell{}
		}
	}
	w.cells, w.found = w.cells[:0], w.found[:0]
}
