package websocketmw

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// What would have been refused is admitted in shadow mode, and looks as without a guard. The
// verdict that is observed is that of enforcement.
func TestShadowRefusesNothing(t *testing.T) {
	absent := func(*http.Request) (string, error) { return "", keyfuncs.ErrAbsent }
	for _, c := range []struct {
		name   string
		change func(*Config, *counter)
		fields []string // of the request
		status int
		held   int64
	}{
		{name: "admitted", change: func(c *Config, s *counter) { c.Rules[0].PlanSlots = planOf(t, s, "ws", 1) }, held: 1},
		{name: "full", change: func(*Config, *counter) {}, status: 429},
		{name: "in band", change: func(c *Config, _ *counter) { c.InBand = true }, fields: []string{"Origin", "http://a"}, status: 429},
		{name: "the store is away", change: func(_ *Config, s *counter) { s.err = core.ErrUnavailable }, status: 503},
		{name: "no key", change: func(c *Config, _ *counter) { c.Rules[0].Key = absent }, status: 400},
		{name: "another name", change: func(c *Config, s *counter) { c.Rules[0].PlanSlots = planOf(t, s, "other", 1) }, status: 500},
		{name: "no key of Inbound", change: func(c *Config, _ *counter) {
			c.Inbound = []Inbound{{Limiter: newLimiter(t, core.Blocked()), Key: absent}}
		}, status: 400},
		{name: "malformed", change: func(*Config, *counter) {}, fields: []string{"Sec-WebSocket-Key", "junk"}, status: 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := &counter{Noticer: memstore.New(memstore.Config{})}
			config := Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 0), Key: keyfuncs.Everyone()}}, ObserveOnly: true}
			shutdown := false
			config.OnRefused = func(http.ResponseWriter, *http.Request, nethttp.Verdict) {
				if !shutdown {
					t.Error("OnRefused is called")
				}
			}
			c.change(&config, store)
			var observed []int
			config.Observe = func(_ *http.Request, v nethttp.Verdict) {
				observed = append(observed, v.Status())
				if len(observed) == 1 && v.Upgrades() != (c.status == 0) {
					t.Error("a refused verdict has a socket, or an admitted one has none")
				}
			}
			var closed int
			config.Notify = func(_ *Socket, e Event) {
				if closed++; e.Kind != EventClosed {
					t.Error(e)
				}
			}
			g, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			h := g.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				runs++
				s, ok := FromContext(r.Context())
				if !ok || g.Len() != 1 {
					t.Fatal("there is no socket")
				}
				slot := s.Slot()
				if counted := len(slot.Occupancies()) > 0; counted != (c.status == 0) {
					t.Error(slot.Occupancies())
				}
				slot.Release()
				if shed, err := slot.Shed(r.Context()); shed || err != nil || slot.Lost() != nil || slot.Doubt() != nil {
					t.Error("the slot of a refused socket is something")
				}
			}))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, upgradeRequest(c.fields...))
			if w.Code != 200 || len(w.Header()) > 0 || runs != 1 || g.Len() != 0 || closed != 1 {
				t.Errorf("%d %v, handled %d times, %d sockets, %d events", w.Code, w.Header(), runs, g.Len(), closed)
			}
			if len(observed) != 1 || observed[0] != c.status {
				t.Errorf("observed %d, not %d", observed, c.status)
			}
			if _, granted, released := store.counts(); granted != released || int64(granted) != c.held {
				t.Errorf("%d slots granted, %d released", granted, released)
			}
			// Shutdown is no limit.
			if err := g.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			w = httptest.NewRecorder()
			shutdown = true
			if h.ServeHTTP(w, upgradeRequest()); w.Code != 503 || runs != 1 {
				t.Error(w.Code, runs)
			}
		})
	}
}

func planOf(t *testing.T, s core.SlotStore, name string, limit int64) func(*http.Request, string) *core.Slots {
	slots := newSlots(t, s, name, limit)
	return func(*http.Request, string) *core.Slots { return slots }
}

// Rates are in shadow together with slots.
func TestShadowOfRates(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		g := core.Must(New(Config{
			Rules:       []nethttp.Rule{{Limiter: newLimiter(t, core.Blocked()), Key: keyfuncs.Everyone()}},
			ObserveOnly: shadow,
		}))
		if got := g.Check(upgradeRequest()); (got.Status() == 0) != shadow {
			t.Errorf("in shadow: %v, %d", shadow, got.Status())
		}
	}
}

