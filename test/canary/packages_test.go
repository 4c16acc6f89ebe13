package canary

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
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
	"github.com/headgate/headgate/core/debug"
	"github.com/headgate/headgate/core/lease"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

// The exceptions, which are documented:
//
//   - What a program fills in itself, and Config with a Secret, is hidden where package fmt calls
//     its Format method: not in an unexported field of a program's own struct. They are only
//     printed by spill.value here, all else by spill.deep.
//   - stats.Config.ShowKeys shows keys.
//   - The JSON of a limits.Document has the keys of its overrides.
//   - store.Observer.Refused and SlotRefused are told of the key.
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

// A world is what the tests have in common: everything that happens in it is looked at.
type world struct {
	*spill

	t        *testing.T
	stats    *stats.Stats
	limiters []*core.Limiter
}

func newWorld(t *testing.T) *world {
	w := &world{spill: newSpill(t), t: t}
	t.Cleanup(func() { skipped = skipped || t.Skipped() })
	c := stats.Config{Secret: []byte(secret), WarnAt: 50}
	w.value("stats.Config", c)
	w.stats = must[*stats.Stats](t)(stats.New(c))
	t.Cleanup(w.counted)
	return w
}

// observer looks at all events.
func (w *world) observer() *core.Observer {
	return core.Observers(w.stats.Observer(), &core.Observer{
		Timed: true, Shares: true,
		Decided:       func(_ context.Context, e core.DecisionEvent) { w.deep("DecisionEvent", e) },
		Refused:       func(_ context.Context, e core.DecisionEvent, _ string) { w.deep("DecisionEvent", e) },
		Settled:       func(_ context.Context, e core.SettleEvent) { w.deep("SettleEvent", e) },
		SlotAcquired:  func(_ context.Context, e core.SlotEvent) { w.deep("SlotEvent", e) },
		SlotRefused:   func(_ context.Context, e core.SlotEvent, _ string) { w.deep("SlotEvent", e) },
		SlotReleased:  func(slots string) { w.text("SlotReleased", slots) },
		SlotsLost:     func(held int64) { w.deep("SlotsLost", held) },
		SlotsRestated: func(keys int) { w.deep("SlotsRestated", keys) },
		Called:        func(e core.CallEvent) { w.deep("CallEvent", e) },
		Changed:       func(err error) { w.deep("Changed", fmt.Errorf("changed: %w", orNil(err))) },
	})
}

func orNil(err error) error {
	if err == nil {
		return fmt.Errorf("back")
	}
	return err
}

// counted looks at what was counted, at the end of a test.
func (w *world) counted() {
	w.deep("Snapshot", w.stats.Snapshot())
	w.value("Stats", w.stats)
	w.deep("Families", w.stats.Families())
	var b bytes.Buffer
	if err := w.stats.WritePrometheus(&b); err != nil {
		w.t.Error(err)
	}
	w.text("the text for Prometheus", b.String())
	handler := debug.Handler(w.stats, debug.Config{Limits: func() debug.Limits { return debug.Limits{Version: "1", Limiters: w.limiters} }})
	for _, path := range []string{"/", "/?refresh=5", "/json", "/metrics", "/vars", "/" + key} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		w.answer("the debug page "+path, recorder.Result())
	}
}

