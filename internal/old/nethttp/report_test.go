package nethttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

// Each case begins with 10 units of 100, and ends with what it has used, or with a panic.
func TestReport(t *testing.T) {
	for _, test := range []struct {
		name    string
		report  func(*http.Request, nethttp.Outcome) int64
		handler http.HandlerFunc
		used    int64 // in the end
		panics  any
	}{
		{"bytes", nethttp.BytesWritten, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "12345") }, 5, nil},
		{"more bytes than the limit", nethttp.BytesWritten, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat("x", 500))
		}, 500, nil},
		{"no bytes", nethttp.BytesWritten, func(http.ResponseWriter, *http.Request) {}, 0, nil},
		{"bytes of a failure", nethttp.BytesWritten, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			io.WriteString(w, "123")
		}, 3, nil},
		{"bytes before a panic", nethttp.BytesWritten, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "1234")
			panic("oh")
		}, 4, "oh"},
		{"stated", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 3)
			if !nethttp.SetCost(r.Context(), "api", 250) {
				t.Error("SetCost: false")
			}
		}, 250, nil},
		{"not stated", nethttp.StatedCost, func(http.ResponseWriter, *http.Request) {}, 0, nil},
		{"stated before a panic", nethttp.StatedCost, func(_ http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 7)
			panic("oh")
		}, 7, "oh"},
		{"by status", only(401), func(w http.ResponseWriter, r *http.Request) {
			nethttp.SetCost(r.Context(), "api", 1)
			w.WriteHeader(401)
		}, 1, nil},
		{"negative", func(*http.Request, nethttp.Outcome) int64 { return -1 }, func(http.ResponseWriter, *http.Request) {}, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			limiter := memory(t, "api", core.FixedWindow(core.PerDay(100)))
			var uncovered int64
			var failed error
			c := rules(nethttp.Rule{Limiter: limiter, Key: header, Report: test.report})
			c.OnSettled = func(_ *http.Request, n int64, err error) { uncovered, failed = n, err }
			func() {
				defer func() {
					if p := recover(); p != test.panics {
						t.Errorf("panic %v, want %v", p, test.panics)
					}
				}()
				w := serve(newGuard(t, c).Handler(test.handler), request("GET", "/", "X-Client", "anna"))
				wantHeader(t, w.Header(), map[string]string{"RateLimit": `"api";r=100`})
			}()
			if got := 100 - remaining(t, limiter, "anna"); got != min(test.used, 100) {
				t.Errorf("it used %d, want %d", got, test.used)
			}
			if want := max(test.used-100, 0); uncovered != want {
				t.Errorf("%d uncovered, want %d", uncovered, want)
			}
			if negative := test.name == "negative"; negative != (failed != nil) ||
				negative && failed.Error() != `headgate: guard: Rules[0] (limiter "api"): Report returned -1; it must be 0 or more: nothing is counted` {
				t.Error(failed)
			}
		})
	}
}

// A key that has used more than its limit is refused until a unit is left, and not once by mistake.
func TestReportRefusesAfterwards(t *testing.T) {
	limiter := memory(t, "bytes", core.TokenBucket(core.PerHour(10), 10).Debt(1000))
	h := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header, Report: nethttp.BytesWritten})).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("x", 50))
	}))
	first, second := serve(h, request("GET", "/", "X-Client", "anna")), serve(h, request("GET", "/", "X-Client", "anna"))
	if first.Code != 200 || second.Code != 429 || !strings.Contains(second.Body.String(), `"violated-policies":["bytes"]`) {
		t.Errorf("%d, then %d: %s", first.Code, second.Code, second.Body)
	}
	wantHeader(t, second.Header(), map[string]string{"RateLimit": `"bytes";r=0;t=14760`, "Retry-After": "14760"}) // 41 units
}

