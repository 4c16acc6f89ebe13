package redisstore

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

var refusals = flag.Int("refusals", 1000, "how many refusals are followed to their end")

// The RetryAfter of a refusal is exact, whatever this process did to the key before, and
// whether or not the refusal is cached: the same question is admitted then, and is not a
// microsecond earlier. The time is that of a bubble, for Redis as well.
func TestRetryAfterIsExactWithMemory(t *testing.T) {
	const workers = 16
	server := redistest.Start(t)
	bubble.Test(t, func(t *testing.T) {
		s := open(t, Config{Failure: FailClosed}, server.Addr())
		bubbleClock().tell(s)
		var followed, cached atomic.Int64
		var all sync.WaitGroup
		for i := range uint64(workers) {
			f := newFollower(t, s, i)
			all.Go(func() {
				for followed.Load() < int64(*refusals) && !t.Failed() {
					if d := f.round(); !d.Allowed {
						followed.Add(1)
						if d.Source == core.SourceCache {
							cached.Add(1)
						}
					}
				}
			})
		}
		all.Wait()
		t.Logf("%d refusals, %d of them cached", followed.Load(), cached.Load())
		if cached.Load() < followed.Load()/20 {
			t.Error("hardly any are cached")
		}
	})
}

// A follower has keys of its own.
type follower struct {
	*testing.T
	rng   *rand.Rand
	plans [][]*core.Limiter // of each name
	keys  int
}

func newFollower(t *testing.T, s *Store, seed uint64) *follower {
	f := &follower{T: t, rng: rand.New(rand.NewPCG(seed, 3))}
	for _, family := range fixedFamilies() {
		if family.name == "huge" || family.name == "slow bucket" || strings.HasPrefix(family.name, largest) {
			continue // they refuse nothing, or for months
		}
		var plans []*core.Limiter
		for _, p := range family.plans {
			plans = append(plans, newLimiter(t, s, fmt.Sprint(family.name, seed), p...))
		}
		f.plans = append(f.plans, plans)
	}
	return f
}

// draw returns a question to one limiter, or to two.
func (f *follower) draw(names [2]int) (cs []core.Charge) {
	for i, name := range names[:1+f.rng.IntN(5)/4] {
		plans := f.plans[name]
		l := plans[0]
		if f.rng.IntN(6) == 0 {
			l = plans[f.rng.IntN(len(plans))]
		}
		n := int64(1)
		if i == 0 {
			most := l.Prepared().Spec().Most()
			n = max(1, most-f.rng.Int64N(min(most, 8)))
		}
		cs = append(cs, core.Charge{Limiter: l, Key: fmt.Sprint(f.keys), N: n})
	}
	return cs
}

// change asks, and may give back, charge more, or reset what it asked about.
func (f *follower) change(rng *rand.Rand, cs []core.Charge) {
	d, err := core.AllowAll(f.Context(), cs...)
	switch x := rng.IntN(8); {
	case err != nil:
	case x == 0:
		err = cs[0].Limiter.Reset(f.Context(), cs[0].Key)
	case x < 3 && d.Allowed:
		actual := make([]int64, len(cs))
		actual[0] = rng.Int64N(2 * cs[0].N)
		_, err = d.Settle(f.Context(), actual...)
	case x < 5:
		time.Sleep(time.Duration(rng.IntN(100_000)) * time.Microsecond)
	}
	if err != nil {
		f.Error(err)
	}
}

// round changes keys in several goroutines, then asks a question; if that is refused, it
// waits until it is admitted.
func (f *follower) round() core.Decision {
	f.keys++
	names := [2]int(f.rng.Perm(len(f.plans)))
	questions := [][]core.Charge{f.draw(names), f.draw(names), f.draw(names)}
	var burst sync.WaitGroup
	for range 1 + f.rng.IntN(3) {
		rng := rand.New(rand.NewPCG(f.rng.Uint64(), 0))
		burst.Go(func() {
			for range 1 + rng.IntN(5) {
				f.change(rng, questions[rng.IntN(3)])
			}
		})
	}
	burst.Wait()
	cs := questions[0]
	ask := func() core.Decision {
		d, err := core.AllowAll(f.Context(), cs...)
		if err != nil {
			f.Error(err)
		}
		return d
	}
	first := ask()
	if first.Allowed {
		return first
	}
	early := first
	if !counts(cs) {
		time.Sleep(first.RetryAfter - time.Microsecond)
		if early = ask(); early.Allowed || early.RetryAfter != time.Microsecond {
			f.Errorf("%v\n%s\na microsecond before its end:\n%s", cs, describe(&first), describe(&early))
		}
	}
	time.Sleep(early.RetryAfter)
	if d := ask(); !d.Allowed {
		f.Errorf("%v\n%s\nafter that:\n%s", cs, describe(&first), describe(&d))
	}
	return first
}

// counts reports whether a refused attempt is counted.
func counts(cs []core.Charge) bool {
	return slices.ContainsFunc(cs, func(c core.Charge) bool {
		return slices.ContainsFunc(c.Limiter.Prepared().Spec().Policies, func(p store.Policy) bool { return p.Step.Numbers().CountDenied })
	})
}
