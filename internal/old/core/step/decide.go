package step

import "slices"

// A Mode is the kind of a decision.
type Mode uint8

// The modes.
const (
	Allow  Mode = iota // charge every cell if all of them admit
	Peek               // tell what Allow would, and change nothing
	Refuse             // count an attempt that is refused elsewhere, where refused attempts count
)

// A Cell is one policy for one key: the unit of state. A store fills in what it has found,
// [Decide] or [Cell.Settle] works on it, and the store saves it if it is Changed.
type Cell struct {
	Step   Step  // of the policy
	Units  int64 // of the charge, up to the Max of every Step that is asked together; 0 only checks
	Anyway bool  // the Units have been used: they refuse nothing, count in any case, and may be more

	// Own is the variant that was used last, and Others are the variants beside it. If there is
	// none, Own is of the Step, and its State is nil, or zero and as long as Words. Decide sets
	// both to the variants to save. It modifies the State of a variant in place if it is long
	// enough. So a State of another Step must not share memory with the place that Own is saved to.
	Own    Variant
	Others []Variant

	Changed  bool    // Own and Others are to be saved; Until only if there are Others
	Admitted bool    // the policy alone admits the Units
	Reading  Reading // the units left, and when the Units fit if they were not charged; one unit if Anyway

	// Uncovered is of Anyway: for how many of the Units there was no room.
	Uncovered int64

	dirty bool // what was found is to be saved even after a refusal: of several variants, or brought back
}

// NewCell returns a cell of copies of the variants that were found, the one used last first. Stores
// that must not allocate fill in a Cell themselves.
func NewCell(p Step, units int64, found []Variant) Cell {
	c := Cell{Step: p, Units: units, Own: Variant{Step: p}}
	for i, v := range found {
		v.State = slices.Clone(v.State)
		if i == 0 {
			c.Own = v
		} else {
			c.Others = append(c.Others, v)
		}
	}
	return c
}

// Variants returns the variants to save, the one used last first.
func (c *Cell) Variants() []Variant { return append([]Variant{c.Own}, c.Others...) }

// Decide makes one decision about cells, all or nothing. This is the order of every store:
//
//  1. find the variant of each cell under the parameters of its policy;
//  2. bring it back if the clock was far ahead;
//  3. ask whether each cell admits its units, and, if all do, for how many more there is room;
//  4. charge all of them, or, if one refuses, count the refusal where refused attempts count; in
//     any case count the cells that are Anyway;
//  5. keep the changes, and count a charge under the other parameters of the key;
//  6. read how much is left.
//
// Steps 5 and 6 do not depend on each other: the script of redisstore reads before it keeps.
//
// Cells that are Anyway refuse nothing. If all are, the decision is to allow.
//
// Up to extra units are charged beyond the units of each cell. The largest number that all cells
// admit is granted. Extra does not change a refusal. A refusal changes a cell only if it is
// Anyway, has several variants, is ahead of the clock, or counts refused attempts.
func Decide(cells []Cell, now int64, mode Mode, extra int64) (allowed bool, granted int64) {
	allowed = mode != Refuse
	for i := range cells {
		c := &cells[i]
		c.find(now)
		c.Admitted = c.Step.Admits(c.Own.State, now, Asked(c.Step, c.Units))
		allowed = allowed && (c.Admitted || c.Anyway)
	}
	if allowed && extra > 0 {
		granted = extra
		for i := range cells {
			c := &cells[i]
			granted = min(granted, room(c.Step, c.Own.State, now)-c.Units)
		}
	}
	for i := range cells {
		cells[i].conclude(now, mode, allowed, granted)
	}
	return allowed, granted
}

