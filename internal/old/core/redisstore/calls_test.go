package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/redistest"
)

// somePolicies are so many, of all algorithms, that admit n units in an hour at least.
func somePolicies(count int, n int64) []core.Policy {
	all := []core.Policy{
		core.SlidingLog(core.PerHour(n)).Named("log"),
		core.TokenBucket(core.PerHour(1), n).Named("bucket"),
		core.FixedWindow(per(n, 400*day)).Named("window"),
		core.SlidingWindow(core.PerDay(n)).Named("sliding"),
		core.MinInterval(time.Microsecond).Named("apart"),
	}
	return all[:count]
}

func TestDecisionIsOneRoundTrip(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{}, server.Addr())
	var sent sentCommands
	s.Client().AddHook(&sent)
	for _, policies := range []int{1, 2, 5} {
		l := newLimiter(t, s, fmt.Sprintf("%d policies", policies), somePolicies(policies, 1000)...)
		other := newLimiter(t, s, fmt.Sprintf("%d policies, another limiter", policies), somePolicies(policies, 1000)...)
		allow(t, l, "k", 1)                                 // the server learns the script of this limiter's questions,
		if _, err := l.Peek(t.Context(), "k"); err != nil { // and that of all others
			t.Fatal(err)
		}
		for name, ask := range map[string]func() (core.Decision, error){
			"Allow":  func() (core.Decision, error) { return l.Allow(t.Context(), "k") },
			"AllowN": func() (core.Decision, error) { return l.AllowN(t.Context(), "k", 7) },
			"Peek":   func() (core.Decision, error) { return l.Peek(t.Context(), "k") },
			"AllowAll": func() (core.Decision, error) {
				return core.AllowAll(t.Context(), core.Charge{Limiter: l, Key: "k", N: 1}, core.Charge{Limiter: other, Key: "j", N: 2})
			},
		} {
			server.ResetStats()
			sent.Store(0)
			if d, err := ask(); err != nil || !d.Allowed || d.Source != core.SourceStore {
				t.Fatalf("%s: %v, %s", name, err, describe(&d))
			}
			if n, m := server.Calls("evalsha", "eval"), sent.Load(); n != 1 || m != 1 {
				t.Errorf("%d policies, %s: %d commands sent, %d scripts run", policies, name, m, n)
			}
		}
		d := allow(t, l, "k", 1)
		server.ResetStats()
		if err := d.Refund(t.Context()); err != nil || server.Calls("evalsha") != 1 {
			t.Errorf("%d policies, Refund: %v, %v", policies, err, server.CommandStats())
		}
	}
}

// A server that does not know the script, or has forgotten it, is told once.
func TestScriptIsLoadedWhenNeeded(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{}, server.Addr())
	l := newLimiter(t, s, "api", somePolicies(2, 1000)...)
	for i := range int64(3) {
		for range 5 {
			if d := allow(t, l, "k", 1); !d.Allowed || d.Source != core.SourceStore {
				t.Fatal(describe(&d))
			}
		}
		if n := server.Calls("eval"); n != i+1 {
			t.Errorf("the script was sent %d times", n)
		}
		server.Do("SCRIPT", "FLUSH")
	}
	if d := allow(t, l, "k", 1); d.Remaining != 1000-16 {
		t.Error("a charge was lost or repeated: " + describe(&d))
	}
}

var writes = []string{"set", "setrange", "del", "pexpire", "expire"}

func TestRefusalsWriteNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1}, server.Addr())
	for name, limit := range map[string]int64{"whole": 3, "ranged": 100} {
		for _, p := range somePolicies(4, limit) {
			l := newLimiter(t, s, name, p.Named("a"), core.FixedWindow(core.PerDay(1_000_000)).Named("b"))
			if d := allow(t, l, "k", limit); !d.Allowed {
				t.Fatal(describe(&d))
			}
			server.ResetStats()
			for range 5 {
				if d := allow(t, l, "k", 1); d.Allowed {
					t.Fatal(describe(&d))
				}
			}
			if n := server.Calls(writes...); n != 0 {
				t.Errorf("%v: %d writes", p, n)
			}
			server.Flush()
		}
	}
}

// Few charges renew the life of a value, also of a bucket that fills up from nothing.
func TestFewChargesRenewLives(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1}, server.Addr())
	for _, limit := range []int64{60, 1000} {
		most := map[string]int64{"TokenBucket": 9, "by rate": 1 + 16*40/limit, "FixedWindow": 1, "SlidingWindow": 1, "SlidingLog": 1}
		policies := everyAlgorithm(limit)
		policies["by rate"] = core.TokenBucket(core.PerHour(limit), limit)
		for name, p := range policies {
			l := newLimiter(t, s, fmt.Sprint(name, limit), p)
			server.ResetStats()
			for range 40 {
				allow(t, l, "k", 1)
			}
			renewals := server.Calls("set", "pexpire")
			if name == "SlidingLog" { // its ring grows, too
				renewals -= 4
			}
			if renewals > most[name] {
				t.Errorf("%s of %d: %d renewals", name, limit, renewals)
			}
		}
	}
}

