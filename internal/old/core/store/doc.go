// Package store is the contract between package core and the stores that keep the state of limits.
// Users of limits need none of it: they pass a store of package memstore or redisstore to core.New. It
// is for authors of stores. It is also for authors of layers between a limiter and a store, such as a
// tracer, a counter or a cache.
//
// # Layers
//
// A store answers questions, all by one method. A layer embeds the store below it, and sees
// every kind of question in its Ask:
//
//	type counted struct {
//		store.Store
//
//		questions atomic.Int64
//	}
//
//	func (c *counted) Ask(ctx context.Context, q *store.Question) error {
//		c.questions.Add(1)
//		return c.Store.Ask(ctx, q)
//	}
//
//	limiter, err := core.New(&counted{Store: memstore.New(memstore.Config{})}, "api", policies...)
//
// The [Question] has room for its answer. A layer passes it on, and may read the answer when the
// store below has returned. It may ask it again, or ask another question with other charges.
//
// # Limiters
//
// A store prepares each [Limiter] once, before it is asked about it. It keeps its data about a limiter,
// such as the names of its keys, with the limiter. Each store has a place of its own there:
//
//	type Store struct {
//		next  store.Store
//		place store.Place
//	}
//
//	func (s *Store) Prepare(l *store.Limiter) error {
//		if err := s.next.Prepare(l); err != nil {
//			return err
//		}
//		l.Keep(&s.place, &mine{})
//		return nil
//	}
//
//	own := q.Charges[0].Limiter.Kept(&s.place).(*mine)
//
// All layers get the same limiters in the same charges. A layer that keeps nothing has no Prepare
// of its own.
//
// # Deciding
//
// The function [step.Decide] has the order of a decision. A store finds the cells of a question, passes
// them to Decide, and saves the changed ones, in one atomic action. It reads the instant from its own
// clock, when nobody else can change the cells any more. Package storetest tests all this.
//
// # Observing
//
// Package core asks a store for its [Observer] once for each limiter and for each Slots,
// and reports what it decides. So a layer passes the Observer of the store below on, or
// returns one of its own.
package store
