package nethttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

// A told store notes what it is asked, and what its contexts were.
type told struct {
	core.FullStore

	asked, claimed, settled, ended atomic.Int64
	lost                           bool // what is given back never arrives
}

func (s *told) Ask(ctx context.Context, q *store.Question) error {
	switch q.Mode {
	case store.Allow:
		s.asked.Add(1)
	case store.Settle:
		if s.settled.Add(1); ctx.Err() != nil {
			s.ended.Add(1)
		}
		if s.lost {
			return core.ErrUnavailable
		}
	}
	return s.FullStore.Ask(ctx, q)
}

func (s *told) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	s.claimed.Add(1)
	return s.FullStore.AcquireSlots(ctx, claims)
}

// A mix is a guard with two rates and slots.
type mix struct {
	*told

	requests, all *core.Limiter
	slots         *core.Slots
	config        nethttp.Config
}

func newMix(t *testing.T, rate, slots int64) *mix {
	m := &mix{told: &told{FullStore: memstore.New(memstore.Config{})}}
	m.requests = newLimiter(t, m, "requests", core.SlidingLog(core.PerHour(rate)))
	m.all = newLimiter(t, m, "all", core.SlidingLog(core.PerHour(5000)))
	m.slots = newSlots(t, m, "running", slots)
	key := keyfuncs.Header("X-Client")
	m.config.Rules = []nethttp.Rule{
		{Slots: m.slots, Key: key},
		{Limiter: m.requests, Key: key},
		{Limiter: m.all, Key: key},
	}
	return m
}

// used returns what anna has used of both rates.
func (m *mix) used(t *testing.T) string {
	t.Helper()
	used := func(l *core.Limiter) int64 {
		d, err := l.Peek(t.Context(), "anna")
		if err != nil {
			t.Fatal(err)
		}
		return d.Limit - d.Remaining
	}
	return fmt.Sprint(used(m.requests), " ", used(m.all))
}

