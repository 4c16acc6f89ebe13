package main

import (
	"sync"
	"sync/atomic"

	"github.com/headgate/headgate/internal/step"
)

// Every policy in the study says 100 per minute.
const (
	limit  = 100
	period = 60_000_000 // microseconds
)

// A policy is one contestant.
type policy struct {
	name string
	step.Numbers
}

var resolutions = []int64{1, 2, 4, 6, 10, 12, 20, 30, 60}

// policies returns the contestants: first those that count what they admit, then
// those that count every attempt.
func policies() []policy {
	numbers := func(a step.Kind) step.Numbers {
		return step.Numbers{Kind: a, Limit: limit, Period: period}
	}
	sliding := func(k int64) step.Numbers {
		n := numbers(step.SlidingWindow)
		n.Resolution = k
		return n
	}
	ps := []policy{{name: "fixed window", Numbers: numbers(step.FixedWindow)}}
	for _, k := range resolutions {
		ps = append(ps, policy{name: "sliding window, " + number(k), Numbers: sliding(k)})
	}
	for _, k := range []int64{1, 10, 60} {
		n := sliding(k)
		n.NeverOver = true
		ps = append(ps, policy{name: "sliding window, " + number(k) + ", never over", Numbers: n})
	}
	bucket := numbers(step.TokenBucket)
	bucket.Burst, bucket.Debt = limit, step.UsualDebt
	ps = append(ps,
		policy{name: "token bucket, burst 100", Numbers: bucket},
		policy{name: "sliding log", Numbers: numbers(step.SlidingLog)})

	for _, k := range []int64{1, 10, 60} {
		n := sliding(k)
		n.CountDenied = true
		ps = append(ps, policy{name: "sliding window, " + number(k), Numbers: n})
	}
	log := numbers(step.SlidingLog)
	log.CountDenied = true
	return append(ps, policy{name: "sliding log", Numbers: log})
}

// A window holds the instants of the last period. It is deliberately not the
// library's log, which is compared with it like every policy.
type window struct {
	at       []int64 // a ring, of a power of two
	first, n int
}

// count returns how many instants lie less than one period before now.
func (w *window) count(now int64) int {
	for w.n > 0 && now-w.at[w.first] >= period {
		w.first = (w.first + 1) & (len(w.at) - 1)
		w.n--
	}
	return w.n
}

func (w *window) add(now int64) {
	w.count(now)
	if w.n == len(w.at) {
		grown := make([]int64, max(256, 2*w.n))
		for i := range w.n {
			grown[i] = w.at[(w.first+i)&(w.n-1)]
		}
		w.at, w.first = grown, 0
	}
	w.at[(w.first+w.n)&(len(w.at)-1)] = now
	w.n++
}

func (w *window) reset() { w.first, w.n = 0, 0 }

// A tally is the result of one policy. It has only integers, so that the order of
// additions does not matter.
type tally struct {
	Admitted int64

	// Wrong verdicts: an exact limiter, asked the same questions, would have
	// refused what was admitted, or admitted what was refused.
	WronglyAdmitted, WronglyRefused int64

	// Verdicts against the policy's own past: it admitted although it had
	// admitted the limit in the period that ends now, or refused although it had
	// not. Not of policies that count refused attempts.
	Over, Under int64

	// Fullest[i] sources, of those that met the limit, had i requests admitted in
	// their fullest window. No policy here admits more than 2*limit.
	Fullest [2*limit + 1]int64
}

func (t *tally) add(u *tally) {
	t.Admitted += u.Admitted
	t.WronglyAdmitted += u.WronglyAdmitted
	t.WronglyRefused += u.WronglyRefused
	t.Over += u.Over
	t.Under += u.Under
	for i, n := range u.Fullest {
		t.Fullest[i] += n
	}
}

func (t *tally) wrong() int64 { return t.WronglyAdmitted + t.WronglyRefused }

// fullest returns the most that were admitted in any window.
func (t *tally) fullest() int {
	for i := len(t.Fullest) - 1; i > 0; i-- {
		if t.Fullest[i] > 0 {
			return i
		}
	}
	return 0
}

// typical returns what the median source that met the limit had admitted in its
// fullest window.
func (t *tally) typical() int {
	var all, seen int64
	for _, n := range t.Fullest {
		all += n
	}
	for i, n := range t.Fullest {
		if seen += n; 2*seen >= all && all > 0 {
			return i
		}
	}
	return 0
}

// A trial is one policy with its state for one source.
type trial struct {
	policy
	cell     step.Cell
	state    []int64
	admitted window
	peak     int  // the fullest window of the source
	met      bool // the source met the limit
	tally
}

