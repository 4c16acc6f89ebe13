package websocketmw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

var discard = log.New(io.Discard, "", 0)

func newSlots(t *testing.T, store core.SlotStore, name string, limit int64) *core.Slots {
	t.Helper()
	s, err := core.NewSlots(store, name, limit)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConfigFaults(t *testing.T) {
	store := memstore.New(memstore.Config{})
	a, elsewhere := newSlots(t, store, "a", 1), newSlots(t, memstore.New(memstore.Config{}), "b", 1)
	fleet, otherFleet := newSlots(t, &sharedStore{store}, "fleet", 1), newSlots(t, &sharedStore{store}, "other", 1)
	key := keyfuncs.Everyone()
	for _, c := range []struct {
		config Config
		fields string
	}{
		{Config{}, "Rules"},
		{Config{Rules: make([]nethttp.Rule, 9)}, "Rules Rules[0].Key Rules[0].Limiter"},
		{Config{Rules: []nethttp.Rule{{Slots: a, Key: key}, {Slots: a, Key: key}}}, "Rules[1].Slots"},
		{Config{Rules: []nethttp.Rule{{Slots: a, Key: key}, {Slots: fleet, Key: key}, {Slots: elsewhere, Key: key}, {Slots: otherFleet, Key: key}}}, "Rules[3].Slots"},
		{Config{Rules: []nethttp.Rule{{Slots: a, Key: key}, {Slots: fleet, Key: key}, {Slots: elsewhere, Key: key}}}, ""},
		{Config{Rules: []nethttp.Rule{{Key: key}, {Slots: a, Key: key}}}, "Rules[0].Limiter"},
		{Config{Rules: []nethttp.Rule{{Slots: a, Key: key}}, Inbound: make([]Inbound, 9)}, "Inbound Inbound[0].Limiter"},
		{
			Config{Rules: []nethttp.Rule{{Slots: a, Key: key}}, MaxIdle: -1, MaxAge: -1, Drain: -1, OnExcess: 9, ShutdownCode: 1000},
			"MaxIdle MaxAge Drain OnExcess ShutdownCode",
		},
		{Config{Rules: []nethttp.Rule{{Slots: a, Key: key}}, MaxIdle: 1, MaxAge: 1, OnExcess: Shed, ShutdownCode: 1012}, ""},
	} {
		_, err := New(c.config)
		var fields []string
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range all.Unwrap() {
				var fault *ConfigError
				if !errors.As(one, &fault) || !strings.Contains(one.Error(), fault.Field) || fault.Unwrap() == nil {
					t.Errorf("%v is not a ConfigError", one)
				}
				fields = append(fields, fault.Field)
			}
		}
		if got := strings.Join(fields, " "); !strings.HasPrefix(got, c.fields) || c.fields == "" && got != "" {
			t.Errorf("faults of %q, not of %q", got, c.fields)
		}
	}
}

// A sharedStore says that other processes share it.
type sharedStore struct{ core.SlotStore }

func (*sharedStore) Shared() bool { return true }

func upgradeRequest(change ...string) *http.Request {
	r := httptest.NewRequest("GET", "/ws", nil)
	for k, v := range map[string]string{
		"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(k, v)
	}
	for i := 0; i < len(change); i += 2 {
		r.Header.Del(change[i])
		if change[i+1] != "" {
			r.Header.Set(change[i], change[i+1])
		}
	}
	return r
}

