// Package core decides whether an event may happen: a request, a message, a job,
// anything that has a key saying who is charged for it.
//
// A [Limiter] applies one or several policies to each key and keeps their state
// in a [Store]: package memstore for one process, or a shared one for a fleet.
//
//	limiter, err := core.New(memstore.New(memstore.Config{}), "api",
//		core.SlidingLog(core.PerMinute(60)))
//	...
//	d, err := limiter.Allow(ctx, user)
//	switch {
//	case err != nil:   // no decision was made: the store could not answer
//	case !d.Allowed:   // over the limit: come back after d.RetryAfter
//	}
//
// A refusal is never an error, and an error never means a refusal. The exception is
// [Slots.Acquire], which refuses with [ErrFull].
//
// # Choosing a policy
//
//	TokenBucket    bursts up to a size, a steady rate in the long run. 16 bytes a key
//	FixedWindow    so many in each window of the clock. Up to twice as many around a boundary
//	SlidingWindow  an estimate of the rolling window from a few counts
//	SlidingLog     exact: never more in any window. 8 bytes for each unit that counts
//	MinInterval    a distance between events
//
// Several policies on one key ("10 a minute, and 2 in 3 seconds") are charged all
// or not at all, in one atomic step; so are several limiters with different keys,
// through [AllowAll].
//
// # How many at once
//
// [Slots] bound what is held at the same time instead of how often something
// happens: open sockets, streams, running jobs. A [Slot] is held until it is
// released, or its process dies.
//
// # Numbers
//
// Decisions are made in whole microseconds and whole units, by integer arithmetic,
// on the store's clock. RetryAfter is honest: repeated just then, the same question
// is admitted if nobody else charged the key, and it would not have been before.
//
// # Keys
//
// A key is any string; bytes need not be text. Keys are addresses, tokens, people:
// they never appear in errors, nor when a [Decision] is printed.
package core