func newTrial(p policy) *trial {
	made, err := step.New("study", "study", p.Numbers)
	if err != nil {
		panic(err) // the policies are constants
	}
	return &trial{policy: p, cell: step.Cell{Policy: &made, Units: 1}, state: made.New()}
}

// run decides about the next requests of one source.
func (t *trial) run(at []int64, truth *truth) {
	for i, now := range at {
		right := truth.exact[i]
		if t.CountDenied {
			right = truth.attempts[i] <= limit
		}
		full := t.admitted.count(now) >= limit
		t.state = t.cell.Room(t.state, now, false)
		ok := t.cell.Take(t.state, now, true)
		switch {
		case ok && !right:
			t.WronglyAdmitted++
		case !ok && right:
			t.WronglyRefused++
		}
		switch {
		case ok && full:
			t.Over++
		case !ok && !full:
			t.Under++
		}
		t.met = t.met || full || !ok
		if ok {
			t.admitted.add(now)
			t.Admitted++
			t.peak = max(t.peak, t.admitted.n)
		} else {
			t.cell.CountRefused(t.state, now, step.Allow)
		}
	}
}

// nextSource forgets the state.
func (t *trial) nextSource() {
	if t.met {
		t.Fullest[t.peak]++
	}
	t.state = t.cell.Policy.New()
	t.admitted.reset()
	t.peak, t.met = 0, false
}

// A result is the results of all policies under one traffic.
type result struct {
	Requests int64
	Sources  int64 // that sent anything
	Refused  int64 // by the exact limiter
	Periods  float64
	ByOver   float64 // part of the requests from sources over the limit, expected
	Tallies  []tally // of each policy
}

// A truth has, for each request in a chunk, the verdict of an exact limiter, which
// counts what it admits, and the number of attempts of the source in the period that
// ends with the request.
type truth struct {
	exact    []bool
	attempts []int

	admitted, attempted window
}

// about computes the truth about the next requests of one source.
func (t *truth) about(at []int64) (refused int64) {
	t.exact, t.attempts = t.exact[:0], t.attempts[:0]
	for _, now := range at {
		ok := t.admitted.count(now) < limit
		if ok {
			t.admitted.add(now)
		} else {
			refused++
		}
		t.attempted.add(now)
		t.exact = append(t.exact, ok)
		t.attempts = append(t.attempts, t.attempted.n)
	}
	return refused
}

// A worker simulates one source after the other.
type worker struct {
	trials []*trial
	truth  truth
	at     []int64
	result
}

func newWorker() *worker {
	const chunk = 1024 // policies take turns by the chunk, which keeps each one's state in cache
	w := &worker{at: make([]int64, 0, chunk)}
	for _, p := range policies() {
		w.trials = append(w.trials, newTrial(p))
	}
	return w
}

// source simulates all requests of one source before end and returns their number.
func (w *worker) source(next func() int64, end int64) int64 {
	var requests int64
	for more := true; more; {
		w.at = w.at[:0]
		for len(w.at) < cap(w.at) {
			now := next()
			if more = now < end; !more {
				break
			}
			w.at = append(w.at, now)
		}
		n := int64(len(w.at))
		if !more && requests == 0 && n <= limit {
			// Not more requests in all than the limit: every policy admits them
			// all, and rightly.
			for _, t := range w.trials {
				t.Admitted += n
			}
			return n
		}
		requests += n
		w.Refused += w.truth.about(w.at)
		for _, t := range w.trials {
			t.run(w.at, &w.truth)
		}
	}
	for _, t := range w.trials {
		t.nextSource()
	}
	w.truth.admitted.reset()
	w.truth.attempted.reset()
	return requests
}

// simulate puts all policies under a traffic of about the given number of
// requests. It adds to done as it goes.
func simulate(t traffic, requests, sources int, seed uint64, workers int, done *atomic.Int64) result {
	perPeriod, byOver := t.expected(sources)
	periods := float64(requests) / perPeriod
	end := int64(periods * period)

	total := result{Periods: periods, ByOver: byOver, Tallies: make([]tally, len(policies()))}
	var (
		next  atomic.Int64
		mu    sync.Mutex
		group sync.WaitGroup
	)
	for range workers {
		group.Go(func() {
			w := newWorker()
			for {
				i := int(next.Add(1) - 1) // the busiest first, so that all end together
				if i >= sources {
					break
				}
				a := newArrivals(t.rate(i, sources), seed, uint64(i))
				n := w.source(a.next, end)
				w.Requests += n
				if n > 0 {
					w.Sources++
				}
				done.Add(n)
			}
			mu.Lock()
			defer mu.Unlock()
			total.Requests += w.Requests
			total.Sources += w.Sources
			total.Refused += w.Refused
			for i, trial := range w.trials {
				total.Tallies[i].add(&trial.tally)
			}
		})
	}
	group.Wait()
	return total
}
