package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/within"
)

// over runs a test over a database of one server, in a bubble.
func over(t *testing.T, c setup, test func(t *testing.T, d *database, l *core.Limiter)) {
	bubble.Test(t, func(t *testing.T) {
		d := newDatabase(1, clock)
		test(t, d, newLimiter(t, d.stack(c), "api", core.FixedWindow(core.PerDay(1_000_000))))
		d.be(nil)
		time.Sleep(time.Minute) // probes end
	})
}

// Decisions that share a bound wait for a silent server until then, all together. Later ones are not sent, but for what
// gives units back.
func TestBoundedDecisions(t *testing.T) {
	over(t, setup{}, func(t *testing.T, d *database, l *core.Limiter) {
		passed := within.By(t.Context(), time.Now().Add(time.Second))
		charged, err := l.Allow(passed, "k")
		if err != nil || charged.Source != core.SourceStore {
			t.Fatal(charged.Source, err)
		}
		time.Sleep(2 * time.Second)
		if err := charged.Refund(passed); err != nil {
			t.Error(err)
		}
		if left, err := l.Peek(t.Context(), "k"); err != nil || left.Remaining != 1_000_000 {
			t.Error(left.Remaining, err)
		}
		var calls atomic.Int64
		d.be(func(ctx context.Context) (bool, error) {
			calls.Add(1)
			return silent(ctx)
		})
		begin := time.Now()
		ctx := within.By(t.Context(), begin.Add(60*time.Millisecond))
		for range 3 {
			decided, err := l.Allow(ctx, "k")
			if took := time.Since(begin); err != nil || decided.Source != core.SourceLocal || took != 60*time.Millisecond {
				t.Errorf("%v after %v: %v", decided.Source, took, err)
			}
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	for _, extra := range []int{0, 1} { // no state of the queue lets more wait
		over(t, setup{failure: Closed}, func(t *testing.T, d *database, l *core.Limiter) {
			d.servers[0].inFlight = MaxInFlight
			d.servers[0].waiting = make([]*Question, maxWaiting-MaxInFlight+extra)
			if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, errBusy) {
				t.Error(err)
			}
		})
	}
}

// Without merging, so many calls are in flight at most, and what waits is sent one by one.
func TestCallsInFlightAreBounded(t *testing.T) {
	var flying, most, questions atomic.Int64
	o := &core.Observer{Called: func(e core.CallEvent) { questions.Store(max(questions.Load(), int64(e.Questions))) }}
	over(t, setup{failure: Closed, config: Config{NoMerging: true, Observer: o}}, func(t *testing.T, d *database, l *core.Limiter) {
		d.be(func(ctx context.Context) (bool, error) {
			most.Store(max(most.Load(), flying.Add(1)))
			defer flying.Add(-1)
			return slow(time.Millisecond)(ctx)
		})
		var all sync.WaitGroup
		for i := range 10 * MaxUnmerged {
			all.Go(func() { allow(t, l, strconv.Itoa(i), 1) })
		}
		all.Wait()
	})
	if most.Load() != MaxUnmerged || questions.Load() != 1 {
		t.Errorf("up to %d calls, of up to %d questions, were in flight", most.Load(), questions.Load())
	}
}

// one answers calls one at a time, each after a time, also those that nobody waits for.
func one(each time.Duration) network {
	var mu sync.Mutex
	var free time.Time // when all that was sent is answered
	return func(ctx context.Context) (bool, error) {
		mu.Lock()
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(each)
		wait := time.Until(free)
		mu.Unlock()
		return slow(wait)(ctx)
	}
}

// Without merging, more callers than a server can answer wait, or run out of time: it answers
// as many as it can, and does not become unavailable.
func TestUnmergedCallersWait(t *testing.T) {
	for _, test := range []struct {
		each  time.Duration // for a call
		least int64         // answers in a second, and
		most  int64         // failures
	}{
		{50 * time.Microsecond, 19_000, 0},
		{200 * time.Microsecond, 4500, 6000},
		{time.Millisecond, 900, 11_000},
	} {
		var changed, answered, failed atomic.Int64
		o := &core.Observer{Changed: func(error) { changed.Add(1) }}
		over(t, setup{failure: Closed, config: Config{NoMerging: true, Observer: o}}, func(t *testing.T, d *database, l *core.Limiter) {
			d.be(one(test.each))
			end := time.Now().Add(time.Second)
			var all sync.WaitGroup
			for i := range 1000 {
				all.Go(func() {
					for time.Now().Before(end) {
						if _, err := l.Allow(t.Context(), strconv.Itoa(i)); err != nil {
							failed.Add(1)
							time.Sleep(time.Millisecond)
						} else {
							answered.Add(1)
						}
					}
				})
			}
			all.Wait()
		})
		if changed.Load() > 0 || answered.Load() < test.least || failed.Load() > test.most {
			t.Errorf("%v for a call: %d answers, %d failures, the breaker changed %d times", test.each, answered.Load(), failed.Load(), changed.Load())
		}
	}
}

// Nobody fails because the answers to others were late once.
func TestUnmergedCallersSurviveAPause(t *testing.T) {
	over(t, setup{failure: Closed, config: Config{NoMerging: true}}, func(t *testing.T, d *database, l *core.Limiter) {
		over := time.Now().Add(60 * time.Millisecond)
		d.be(func(ctx context.Context) (bool, error) { return slow(max(time.Until(over), time.Millisecond))(ctx) })
		var all sync.WaitGroup
		for i := range 10 * MaxUnmerged {
			all.Go(func() {
				if _, err := l.Allow(t.Context(), strconv.Itoa(i)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// What is put off waits ahead of all others. If that is too much for the queue, those that
// came last are turned away, and those that have given up are not told.
func TestPuttingOffKeepsTheQueueBounded(t *testing.T) {
	server := new(Server)
	newQuestions := func(n int, progress int32) (qs []*Question) {
		for range n {
			q := &Question{done: make(chan signal, 2)}
			q.progress.Store(progress)
			qs = append(qs, q)
		}
		return qs
	}
	waits := newQuestions(maxWaiting-2, waiting)
	waits[maxWaiting-3].progress.Store(dropped)
	server.waiting = slices.Clone(waits)
	late := newQuestions(5, sent)
	late[1].progress.Store(dropped)
	for _, q := range late {
		q.Err = ErrPutOff
	}
	server.putOff(late)
	want := slices.Concat(late[:1], late[2:], waits[:maxWaiting-4])
	if !slices.Equal(server.waiting, want) {
		t.Errorf("%d questions wait, or in another order", len(server.waiting))
	}
	for i, q := range want {
		if q.progress.Load() != waiting || q.Err != nil || len(q.done) != 0 {
			t.Fatalf("question %d has the progress %d: %v", i, q.progress.Load(), q.Err)
		}
	}
	if q := waits[maxWaiting-4]; !errors.Is(q.Err, errBusy) || len(q.done) != 1 {
		t.Errorf("the last that waits: %v", q.Err)
	}
	if q := waits[maxWaiting-3]; q.Err != nil || len(q.done) != 0 {
		t.Errorf("one that has given up: %v", q.Err)
	}
}

// A question that finds others waiting is not sent before them, even if a call is free:
// those may have been put off a moment ago.
func TestQuestionsDoNotOvertake(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := newDatabase(1, clock)
		calls, asked := 0, 0
		s := NewSender(d, Config{Timeout: time.Second, MaxWeight: 10, Observer: &core.Observer{Called: func(e core.CallEvent) { calls++; asked += e.Questions }}})
		l := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(10)))
		server := d.servers[0]
		first := s.pool.question(store.Allow, []store.Charge{{Limiter: l.Prepared(), Key: "first", N: 1}}, 0)
		first.deadline = time.Now().Add(time.Second)
		server.inFlight = 1
		server.waiting = []*Question{first}
		answered := make(chan error)
		go func() {
			_, err := l.Allow(context.Background(), "second")
			answered <- err
		}()
		synctest.Wait()
		if calls != 0 || len(server.waiting) != 2 || server.waiting[0] != first {
			t.Errorf("%d calls, and %d questions wait", calls, len(server.waiting))
		}
		s.callEnded(server)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		<-first.done
		synctest.Wait()
		if calls != 1 || asked != 2 || first.Err != nil {
			t.Errorf("%d questions in %d calls: %v", asked, calls, first.Err)
		}
	})
}

// A call takes questions up to the largest weight, and one that is heavier is sent alone.
// Those whose callers have given up are not sent.
func TestBatches(t *testing.T) {
	s := NewSender(newDatabase(1, clock), Config{Timeout: time.Second, MaxWeight: 10})
	waits := func(weights ...int) (qs []*Question) {
		for _, w := range weights {
			qs = append(qs, &Question{Question: store.Question{Charges: make([]store.Charge, w)}, done: make(chan signal, 2)})
		}
		return qs
	}
	dropAll := func(qs []*Question) []*Question {
		for _, q := range qs {
			q.progress.Store(dropped)
		}
		return qs
	}
	for name, test := range map[string]struct {
		waiting []*Question
		want    string
	}{
		"light":                 {waits(slices.Repeat([]int{1}, 25)...), "[10 10 5]"},
		"just fits":             {waits(5, 5, 5), "[2 1]"},
		"a heavy one between":   {waits(1, 1, 20, 1, 1), "[2 1 2]"},
		"heavy ones":            {waits(20, 20), "[1 1]"},
		"nothing":               {nil, "[]"},
		"one that nobody wants": {append(waits(1), dropAll(waits(20, 20))...), "[1]"},
	} {
		server := &Server{waiting: test.waiting, inFlight: 1}
		got := []int{}
		for batch := server.nextBatch(s); len(batch) > 0; batch = server.nextBatch(s) {
			got = append(got, len(batch))
		}
		if fmt.Sprint(got) != test.want || server.inFlight != 0 {
			t.Errorf("%s: calls of %v questions, want %s; %d in flight", name, got, test.want, server.inFlight)
		}
	}
}

// A call takes no more than half of all questions if another is in flight, which takes the rest
// when it is answered, unless they are few.
func TestCallsShareWhatWaits(t *testing.T) {
	s := NewSender(newDatabase(1, clock), Config{Timeout: time.Second, MaxWeight: 100})
	for _, test := range []struct {
		asked, waiting int // by the other call, if there is one
		want           int
	}{
		{0, 64, 64},
		{0, 150, 100},
		{1, 63, 32},
		{20, 43, 32},
		{32, 32, 32},
		{60, 4, 4},
		{1, 9, 8},
		{1, 8, 8},
		{1, 1, 1},
		{100, 300, 100},
	} {
		server := &Server{inFlight: 1, asked: test.asked}
		if test.asked > 0 {
			server.inFlight++
		}
		for range test.waiting {
			server.waiting = append(server.waiting, &Question{Question: store.Question{Charges: make([]store.Charge, 1)}, done: make(chan signal, 2)})
		}
		batch := server.nextBatch(s)
		if len(batch) != test.want || server.asked != test.asked+test.want || len(server.waiting) != test.waiting-test.want {
			t.Errorf("%d wait, and %d are asked: a call of %d, then %d wait and %d are asked, want a call of %d",
				test.waiting, test.asked, len(batch), len(server.waiting), server.asked, test.want)
		}
		all := batch
		for len(batch) > 0 { // the other is not answered
			server.ended(len(batch))
			batch = server.nextBatch(s)
			all = append(all, batch...)
		}
		if len(all) != test.waiting || server.asked != test.asked {
			t.Errorf("%d waited, %d were sent; %d are asked, want %d", test.waiting, len(all), server.asked, test.asked)
		}
	}
}

// If callers ask again as soon as they are answered, each of two calls carries nearly half of them.
func TestCallsCarryHalfOfTheCallers(t *testing.T) {
	const callers, each = 64, 100
	var calls, questions int
	var mu sync.Mutex
	o := &core.Observer{Called: func(e core.CallEvent) {
		mu.Lock()
		calls, questions = calls+1, questions+e.Questions
		mu.Unlock()
	}}
	over(t, setup{failure: Closed, config: Config{Observer: o}}, func(t *testing.T, d *database, l *core.Limiter) {
		d.be(one(time.Millisecond))
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range each {
					allow(t, l, strconv.Itoa(i), 1)
				}
			})
		}
		all.Wait()
	})
	if questions != callers*each || questions < 26*calls { // 21 if what waits is sent at once
		t.Errorf("%d questions in %d calls", questions, calls)
	}
}
