// Package lease makes limits that servers share as fast as limits in memory, and exact all
// the same. Its [Store] is a layer over a store that is far away, such as a redisstore:
//
//	shared, err := redisstore.New(client, redisstore.Config{})
//	// ...
//	leased, err := lease.New(shared, lease.Config{})
//	// ...
//	limiter, err := core.New(leased, "tenant", core.SlidingWindow(core.PerMinute(60_000)))
//
// For a busy key it charges several units in one call: a lease. Later calls are decided here, in the
// time of a decision in memory, until the lease is used up or over.
//
// # Promises
//
// All servers together, with or without leases, never admit more than the policies admit. A unit is
// spent only in that part of time in which the store counts it:
//
//	FixedWindow     the window in which it was charged
//	SlidingWindow   the sub-window in which it was charged
//	TokenBucket     the time that Policy.Leasable of package core sets
//
// In a limiter of several policies, a lease ends at the earliest of these ends. All plans of its name
// that are in use over this Store count, too: see Limiter.With of package core. For "never more in any
// window", use SlidingWindow with NeverOver and a high Resolution.
//
// A bucket refills all the time. Units that are spent later than they were charged are admitted beside
// the units that have refilled since. So Leasable takes as many units out of the burst. In any span, no
// more is admitted than the burst and the refill. Leasable is a part of the policy, the same for
// servers with leases and without.
//
// A server tells by its own clocks when a lease ends. They count from the moment before the charge was
// sent, and are taken to be slow by a thousandth. A lease is over as soon as the monotonic clock or the
// wall clock says so. That covers a suspended machine. A process that was stopped finds its leases
// over, because it reads the clocks for each decision.
//
// A few events can admit more than without leases, but at most the units that are leased at that moment:
//
//   - A key is Reset while other servers have leases of it.
//   - The store loses a state, or its clock steps ahead.
//   - Another process has other periods or resolutions in a limiter of the same name, as during a
//     deployment. Or servers that share a bucket do not agree on its Leasable.
//   - A lease of a plan is spent after another server has charged the key under a larger plan.
//
// # Leased limiters
//
// A limiter is leased if each of its policies is a FixedWindow, a SlidingWindow or a Leasable
// TokenBucket, without CountDenied and FromFirst. The calls of other limiters are passed on, each with
// its call of the store. A call for a key is also passed on in these cases:
//
//   - The key is asked for less than about twice in [Config].For.
//   - The key has more than [MaxKey] bytes.
//   - [Config].MaxBytes has no room for it.
//
// The store below gets every key as it is. Limiters that are equal, of one name and with the same
// policies, share their leases.
//
// AllowAll spends the leased units of its keys in one step, and charges the rest with one call of the
// store. If that is refused, or fails, the spent units return to the leases. If all keys of a question
// are busy, they are leased together, because units of one key need units of the others. Each lease is
// then the same multiple of the question, the largest for which all have room. Such a decision has the
// earliest instant of all charges, so a refund of it may give back less. Its Source is SourceLease only
// if the store was not asked. AllowAtMost takes from the store the units that leases lack.
//
// A report (see Limiter.Report of package core) first uses units that this process has leased of the
// key. The store counts the rest. Other processes may spend their leases of the key to the end. So they
// may go on for the time of a lease, at most For, after a report that leaves nothing.
//
// # Costs
//
// Units that one server has leased and does not spend are missing elsewhere. So a lease is small.
// It has the units that the recent demand would use until it ends. It has at most a quarter
// of the units left in the store, or the demand of some 50 ms if that is more. The store decides the last
// units one by one. While demand is
// steady, more is leased in the background before a lease is used up, so nobody waits for the
// store.
//
// Unspent units are given back when the lease ends. A bucket would have refilled by then. So its
// units are given back earlier: after an eighth of that time without a call for the key. If a
// process crashes, its leased units count as used until the window has passed: less is admitted,
// never more. The same holds for units that could not be given back, because the store failed or
// MaxBytes has no room. The store's Observer.Settled is told of that.
//
// A refusal by the store is remembered here for a short time. It refuses calls for as many units or fewer,
// if they need more than was left. A call for more units asks the store.
// That time starts when the store was asked. It is a twentieth of [Config].For, at most 50 ms, and not
// beyond the end of the sub-window. For a sliding window it is at most a hundredth of the window, and
// for a bucket at most a quarter of its Leasable. So the store had too little left no longer ago than
// that, or than a call takes. A store below that remembers refusals, such as a redisstore, is asked to
// decide afresh.
//
// While a key is busy, its callers wait for one call, which charges for all of them. A call that would
// arrive too late to bring a lease is held back for the next sub-window.
//
// The numbers of a decision combine the last answer of the store and the rest of the lease. The
// present use of other servers is not in them.
package lease
