package nethttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A mix is a guard with two rates and the slots of each client.
type mix struct {
	api, all *core.Limiter
	slots    *core.Slots
	config   nethttp.Config
}

func newMix(store core.Store, rate, slots int64) *mix {
	m := &mix{api: core.NewLimiter(store, "api", hour(rate)), all: core.NewLimiter(store, "all", hour(5000)), slots: core.NewSlots(store, "slots", slots)}
	m.config = nethttp.Config{
		Rates:       []nethttp.Rate{{Limiter: m.api, Key: client}, {Limiter: m.all, Key: keyfuncs.Everyone()}},
		Concurrency: []nethttp.Concurrency{{Slots: m.slots, Key: client}},
	}
	return m
}

// used returns what anna has used of the rates, and how many slots she holds.
func (m *mix) used(t *testing.T) string {
	t.Helper()
	d, err := m.api.Peek(t.Context(), "anna")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(d.Limit-d.Remaining, " ", 5000-left(t, m.all, "everyone"), " ", held(t, m.slots, "anna"))
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

// A request that slots refuse is given its units back, and its fields do not show what was given back. Who is over a
// rate takes no slot.
func TestRefusedBySlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		acquired := 0
		m := newMix(&core.MemoryStore{Observers: []*core.Observer{{Acquired: func(context.Context, core.SlotEvent) { acquired++ }}}}, 1, 1)
		slot := m.hold(t)
		h := guardOf(t, m.config).Handler(status(200))
		for range 100 {
			w := serve(h, request("GET", "/"))
			if w.Code != 429 || w.Body.String() != quota+`["slots"]}` {
				t.Fatal(w.Code, w.Body)
			}
			wantFields(t, w.Header(), map[string]string{"RateLimit": `"slots";r=0`, "RateLimit-Policy": `"slots";q=1;qu="concurrent-requests"`})
		}
		if got := m.used(t); got != "0 0 1" {
			t.Errorf("used %s", got)
		}
		slot.Release()
		w := serve(h, request("GET", "/"))
		wantFields(t, w.Header(), map[string]string{
			"RateLimit":        `"api";r=0;t=3600, "all";r=4999;t=3600, "slots";r=0`,
			"RateLimit-Policy": `"api";q=1;w=3600, "all";q=5000;w=3600, "slots";q=1;qu="concurrent-requests"`,
		})
		canonical(t, w.Header(), "RateLimit")
		canonical(t, w.Header(), "RateLimit-Policy")
		asked := acquired
		if w := serve(h, request("GET", "/")); w.Code != 429 || acquired != asked || w.Header().Get("RateLimit") != `"api";r=0;t=3600, "all";r=4999;t=3600` {
			t.Error(w.Code, w.Header(), acquired-asked)
		}
		if got := m.used(t); got != "1 1 0" {
			t.Errorf("used %s", got)
		}
		x := m.config
		x.Fields = nethttp.XRateLimitFields
		defer m.hold(t).Release()
		if err := m.api.Reset(t.Context(), "anna"); err != nil {
			t.Fatal(err)
		}
		wantFields(t, serve(guardOf(t, x).Handler(status(200)), request("GET", "/")).Header(), map[string]string{"X-RateLimit-Limit": "1", "X-RateLimit-Remaining": "0"})
	})
}

