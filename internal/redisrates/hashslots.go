package redisrates

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/step"
)

// A group is some cells of a question, such as those of one hash slot.
type group struct {
	hashSlot int
	cells    []step.Cell
	indices  []int // of the cells in the question
}

func (g *group) add(cells []step.Cell, i int) {
	g.cells = append(g.cells, cells[i])
	g.indices = append(g.indices, i)
}

func (g *group) copyTo(cells []step.Cell) {
	for i, index := range g.indices {
		cells[index] = g.cells[i]
	}
}

// room returns how often the units of a group fit into its policies. It is a guess from the limits alone: what is used,
// only the server knows.
func (g *group) room() int64 {
	least := int64(math.MaxInt64)
	for i := range g.cells {
		cell := &g.cells[i]
		least = min(least, cell.Policy.Max()/max(cell.Units, 1))
	}
	return least
}

// groups returns the cells of each hash slot.
func (d *Decider) groups(cells []step.Cell) (groups []group) {
	if !d.line.servers.hasHashSlots() {
		return []group{{cells: cells}}
	}
	for i := range cells { // there are few, so a search will do
		_, hashSlot := d.line.servers.of(&cells[i])
		g := slices.IndexFunc(groups, func(g group) bool { return g.hashSlot == hashSlot })
		if g < 0 {
			g = len(groups)
			groups = append(groups, group{hashSlot: hashSlot})
		}
		groups[g].add(cells, i)
	}
	return groups
}

// decideByServer asks about cells, which may be in several hash slots. Where there are none, all that is between here
// and line.send passes the question on: decideByHashSlot, and decideGroup, which asks again only of a calendar.
//
// The first time that the only server says that it has hash slots, it has run nothing: it is asked again by hash slot,
// as it is from then on.
func (d *Decider) decideByServer(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	hadHashSlots := d.line.servers.hasHashSlots()
	allowed, err = d.decideByHashSlot(ctx, mode, cells)
	if hadHashSlots || err == nil {
		return allowed, err
	}
	var fault hashSlotError // not above: it is allocated, which a decision without a fault must not pay for
	if !errors.As(err, &fault) {
		return allowed, err
	}
	d.line.servers.checksHashSlots.Store(true)
	return d.decideByHashSlot(ctxmark.DecideBy(ctx, fault.deadline), mode, cells)
}

// decideByHashSlot asks about cells of each hash slot: charges in turn, and what needs no other at the same time.
func (d *Decider) decideByHashSlot(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	if !d.line.servers.hasHashSlots() || len(cells) == 1 {
		return d.decideGroup(ctx, mode, cells)
	}
	// A charge of several is all or nothing, so each waits for the one before it. Of a peek or a settlement, each cell
	// stands for itself.
	groups := d.groups(cells)
	switch {
	case len(groups) == 1:
		return d.decideGroup(ctx, mode, cells)
	case mode == step.Allow:
		return d.decideInTurn(ctx, cells, groups)
	}
	return d.decideTogether(ctx, mode, cells, groups)
}

// decideGroup asks about cells of one hash slot. If the server's clock shows another window of a calendar than the two
// of which it was told, it has left cells alone, and is asked once more about them, in the same time.
func (d *Decider) decideGroup(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	allowed, deadline, err := d.line.send(ctx, mode, cells)
	if !errors.Is(err, errOtherWindow) {
		return allowed, err
	}
	// decide.lua leaves all cells alone, or those whose values INCRBY refuses; settle.lua any. The others are charged
	// or corrected, and must not be again.
	var leftAlone group
	for i := range cells {
		if cells[i].Shortfall == undecided {
			leftAlone.add(cells, i)
		}
	}
	// By now the script knows the clock of the server. What is left alone again is no value of a calendar.
	allowed, _, err = d.line.send(ctxmark.DecideBy(ctx, deadline), mode, leftAlone.cells)
	if errors.Is(err, errOtherWindow) {
		err = errForeign
	}
	leftAlone.copyTo(cells)
	for i := range cells {
		allowed = allowed && cells[i].Shortfall == 0
	}
	return allowed, err
}

