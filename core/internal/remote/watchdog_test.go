package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/internal/bubble"
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
			s := NewSender(putsOff{d}, Config{Timeout: timeout, MaxWeight: 8, NoMerging: unmerged})
			l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
			var mu sync.Mutex // of rng
			random := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return rng.IntN(n)
			}
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
				own := time.Duration(1 + random(int(2*timeout)))
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
					err := s.Decide(ctx, store.Charge{Limiter: l.Prepared(), Key: strconv.Itoa(i), N: n}, false, &r)
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
			if inFlight, waiting := server.Load(); inFlight+waiting+len(server.watchdog.flights) > 0 || !server.watchdog.due.IsZero() {
				t.Errorf("seed %d: %d calls are in flight, %d questions wait, and the watchdog has %+v", seed, inFlight, waiting, server.watchdog)
			}
		})
	}
}

// putsOff is a database that puts some questions off, the first time.
type putsOff struct{ *database }

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

// TestSlowToSend: who has lost time before the call, and so leaves it to others, is told too.
func TestSlowToSend(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const timeout = 100 * time.Millisecond
		d := newDatabase(1, clock)
		d.be(silent)
		s := NewSender(slowRoute{d, timeout / 5}, Config{Timeout: timeout, MaxWeight: 8})
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(1000)))
		start := time.Now()
		_, err := l.Allow(t.Context(), "k")
		if took := time.Since(start); took != timeout || !errors.Is(err, errLate) {
			t.Errorf("%v after %v", err, took)
		}
		d.be(nil)
		time.Sleep(time.Minute) // probes end
	})
}

// slowRoute is a database whose Route takes a while.
type slowRoute struct {
	*database

	takes time.Duration
}

func (d slowRoute) Route(key string) (*Server, int) {
	time.Sleep(d.takes)
	return d.database.Route(key)
}
