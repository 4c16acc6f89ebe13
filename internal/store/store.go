// Package store is what limiters ask, and what observers are told. Packages memory, redisrates and lease answer.
package store

import (
	"context"
	"errors"

	"github.com/headgate/headgate/internal/outage"
	"github.com/headgate/headgate/internal/step"
)

// Rates keep the states of keys, and decide. They are safe for concurrent use.
type Rates interface {
	// Prepare is called once for the policies of each limiter that is made, before anything is asked about them. It
	// writes into them what the store needs for its decisions, their Attachment.
	// Its error is a fault of the configuration: those that it joins have a line each.
	Prepare(policies []step.Policy) error

	// Ask answers a question of 1 to 64 cells in place, and reports whether all of them admit their units. No
	// two cells have the same policy and key, and none is of a constant policy. They are decided together. It does
	// not use the cells after it returns. After an error nobody knows what was charged.
	Ask(ctx context.Context, mode step.Mode, cells []step.Cell) (allowed bool, err error)
}

var (
	// ErrUnavailable is wrapped by the error of a store whose server is away, and which is told to fail then.
	ErrUnavailable = outage.ErrUnavailable

	// ErrNever is the error of a wait for what is never admitted.
	ErrNever = errors.New("headgate: no waiting would admit that many units")

	// ErrSettled is the error of a second correction of a charge.
	ErrSettled = errors.New("headgate: the decision holds no charge")

	// ErrInvalid is wrapped by the error about a call that is wrong.
	ErrInvalid = errors.New("headgate: malformed call")
)