func TestClassify(t *testing.T) {
	tunnel := httptest.NewRequest("CONNECT", "/ws", nil)
	post := upgradeRequest()
	post.Method = "POST"
	two := upgradeRequest()
	two.Header.Add("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	for name, c := range map[string]struct {
		r    *http.Request
		want kind
	}{
		"an upgrade":            {upgradeRequest(), upgrade},
		"in other letters":      {upgradeRequest("Upgrade", "WebSocket", "Connection", "keep-alive, UPGRADE"), upgrade},
		"one of several":        {upgradeRequest("Upgrade", "h2c, websocket", "Sec-WebSocket-Version", "8, 13"), upgrade},
		"spaces around the key": {upgradeRequest("Sec-WebSocket-Key", " dGhlIHNhbXBsZSBub25jZQ== "), upgrade},
		"HTTP/2":                {overHTTP2("websocket"), connect},
		"HTTP/2, loud":          {overHTTP2("WebSocket"), connect},
		"a tunnel":              {tunnel, other},
		"a page":                {httptest.NewRequest("GET", "/", nil), other},
		"POST":                  {post, other},
		"another protocol":      {upgradeRequest("Upgrade", "h2c"), other},
		"no Connection":         {upgradeRequest("Connection", ""), other},
		"version 8":             {upgradeRequest("Sec-WebSocket-Version", "8"), other},
		"no key":                {upgradeRequest("Sec-WebSocket-Key", ""), other},
		"junk for a key":        {upgradeRequest("Sec-WebSocket-Key", "junk"), malformed},
		"24 bytes of junk":      {upgradeRequest("Sec-WebSocket-Key", "!hlIHNhbXBsZSBub25jZQ=="), malformed},
		"a key of 15 bytes":     {upgradeRequest("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAA"), malformed},
		"a key of 18 bytes":     {upgradeRequest("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAAAA"), malformed},
		"two keys":              {two, malformed},
	} {
		if got := classify(c.r); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

// Requests that are not upgrades keep the server's writer and request.
func TestOthersPassUntouched(t *testing.T) {
	store := &counter{Noticer: memstore.New(memstore.Config{})}
	observed := false
	g, err := New(Config{
		Rules:   []nethttp.Rule{{Slots: newSlots(t, store, "ws", 0), Key: keyfuncs.Everyone()}},
		Skip:    func(r *http.Request) bool { return r.URL.Path == "/free" },
		Observe: func(*http.Request, nethttp.Verdict) { observed = true },
	})
	if err != nil {
		t.Fatal(err)
	}
	free := upgradeRequest()
	free.URL.Path = "/free"
	for _, r := range []*http.Request{httptest.NewRequest("GET", "/", nil), upgradeRequest("Sec-WebSocket-Key", ""), free} {
		w := httptest.NewRecorder()
		called := false
		g.Handler(http.HandlerFunc(func(got http.ResponseWriter, with *http.Request) {
			_, guarded := FromContext(with.Context())
			called = got == http.ResponseWriter(w) && with == r && !guarded
		})).ServeHTTP(w, r)
		if asked, _, _ := store.counts(); !called || asked != 0 || len(w.Header()) != 0 || observed {
			t.Errorf("%s %s: passed on %v, %d calls to the store, header %v", r.Method, r.URL, called, asked, w.Header())
		}
	}
}

// overHTTP2 returns an extended CONNECT as net/http passes it to handlers.
func overHTTP2(protocol string) *http.Request {
	r := httptest.NewRequest("CONNECT", "/ws", nil)
	r.ProtoMajor, r.Header = 2, http.Header{":protocol": {protocol}}
	return r
}

// WebSockets over HTTP/2 are refused, whatever is free. They are not passed on, and nothing is charged.
func TestOverHTTP2(t *testing.T) {
	for _, observeOnly := range []bool{false, true} {
		store := &counter{Noticer: memstore.New(memstore.Config{})}
		g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 1), Key: keyfuncs.Everyone()}}, ObserveOnly: observeOnly})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("it was passed on")
		})).ServeHTTP(w, overHTTP2("websocket"))
		if asked, _, _ := store.counts(); w.Code != http.StatusNotImplemented || asked != 0 || g.Len() != 0 {
			t.Errorf("ObserveOnly %v: status %d, %d calls to the store, %d sockets", observeOnly, w.Code, asked, g.Len())
		}
	}
}

