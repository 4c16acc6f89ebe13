package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/core/storetest"
)

// Each layer over another backend than Redis, whose network takes its time, decides as any
// store does.
func TestEachLayerIsAStore(t *testing.T) {
	c := setup{}.withDefaults()
	c.config.Timeout = time.Hour // Advance moves the clock while nothing is asked
	sender := func(d *database) *Sender { return NewSender(d, c.config) }
	for name, layers := range map[string]func(d *database) store.Store{
		"Sender":   func(d *database) store.Store { return sender(d) },
		"Refusals": func(d *database) store.Store { return NewRefusals(sender(d), 0, time.Hour) }, // what is remembered has another source
		"InTurn": func(d *database) store.Store {
			return NewInTurn(NewRefusals(sender(d), 0, time.Hour), d.part, time.Hour)
		},
		"Failover": func(d *database) store.Store {
			return NewFailover(sender(d), Local, memstore.New(memstore.Config{}), 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			operations := 500
			if testing.Short() {
				operations = 50
			}
			storetest.Run(t, storetest.Harness{
				New: func(_ *testing.T, o *core.Observer) core.Store {
					c.config.Observer = o
					return layers(newDatabase(1, clock))
				},
				Now:        clock,
				Advance:    time.Sleep,
				Around:     bubble.Test,
				Operations: operations,
			})
		})
	}
}

// Over a network that delays calls, loses them and loses answers, never more is admitted
// than the limit, nothing is charged twice, and nobody waits for longer than the Timeout.
func TestFlakyNetwork(t *testing.T) {
	for seed := range uint64(20) {
		bubble.Test(t, func(t *testing.T) {
			const limit, askers, each, timeout = 300, 20, 50, 50 * time.Millisecond
			d := newDatabase(1+int(seed%3), clock)
			d.be(flaky(rand.New(rand.NewPCG(seed, 1))))
			s := d.stack(setup{failure: Closed, config: Config{Timeout: timeout, NoMerging: seed%2 == 1}})
			l := newLimiter(t, s, "api", core.SlidingLog(core.PerDay(limit)))
			other := newLimiter(t, s, "other", core.FixedWindow(core.PerDay(1_000_000)))
			var admitted, failed atomic.Int64
			var all sync.WaitGroup
			for i := range askers {
				all.Go(func() {
					for j := range each {
						start := time.Now()
						var decision core.Decision
						var err error
						if j%5 == 0 {
							decision, err = core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "k", N: 1}, core.Charge{Limiter: other, Key: fmt.Sprint(i), N: 1})
						} else {
							decision, err = l.Allow(t.Context(), "k")
						}
						switch took := time.Since(start); {
						case took > timeout:
							t.Errorf("a decision took %v", took)
						case err != nil && !errors.Is(err, core.ErrUnavailable):
							t.Error(err)
						case err != nil:
							failed.Add(1)
						case decision.Allowed:
							admitted.Add(1)
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			all.Wait()
			d.be(nil)
			time.Sleep(2 * MaxProbePause)
			peek, err := l.Peek(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			charged := limit - peek.Remaining
			if a := admitted.Load(); a > limit || a > charged || charged > a+failed.Load() {
				t.Errorf("seed %d: %d admitted, %d charged of %d, %d failed", seed, a, charged, limit, failed.Load())
			}
			time.Sleep(time.Minute) // probes end
		})
	}
}

// A database that is silent is away after two Timeouts, and is back after a probe; Failure
// decides meanwhile, at once.
func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		failure Failure
		source  core.Source
		err     error
		units   int64 // that 10 admit for one of 4 servers
	}{
		"Local":  {Local, core.SourceLocal, nil, 3},
		"Open":   {Open, core.SourceOpen, nil, 10},
		"Closed": {Closed, core.SourceNone, core.ErrUnavailable, 0},
	} {
		for how, n := range map[string]network{"silent": silent, "lost": lost} {
			t.Run(name+", "+how, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					d := newDatabase(1, clock)
					l := newLimiter(t, d.stack(setup{failure: test.failure, servers: 4}), "api", core.SlidingLog(core.PerDay(10)))
					allow(t, l, "k", 1)
					d.be(n)
					start := time.Now()
					for !StateOf(d.Servers()).Away {
						_, _ = l.Allow(t.Context(), "another")
					}
					if took := time.Since(start); took > 300*time.Millisecond {
						t.Errorf("away after %v", took)
					}
					start = time.Now()
					units := int64(0)
					for range 10 {
						d, err := l.Allow(t.Context(), "k")
						if !errors.Is(err, test.err) || d.Source != test.source {
							t.Errorf("by %v: %v", d.Source, err)
						}
						if d.Allowed {
							units++
						}
					}
					if took := time.Since(start); took > 0 || units != test.units {
						t.Errorf("%d admitted in %v, want %d", units, took, test.units)
					}
					d.be(nil)
					time.Sleep(2 * MaxProbePause)
					synctest.Wait()
					if st := StateOf(d.Servers()); st.Away || st.Reason != nil {
						t.Errorf("%+v", st)
					}
					if d := allow(t, l, "k", 1); d.Source != core.SourceStore || d.Remaining != 8 {
						t.Errorf("by %v: %d left", d.Source, d.Remaining)
					}
				})
			})
		}
	}
}

