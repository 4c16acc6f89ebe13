package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
)

// A call is bounded by the words that its questions read and write.
func TestHeavyQuestionsTravelApart(t *testing.T) {
	s := away(t, Config{})
	log := newLimiter(t, s, "log", core.SlidingLog(core.PerHour(1_000_000)))
	fine := newLimiter(t, s, "fine", core.SlidingWindow(core.PerDay(10)).Resolution(1000))
	plain := newLimiter(t, s, "plain", core.FixedWindow(core.PerDay(10)))
	waits := func(l *core.Limiter, mode byte, n, actual int64, count int) (qs []*question) {
		for range count {
			q := s.pools.question()
			q.mode, q.actual = mode, actual
			q.one[0] = core.Charge{Limiter: l, Key: "k", N: n}
			q.charges = q.one[:]
			qs = append(qs, q)
		}
		return qs
	}
	grows := waits(log, modeAsk, 1, 0, 3)
	for _, q := range grows {
		q.work = 3000
	}
	for name, c := range map[string]struct {
		queue []*question
		want  string
	}{
		"light":                 {waits(plain, modeAsk, 1, 0, 300), "[128 128 44]"},
		"fine windows":          {waits(fine, modeAsk, 1, 0, 20), "[8 8 4]"},
		"small charges":         {waits(log, modeAsk, 1, 0, 200), "[128 72]"},
		"charges":               {waits(log, modeAsk, 3000, 0, 5), "[2 2 1]"},
		"large charges":         {waits(log, modeAsk, 100_000, 0, 3), "[1 1 1]"},
		"peeks":                 {waits(log, modePeek, 100_000, 0, 200), "[128 72]"},
		"refunds":               {waits(log, modeSettle, 100_000, 0, 200), "[128 72]"},
		"settlements upwards":   {waits(log, modeSettle, 1, 2, 2), "[1 1]"},
		"a large one between":   {append(append(waits(plain, modeAsk, 1, 0, 3), waits(log, modeAsk, 9000, 0, 1)...), waits(plain, modeAsk, 1, 0, 3)...), "[3 1 3]"},
		"rings known to grow":   {append(grows, waits(log, modeAsk, 1, 0, 100)...), "[2 101]"},
		"nothing":               {nil, "[]"},
		"one that nobody wants": {append(waits(plain, modeAsk, 1, 0, 1), dropAll(waits(log, modeAsk, 1e6, 0, 5))...), "[1]"},
	} {
		l := &sendQueue{waiting: c.queue, inFlight: 1}
		got := []int{}
		for batch := l.nextBatch(); len(batch) > 0; batch = l.nextBatch() {
			got = append(got, len(batch))
		}
		if fmt.Sprint(got) != c.want || l.inFlight != 0 {
			t.Errorf("%s: calls of %v questions, want %s; %d in flight", name, got, c.want, l.inFlight)
		}
	}
	if !strings.Contains(prelude, fmt.Sprintf("local MAXWORDS = %d ", maxWords)) {
		t.Errorf("%d is not the bound of prelude.lua", maxWords)
	}
}

func dropAll(qs []*question) []*question {
	for _, q := range qs {
		q.progress.Store(dropped)
	}
	return qs
}

// Large rings that have to grow do so in different calls. Nothing is written for a question
// that is put off, and one whose caller gave up meanwhile is not sent again.
func TestLargeRingsGrowApart(t *testing.T) {
	const used = 3000 // so that a ring grows to 6000 words, and two are too much for a call
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, MemoryFor: -1}, server.Addr())
	queue := &s.queues.first
	log := core.SlidingLog(core.PerHour(1_000_000))
	for name, policies := range map[string][]core.Policy{
		"one":    {log},
		"two":    {core.FixedWindow(core.PerDay(1_000_000)).Named("a"), log.Named("b")},
		"denied": {core.TokenBucket(core.PerDay(1), 1).Named("a"), log.CountDenied().Named("b")}, // refuses
	} {
		for _, mixed := range []bool{false, true} {
			server.Flush()
			l := newLimiter(t, s, name, policies...)
			count := newLimiter(t, s, name, policies[len(policies)-1]) // the log alone
			other := newLimiter(t, s, "other", core.FixedWindow(core.PerDay(10)))
			var cs []core.Charge
			for i := range 4 {
				key := fmt.Sprint("large", i)
				allow(t, count, key, used)
				if name == "denied" {
					allow(t, newLimiter(t, s, name, policies[0]), key, 1)
				}
				cs = append(cs, core.Charge{Limiter: l, Key: key, N: 1}, core.Charge{Limiter: l, Key: fmt.Sprint("small", i), N: 1})
			}
			if mixed {
				cs = append(cs, core.Charge{Limiter: other, Key: "k", N: 1})
			}
			batch := flyTogether(s, cs...)
			late := len(queue.waiting)
			if late != 3 {
				t.Errorf("%s, mixed %v: %d of 4 questions were put off", name, mixed, late)
			}
			for i, q := range batch {
				if waits := q.progress.Load() == waiting; waits != (i == 2 || i == 4 || i == 6) {
					t.Errorf("%s, mixed %v: question %d waits: %v", name, mixed, i, waits)
				} else if !waits && (q.err != nil || len(q.done) != 1) {
					t.Errorf("%s, mixed %v: question %d: %v", name, mixed, i, q.err)
				}
			}
			batch[4].progress.Store(dropped)
			queue.inFlight = 1
			calls := 0
			for next := queue.nextBatch(); len(next) > 0; next = queue.nextBatch() {
				s.sendBatch(t.Context(), queue, next, time.Now().Add(patient))
				calls++
			}
			if calls != 2 {
				t.Errorf("%s, mixed %v: %d questions that were put off took %d calls", name, mixed, late, calls)
			}
			for i, q := range batch {
				admitted := name != "denied" || i%2 == 1 || i == 8
				if i != 4 && (q.err != nil || len(q.done) != 1 || q.result.Allowed != admitted) {
					t.Errorf("%s, mixed %v: question %d: allowed %v, %v", name, mixed, i, q.result.Allowed, q.err)
				}
			}
			for i := range 4 {
				want := int64(used + 1)
				if i == 2 {
					want = used
				}
				if d, err := count.Peek(t.Context(), fmt.Sprint("large", i)); err != nil || log.Limit()-d.Remaining != want {
					t.Errorf("%s, mixed %v: ring %d holds %d, want %d: %v", name, mixed, i, log.Limit()-d.Remaining, want, err)
				}
			}
		}
	}
}
