// Package core decides whether an event may happen: a request, a message, a job,
// anything with a key that is charged for it.
//
// A [Limiter] applies one or several policies to each key and keeps their state in a
// [Store]: package memstore for one process, or a shared store for several.
//
//	limiter, err := core.New(memstore.New(memstore.Config{}), "api",
//		core.SlidingLog(core.PerMinute(60)))
//	...                // or core.Must(core.New(...))
//	d, err := limiter.Allow(ctx, user)
//	switch {
//	case err != nil:   // no decision was made: the store failed
//	case !d.Allowed:   // over the limit: retry after d.RetryAfter
//	}
//
// A refusal is never an error, and an error never means a refusal. The exception is
// [Slots.Acquire], which refuses with [ErrFull].
//
// # Choosing a policy
//
// Take SlidingLog if you have no special needs.
//
//	SlidingLog     exact: never more in any window
//	TokenBucket    bursts up to a size, and a steady rate in the long run
//	SlidingWindow  an estimate of the rolling window from a few counts, for large limits
//	FixedWindow    a number for each window of the clock, or from a key's first request; up to
//	               twice as many around a boundary
//	MinInterval    a distance between events
//
// In package memstore each key takes about 45 bytes of a TokenBucket, FixedWindow or
// MinInterval, about 170 of a SlidingWindow with the default resolution, and of a
// SlidingLog about 105 and 8 for each unit that it has room for: at least 4, unless the
// limit is lower, and up to twice the largest number that ever counted at once.
//
// Several policies on one key ("10 a minute, and 2 in 3 seconds") are charged all
// or not at all, in one atomic step; so are several limiters with different keys,
// through [AllowAll].
//
// # Policies as text
//
// A [Policy] and a [Rate] are text in configuration files, flags and variables of the
// environment: "sliding-log 60/minute", "7/30s". Whatever uses [encoding.TextUnmarshaler]
// and [encoding.TextMarshaler], as encoding/json and package flag do, can hold them.
// [Policy.UnmarshalText] describes the text.
//
// # Limiting concurrency
//
// [Slots] limit what is held at the same time rather than how often something happens:
// open sockets, streams, running jobs. A [Slot] is held until it is released, or until
// its process dies. [Slots.AcquireWait] waits in line for one.
//
// # Exactness
//
// Decisions are made in whole microseconds and whole units, by integer arithmetic, on
// the store's clock. RetryAfter is exact: repeated after that time, the same call is
// admitted if the key was not charged in between, and it would not have been admitted
// any earlier.
//
// # Contexts
//
// A context bounds the wait for a store. A nil one is refused before the store is called,
// with [ErrQuestion].
//
// # Observing
//
// A store's configuration takes an [Observer], whose functions are told of each decision
// and each slot: for metrics, logs and traces, the same over every store.
//
// # Keys
//
// A key is any string; it need not be text. Keys are addresses, tokens, people: they
// never appear in errors, events, nor in a printed [Decision].
package core