// stores are those that decide, and count slots.
func (w *world) stores() map[string]core.FullStore {
	c := memstore.Config{Observer: w.observer()}
	w.value("memstore.Config", c)
	memory := memstore.New(c)
	w.stats.AddMemory("memory", memory)
	w.t.Cleanup(func() {
		w.value("memstore.Store", memory)
		w.deep("memstore.Stats", memory.Stats())
	})
	redisURL := "redis://:" + password + "@" + w.redis().Addr()
	inRedis := func(c redisstore.Config) *redisstore.Store {
		c.Observer, c.Timeout = w.observer(), 5*time.Second
		w.value("redisstore.Config", c)
		s := must[*redisstore.Store](w.t)(redisstore.OpenURL(redisURL, c))
		w.t.Cleanup(func() { _ = s.Client().Close() })
		return s
	}
	hashed := inRedis(redisstore.Config{Secret: []byte(secret), Prefix: "hashed"})
	return map[string]core.FullStore{"memory": memory, "Redis": inRedis(redisstore.Config{}), "Redis with a Secret": hashed}
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
	c := lease.Config{For: lease.DefaultFor}
	w.value("lease.Config", c)
	leased := must[*lease.Store](t)(lease.New(memstore.New(memstore.Config{Observer: w.observer()}), c))
	w.limits("leases", leased)
	w.value("lease.Store", leased)
	if err := leased.Close(t.Context()); err != nil {
		t.Error(err)
	}
	w.value("lease.Store", leased)
}

// limits decides in a store, in every way.
func (w *world) limits(name string, s core.Store) {
	ctx := w.t.Context()
	several := must[*core.Limiter](w.t)(core.New(s, "several", core.SlidingLog(core.PerMinute(2)).Named("log"), core.FixedWindow(core.PerMinute(9)).Named("window")))
	one := must[*core.Limiter](w.t)(core.New(s, "one", core.TokenBucket(core.PerMinute(3), 3)))
	w.limiters = append(w.limiters, several, one)
	w.value(name+": Limiter", one)
	decided := func(what string, d core.Decision, err error) {
		w.deep(name+": "+what, d)
		for i := range d.Len() {
			w.deep(name+": Answer", d.Answer(i))
		}
		if err != nil {
			w.deep(name+": the error of "+what, err)
		}
	}
	for range 4 {
		for _, l := range []*core.Limiter{one, several} {
			d, err := l.Allow(ctx, key)
			decided("Allow", d, err)
			d, err = l.Peek(ctx, key)
			decided("Peek", d, err)
		}
	}
	for _, n := range []int64{0, 1, 100} {
		d, err := one.AllowN(ctx, key+"2", n)
		decided("AllowN", d, err)
		_, err = d.Settle(ctx, 2)
		w.deep(name+": Settle", orNil(err))
		_, err = d.Settle(ctx, 2, 3)
		w.deep(name+": Settle twice", orNil(err))
		decided("a settled Decision", d, nil)
		d, _, err = one.AllowAtMost(ctx, key+"3", n)
		decided("AllowAtMost", d, err)
	}
	charges := []core.Charge{{Limiter: one, Key: key + "4", N: 1}, {Limiter: several, Key: key + "4", N: 1}}
	w.value(name+": Charge", charges[0])
	w.value(name+": Charges", charges)
	for range 3 {
		d, err := core.AllowAll(ctx, charges...)
		decided("AllowAll", d, err)
	}
	_, err := core.AllowAll(ctx, charges[0], charges[0])
	w.deep(name+": the same twice", orNil(err))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, ctx := range []context.Context{ended, nil} {
		d, err := one.Allow(ctx, key)
		decided("Allow without a context", d, err)
		_, err = one.Wait(ctx, key)
		w.deep(name+": Wait", orNil(err))
	}
	w.deep(name+": Reset", orNil(one.Reset(ctx, key)))
	prepared := one.Prepared()
	c := store.Charge{Limiter: prepared, Key: key, N: 1}
	w.value(name+": store.Charge", c)
	w.value(name+": prepared", prepared)
	q := &store.Question{Charges: []store.Charge{c}}
	w.deep(name+": Ask", orNil(s.Ask(ctx, q)))
	w.value(name+": Question", *q)
	w.deep(name+": Result", q.Result)
}

