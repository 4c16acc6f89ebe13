package core

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/headgate/headgate/internal/old/core/store"
)

var (
	// ErrCost is returned for a number of units below 0. Calls that cannot check, such as WaitN and
	// Report, return it for 0, too. Nothing was charged.
	ErrCost = fmt.Errorf("%w: a charge must be at least 1 unit, or 0 to check only", ErrQuestion)

	// ErrUnavailable is returned when the store cannot be reached and is configured not
	// to decide without it. No decision was made.
	ErrUnavailable = store.ErrUnavailable

	// ErrNever is returned by [Limiter.Wait] and [Limiter.WaitN] if the policies can
	// never admit that many units.
	ErrNever = errors.New("headgate: no waiting would admit that many units")

	// ErrQuestion is returned for a malformed call, which changes nothing. A nil context is
	// malformed. So is a call of [AllowAll] with one of these faults:
	//
	//   - no charges, more than 64, or more than 64 policies together
	//   - a nil limiter
	//   - stores that do not go together
	//   - the same name and key twice
	ErrQuestion = errors.New("headgate: malformed call")

	// ErrSettled is returned by Settle and Refund of a decision that holds no charge. Such a
	// decision refused, was only a peek, or was settled or refunded before.
	ErrSettled = errors.New("headgate: the decision holds no charge")

	// ErrClosed means that a book of limits is closed.
	ErrClosed = store.ErrClosed
)

// errContext is the error of a call whose context is nil. It is found here because some
// stores would panic, and some would not notice.
var errContext = fmt.Errorf("%w: the context is nil", ErrQuestion)

// A ConfigError is a fault in the configuration of a limiter. [New] and [Limiter.With] join all that they find; errors.As finds the first.
type ConfigError struct {
	Limiter string // the name of the limiter
	Policy  string // the policy: its quoted name, or #1, #2 ... if it has none; empty if the fault is not of one of several
	Err     error  // the fault, and what to do instead
}

func (e *ConfigError) Error() string {
	where := "headgate: limiter "
	where += strconv.Quote(e.Limiter)
	if e.Policy != "" {
		where += ", policy " + e.Policy
	}
	return where + ": " + e.Err.Error()
}

func (e *ConfigError) Unwrap() error { return e.Err }

// faults collects the ConfigErrors of one limiter.
type faults struct {
	limiter string
	all     []error
}

// add adds each error that err joins, if any.
func (f *faults) add(policy string, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			f.add(policy, e)
		}
		return
	}
	f.all = append(f.all, &ConfigError{Limiter: f.limiter, Policy: policy, Err: err})
}

// err returns the faults joined, or nil if there are none.
func (f *faults) err() error { return errors.Join(f.all...) }