// hold takes a slot of anna.
func (m *mix) hold(t *testing.T) *core.Slot {
	t.Helper()
	slot, err := m.slots.Acquire(t.Context(), "anna")
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

func anna(ctx context.Context) *http.Request {
	return request("GET", "/", "X-Client", "anna").WithContext(ctx)
}

// Requests that slots refuse leave the rates as they were.
func TestRefusedBySlotsIsNotCharged(t *testing.T) {
	m := newMix(t, 10, 1)
	slot := m.hold(t)
	var settled int
	m.config.OnSettled = func(_ *http.Request, uncovered int64, err error) {
		if settled++; uncovered != 0 || err != nil {
			t.Error(uncovered, err)
		}
	}
	var last nethttp.Verdict
	m.config.Observe = func(_ *http.Request, v nethttp.Verdict) { last = v }
	h := newGuard(t, m.config).Handler(status(200))
	for range 1000 {
		w := serve(h, anna(t.Context()))
		if w.Code != 429 || !strings.Contains(w.Body.String(), `"violated-policies":["running"]`) {
			t.Fatal(w.Code, w.Body)
		}
	}
	if got := m.used(t); got != "0 0" || settled != 1000 || m.settled.Load() != 1000 {
		t.Errorf("used %s, settled %d times, %d calls", got, settled, m.settled.Load())
	}
	if o, full := last.Full(); !full || o.Slots != "running" || last.Limiter() != "running" || last.Decision.Len() != 2 {
		t.Errorf("%v %v %q", o, full, last.Limiter())
	}
	if err := last.Decision.Refund(t.Context()); !errors.Is(err, core.ErrSettled) {
		t.Errorf("it can be given back again: %v", err)
	}
	slot.Release()
	if w := serve(h, anna(t.Context())); w.Code != 200 || w.Header().Get("RateLimit") != `"requests";r=9;t=3600, "all";r=4999;t=3600, "running";r=0` {
		t.Error(w.Code, w.Header())
	}
	if got := m.used(t); got != "1 1" {
		t.Errorf("used %s", got)
	}
}

// Units that do not get back, as after the end of the process, count on. Nothing is tried twice.
func TestLostRefundOverCounts(t *testing.T) {
	m := newMix(t, 10, 1)
	defer m.hold(t).Release()
	m.lost = true
	var failed []error
	m.config.OnSettled = func(_ *http.Request, _ int64, err error) { failed = append(failed, err) }
	if v := newGuard(t, m.config).Check(anna(t.Context())); v.Status() != 429 || v.Err != nil {
		t.Errorf("%d, %v", v.Status(), v.Err)
	}
	if got := m.used(t); got != "1 1" || m.settled.Load() != 1 || len(failed) != 1 || !errors.Is(failed[0], core.ErrUnavailable) {
		t.Errorf("used %s, %d calls, %v", got, m.settled.Load(), failed)
	}
}

// A client over its rate takes no slot and stands in no line.
func TestOverItsRateTakesNoSlot(t *testing.T) {
	m := newMix(t, 2, 1)
	m.config.Rules[0].Queue, m.config.Wait = 5, time.Hour
	guard := newGuard(t, m.config)
	for i := range 10 {
		v := guard.Check(anna(t.Context()))
		if want := map[bool]int{true: 0, false: 429}[i < 2]; v.Status() != want || v.Ends() != (want == 0) || v.Waited < 0 {
			t.Fatalf("request %d: %d", i, v.Status())
		}
		v.End(nethttp.Outcome{})
		v.End(nethttp.Outcome{})
	}
	if m.claimed.Load() != 2 || m.settled.Load() != 0 || m.used(t) != "2 2" {
		t.Errorf("%d claims, %d settled, used %s", m.claimed.Load(), m.settled.Load(), m.used(t))
	}
}

// Nothing is charged if a key of a later rule is missing.
func TestKeysComeFirst(t *testing.T) {
	m := newMix(t, 2, 1)
	m.config.Rules[2].Key = func(*http.Request) (string, error) { return "", keyfuncs.ErrAbsent }
	if v := newGuard(t, m.config).Check(anna(t.Context())); v.Status() != 400 || m.asked.Load()+m.claimed.Load() != 0 {
		t.Errorf("%d, %d questions, %d claims", v.Status(), m.asked.Load(), m.claimed.Load())
	}
}

// When the wait ends, the client hangs up or a function panics, the units go back, whatever has
// become of the request's context.
func TestEndsOfTheWait(t *testing.T) {
	for _, test := range []struct {
		name   string
		after  time.Duration // the client hangs up
		panics bool
		status int
		waited time.Duration
		used   string
	}{
		{"the wait is over", time.Hour, false, 429, time.Minute, "0 0"},
		{"the client hangs up", time.Second, false, 503, time.Second, "0 0"},
		{"a plan panics", time.Hour, true, 0, 0, "0 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMix(t, 10, 1)
				defer m.hold(t).Release()
				m.config.Rules[0].Queue, m.config.Wait = 5, time.Minute
				calls := 0
				m.config.Rules[0].PlanSlots = func(*http.Request, string) *core.Slots {
					if calls++; calls > 1 && test.panics {
						panic("on purpose")
					}
					return nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.after)
				defer cancel()
				guard := newGuard(t, m.config)
				func() {
					defer func() {
						if p := recover(); (p != nil) != test.panics {
							t.Errorf("panic %v", p)
						}
					}()
					if v := guard.Check(anna(ctx)); v.Status() != test.status || v.Waited != test.waited {
						t.Errorf("%d after %v", v.Status(), v.Waited)
					}
				}()
				if got := m.used(t); got != test.used || m.settled.Load() != 1 || m.ended.Load() != 0 {
					t.Errorf("used %s, settled %d times, %d of them without time", got, m.settled.Load(), m.ended.Load())
				}
			})
		})
	}
}