func TestSlots(t *testing.T) {
	w := newWorld(t)
	for name, s := range w.stores() {
		ctx := t.Context()
		slots, beside := must[*core.Slots](t)(core.NewSlots(s, "slots", 1)), must[*core.Slots](t)(core.NewSlots(s, "beside", 3))
		w.value(name+": Slots", slots)
		claims := []core.Claim{{Slots: slots, Key: key}, {Slots: beside, Key: key, OneMore: true}}
		w.value(name+": Claim", claims[0])
		w.value(name+": Claims", claims)
		for _, claims := range [][]core.Claim{claims[:1], claims} {
			slot := must[*core.Slot](t)(core.AcquireAll(ctx, claims...))
			w.deep(name+": Slot", slot)
			w.deep(name+": Occupancies", slot.Occupancies())
			if m, ok := s.(*memstore.Store); ok {
				w.value("memstore.Store", m)
			}
			_, err := slots.Acquire(ctx, key)
			w.deep(name+": a full key", orNil(err))
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			waits := slices.Clone(claims)
			waits[0].Queue = 3
			_, err = core.AcquireAllWait(short, waits...)
			cancel()
			w.deep(name+": a full key after a wait", orNil(err))
			_, err = core.AcquireAll(ctx, claims[0], claims[0])
			w.deep(name+": the same twice", orNil(err))
			slot.Release()
			w.deep(name+": a Slot that was released", slot)
		}
		g, err := s.AcquireSlots(ctx, []store.Claim{{Name: "raw", Key: key, Limit: 1}, {Name: "raw2", Key: key, Limit: 1}})
		w.deep(name+": Grant", g)
		_, full := s.AcquireSlots(ctx, []store.Claim{{Name: "raw", Key: key, Limit: 1}})
		w.deep(name+": store.FullError", orNil(full))
		w.deep(name+": AcquireSlots", orNil(err))
		w.value(name+": store.Claim", store.Claim{Name: "raw", Key: key})
		w.value(name+": Notice", store.Notice{Name: "raw", Key: key})
		n := s.(store.Noticer)
		stop := n.Listen("raw", func(h store.Heard) store.Answer {
			w.value(name+": Heard", h)
			return store.Answer{Text: "yes"}
		})
		_, err = n.Announce(ctx, store.Notice{Name: "raw", Key: key, Text: "text"}, func(string) bool { return true })
		w.deep(name+": Announce", orNil(err))
		stop()
		g.Hold.Release()
		w.deep(name+": Close", orNil(slots.Close(ctx)))
		_, err = slots.Acquire(ctx, key)
		w.deep(name+": Acquire after Close", orNil(err))
		_ = s.CloseSlots(ctx, "raw")
		_ = s.CloseSlots(ctx, "raw2")
		_ = beside.Close(ctx)
	}
}

// Redis that goes away, and one that refuses the password.
func TestErrorsOfRedis(t *testing.T) {
	w := newWorld(t)
	server := w.redis()
	for _, f := range []redisstore.Failure{redisstore.FailLocal, redisstore.FailOpen, redisstore.FailClosed} {
		c := redisstore.Config{Observer: w.observer(), Secret: []byte(secret), Failure: f, Timeout: 50 * time.Millisecond}
		for _, url := range []string{"redis://:" + password + "@" + server.Addr(), "redis://" + canary + ":" + password + "@" + server.Addr(), "redis://:" + password + "@127.0.0.1:1"} {
			s := must[*redisstore.Store](t)(redisstore.OpenURL(url, c))
			w.value("redisstore.Store", s)
			report, err := s.Check(t.Context())
			w.deep("Report", report)
			w.deep("Check", orNil(err))
			l := must[*core.Limiter](t)(core.New(s, "api", core.SlidingLog(core.PerMinute(2))))
			slots := must[*core.Slots](t)(core.NewSlots(s, "slots", 1))
			for range 4 {
				d, err := l.Allow(t.Context(), key)
				w.deep("Decision", d)
				w.deep("Allow", orNil(err))
				slot, err := slots.Acquire(t.Context(), key)
				w.deep("Acquire", orNil(err))
				if err == nil {
					w.deep("Slot", slot)
				}
			}
			w.deep("State", s.State())
			_ = slots.Close(t.Context())
			_ = s.Client().Close()
		}
	}
	for _, url := range []string{"redis://:" + password + "@h:port", "redis://" + password + "/x@h", "http://" + password, "redis://u:1#" + password + "@h"} {
		if _, err := redisstore.OpenURL(url, redisstore.Config{}); err != nil {
			w.deep("OpenURL", err)
		}
	}
	_, err := redisstore.OpenURL("redis://h", redisstore.Config{Secret: []byte(canary), Timeout: -1})
	w.deep("OpenURL of a wrong Config", err)
	_, err = stats.New(stats.Config{Secret: []byte(canary)})
	w.deep("stats.New of a short Secret", err)
}