func TestRefusals(t *testing.T) {
	const full = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["ws"]}`
	blank := func(status, title string) string {
		return `{"type":"about:blank","title":"` + title + `","status":` + status + `}`
	}
	absent := func(*http.Request) (string, error) { return "", keyfuncs.ErrAbsent }
	for _, c := range []struct {
		name    string
		change  func(*Config, *counter)
		request *http.Request
		status  int
		policy  string
		limit   string
		body    string
		err     error
		saying  string // the error, if err is nil
		waits   bool
	}{
		{name: "full", status: 429, policy: `"ws";q=0;qu="concurrent-requests"`, limit: `"ws";r=0`, body: full, waits: true},
		{name: "no fields", change: func(c *Config, _ *counter) { c.NoFields = true }, status: 429, body: full, waits: true},
		{
			name:   "the service is full",
			change: func(c *Config, _ *counter) { c.Rules[0].Service = true },
			status: 503, body: blank("503", "Service Unavailable"), waits: true,
		},
		{
			name: "the second of two",
			change: func(c *Config, s *counter) {
				first := newSlots(t, s, "first", 9)
				c.Rules = []nethttp.Rule{{Slots: first, Key: keyfuncs.Everyone()}, c.Rules[0]}
			},
			status: 429, policy: `"first";q=9;qu="concurrent-requests", "ws";q=0;qu="concurrent-requests"`, limit: `"ws";r=0`, body: full, waits: true,
		},
		{
			name: "this server is full",
			change: func(c *Config, _ *counter) {
				node := newSlots(t, memstore.New(memstore.Config{}), "node", 0)
				c.Rules = []nethttp.Rule{{Slots: newSlots(t, &sharedStore{memstore.New(memstore.Config{})}, "first", 9), Key: keyfuncs.Everyone()}, {Slots: node, Key: keyfuncs.Everyone(), Service: true}}
			},
			status: 503, policy: `"first";q=9;qu="concurrent-requests"`, body: blank("503", "Service Unavailable"), waits: true,
		},
		{
			name:   "the store is unreachable",
			change: func(_ *Config, s *counter) { s.err = core.ErrUnavailable },
			status: 503, body: blank("503", "Service Unavailable"), err: core.ErrUnavailable, waits: true,
		},
		{
			name:   "the slots are closed",
			change: func(_ *Config, s *counter) { s.err = core.ErrClosed },
			status: 503, body: blank("503", "Service Unavailable"), err: core.ErrClosed, waits: true,
		},
		{
			name:   "nonsense",
			change: func(_ *Config, s *counter) { s.err = core.ErrQuestion },
			status: 500, body: blank("500", "Internal Server Error"), err: core.ErrQuestion,
		},
		{
			name:   "no key",
			change: func(c *Config, _ *counter) { c.Rules[0].Key = absent },
			status: 400, body: blank("400", "Bad Request"), err: keyfuncs.ErrAbsent,
		},
		{
			name:   "an empty key",
			change: func(c *Config, _ *counter) { c.Rules[0].Key = func(*http.Request) (string, error) { return "", nil } },
			status: 400, body: blank("400", "Bad Request"), saying: "Key returned an empty key",
		},
		{
			name:    "a key that is none",
			request: upgradeRequest("Sec-WebSocket-Key", "junk"),
			status:  400, body: blank("400", "Bad Request"), err: errMalformed,
		},
		{
			name: "the application's page",
			change: func(c *Config, _ *counter) {
				c.OnRefused = func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) {
					o, _ := v.Full()
					http.Error(w, o.Slots+" is full", v.Status())
				}
			},
			status: 429, policy: `"ws";q=0;qu="concurrent-requests"`, limit: `"ws";r=0`, body: "ws is full\n", waits: true,
		},
		{
			name: "a page that is not written",
			change: func(c *Config, _ *counter) {
				c.OnRefused = func(http.ResponseWriter, *http.Request, nethttp.Verdict) {}
			},
			status: 429, policy: `"ws";q=0;qu="concurrent-requests"`, limit: `"ws";r=0`, body: full, waits: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := &counter{Noticer: memstore.New(memstore.Config{})}
			config := Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 0), Key: keyfuncs.Everyone()}}}
			if c.change != nil {
				c.change(&config, store)
			}
			var observed nethttp.Verdict
			config.Observe = func(_ *http.Request, v nethttp.Verdict) { observed = v }
			g, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			r := c.request
			if r == nil {
				r = upgradeRequest()
			}
			w := httptest.NewRecorder()
			g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })).ServeHTTP(w, r)
			h := w.Header()
			if w.Code != c.status || h.Get("RateLimit-Policy") != c.policy || h.Get("RateLimit") != c.limit || w.Body.String() != c.body {
				t.Errorf("%d %v %s", w.Code, h, w.Body)
			}
			after, _ := time.ParseDuration(h.Get("Retry-After") + "s")
			if c.waits != (after >= 5*time.Second && after <= 10*time.Second) || h.Get("Cache-Control") != "no-store" {
				t.Errorf("%v", h)
			}
			if c.saying == "" && !errors.Is(observed.Err, c.err) || !strings.Contains(fmt.Sprint(observed.Err), c.saying) || observed.Status() != c.status || observed.Upgrades() || g.Len() != 0 {
				t.Errorf("%+v, %d sockets", observed, g.Len())
			}
		})
	}
}

func TestZeroVerdict(t *testing.T) {
	var v nethttp.Verdict
	h := make(http.Header)
	v.SetFields(h)
	if v.Status() != 503 || v.Problem() == nil || len(h) != 2 || h.Get("Retry-After") != "5" || h.Get("Cache-Control") != "no-store" {
		t.Error(v.Status(), string(v.Problem()), h)
	}
}

// fullStore is a store that refuses although it counts less than the limit, as one does that
// other processes give other limits.
type fullStore struct{ core.SlotStore }

func (fullStore) AcquireSlots(context.Context, []store.Claim) (store.Grant, error) {
	return store.Grant{}, &store.FullError{Claim: 1, Occupancy: store.Occupancy{Held: 3, Limit: 5}}
}

// A refusal never says that more sockets may be opened.
func TestRefusedWithRoom(t *testing.T) {
	store := fullStore{memstore.New(memstore.Config{})}
	g, err := New(Config{Rules: []nethttp.Rule{
		{Slots: newSlots(t, store, "first", 9), Key: keyfuncs.Everyone()},
		{Slots: newSlots(t, store, "ws", 5), Key: keyfuncs.Everyone()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	v := g.Check(upgradeRequest())
	h := make(http.Header)
	v.SetFields(h)
	if got := h.Get("RateLimit"); v.Status() != 429 || got != `"ws";r=0` {
		t.Error(v.Status(), got)
	}
	if o, _ := v.Full(); o.Held != 3 {
		t.Errorf("%+v", o)
	}
}

// Behind a guard of handshakes, a client that keeps retrying causes no more calls to the store of
// slots than its rate.
func TestHandshakes(t *testing.T) {
	rate, err := core.New(memstore.New(memstore.Config{}), "handshakes", core.SlidingLog(core.PerHour(3)))
	if err != nil {
		t.Fatal(err)
	}
	handshakes, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: rate, Key: keyfuncs.RemoteAddr()}}})
	if err != nil {
		t.Fatal(err)
	}
	store := &counter{Noticer: memstore.New(memstore.Config{})}
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 1), Key: keyfuncs.RemoteAddr()}}})
	if err != nil {
		t.Fatal(err)
	}
	open := g.Check(upgradeRequest())
	h := handshakes.Handler(g.Handler(http.NotFoundHandler()))
	for i := range 1000 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, upgradeRequest())
		by, policies := "ws", `["\"handshakes\";q=3;w=3600" "\"ws\";q=1;qu=\"concurrent-requests\""]`
		if i >= 3 {
			by, policies = "handshakes", `["\"handshakes\";q=3;w=3600"]`
		}
		if got := fmt.Sprintf("%q", w.Header().Values("RateLimit-Policy")); w.Code != 429 || got != policies ||
			!strings.Contains(w.Body.String(), `"violated-policies":["`+by+`"]`) {
			t.Fatal(i, w.Code, got, w.Body)
		}
	}
	open.End(nethttp.Outcome{})
	open.End(nethttp.Outcome{})
	if asked, granted, released := store.counts(); asked != 4 || granted != 1 || released != 1 || g.Len() != 0 {
		t.Errorf("%d calls to the store, %d granted, %d released", asked, granted, released)
	}
}

// The fields of an upgrade are of its rates and its slots.
func TestFieldsOfRatesAndSlots(t *testing.T) {
	rate, err := core.New(memstore.New(memstore.Config{}), "handshakes", core.SlidingLog(core.PerHour(3)))
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Config{Rules: []nethttp.Rule{
		{Limiter: rate, Key: keyfuncs.RemoteAddr()}, {Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.RemoteAddr()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	v := g.Check(upgradeRequest())
	defer v.End(nethttp.Outcome{})
	h := make(http.Header)
	v.SetFields(h)
	if got := h.Values("RateLimit"); v.Status() != 0 || v.Problem() != nil || len(got) != 1 || got[0] != `"handshakes";r=2;t=3600, "ws";r=0` {
		t.Errorf("%d %q", v.Status(), got)
	}
}

func TestPlansAndKeys(t *testing.T) {
	store := memstore.New(memstore.Config{})
	free := newSlots(t, store, "ws", 1)
	gold, err := free.With(2)
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: free, Key: keyfuncs.Header("X-User"), PlanSlots: func(r *http.Request, key string) *core.Slots {
		if r.Header.Get("X-Plan") == "gold" || key == "carl" {
			return gold
		}
		return nil
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{0, 0, 429} {
		if v := g.Check(upgradeRequest("X-User", "ann", "X-Plan", "gold")); v.Status() != want {
			t.Errorf("gold, socket %d: %d", i, v.Status())
		}
	}
	for i, want := range []int{0, 429} {
		if v := g.Check(upgradeRequest("X-User", "ben")); v.Status() != want {
			t.Errorf("free, socket %d: %d", i, v.Status())
		}
	}
	for i, want := range []int{0, 0, 429} {
		if v := g.Check(upgradeRequest("X-User", "carl")); v.Status() != want {
			t.Errorf("gold by key, socket %d: %d", i, v.Status())
		}
	}
}

// Slots that do not belong to the rule are refused with 500, and none are taken.
func TestStrangePlans(t *testing.T) {
	store := memstore.New(memstore.Config{})
	rule := newSlots(t, store, "ws", 1)
	for name, strange := range map[string]*core.Slots{
		"name":  newSlots(t, store, "other", 5),
		"store": newSlots(t, memstore.New(memstore.Config{}), "ws", 5),
	} {
		g, err := New(Config{Rules: []nethttp.Rule{{Slots: rule, Key: keyfuncs.Everyone(), PlanSlots: func(*http.Request, string) *core.Slots {
			return strange
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		v := g.Check(upgradeRequest())
		if v.Status() != http.StatusInternalServerError || !strings.Contains(v.Err.Error(), "PlanSlots returned slots of another "+name) || v.Upgrades() {
			t.Errorf("%s: %d, %v", name, v.Status(), v.Err)
		}
		if n, err := strange.Count(t.Context(), ""); n != 0 || err != nil {
			t.Errorf("%s: %d are held, %v", name, n, err)
		}
	}
}

// While the store is unreachable and everything is admitted, RateLimit is omitted.
func TestFieldsOfAnOpenStore(t *testing.T) {
	store := &counter{Noticer: memstore.New(memstore.Config{}), source: core.SourceOpen}
	unlimited := newSlots(t, store, "unlimited", core.NoLimit)
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 5), Key: keyfuncs.Everyone()}, {Slots: unlimited, Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	h := make(http.Header)
	g.Check(upgradeRequest()).SetFields(h)
	if h.Get("RateLimit-Policy") != `"ws";q=5;qu="concurrent-requests"` || h.Get("RateLimit") != "" {
		t.Error(h)
	}
}

func TestDrainingRefuses(t *testing.T) {
	store := &counter{Noticer: memstore.New(memstore.Config{})}
	slots := newSlots(t, store, "ws", 5)
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	v := g.Check(upgradeRequest())
	if v.Status() != 503 || !errors.Is(v.Err, core.ErrClosed) {
		t.Errorf("%+v", v)
	}
	if _, err := slots.Acquire(context.Background(), "x"); !errors.Is(err, core.ErrClosed) {
		t.Error(err)
	}
	if asked, _, _ := store.counts(); asked != 0 {
		t.Errorf("%d calls to the store", asked)
	}
}

// Invalid and incomplete handshakes cause no calls to the store.
func TestJunkAsksNoStore(t *testing.T) {
	w := newWorld(t, 1, false, Config{}, http.NotFoundHandler())
	for junk, want := range map[string]int{
		"":                       404,
		"Upgrade: websocket\r\n": 404,
		"Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: junk\r\n": 400,
	} {
		if status := w.dial("GET /ws HTTP/1.1\r\nHost: a\r\n" + junk + "\r\n").respond().StatusCode; status != want {
			t.Errorf("%q: %d, not %d", junk, status, want)
		}
	}
	slow := w.dial(handshakeText[:len(handshakeText)-2])
	slow.Conn.(*net.TCPConn).CloseWrite()
	if _, err := io.ReadAll(slow); err != nil { // until the server closes
		t.Error(err)
	}
	if asked, _, _ := w.store.counts(); asked != 0 {
		t.Errorf("%d calls to the store", asked)
	}
}

// If Observe panics, the slot is released.
func TestObservePanics(t *testing.T) {
	slots := newSlots(t, memstore.New(memstore.Config{}), "ws", 1)
	g, err := New(Config{
		Rules:   []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone()}},
		Observe: func(*http.Request, nethttp.Verdict) { panic("observed") },
	})
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if p := recover(); p != "observed" {
				t.Error(p)
			}
		}()
		g.Check(upgradeRequest())
	}()
	if g.Len() != 0 {
		t.Error("the slot is still held")
	}
}

// Errors name the rule or limit, and not the key.
func TestErrorsNameTheRule(t *testing.T) {
	store := memstore.New(memstore.Config{})
	first, second := newSlots(t, store, "address", 1), newSlots(t, store, "user", 1)
	absent := func(*http.Request) (string, error) { return "secret", keyfuncs.ErrAbsent }
	empty := func(*http.Request) (string, error) { return "", nil }
	secret := func(*http.Request) (string, error) { return "secret", nil }
	strange := newSlots(t, store, "other", 1)
	limiter := newLimiter(t, core.Unlimited())
	for _, c := range []struct {
		name    string
		rule    nethttp.Rule
		inbound []Inbound
		want    string
		is      error
	}{
		{"no key", nethttp.Rule{Slots: second, Key: absent}, nil, `headgate: guard: Rules[1] (slots "user"): `, keyfuncs.ErrAbsent},
		{"an empty key", nethttp.Rule{Slots: second, Key: empty}, nil, `headgate: guard: Rules[1] (slots "user"): Key returned an empty key`, nil},
		{
			"a plan of other slots",
			nethttp.Rule{Slots: second, Key: secret, PlanSlots: func(*http.Request, string) *core.Slots { return strange }},
			nil, `headgate: guard: Rules[1] (slots "user"): PlanSlots returned slots of another name`, nil,
		},
		{
			"no key for what is sent", nethttp.Rule{Slots: second, Key: secret},
			[]Inbound{{Limiter: limiter}, {Limiter: limiter, Key: absent}},
			`headgate: websocketmw: Inbound[1] (limiter "sent"): `, keyfuncs.ErrAbsent,
		},
		{
			"an empty key for what is sent", nethttp.Rule{Slots: second, Key: secret},
			[]Inbound{{Limiter: limiter, Key: empty}},
			`headgate: websocketmw: Inbound[0] (limiter "sent"): `, errEmptyKey,
		},
	} {
		g, err := New(Config{Rules: []nethttp.Rule{{Slots: first, Key: secret}, c.rule}, Inbound: c.inbound})
		if err != nil {
			t.Fatal(err)
		}
		err = g.Check(upgradeRequest()).Err
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// If Shutdown begins while an upgrade is being admitted, its slot is released.
func TestDrainingDuringCheck(t *testing.T) {
	store := &counter{Noticer: memstore.New(memstore.Config{})}
	var g *Guard
	key := func(*http.Request) (string, error) {
		g.fleet.Drain()
		return "x", nil
	}
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 1), Key: key}}})
	if err != nil {
		t.Fatal(err)
	}
	if v := g.Check(upgradeRequest()); v.Status() != 503 || !errors.Is(v.Err, core.ErrClosed) {
		t.Errorf("%+v", v)
	}
	if _, granted, released := store.counts(); granted != 1 || released != 1 {
		t.Errorf("%d granted, %d released", granted, released)
	}
}

func TestHandlerOfNil(t *testing.T) {
	for want, make := range map[string]func(){
		"headgate: websocketmw: the handler is nil":                                 func() { new(Guard).Handler(nil) },
		"headgate: websocketmw: the guard is nil: see the error of websocketmw.New": func() { (*Guard)(nil).Handler(http.NotFoundHandler()) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panic %v, want %q", got, want)
				}
			}()
			make()
		}()
	}
}
