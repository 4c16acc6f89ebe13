// Package store is the contract between package core and what keeps the state of limits.
// Users of limits need none of it: they pass a store of package memstore or redisstore to
// core.New. It is for authors of stores, and of layers between a limiter and a store, such
// as a tracer, a counter, or a cache in front of a database.
//
// A layer embeds the store below it and replaces the methods that it cares about:
//
//	type counted struct {
//		store.Store
//
//		decisions atomic.Int64
//	}
//
//	func (c *counted) Decide(ctx context.Context, charge store.Charge, peek bool, r *store.Result) error {
//		c.decisions.Add(1)
//		return c.Store.Decide(ctx, charge, peek, r)
//	}
//
//	limiter, err := core.New(&counted{Store: memstore.New(memstore.Config{})}, "api", policies...)
//
// # Limiters
//
// A store prepares each limiter once, before anything is charged: [Store].Prepare gets the
// limiter's [Spec] and returns a [Limiter], which comes back in every [Charge]. A store that
// needs something at hand for each limiter, such as the names of its keys, keeps it there.
// The layer above need not replace Prepare, for then the Limiters are those of the store
// below. If it does, its own embeds the one that the store below has returned, and the layer
// puts that into the charges that it passes on:
//
//	type leased struct {
//		store.Limiter // of the store below
//
//		spent int64
//	}
//
// # Observing
//
// Package core asks a store for its [Observer] once for each limiter and for each Slots,
// and reports what it decides. So a layer passes the Observer of the store below on, or
// returns one of its own.
//
// # Deciding
//
// The arithmetic of policies is package step's. A store finds the state of each policy,
// asks the step, and writes what it returns, in one atomic action. The [Result] is the
// caller's: a layer passes it on, or looks at it when the store below has returned, and may
// pass it on again to ask once more. Package storetest tests all this.
package store