const document = `{"limits": {"api": {"plans": {"free": {"minute": "sliding-log 2/minute"}}, "overrides": [
	{"key": "` + key + `", "plan": "free"}, {"prefix": "` + key + `", "policies": {"minute": "sliding-log 5/minute"}, "until": "2020-01-01T00:00:00Z"}]}},
	"slots": {"ws": {"plans": {"free": 1}, "overrides": [{"key": "` + key + `", "slots": 2}]}}}`

func TestDocuments(t *testing.T) {
	w := newWorld(t)
	d := must[*limits.Document](t)(limits.Parse([]byte(document), nil))
	w.printed("Document", d)
	w.deep("Notes", d.Notes())
	for _, text := range []string{`{"limits": {"api": {"` + key + `": 1}}}`, strings.Replace(document, `"plan": "free"`, `"plan": "`+key+`"`, 1), document[:300], strings.ReplaceAll(document, "prefix", "key")} {
		_, err := limits.Parse([]byte(text), nil)
		w.deep("Faults", err)
	}
	w.value("Node", must[limits.Node](t)(limits.DecodeJSON([]byte(document))))
	diff := limits.Compare(must[*limits.Document](t)(limits.Parse([]byte(`{"slots": {"ws": {"plans": {"a": 1}}}}`), nil)), d)
	w.value("Diff", diff)
	w.value("Change", diff.Changes[0])

	client := redis.NewClient(&redis.Options{Addr: w.redis().Addr(), Password: password, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	w.value("redisdoc.Config", redisdoc.Config{Key: redisdoc.DefaultKey})
	source := must[*redisdoc.Source](t)(redisdoc.New(client, redisdoc.Config{}))
	version := must[int64](t)(source.Push(t.Context(), d, 0))
	memory := memstore.New(memstore.Config{Observer: w.observer()})
	c := limits.Config{Initial: []byte(document), Every: time.Hour, Timeout: 5 * time.Second, Changed: func(e limits.Event) { w.value("Event", e) }}
	w.value("limits.Config", c)
	book := must[*limits.Book](t)(limits.Open(t.Context(), memory, memory, source, c))
	t.Cleanup(book.Close)
	w.value("Book", book)
	w.value("redisdoc.Source", source)
	w.deep("State", book.State())
	w.deep("View", book.View())
	w.deep("Unmatched", book.Unmatched())
	api := must[*limits.Limit](t)(book.Limit("api"))
	w.value("Limit", api)
	w.value("limits.Slots", must[*limits.Slots](t)(book.Slots("ws")))
	decision, err := api.For(key, key).Allow(t.Context(), key)
	w.deep("Decision", decision)
	w.deep("Allow", orNil(err))
	if err := client.HSet(t.Context(), redisdoc.DefaultKey, "version", version+1, "document", strings.Replace(document, `"plan": "free"`, `"plan": "`+key+`"`, 1)).Err(); err != nil {
		t.Fatal(err)
	}
	w.deep("Reload", orNil(book.Reload(t.Context())))
	w.deep("State of a fault", book.State())
	source.Loaded(t.Context(), book.State())
	w.deep("Servers", must[[]redisdoc.Server](t)(source.Servers(t.Context())))
	told := must[map[string]string](t)(client.HGetAll(t.Context(), redisdoc.DefaultKey+":servers").Result())
	w.text("what servers tell", fmt.Sprint(told))
	_, err = source.Push(t.Context(), d, version)
	w.deep("Push", orNil(err))
}

// printed prints a Document, whose JSON has the keys, but which is not JSON in a log.
func (w *world) printed(what string, d *limits.Document) {
	for _, v := range []any{d, struct{ X any }{d}, struct{ x any }{d}, []*limits.Document{d}} {
		for _, verb := range Verbs {
			w.text(what+", "+verb, fmt.Sprintf(verb, v))
		}
	}
	w.text(what+" in a log", d.LogValue().String())
}

func TestKeyFunctions(t *testing.T) {
	w := newWorld(t)
	cookie := must[*keyfuncs.SignedCookie](t)(keyfuncs.NewSignedCookie("c", time.Hour, []byte(secret)))
	w.deep("SignedCookie", cookie)
	_, err := keyfuncs.NewSignedCookie("c", time.Hour, []byte(canary))
	w.deep("NewSignedCookie", err)
	trusted := must[keyfuncs.Func](t)
	for name, f := range map[string]keyfuncs.Func{
		"Header": keyfuncs.Header("User"), "Cookie": keyfuncs.Cookie("c"), "Bearer": keyfuncs.Bearer(), "BasicUser": keyfuncs.BasicUser(), "SignedCookie": cookie.Key,
		"RemoteAddr": keyfuncs.RemoteAddr(), "XForwardedFor": trusted(keyfuncs.XForwardedFor("127.0.0.0/8")), "Forwarded": trusted(keyfuncs.Forwarded("127.0.0.0/8")),
		"ProxyHeader": trusted(keyfuncs.ProxyHeader("X-Real-Ip", "127.0.0.0/8")), "BehindProxies": trusted(keyfuncs.BehindProxies(1)),
		"Context": keyfuncs.Context(key), "PathValue": keyfuncs.PathValue("x"), "Route": keyfuncs.Route(),
		"All": keyfuncs.All(keyfuncs.Header("User"), keyfuncs.Cookie("c")), "First": keyfuncs.First(keyfuncs.Cookie("c"), keyfuncs.Bearer()), "Hashed": keyfuncs.Hashed(keyfuncs.Header("User")),
	} {
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
	memory := memstore.New(memstore.Config{Observer: w.observer()})
	byUser := keyfuncs.Header(header)
	guard := func(name string) *nethttp.Guard {
		l := must[*core.Limiter](t)(core.New(memory, name, core.SlidingLog(core.PerHour(2))))
		c := nethttp.Config{
			Rules:   []nethttp.Rule{{Limiter: l, Key: byUser, Settle: nethttp.StatedCost}},
			Observe: func(_ *http.Request, v nethttp.Verdict) { w.deep("nethttp.Verdict", v) },
		}
		w.value("nethttp.Config", c)
		g := must[*nethttp.Guard](t)(nethttp.New(c))
		w.value("nethttp.Guard", g)
		return g
	}
	inFlight := func(name string) *nethttp.Guard {
		c := nethttp.Config{
			Rules:   []nethttp.Rule{{Slots: must[*core.Slots](t)(core.NewSlots(memory, name, 1)), Key: byUser}},
			Observe: func(_ *http.Request, v nethttp.Verdict) { w.deep("nethttp.Verdict of slots", v) },
		}
		w.value("nethttp.Config of slots", c)
		g := must[*nethttp.Guard](t)(nethttp.New(c))
		w.value("nethttp.Guard of slots", g)
		return g
	}
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { nethttp.SetCost(r.Context(), "nethttp", 1) })
	w.requests("nethttp", guard("nethttp").Handler(ok))

	busy := inFlight("inflight")
	slots := must[*core.Slots](t)(core.NewSlots(memory, "inflight", 1))
	slot := must[*core.Slot](t)(slots.Acquire(t.Context(), key))
	w.requests("inflight", busy.Handler(ok))
	slot.Release()

	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.Use(ginmw.KeepVerdict(), ginmw.Use(guard("gin")))
	g.GET("/", func(c *gin.Context) {
		if v, ok := ginmw.Verdict(c); ok {
			w.deep("ginmw.Verdict", v)
		}
	})
	w.requests("gin", g)
	e := echo.New()
	e.Use(echomw.KeepVerdict(), echomw.Use(guard("echo")))
	e.GET("/", func(c echo.Context) error {
		if v, ok := echomw.Verdict(c); ok {
			w.deep("echomw.Verdict", v)
		}
		return nil
	})
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		w.deep("an error of echomw", err)
		e.DefaultHTTPErrorHandler(err, c)
	}
	w.requests("echo", e)
	e5 := echov5.New()
	e5.Use(echov5mw.Use(guard("echo5")))
	e5.GET("/", func(*echov5.Context) error { return nil })
	w.requests("echo5", e5)

	blocked := must[*core.Limiter](t)(core.New(memory, "outgoing", core.SlidingLog(core.PerHour(1))))
	toServer := nethttp.TransportConfig{Limiter: blocked, Key: byUser, MaxWait: time.Nanosecond}
	w.value("TransportConfig", toServer)
	transport := must[*nethttp.Transport](t)(nethttp.NewTransport(toServer))
	w.value("Transport", transport)
	server := httptest.NewServer(ok)
	t.Cleanup(server.Close)
	for range 2 {
		r := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), "GET", server.URL, nil))
		r.Header.Set(header, key)
		response, err := transport.RoundTrip(r)
		w.deep("RoundTrip", orNil(err))
		if err == nil {
			w.answer("RoundTrip", response)
		}
	}
}