// ahead is a store that is as far ahead of its clock as its key says.
type ahead struct{ store.Store }

func (s ahead) Ask(ctx context.Context, q *store.Question) error {
	err := s.Store.Ask(ctx, q)
	q.Result.At += int64(q.Charges[0].Key[0] - 'a')
	return err
}

// Charges that are made in turn have the instants of their servers, and the decision has the earliest.
func TestInstantsInTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		part := func(key string) int { return int(key[0]) }
		s := NewInTurn(ahead{memstore.New(memstore.Config{})}, part, time.Second)
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(10))).Prepared()
		q := &store.Question{Charges: []store.Charge{{Limiter: l, Key: "c", N: 1}, {Limiter: l, Key: "b", N: 1}, {Limiter: l, Key: "c2", N: 1}}}
		if err := s.Ask(t.Context(), q); err != nil || !q.Result.Allowed {
			t.Fatal(q.Result, err)
		}
		if got := []int64{q.Result.At, q.Charges[0].At, q.Charges[1].At, q.Charges[2].At}; !slices.Equal(got, []int64{clock() + 1, clock() + 2, clock() + 1, clock() + 2}) {
			t.Error(got, clock())
		}
	})
}

// Charges that are made in turn are still of one decision, which takes no Extra.
func TestExtraInTurn(t *testing.T) {
	d := newDatabase(2, clock)
	s := d.stack(setup{failure: Closed})
	l := newLimiter(t, s, "api", core.SlidingLog(core.PerDay(10)))
	turns := NewInTurn(NewSender(d, setup{}.withDefaults().config), d.part, time.Second)
	for name, s := range map[string]store.Store{"all layers": s, "InTurn": turns} {
		l := newLimiter(t, s, "api", core.SlidingLog(core.PerDay(10)))
		_, err := asking.Ask(t.Context(), s, &store.Question{Charges: []store.Charge{
			{Limiter: l.Prepared(), Key: "a", N: 1},
			{Limiter: l.Prepared(), Key: "b", N: 1},
		}, Extra: 1})
		if !errors.Is(err, store.ErrExtra) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, key := range []string{"a", "b"} {
		if d := allow(t, l, key, 10); !d.Allowed {
			t.Errorf("%q was charged: %v", key, d)
		}
	}
}

// One server that is away takes no other with it, and charges that include its keys are
// taken back.
func TestOneServerAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDatabase(2, clock)
		s := d.stack(setup{failure: Closed})
		l := newLimiter(t, s, "api", core.SlidingLog(core.PerDay(10)))
		wide := newLimiter(t, s, "wide", core.SlidingLog(core.PerDay(1000)))
		both := func() error {
			_, err := core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "a", N: 1}, core.Charge{Limiter: wide, Key: "b", N: 1})
			return err
		}
		if err := both(); err != nil {
			t.Fatal(err)
		}
		server, _ := d.Route("b") // of wide, which is asked last
		for range MaxFailures {
			server.limits.fail(server.attempt(&server.limits, 0), errLost, 0)
		}
		for range 5 {
			if err := both(); !errors.Is(err, core.ErrUnavailable) {
				t.Error(err)
			}
		}
		if d := allow(t, l, "a", 1); d.Remaining != 8 {
			t.Errorf("%d left of 10, where 2 were charged", d.Remaining)
		}
	})
}
