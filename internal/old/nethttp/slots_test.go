package nethttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/core/store"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
)

func newSlots(t *testing.T, s core.SlotStore, name string, limit int64) *core.Slots {
	t.Helper()
	slots, err := core.NewSlots(s, name, limit)
	if err != nil {
		t.Fatal(err)
	}
	return slots
}

func TestSlotsConfigFaults(t *testing.T) {
	a := newSlots(t, memstore.New(memstore.Config{}), "a", 1)
	key := keyfuncs.Everyone()
	good := []nethttp.Rule{{Slots: a, Key: key}}
	queued := func(n int) []nethttp.Rule { return []nethttp.Rule{{Slots: a, Key: key, Queue: n}} }
	for _, c := range []struct {
		config nethttp.Config
		fields []string
	}{
		{nethttp.Config{}, []string{"Rules"}},
		{nethttp.Config{Rules: []nethttp.Rule{{}, {Slots: a, Key: key}, {Slots: a, Key: key}}}, []string{"Rules[0].Key", "Rules[0].Limiter", "Rules[2].Slots"}},
		{nethttp.Config{Rules: queued(-1), Wait: -1}, []string{"Rules[0].Queue", "Wait"}},
		{nethttp.Config{Rules: queued(1)}, []string{"Wait"}},
		{nethttp.Config{Rules: good, Wait: 1}, []string{"Wait"}},
		{nethttp.Config{Rules: queued(1), Wait: 1}, nil},
	} {
		_, err := nethttp.New(c.config)
		var fields []string
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range all.Unwrap() {
				var fault *nethttp.ConfigError
				if !errors.As(one, &fault) || !strings.Contains(one.Error(), fault.Field) || fault.Unwrap() == nil {
					t.Errorf("%v is not a ConfigError", one)
				}
				fields = append(fields, fault.Field)
			}
		}
		if !slices.Equal(fields, c.fields) {
			t.Errorf("faults of %q, not of %q", fields, c.fields)
		}
	}
	for name, f := range map[string]func(){
		"a nil guard":   func() { (*nethttp.Guard)(nil).Handler(http.NotFoundHandler()) },
		"a nil handler": func() { newGuard(t, nethttp.Config{Rules: good}).Handler(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Of 1,000 requests at once with a limit of 100 and a queue of 50, 100 are handled, 50 wait,
// and the others are refused at once. Those that wait are handled when the first are done, or
// refused when their time is over, in neither case later.
func TestThousandClients(t *testing.T) {
	for _, c := range []struct {
		name         string
		wait         time.Duration
		served, late int
	}{
		{"in time", 5 * time.Second, 150, 0},
		{"too late", time.Second, 100, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const clients, limit, queue, work = 1000, 100, 50, 3 * time.Second
				slots := newSlots(t, memstore.New(memstore.Config{}), "all", limit)
				var waited atomic.Int64
				g := newGuard(t, nethttp.Config{
					Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone(), Queue: queue}}, Wait: c.wait,
					Observe: func(_ *http.Request, v nethttp.Verdict) {
						if v.Waited > 0 {
							waited.Add(1)
						}
						if v.Waited > c.wait {
							t.Errorf("waited for %v", v.Waited)
						}
					},
				})
				var now, most, served, refused, late atomic.Int64
				h := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(work)
					now.Add(-1)
				}))
				start := time.Now()
				for range clients {
					go func() {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
						switch {
						case w.Code == 200:
							served.Add(1)
						case w.Code != 429 || w.Header().Get("Retry-After") == "":
							t.Error(w.Code, w.Header())
						case time.Since(start) == 0:
							refused.Add(1)
						default:
							late.Add(1)
						}
					}()
				}
				synctest.Wait()
				if now.Load() != limit || refused.Load() != clients-limit-queue {
					t.Errorf("%d are handled, %d refused", now.Load(), refused.Load())
				}
				time.Sleep(time.Minute)
				if most.Load() != limit || served.Load() != int64(c.served) || late.Load() != int64(c.late) || waited.Load() != queue {
					t.Errorf("%d at once, %d served, %d refused later, %d waited", most.Load(), served.Load(), late.Load(), waited.Load())
				}
			})
		})
	}
}

// Several servers with real Redis never handle more than the limit together, and nothing is
// left behind.
func TestServersTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const servers, limit, queue, clients = 3, 10, 5, 50
	var now, served atomic.Int64
	var all sync.WaitGroup
	var slots *core.Slots
	for range servers {
		client, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{server.Addr()}}, redisstore.Config{SlotTimeout: time.Minute / 15, SlotTTL: time.Minute, Failure: redisstore.FailClosed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Client().Close() })
		slots = newSlots(t, client, "all", limit)
		g := newGuard(t, nethttp.Config{Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone(), Queue: queue}}, Wait: 10 * time.Second})
		h := g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if n := now.Add(1); n > limit {
				t.Errorf("%d at once", n)
			}
			served.Add(1)
			now.Add(-1)
		}))
		for range clients {
			all.Go(func() {
				for range 5 {
					w := httptest.NewRecorder()
					if h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)); w.Code != 200 && w.Code != 429 {
						t.Error(w.Code, w.Body)
					}
				}
			})
		}
	}
	all.Wait()
	if served.Load() < limit {
		t.Errorf("%d were served", served.Load())
	}
	for {
		key, _ := keyfuncs.Everyone()(nil)
		n, err := slots.Count(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
}

// A scripted store fails as it is told.
type scripted struct {
	core.SlotStore

	err error
}

func (s *scripted) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	if s.err != nil {
		return store.Grant{}, s.err
	}
	return s.SlotStore.AcquireSlots(ctx, claims)
}