// Charged rules beside: the answer of all is shown, a refusal charges nothing, and what is charged
// is settled with what is reported.
func TestReportBesideCharges(t *testing.T) {
	s := newFake()
	requests := newLimiter(t, s, "requests", core.FixedWindow(core.PerDay(3)))
	tokens := newLimiter(t, s, "tokens", core.FixedWindow(core.PerDay(100)))
	bytes := newLimiter(t, s, "bytes", core.FixedWindow(core.PerDay(10)))
	var uncovered []int64
	c := rules(
		nethttp.Rule{Limiter: requests, Key: header},
		nethttp.Rule{Limiter: bytes, Key: header, Report: nethttp.BytesWritten},
		nethttp.Rule{Limiter: tokens, Key: header, Cost: func(*http.Request) int64 { return 60 }, Settle: nethttp.StatedCost},
	)
	c.OnSettled = func(_ *http.Request, n int64, err error) {
		if err != nil {
			t.Error(err)
		}
		uncovered = append(uncovered, n)
	}
	h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nethttp.SetCost(r.Context(), "tokens", 20)
		io.WriteString(w, "12345678")
	}))
	var got []string
	for range 4 {
		w := serve(h, request("GET", "/", "X-Client", "anna"))
		got = append(got, fmt.Sprint(w.Code, strings.ReplaceAll(w.Header().Get("RateLimit"), ";t=86400", "")))
	}
	left := fmt.Sprint(remaining(t, requests, "anna"), remaining(t, bytes, "anna"), remaining(t, tokens, "anna"), uncovered)
	if left != "1 0 60 [0 6]" {
		t.Errorf("left and uncovered: %s", left)
	}
	for i, want := range []string{
		`200"requests";r=2`, `200"requests";r=1`, `429"bytes";r=0`, `429"bytes";r=0`,
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("response %d: %s, want %s", i, got[i], want)
		}
	}
	for i, want := range map[int]int{0: 3, 1: 3, 2: 1} {
		if n := strings.Count(got[i], ";r="); n != want {
			t.Errorf("response %d shows %d policies, want %d: %s", i, n, want, got[i])
		}
	}
	if s.asked != 2*3+2+3 || s.settles != 2 { // a check, a charge and a report; the last three are those of remaining
		t.Errorf("asked %d times, settled %d times", s.asked, s.settles)
	}
}

// If another rate refuses, or slots do, nothing is reported.
func TestReportOfRefused(t *testing.T) {
	s := memstore.New(memstore.Config{})
	bytes, none := newLimiter(t, s, "bytes", core.FixedWindow(core.PerDay(10))), newLimiter(t, s, "none", core.Blocked())
	reports := 0
	rule := nethttp.Rule{Limiter: bytes, Key: header, Report: func(*http.Request, nethttp.Outcome) int64 {
		reports++
		return 1
	}}
	for _, other := range []nethttp.Rule{
		{Limiter: none, Key: header},
		{Slots: newSlots(t, s, "no slots", 0), Key: header},
	} {
		for _, observed := range []bool{false, true} {
			c := rules(rule, other)
			c.ObserveOnly = observed
			c.OnSettled = func(*http.Request, int64, error) { t.Error("settled") }
			w := serve(newGuard(t, c).Handler(status(204)), request("GET", "/", "X-Client", "anna"))
			if want := map[bool]int{false: 429, true: 204}[observed]; w.Code != want || reports != 0 || remaining(t, bytes, "anna") != 10 {
				t.Errorf("%d, want %d; reported %d times", w.Code, want, reports)
			}
		}
	}
}

// On trial everything is admitted, and what would have been is reported.
func TestReportOnTrial(t *testing.T) {
	bytes := memory(t, "bytes", core.FixedWindow(core.PerDay(10)))
	var seen []bool
	c := rules(nethttp.Rule{Limiter: bytes, Key: header, Report: nethttp.BytesWritten})
	c.ObserveOnly = true
	c.Observe = func(_ *http.Request, v nethttp.Verdict) { seen = append(seen, v.Status() == 0) }
	h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "1234567") }))
	for range 3 {
		if w := serve(h, request("GET", "/", "X-Client", "anna")); w.Code != 200 {
			t.Error(w.Code)
		}
	}
	if got := fmt.Sprint(seen); got != "[true true false]" {
		t.Errorf("admitted %s", got)
	}
}

// The plan that was chosen when the request came is the one that counts, of code and of a document.
func TestReportOfPlans(t *testing.T) {
	free := memory(t, "api", core.SlidingLog(core.PerHour(1)))
	paid := core.Must(free.With(core.SlidingLog(core.PerHour(100))))
	chosen := 0
	page := newPage(`{"limits": {"api": {"default": "free", "plans": {"free": "sliding-log 1/hour", "gold": "sliding-log 100/hour"}}}}`)
	book := openBook(t, memstore.New(memstore.Config{}), page)
	stated := func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }
	for name, rule := range map[string]nethttp.Rule{
		"code": {Limiter: free, Key: header, Report: stated, Plan: func(r *http.Request, _ string) *core.Limiter {
			chosen++
			return map[string]*core.Limiter{"gold": paid}[planOf(r)]
		}},
		"document": {Limit: limitOf(t, book, "api"), Key: header, Report: stated, PlanName: planOf},
	} {
		h := newGuard(t, rules(rule)).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			r.Header.Del("X-Plan") // it is not asked again
			if !nethttp.SetCost(r.Context(), "api", 40) {
				t.Error("SetCost: false")
			}
		}))
		for i, want := range []string{`200 "api";r=100`, `200 "api";r=60`, `200 "api";r=20`, `429 "api";r=0`} {
			w := serve(h, request("GET", "/", "X-Client", "anna", "X-Plan", "gold"))
			if got := fmt.Sprint(w.Code, " ", w.Header().Get("RateLimit")); !strings.HasPrefix(got, want) {
				t.Errorf("%s %d: %s, want %s", name, i, got, want)
			}
		}
	}
	if chosen != 4 {
		t.Errorf("a plan was chosen %d times", chosen)
	}
}

