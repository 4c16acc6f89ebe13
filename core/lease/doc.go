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
//
// In a limiter of several policies that is the earliest end of all, and of all plans of
// its name that this Store knows: see Limiter.With of package core. For "never more in any
// window" use SlidingWindow with NeverOver, and a high Resolution.
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
// limits that spends its lease after another server has charged the key under a larger one.
//
// # What is leased
//
// Limiters whose policies are all FixedWindow or SlidingWindow, without CountDenied. The calls
// of others, and those of AllowAll, are passed on as they are, each with its call of the store.
// So are calls for keys that are asked less than about twice in [Config].For.
//
// # What it costs
//
// Units that one server has leased and does not spend are missing elsewhere. So a lease has
// what the recent demand for the key would use until it ends, and at most a quarter of what
// the store said was left: the last units are decided by the store, one by one. What was not
// spent is given back when the lease ends. If a process crashes, what it had leased
// counts as used until the window has passed: less is admitted, never more.
//
// A key that the store refuses is asked for no more often than 20 times in the life of a
// lease, by each server: in between, a call like the one that was refused is refused here. So a
// call may be refused for a twentieth of [Config].For too long, but not beyond the end of a
// sub-window.
//
// The numbers of a decision are what the store last said was left and what the lease still
// holds. What other servers do in the meantime is not in them.
package lease
