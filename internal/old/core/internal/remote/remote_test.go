package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest/reference"
)

// A database is a backend that is not Redis: the arithmetic of package step behind a
// network, which delays, loses and fails as it is told.
type database struct {
	servers []*Server // keys are spread over them by their first byte

	mu    sync.Mutex
	state *reference.Store

	network network
}

// A network is what happens to a call on its way. A nil function is a network without
// faults.
type network func(ctx context.Context) (reaches bool, err error)

func newDatabase(servers int, now func() int64) *database {
	d := &database{state: reference.New(now)}
	for range servers {
		d.servers = append(d.servers, new(Server))
	}
	return d
}

var errLost = errors.New("the connection was lost")

// slow delays every call.
func slow(delay time.Duration) network {
	return func(ctx context.Context) (bool, error) {
		select {
		case <-time.After(delay):
			return true, nil
		case <-ctx.Done():
			return true, ctx.Err() // it is too late
		}
	}
}

// silent loses every call, so that its deadline ends it.
func silent(ctx context.Context) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func lost(context.Context) (bool, error) { return false, errLost }

// flaky does one or the other at random. An answer may be lost too.
func flaky(rng *rand.Rand) network {
	var mu sync.Mutex
	return func(ctx context.Context) (bool, error) {
		mu.Lock()
		x, delay := rng.IntN(10), time.Duration(rng.IntN(2000))*time.Microsecond
		mu.Unlock()
		reaches, err := slow(delay)(ctx)
		switch x {
		case 0:
			return false, errLost
		case 1:
			return true, errLost
		}
		return reaches, err
	}
}

func (d *database) be(n network) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.network = n
}

// pass sends a call, and runs it if it arrives.
func (d *database) pass(ctx context.Context, run func()) error {
	d.mu.Lock()
	n := d.network
	d.mu.Unlock()
	reaches, err := true, error(nil)
	if n != nil {
		reaches, err = n(ctx)
	}
	if reaches {
		d.mu.Lock()
		defer d.mu.Unlock()
		run()
	}
	return err
}

func (d *database) Prepare(l *store.Limiter) error { return d.state.Prepare(l) }

func (d *database) Route(key string) (*Server, int) {
	part := 0
	if key != "" {
		part = int(key[0]) % len(d.servers)
	}
	return d.servers[part], part
}

func (d *database) Servers() []*Server { return d.servers }

func (d *database) Weight(q *Question) int { return len(q.Charges) }

func (d *database) Ask(ctx context.Context, qs []*Question) (err, failure error) {
	err = d.pass(ctx, func() {
		for _, q := range qs {
			d.answer(q)
		}
	})
	if err != nil {
		for _, q := range qs {
			q.Err = err
		}
	}
	return err, err
}

func (d *database) answer(q *Question) {
	q.Err = d.state.Ask(context.Background(), &q.Question)
}

func (d *database) Reset(ctx context.Context, l *store.Limiter, key string) error {
	return d.pass(ctx, func() { _ = asking.Reset(ctx, d.state, l, key) })
}

func (d *database) Probe(ctx context.Context, _ int) error {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return d.pass(ctx, func() {})
}

func (d *database) part(key string) int {
	_, part := d.Route(key)
	return part
}

// A setup says how a database is stacked.
type setup struct {
	config   Config
	failure  Failure
	servers  int // of the service
	remember time.Duration
}

func (c setup) withDefaults() setup {
	if c.config.Timeout == 0 {
		c.config.Timeout = 100 * time.Millisecond
	}
	if c.config.MaxWeight == 0 {
		c.config.MaxWeight = 64
	}
	if c.remember == 0 {
		c.remember = time.Second
	}
	return c
}

// stack is what a package of a store does.
func (d *database) stack(c setup) store.Store {
	c = c.withDefaults()
	refusals := NewRefusals(NewSender(d, c.config), c.remember, c.config.Timeout)
	turns := NewInTurn(refusals, d.part, c.config.Timeout)
	return NewFailover(turns, c.failure, memstore.New(memstore.Config{}), c.servers)
}

func newLimiter(t testing.TB, s store.Store, name string, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(s, name, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// allow asks for n units and must get an answer.
func allow(t testing.TB, l *core.Limiter, key string, n int64) core.Decision {
	t.Helper()
	d, err := l.AllowN(t.Context(), key, n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func clock() int64 { return time.Now().UnixMicro() }

// aRefusal is a result of so many policies, the last of which refuses for a time.
func aRefusal(policies int, retry time.Duration) *store.Result {
	r := &store.Result{At: 1e15, Source: core.SourceStore}
	for range policies - 1 {
		r.Add(true, step.Reading{Remaining: 5, NextAfter: 30_000_000, ResetAfter: 60_000_000})
	}
	r.Add(false, step.Reading{NextAfter: retry.Microseconds(), ResetAfter: 60_000_000, RetryAfter: retry.Microseconds()})
	return r
}
