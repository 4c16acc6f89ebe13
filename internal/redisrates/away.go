package redisrates

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

// decideWithoutServer answers a question that the server did not.
func (d *Decider) decideWithoutServer(
	ctx context.Context, mode step.Mode, cells []step.Cell, cause error,
) (allowed bool, err error) {
	// A caller that has given up gets its own error. A settlement is made all the same: units are used, or free again,
	// whether somebody waits for the answer or not.
	if err := ended(ctx); err != nil && mode != step.Settle {
		return false, err
	}
	switch {
	case d.failure == outage.FailClosed, errors.Is(cause, errCrowd): // a crowd is no outage: the server answers others
		return false, unavailable(cause)
	case d.failure == outage.FailOpen:
		for i := range cells {
			cell := &cells[i]
			cell.Instant = 0
			decideOpen(cell)
		}
		return true, nil
	}
	return d.decideLocally(ctx, mode, cells)
}

// decideOpen answers that nothing of a cell is used.
func decideOpen(cell *step.Cell) {
	cell.Source = step.SourceOpen
	cell.Shortfall = 0
	cell.Reading = step.Reading{Remaining: cell.Policy.Capacity()}
}

// decideLocally asks the store in this process. It asks for no more than that can ever grant, as core compared the
// units with limits that were not divided, and gives back no more.
func (d *Decider) decideLocally(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error) {
	// The policies of that store are others, so it is asked about copies of the cells.
	own := append(make([]step.Cell, 0, 2), cells...)
	for i := range own {
		cell := &own[i]
		cell.Policy = cell.Policy.Attachment.(*scriptPolicy).local
		limit := cell.Policy.Max()
		if mode == step.Settle {
			cell.Units = max(cell.Units, -limit)
		} else {
			cell.Units = min(cell.Units, limit)
		}
	}
	allowed, err = d.local.Ask(ctx, mode, own)
	for i := range own {
		cell := &cells[i]
		cell.Instant = own[i].Instant
		cell.Source = step.SourceLocal
		cell.Shortfall = own[i].Shortfall
		cell.Reading = own[i].Reading
	}
	return allowed, err
}

// unavailable returns the error that says why the server was not used.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", store.ErrUnavailable, cause) }

// ended returns the error of a context that has ended, or whose deadline has come: its own timer may be late.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline, ok := ctx.Deadline()
	if ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}