// The client has gone, and what it used counts all the same; a store that fails is told once.
func TestReportAfterTheClientHasGone(t *testing.T) {
	s := &reports{FullStore: memstore.New(memstore.Config{})}
	limiter := newLimiter(t, s, "api", core.FixedWindow(core.PerDay(10)))
	var failed []error
	c := rules(nethttp.Rule{Limiter: limiter, Key: header, Report: nethttp.BytesWritten})
	c.OnSettled = func(_ *http.Request, _ int64, err error) { failed = append(failed, err) }
	h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "1234567")
		if cancel, ok := r.Context().Value(cancelKey{}).(context.CancelFunc); ok {
			cancel()
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	serve(h, request("GET", "/", "X-Client", "anna").WithContext(context.WithValue(ctx, cancelKey{}, cancel)))
	if remaining(t, limiter, "anna") != 3 || s.ended || !s.timed || len(failed) != 1 || failed[0] != nil {
		t.Errorf("ended %v, timed %v, %v", s.ended, s.timed, failed)
	}
	s.err = errDown
	serve(h, request("GET", "/", "X-Client", "anna"))
	if len(failed) != 2 || !errors.Is(failed[1], errDown) || s.asked != 2 {
		t.Errorf("%v, reported %d times", failed, s.asked)
	}
}

type cancelKey struct{}

// A reports store notes what is reported, and what its contexts were.
type reports struct {
	core.FullStore

	err          error
	asked        int
	ended, timed bool
}

func (s *reports) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode != store.Allow {
		return s.FullStore.Ask(ctx, q)
	}
	s.asked++
	s.ended = ctx.Err() != nil
	_, s.timed = ctx.Deadline()
	if s.err != nil {
		return s.err
	}
	return s.FullStore.Ask(ctx, q)
}

