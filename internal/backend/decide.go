package backend

import (
	"context"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// Bounds of a call.
const (
	maxCharges = 64
	maxCells   = 64
)

// A Charge is units of a limiter for a key.
type Charge struct {
	Limiter *Limiter
	Key     string
	Units   int64
}

// A PolicyAnswer is the result of one policy. Package core explains it.
type PolicyAnswer struct {
	Limiter, Policy                           string
	Allowed                                   bool
	Limit, Remaining                          int64
	Window, NextAfter, ResetAfter, RetryAfter time.Duration
}

// A Decision is a question about cells, and when the store has answered, the answers of all policies and the receipt of
// what was charged.
type Decision struct {
	receipt store.Receipt // that copies share; the zero one: nothing was charged
	store   *Stores       // that was asked
	Allowed bool
	count   uint8 // of cells

	first [2]step.Cell
	more  *[]step.Cell    // all of them, if they are more
	slots *[]PolicyAnswer // of guards
}

// room makes room for cells of a question to a store.
func (d *Decision) room(s *Stores, n int) []step.Cell {
	d.store, d.count = s, uint8(n)
	if n <= len(d.first) {
		return d.first[:n]
	}
	cells := make([]step.Cell, n)
	d.more = &cells
	return cells
}

// cells returns what was asked, and answered.
func (d *Decision) cells() []step.Cell {
	if d.more != nil {
		return *d.more
	}
	return d.first[:d.count]
}

// Decide asks about n units of one key. The decision must be zero.
func (l *Limiter) Decide(ctx context.Context, mode step.Mode, key string, n int64, d *Decision) error {
	if ctx == nil || n < 0 {
		return malformed(ctx, n, 0)
	}
	n = min(n, step.MaxInt)
	ps := l.fixed
	if ps == nil {
		var err error
		if ps, err = l.Of(key); err != nil {
			return err
		}
	}
	cells, hash := d.room(l.store, len(ps.List)), step.Hash(key)
	for i := range cells {
		cells[i].Set(&ps.List[i], key, hash, n)
	}
	without := ps.Constant || n > ps.Max && mode <= step.Peek
	if s := l.store; s.Memory != nil && s.Observer == nil && !without { // as ask would, in less time
		d.Allowed = s.Memory.Answer(mode, cells, &d.receipt)
		return nil
	}
	return d.ask(ctx, mode, cells, without)
}

// malformed returns the error of a call that has no context, or fewer units than it must have.
func malformed(ctx context.Context, n, least int64) error {
	if ctx == nil {
		return ErrNoContext
	}
	return tooFew(n, least)
}

func tooFew(n, least int64) error { return Invalid("%d units: there must be at least %d", n, least) }

// Decide asks about charges: step.Allow charges all or none, step.Peek none, and step.Settle reports all, whether they fit
// or not. The decision must be zero.
func Decide(ctx context.Context, mode step.Mode, charges []Charge, d *Decision) error {
	if len(charges) == 1 {
		c := &charges[0]
		return c.Limiter.Decide(ctx, mode, c.Key, c.Units, d)
	}
	if ctx == nil {
		return ErrNoContext
	}
	var room [8]applied
	found, n, err := find(charges, room[:0])
	if err != nil {
		return err
	}
	cells, i, constant, never := d.room(charges[0].Limiter.store, n), 0, true, false
	for j := range charges {
		c, ps := &charges[j], found[j]
		units, hash := min(c.Units, step.MaxInt), step.Hash(c.Key)
		for k := range ps.List {
			cells[i].Set(&ps.List[k], c.Key, hash, units)
			i++
		}
		constant, never = constant && ps.Constant, never || units > ps.Max && mode <= step.Peek
	}
	return d.ask(ctx, mode, cells, constant || never)
}

// applied are the policies that apply to a charge, as of a view.
type applied struct {
	*Policies

	view View
}

// find finds the policies of charges, as of one view of each document, and how many there are.
func find(charges []Charge, found []applied) (all []applied, cells int, err error) {
	if len(charges) == 0 || len(charges) > maxCharges {
		return nil, 0, Invalid("%d charges, not 1 to %d", len(charges), maxCharges)
	}
	for i := range charges {
		c := &charges[i]
		if c.Units < 0 {
			return nil, 0, tooFew(c.Units, 0)
		}
		var view View // which an earlier charge may have of the same document
		for j := range i {
			switch b := &charges[j]; {
			case !b.Limiter.SameStore(c.Limiter):
				return nil, 0, Invalid("limiters %q and %q have different stores", b.Limiter.name, c.Limiter.name)
			case b.Limiter.name == c.Limiter.name && b.Key == c.Key:
				return nil, 0, Invalid("two charges of limiter %q have the same key", c.Limiter.name)
			case b.Limiter.book != nil && b.Limiter.book == c.Limiter.book:
				view = found[j].view
			}
		}
		if view == nil {
			view = c.Limiter.view()
		}
		ps, err := c.Limiter.policies(view, c.Key)
		if err != nil {
			return nil, 0, err
		}
		found, cells = append(found, applied{ps, view}), cells+len(ps.List)
	}
	if cells > maxCells {
		return nil, 0, Invalid("%d policies, more than %d", cells, maxCells)
	}
	return found, cells, nil
}

// ask decides, and tells the observer.
func (d *Decision) ask(ctx context.Context, mode step.Mode, cells []step.Cell, without bool) error {
	s := d.store
	start := s.begin()
	err := d.answer(ctx, mode, cells, without)
	switch {
	case s.Observer == nil:
	case mode == step.Allow:
		d.tell(ctx, s.Observer, start, err)
	case mode == step.Settle:
		d.tellReported(ctx, s.Observer, err)
	}
	return err
}

// answer asks the store about the cells, unless the policies decide without it. For a store in memory, and as far as units
// are leased, cells stay on the stack of the caller. Others get copies of those that they have to answer, as the compiler
// does not know what they do with them.
func (d *Decision) answer(ctx context.Context, mode step.Mode, cells []step.Cell, without bool) (err error) {
	if without {
		d.withoutStore(mode)
		return nil
	}
	s := d.store
	if s.Memory != nil {
		d.Allowed = s.Memory.Answer(mode, cells, &d.receipt)
		return nil
	}
	if s.Leases != nil && mode == step.Allow {
		var answered bool
		if d.Allowed, answered = s.Leases.Answer(mode, cells, &d.receipt); answered {
			return nil
		}
	}
	far, all := make([]step.Cell, 0, len(cells)), true
	for i := range cells {
		if c := &cells[i]; c.Policy.Constant() {
			all = alone(c, mode) && all
		} else {
			far = append(far, *c)
		}
	}
	d.Allowed, err = s.Rates.Ask(ctx, mode, far)
	for i := range cells {
		if c := &cells[i]; !c.Policy.Constant() {
			*c, far = far[0], far[1:]
		}
	}
	if d.Allowed = d.Allowed && all && err == nil; d.Allowed && mode == step.Allow {
		d.receipt = store.NewReceipt()
	}
	return err
}

// withoutStore decides by the policies alone: one is constant, or never admits as many units. Nothing is known of what
// others have left.
func (d *Decision) withoutStore(mode step.Mode) {
	cells := d.cells()
	d.Allowed = true
	for i := range cells {
		c := &cells[i]
		d.Allowed = alone(c, mode) && d.Allowed
		if !c.Policy.Constant() {
			c.Remaining = 0
		}
	}
}

// alone decides a cell by its policy alone, and reports whether the units fit.
func alone(c *step.Cell, mode step.Mode) bool {
	c.Source = step.SourcePolicy
	if mode == step.Settle {
		c.Settle(nil, 0)
		return c.Short == 0
	}
	return c.Take(nil, 0, false)
}

// Report counts n units of a key, whether they fit or not. The decision must be zero, and says how many did not.
func (l *Limiter) Report(ctx context.Context, key string, n int64, d *Decision) (uncovered int64, err error) {
	if ctx == nil || n <= 0 {
		return 0, malformed(ctx, n, 1)
	}
	err = l.Decide(ctx, step.Settle, key, n, d)
	if err == nil {
		uncovered = uncoveredBy(d.cells())
	}
	return uncovered, err
}

// AtMost charges as many of n units as fit, and returns how many. It asks what fits, charges that, and asks again if
// others have charged the key meanwhile.
func (l *Limiter) AtMost(ctx context.Context, key string, n int64, d *Decision) (units int64, err error) {
	if n <= 0 {
		return 0, malformed(ctx, n, 1)
	}
	for range 3 {
		var ask Decision
		if err := l.Decide(ctx, step.Peek, key, 1, &ask); err != nil {
			return 0, err
		}
		units = min(n, ask.Totals().Remaining)
		if units <= 1 {
			break
		}
		if err := l.Decide(ctx, step.Allow, key, units, d); err != nil {
			return 0, err
		}
		if d.Allowed {
			return units, nil
		}
		*d = Decision{}
	}
	if err = l.Decide(ctx, step.Allow, key, 1, d); err != nil || !d.Allowed {
		return 0, err
	}
	return 1, nil
}

// Reset forgets the key under all of these policies.
func (l *Limiter) Reset(ctx context.Context, key string, all []*Policies) error {
	if ctx == nil {
		return ErrNoContext
	}
	hash, seen, cells := step.Hash(key), make(map[uint64]bool), []step.Cell(nil)
	for _, ps := range all {
		for i := range ps.List {
			if p := &ps.List[i]; !p.Constant() && !seen[p.ID] {
				var c step.Cell
				c.Set(p, key, hash, 0)
				cells, seen[p.ID] = append(cells, c), true
			}
		}
	}
	for part := range slices.Chunk(cells, maxCells) {
		if _, err := l.store.Rates.Ask(ctx, step.Reset, part); err != nil {
			return err
		}
	}
	return nil
}

// Charges returns the number of charges.
func (d *Decision) Charges() (n int) {
	for i := range d.cells() {
		if d.cells()[i].Policy.Last {
			n++
		}
	}
	return n
}

// Settle corrects the charges to the units that were used, one number for each charge.
func (d *Decision) Settle(ctx context.Context, actual ...int64) (uncovered int64, err error) {
	if ctx == nil {
		return 0, ErrNoContext
	}
	if !d.receipt.Exists() {
		return 0, store.ErrSettled
	}
	if n := d.Charges(); len(actual) != n {
		return 0, Invalid("%d numbers to settle %d charges", len(actual), n)
	}
	if i := slices.IndexFunc(actual, func(n int64) bool { return n < 0 }); i >= 0 {
		return 0, Invalid("cannot settle to %d units", actual[i])
	}
	if !d.receipt.Spend() {
		return 0, store.ErrSettled
	}
	cells := d.corrections(actual)
	if len(cells) > 0 {
		_, err = d.store.Rates.Ask(ctx, step.Settle, cells)
	}
	d.tellSettled(ctx, d.store.Observer, cells, actual, err)
	if err != nil {
		return 0, err
	}
	return uncoveredBy(cells), nil
}

// corrections returns the cells that change if the charges are corrected.
func (d *Decision) corrections(actual []int64) []step.Cell {
	all, charge := make([]step.Cell, 0, d.count), 0
	for _, c := range d.cells() {
		n := min(actual[charge], step.MaxInt)
		if c.Policy.Last {
			charge++
		}
		if c.N = c.Policy.Counted(n) - c.N; c.N != 0 && !c.Policy.Constant() {
			all = append(all, c)
		}
	}
	return all
}

// Refund gives the charges back.
func (d *Decision) Refund(ctx context.Context) error {
	_, err := d.Settle(ctx, make([]int64, d.Charges())...)
	return err
}

// Cells returns what was charged and answered, for a receipt that leaves the process: see [Resume].
func (d *Decision) Cells() []step.Cell { return d.cells() }

// Resume returns the decision of cells that were charged, possibly by another process, which has not settled them. Their
// policies were prepared for the store.
func Resume(s *Stores, cells []step.Cell) *Decision {
	return &Decision{receipt: store.NewReceipt(), store: s, Allowed: true, count: uint8(len(cells)), more: &cells}
}
