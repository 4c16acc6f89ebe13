package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/internal/asking"
	"github.com/headgate/headgate/internal/old/core/store"
)

// TestNobodyWaitsLonger: whatever others do, a caller gets the answer to its own question, or learns
// at its deadline, and not before, that it is late. Answers take any time, calls fail, questions are
// put off; callers have deadlines of their own, which end their context or not, or give up.
func TestNobodyWaitsLonger(t *testing.T) {
	for _, unmerged := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			const timeout = 100 * time.Millisecond
			seed := rand.Uint64()
			rng := rand.New(rand.NewPCG(seed, 4))
			d := newDatabase(1, clock)
			var mu sync.Mutex // of rng
			random := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(n)
			}
			lag := func(string) time.Duration { return time.Duration(max(random(30_000)-27_000, 0)) * time.Microsecond }
			s := NewSender(slowRoute{putsOff{d}, lag}, Config{Timeout: timeout, MaxWeight: 8, NoMerging: unmerged})
			l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
			d.be(func(ctx context.Context) (bool, error) {
				switch random(20) {
				case 0:
					return silent(ctx)
				case 1:
					return lost(ctx)
				case 2, 3:
					return slow(time.Duration(random(120_000)) * time.Microsecond)(ctx)
				}
				return slow(time.Duration(random(4000)) * time.Microsecond)(ctx)
			})
			count := map[string]int{}
			note := func(what string) {
				mu.Lock()
				count[what]++
				mu.Unlock()
			}
			var all sync.WaitGroup
			for i := range 3000 {
				time.Sleep(time.Duration(random(1000)) * time.Microsecond)
				ctx, deadline, cancelled := t.Context(), time.Now().Add(timeout), false
				cancel := context.CancelFunc(func() {})
				own := 5*time.Millisecond + time.Duration(random(int(2*timeout)))
				switch random(6) {
				case 0:
					ctx = until{ctx, time.Now().Add(own)}
					deadline = time.Now().Add(min(own, timeout))
				case 1:
					ctx, cancel = context.WithTimeout(ctx, own)
					deadline = time.Now().Add(min(own, timeout))
				case 2:
					ctx, cancel = context.WithCancel(ctx)
					cancelled = true // which does not end a wait for a call of its own
					time.AfterFunc(own, cancel)
				case 3:
					ctx = context.WithoutCancel(ctx)
				}
				all.Go(func() {
					defer cancel()
					n := int64(1 + i%1000)
					var r store.Result
					err := asking.Decide(ctx, s, store.Allow, &r, store.Charge{Limiter: l.Prepared(), Key: strconv.Itoa(i), N: n})
					at := time.Now()
					switch {
					case err == nil:
						note("answered")
						if left := r.Reading(0).Remaining; left != 1000-n {
							t.Errorf("seed %d, question %d: %d units are left of 1000 less %d", seed, i, left, n)
						}
					case errors.Is(err, errLate), cancelled && errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
						note("late")
						if !at.Equal(deadline) && !errors.Is(err, context.Canceled) {
							t.Errorf("seed %d, question %d: %v, %v after its deadline", seed, i, err, at.Sub(deadline))
						}
					case errors.Is(err, errLost):
						note("lost")
					case errors.Is(err, errAway):
						note("away")
					default:
						t.Errorf("seed %d, question %d: %v", seed, i, err)
					}
					if at.After(deadline) {
						t.Errorf("seed %d, question %d: %v after %v too long", seed, i, err, at.Sub(deadline))
					}
				})
			}
			all.Wait()
			for _, what := range []string{"answered", "late", "lost"} {
				if count[what] < 5 {
					t.Errorf("seed %d: %v", seed, count)
				}
			}
			d.be(nil)
			time.Sleep(time.Minute) // probes end
			synctest.Wait()
			server := d.servers[0]
			if inFlight, waiting := server.Load(); inFlight+waiting > 0 || server.watchdog.first != nil || server.watchdog.last != nil || !server.watchdog.due.IsZero() {
				t.Errorf("seed %d: %d calls are in flight, %d questions wait, and the watchdog has %+v", seed, inFlight, waiting, &server.watchdog)
			}
		})
	}
}

// putsOff is a database that puts some questions off, the first time. As they are too heavy for a
// call with others, they are then sent alone.
type putsOff struct{ *database }

func (putsOff) Weight(q *Question) int { return 1 + 7*q.Work }

func (d putsOff) Ask(ctx context.Context, qs []*Question) (err, failure error) {
	var now []*Question
	for _, q := range qs {
		if len(qs) > 1 && q.Work == 0 && q.Charges[0].N%7 == 0 {
			q.Work, q.Err = 1, ErrPutOff
		} else {
			now = append(now, q)
		}
	}
	return d.database.Ask(ctx, now)
}

// TestTheOldestAreToldFirst: also of questions that wait behind newer ones, because they were put
// off before those, or came later than they had set out.
func TestTheOldestAreToldFirst(t *testing.T) {
	const timeout = 100 * time.Millisecond
	for name, test := range map[string]struct {
		calls []time.Duration // when the first end; then there is silence
		asked map[string]time.Duration
		units int64
	}{
		"put off twice": {
			calls: []time.Duration{10, 40, 60, 70},
			asked: map[string]time.Duration{"a": 0, "b": 1, "c": 5, "d": 6, "e": 7, "f": 38, "g": 39, "h": 39},
			units: 7,
		},
		"slow to come":         {asked: map[string]time.Duration{"a": 10, "b": 10, "slow": 5, "c": 34}, units: 1},
		"slow before its call": {asked: map[string]time.Duration{"slow": 5}, units: 1},
		"slow to come, behind many": {
			asked: map[string]time.Duration{
				"a": 1, "b": 1, "slow": 5, "c": 6, "d": 7, "e": 7, "f": 8, "g": 8, "h": 9, "i": 9, "j": 9,
				"k": 10, "l": 10, "m": 11, "n": 12, "o": 13, "p": 14, "q": 15, "r": 16, "s": 17, "t": 18, "u": 19, "v": 20,
			},
			units: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				d := newDatabase(1, clock)
				start := time.Now()
				lag := func(key string) time.Duration {
					if key == "slow" {
						return 30 * time.Millisecond
					}
					return 0
				}
				var calls atomic.Int64
				d.be(func(ctx context.Context) (bool, error) {
					if i := int(calls.Add(1)) - 1; i < len(test.calls) {
						return slow(time.Until(start.Add(test.calls[i] * time.Millisecond)))(ctx)
					}
					return silent(ctx)
				})
				s := NewSender(slowRoute{putsOff{d}, lag}, Config{Timeout: timeout, MaxWeight: 8})
				l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
				var all sync.WaitGroup
				for key, after := range test.asked {
					all.Go(func() {
						time.Sleep(after * time.Millisecond)
						var r store.Result
						asked := time.Now()
						err := asking.Decide(t.Context(), s, store.Allow, &r, store.Charge{Limiter: l.Prepared(), Key: key, N: test.units})
						if took := time.Since(asked); err == nil && took > timeout || err != nil && took != timeout {
							t.Errorf("%s: %v after %v", key, err, took)
						}
					})
				}
				all.Wait()
				d.be(nil)
				time.Sleep(time.Minute) // probes end
			})
		})
	}
}

// slowRoute is a backend whose Route takes a while for some keys.
type slowRoute struct {
	Backend

	takes func(key string) time.Duration
}

func (b slowRoute) Route(key string) (*Server, int) {
	time.Sleep(b.takes(key))
	return b.Backend.Route(key)
}