// A rule in whose line nobody may wait refuses at once, also beside one that has a line.
func TestQueueIsOfTheRule(t *testing.T) {
	for _, test := range []struct {
		user, all int // the queues
		full      string
		waits     int // of 10 requests
	}{
		{5, 0, "all", 0}, {0, 5, "all", 5}, {3, 3, "all", 3}, {2, 5, "all", 5},
		{5, 0, "user", 5}, {0, 5, "user", 0}, {5, 2, "user", 5},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New(memstore.Config{})
				user, all := newSlots(t, s, "user", 100), newSlots(t, s, "all", 1)
				if test.full == "user" {
					user, all = newSlots(t, s, "user", 1), newSlots(t, s, "all", 100)
				}
				guard := newGuard(t, nethttp.Config{
					Rules: []nethttp.Rule{
						{Slots: user, Key: keyfuncs.Everyone(), Queue: test.user},
						{Slots: all, Key: keyfuncs.Everyone(), Queue: test.all},
					},
					Wait: time.Minute,
				})
				first := guard.Check(anna(t.Context()))
				var refused atomic.Int64
				for range 10 {
					go func() {
						start := time.Now()
						if v := guard.Check(anna(t.Context())); v.Status() == 429 && time.Since(start) == 0 {
							refused.Add(1)
						}
					}()
				}
				synctest.Wait()
				if got := 10 - refused.Load(); got != int64(test.waits) {
					t.Errorf("%d wait, want %d", got, test.waits)
				}
				time.Sleep(2 * time.Minute)
				first.End(nethttp.Outcome{})
			})
		})
	}
}

// A rate of the service is not shown, and refuses with 503.
func TestServiceRate(t *testing.T) {
	s := memstore.New(memstore.Config{})
	user, all := newLimiter(t, s, "user", core.SlidingLog(core.PerMinute(2))), newLimiter(t, s, "all", core.SlidingLog(core.PerMinute(3)))
	h := newGuard(t, rules(
		nethttp.Rule{Limiter: user, Key: header}, nethttp.Rule{Limiter: all, Key: keyfuncs.Everyone(), Service: true},
	)).Handler(status(200))
	for _, want := range []string{
		`anna 200 "user";q=2;w=60 "user";r=1;t=60  []`,
		`anna 200 "user";q=2;w=60 "user";r=0;t=60  []`,
		`anna 429 "user";q=2;w=60 "user";r=0;t=60 60 ["user"]`,
		`ben 200 "user";q=2;w=60 "user";r=1;t=60  []`,
		`ben 503 "user";q=2;w=60 "user";r=1;t=60 60 []`,
		`anna 429 "user";q=2;w=60 "user";r=0;t=60 60 ["user"]`,
	} {
		client, _, _ := strings.Cut(want, " ")
		w := serve(h, request("GET", "/", "X-Client", client))
		named := "[]"
		if _, after, ok := strings.Cut(w.Body.String(), `"violated-policies":`); ok {
			named = strings.TrimSuffix(after, "}")
		}
		got := fmt.Sprint(client, " ", w.Code, " ", w.Header().Get("RateLimit-Policy"), " ", w.Header().Get("RateLimit"), " ", w.Header().Get("Retry-After"), " ", named)
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// In shadow mode everything is decided as it would be, and everybody admitted.
func TestShadowOfSlots(t *testing.T) {
	m := newMix(t, 2, 1)
	var observed []int
	m.config.ObserveOnly = true
	m.config.Observe = func(_ *http.Request, v nethttp.Verdict) { observed = append(observed, v.Status()) }
	guard := newGuard(t, m.config)
	var first nethttp.Verdict
	for i := range 4 {
		v := guard.Check(anna(t.Context()))
		if v.Status() != 0 {
			t.Error(v.Status())
		}
		h := make(http.Header)
		if v.SetFields(h); len(h) != 0 {
			t.Error(h)
		}
		if i == 0 {
			first = v
		} else {
			v.End(nethttp.Outcome{})
		}
		if i == 1 { // it had no slot
			first.End(nethttp.Outcome{})
		}
	}
	if got := fmt.Sprint(observed, m.used(t)); got != "[0 429 0 429]2 2" {
		t.Error(got)
	}
}

// Fields of a rule that the guard cannot use are faults.
func TestFieldsOfTheOtherKind(t *testing.T) {
	s := memstore.New(memstore.Config{})
	limiter, slots := newLimiter(t, s, "api", core.Unlimited()), newSlots(t, s, "running", 1)
	rate, held := nethttp.Rule{Limiter: limiter, Key: header}, nethttp.Rule{Slots: slots, Key: header}
	with := func(r nethttp.Rule, change func(r *nethttp.Rule)) []nethttp.Rule {
		change(&r)
		return []nethttp.Rule{r}
	}
	for _, test := range []struct {
		rules []nethttp.Rule
		field string
	}{
		{with(rate, func(r *nethttp.Rule) { r.Slots = slots }), "Rules[0].Slots"},
		{with(rate, func(r *nethttp.Rule) { r.Queue = 1 }), "Rules[0].Queue"},
		{with(rate, func(r *nethttp.Rule) { r.PlanSlots = func(*http.Request, string) *core.Slots { return nil } }), "Rules[0].PlanSlots"},
		{with(rate, func(r *nethttp.Rule) { r.PlanName = func(*http.Request) string { return "" } }), "Rules[0].PlanName"},
		{with(rate, func(r *nethttp.Rule) { r.WhenFull = nethttp.EvictOldest }), "Rules[0].WhenFull"},
		{with(held, func(r *nethttp.Rule) { r.Plan = func(*http.Request, string) *core.Limiter { return nil } }), "Rules[0].Plan"},
		{with(held, func(r *nethttp.Rule) { r.Cost = func(*http.Request) int64 { return 1 } }), "Rules[0].Cost"},
		{with(held, func(r *nethttp.Rule) { r.Settle = nethttp.StatedCost }), "Rules[0].Settle"},
		{with(held, func(r *nethttp.Rule) { r.WhenFull = nethttp.EvictOldest }), "Rules[0].WhenFull"},
		{[]nethttp.Rule{rate, {Slots: newSlots(t, s, "api", 1), Key: header}}, "Rules[1].Slots"},
	} {
		_, err := nethttp.New(nethttp.Config{Rules: test.rules})
		var fault *nethttp.ConfigError
		if !errors.As(err, &fault) || fault.Field != test.field {
			t.Errorf("%v, not %s", err, test.field)
		}
	}
	if _, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{rate, held}}); err != nil {
		t.Error(err)
	}
}

// The slots are released before the charge is settled, once, also after a panic.
func TestEndReleasesAndSettles(t *testing.T) {
	m := newMix(t, 10, 1)
	m.config.Rules[1].Settle = func(_ *http.Request, o nethttp.Outcome) int64 {
		if n, err := m.slots.Count(t.Context(), "anna"); n != 0 || err != nil {
			t.Errorf("%d are held, %v", n, err)
		}
		if o.Status == 418 {
			panic("in Settle")
		}
		return int64(o.Status / 100)
	}
	h := newGuard(t, m.config).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("on purpose")
		}
		w.WriteHeader(map[string]int{"/": 200, "/teapot": 418}[r.URL.Path])
	}))
	for path, want := range map[string]string{"/": "2 1", "/panic": "5 1", "/teapot": "1 1"} {
		for _, l := range []*core.Limiter{m.requests, m.all} {
			if err := l.Reset(t.Context(), "anna"); err != nil {
				t.Fatal(err)
			}
		}
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(httptest.NewRecorder(), request("GET", path, "X-Client", "anna"))
		}()
		if got := m.used(t); got != want {
			t.Errorf("%s: used %s, want %s", path, got, want)
		}
		if n, err := m.slots.Count(t.Context(), "anna"); n != 0 || err != nil {
			t.Errorf("%s: %d are held, %v", path, n, err)
		}
	}
}
