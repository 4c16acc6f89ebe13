package redisrates

import (
	"context"
	"errors"

	"github.com/headgate/headgate/internal/ctxmark"
	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/step"
)

// settle corrects charges where they were made. Each is sent once, even if the context has ended: one that is not
// answered may have been made.
//
//	SourceLocal   by the store of this process, in which it was charged
//	SourceOpen    nowhere: nothing was charged
//	others        at the server; a report also by Config.Failure, if the server does not answer
func (d *Decider) settle(ctx context.Context, cells []step.Cell) (allowed bool, err error) {
	defer d.refusals.beginGivingBack(cells)()

	// A receipt says who has charged. What this process has charged in an outage, Redis does not know.
	allowed = true
	var faults []error
	var atServer group
	for i := range cells {
		cell := &cells[i]
		switch cell.Source {
		case step.SourceLocal:
			fits, err := d.decideLocally(ctx, step.Settle, cells[i:i+1])
			allowed = allowed && fits
			faults = append(faults, err)
		case step.SourceOpen: // it was charged nowhere
			decideOpen(cell)
		default:
			atServer.add(cells, i)
		}
	}
	if len(atServer.cells) == 0 {
		return allowed, errors.Join(faults...)
	}

	// The context of the caller does not come along: who has given up has used the units all the same, or not.
	report := atServer.cells[0].Instant == 0 // of units that were charged nowhere before
	sent := context.Background()
	end, ok := ctxmark.DecisionEnd(ctx)
	if ok && report { // which this process can take, too, if the server is late
		sent = ctxmark.DecideBy(sent, end)
	}

	// A report can be counted here as well as there. A receipt of the server cannot.
	fits, err := d.decideByServer(sent, step.Settle, atServer.cells)
	switch {
	case err != nil && report:
		fits, err = d.decideWithoutServer(ctx, step.Settle, atServer.cells, err)
	case err != nil:
		err = unavailable(err)
	}
	allowed = allowed && fits
	faults = append(faults, err)
	atServer.copyTo(cells)
	return allowed, errors.Join(faults...)
}

// reset forgets states. After an error the server may still have them. A share of the key that was charged here in an
// outage is forgotten with it.
func (d *Decider) reset(ctx context.Context, cells []step.Cell) error {
	defer d.refusals.beginGivingBack(cells)()
	if d.failure == outage.FailLocal {
		if _, err := d.decideLocally(ctx, step.Reset, cells); err != nil {
			return err
		}
	}
	call, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err := d.resetAtServer(call, cells)
	elsewhere, _ := aboutHashSlot(err)
	if elsewhere && !d.line.servers.hasHashSlots() { // as in decideByServer
		d.line.servers.checksHashSlots.Store(true)
		err = d.resetAtServer(call, cells)
	}
	if own := ctx.Err(); own != nil {
		return own
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// resetAtServer deletes the values of cells, of one hash slot after the other. That shares no call with others, and is
// no probe: a reset is rare, and must not seem to work on a server that is away.
func (d *Decider) resetAtServer(ctx context.Context, cells []step.Cell) error {
	for _, group := range d.groups(cells) {
		to, _ := d.line.servers.of(&group.cells[0])
		if to.breaker.open.Load() {
			return errAway
		}
		if err := d.script.runDelete(ctx, group.cells); err != nil {
			return err
		}
	}
	return nil
}