// conclude charges or refuses the cell, and reads it.
func (c *Cell) conclude(now int64, mode Mode, allowed bool, granted int64) {
	need := c.Units
	switch {
	case need == 0:
		if mode != Peek && c.dirty && c.Own.State != nil {
			c.keep(now, 0)
		}
		need = Asked(c.Step, 0)
	case c.Anyway:
		c.report(now, mode)
		need = 1
	case allowed:
		need = 0
		if mode == Allow {
			c.Own.State = c.Step.Charge(c.writable(), now, c.Units+granted)
			c.keep(now, c.Units+granted)
		}
	case c.Step.CountsDenied():
		if mode == Peek {
			c.peekRefused(now)
			return
		}
		c.Own.State = c.Step.Refuse(c.writable(), now, c.Units)
		c.keep(now, 0)
	case mode != Peek && c.dirty && c.Own.State != nil:
		c.keep(now, 0)
	}
	c.Reading = c.Step.Read(c.Own.State, now, need)
}

// peekRefused reads the cell as it would be after a refusal that counts, and leaves it as it is.
func (c *Cell) peekRefused(now int64) {
	state := c.writable()
	var before [2]int64
	if copy(before[:], state) < len(state) {
		state = slices.Clone(state)
	}
	c.Reading = c.Step.Read(c.Step.Refuse(state, now, c.Units), now, c.Units)
	if len(state) <= len(before) {
		copy(state, before[:])
	}
}

// report counts units that have been used, and how many of them had no room.
func (c *Cell) report(now int64, mode Mode) {
	if !c.Admitted {
		c.Uncovered = uncovered(c.Step, c.Own.State, now, c.Units)
	}
	if mode != Peek {
		c.Own.State = c.Step.Report(c.writable(), now, c.Units, c.Own.Step.Max())
		c.keep(now, c.Units)
	}
}

// Settle corrects a charge of n units, which the cell's policy made at the instant at, to the
// actual number. Fewer are given back, and more are counted, whether they fit or not. It returns the
// number of units that did not fit.
func (c *Cell) Settle(now, at, n, actual int64) (uncovered int64) {
	c.find(now)
	state, changed, uncovered := settle(c.Step, c.Own.State, now, at, n, actual, c.Own.Step.Max())
	if changed {
		c.Own.State = state
		c.keep(now, max(actual-n, 0))
	}
	return uncovered
}

// find sets Own to the variant of the Step, as of now.
func (c *Cell) find(now int64) {
	c.Changed, c.dirty, c.Uncovered = false, false, 0
	if c.Own.Step == c.Step && len(c.Others) == 0 { // the same Step; an equal one goes the longer way
		if c.Own.State != nil {
			c.bringBack(c.Step.Redate(c.Own.State, now, 0))
		}
		return
	}
	c.choose(now)
	if c.Own.State != nil {
		c.bringBack(redate(c.Step, &c.Own, c.Others, now))
	}
}

// bringBack takes the state that [Step.Redate] returned, if it did.
func (c *Cell) bringBack(full []int64) {
	if full != nil {
		c.Own.State, c.dirty = full, true
	}
}

// choose is find for a cell that has variants of other parameters.
func (c *Cell) choose(now int64) {
	own := &c.Own
	if len(c.Others) == 0 {
		switch {
		case own.State == nil:
			own.Step = c.Step
			return
		case own.Step.FreshAt(own.State) <= now: // what was charged under its Step is over
			if !Alike(own.Step, c.Step) {
				own.State = nil
			}
			own.Step = c.Step
			return
		case Alike(own.Step, c.Step):
			own.Step = larger(c.Step, own.Step)
			return
		}
		*own = keep(own.Step, own.State, now, nil)
	}
	c.Own, c.Others = take(append([]Variant{*own}, c.Others...), c.Step, now)
	c.dirty = true
}

// writable returns the state, which is made if there is none.
func (c *Cell) writable() []int64 {
	if c.Own.State == nil {
		c.Own.State = make([]int64, c.Step.Words())
	}
	return c.Own.State
}

// keep notes that the cell is to be saved, after that many units were charged.
func (c *Cell) keep(now, charged int64) {
	c.Changed = true
	if !c.dirty {
		return
	}
	c.Own = keep(c.Own.Step, c.Own.State, now, c.Others)
	if charged > 0 {
		count(c.Others, c.Own, now, charged)
	}
}
