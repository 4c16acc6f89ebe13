package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/internal/redistest"
)

// flyTogether sends charges to Redis as the questions of one call.
func flyTogether(s *Store, cs ...core.Charge) []*question {
	var batch []*question
	for _, c := range cs {
		q := s.pools.question()
		q.progress.Store(sent)
		q.charges = []core.Charge{c}
		batch = append(batch, q)
	}
	s.sendBatch(context.Background(), &s.queues.first, batch, time.Now().Add(patient))
	return batch
}

// A question whose second cell cannot be read must not have charged the first.
func TestPoisonedCellChargesNoOther(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, MemoryFor: -1}, server.Addr())
	limiter := func(name string, ps ...core.Policy) *core.Limiter { return newLimiter(t, s, name, ps...) }
	for _, limit := range []int64{10, 100} {
		for _, p := range somePolicies(5, limit) {
			five := []core.Policy{p.Named("a"), p.Named("b")}
			for i := range maxFlat - 1 {
				five = append(five, core.FixedWindow(core.PerDay(100)).Named(fmt.Sprint(i)))
			}
			for form, cs := range map[string][]core.Charge{
				"flat":  {{Limiter: limiter("flat", p.Named("a"), p.Named("b")), Key: "k", N: 1}},
				"main":  {{Limiter: limiter("main", five...), Key: "k", N: 1}},
				"apart": {{Limiter: limiter("one", p), Key: "k", N: 1}, {Limiter: limiter("two", p), Key: "k", N: 1}},
			} {
				var names []string
				for i := range cs {
					names = s.cells(names, &cs[i])
				}
				for poisoned := range 2 {
					for _, poison := range []string{"RPUSH", "SET"} {
						server.Flush()
						server.Do(poison, names[poisoned], "x")
						server.ResetStats()
						for range 2 * maxFailures {
							if _, err := core.AllowAll(t.Context(), cs...); !errors.Is(err, core.ErrUnavailable) {
								t.Errorf("%v, %s, %s in cell %d: %v", p, form, poison, poisoned, err)
							}
						}
						if n := server.Calls(writes...); n > 0 || keys(t, server) != 1 {
							t.Errorf("%v, %s, %s in cell %d: %d writes, %d keys", p, form, poison, poisoned, n, keys(t, server))
						}
						if s.State().Away {
							t.Fatalf("%v, %s, %s in cell %d: %+v", p, form, poison, poisoned, s.State())
						}
					}
				}
			}
		}
	}
}

// garbage returns bytes that some program may have left under the key of a cell, whose
// own value is model.
func garbage(rng *rand.Rand, model string) string {
	lengths := []int{0, 1, 14, 20, 21, 28, 34, 35, 36, 42, 63, 98, 483, 484, 490, 7042, len(model) - 1, len(model) + 7}
	b := make([]byte, len(model))
	if rng.IntN(3) == 0 {
		b = make([]byte, lengths[rng.IntN(len(lengths))])
	}
	switch rng.IntN(5) {
	case 0: // one byte, again and again
		x := []byte{0, 1, 0x10, 0x1f, 0x7f, 0xff, 'x'}[rng.IntN(7)]
		for i := range b {
			b[i] = x
		}
	case 1: // words of all magnitudes
		for i := 0; i+step.WordBytes <= len(b); i += step.WordBytes {
			step.AppendWord(b[:i], rng.Int64N(1<<rng.IntN(57)))
		}
	case 2: // of any bytes
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	default: // the value, with some words that are not its own
		copy(b, model)
		for range 1 + rng.IntN(2) {
			if words := min(len(b)/step.WordBytes, 1+rng.IntN(12)); words > 0 {
				i := step.WordBytes * rng.IntN(words)
				step.AppendWord(b[:i], rng.Int64N(1<<rng.IntN(57)))
			}
		}
	}
	return string(b)
}