// What runs at once was checked before any of it counts: all of it may exceed the limit, and then
// nothing more is admitted.
func TestReportOfConcurrentRequests(t *testing.T) {
	limiter := memory(t, "api", core.FixedWindow(core.PerDay(10)))
	const atOnce = 20
	var inside, all sync.WaitGroup
	inside.Add(atOnce)
	h := newGuard(t, rules(nethttp.Rule{Limiter: limiter, Key: header, Report: nethttp.BytesWritten})).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		inside.Done()
		inside.Wait()
		io.WriteString(w, "12345")
	}))
	var admitted atomic.Int64
	for range atOnce {
		all.Go(func() {
			if serve(h, request("GET", "/", "X-Client", "anna")).Code == 200 {
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	if w := serve(h, request("GET", "/", "X-Client", "anna")); admitted.Load() != atOnce || w.Code != 429 {
		t.Errorf("%d admitted at once, then %d", admitted.Load(), w.Code)
	}
}

// A client that is refused costs no call of Redis.
func TestReportRefusalsCostNoCall(t *testing.T) {
	var calls, refused atomic.Int64
	s, err := redisstore.OpenURL("redis://"+redistest.Start(t).Addr()+"/0", redisstore.Config{
		RefusalTTL: time.Hour, Timeout: time.Minute, Failure: redisstore.FailClosed,
		Observer: &core.Observer{
			Called: func(core.CallEvent) { calls.Add(1) },
			Refused: func(_ context.Context, e core.DecisionEvent, key string) {
				if refused.Add(1); e.Limiter != "bytes" || e.Policy != "bytes" || e.Units != 0 || key != "anna" {
					t.Errorf("%+v of %q", e, key)
				}
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client().Close() })
	requests, bytes := newLimiter(t, s, "requests", core.FixedWindow(core.PerDay(1000))), newLimiter(t, s, "bytes", core.FixedWindow(core.PerDay(10)))
	h := newGuard(t, rules(
		nethttp.Rule{Limiter: requests, Key: header},
		nethttp.Rule{Limiter: bytes, Key: header, Report: nethttp.BytesWritten},
	)).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat("x", 50)) }))
	want := 200
	for range 100 {
		if w := serve(h, request("GET", "/", "X-Client", "anna")); w.Code != want {
			t.Fatalf("status %d, want %d", w.Code, want)
		}
		want = 429
	}
	if n := calls.Load(); n != 3+1 || remaining(t, requests, "anna") != 999 { // a check, a charge, a report; and a check
		t.Errorf("%d calls", n)
	}
	if n := refused.Load(); n != 99 {
		t.Errorf("an observer saw %d refusals", n)
	}
}

func TestReportIsChecked(t *testing.T) {
	limiter, slots := memory(t, "api", core.SlidingLog(core.PerHour(1))), newSlots(t, memstore.New(memstore.Config{}), "slots", 1)
	cost := func(*http.Request) int64 { return 1 }
	for _, test := range []struct {
		rule        nethttp.Rule
		field, text string
	}{
		{nethttp.Rule{Limiter: limiter, Cost: cost}, "Rules[0].Report", "use Cost and Settle if the most that a request can use is known before, and Report alone if"},
		{nethttp.Rule{Limiter: limiter, Settle: nethttp.StatedCost}, "Rules[0].Report", "there is Cost or Settle too"},
		{nethttp.Rule{Slots: slots}, "Rules[0].Report", "it is for rates"},
	} {
		test.rule.Key, test.rule.Report = header, nethttp.BytesWritten
		_, err := nethttp.New(rules(test.rule))
		var fault *nethttp.ConfigError
		if !errors.As(err, &fault) || fault.Field != test.field || !strings.Contains(fault.Error(), test.text) {
			t.Errorf("%v, not %s: %s", err, test.field, test.text)
		}
	}
	_, err := nethttp.NewForSockets(rules(nethttp.Rule{Limiter: limiter, Key: header, Report: nethttp.BytesWritten}))
	if err == nil || !strings.Contains(err.Error(), "Rules[0].Report: it is for requests: Inbound limits") {
		t.Errorf("of sockets: %v", err)
	}
}

// Slots bound how many answers exceed a limit, also if others wait for them.
func TestSlotsBoundReports(t *testing.T) {
	const slots, requests = 2, 12
	for _, service := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(memstore.Config{})
			bytes := newLimiter(t, s, "bytes", core.SlidingLog(core.PerHour(1000)))
			begun := newLimiter(t, s, "begun", core.SlidingLog(core.PerHour(100)))
			running := newSlots(t, s, "running", slots)
			c := rules(
				nethttp.Rule{Limiter: begun, Key: header},
				nethttp.Rule{Limiter: bytes, Key: header, Report: nethttp.BytesWritten, Service: service},
				nethttp.Rule{Slots: running, Key: header, Queue: requests},
			)
			c.Wait = time.Minute
			h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(time.Second)
				w.Write(make([]byte, 5000))
			}))
			var mu sync.Mutex
			codes := map[int]int{}
			var all sync.WaitGroup
			for range requests {
				all.Go(func() {
					w := serve(h, request("GET", "/", "X-Client", "anna"))
					mu.Lock()
					defer mu.Unlock()
					codes[w.Code]++
					switch {
					case w.Code == 200:
					case service:
						wantHeader(t, w.Header(), map[string]string{"RateLimit": "", "Retry-After": "3600"})
					default:
						wantHeader(t, w.Header(), map[string]string{"RateLimit": `"bytes";r=0;t=3600`, "RateLimit-Policy": `"bytes";q=1000;w=3600`, "Retry-After": "3600"})
					}
				})
			}
			all.Wait()
			refused := map[bool]int{false: 429, true: 503}[service]
			if codes[200] != slots || codes[refused] != requests-slots {
				t.Errorf("%v", codes)
			}
			if n, err := running.Count(t.Context(), "anna"); n != 0 || err != nil || remaining(t, begun, "anna") != 100-slots {
				t.Errorf("%d slots are held, %v, and %d are left", n, err, remaining(t, begun, "anna"))
			}
		})
	}
}

