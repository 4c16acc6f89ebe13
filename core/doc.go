// Package core limits how often something happens, and how much is open at once.
//
//	store := new(core.MemoryStore)
//	mails := core.NewLimiter(store, "mails", core.SlidingLog(3, time.Hour))
//	d, err := mails.Allow(ctx, "user-42")
//
// A [Limiter] counts units for each key under 1 to 8 policies, which are charged together or not at all. [Slots]
// are places that a key holds until it releases them. A [Store] keeps the counts: a [MemoryStore] in this process, or
// package redisstore for all servers.
//
// A key is any text: an address, the name of a user. No error, event or print has one.
//
// # Policies
//
//	policy          admits                                          bytes a key in memory
//	SlidingLog      n in any period whatever, exactly               8 a unit
//	SlidingWindow   about n in any period, from ten counts          185
//	FixedWindow     n in each window of the clock                   44
//	TokenBucket     bursts of n, and n a period in the long run     44
//	MinInterval     one event, then none for a while                44
//	Calendar        n in each day, week, month or year              44
//
// [Policy] has texts, such as "token-bucket 10/second burst 100", for configurations.
//
// # Errors
//
// A refusal is not an error: [Decision].Allowed is false. An error means that there is no decision, and the caller
// chooses what then happens. [ErrUnavailable] is that of a store whose server is away, if it is told to fail
// then. A wrong argument of a constructor panics, as it is a fault of the program; a wrong argument of a call is
// [ErrInvalid].
package core

import (
	"math"
	"time"

	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/internal/step"
	"github.com/headgate/headgate/internal/store"
)

var (
	// ErrUnavailable means that the store's server is away, and that the store is told to fail then.
	ErrUnavailable = store.ErrUnavailable

	// ErrNever is the error of a Wait for units that the policies never admit.
	ErrNever = store.ErrNever

	// ErrFull means that a key holds as many slots as it may. The error of a Wait that ended in vain also wraps
	// the cause of its context.
	ErrFull = slots.ErrFull

	// ErrClosed means that the slots, or a book of limits, are closed.
	ErrClosed = slots.ErrClosed

	// ErrSettled is the error of a second Settle or Refund, and of one without a charge.
	ErrSettled = store.ErrSettled

	// ErrInvalid means that a call is wrong, or that data such as the text of a policy is.
	ErrInvalid = store.ErrInvalid
)

const (
	// Never is the RetryAfter of a refusal that waiting cannot change.
	Never time.Duration = math.MaxInt64

	// NoLimit is the Limit of Unlimited, and the Remaining of what nobody knows.
	NoLimit = step.MaxInt
)

// A Store keeps counts. Stores are a [*MemoryStore] and a Store of package redisstore; other packages cannot
// implement it, as the result is internal.
type Store interface{ Backend() *backend.Stores }

// must returns v, or panics with the error of a constructor.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
