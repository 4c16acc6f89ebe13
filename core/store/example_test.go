package store_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
)

// A counter counts the decisions that are asked of a store.
type counter struct {
	store.Store

	decisions atomic.Int64
}

func (c *counter) Decide(ctx context.Context, charge store.Charge, peek bool, r *store.Result) error {
	c.decisions.Add(1)
	return c.Store.Decide(ctx, charge, peek, r)
}

func (c *counter) DecideAll(ctx context.Context, charges []store.Charge, r *store.Result) error {
	c.decisions.Add(1)
	return c.Store.DecideAll(ctx, charges, r)
}

// A layer that counts.
func Example_counting() {
	counted := &counter{Store: memstore.New(memstore.Config{})}
	limiter, err := core.New(counted, "api", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := limiter.Allow(context.Background(), "user-42"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(counted.decisions.Load(), "decisions")
	// Output: 3 decisions
}

// A tracer reports how long decisions take, and how they end.
type tracer struct {
	store.Store

	report func(limiter string, took time.Duration, r *store.Result, err error)
}

func (t *tracer) Decide(ctx context.Context, c store.Charge, peek bool, r *store.Result) error {
	start := time.Now()
	err := t.Store.Decide(ctx, c, peek, r)
	t.report(c.Limiter.Spec().Name, time.Since(start), r, err)
	return err
}

// A layer that traces. It gets the context, so it can make spans of the request's.
func Example_tracing() {
	traced := &tracer{memstore.New(memstore.Config{}), func(limiter string, _ time.Duration, r *store.Result, err error) {
		fmt.Printf("%s: allowed %t by the %v, error %v\n", limiter, r.Allowed, r.Source, err)
	}}
	limiter, err := core.New(traced, "api", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if _, err := limiter.Allow(context.Background(), "user-42"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// api: allowed true by the store, error <nil>
	// api: allowed false by the store, error <nil>
}

// A guarded store asks a limit of this process before it asks the shared store about a
// charge, so that what this process alone refuses costs no call.
type guarded struct{ shared, own store.Store }

type guardedLimiter struct {
	store.Limiter // of the shared store

	own store.Limiter
}

func (g *guarded) Prepare(spec store.Spec) (store.Limiter, error) {
	shared, err := g.shared.Prepare(spec)
	if err != nil {
		return nil, err
	}
	own, err := g.own.Prepare(spec)
	return &guardedLimiter{shared, own}, err
}

func below(c store.Charge) (shared, own store.Charge) {
	l := c.Limiter.(*guardedLimiter)
	shared, own = c, c
	shared.Limiter, own.Limiter = l.Limiter, l.own
	return shared, own
}

func (g *guarded) Decide(ctx context.Context, c store.Charge, peek bool, r *store.Result) error {
	shared, own := below(c)
	if err := g.own.Decide(ctx, own, peek, r); err != nil || !r.Allowed {
		return err
	}
	shared.Extra = r.Extra // no more than this process alone may have
	return g.shared.Decide(ctx, shared, peek, r)
}

func (g *guarded) DecideAll(ctx context.Context, cs []store.Charge, r *store.Result) error {
	all := make([]store.Charge, len(cs))
	for i, c := range cs {
		all[i], _ = below(c)
	}
	return g.shared.DecideAll(ctx, all, r)
}

func (g *guarded) Settle(ctx context.Context, ss []store.Settlement) error {
	for i := range ss {
		ss[i].Charge, _ = below(ss[i].Charge)
	}
	return g.shared.Settle(ctx, ss)
}

func (g *guarded) Reset(ctx context.Context, l store.Limiter, key string) error {
	return g.shared.Reset(ctx, l.(*guardedLimiter).Limiter, key)
}

func (g *guarded) Observer() *store.Observer { return g.shared.Observer() }

// A layer with a second store, and so with something of its own for each limiter.
func Example_secondLevel() {
	shared := &counter{Store: memstore.New(memstore.Config{})} // stands for one in Redis
	limiter, err := core.New(&guarded{shared, memstore.New(memstore.Config{})}, "api", core.SlidingLog(core.PerMinute(2)))
	if err != nil {
		log.Fatal(err)
	}
	for range 5 {
		if _, err := limiter.Allow(context.Background(), "user-42"); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(shared.decisions.Load(), "of 5 decisions went to the shared store")
	// Output: 2 of 5 decisions went to the shared store
}
