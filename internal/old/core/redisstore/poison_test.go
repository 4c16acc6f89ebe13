package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/step"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// flyTogether sends charges to Redis as the questions of one call.
func flyTogether(t *testing.T, s *Store, cs ...store.Charge) []*question {
	var batch []*question
	for _, c := range cs {
		batch = append(batch, &question{Question: store.Question{Charges: []store.Charge{c}}})
	}
	s.ask(t, batch)
	return batch
}

// A question whose second cell cannot be read must not have charged the first.
func TestPoisonedCellChargesNoOther(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	limiter := func(name string, ps ...core.Policy) *core.Limiter { return newLimiter(t, s, name, ps...) }
	for _, limit := range []int64{10, 100} {
		for _, p := range somePolicies(5, limit) {
			five := []core.Policy{p.Named("a"), p.Named("b")}
			for i := range 3 {
				five = append(five, core.FixedWindow(core.PerDay(100)).Named(fmt.Sprint(i)))
			}
			for form, cs := range map[string][]core.Charge{
				"two":   {{Limiter: limiter("two", p.Named("a"), p.Named("b")), Key: "k", N: 1}},
				"five":  {{Limiter: limiter("five", five...), Key: "k", N: 1}},
				"apart": {{Limiter: limiter("one", p), Key: "k", N: 1}, {Limiter: limiter("other", p), Key: "k", N: 1}},
			} {
				var names []string
				for _, c := range cs {
					names = s.backend.values(names, &store.Charge{Limiter: c.Limiter.Prepared(), Key: c.Key})
				}
				for poisoned := range names {
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
	lengths := []int{0, 1, 14, 20, 21, 28, 34, 35, 36, 42, 49, 63, 98, 483, 484, 490, 491, 497, 7042, len(model) - 1, len(model) + 7}
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

// severalGarbage returns bytes that begin like a value that is kept under several numbers.
func severalGarbage(rng *rand.Rand, model string) string {
	b := []byte{255}
	for range rng.IntN(step.MaxVariants + 2) {
		v := garbage(rng, model)
		if rng.IntN(4) > 0 {
			v = model
		}
		b = step.AppendWord(b, rng.Int64N(1<<rng.IntN(57)))
		length := int64(len(v))
		if rng.IntN(9) == 0 {
			length = rng.Int64N(1 << rng.IntN(57))
		}
		b = append(step.AppendWord(b, length), v...)
	}
	return string(b)
}

// recordGarbage returns bytes that begin like records, if a model has them: with others between
// these, and one that has what a value under several numbers begins with.
func recordGarbage(rng *rand.Rand, model string) string {
	var b []byte
	for range 1 + rng.IntN(6) {
		record := model
		if len(model) > step.WordBytes && rng.IntN(3) > 0 {
			value := garbage(rng, model[step.WordBytes:])
			if rng.IntN(2) == 0 {
				value = severalGarbage(rng, model[step.WordBytes:])
			}
			tag := step.Word(model)>>lengthBits + rng.Int64N(20) // another policy or algorithm
			record = string(step.AppendWord(nil, tag<<lengthBits|int64(len(value)))) + value
		}
		b = append(b, record...)
	}
	return string(b)
}

// What is no value of a cell, or none that a script would write, harms the question of
// that cell at most: the others of its call are right, and nothing of it is charged if
// it fails.
func TestGarbageHarmsNoOther(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	server := redistest.Start(t)
	t.Run("Redis", func(t *testing.T) { garbageHarmsNoOther(t, server, 1) })
	t.Run("Redis without the struct library", func(t *testing.T) {
		withoutStruct(t)
		garbageHarmsNoOther(t, server, 4)
	})
}

func garbageHarmsNoOther(t *testing.T, server *redistest.Server, less int) {
	rounds := min(*questions, 50_000) / 100 / less
	if testing.Short() {
		rounds /= 5
	}
	server.Flush()
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1, Prefix: t.Name()}, server.Addr())
	rng := newRand(t)
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
				names := s.backend.values(nil, &store.Charge{Limiter: l.Prepared(), Key: "poisoned"})
				name := names[len(names)-1]
				reply, _ := server.Do("GET", strings.Replace(name, "poisoned", "model", 1))
				model := reply.(string)
				value := garbage(rng, model)
				switch round % 10 {
				case 0:
					value = severalGarbage(rng, model)
				case 5:
					value = recordGarbage(rng, model)
				}
				server.Do("DEL", names[0])
				server.Do("SET", name, value)
				good, mixed := fmt.Sprint("good", round), round%2 == 1
				cs := []store.Charge{
					{Limiter: l.Prepared(), Key: good + "a", N: 1},
					{Limiter: l.Prepared(), Key: "poisoned", N: 1 + rng.Int64N(3)},
					{Limiter: l.Prepared(), Key: "poisoned", N: 1},
					{Limiter: l.Prepared(), Key: good + "b", N: 1},
				}
				if mixed {
					cs[0].Limiter = newLimiter(t, s, "another", core.FixedWindow(core.PerDay(1_000_000))).Prepared()
				}
				batch := flyTogether(t, s, cs...)
				for _, i := range []int{0, 3} {
					if q := batch[i]; q.Err != nil || !q.Result.Allowed {
						t.Fatalf("%v: %d bytes %.60q harm another key: allowed %v, %v", p, len(value), value, q.Result.Allowed, q.Err)
					}
				}
				if errs := []error{batch[1].Err, batch[2].Err}; errs[0] != nil && errs[1] != nil {
					failed++
					first, _ := server.Do("GET", names[0])
					if after, _ := server.Do("GET", name); after != value || len(names) > 1 && first != nil {
						t.Fatalf("%v: %d bytes %.60q: failed with %v, and wrote", p, len(value), value, errs)
					}
				} else {
					decided++
				}
				if d, err := l.Peek(t.Context(), "poisoned"); err != nil && batch[2].Err == nil {
					t.Fatalf("%v: %d bytes %.60q: %s, %v", p, len(value), value, describe(&d), err)
				}
				charge := store.Charge{Limiter: l.Prepared(), Key: "poisoned", N: 1}
				for _, actual := range []int64{0, 2, 5} { // an error, or not
					_ = asking.Settle(t.Context(), s, asking.Settled(charge, &store.Result{At: time.Now().UnixMicro(), Source: core.SourceStore}, actual))
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
