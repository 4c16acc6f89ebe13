// Package core is a rate limiter and a concurrency limiter: it decides whether an event may happen.
// An event is a request, a message, a job, or anything else that has a key to charge. Use it to
// throttle clients, to enforce quotas, and to limit work in progress.
//
// A [Limiter] applies one to eight policies to each key, such as a token bucket or a sliding
// window. It keeps their state in a [Store]. Package memstore is a store for one process. Package
// redisstore is a store that several servers share.
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
// A refusal is never an error, and an error never means a refusal. The exceptions are
// [Slots.Acquire], which refuses with [ErrFull], and [Limiter.Wait], which refuses with [ErrNever]
// or, if the wait is longer than the deadline, with [context.DeadlineExceeded].
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
// In package memstore each key takes about this much memory:
//
//	TokenBucket, FixedWindow, MinInterval   45 bytes
//	SlidingWindow                           170 bytes, with the default resolution
//	SlidingLog                              105 bytes, and 8 for each unit it has room for
//
// A SlidingLog has room for at least 4 units, unless its limit is lower. It has room for at most
// twice the largest number of units that ever counted at once.
//
// Several policies on one key ("10 a minute, and 2 in 3 seconds") are charged all or not at all,
// in one atomic step. [AllowAll] does so for several limiters with different keys.
//
// # Policies as text
//
// A [Policy] and a [Rate] can be written as text in configuration files, flags and environment
// variables: "sliding-log 60/minute", "7/30s". Both implement [encoding.TextUnmarshaler] and
// [encoding.TextMarshaler], so encoding/json and package flag can hold them.
// [Policy.UnmarshalText] describes the text.
//
// # Limiting concurrency
//
// [Slots] limit how much is held at the same time, not how often something happens. They count
// open sockets, streams or running jobs. A [Slot] is held until it is released, or until its
// process dies. [Slots.AcquireWait] waits in line for one.
//
// # Exactness
//
// Decisions use integer arithmetic, in whole microseconds and whole units, on the store's clock.
// RetryAfter is exact. The same call is admitted after that time, if the key was not charged in
// between. It would not have been admitted any earlier.
//
// # Contexts
//
// A context bounds the wait for a store. A nil one is refused before the store is called,
// with [ErrQuestion].
//
// # Observing
//
// A store's configuration takes an [Observer]. Its functions are told of each decision and each
// slot. Metrics, logs and traces can use them in the same way over every store.
//
// # Keys
//
// A key is any string; it need not be text. Keys are addresses, tokens and people. So they never
// appear in errors, in events, or in a printed [Decision].
package core
