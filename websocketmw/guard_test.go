package websocketmw

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// An error of New has a line for each place that has faults.
func TestConfigFaults(t *testing.T) {
	key := keyfuncs.Everyone()
	slots := func(name string) *core.Slots { return core.NewSlots(new(core.MemoryStore), name, 1) }
	a, limiter := slots("a"), newLimiter(core.Unlimited())
	for _, c := range []struct {
		config Config
		want   []string // what each line has
	}{
		{Config{}, nil},
		{Config{Rules: []Rule{{Slots: a, Key: key}, {Slots: slots("b"), Key: key, WhenFull: EvictOldest}}, Messages: []Inbound{{Limiter: limiter}}, MaxIdle: 1, MaxAge: 1, Drain: 1}, nil},
		{Config{Rules: []Rule{{}, {Slots: a, Key: key}, {WhenFull: 3}}, MaxIdle: -1, MaxAge: -2, Drain: -3}, []string{
			"Config: MaxIdle is -1ns: it must not be negative; MaxAge is -2ns: it must not be negative; Drain is -3ns: it must not be negative",
			"Rules[0]: the Slots are nil: make them with core.NewSlots; the Key is nil: ",
			"Rules[2]: the Slots are nil: make them with core.NewSlots; the Key is nil: say whose sockets are counted, with a function of package keyfuncs; WhenFull is 3: use ",
		}},
		{Config{Rules: []Rule{{Slots: a, Key: key}, {Slots: a, Key: key, WhenFull: -1}}}, []string{`Rules[1]: WhenFull is -1: use Refuse, Unavailable or EvictOldest; a rule before it has slots named "a", too`}},
		{Config{Rules: []Rule{{Slots: a, Key: key, WhenFull: EvictOldest}, {Slots: slots("b"), Key: key, WhenFull: EvictOldest}}}, []string{"Rules[1]: a rule before it has EvictOldest, too"}},
		{Config{Messages: []Inbound{{Limiter: limiter}, {Key: key}}, Bytes: []Inbound{{Delay: true}}}, []string{
			"Messages[1]: the Limiter is nil: make one with core.NewLimiter", "Bytes[0]: the Limiter is nil: make one with core.NewLimiter",
		}},
	} {
		for range 5 { // in the same order each time
			_, err := New(c.config)
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(c.want) {
				t.Fatalf("%q, not %q", lines, c.want)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, "headgate: websocketmw: "+c.want[i]) {
					t.Errorf("%q, not %q", line, c.want[i])
				}
			}
		}
	}
	nine := make([]Rule, 9)
	for i := range nine {
		nine[i] = Rule{Slots: slots(fmt.Sprint("slots", i)), Key: key}
	}
	if _, err := New(Config{Rules: nine}); err == nil || !strings.Contains(err.Error(), "there are 9 Rules: at most 8") {
		t.Error(err)
	}
	if _, err := New(Config{Rules: nine[1:]}); err != nil {
		t.Error(err)
	}
}

func TestWrongArguments(t *testing.T) {
	store := new(core.MemoryStore)
	for name, call := range map[string]func(){
		"no key":     func() { MaxOpen(store, "ws", nil, 1) },
		"no name":    func() { MaxOpen(store, "", keyfuncs.Everyone(), 1) },
		"negative":   func() { MaxOpen(store, "ws", keyfuncs.Everyone(), -1) },
		"no guard":   func() { (*Guard)(nil).Handler(http.NotFoundHandler()) },
		"zero guard": func() { new(Guard).Handler(http.NotFoundHandler()) },
		"no handler": func() { MaxOpen(store, "ws", keyfuncs.Everyone(), 1).Handler(nil) },
	} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "headgate: ") {
					t.Errorf("%s: %s", name, text)
				}
			}()
			call()
		}()
	}
	g := MaxOpen(store, "ws", keyfuncs.Everyone(), 1)
	if _, err := g.CloseAll(nil, g.config.Rules[0].Slots, "k", 4001, ""); !errors.Is(err, core.ErrInvalid) { //nolint:staticcheck // nil is wrong
		t.Error(err)
	}
	if err := g.Shutdown(nil); !errors.Is(err, core.ErrInvalid) { //nolint:staticcheck // nil is wrong
		t.Error(err)
	}
}

