package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
)

// A counter counts the decisions that are asked of a store.
type counter struct {
	store.Store

	decisions atomic.Int64
}

func (c *counter) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode == store.Allow {
		c.decisions.Add(1)
	}
	return c.Store.Ask(ctx, q)
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

func (t *tracer) Ask(ctx context.Context, q *store.Question) error {
	start := time.Now()
	err := t.Store.Ask(ctx, q)
	t.report(q.Charges[0].Limiter.Spec().Name, time.Since(start), &q.Result, err)
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

func (g *guarded) Prepare(l *store.Limiter) error {
	return errors.Join(g.shared.Prepare(l), g.own.Prepare(l))
}

func (g *guarded) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode != store.Allow || q.Extra > 0 {
		return g.shared.Ask(ctx, q)
	}
	if err := g.own.Ask(ctx, q); err != nil || !q.Result.Allowed {
		return err
	}
	return g.shared.Ask(ctx, q)
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