// decideTogether asks about cells of each hash slot at the same time.
func (d *Decider) decideTogether(
	ctx context.Context, mode step.Mode, cells []step.Cell, groups []group,
) (allowed bool, err error) {
	// Each has cells of its own, so they are not in each other's way.
	fits := make([]bool, len(groups))
	faults := make([]error, len(groups))
	var all sync.WaitGroup
	for i := range groups {
		all.Go(func() { fits[i], faults[i] = d.decideGroup(ctx, mode, groups[i].cells) })
	}
	all.Wait()
	for i := range groups {
		groups[i].copyTo(cells)
	}
	return !slices.Contains(fits, false), errors.Join(faults...)
}

// decideInTurn charges one hash slot after the other. If one refuses or fails, the earlier charges are given back, but
// for those of policies that count refused attempts. A charge that cannot be given back expires.
//
// Of three hash slots, of which the second refuses:
//
//	A  Allow: charged   ...                 Settle: given back
//	B                   Allow: refused
//	C                                       Peek: how long it would have to wait
func (d *Decider) decideInTurn(ctx context.Context, cells []step.Cell, groups []group) (allowed bool, err error) {
	defer d.refusals.beginGivingBack(cells)()

	// One Timeout is for all hash slots together. Each call looks at the clock for what is left of it.
	deadline := time.Now().Add(d.timeout)
	own, ok := ctx.Deadline()
	if ok && own.Before(deadline) {
		deadline = own
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// From here on it does not count that the caller gives up: charges would stay although a later key refuses.
	all := deadlineContext{context.WithoutCancel(ctx), deadline}
	// Those with the least room go first, because they are the likeliest to refuse: then there is nothing to give back.
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(a.room(), b.room()) })
	for i := range groups {
		allowed, err = d.decideGroup(all, step.Allow, groups[i].cells)
		if allowed {
			continue
		}
		// What failed may be charged all the same, and is not given back: more room than there is would be worse.
		d.giveBack(deadline, groups[:i])
		if err != nil {
			return false, err
		}
		d.decidePeeks(all, groups[i+1:])
		break
	}
	for i := range groups {
		groups[i].copyTo(cells)
	}
	return allowed, nil
}

// decidePeeks asks about those that were not asked when another refused, so that the answer has the longest wait.
func (d *Decider) decidePeeks(ctx context.Context, groups []group) {
	for _, group := range groups {
		_, err := d.decideGroup(ctx, step.Peek, group.cells)
		if err == nil {
			continue
		}
		for i := range group.cells {
			cell := &group.cells[i]
			cell.Shortfall = 0
			cell.Reading = step.Reading{Remaining: cell.Policy.Capacity()}
		}
	}
}

// giveBack gives charges back, once, and waits for that until the deadline. The settlement itself may take longer.
func (d *Decider) giveBack(deadline time.Time, groups []group) {
	var charged []*step.Cell
	var back []step.Cell
	for _, group := range groups {
		for i := range group.cells {
			cell := &group.cells[i]
			if cell.Units > 0 && !cell.Policy.CountDenied {
				charged = append(charged, cell)
				back = append(back, *cell)
				back[len(back)-1].Units = -cell.Units
			}
		}
	}
	if len(charged) == 0 {
		return
	}
	// Nobody else gives them back, so it goes on even if the caller does not wait for it, with a Timeout of its own.
	done := make(chan bool, 1)
	go func() {
		_, _ = d.decideTogether(context.Background(), step.Settle, back, d.groups(back))
		done <- true
	}()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-done:
		for i, cell := range charged {
			cell.Reading = back[i].Reading
			cell.RetryAfter = 0
		}
	case <-timer.C: // the cells say what was left with the charge
	}
}

// A deadlineContext has an earlier deadline, which does not end it: who waits looks at the clock. A timer for it would
// be one more for each question of several hash slots.
type deadlineContext struct {
	context.Context

	deadline time.Time
}

// Deadline implements [context.Context].
func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }
