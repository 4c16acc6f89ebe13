package canary

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/outgoing"
	"github.com/headgate/headgate/websocketmw"
)

// The exceptions, which are documented:
//
//   - What a program fills in itself, and Config with a Secret, is hidden where package fmt calls
//     its Format method: not in an unexported field of a program's own struct. They are only
//     printed by spill.value here, all else by spill.deep.
//   - stats.Config.ShowKeys shows keys.
//   - The Key methods of events and verdicts return the key.
//   - Redis has readable keys without a Secret.

// must ends the test at an error.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func orNil(err error) error {
	if err == nil {
		return errors.New("back")
	}
	return err
}

// A world is what the tests have in common: everything that happens in it is looked at.
type world struct {
	*spill

	t     *testing.T
	stats *stats.Stats
	log   bytes.Buffer // of the stats
}

func newWorld(t *testing.T) *world {
	w := &world{spill: newSpill(t), t: t}
	t.Cleanup(func() { skipped = skipped || t.Skipped() })
	c := stats.Config{Logger: slog.New(slog.NewTextHandler(&w.log, nil))}
	w.value("stats.Config", c)
	w.stats = stats.New(c)
	t.Cleanup(w.counted)
	return w
}

// observers look at all events.
func (w *world) observers() []*core.Observer {
	return []*core.Observer{w.stats.Observer(), {
		Decided:  func(_ context.Context, e core.DecisionEvent) { w.deep("DecisionEvent", e) },
		Settled:  func(_ context.Context, e core.SettleEvent) { w.deep("SettleEvent", e) },
		Acquired: func(_ context.Context, e core.SlotEvent) { w.deep("SlotEvent", e) },
		Released: func(slots string) { w.text("Released", slots) },
		Changed:  func(err error) { w.deep("Changed", fmt.Errorf("changed: %w", orNil(err))) },
	}}
}

// counted looks at what was counted, at the end of a test.
func (w *world) counted() {
	w.value("Stats", w.stats)
	w.deep("Families", w.stats.Families())
	var b bytes.Buffer
	if err := w.stats.WritePrometheus(&b); err != nil {
		w.t.Error(err)
	}
	w.text("the text for Prometheus", b.String())
	for _, path := range []string{"/", "/?refresh=5", "/json", "/metrics", "/" + key} {
		recorder := httptest.NewRecorder()
		w.stats.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		if recorder.Code != http.StatusNotFound {
			w.answer("the page "+path, recorder.Result())
		}
	}
	w.text("the log of the stats", w.log.String())
}

// memory returns a store in memory.
func (w *world) memory() *core.MemoryStore {
	s := &core.MemoryStore{Observers: w.observers()}
	w.value("MemoryStore", s)
	w.t.Cleanup(func() { w.value("MemoryStore", s) })
	return s
}

// stores are those that decide, and count slots.
func (w *world) stores() map[string]core.Store {
	redisURL := "redis://:" + password + "@" + w.redis().Addr()
	inRedis := func(c redisstore.Config) *redisstore.Store {
		c.Observers, c.Timeout = w.observers(), 5*time.Second
		w.value("redisstore.Config", c)
		s := must[*redisstore.Store](w.t)(redisstore.Open(redisURL, c))
		w.t.Cleanup(func() {
			w.value("redisstore.Store", s)
			_ = s.Close(context.WithoutCancel(w.t.Context()))
		})
		return s
	}
	return map[string]core.Store{
		"memory": w.memory(), "Redis": inRedis(redisstore.Config{}), "Redis with a Secret": inRedis(redisstore.Config{Secret: []byte(secret), Prefix: "hashed"}),
		"Redis with leases": inRedis(redisstore.Config{Lease: time.Second, Prefix: "leased"}),
	}
}

func (w *world) redis() *redistest.Server {
	server := redistest.Start(w.t)
	if _, err := server.Do("ACL", "SETUSER", "default", "on", "nopass", ">"+password); err != nil {
		w.t.Fatal(err)
	}
	return server
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	for name, s := range w.stores() {
		w.limits(name, s)
	}
}

// limits decides in a store, in every way.
func (w *world) limits(name string, s core.Store) {
	ctx := w.t.Context()
	several := core.NewLimiter(s, "several", core.SlidingLog(2, time.Minute).Named("log"), core.FixedWindow(9, time.Minute).Named("window")).
		WithPlan("gold", core.SlidingLog(2, time.Minute).Named("log"), core.FixedWindow(90, time.Minute).Named("window"))
	one := core.NewLimiter(s, "one", core.TokenBucket(3, time.Minute).Debt(9))
	w.value(name+": Limiter", one)
	w.value(name+": Limiter with plans", several)
	decided := func(what string, d core.Decision, err error) {
		w.deep(name+": "+what, d)
		for a := range d.Answers() {
			w.deep(name+": Answer", a)
		}
		if err != nil {
			w.deep(name+": the error of "+what, err)
		}
	}
	for range 4 {
		for _, l := range []*core.Limiter{one, several, several.Plan("gold")} {
			d, err := l.Allow(ctx, key)
			decided("Allow", d, err)
			d, err = l.Peek(ctx, key)
			decided("Peek", d, err)
		}
	}
	for _, n := range []int64{0, 1, 100} {
		d, err := one.AllowN(ctx, key+"2", n)
		decided("AllowN", d, err)
		w.deep(name+": Settle", orNil(d.Settle(ctx, 2)))
		w.deep(name+": Settle twice", orNil(d.Settle(ctx, 2, 3)))
		w.deep(name+": Refund", orNil(d.Refund(ctx)))
		decided("a settled Decision", d, nil)
		d, _, err = one.AllowAtMost(ctx, key+"3", n)
		decided("AllowAtMost", d, err)
		d, err = one.Report(ctx, key+"4", n)
		decided("Report", d, err)
	}
	charges := []core.Charge{one.Charge(key+"5", 1), several.Charge(key+"5", 1)}
	w.deep(name+": Charge", charges[0])
	w.deep(name+": Charges", charges)
	for range 3 {
		d, err := core.AllowAll(ctx, charges...)
		decided("AllowAll", d, err)
	}
	_, err := core.AllowAll(ctx, charges[0], charges[0])
	w.deep(name+": the same twice", orNil(err))
	wrong := one.WithPlanFunc(func(string) ([]core.Policy, error) { return []core.Policy{core.SlidingLog(-1, time.Minute)}, nil })
	d, err := wrong.Plan("wrong").Allow(ctx, key)
	decided("Allow of a wrong plan", d, err)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	d, err = one.Allow(ended, key)
	decided("Allow without time", d, err)
	_, err = one.Wait(ended, key)
	w.deep(name+": Wait", orNil(err))
	_, err = one.WaitN(ctx, key, 100)
	w.deep(name+": WaitN", orNil(err))
	w.deep(name+": Reset", orNil(one.Reset(ctx, key)))
}

func TestSlots(t *testing.T) {
	w := newWorld(t)
	for name, s := range w.stores() {
		ctx := t.Context()
		slots := core.NewSlots(s, "slots", 1).WithPlan("gold", 2)
		w.value(name+": Slots", slots)
		slot := must[*core.Slot](t)(slots.Acquire(ctx, key))
		w.deep(name+": Slot", slot)
		_, err := slots.Acquire(ctx, key)
		w.deep(name+": a full key", orNil(err))
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_, err = slots.Wait(short, key, 3)
		cancel()
		w.deep(name+": a full key after a wait", orNil(err))
		must[int64](t)(slots.Count(ctx, key))
		w.value(name+": Slots", slots)
		slot.Release()
		w.deep(name+": a Slot that was released", slot)
		w.deep(name+": Close", orNil(slots.Close(ctx)))
		_, err = slots.Acquire(ctx, key)
		w.deep(name+": Acquire after Close", orNil(err))
	}
}

// Redis that goes away, and one that refuses the password.
func TestErrorsOfRedis(t *testing.T) {
	w := newWorld(t)
	server := w.redis()
	for _, f := range []redisstore.Failure{redisstore.FailLocal, redisstore.FailOpen, redisstore.FailClosed} {
		c := redisstore.Config{Observers: w.observers(), Secret: []byte(secret), Failure: f, Timeout: 50 * time.Millisecond}
		for _, url := range []string{"redis://:" + password + "@" + server.Addr(), "redis://" + canary + ":" + password + "@" + server.Addr(), "redis://:" + password + "@127.0.0.1:1"} {
			s := must[*redisstore.Store](t)(redisstore.Open(url, c))
			w.value("redisstore.Store", s)
			w.deep("Check", orNil(s.Check(t.Context())))
			l, slots := core.NewLimiter(s, "api", core.SlidingLog(2, time.Minute)), core.NewSlots(s, "slots", 1)
			for range 4 {
				d, err := l.Allow(t.Context(), key)
				w.deep("Decision", d)
				w.deep("Allow", orNil(err))
				_, err = slots.Acquire(t.Context(), key)
				w.deep("Acquire", orNil(err))
				w.deep("Reset", orNil(l.Reset(t.Context(), key)))
			}
			w.deep("Away", orNil(s.Away()))
			w.deep("Close", orNil(s.Close(t.Context())))
		}
	}
	for _, url := range []string{"redis://:" + password + "@h:port", "redis://" + password + "/x@h", "http://" + password, "redis://u:1#" + password + "@h"} {
		if _, err := redisstore.Open(url, redisstore.Config{}); err != nil {
			w.deep("Open", err)
		}
	}
	_, err := redisstore.Open("redis://h", redisstore.Config{Secret: []byte(canary), Timeout: -1})
	w.deep("Open of a wrong Config", orNil(err))
}

const document = `{"limits": {"api": {"plans": {"free": {"minute": "sliding-log 2/minute"}}, "overrides": [
	{"key": "` + key + `", "plan": "free"}, {"prefix": "` + key + `", "policies": {"minute": "sliding-log 5/minute"}, "until": "2020-01-01T00:00:00Z"}]}},
	"slots": {"ws": {"plans": {"free": 1}, "overrides": [{"key": "` + key + `", "slots": 2}]}}}`

// wrongDocuments have the key in their faults.
var wrongDocuments = []string{
	`{"limits": {"api": {"` + key + `": 1}}}`, strings.Replace(document, `"plan": "free"`, `"plan": "`+key+`"`, 1), document[:300], strings.ReplaceAll(document, "prefix", "key"),
}

func TestDocuments(t *testing.T) {
	w := newWorld(t)
	client := redis.NewClient(&redis.Options{Addr: w.redis().Addr(), Password: password, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	memory := w.memory()
	c := limits.Config{Initial: []byte(document), OnChange: func(s limits.State) { w.deep("State", s) }}
	w.value("limits.Config", c)
	for i, text := range append(slices.Clone(wrongDocuments), document) {
		source := func(context.Context) ([]byte, error) { return []byte(text), nil }
		book, err := limits.Open(t.Context(), memory, source, limits.Config{})
		w.deep("Open", orNil(err))
		if (err == nil) != (i == len(wrongDocuments)) {
			t.Errorf("%d: %v", i, err)
		}
		if err == nil {
			book.Close()
		}
		w.deep("Push", orNil(redisdoc.Push(t.Context(), client, "limits", []byte(text))))
	}
	book := must[*limits.Book](t)(redisdoc.Open(t.Context(), memory, client, "limits", c))
	t.Cleanup(book.Close)
	w.value("Book", book)
	w.deep("State", book.State())
	api, slots := must[*core.Limiter](t)(book.Limiter("api")), must[*core.Slots](t)(book.Slots("ws"))
	w.value("a Limiter of a document", api)
	w.value("Slots of a document", slots)
	_, err := book.Limiter(key)
	if err == nil {
		t.Error("a limiter that is not there")
	}
	for range 3 {
		d, err := api.Plan("free").Allow(t.Context(), key)
		w.deep("Decision", d)
		w.deep("Allow", orNil(err))
		_, err = slots.Acquire(t.Context(), key)
		w.deep("Acquire", orNil(err))
	}
	if err := client.HSet(t.Context(), "limits", "version", 99, "document", wrongDocuments[1]).Err(); err == nil {
		w.deep("Reload", orNil(book.Reload(t.Context())))
	}
	w.deep("State of a fault", book.State())
}

// keyFunctions are all of package keyfuncs, by their names there.
func keyFunctions(t *testing.T) map[string]keyfuncs.Func {
	cookie := must[*keyfuncs.SignedCookie](t)(keyfuncs.NewSignedCookie("c", time.Hour, []byte(secret)))
	tagged := []keyfuncs.Tagged{keyfuncs.Tag("c", keyfuncs.Cookie("c")), keyfuncs.Tag("b", keyfuncs.Bearer())}
	return map[string]keyfuncs.Func{
		"Header": keyfuncs.Header("User"), "Cookie": keyfuncs.Cookie("c"), "Bearer": keyfuncs.Bearer(), "Key": cookie.Key, "OlderThan": cookie.OlderThan(time.Minute),
		"RemoteAddr": keyfuncs.RemoteAddr(), "XForwardedFor": keyfuncs.XForwardedFor("127.0.0.0/8"), "Forwarded": keyfuncs.Forwarded("127.0.0.0/8"),
		"ProxyHeader": keyfuncs.ProxyHeader("X-Real-Ip", "127.0.0.0/8"), "BehindProxies": keyfuncs.BehindProxies(1), "Network": keyfuncs.Network(keyfuncs.RemoteAddr(), 24, 48),
		"Context": keyfuncs.Context(key), "PathValue": keyfuncs.PathValue("x"), "Route": keyfuncs.Route(),
		"All": keyfuncs.All(keyfuncs.Header("User"), keyfuncs.Cookie("c")), "First": keyfuncs.First(tagged...), "Hashed": keyfuncs.Hashed(keyfuncs.Header("User")),
		"Everyone": keyfuncs.Everyone(), "From": keyfuncs.From(func(r *http.Request) (string, bool) { return "", r.Header.Get("User") == key }),
	}
}

func TestKeyFunctions(t *testing.T) {
	w := newWorld(t)
	cookie := must[*keyfuncs.SignedCookie](t)(keyfuncs.NewSignedCookie("c", time.Hour, []byte(secret)))
	w.deep("SignedCookie", cookie)
	_, err := keyfuncs.NewSignedCookie("c", time.Hour, []byte(canary))
	w.deep("NewSignedCookie", orNil(err))
	w.deep("Tagged", keyfuncs.Tag("c", keyfuncs.Cookie("c")))
	for name, f := range keyFunctions(t) {
		for _, remote := range []string{"127.0.0.1:1", key, key + ":1", ""} {
			for _, value := range []string{key, "", key + "," + key, "Bearer " + key + " " + key, "Basic " + key, "Basic " + base64.StdEncoding.EncodeToString([]byte(key)), "for=" + key, "c=" + key + "; c=" + key, "for=\"" + key} {
				r := httptest.NewRequest("GET", "/"+key, nil)
				r.RemoteAddr = remote
				for _, field := range []string{"User", "Cookie", "Authorization", "X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
					r.Header[field] = []string{value, value}
				}
				if _, err := f(r); err != nil && name != "Context" { // whose argument the program chose
					w.deep(name, err)
				}
			}
		}
	}
}

// header is the field that has the key.
const header = "User"

var byUser = keyfuncs.Header(header)

// requests asks a handler until it refuses, and without a key.
func (w *world) requests(what string, h http.Handler) {
	for i := range 4 {
		r := httptest.NewRequest("GET", "/", nil)
		if r.Header.Set(header, key); i == 3 {
			r.Header.Del(header)
		}
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, r)
		w.answer(what, recorder.Result())
		if i > 1 && recorder.Code < 400 {
			w.t.Errorf("%s: %d", what, recorder.Code)
		}
	}
}

func TestGuards(t *testing.T) {
	w := newWorld(t)
	memory := w.memory()
	var log bytes.Buffer
	guard := func(name string, slots int64) *nethttp.Guard {
		c := nethttp.Config{
			Rates: []nethttp.Rate{
				{Limiter: core.NewLimiter(memory, name, core.SlidingLog(2, time.Hour)), Key: byUser, Settle: func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }},
				{Limiter: core.NewLimiter(memory, name+"-next", core.Blocked()), Key: byUser, ObserveOnly: true},
			},
			Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(memory, name+"-slots", slots), Key: byUser}},
			Observe:     func(_ *http.Request, v *nethttp.Verdict) { w.verdict(v) },
			OnRefused:   func(_ http.ResponseWriter, _ *http.Request, v *nethttp.Verdict) { w.verdict(v) },
			KeepVerdict: true,
			Logger:      slog.New(slog.NewTextHandler(&log, nil)),
		}
		w.value("nethttp.Config", c)
		w.value("nethttp.Rate", c.Rates[0])
		w.value("nethttp.Concurrency", c.Concurrency[0])
		g := must[*nethttp.Guard](t)(nethttp.New(c))
		w.value("nethttp.Guard", g)
		return g
	}
	ok := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		v, ok := nethttp.VerdictFrom(r.Context())
		if w.verdict(v); !ok {
			t.Error("no verdict")
		}
		w.deep("SetCost", orNil(nethttp.SetCost(r.Context(), nil, 1)))
		w.deep("the context", r.Context())
	})
	w.requests("nethttp", guard("nethttp", 9).Handler(ok))
	w.requests("nethttp without slots", guard("full", 0).Handler(ok))
	w.requests("MaxInFlight", nethttp.MaxInFlight(memory, "inflight", byUser, 0).Handler(ok))

	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.Use(func(c *gin.Context) {
		c.Next()
		w.text("c.Errors", c.Errors.String())
		for _, err := range c.Errors {
			w.deep("an error of Gin", err.Err)
		}
	}, ginmw.Middleware(guard("gin", 9)))
	g.GET("/", func(c *gin.Context) { ok(c.Writer, c.Request) })
	w.requests("gin", g)
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		w.deep("an error of Echo", err)
		e.DefaultHTTPErrorHandler(err, c)
	}
	e.Use(echomw.Middleware(guard("echo", 9)))
	e.GET("/", func(c echo.Context) error { ok(c.Response(), c.Request()); return nil })
	w.requests("echo", e)
	e5 := echov5.New()
	answer := echov5.DefaultHTTPErrorHandler(true)
	e5.HTTPErrorHandler = func(c *echov5.Context, err error) {
		w.deep("an error of Echo 5", err)
		answer(c, err)
	}
	e5.Use(echov5mw.Middleware(guard("echo5", 9)))
	e5.GET("/", func(c *echov5.Context) error { ok(c.Response(), c.Request()); return nil })
	w.requests("echo5", e5)
	w.text("the log", log.String())
}

