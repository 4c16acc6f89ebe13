// Package outage says who decides while the server of a store is away.
package outage

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by the error of a store whose server is away, and which is told to fail then.
var ErrUnavailable = errors.New("headgate: the store is not available")

// A Failure says who decides while the server is away, of rates and of slots.
type Failure int

// FailLocal: this process alone. FailOpen: nobody, all is admitted. FailClosed: nobody, the error is [ErrUnavailable].
const (
	FailLocal Failure = iota
	FailOpen
	FailClosed
)

// String returns "local", "open" or "closed".
func (f Failure) String() string {
	switch f {
	case FailLocal:
		return "local"
	case FailOpen:
		return "open"
	case FailClosed:
		return "closed"
	}
	return fmt.Sprintf("Failure(%d)", int(f))
}
