package backend

import (
	"context"
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
//
// The cells of a charge are one behind the other, and the last has a policy that is Last. So AllowAll of limiter A with
// two policies, and of limiter B with one, is:
//
//	cells     A "minute"   A "day" Last   B "api" Last
//	charges   |----------- 0 ----------|  |---- 1 ---|
//
// A Decision is not safe for concurrent use, but for its receipt: of copies that settle at once, one does.
type Decision struct {
	receipt store.Receipt // that copies share; the zero one: nothing was charged
	stores  *Stores       // that were asked
	Allowed bool
	count   uint8 // of cells

	fewCells [2]step.Cell    // so that most decisions allocate nothing
	allCells *[]step.Cell    // if they are more than a few
	slots    *[]PolicyAnswer // of guards
}

// room makes room for the cells of a question to a store.
func (d *Decision) room(stores *Stores, n int) []step.Cell {
	d.stores = stores
	d.count = uint8(n)
	if n <= len(d.fewCells) {
		return d.fewCells[:n]
	}
	cells := make([]step.Cell, n)
	d.allCells = &cells
	return cells
}

// cells returns what was asked, and answered.
func (d *Decision) cells() []step.Cell {
	if d.allCells != nil {
		return *d.allCells
	}
	return d.fewCells[:d.count]
}

// Decide asks about n units of one key. The decision must be zero.
func (l *Limiter) Decide(ctx context.Context, mode step.Mode, key string, n int64, decision *Decision) error {
	if ctx == nil || n < 0 {
		return malformed(ctx, n, 0)
	}
	// Policies count to 2^53 at most, so what is above that is refused as that is.
	n = min(n, step.MaxInt)
	policies := l.fixed
	if policies == nil {
		var err error
		policies, err = l.Of(key)
		if err != nil {
			return err
		}
	}
	cells := decision.room(l.stores, len(policies.List))
	hash := step.Hash(key)
	for i := range cells {
		cells[i].Set(&policies.List[i], key, hash, n)
	}
	without := policies.Constant || neverFits(policies, mode, n)
	// This is what ask would do, in less time: most decisions in memory are told to nobody.
	stores := l.stores
	if stores.Memory != nil && stores.Observer == nil && !without {
		decision.Allowed = stores.Memory.Answer(mode, cells, &decision.receipt)
		return nil
	}
	return decision.ask(ctx, mode, cells, without)
}

// neverFits reports whether policies refuse so many units whatever was used, so that no store need be asked. Reports
// count even so.
func neverFits(policies *Policies, mode step.Mode, n int64) bool {
	return n > policies.Max && mode <= step.Peek
}

// malformed returns the error of a call that has no context, or fewer units than it must have.
func malformed(ctx context.Context, n, least int64) error {
	if ctx == nil {
		return ErrNoContext
	}
	return tooFew(n, least)
}

func tooFew(n, least int64) error {
	return Invalid("%d units: there must be at least %d", n, least)
}

// Decide asks about charges: step.Allow charges all or none, step.Peek none, and step.Settle reports all, whether they
// fit or not. The decision must be zero.
func Decide(ctx context.Context, mode step.Mode, charges []Charge, decision *Decision) error {
	if len(charges) == 1 {
		only := &charges[0]
		return only.Limiter.Decide(ctx, mode, only.Key, only.Units, decision)
	}
	if ctx == nil {
		return ErrNoContext
	}
	// On the stack, for the few charges that a request has.
	var room [8]applied
	found, n, err := find(charges, room[:0])
	if err != nil {
		return err
	}
	// The cells of a charge are one behind the other. If one policy can never admit its units, none is charged.
	cells := decision.room(charges[0].Limiter.stores, n)
	next := 0
	allConstant := true
	someNever := false
	for i := range charges {
		charge := &charges[i]
		policies := found[i].Policies
		units := min(charge.Units, step.MaxInt)
		hash := step.Hash(charge.Key)
		for j := range policies.List {
			cells[next].Set(&policies.List[j], charge.Key, hash, units)
			next++
		}
		allConstant = allConstant && policies.Constant
		someNever = someNever || neverFits(policies, mode, units)
	}
	return decision.ask(ctx, mode, cells, allConstant || someNever)
}

// applied are the policies that apply to a charge, as of a snapshot.
type applied struct {
	*Policies

	snapshot *Snapshot
}

// find finds the policies of charges, as of one snapshot of each document, and how many there are. It compares each
// charge with all before it: of 64 at most, that takes less than a map.
func find(charges []Charge, found []applied) (all []applied, cells int, err error) {
	if len(charges) == 0 || len(charges) > maxCharges {
		return nil, 0, Invalid("%d charges, not 1 to %d", len(charges), maxCharges)
	}
	for i := range charges {
		charge := &charges[i]
		if charge.Units < 0 {
			return nil, 0, tooFew(charge.Units, 0)
		}
		limiter := charge.Limiter
		// Charges of one document see the same snapshot of it, or a decision could have policies of two versions.
		var snapshot *Snapshot
		for j := range i {
			earlier := charges[j].Limiter
			switch {
			case !earlier.SameStore(limiter):
				return nil, 0, Invalid("limiters %q and %q have different stores", earlier.name, limiter.name)
			case earlier.name == limiter.name && charges[j].Key == charge.Key:
				return nil, 0, Invalid("two charges of limiter %q have the same key", limiter.name)
			case earlier.book != nil && earlier.book == limiter.book:
				snapshot = found[j].snapshot
			}
		}
		if snapshot == nil {
			snapshot = limiter.snapshot()
		}
		policies, err := limiter.policies(snapshot, charge.Key)
		if err != nil {
			return nil, 0, err
		}
		found = append(found, applied{policies, snapshot})
		cells += len(policies.List)
	}
	if cells > maxCells {
		return nil, 0, Invalid("%d policies, more than %d", cells, maxCells)
	}
	return found, cells, nil
}

// ask decides, and tells the observer. Of a check nobody is told: nothing was decided.
func (d *Decision) ask(ctx context.Context, mode step.Mode, cells []step.Cell, without bool) error {
	observer := d.stores.Observer
	start := d.stores.begin()
	err := d.answer(ctx, mode, cells, without)
	switch {
	case observer == nil:
	case mode == step.Allow:
		d.tell(ctx, observer, start, err)
	case mode == step.Settle:
		d.tellReported(ctx, observer, err)
	}
	return err
}

// answer asks the store about the cells, unless the policies decide without it. For a store in memory, and as far as
// units are leased, cells stay on the stack of the caller. Others get copies of those that they have to answer, as the
// compiler does not know what they do with them.
func (d *Decision) answer(ctx context.Context, mode step.Mode, cells []step.Cell, without bool) (err error) {
	if without {
		d.withoutStore(mode)
		return nil
	}
	if d.stores.Memory != nil {
		d.Allowed = d.stores.Memory.Answer(mode, cells, &d.receipt)
		return nil
	}
	if d.stores.Leases != nil && mode == step.Allow {
		var answered bool
		d.Allowed, answered = d.stores.Leases.Answer(mode, cells, &d.receipt)
		if answered {
			return nil
		}
	}
	// Constant policies decide here. Of a charge they admit: what one of them never admits has not come so far.
	far := make([]step.Cell, 0, len(cells))
	constantsAllow := true
	for i := range cells {
		cell := &cells[i]
		if cell.Policy.Constant() {
			constantsAllow = alone(cell, mode) && constantsAllow
		} else {
			far = append(far, *cell)
		}
	}
	d.Allowed, err = d.stores.Rates.Ask(ctx, mode, far)
	for i := range cells {
		if !cells[i].Policy.Constant() {
			cells[i] = far[0]
			far = far[1:]
		}
	}
	d.Allowed = d.Allowed && constantsAllow && err == nil
	// Only a charge can be given back. A report was no charge, and is corrected by another.
	if d.Allowed && mode == step.Allow {
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
		cell := &cells[i]
		d.Allowed = alone(cell, mode) && d.Allowed
		if !cell.Policy.Constant() {
			cell.Remaining = 0
		}
	}
}

// alone decides a cell by its policy alone, and reports whether the units fit. There is no state, and the instant is 0:
// it answers as if the key had never been charged.
func alone(cell *step.Cell, mode step.Mode) bool {
	cell.Source = step.SourcePolicy
	if mode == step.Settle {
		cell.Settle(nil, 0)
		return cell.Shortfall == 0
	}
	return cell.Take(nil, 0, false)
}