// Rings of all lengths, some of which a charge writes by range.
func TestPeeksOfCountedRefusalsWriteNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1}, server.Addr())
	clock := handClock()
	clock.tell(s)
	for _, limit := range []int64{3, 16, 17, 40, 64, 65, 100} {
		l := newLimiter(t, s, fmt.Sprint(limit), core.SlidingLog(core.PerHour(limit)).CountDenied())
		for range limit - 1 {
			allow(t, l, "k", 1)
			clock.move(1000)
		}
		if d := allow(t, l, "k", 1); !d.Allowed || d.Remaining != 0 {
			t.Errorf("limit %d: %s", limit, describe(&d))
		}
		for range 3 {
			clock.move(1000)
			server.ResetStats()
			peeked, err := l.Peek(t.Context(), "k")
			if n := server.Calls(writes...); err != nil || n != 0 || peeked.Allowed {
				t.Errorf("limit %d: %v, %d writes, %s", limit, err, n, describe(&peeked))
			}
			if d := allow(t, l, "k", 1); d.Allowed || d.RetryAfter != peeked.RetryAfter || d.ResetAfter != peeked.ResetAfter {
				t.Errorf("limit %d: %s after %s", limit, describe(&d), describe(&peeked))
			}
		}
	}
}

func TestPeeksWriteNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{}, server.Addr())
	for _, limit := range []int64{3, 100} {
		l := newLimiter(t, s, "api", append(somePolicies(4, limit), core.MinInterval(time.Hour).Named("apart"))...)
		for _, used := range []int64{0, limit - 1} {
			if used > 0 {
				allow(t, l, "k", used)
			}
			server.ResetStats()
			before := keys(t, server)
			if _, err := l.Peek(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			if n := server.Calls(writes...); n != 0 || keys(t, server) != before || used == 0 && before != 0 {
				t.Errorf("limit %d, used %d: %d writes, %d keys, %d before", limit, used, n, keys(t, server), before)
			}
		}
		server.Flush()
	}
}

func TestNothingIsCreatedToGiveBack(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{}, server.Addr())
	for _, limit := range []int64{3, 100} {
		l := newLimiter(t, s, "api", somePolicies(5, limit)...)
		d := allow(t, l, "k", 2)
		server.Flush()
		if err := d.Refund(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := keys(t, server); n != 0 {
			t.Errorf("limit %d: %d keys", limit, n)
		}
	}
}

// However many ask for one key at once, exactly the limit is admitted, in far fewer
// calls than questions.
func TestMergedAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	const askers, times, limit = 200, 20, 1000
	server := redistest.Start(t)
	for name, p := range everyAlgorithm(limit) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, server.Addr())
			var calls, questions atomic.Int64
			s := open(t, Config{RefusalTTL: -1, Observer: &core.Observer{Called: func(e core.CallEvent) {
				calls.Add(1)
				questions.Add(int64(e.Questions))
				if e.Err != nil {
					t.Error(e.Err)
				}
			}}}, proxy.Addr())
			l := newLimiter(t, s, name, p)
			var admitted atomic.Int64
			inFlight := func() int { n, _ := s.backend.servers.first.Load(); return n }
			waiting := func() int { _, n := s.backend.servers.first.Load(); return n }
			for range times {
				eventually(t, "the senders to rest", func() bool { return inFlight() == 0 })
				proxy.Hold() // the first calls, until all have asked
				var all sync.WaitGroup
				for range askers {
					all.Go(func() {
						if d, err := l.Allow(t.Context(), "k"); err != nil || d.Source != core.SourceStore {
							t.Error(err, d.Source)
						} else if d.Allowed {
							admitted.Add(1)
						}
					})
				}
				eventually(t, "all to ask", func() bool { return waiting() == askers-maxInFlight })
				proxy.Heal()
				all.Wait()
			}
			if n := admitted.Load(); n != limit {
				t.Errorf("admitted %d, the limit is %d", n, limit)
			}
			if c, q := calls.Load(), questions.Load(); q != askers*times || c > q/20 {
				t.Errorf("%d questions in %d calls", q, c)
			}
			t.Logf("%d questions in %d calls", questions.Load(), calls.Load())
		})
	}
}