// changed is upgradeRequest with other values of fields; an empty value removes one.
func changed(change ...string) *http.Request {
	r := upgradeRequest()
	for i := 0; i < len(change); i += 2 {
		r.Header.Del(change[i])
		if change[i+1] != "" {
			r.Header.Set(change[i], change[i+1])
		}
	}
	return r
}

func TestClassify(t *testing.T) {
	post, two, empty := upgradeRequest(), upgradeRequest(), upgradeRequest()
	post.Method = "POST"
	empty.Header.Set("Sec-WebSocket-Key", "")
	two.Header.Add("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	connect := func(protocol string) *http.Request {
		r := httptest.NewRequest("CONNECT", "/ws", nil)
		r.Header = http.Header{":protocol": {protocol}}
		return r
	}
	for name, c := range map[string]struct {
		r    *http.Request
		want kind
	}{
		"an upgrade":            {upgradeRequest(), upgrade},
		"in other letters":      {changed("Upgrade", "WebSocket", "Connection", "keep-alive, UPGRADE"), upgrade},
		"one of several":        {changed("Upgrade", "h2c, websocket", "Sec-WebSocket-Version", "8, 13"), upgrade},
		"spaces around the key": {changed("Sec-WebSocket-Key", " dGhlIHNhbXBsZSBub25jZQ== "), upgrade},
		"HTTP/2":                {connect("websocket"), overHTTP2},
		"HTTP/2, capitals":      {connect("WebSocket"), overHTTP2},
		"another over HTTP/2":   {connect("connect-udp"), other},
		"a tunnel":              {httptest.NewRequest("CONNECT", "/ws", nil), other},
		"a page":                {httptest.NewRequest("GET", "/", nil), other},
		"POST":                  {post, other},
		"another protocol":      {changed("Upgrade", "h2c"), other},
		"no Connection":         {changed("Connection", ""), other},
		"version 8":             {changed("Sec-WebSocket-Version", "8"), other},
		"no key":                {changed("Sec-WebSocket-Key", ""), other},
		"an empty key":          {empty, other},
		"junk for a key":        {changed("Sec-WebSocket-Key", "junk"), malformed},
		"24 bytes of junk":      {changed("Sec-WebSocket-Key", "!GhlIHNhbXBsZSBub25jZQ=="), malformed},
		"a key of 15 bytes":     {changed("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAA"), malformed},
		"a key of 18 bytes":     {changed("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAAAA"), malformed},
		"two keys":              {two, malformed},
	} {
		if got := classify(c.r); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

// Requests that are not upgrades keep the server's writer and request, and no function of a rule sees them. Neither does
// it see handshakes that are refused without it.
func TestOthersAskNobody(t *testing.T) {
	g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", 1), Key: func(*http.Request) (string, error) {
		t.Error("the Key is asked")
		return "x", nil
	}}}})
	for _, r := range []*http.Request{httptest.NewRequest("GET", "/", nil), changed("Sec-WebSocket-Key", "")} {
		w, called := httptest.NewRecorder(), false
		g.Handler(http.HandlerFunc(func(got http.ResponseWriter, with *http.Request) {
			_, guarded := FromContext(with.Context())
			called = got == http.ResponseWriter(w) && with == r && !guarded
		})).ServeHTTP(w, r)
		if !called || len(w.Header()) != 0 {
			t.Errorf("%v: passed on %v, header %v", r.Header, called, w.Header())
		}
	}
	w := httptest.NewRecorder()
	if g.Handler(http.NotFoundHandler()).ServeHTTP(w, changed("Sec-WebSocket-Key", "junk")); w.Code != 400 {
		t.Error(w.Code)
	}
}

