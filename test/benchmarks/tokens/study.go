package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/core"
)

// Users send 40, 30, 20 and 10 % of the requests: that of the i-th is users[i%10] - '0'. Each may use
// 22 % of what all use on average: so two use up their budgets, one does at times, and one never.
const (
	users  = "0123012010"
	share  = 22
	period = time.Minute
)

// inFlight are how many requests of a user are answered at a time: the answer to a request ends when
// so many more of the user's have come, whether these are admitted or not.
var inFlight = []int{1, 8, 64}

// A study is a trace that is replayed.
type study struct {
	byUser  [][]request
	speed   float64 // how many times as fast it is replayed
	limit   int64   // tokens of a user in a period
	largest int64   // the most tokens that an answer has: what clients would give as max_tokens
	length  time.Duration
	number  int // of the run
}

func newStudy(trace []request, speed float64) *study {
	s := &study{byUser: make([][]request, 4), speed: speed, length: trace[len(trace)-1].at}
	var all int64
	for i, r := range trace {
		u := users[i%len(users)] - '0'
		s.byUser[u] = append(s.byUser[u], r)
		s.largest = max(s.largest, r.generated)
		all += r.tokens()
	}
	s.limit = max(1, int64(float64(all)*share/100*float64(period)*speed/float64(s.length)))
	return s
}

// A way is how requests are charged. The zero way checks before, and reports after.
type way struct {
	name  string
	guess func(u *user) int64 // of the tokens of an answer
}

var ways = []way{
	{"estimate: the longest answer", func(u *user) int64 { return u.largest }},
	{"estimate: the mean so far", func(u *user) int64 {
		if u.answers == 0 {
			return u.largest
		}
		return (u.generated + u.answers - 1) / u.answers
	}},
	{name: "check and report"},
}

// A run is one line of the table.
type run struct {
	policy string
	open   func(context.Context) (servers, error)
	store  string
	way    way
	flight int

	limit core.Policy
}

func (r run) name() string { return r.policy + ", " + r.store + ", " + r.way.name }

// runs returns all lines of the table.
func (s *study) runs(redis string) (all []run) {
	for _, p := range []run{
		{policy: "SlidingWindow", limit: core.SlidingWindow(s.limit, period)},
		{policy: "FixedWindow", limit: core.FixedWindow(s.limit, period)},
		{policy: "TokenBucket", limit: core.TokenBucket(s.limit, period).Burst(max(1, s.limit/4))},
	} {
		for _, w := range ways {
			for _, k := range inFlight {
				p.way, p.flight = w, k
				p.store, p.open = "memory", inMemory
				all = append(all, p)
				p.store, p.open = "Redis", func(ctx context.Context) (servers, error) { return overRedis(ctx, redis, false) }
				all = append(all, p)
				if p.policy != "TokenBucket" { // which is not leased
					p.store, p.open = "leases", func(ctx context.Context) (servers, error) { return overRedis(ctx, redis, true) }
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// A tally is what came of a run.
type tally struct {
	requests, refused int64
	fitted            int64 // were refused, and would have fitted beside all that were admitted
	used, over, worst int64 // tokens: in all, those for which there was no room, and the most of these in a row
	calls             int64 // scripts of Redis
}

func (t *tally) add(u *tally) {
	t.requests, t.refused, t.fitted = t.requests+u.requests, t.refused+u.refused, t.fitted+u.fitted
	t.used, t.over, t.worst = t.used+u.used, t.over+u.over, max(t.worst, u.worst)
}

// run replays the trace in a bubble of package synctest, in which time passes only while everybody waits
// for it. All users send at the same time.
func (s *study) run(ctx context.Context, r run) (t tally, err error) {
	ctx = context.WithoutCancel(ctx) // to wait for its end is not to wait in the bubble
	all, err := r.open(ctx)
	if err != nil {
		return t, err
	}
	s.number++ // each run has a state of its own
	limiters := make([]*core.Limiter, len(all.stores))
	for i, store := range all.stores {
		limiters[i] = core.NewLimiter(store, "run "+strconv.Itoa(s.number), r.limit)
	}
	a, err := newAccount(r.limit)
	if err != nil {
		return t, errors.Join(err, all.close())
	}
	var (
		mu     sync.Mutex
		faults []error
		wait   sync.WaitGroup
		start  = time.Now().Truncate(period).Add(period) // so that all runs have the same windows
	)
	for i, requests := range s.byUser {
		u := &user{
			key: "user " + strconv.Itoa(i), way: r.way, limiters: limiters, admitted: a, possible: a,
			largest: s.largest, answering: make([]*flight, r.flight),
		}
		wait.Go(func() {
			err := u.replay(ctx, requests, start, s.speed)
			mu.Lock()
			defer mu.Unlock()
			t.add(&u.tally)
			faults = append(faults, err)
		})
	}
	wait.Wait()
	err = errors.Join(append(faults, all.close())...)
	t.calls = all.calls.Load()
	return t, err
}

// header begins the table.
var header = strings.Join([]string{
	"| policy | store | way | in flight | refused, % | of them would have fitted, % of all | tokens above the limit | % of the used | most in a row, % of the limit | calls of Redis a request |",
	"|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
}, "\n")

func (s *study) line(r run, t *tally) string {
	percent := func(n, of int64) float64 { return 100 * float64(n) / float64(max(of, 1)) }
	calls := "" // there is no Redis
	if r.store != "memory" {
		calls = fmt.Sprintf("%.2f", float64(t.calls)/float64(max(t.requests, 1)))
	}
	return fmt.Sprintf("| %s | %s | %s | %d | %.1f | %.2f | %d | %.2f | %.2f | %s |", r.policy, r.store, r.way.name, r.flight,
		percent(t.refused, t.requests), percent(t.fitted, t.requests), t.over, percent(t.over, t.used), percent(t.worst, s.limit), calls)
}

// describe returns what is replayed.
func (s *study) describe(name string) string {
	n := 0
	for _, u := range s.byUser {
		n += len(u)
	}
	return fmt.Sprintf("%s: %d requests of %d users in %v, %g times as fast; each may use %d tokens in %v.\n",
		name, n, len(s.byUser), s.length.Round(time.Second), s.speed, s.limit, period)
}