func TestSockets(t *testing.T) {
	w := newWorld(t)
	memory := memstore.New(memstore.Config{Observer: w.observer()})
	byUser := keyfuncs.Header(header)
	all := must[*core.Slots](t)(core.NewSlots(memory, "all", 9))
	c := websocketmw.Config{
		Rules:   []nethttp.Rule{{Slots: must[*core.Slots](t)(core.NewSlots(memory, "ws", 1)), Key: byUser}, {Slots: all, Key: keyfuncs.Everyone(), Service: true}},
		Inbound: []websocketmw.Inbound{{Limiter: must[*core.Limiter](t)(core.New(memory, "in", core.SlidingLog(core.PerHour(1)))), Key: byUser}},
		InBand:  true, Server: "server",
		Observe: func(_ *http.Request, v nethttp.Verdict) { w.deep("websocketmw.Verdict", v) },
		Notify: func(s *websocketmw.Socket, e websocketmw.Event) {
			w.value("Socket", s)
			w.deep("Event", e)
		},
	}
	w.value("websocketmw.Config", c)
	g := must[*websocketmw.Guard](t)(websocketmw.New(c))
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	server := httptest.NewServer(g.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s, ok := websocketmw.FromContext(r.Context())
		if !ok {
			return
		}
		w.value("Socket", s)
		w.deep("Slot", s.Slot())
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
	inBand := dial(http.Header{header: {key}, "Origin": {"https://example.org"}})
	_, _, err := inBand.ReadMessage()
	w.deep("a refusal in band", err)
	w.value("websocketmw.Guard", g)
	presence, err := g.Presence(t.Context(), "ws", key)
	w.deep("Presence", presence)
	w.deep("the error of Presence", orNil(err))
	for range 3 {
		_ = conn.WriteMessage(websocket.TextMessage, []byte("x"))
	}
	_, _, err = conn.ReadMessage()
	w.deep("a socket over its limit", err)
	presence, err = g.CloseAll(t.Context(), "ws", key, 4000, "bye")
	w.deep("CloseAll", presence)
	w.deep("the error of CloseAll", orNil(err))
	w.deep("Shutdown", orNil(g.Shutdown(t.Context())))
	w.value("websocketmw.Guard", g)
}