// Slots of the service, and slots that are closed, refuse with 503 and show nothing of what was given back.
func TestRefusedByTheServicesSlots(t *testing.T) {
	m := newMix(new(core.MemoryStore), 5, 0)
	m.config.Concurrency[0].Service = true
	h := guardOf(t, m.config).Handler(status(200))
	for i := range 2 {
		w := serve(h, request("GET", "/"))
		if w.Code != 503 || m.used(t) != "0 0 0" || w.Header().Get("Retry-After") == "" {
			t.Error(i, w.Code, w.Header(), m.used(t))
		}
		wantFields(t, w.Header(), map[string]string{"RateLimit": "", "RateLimit-Policy": ""})
		if err := m.slots.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever a handler, and the functions of the Config, do: the slots are free when it is over, before what was
// charged is settled, once.
func TestSlotsAreReleased(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(c *nethttp.Config)
		handler http.HandlerFunc
		used    string
	}{
		"an answer":          {func(*nethttp.Config) {}, func(http.ResponseWriter, *http.Request) {}, "1 1 0"},
		"a panic":            {func(*nethttp.Config) {}, func(http.ResponseWriter, *http.Request) { panic("on purpose") }, "1 1 0"},
		"a panic of Observe": {func(c *nethttp.Config) { c.Observe = func(*http.Request, *nethttp.Verdict) { panic("on purpose") } }, nil, "1 1 0"},
		"a panic of Fields":  {func(c *nethttp.Config) { c.Fields = func(http.Header, *nethttp.Verdict) { panic("on purpose") } }, nil, "1 1 0"},
		"a panic of Settle": {func(c *nethttp.Config) {
			c.Rates[0].Settle = func(*http.Request, nethttp.Outcome) int64 { panic("on purpose") }
		}, status(200).ServeHTTP, "1 1 0"},
		"a panic of a key": {func(c *nethttp.Config) {
			c.Concurrency[0].Key = func(*http.Request) (string, error) { panic("on purpose") }
		}, nil, "0 0 0"},
		"no key of the second": {func(c *nethttp.Config) { c.Concurrency[0].Key = failing(keyfuncs.ErrAbsent) }, nil, "0 0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMix(new(core.MemoryStore), 5, 1)
			m.config.Rates[0].Settle = func(_ *http.Request, o nethttp.Outcome) int64 {
				if n := held(t, m.slots, "anna"); n != 0 {
					t.Errorf("%d are held while the charge is settled", n)
				}
				return o.Cost
			}
			test.change(&m.config)
			h := guardOf(t, m.config).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := m.used(t); got != "1 1 1" || test.handler == nil {
					t.Errorf("used %s", got)
				}
				test.handler(w, r)
			}))
			func() {
				defer func() { _ = recover() }()
				serve(h, request("GET", "/"))
			}()
			if got := m.used(t); got != test.used {
				t.Errorf("used %s, want %s", got, test.used)
			}
		})
	}
}

// Of 100 requests with a limit of 10 and a queue of 5, 10 are handled, 5 wait and others are refused at once. Those that
// wait are handled in their order as slots are free, or refused when their time is over, or leave with their clients;
// then their units are given back.
func TestQueue(t *testing.T) {
	for name, test := range map[string]struct {
		lasts, hangsUp time.Duration
		admitted       int64
		status         int // of the last
	}{
		"handled":             {5 * time.Second, time.Hour, 15, 200},
		"the wait is over":    {time.Minute, time.Hour, 10, 429},
		"the client hangs up": {5 * time.Second, time.Second, 14, 503},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMix(new(core.MemoryStore), 100, 10)
				m.config.Concurrency[0].Queue = 5
				var handled atomic.Int64
				h := guardOf(t, m.config).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					handled.Add(1)
					time.Sleep(test.lasts) // of the bubble
				}))
				var all sync.WaitGroup
				ask := func(ctx context.Context, w *httptest.ResponseRecorder) {
					all.Go(func() { h.ServeHTTP(w, request("GET", "/").WithContext(ctx)) })
					synctest.Wait()
				}
				for range 14 {
					ask(t.Context(), httptest.NewRecorder())
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.hangsUp)
				defer cancel()
				last := httptest.NewRecorder()
				ask(ctx, last)
				for range 85 {
					if w := serve(h, request("GET", "/")); w.Code != 429 || handled.Load() != 10 {
						t.Fatal(w.Code, handled.Load())
					}
				}
				all.Wait()
				if used := fmt.Sprintf("%d %[1]d 0", test.admitted); handled.Load() != test.admitted || last.Code != test.status || m.used(t) != used {
					t.Errorf("%d handled, the last is answered %d; used %s, want %s", handled.Load(), last.Code, m.used(t), used)
				}
			})
		})
	}
}