// verdict prints a verdict. Not its numbers by %t, which reads what pointers point to: decisions share bits, which are
// set when one is settled.
func (w *world) verdict(v *nethttp.Verdict) {
	w.deep("nethttp.Verdict", *v)
	w.deep("a pointer to a Verdict", v)
}

func TestOutgoing(t *testing.T) {
	w := newWorld(t)
	transport := &outgoing.Transport{Limiter: core.NewLimiter(w.memory(), "outgoing", core.SlidingLog(1, time.Hour)), Key: byUser, MaxWait: time.Nanosecond}
	w.value("Transport", transport)
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	for i := range 3 {
		r := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), "GET", server.URL, nil))
		if r.Header.Set(header, key); i == 2 {
			r.Header.Del(header)
		}
		response, err := transport.RoundTrip(r)
		w.deep("RoundTrip", orNil(err))
		if err == nil {
			w.answer("RoundTrip", response)
		}
	}
	w.value("Transport", transport)
}

func TestSockets(t *testing.T) {
	w := newWorld(t)
	memory := w.memory()
	slots := core.NewSlots(memory, "ws", 1)
	var log bytes.Buffer
	ended := make(chan struct{}, 9)
	c := websocketmw.Config{
		Rules: []websocketmw.Rule{
			{Slots: slots, Key: byUser}, {Slots: core.NewSlots(memory, "all", 9), Key: keyfuncs.Everyone(), WhenFull: websocketmw.Unavailable},
		},
		Messages:  []websocketmw.Inbound{{Limiter: core.NewLimiter(memory, "in", core.SlidingLog(1, time.Hour)), Key: byUser}},
		OnRefused: func(_ http.ResponseWriter, _ *http.Request, v *nethttp.Verdict) { w.verdict(v) },
		OnClosed: func(s *websocketmw.Socket, err error) {
			w.value("Socket", s)
			w.deep("OnClosed", orNil(err))
			ended <- struct{}{}
		},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	w.value("websocketmw.Config", c)
	w.value("websocketmw.Rule", c.Rules[0])
	w.value("websocketmw.Inbound", c.Messages[0])
	g := must[*websocketmw.Guard](t)(websocketmw.New(c))
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	server := httptest.NewServer(g.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s, ok := websocketmw.FromContext(r.Context())
		if !ok {
			return
		}
		w.value("Socket", s)
		conn, err := up.Upgrade(rw, r, nil)
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
		if conn != nil {
			_ = conn.Close()
		}
		w.deep("the end of a socket", err)
		w.deep("the cause", orNil(context.Cause(s.Context())))
	})))
	t.Cleanup(server.Close)
	dial := func(h http.Header) *websocket.Conn {
		conn, response, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), h)
		if response != nil {
			w.answer("a handshake", response)
		}
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	user := http.Header{header: {key}}
	conn := dial(user)
	if conn == nil || dial(user) != nil || dial(nil) != nil {
		t.Fatal("not one socket, or not only one")
	}
	w.value("websocketmw.Guard", g)
	for range 3 {
		_ = conn.WriteMessage(websocket.TextMessage, []byte("x"))
	}
	_, _, err := conn.ReadMessage()
	w.deep("a socket over its limit", err)
	<-ended
	if conn = dial(user); conn == nil {
		t.Fatal("not a second socket")
	}
	go conn.ReadMessage()
	n, err := g.CloseAll(t.Context(), slots, key, 4000, "bye")
	if w.deep("the error of CloseAll", orNil(err)); n != 1 {
		t.Errorf("%d are closed", n)
	}
	<-ended
	w.deep("Shutdown", orNil(g.Shutdown(t.Context())))
	w.value("websocketmw.Guard", g)
	w.text("the log", log.String())
}