// A key that holds something else fails by itself: the others of the same call are
// answered, and it does not count as an outage.
func TestPoisonedKeyFailsAlone(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed}, server.Addr())
	for name, limit := range map[string]int64{"whole": 3, "ranged": 100} {
		for _, p := range somePolicies(5, limit) {
			for _, poison := range []string{"RPUSH", "SET"} { // a list, and a text that is too short
				l := newLimiter(t, s, name, p)
				bare := l.Prepared()
				server.Do(poison, s.cell(t, l, "poisoned"), "x")
				var batch []*question
				for _, key := range []string{"a", "poisoned", "poisoned", "b"} {
					batch = append(batch, &question{Question: store.Question{Charges: []store.Charge{{Limiter: bare, Key: key, N: 1}}}})
				}
				s.ask(t, batch)
				for i, wantErr := range []bool{false, true, true, false} {
					q := batch[i]
					if (q.Err != nil) != wantErr || q.Result.Allowed == wantErr {
						t.Errorf("%s %v, %s: question %d: allowed %v, error %v", name, p, poison, i, q.Result.Allowed, q.Err)
					} else if x := q.Result.Reading(0); !wantErr && p.Limit() > 1 && x.Remaining != limit-1 {
						t.Errorf("%s %v, %s: question %d: %d left of %d", name, p, poison, i, x.Remaining, limit)
					}
				}
				for range 2 * maxFailures {
					if _, err := l.Allow(t.Context(), "poisoned"); !errors.Is(err, core.ErrUnavailable) {
						t.Errorf("%s %v, %s: %v", name, p, poison, err)
					}
				}
				if s.State().Away {
					t.Fatalf("%s %v, %s: %+v", name, p, poison, s.State())
				}
				server.Flush()
			}
		}
	}
}

// A long log is neither read nor written as a whole.
func TestLogIsCheapHoweverLong(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{RefusalTTL: -1}, server.Addr())
	for _, limit := range []int64{10, 60, 100, 999, 1000, 10_000} {
		l := newLimiter(t, s, "log", core.SlidingLog(core.Rate{Events: limit, Per: time.Hour}))
		key := strconv.FormatInt(limit, 10)
		for left := limit; left > 0; {
			n := min(left, max(limit/50, 1))
			if d := allow(t, l, key, n); !d.Allowed {
				t.Fatal(describe(&d))
			}
			left -= n
		}
		name := s.cell(t, l, key)
		used, err := server.Do("MEMORY", "USAGE", name, "SAMPLES", "0")
		if err != nil {
			t.Fatal(err)
		}
		bytes := used.(int64) - int64(len(name)) - 80 // about what any key takes
		most := limit * 12
		if limit < 1000 {
			most = limit*16 + 32
		}
		t.Logf("limit %d: %d bytes, %.1f a unit", limit, bytes, float64(bytes)/float64(limit))
		if bytes > most {
			t.Errorf("limit %d: %d bytes", limit, bytes)
		}
		if limit < 100 {
			continue
		}
		d := allow(t, with(t, l, core.SlidingLog(core.Rate{Events: limit + 1, Per: time.Hour})), key, 1) // it grows now
		if err := d.Refund(t.Context()); err != nil || !d.Allowed {
			t.Fatal(err)
		}
		server.ResetStats()
		const times = 50
		for range times {
			d := allow(t, with(t, l, core.SlidingLog(core.Rate{Events: limit + 1, Per: time.Hour})), key, 1)
			if err := d.Refund(t.Context()); err != nil || !d.Allowed {
				t.Fatal(err)
			}
		}
		if n := server.Calls("get", "set", "mget"); n != 0 {
			t.Errorf("limit %d: the log was read or written %d times as a whole", limit, n)
		}
		if n := server.Calls("getrange", "setrange"); n > times*16 {
			t.Errorf("limit %d: %d parts were read or written for %d charges and refunds", limit, n, times)
		}
	}
}

// Clients do not tell the time: the same question is the same bytes whenever it is
// asked.
func TestClocksOfClientsDoNotMatter(t *testing.T) {
	server := redistest.Start(t)
	for name, p := range everyAlgorithm(100) {
		s := open(t, Config{RefusalTTL: -1}, server.Addr())
		var words record
		s.Client().AddHook(&words)
		l := newLimiter(t, s, name, p)
		allow(t, l, "k", 1) // the server learns the script
		allow(t, l, "k", 1)
		first := fmt.Sprintf("%q", words.last)
		allow(t, l, "k", 1)
		if second := fmt.Sprintf("%q", words.last); second != first {
			t.Errorf("%s: the same question was sent as\n%s\nand\n%s", name, first, second)
		}
		if instant := words.last[4]; instant != "" {
			t.Errorf("%s: the script was told the time: %v", name, instant)
		}
	}
}

// record keeps the words of the last command.
type record struct {
	sentCommands

	last []any
}