// What is no value of a cell, or none that a script would write, harms the question of
// that cell at most: the others of its call are right, and nothing of it is charged if
// it fails.
func TestGarbageHarmsNoOther(t *testing.T) {
	server := redistest.Start(t)
	t.Run("Redis", func(t *testing.T) { garbageHarmsNoOther(t, server, 150) })
	t.Run("Redis without the struct library", func(t *testing.T) {
		withoutStruct(t)
		garbageHarmsNoOther(t, server, 30)
	})
}

func garbageHarmsNoOther(t *testing.T, server *redistest.Server, rounds int) {
	server.Flush()
	s := open(t, Config{Failure: FailClosed, MemoryFor: -1, Prefix: t.Name()}, server.Addr())
	rng := rand.New(rand.NewPCG(1, 2))
	var policies []core.Policy
	for _, limit := range []int64{5, 100} {
		policies = append(append(policies, somePolicies(4, limit)...), core.MinInterval(time.Hour))
		policies = append(policies, core.SlidingLog(core.PerHour(limit)).CountDenied(), core.FixedWindow(core.PerDay(limit)).CountDenied(),
			core.SlidingWindow(core.PerDay(limit)).CountDenied(), core.SlidingWindow(core.PerDay(limit)).Resolution(1000))
	}
	failed, decided := 0, 0
	for i, p := range policies {
		l := newLimiter(t, s, fmt.Sprint(i), p)
		two := newLimiter(t, s, fmt.Sprint("two", i), core.FixedWindow(per(1e6, 400*day)).Named("a"), p.Named("b"))
		for _, l := range []*core.Limiter{l, two} {
			allow(t, l, "model", 1)
			for round := range rounds {
				names := s.cells(nil, &core.Charge{Limiter: l, Key: "poisoned"})
				name := names[len(names)-1]
				model, _ := server.Do("GET", strings.Replace(name, "poisoned", "model", 1))
				value := garbage(rng, model.(string))
				server.Do("DEL", names[0])
				server.Do("SET", name, value)
				// n is 1 in the flat script's shortest form; and a mixed call takes the other script.
				good, mixed := fmt.Sprint("good", round), round%2 == 1
				cs := []core.Charge{
					{Limiter: l, Key: good + "a", N: 1},
					{Limiter: l, Key: "poisoned", N: 1 + rng.Int64N(3)},
					{Limiter: l, Key: "poisoned", N: 1},
					{Limiter: l, Key: good + "b", N: 1},
				}
				if mixed {
					cs[0].Limiter = newLimiter(t, s, "another", core.FixedWindow(core.PerDay(1_000_000)))
				}
				batch := flyTogether(s, cs...)
				for _, i := range []int{0, 3} {
					if q := batch[i]; q.err != nil || !q.result.Allowed {
						t.Fatalf("%v: %d bytes %.60q harm another key: allowed %v, %v", p, len(value), value, q.result.Allowed, q.err)
					}
				}
				if errs := []error{batch[1].err, batch[2].err}; errs[0] != nil && errs[1] != nil {
					failed++
					first, _ := server.Do("GET", names[0])
					if after, _ := server.Do("GET", name); after != value || len(names) > 1 && first != nil {
						t.Fatalf("%v: %d bytes %.60q: failed with %v, and wrote", p, len(value), value, errs)
					}
				} else {
					decided++
				}
				if d, err := l.Peek(t.Context(), "poisoned"); err != nil && batch[2].err == nil {
					t.Fatalf("%v: %d bytes %.60q: %s, %v", p, len(value), value, describe(&d), err)
				}
				for _, actual := range []int64{0, 2, 5} { // an error, or not
					_ = s.Settle(t.Context(), []core.Settlement{{Charge: cs[2], At: time.Now().UnixMicro(), Source: core.SourceStore, Actual: actual}})
				}
				if s.State().Away {
					t.Fatalf("%v: %d bytes %.60q: %+v", p, len(value), value, s.State())
				}
			}
		}
	}
	if t.Logf("%d failed, %d decided", failed, decided); failed == 0 || decided == 0 {
		t.Error("nothing was tried")
	}
}