// A WebSocket over HTTP/2, as a client and net/http speak it, is refused. It takes no slot, and no handler sees it.
// net/http accepts it only in a process that has started with a GODEBUG.
func TestOverHTTP2(t *testing.T) {
	const setting = "http2xconnect=1"
	if os.Getenv("GODEBUG") != setting {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestOverHTTP2$")
		again.Env = append(os.Environ(), "GODEBUG="+setting)
		if out, err := again.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestOverHTTP2")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	slots := core.NewSlots(new(core.MemoryStore), "ws", 1)
	g := mustNew(t, Config{Rules: []Rule{{Slots: slots, Key: func(*http.Request) (string, error) {
		t.Error("the Key is asked")
		return "x", nil
	}}}})
	server := httptest.NewUnstartedServer(g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("it was passed on")
	})))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	transport := &http2.Transport{TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodConnect, server.URL+"/ws", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{":protocol": {"websocket"}, "Sec-Websocket-Version": {"13"}}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.ProtoMajor != 2 || response.StatusCode != http.StatusNotImplemented || response.Header.Get("Retry-After") != "" {
		t.Errorf("%s %d %v", response.Proto, response.StatusCode, response.Header)
	}
	if len(g.oldestFirst()) != 0 {
		t.Error("there is a socket")
	}
}

const secret = "anna@example.com" // a key

func secretKey(*http.Request) (string, error) { return secret, nil }

func failing(err error) keyfuncs.Func {
	return func(*http.Request) (string, error) { return "", err }
}

func TestRefusals(t *testing.T) {
	const (
		quota = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["ws"]}`
		full  = `"ws";q=0;qu="concurrent-requests"`
	)
	blank := func(status, title string) string {
		return `{"type":"about:blank","title":"` + title + `","status":` + status + `}`
	}
	away, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailClosed, SlotTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Client().Close()
	slots := func(s core.Store, name string, limit int64) *core.Slots { return core.NewSlots(s, name, limit) }
	rule := func(limit int64) Rule {
		return Rule{Slots: slots(new(core.MemoryStore), "ws", limit), Key: secretKey}
	}
	of := func(limit int64, change func(*Rule)) []Rule {
		r := rule(limit)
		change(&r)
		return []Rule{r}
	}
	limiter := newLimiter(core.Unlimited())
	closed := slots(new(core.MemoryStore), "ws", 1)
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		config  Config
		status  int
		limit   string // the RateLimit field
		body    string
		err     error
		limiter string
	}{
		{"full", Config{Rules: []Rule{rule(0)}}, 429, `"ws";r=0`, quota, nil, "ws"},
		{"the second of two", Config{Rules: []Rule{{Slots: slots(new(core.MemoryStore), "first", 9), Key: secretKey}, rule(0)}}, 429, `"ws";r=0`, quota, nil, "ws"},
		{"the service is full", Config{Rules: of(0, func(r *Rule) { r.WhenFull = Unavailable })}, 503, "", blank("503", "Service Unavailable"), nil, "ws"},
		{"nobody to evict", Config{Rules: of(0, func(r *Rule) { r.WhenFull = EvictOldest })}, 429, `"ws";r=0`, quota, nil, "ws"},
		{"the store is away", Config{Rules: of(1, func(r *Rule) { r.Slots = slots(away, "ws", 1) })}, 503, "", blank("503", "Service Unavailable"), core.ErrUnavailable, ""},
		{"the slots are closed", Config{Rules: of(1, func(r *Rule) { r.Slots = closed })}, 503, "", blank("503", "Service Unavailable"), core.ErrClosed, ""},
		{"no key", Config{Rules: of(1, func(r *Rule) { r.Key = failing(keyfuncs.ErrAbsent) })}, 400, "", blank("400", "Bad Request"), keyfuncs.ErrAbsent, "ws"},
		{"an empty key", Config{Rules: of(1, func(r *Rule) { r.Key = failing(nil) })}, 400, "", blank("400", "Bad Request"), nil, "ws"},
		{"a Key that fails", Config{Rules: of(1, func(r *Rule) { r.Key = failing(keyfuncs.ErrProgram) })}, 500, "", blank("500", "Internal Server Error"), keyfuncs.ErrProgram, "ws"},
		{"a Plan that fails", Config{Rules: of(1, func(r *Rule) { r.Plan = failing(keyfuncs.ErrProgram) })}, 500, "", blank("500", "Internal Server Error"), keyfuncs.ErrProgram, "ws"},
		{"no key for messages", Config{Rules: []Rule{rule(1)}, Messages: []Inbound{{Limiter: limiter}, {Limiter: limiter, Key: failing(keyfuncs.ErrAbsent)}}}, 400, "", blank("400", "Bad Request"), keyfuncs.ErrAbsent, "sent"},
		{"a Key for bytes that fails", Config{Rules: []Rule{rule(1)}, Bytes: []Inbound{{Limiter: limiter, Key: failing(keyfuncs.ErrProgram)}}}, 500, "", blank("500", "Internal Server Error"), keyfuncs.ErrProgram, "sent"},
	} {
		for _, page := range []bool{false, true} {
			var verdict *nethttp.Verdict
			var log bytes.Buffer
			c.config.Logger = slog.New(slog.NewTextHandler(&log, nil))
			c.config.OnRefused = func(w http.ResponseWriter, _ *http.Request, v *nethttp.Verdict) {
				if verdict = v; page {
					http.Error(w, "a page", v.Status)
				}
			}
			g, w := mustNew(t, c.config), httptest.NewRecorder()
			g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })).ServeHTTP(w, upgradeRequest())
			h, body := w.Header(), c.body
			if page {
				body = "a page\n"
			}
			if w.Code != c.status || h.Get("RateLimit") != c.limit || w.Body.String() != body || h.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %d %v %s", c.name, w.Code, h, w.Body)
			}
			if policy := h.Get("RateLimit-Policy"); (c.limit != "") != strings.HasSuffix(policy, full) {
				t.Errorf("%s: %s", c.name, policy)
			}
			after, _ := time.ParseDuration(h.Get("Retry-After") + "s")
			if waits := c.status == 429 || c.status == 503; waits != (after >= 5*time.Second && after <= 10*time.Second) {
				t.Errorf("%s: %v", c.name, h)
			}
			if verdict.Status != c.status || verdict.Limiter != c.limiter || c.err != nil && !errors.Is(verdict, c.err) || (c.err == nil && c.status != 400) != (verdict.Err == nil) {
				t.Errorf("%s: %v", c.name, verdict)
			}
			if strings.Contains(fmt.Sprintf("%v %+v %s %s", verdict, verdict, verdict.Error(), log.String()), secret) || c.limiter == "ws" && c.err == nil && c.status != 400 && verdict.Key() != secret {
				t.Errorf("%s: %+v, log %s", c.name, verdict, log.String())
			}
			if n := len(g.oldestFirst()); n != 0 {
				t.Errorf("%s: %d sockets", c.name, n)
			}
		}
	}
}

// A guard tells why it refuses without a decision, at most once a minute, and that all clients share the key of a proxy.
func TestFaultsAreLogged(t *testing.T) {
	for want, key := range map[string]keyfuncs.Func{"absent: header User": keyfuncs.Header("User"), "the key is the address of a proxy": keyfuncs.RemoteAddr()} {
		synctest.Test(t, func(t *testing.T) {
			var text bytes.Buffer
			g := mustNew(t, Config{Rules: []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", 9), Key: key}}, Logger: slog.New(slog.NewTextHandler(&text, nil))})
			for range 5 {
				r := changed("X-Forwarded-For", "203.0.113.7")
				r.RemoteAddr = "10.0.0.1:80"
				g.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
				time.Sleep(10 * time.Second)
			}
			if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "headgate: websocketmw: ") || !strings.Contains(got, "limit=ws") || !strings.Contains(got, want) {
				t.Error(got)
			}
		})
	}
}

// A Plan chooses the limit of slots, and of what is sent, also where each socket is counted alone.
func TestPlans(t *testing.T) {
	slots := core.NewSlots(new(core.MemoryStore), "ws", 1).WithPlan("gold", 2)
	g := mustNew(t, Config{
		Rules:    []Rule{{Slots: slots, Key: keyfuncs.Header("User"), Plan: keyfuncs.Header("Plan")}},
		Messages: []Inbound{{Limiter: newLimiter(core.SlidingLog(1, time.Hour)).WithPlan("gold", core.SlidingLog(3, time.Hour)), Plan: keyfuncs.Header("Plan")}},
	})
	for plan, want := range map[string]struct{ sockets, messages int64 }{"": {1, 1}, "silver": {1, 1}, "gold": {2, 3}} {
		sockets := int64(0)
		for range 5 {
			s, a := g.admit(changed("User", "user of "+plan, "Plan", plan), upgrade)
			if s == nil {
				if a.Status != 429 {
					t.Error(a.Status)
				}
				continue
			}
			sockets++
			count := s.in.counts[0]
			if _, n, err := count.limiter.AllowAtMost(t.Context(), count.key, 9); n != want.messages || err != nil {
				t.Errorf("%q: %d messages, %v", plan, n, err)
			}
		}
		if sockets != want.sockets {
			t.Errorf("%q: %d sockets", plan, sockets)
		}
	}
}

// If Shutdown begins while an upgrade is being admitted, its slot is given back.
func TestShutdownDuringAHandshake(t *testing.T) {
	slots := core.NewSlots(new(core.MemoryStore), "ws", 1)
	var g *Guard
	asked := 0
	g = mustNew(t, Config{Rules: []Rule{{Slots: slots, Key: func(*http.Request) (string, error) {
		asked++
		g.drain()
		return "x", nil
	}}}})
	for range 2 {
		if s, a := g.admit(upgradeRequest(), upgrade); s != nil || a.Status != 503 || !errors.Is(a.Err, core.ErrClosed) || a.RetryAfter < 5*time.Second || asked != 1 {
			t.Errorf("%v, %+v", s, a)
		}
	}
	if n, err := slots.Count(t.Context(), "x"); n != 0 || err != nil {
		t.Errorf("%d slots are held: %v", n, err)
	}
	for range 2 {
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := slots.Acquire(t.Context(), "x"); !errors.Is(err, core.ErrClosed) {
		t.Error(err)
	}
}

// The guard's writer has Hijack only if the server's has it, and the slot is given back if it fails.
func TestNoHijack(t *testing.T) {
	for want, w := range map[error]http.ResponseWriter{http.ErrNotSupported: httptest.NewRecorder(), io.ErrClosedPipe: inside{noHijack{httptest.NewRecorder()}}} {
		g := newGuard(t, Config{})
		var s *Socket
		g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s, _ = FromContext(r.Context())
			if _, ok := w.(http.Hijacker); ok != (want == io.ErrClosedPipe) { //nolint:errorlint // it is one of these
				t.Errorf("%v: it can hijack: %v", want, ok)
			}
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, want) {
				t.Error(err)
			}
			w.(http.Flusher).Flush()
		})).ServeHTTP(w, upgradeRequest())
		if g.held(t) != 0 || g.open() != 0 || s.Context().Err() == nil {
			t.Errorf("%v: %d slots, %v", want, g.held(t), s.Context().Err())
		}
	}
}

// A noHijack is a writer whose Hijack fails, and inside is one that has none, around it.
type (
	noHijack struct{ http.ResponseWriter }
	inside   struct{ http.ResponseWriter }
)

func (noHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, io.ErrClosedPipe }
func (w inside) Unwrap() http.ResponseWriter                  { return w.ResponseWriter }