// A socket that would have been closed stays open and is not limited any more; its event is
// that of enforcement, once.
func TestShadowClosesNothing(t *testing.T) {
	hello := string(masked(0x81, "hello"))
	limit := func(over Over) []Inbound {
		return []Inbound{{Limiter: newLimiter(t, core.SlidingLog(core.PerHour(2))), Over: over}}
	}
	for _, c := range []struct {
		name   string
		config Config
		sent   []string
		pause  time.Duration
		want   []EventKind
	}{
		{"nothing", Config{}, []string{hello, hello}, time.Hour, nil},
		{"silent", Config{MaxIdle: time.Minute}, []string{hello, hello, hello}, time.Hour, []EventKind{EventIdle}},
		{"too old", Config{MaxAge: time.Minute}, []string{hello, hello, hello}, time.Hour, []EventKind{EventAged}},
		{"too much", Config{Inbound: limit(Close)}, []string{hello + hello + hello, hello, hello}, time.Second, []EventKind{EventOver}},
		{"delayed for too long", Config{Inbound: limit(Delay)}, []string{hello, hello, hello, hello}, time.Second, []EventKind{EventOver}},
		{"a forbidden frame", Config{}, []string{hello, "\x83\x00" + hello, hello, hello}, time.Second, []EventKind{EventInvalid}},
		{"controls", Config{}, []string{strings.Repeat(string(masked(0x89, "")), 300), hello, hello}, time.Second, []EventKind{EventOver}},
		{"reported each time", Config{Inbound: limit(Report)}, []string{hello + hello, hello, hello}, time.Second, []EventKind{EventOver, EventOver}},
		{
			"delayed, each time", Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerSecond(1), 1)), Over: Delay}}},
			[]string{hello, hello, hello}, time.Millisecond, []EventKind{EventOver, EventOver},
		},
		{
			"the first of several", Config{Inbound: limit(Close), MaxAge: time.Minute},
			[]string{hello + hello + hello, hello, "\x83\x00"}, time.Hour, []EventKind{EventOver},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events []EventKind
				c.config.ObserveOnly = true
				c.config.Notify = func(_ *Socket, e Event) { events = append(events, e.Kind) }
				var read strings.Builder
				g, p := bubble(t, c.config, func(conn net.Conn) {
					defer conn.Close()
					b := make([]byte, 512)
					for {
						n, err := conn.Read(b)
						read.Write(b[:n])
						if err != nil {
							return
						}
					}
				})
				if p.response.Header.Get("RateLimit") != "" {
					t.Error(p.response.Header)
				}
				begin := time.Now()
				for _, s := range c.sent {
					p.send([]byte(s))
					synctest.Wait()
					time.Sleep(c.pause)
				}
				if took := time.Since(begin); took != time.Duration(len(c.sent))*c.pause {
					t.Errorf("delayed: %v", took)
				}
				if sent := strings.Join(c.sent, ""); read.String() != sent || g.Len() != 1 {
					t.Errorf("%d of %d bytes were read, %d sockets", read.Len(), len(sent), g.Len())
				}
				p.Close()
				synctest.Wait()
				if want := append(slices.Clone(c.want), EventClosed); !slices.Equal(events, want) {
					t.Errorf("%v, not %v", events, want)
				}
			})
		})
	}
}

// What came before the 101 gets to the library as without a guard.
func TestShadowOfEarlyData(t *testing.T) {
	var events []EventKind
	buffered, read := make(chan int, 1), make(chan string, 1)
	w := newWorld(t, 1, false, Config{ObserveOnly: true, Notify: func(_ *Socket, e Event) { events = append(events, e.Kind) }},
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			buffered <- rw.Reader.Buffered()
			b := make([]byte, 5)
			rw.Read(b)
			read <- string(b)
		}))
	w.dial(handshakeText + "early")
	if n, s := <-buffered, <-read; n != 5 || s != "early" {
		t.Error(n, s)
	}
	w.until(EventClosed)
	if len(events) != 2 || events[0] != EventInvalid {
		t.Error(events)
	}
}

// Sockets that are too many are told of, and stay. Those that were not counted are never
// looked at.
func TestShadowOfExcess(t *testing.T) {
	inCrowd(t, Config{OnExcess: Shed, ObserveOnly: true}, func(c *crowd) {
		c.opens(10, core.SourceStore)
		c.store.err = core.ErrUnavailable
		c.opens(5, core.SourceStore)
		c.store.doubts(4)
		if gone, asked := c.gone(aLook); gone != 4 || asked != 10 {
			t.Errorf("%d would be closed, %d asked for", gone, asked)
		}
		for _, v := range c.open {
			if isClosing(v) {
				t.Error("one is closed")
			}
		}
	})
}

// A guard that is shut down between verdict and admission refuses.
func TestShadowWhileDraining(t *testing.T) {
	var g *Guard
	g = newGuard(t, Config{ObserveOnly: true, Observe: func(*http.Request, nethttp.Verdict) { g.fleet.Drain() }})
	v := g.Check(upgradeRequest("Sec-WebSocket-Key", "junk"))
	if v.Status() != 503 && v.Status() != 400 || v.Upgrades() || g.Len() != 0 {
		t.Error(v.Status(), g.Len())
	}
	if err := g.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// What is not enforced is on trial: the slots of a guard in shadow mode, its budgets, and budgets that
// only report. It refuses nobody, and stats count no refusal.
func TestTrials(t *testing.T) {
	for _, c := range []struct {
		name          string
		shadow        bool
		over          Over
		slots, budget bool // on trial
	}{
		{"enforced", false, Close, false, false},
		{"reported", false, Report, false, true},
		{"shadow, closes", true, Close, true, true},
		{"shadow, delays", true, Delay, true, true},
		{"shadow, reports", true, Report, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen := core.Must(stats.New(stats.Config{}))
				trials := map[string][]bool{} // of the refusals, by name
				store := memstore.New(memstore.Config{Observer: core.Observers(seen.Observer(), &core.Observer{
					Refused: func(_ context.Context, e core.DecisionEvent, _ string) {
						trials[e.Limiter] = append(trials[e.Limiter], e.Trial)
					},
					SlotRefused: func(_ context.Context, e core.SlotEvent, _ string) {
						trials[e.Slots] = append(trials[e.Slots], e.Trial)
					},
				})})
				g := core.Must(New(Config{
					Rules:       []nethttp.Rule{{Slots: newSlots(t, store, "ws", 1), Key: keyfuncs.Everyone()}},
					Inbound:     []Inbound{{Limiter: core.Must(core.New(store, "sent", core.Blocked())), Over: c.over}},
					ObserveOnly: c.shadow,
				}))
				h := heard{done: make(chan struct{})}
				p := pipeTo(t, g, h.listen)
				second := g.Check(upgradeRequest())
				if passes := second.Status() == 0; passes != c.slots {
					t.Errorf("the second socket: status %d", second.Status())
				}
				second.End(nethttp.Outcome{})
				p.send(masked(0x81, "hello"))
				synctest.Wait()
				p.Close()
				<-h.done
				if delivered := h.sums[Messages] == 1; delivered != c.budget {
					t.Errorf("%d messages were delivered", h.sums[Messages])
				}
				for name, want := range map[string]bool{"ws": c.slots, "sent": c.budget} {
					if !slices.Equal(trials[name], []bool{want}) {
						t.Errorf("%s: on trial %v, not %v", name, trials[name], want)
					}
				}
				wantTrials(t, seen.Snapshot(), c.slots, c.budget)
			})
		})
	}
}

// wantTrials compares what stats have counted with one refusal of the slots and one of the budget,
// each on trial or not.
func wantTrials(t *testing.T, s stats.Snapshot, slots, budget bool) {
	t.Helper()
	claims, charges := map[string]uint64{}, map[string]uint64{}
	for _, n := range s.Slots[0].Counts {
		claims[n.Result] += n.Claims
	}
	for _, n := range s.Limiters[0].Counts {
		charges[n.Result] += n.Charges
	}
	result := map[bool]string{true: stats.OnTrial, false: stats.Refused}
	if want := map[string]uint64{stats.Admitted: 1, result[slots]: 1}; !maps.Equal(claims, want) || s.Slots[0].LastRefused.IsZero() != slots {
		t.Errorf("claims: %v, not %v; refused last %v", claims, want, s.Slots[0].LastRefused)
	}
	if want := map[string]uint64{result[budget]: 1}; !maps.Equal(charges, want) || s.Limiters[0].LastRefused.IsZero() != budget {
		t.Errorf("charges: %v, not %v; refused last %v", charges, want, s.Limiters[0].LastRefused)
	}
}

// A spared socket that is closed is read as any other: nothing but the client's Close frame.
func TestSparedIsClosed(t *testing.T) {
	for name, over := range map[string]string{
		"over a limit":     strings.Repeat(string(masked(0x89, "")), 201), // one more than Controls admits
		"an invalid frame": string(masked(0x83, "")),
		"within a text":    strings.Repeat(string(masked(0x89, "")), 201) + string(masked(0x01, "begins")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var read []byte
				closes := masked(0x88, "\x03\xe8")
				guard, p := bubble(t, Config{ObserveOnly: true}, func(c net.Conn) {
					defer c.Close()
					for b := make([]byte, 64); ; {
						n, err := c.Read(b)
						if read = append(read, b[:n]...); err != nil || bytes.HasSuffix(read, closes) {
							return
						}
					}
				})
				p.send([]byte(over))
				synctest.Wait()
				if string(read) != over {
					t.Errorf("%q was read", read)
				}
				for _, s := range guard.all() {
					s.Close(4003, "banned")
				}
				p.closes()
				read = nil
				if name == "within a text" {
					p.send(masked(0x80, "ends"))
				}
				p.send(slices.Concat(masked(0x81, "EVIL"), closes))
				synctest.Wait()
				if bytes.Contains(read, masked(0x81, "EVIL")) || name != "an invalid frame" && !bytes.Equal(read, closes) {
					t.Errorf("%q", read)
				}
			})
		})
	}
}

// In shadow mode, a socket without a key is served, and ends as any other.
func TestShadowWithoutKey(t *testing.T) {
	guard := core.Must(New(Config{ObserveOnly: true, Rules: []nethttp.Rule{
		{Slots: newSlots(t, memstore.New(memstore.Config{}), "user", 1), Key: keyfuncs.Header("X-Nobody")},
	}}))
	v := guard.Check(upgradeRequest())
	if v.Status() != 0 {
		t.Error(v.Status())
	}
	v.End(nethttp.Outcome{})
	w := httptest.NewRecorder()
	guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })).ServeHTTP(w, upgradeRequest())
	if w.Code != http.StatusTeapot || guard.Len() != 0 {
		t.Errorf("%d, %d sockets", w.Code, guard.Len())
	}
}
