package backend

import (
	"context"
	"slices"

	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// atMostTries is how often AtMost asks what fits. Whoever loses to others so often gets one unit, or none.
const atMostTries = 3

// Report counts n units of a key, whether they fit or not. The decision must be zero, and says how many did not.
func (l *Limiter) Report(ctx context.Context, key string, n int64, decision *Decision) (uncovered int64, err error) {
	if ctx == nil || n <= 0 {
		return 0, malformed(ctx, n, 1)
	}
	err = l.Decide(ctx, step.Settle, key, n, decision)
	if err == nil {
		uncovered = uncoveredBy(decision.cells())
	}
	return uncovered, err
}

// AtMost charges as many of n units as fit, and returns how many. It asks what fits, charges that, and asks again if
// others have charged the key meanwhile. It is never more than one charge: what fits is asked, not charged in parts, so
// that a refund has one receipt.
func (l *Limiter) AtMost(ctx context.Context, key string, n int64, decision *Decision) (units int64, err error) {
	if n <= 0 {
		return 0, malformed(ctx, n, 1)
	}
	for range atMostTries {
		var asked Decision
		err := l.Decide(ctx, step.Peek, key, 1, &asked)
		if err != nil {
			return 0, err
		}
		units = min(n, asked.Totals().Remaining)
		if units <= 1 {
			break
		}
		err = l.Decide(ctx, step.Allow, key, units, decision)
		if err != nil {
			return 0, err
		}
		if decision.Allowed {
			return units, nil
		}
		*decision = Decision{}
	}
	// One unit is asked for in any case, so that a refusal says how long to wait.
	err = l.Decide(ctx, step.Allow, key, 1, decision)
	if err != nil || !decision.Allowed {
		return 0, err
	}
	return 1, nil
}

// Reset forgets the key under all of these policies. A question has 64 cells at most. After an error some may be
// forgotten, and others not; it may be called again.
func (l *Limiter) Reset(ctx context.Context, key string, all []*Policies) error {
	if ctx == nil {
		return ErrNoContext
	}
	// Plans share the states of policies that differ in their limits only.
	hash := step.Hash(key)
	seen := make(map[uint64]bool)
	var cells []step.Cell
	for _, policies := range all {
		for i := range policies.List {
			policy := &policies.List[i]
			if policy.Constant() || seen[policy.ID] {
				continue
			}
			seen[policy.ID] = true
			var cell step.Cell
			cell.Set(policy, key, hash, 0)
			cells = append(cells, cell)
		}
	}
	for part := range slices.Chunk(cells, maxCells) {
		if _, err := l.stores.Rates.Ask(ctx, step.Reset, part); err != nil {
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

// Settle corrects the charges to the units that were used, one number for each charge. It returns the units for which
// there was no room, and ErrSettled if nothing was charged, or if that was corrected before.
func (d *Decision) Settle(ctx context.Context, actual ...int64) (uncovered int64, err error) {
	if ctx == nil {
		return 0, ErrNoContext
	}
	if !d.receipt.Exists() {
		return 0, store.ErrSettled
	}
	charges := d.Charges()
	if len(actual) != charges {
		return 0, Invalid("%d numbers to settle %d charges", len(actual), charges)
	}
	negative := slices.IndexFunc(actual, func(n int64) bool { return n < 0 })
	if negative >= 0 {
		return 0, Invalid("cannot settle to %d units", actual[negative])
	}
	// The receipt is spent before the store is asked. After an error nobody knows what was given back, so it must not
	// be given back again.
	if !d.receipt.Spend() {
		return 0, store.ErrSettled
	}
	cells := d.corrections(actual)
	if len(cells) > 0 {
		_, err = d.stores.Rates.Ask(ctx, step.Settle, cells)
	}
	d.tellSettled(ctx, d.stores.Observer, cells, actual, err)
	if err != nil {
		return 0, err
	}
	return uncoveredBy(cells), nil
}

// corrections returns the cells that change if the charges are corrected. Their Units are the difference: below 0,
// units go back to the part of time of the charge, which the Instant says. The cells of the decision stay as they were
// answered.
func (d *Decision) corrections(actual []int64) []step.Cell {
	changed := make([]step.Cell, 0, d.count)
	charge := 0
	for _, cell := range d.cells() {
		used := cell.Policy.Counted(min(actual[charge], step.MaxInt))
		if cell.Policy.Last {
			charge++
		}
		cell.Units = used - cell.Units
		if cell.Units != 0 && !cell.Policy.Constant() {
			changed = append(changed, cell)
		}
	}
	return changed
}

// Refund gives the charges back.
func (d *Decision) Refund(ctx context.Context) error {
	_, err := d.Settle(ctx, make([]int64, d.Charges())...)
	return err
}

// Cells returns what was charged and answered, for a receipt that leaves the process: see [Resume].
func (d *Decision) Cells() []step.Cell { return d.cells() }

// Resume returns the decision of cells that were charged, possibly by another process, which has not settled them.
// Their policies were prepared for the store. headgated hands receipts to its clients, who may settle at another
// server. So a receipt that is used twice is found by who reads it, not here.
func Resume(stores *Stores, cells []step.Cell) *Decision {
	return &Decision{
		receipt: store.NewReceipt(), stores: stores, Allowed: true, count: uint8(len(cells)), allCells: &cells,
	}
}