// After a wait, the store may not answer.
func TestReportAfterAWaitWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake()
		var seen []nethttp.Verdict
		running := newSlots(t, memstore.New(memstore.Config{}), "running", 1)
		c := rules(
			nethttp.Rule{Limiter: newLimiter(t, s, "bytes", core.SlidingLog(core.PerHour(1000))), Key: header, Report: nethttp.BytesWritten},
			nethttp.Rule{Slots: running, Key: header, Queue: 1},
		)
		c.Wait = time.Minute
		c.Observe = func(_ *http.Request, v nethttp.Verdict) { seen = append(seen, v) }
		end := make(chan struct{})
		h := newGuard(t, c).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
		go serve(h, request("GET", "/", "X-Client", "anna"))
		synctest.Wait()
		var w *httptest.ResponseRecorder
		var second sync.WaitGroup
		second.Go(func() { w = serve(h, request("GET", "/", "X-Client", "anna")) })
		time.Sleep(time.Second)
		synctest.Wait()
		s.err = errDown
		close(end)
		second.Wait()
		if w.Code != 503 || len(seen) != 2 || !errors.Is(seen[1].Err, errDown) || seen[1].Decision.Len() != 0 || seen[1].Waited != time.Second {
			t.Errorf("%d, %v", w.Code, seen)
		}
		if n, err := running.Count(t.Context(), "anna"); n != 0 || err != nil {
			t.Errorf("%d are held, %v", n, err)
		}
	})
}

// The slot is not released before the report counts.
func TestReportCountsBeforeTheSlotIsReleased(t *testing.T) {
	s := memstore.New(memstore.Config{})
	bytes, running := newLimiter(t, s, "bytes", core.SlidingLog(core.PerHour(1000))), newSlots(t, s, "running", 1)
	served := 0
	var h http.Handler
	h = newGuard(t, rules(
		nethttp.Rule{Limiter: bytes, Key: header, Report: func(_ *http.Request, o nethttp.Outcome) int64 {
			if served < 5 {
				serve(h, request("GET", "/", "X-Client", "anna"))
			}
			return o.Written
		}},
		nethttp.Rule{Slots: running, Key: header},
	)).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served++
		w.Write(make([]byte, 5000))
	}))
	if w := serve(h, request("GET", "/", "X-Client", "anna")); w.Code != 200 || served != 1 {
		t.Errorf("%d, %d answers with one slot", w.Code, served)
	}
}

// A settlement that takes too long keeps no report from counting.
func TestReportBesideASlowSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowSettlements{memstore.New(memstore.Config{})}
		var failed []error
		c := rules(
			nethttp.Rule{Limiter: newLimiter(t, s, "bytes", core.SlidingLog(core.PerDay(1000))), Key: header, Report: nethttp.BytesWritten},
			nethttp.Rule{Limiter: newLimiter(t, s, "logins", core.SlidingLog(core.PerDay(10))), Key: header, Settle: nethttp.FailuresOnly},
		)
		c.OnSettled = func(_ *http.Request, _ int64, err error) { failed = append(failed, err) }
		h := newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 600)) }))
		serve(h, request("GET", "/", "X-Client", "anna"))
		w := serve(h, request("GET", "/", "X-Client", "anna"))
		if got := w.Header().Get("RateLimit"); !strings.Contains(got, ";r=400;") || len(failed) == 0 || !errors.Is(failed[0], context.DeadlineExceeded) {
			t.Errorf("600 of 1000 were written: %s; %v", got, failed)
		}
	})
}

// A slowSettlements store does not answer settlements.
type slowSettlements struct{ core.FullStore }

func (s slowSettlements) Ask(ctx context.Context, q *store.Question) error {
	if q.Mode == store.Settle {
		<-ctx.Done()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.FullStore.Ask(ctx, q)
}

// On trial, nothing is reported or settled of a request without a key.
func TestNothingIsReportedWithoutAKey(t *testing.T) {
	s := memstore.New(memstore.Config{})
	bytes, logins := newLimiter(t, s, "bytes", core.SlidingLog(core.PerHour(1000))), newLimiter(t, s, "logins", core.SlidingLog(core.PerHour(10)))
	for _, rule := range []nethttp.Rule{
		{Limiter: bytes, Key: keyfuncs.Everyone(), Report: nethttp.BytesWritten},
		{Limiter: bytes, Key: keyfuncs.Everyone(), Settle: nethttp.FailuresOnly},
	} {
		c := rules(rule, nethttp.Rule{Limiter: logins, Key: header})
		c.ObserveOnly = true
		c.OnSettled = func(_ *http.Request, _ int64, err error) { t.Errorf("settled: %v", err) }
		w := serve(newGuard(t, c).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "1234567") })), request("GET", "/"))
		if key := core.Must(keyfuncs.Everyone()(nil)); w.Code != 200 || remaining(t, bytes, key) != 1000 {
			t.Errorf("%d, and %d of 1000 are left", w.Code, remaining(t, bytes, key))
		}
	}
}