// Slots of rules without a queue are taken first, at once or not at all, and held by who waits; so a user stands in the
// line of all with no more requests than the user has slots.
func TestQueueBesideOtherSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(core.MemoryStore)
		user, all := core.NewSlots(store, "user", 2), core.NewSlots(store, "all", 1)
		h := guardOf(t, nethttp.Config{Concurrency: []nethttp.Concurrency{
			{Slots: all, Key: keyfuncs.Everyone(), Queue: 9, MaxWait: time.Minute},
			{Slots: user, Key: client},
		}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Second) })) // of the bubble
		var statuses sync.Map
		var done sync.WaitGroup
		for i := range 6 {
			done.Go(func() {
				w := serve(h, request("GET", "/", "X-Client", []string{"anna", "ben"}[i/4]))
				statuses.Store(i, fmt.Sprint(w.Code, " ", w.Header().Get("RateLimit")))
			})
			synctest.Wait()
		}
		if got := fmt.Sprint(held(t, user, "anna"), held(t, user, "ben"), held(t, all, "everyone")); got != "2 2 1" {
			t.Errorf("held: %s", got)
		}
		done.Wait()
		for i, want := range []string{`200 "user";r=1, "all";r=0`, `200 "user";r=0, "all";r=0`, `429 "user";r=0`, `429 "user";r=0`, `200 "user";r=1, "all";r=0`, `200 "user";r=0, "all";r=0`} {
			if got, _ := statuses.Load(i); got != want {
				t.Errorf("%d: %v, want %s", i, got, want)
			}
		}
		if got := fmt.Sprint(held(t, user, "anna"), held(t, user, "ben"), held(t, all, "everyone")); got != "0 0 0" {
			t.Errorf("held: %s", got)
		}
	})
}

// Three servers never handle more than the limit together, over real Redis, and nothing is left behind.
func TestServersTogether(t *testing.T) {
	redis := redistest.Start(t)
	var now, most, handled atomic.Int64
	var servers []http.Handler
	var slots []*core.Slots
	for range 3 {
		store, err := redisstore.Open("redis://"+redis.Addr(), redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Client().Close() })
		of := core.NewSlots(store, "jobs", 3)
		slots = append(slots, of)
		servers = append(servers, guardOf(t, nethttp.Config{Concurrency: []nethttp.Concurrency{{Slots: of, Key: client, Queue: 50, MaxWait: time.Minute}}}).
			Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				handled.Add(1)
				now.Add(-1)
			})))
	}
	var all sync.WaitGroup
	for i := range 90 {
		all.Go(func() { serve(servers[i%3], request("GET", "/")) })
	}
	all.Wait()
	if most.Load() > 3 || handled.Load() != 90 {
		t.Errorf("%d at once, %d handled", most.Load(), handled.Load())
	}
	for _, s := range slots {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// An observer of the store that panics costs nobody a slot.
func TestReleasedPanics(t *testing.T) {
	panics := true
	s := &core.MemoryStore{Observers: []*core.Observer{{Released: func(string) {
		if panics {
			panic("released")
		}
	}}}}
	var all []*core.Slots
	var rules []nethttp.Concurrency
	for i, name := range []string{"at once", "in line", "observed", "observed, too"} {
		all = append(all, core.NewSlots(s, name, 3))
		rules = append(rules, nethttp.Concurrency{Slots: all[i], Key: keyfuncs.Everyone(), ObserveOnly: i > 1})
	}
	rules[1].Queue = 1
	g, err := nethttp.New(nethttp.Config{Concurrency: rules})
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		g.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}()
	panics = false
	for _, slots := range all {
		if n, err := slots.Count(t.Context(), "everyone"); n != 0 || err != nil {
			t.Errorf("%s: %d are held, %v", slots.Name(), n, err)
		}
	}
}