func TestSlotsRefusals(t *testing.T) {
	const full = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["all"]}`
	blank := func(status, title string) string {
		return `{"type":"about:blank","title":"` + title + `","status":` + status + `}`
	}
	away := blank("503", "Service Unavailable")
	key := func(k string, err error) keyfuncs.Func {
		return func(*http.Request) (string, error) { return k, err }
	}
	plan := func(name string, s core.SlotStore) func(*http.Request, string) *core.Slots {
		slots := newSlots(t, s, name, 1)
		return func(*http.Request, string) *core.Slots { return slots }
	}
	hungUp, hangUp := context.WithCancel(t.Context())
	hangUp()
	for _, c := range []struct {
		name   string
		change func(*nethttp.Config, *scripted)
		ctx    context.Context
		status int
		fields string
		body   string
		err    error
		saying string // the error, if err is nil
		waits  bool
	}{
		{name: "admitted", change: func(c *nethttp.Config, _ *scripted) {
			c.Rules[0].PlanSlots = func(*http.Request, string) *core.Slots { p, _ := c.Rules[0].Slots.With(3); return p }
		},
			status: 200, fields: `"all";q=3;qu="concurrent-requests" "all";r=2`, body: "done"},
		{name: "full", status: 429, fields: `"all";q=0;qu="concurrent-requests" "all";r=0`, body: full, waits: true},
		{name: "no fields", change: func(c *nethttp.Config, _ *scripted) { c.NoFields = true }, status: 429, fields: " ", body: full, waits: true},
		{name: "the service is full", change: func(c *nethttp.Config, _ *scripted) { c.Rules[0].Service = true }, status: 503, fields: " ", body: away, waits: true},
		{name: "skipped", change: func(c *nethttp.Config, _ *scripted) { c.Skip = func(*http.Request) bool { return true } }, status: 200, fields: " ", body: "done"},
		{name: "in shadow", change: func(c *nethttp.Config, _ *scripted) { c.ObserveOnly, c.Rules[0].Queue, c.Wait = true, 1, time.Hour }, status: 200, fields: " ", body: "done"},
		{name: "the store is away", change: func(_ *nethttp.Config, s *scripted) { s.err = core.ErrUnavailable }, status: 503, fields: " ", body: away, err: core.ErrUnavailable, waits: true},
		{name: "closed", change: func(_ *nethttp.Config, s *scripted) { s.err = core.ErrClosed }, status: 503, fields: " ", body: away, err: core.ErrClosed, waits: true},
		{name: "nonsense", change: func(_ *nethttp.Config, s *scripted) { s.err = core.ErrQuestion }, status: 500, fields: " ", body: blank("500", "Internal Server Error"), err: core.ErrQuestion},
		{name: "hung up", ctx: hungUp, change: func(c *nethttp.Config, _ *scripted) { c.Rules[0].Queue, c.Wait = 1, time.Hour }, status: 503, fields: " ", body: away, err: context.Canceled, waits: true},
		{name: "no key", change: func(c *nethttp.Config, _ *scripted) { c.Rules[0].Key = key("", keyfuncs.ErrAbsent) }, status: 400, fields: " ", body: blank("400", "Bad Request"), err: keyfuncs.ErrAbsent},
		{name: "an empty key", change: func(c *nethttp.Config, _ *scripted) { c.Rules[0].Key = key("", nil) }, status: 400, fields: " ", body: blank("400", "Bad Request"), saying: "Key returned an empty key"},
		{name: "a fault of the program", change: func(c *nethttp.Config, _ *scripted) { c.Rules[0].Key = key("", keyfuncs.ErrProgram) }, status: 500, fields: " ", body: blank("500", "Internal Server Error"), err: keyfuncs.ErrProgram},
		{name: "a plan of another name", change: func(c *nethttp.Config, s *scripted) { c.Rules[0].PlanSlots = plan("other", s) }, status: 500, fields: " ", body: blank("500", "Internal Server Error"), saying: `PlanSlots returned slots of another name, "other"`},
		{name: "a plan of another store", change: func(c *nethttp.Config, _ *scripted) {
			c.Rules[0].PlanSlots = plan("all", memstore.New(memstore.Config{}))
		}, status: 500, fields: " ", body: blank("500", "Internal Server Error"), saying: "PlanSlots returned slots of another store"},
		{name: "a page", change: func(c *nethttp.Config, _ *scripted) {
			c.OnRefused = func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) {
				o, _ := v.Full()
				http.Error(w, o.Slots+" is full", v.Status())
			}
		}, status: 429, fields: `"all";q=0;qu="concurrent-requests" "all";r=0`, body: "all is full\n", waits: true},
		{name: "no page", change: func(c *nethttp.Config, _ *scripted) {
			c.OnRefused = func(http.ResponseWriter, *http.Request, nethttp.Verdict) {}
		},
			status: 429, fields: `"all";q=0;qu="concurrent-requests" "all";r=0`, body: full, waits: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scripted{SlotStore: memstore.New(memstore.Config{})}
			config := nethttp.Config{Rules: []nethttp.Rule{{Slots: newSlots(t, s, "all", 0), Key: keyfuncs.Everyone()}}}
			if c.change != nil {
				c.change(&config, s)
			}
			var observed []nethttp.Verdict
			config.Observe = func(_ *http.Request, v nethttp.Verdict) { observed = append(observed, v) }
			g := newGuard(t, config)
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			w := httptest.NewRecorder()
			g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("done")) })).
				ServeHTTP(w, httptest.NewRequestWithContext(c.ctx, "GET", "/", nil))
			h := w.Header()
			if fields := h.Get("RateLimit-Policy") + " " + h.Get("RateLimit"); w.Code != c.status || fields != c.fields || w.Body.String() != c.body {
				t.Errorf("%d %s %s", w.Code, fields, w.Body)
			}
			after, _ := time.ParseDuration(h.Get("Retry-After") + "s")
			if c.waits != (after >= time.Second && after <= 5*time.Second) || (w.Code != 200) != (h.Get("Cache-Control") == "no-store") {
				t.Errorf("%v", h)
			}
			want := c.status
			switch {
			case c.name == "skipped":
				if len(observed) != 0 {
					t.Error("it is observed")
				}
				return
			case want == 200 && !config.ObserveOnly:
				want = 0
			case config.ObserveOnly:
				want = 429
			}
			if len(observed) != 1 || observed[0].Status() != want || c.saying == "" && !errors.Is(observed[0].Err, c.err) || c.saying != "" && !strings.Contains(fmt.Sprint(observed[0].Err), c.saying) || (observed[0].Problem() == nil) != (want == 0) {
				t.Errorf("observed %+v", observed)
			}
		})
	}
	var zero nethttp.Verdict
	zero.End(nethttp.Outcome{})
	h := make(http.Header)
	zero.SetFields(h)
	if zero.Status() != 503 || h.Get("Retry-After") != "5" || zero.Problem() == nil {
		t.Error(zero.Status(), h)
	}
}

// A panic, of the handler or of Observe, releases the slots.
func TestPanicsRelease(t *testing.T) {
	for name, observe := range map[string]func(*http.Request, nethttp.Verdict){"the handler": nil, "Observe": func(*http.Request, nethttp.Verdict) { panic("on purpose") }} {
		slots := newSlots(t, memstore.New(memstore.Config{}), "all", 1)
		g := newGuard(t, nethttp.Config{Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone()}}, Observe: observe})
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") })).
				ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		}()
		key, _ := keyfuncs.Everyone()(nil)
		if n, err := slots.Count(t.Context(), key); n != 0 || err != nil {
			t.Errorf("%s: %d are held, %v", name, n, err)
		}
	}
}

// A client that hangs up while it waits leaves the line, and a stream counts until it ends.
func TestHangUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := newSlots(t, memstore.New(memstore.Config{}), "streams", 1)
		var verdicts []nethttp.Verdict
		g := newGuard(t, nethttp.Config{
			Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone(), Queue: 1}}, Wait: time.Hour,
			Observe: func(_ *http.Request, v nethttp.Verdict) { verdicts = append(verdicts, v) },
		})
		stream := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		get := func() (hangUp func()) {
			ctx, cancel := context.WithCancel(t.Context())
			go stream.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			synctest.Wait()
			return func() { cancel(); synctest.Wait() }
		}
		first, second := get(), get()
		if len(verdicts) != 1 || verdicts[0].Status() != 0 {
			t.Fatal(verdicts)
		}
		time.Sleep(time.Minute)
		second()
		if len(verdicts) != 2 || !errors.Is(verdicts[1].Err, context.Canceled) || verdicts[1].Waited != time.Minute {
			t.Fatal(verdicts)
		}
		third := get()
		time.Sleep(time.Second)
		first()
		if len(verdicts) != 3 || verdicts[2].Status() != 0 || verdicts[2].Waited != time.Second {
			t.Fatal(verdicts)
		}
		third()
		if n, err := slots.Count(t.Context(), core.Must(keyfuncs.Everyone()(nil))); n != 0 || err != nil {
			t.Error(n, err)
		}
	})
}