func (r *record) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.last = append([]any(nil), cmd.Args()...)
		return next(ctx, cmd)
	}
}

func TestObserverIsTold(t *testing.T) {
	server := redistest.Start(t)
	var decided []string
	var called []int
	s := open(t, Config{RefusalTTL: time.Hour, Observer: &core.Observer{
		Decided: func(_ context.Context, e core.DecisionEvent) {
			if e.Err != nil {
				t.Error(e.Err)
			}
			decided = append(decided, fmt.Sprint(e.Limiter, "/", e.Policy, " ", e.Allowed, " ", e.Source))
		},
		Called: func(e core.CallEvent) {
			if e.Took <= 0 || e.Err != nil {
				t.Errorf("took %v, %v", e.Took, e.Err)
			}
			called = append(called, e.Questions)
		},
	}}, server.Addr())
	a := newLimiter(t, s, "a", core.FixedWindow(core.PerDay(1)))
	b := newLimiter(t, s, "b", core.FixedWindow(per(3, 400*day)).Named("wide"), core.FixedWindow(per(2, 400*day)).Named("narrow"))
	allow(t, a, "k", 1)
	allow(t, a, "k", 1)
	allow(t, a, "k", 1)
	allow(t, b, "k", 2)
	allow(t, b, "k", 1)
	allow(t, b, "k", 2)
	a.Peek(t.Context(), "k")
	for range 2 {
		core.AllowAll(t.Context(), core.Charge{Limiter: a, Key: "j", N: 1}, core.Charge{Limiter: b, Key: "j", N: 1})
	}
	want := "[a/a true store a/a false store a/a false cache" +
		" b/narrow true store b/narrow false store b/wide false store" +
		" a/a true store b/narrow true store a/a false store b/ false store]"
	if got := fmt.Sprint(decided); got != want {
		t.Errorf("decided %s, want %s", got, want)
	}
	if got := fmt.Sprint(called); got != "[1 1 1 1 1 1 1]" {
		t.Errorf("called %s", got)
	}
}

// What is decided without Redis is reported too, and that nothing was decided.
func TestDecidedIsCalledWithoutRedis(t *testing.T) {
	for failure, want := range map[Failure]string{
		FailLocal:  "[a/a true local <nil> a/a false local <nil> a/a false local <nil> b/ false local <nil> a/ false none gave up]",
		FailOpen:   "[a/a true open <nil> a/a true open <nil> a/a true open <nil> b/b true open <nil> a/ false none gave up]",
		FailClosed: "[a/ false none unavailable a/ false none unavailable a/ false none unavailable b/ false none unavailable a/ false none gave up]",
	} {
		var got []string
		s := away(t, Config{Failure: failure, Observer: &core.Observer{Decided: func(_ context.Context, e core.DecisionEvent) {
			err := e.Err
			switch {
			case errors.Is(err, core.ErrUnavailable):
				err = errors.New("unavailable")
			case errors.Is(err, context.Canceled):
				err = errors.New("gave up")
			}
			got = append(got, fmt.Sprint(e.Limiter, "/", e.Policy, " ", e.Allowed, " ", e.Source, " ", err))
		}}})
		a := newLimiter(t, s, "a", core.FixedWindow(per(1, 400*day)))
		b := newLimiter(t, s, "b", core.FixedWindow(per(1, 400*day)))
		for range 2 {
			_, _ = a.Allow(t.Context(), "k")
		}
		_, _ = a.Peek(t.Context(), "k")
		_, _ = core.AllowAll(t.Context(), core.Charge{Limiter: a, Key: "k", N: 1}, core.Charge{Limiter: b, Key: "k", N: 1})
		ended, end := context.WithCancel(t.Context())
		end()
		_, _ = a.Allow(ended, "k")
		if fmt.Sprint(got) != want {
			t.Errorf("Failure %d: %s, want %s", failure, got, want)
		}
	}
}

// Calls that fail are reported, too.
func TestEachKindOfCallIsReported(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	var mu sync.Mutex
	var told []core.CallEvent
	c := Config{Failure: FailClosed, Observer: &core.Observer{Called: func(e core.CallEvent) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, e)
	}}}
	take := func() []core.CallEvent {
		mu.Lock()
		defer mu.Unlock()
		all := told
		told = nil
		return all
	}
	l := newLimiter(t, open(t, c, proxy.Addr()), "a", core.FixedWindow(core.PerDay(1)))
	proxy.Cut()
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, core.ErrUnavailable) {
		t.Error(err)
	}
	if all := take(); len(all) != 1 || all[0].Questions != 1 || all[0].Took <= 0 || all[0].Err == nil {
		t.Errorf("a decision failed after %v", all)
	}
}
