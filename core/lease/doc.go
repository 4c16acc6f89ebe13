// Package lease makes limits that servers share as fast as limits in memory, and exact all
// the same. Its [Store] is a layer over a store that is far away, such as a redisstore:
//
//	shared, err := redisstore.New(client, redisstore.Config{})
//	// ...
//	leased, err := lease.New(shared, lease.Config{})
//	// ...
//	limiter, err := core.New(leased, "tenant", core.SlidingWindow(core.PerMinute(60_000)))
//
// For a key that is asked often it charges several units in one call: a lease. The
// calls that follow are decided here, in the time of a decision in memory, until the lease is
// used up or over.
//
// # What it promises
//
// Never more is admitted than the policies admit: by all servers together, some of which may
// have no leases. A unit is spent only in that part of time in which the store counts it:
//
//	FixedWindow     the window in which it was charged
//	SlidingWindow   the sub-window in which it was charged
//	TokenBucket     the time that Policy.Leasable of package core sets
//
// In a limiter of several policies that is the earliest end of all, and of all plans of
// its name that are in use over this Store: see Limiter.With of package core. For "never more in any
// window" use SlidingWindow with NeverOver, and a high Resolution.
//
// A bucket does not count by parts of time: units that are spent later than they were charged
// are admitted beside those that have refilled since. Leasable takes as many out of the
// burst, so that in any span no more is admitted than the burst and what refills. That is a
// part of the policy, the same for servers with leases and without.
//
// When a lease ends, a server tells by its own clocks: they count from the moment before the
// charge was sent, and are taken to be slow by a thousandth. A lease is over as soon as the
// monotonic clock or the wall clock says so, so also after the machine was suspended. A
// process that was stopped finds its leases over, since it reads the clocks for each decision.
//
// These exceptions admit at most the units that are leased at that moment, beside what
// is admitted without leases: a key that is Reset while other servers have leases of it; a state
// that the store lost; a clock of the store that steps ahead; limiters of one name with
// other periods or resolutions in another process, as during a deployment; and a plan of smaller
// limits that spends its lease after another server has charged the key under a larger one. So
// do servers that share a bucket and do not agree on its Leasable.
//
// # What is leased
//
// Limiters whose policies are all FixedWindow, SlidingWindow or a TokenBucket that is
// Leasable, without CountDenied and FromFirst. The calls of others are passed on as they are,
// each with its call of the store. So are calls for keys that are asked less than about twice in
// [Config].For, that have more than [MaxKey] bytes, or for which [Config].MaxBytes has no room. The
// store below gets every key as it is.
//
// Limiters that are equal, of one name and with the same policies, share their leases.
//
// AllowAll spends what is leased of its keys in one step, and charges the rest with one call
// of the store. If that is refused, or fails, what was spent is put back. Keys that are all asked
// for often are leased together, as many times the question as all have room for: units of one
// key are of no use without those of the other. Such a decision has
// the earliest instant of all charges, so a refund of it may give back less. Its Source is
// SourceLease only if the store was not asked. AllowAtMost takes from the store what leases do not
// have.
//
// What is reported, see Limiter.Report of package core, is taken from what this process has leased
// of the key, and the store counts the rest. What other processes have leased by then they may spend to
// its end. So for the time of a lease, at most For, others may go on after a report that leaves nothing.
//
// # What it costs
//
// Units that one server has leased and does not spend are missing elsewhere. So a lease has
// what the recent demand for the key would use until it ends, and at most a quarter of what
// the store said was left: the last units are decided by the store, one by one. More is leased
// in the background before a lease is used up, so that nobody waits for the store while the
// demand is steady. What was not spent is given back when the lease ends; to a bucket, where
// by then it would have refilled anyway, when the key was not asked for an eighth of that
// time. If a process crashes, what it had leased
// counts as used until the window has passed: less is admitted, never more. So does what
// could not be given back, because the store failed or MaxBytes has no room. The store's
// Observer.Settled is told of that.
//
// What the store has refused is refused here for a while without another call, and so is a call for
// more units: for a twentieth of [Config].For, 50 ms at most, counted from when the store was asked,
// and not beyond the end of the sub-window. It is less for a window that slides, a hundredth of it, and
// for a bucket, a quarter of its Leasable. So a refusal has a cause in what the store had left no longer
// ago than that, or than a call takes. A store below that remembers refusals, as a redisstore
// does, is asked to decide afresh.
//
// While a key is asked for often, its callers wait for one call, which charges for all of them. Where a
// call would arrive too late to bring a lease, it is held back for the next sub-window.
//
// The numbers of a decision are what the store last said was left and what the lease still
// holds. What other servers do in the meantime is not in them.
package lease
