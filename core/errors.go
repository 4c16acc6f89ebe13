package core

import (
	"errors"
	"strconv"
)

var (
	// ErrCost is the error of a charge that is not positive. Nothing was asked.
	ErrCost = errors.New("headgate: a charge must be at least 1 unit")

	// ErrUnavailable is the error of a store that cannot be asked now and is told
	// to refuse rather than to guess. No decision was made.
	ErrUnavailable = errors.New("headgate: the store is not available")

	// ErrNever is the error of a [Limiter.Wait] for what no waiting brings: more
	// units than a policy can ever grant.
	ErrNever = errors.New("headgate: no waiting would admit that many units")

	// ErrQuestion is the error of an [AllowAll] or [AcquireAll] that cannot be asked
	// as one: nothing or too much to charge, a nil limiter, limiters of different
	// stores, or the same limiter and key twice. Nothing was asked.
	ErrQuestion = errors.New("headgate: malformed question")

	// ErrSettled is the error of a Settle or Refund of a decision that holds no
	// charge: it refused, was only a peek, or was settled or refunded before.
	ErrSettled = errors.New("headgate: the decision holds no charge")

	// ErrFull is the error of an acquire for a key that holds as many slots as it
	// may. It is a [FullError].
	ErrFull = errors.New("headgate: all slots are taken")

	// ErrClosed is the error of an acquire of slots that were closed.
	ErrClosed = errors.New("headgate: the slots are closed")
)

// A ConfigError is one thing that is wrong with what a limiter, or slots, were made
// of. [New] joins all of them; errors.As finds the first.
type ConfigError struct {
	Limiter string // its name, or that of the slots
	Policy  string // which of its policies: a quoted name, or #1, #2 ... without one; empty if that says nothing more
	Err     error  // what is wrong, and what to do instead

	slots bool // not a limiter
}

func (e *ConfigError) Error() string {
	where := "headgate: limiter "
	if e.slots {
		where = "headgate: slots "
	}
	where += strconv.Quote(e.Limiter)
	if e.Policy != "" {
		where += ", policy " + e.Policy
	}
	return where + ": " + e.Err.Error()
}

func (e *ConfigError) Unwrap() error { return e.Err }
