package echomw_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/internal/problem"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

var (
	own    = keyfuncs.Header("X-Own")
	store  = memstore.New(memstore.Config{})
	errAny = errors.New("any")
)

func newRule(t testing.TB, name string, p core.Policy) nethttp.Rule {
	t.Helper()
	l, err := core.New(store, name, p)
	if err != nil {
		t.Fatal(err)
	}
	return nethttp.Rule{Limiter: l, Key: own}
}

func newGuard(t testing.TB, c nethttp.Config) *nethttp.Guard {
	t.Helper()
	g, err := nethttp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func open(t testing.TB) *nethttp.Guard {
	t.Helper()
	return newGuard(t, nethttp.Config{Rules: []nethttp.Rule{newRule(t, "open", core.Unlimited())}})
}

func request(method, target string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

type secret string

func (secret) String() string { return "hidden" }

func TestKeys(t *testing.T) {
	fixed := func(key string, err error) echomw.Key {
		return func(echo.Context) (string, error) { return key, err }
	}
	none := fixed("", keyfuncs.ErrAbsent)
	wrong := errors.New("wrong")
	fromRequest := echomw.Request(own)
	for _, test := range []struct {
		name string
		key  echomw.Key
		path string
		want string // empty: an error
		err  error
	}{
		{name: "request", key: fromRequest, want: "anna"},
		{name: "request without", key: echomw.Request(keyfuncs.Header("X-None")), err: keyfuncs.ErrAbsent},
		{name: "route", key: echomw.Route(), want: "/items/:id/*"},
		{name: "no route", key: echomw.Route(), path: "/nowhere", err: keyfuncs.ErrAbsent},
		{name: "parameter", key: echomw.Param("id"), want: "4711"},
		{name: "no parameter", key: echomw.Param("none"), err: keyfuncs.ErrAbsent},
		{name: "value", key: echomw.Value("text"), want: "ben"},
		{name: "value of a string type", key: echomw.Value("secret"), want: "s3cret"},
		{name: "value, a number", key: echomw.Value("number"), want: "42"},
		{name: "value, empty", key: echomw.Value("empty"), err: keyfuncs.ErrAbsent},
		{name: "value, nil", key: echomw.Value("nil"), err: keyfuncs.ErrAbsent},
		{name: "no value", key: echomw.Value("none"), err: keyfuncs.ErrAbsent},
		{name: "value of another type", key: echomw.Value("struct"), err: keyfuncs.ErrProgram},
		{name: "all", key: echomw.All(echomw.Param("id"), fromRequest), want: "4:4711,4:anna,"},
		{name: "all, one absent", key: echomw.All(echomw.Param("id"), none), err: keyfuncs.ErrAbsent},
		{name: "first", key: echomw.First(none, echomw.Value("text"), fromRequest), want: "1:ben"},
		{name: "first, wrong", key: echomw.First(none, fixed("", wrong), fromRequest), err: wrong},
		{name: "first of all", key: echomw.First(none, echomw.All(fromRequest, fromRequest)), want: "1:4:anna,4:anna,"},
		{name: "empty", key: fixed("", nil), err: errAny},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got string
			var verdict nethttp.Verdict
			var failed error
			e := echo.New()
			e.Use(echomw.Keep(), func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					c.Set("text", "ben")
					c.Set("secret", secret("s3cret"))
					c.Set("number", uint8(42))
					c.Set("empty", secret(""))
					c.Set("nil", nil)
					c.Set("struct", struct{ n int }{4711})
					failed = next(c)
					verdict, _ = echomw.Verdict(c)
					return failed
				}
			}, echomw.LimitBy(open(t), func(c echo.Context) (key string, err error) {
				got, err = test.key(c)
				return got, err
			}))
			e.GET("/items/:id/*", func(c echo.Context) error { return c.NoContent(204) })
			path := "/items/4711/more"
			if test.path != "" {
				path = test.path
			}
			w := serve(e, request("GET", path, "X-Own", "anna"))
			if got != test.want {
				t.Errorf("key %q, want %q", got, test.want)
			}
			if test.err == nil {
				if w.Code != 204 || failed != nil || verdict.Err != nil {
					t.Errorf("%d, %v, %v", w.Code, failed, verdict.Err)
				}
				return
			}
			status := 400
			if errors.Is(test.err, keyfuncs.ErrProgram) {
				status = 500
			}
			var he *echo.HTTPError
			if w.Code != status || !errors.As(failed, &he) || he.Code != status || !errors.Is(failed, verdict.Err) ||
				!errors.Is(test.err, errAny) && !errors.Is(verdict.Err, test.err) {
				t.Errorf("%d, %v, %v", w.Code, failed, verdict.Err)
			}
			if strings.Contains(fmt.Sprint(failed), "4711") {
				t.Errorf("the error has the value: %v", failed)
			}
		})
	}
}

// What Route charges if no route matches.
func TestRoute(t *testing.T) {
	var got string
	e := echo.New()
	e.Use(echomw.LimitBy(open(t), func(c echo.Context) (key string, err error) {
		got, err = echomw.First(echomw.Route(), echomw.Request(keyfuncs.Everyone()))(c)
		return got, err
	}))
	ok := func(c echo.Context) error { return c.NoContent(204) }
	e.GET("/items/:id", ok)
	e.Group("/plain").GET("/items/:id", ok)
	e.Group("/api", echomw.Keep()).GET("/items/:id", ok)
	for _, test := range []struct {
		method, path string
		status       int
		key          string
	}{
		{"GET", "/items/1", 204, "0:/items/:id"},
		{"GET", "/nowhere", 404, "1:everyone"},
		{"POST", "/items/1", 405, "0:/items/:id"},
		{"GET", "/plain/nowhere", 404, "1:everyone"},
		{"POST", "/plain/items/1", 405, "0:/plain/items/:id"},
		{"GET", "/api/items/1", 204, "0:/api/items/:id"},
		{"GET", "/api/nowhere", 404, "0:/api/*"},
		{"POST", "/api/items/1", 404, "0:/api/*"},
	} {
		if w := serve(e, request(test.method, test.path)); w.Code != test.status || got != test.key {
			t.Errorf("%s %s: %d, key %q", test.method, test.path, w.Code, got)
		}
	}
}

// A route, a group and the engine can each have a guard.
func TestWhere(t *testing.T) {
	closed := newGuard(t, nethttp.Config{Rules: []nethttp.Rule{newRule(t, "closed", core.Blocked())}})
	ok := func(c echo.Context) error { return c.NoContent(204) }
	e := echo.New()
	e.Use(echomw.Limit(open(t)))
	e.GET("/route", ok, echomw.Limit(closed))
	e.Group("/group", echomw.Limit(closed)).GET("/in", ok)
	e.GET("/free", ok)
	for path, want := range map[string]int{"/route": 429, "/group/in": 429, "/free": 204, "/nowhere": 404} {
		if w := serve(e, request("GET", path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, keep := range []bool{false, true} {
		e := echo.New()
		if keep {
			e.Use(echomw.Keep())
		}
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if _, ok := echomw.Verdict(c); ok {
					t.Error("a verdict before the guard")
				}
				return next(c)
			}
		}, echomw.Limit(open(t)))
		e.GET("/", func(c echo.Context) error {
			if v, ok := echomw.Verdict(c); ok != keep || keep && !v.Decision.Allowed {
				t.Errorf("keep %v: %v, %v", keep, v.Decision, ok)
			}
			return nil
		})
		serve(e, request("GET", "/", "X-Own", "anna"))
	}
}

// What is settled is the status that Echo will send.
func TestSettle(t *testing.T) {
	var got nethttp.Outcome
	rule := newRule(t, "settled", core.SlidingLog(core.PerHour(1000)))
	rule.Settle = func(_ *http.Request, o nethttp.Outcome) int64 {
		got = o
		return o.Cost
	}
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			defer func() {
				if recover() != nil {
					err = echo.ErrBadGateway
				}
			}()
			return next(c)
		}
	})
	e.Use(echomw.Limit(newGuard(t, nethttp.Config{Rules: []nethttp.Rule{rule}})))
	e.GET("/json", func(c echo.Context) error { return c.JSON(201, 1234) })
	e.GET("/error", func(echo.Context) error { return echo.NewHTTPError(403, "no") })
	e.GET("/inner", func(echo.Context) error { return echo.ErrBadGateway.WithInternal(echo.ErrForbidden) })
	e.GET("/own", func(echo.Context) error { return errAny })
	e.GET("/late", func(c echo.Context) error {
		c.JSON(201, 1234)
		return errAny
	})
	e.GET("/panic", func(echo.Context) error { panic("boom") })
	e.GET("/cost", func(c echo.Context) error {
		nethttp.SetCost(c.Request().Context(), "settled", 7)
		return nil
	})
	for path, want := range map[string]nethttp.Outcome{
		"/json":    {Status: 201, Written: 5, Cost: 1},
		"/error":   {Status: 403, Cost: 1},
		"/inner":   {Status: 403, Cost: 1}, // as the default error handler has it
		"/own":     {Status: 500, Cost: 1},
		"/late":    {Status: 201, Written: 5, Cost: 1},
		"/panic":   {Status: 500, Cost: 1},
		"/cost":    {Status: 200, Cost: 7},
		"/nowhere": {Status: 404, Cost: 1},
	} {
		serve(e, request("GET", path, "X-Own", "anna"))
		if got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
}

// With Echo's default error handler, a refusal is that of net/http to the byte, and middleware
// sees its error. Under a handler of the application's that only calls the default one, the
// same document is JSON as Echo writes it.
func TestDefaultErrorHandler(t *testing.T) {
	guard := newGuard(t, nethttp.Config{Rules: []nethttp.Rule{newRule(t, "closed", core.Blocked())}})
	for _, test := range []struct {
		name    string
		request *http.Request
		status  int
		within  error // of the error
	}{
		{"GET", request("GET", "/", "X-Own", "anna"), 429, nil},
		{"HEAD", request("HEAD", "/", "X-Own", "anna"), 429, nil},
		{"no key", request("GET", "/"), 400, keyfuncs.ErrAbsent},
	} {
		for _, replaced := range []bool{false, true} {
			want := serve(guard.Handler(http.NotFoundHandler()), test.request)
			e := echo.New()
			if h := e.HTTPErrorHandler; replaced {
				e.HTTPErrorHandler = func(err error, c echo.Context) { h(err, c) }
			}
			var failed error
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					failed = next(c)
					return failed
				}
			}, echomw.Limit(guard))
			got := serve(e, test.request)
			if replaced { // as Echo writes it
				want.Header().Del("Content-Length")
				if want.Body.Len() > 0 {
					want.Body.WriteByte('\n')
				}
			}
			if got.Code != want.Code || !reflect.DeepEqual(got.Header(), want.Header()) || got.Body.String() != want.Body.String() {
				t.Errorf("%s, replaced %v: %d %v %q\nwant %d %v %q", test.name, replaced,
					got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
			}
			var he *echo.HTTPError
			if !errors.As(failed, &he) || he.Code != test.status || test.within != nil && !errors.Is(failed, test.within) {
				t.Errorf("%s, replaced %v: the error is %v", test.name, replaced, failed)
			}
		}
	}
}

// What OnRefused writes is not written again, under Echo's default error handler either.
func TestDefaultErrorHandlerAndOnRefused(t *testing.T) {
	for name, write := range map[string]func(w http.ResponseWriter, v nethttp.Verdict){
		"page": func(w http.ResponseWriter, v nethttp.Verdict) { http.Error(w, "wait", v.Status()) },
		"document": func(w http.ResponseWriter, v nethttp.Verdict) {
			w.Header().Set("Content-Type", nethttp.ProblemType)
			w.WriteHeader(v.Status())
			w.Write(v.Problem())
		},
		"nothing": func(http.ResponseWriter, nethttp.Verdict) {},
	} {
		guard := newGuard(t, nethttp.Config{
			Rules:     []nethttp.Rule{newRule(t, "closed", core.Blocked())},
			OnRefused: func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) { write(w, v) },
		})
		e := echo.New()
		failed := errAny
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				failed = next(c)
				return failed
			}
		}, echomw.Limit(guard))
		r := request("GET", "/", "X-Own", "anna")
		got, want := serve(e, r), serve(guard.Handler(http.NotFoundHandler()), r)
		if got.Code != want.Code || !reflect.DeepEqual(got.Header(), want.Header()) || got.Body.String() != want.Body.String() {
			t.Errorf("%s: %d %v %q, want %d %v %q", name, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
		}
		if (failed == nil) != (name == "page") {
			t.Errorf("%s: the error is %v", name, failed)
		}
	}
}

// The application's error handler may write refusals as it likes, and the fields
// are there, but not the type of a body that it did not write.
func TestErrorHandler(t *testing.T) {
	document := string(problem.QuotaExceeded("closed").Bytes())
	for _, test := range []struct {
		name   string
		method string
		handle func(he *echo.HTTPError, c echo.Context) error
		typ    string
		body   string
	}{
		{"page", "GET", func(he *echo.HTTPError, c echo.Context) error { return c.HTML(he.Code, "<p>") }, "text/html; charset=UTF-8", "<p>"},
		{"own JSON", "GET", func(he *echo.HTTPError, c echo.Context) error { return c.JSON(he.Code, 1) }, "application/json", "1\n"},
		{"document", "GET", func(he *echo.HTTPError, c echo.Context) error { return c.JSON(he.Code, he.Message) }, nethttp.ProblemType, document + "\n"},
		{"document, indented", "GET", func(he *echo.HTTPError, c echo.Context) error {
			return c.JSONPretty(he.Code, he.Message, "")
		}, nethttp.ProblemType, document + "\n"},
		{"document to HEAD", "HEAD", func(he *echo.HTTPError, c echo.Context) error { return c.JSON(he.Code, he.Message) }, nethttp.ProblemType, document + "\n"},
		{"document within JSON", "GET", func(he *echo.HTTPError, c echo.Context) error {
			return c.JSON(he.Code, echo.Map{"ok": false, "error": he.Message})
		}, "application/json", `{"error":` + document + `,"ok":false}` + "\n"},
		{"document logged", "GET", func(he *echo.HTTPError, c echo.Context) error {
			marshals(t, he.Message)
			return c.XMLBlob(he.Code, []byte("<no/>"))
		}, "application/xml; charset=UTF-8", xml.Header + "<no/>"},
		{"document logged, flushed", "GET", func(he *echo.HTTPError, c echo.Context) error {
			marshals(t, he.Message)
			c.Response().Header().Set("Content-Type", "application/json")
			c.Response().WriteHeader(he.Code)
			c.Response().Flush()
			_, err := c.Response().Write([]byte(document))
			return err
		}, "application/json", document},
		{"page to HEAD", "HEAD", func(he *echo.HTTPError, c echo.Context) error { return c.HTML(he.Code, "<p>") }, "text/html; charset=UTF-8", "<p>"},
		{"type alone", "GET", func(he *echo.HTTPError, c echo.Context) error {
			c.Response().Header().Set("Content-Type", "application/json")
			return c.NoContent(he.Code)
		}, "application/json", ""},
		{"nothing", "GET", func(he *echo.HTTPError, c echo.Context) error { return c.NoContent(he.Code) }, "", ""},
		{"nothing to HEAD", "HEAD", func(he *echo.HTTPError, c echo.Context) error { return c.NoContent(he.Code) }, nethttp.ProblemType, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := echo.New()
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				var he *echo.HTTPError
				if !errors.As(err, &he) {
					t.Fatalf("%v", err)
				}
				if err := test.handle(he, c); err != nil {
					t.Error(err)
				}
			}
			e.Use(echomw.Limit(newGuard(t, nethttp.Config{Rules: []nethttp.Rule{newRule(t, "closed", core.Blocked())}})))
			e.Any("/", func(echo.Context) error {
				t.Error("the handler ran")
				return nil
			})
			w := serve(e, request(test.method, "/", "X-Own", "anna"))
			h := w.Header()
			if w.Code != 429 || h.Get("Content-Type") != test.typ || w.Body.String() != test.body ||
				h.Get("RateLimit") != `"closed";r=0` || h.Get("Cache-Control") != "no-store" || h.Get("Content-Length") != "" {
				t.Errorf("%d %v %q", w.Code, h, w.Body)
			}
		})
	}
}

// marshals writes v as JSON, as a log might.
func marshals(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return b
}

// deadlines is a writer of which only http.ResponseController finds what it can.
type deadlines struct {
	*httptest.ResponseRecorder

	set int
}

func (w *deadlines) SetWriteDeadline(time.Time) error {
	w.set++
	return nil
}

// OnRefused and the error handler can use http.ResponseController.
func TestControllerOfRefusals(t *testing.T) {
	e := echo.New()
	e.Use(echomw.Limit(newGuard(t, nethttp.Config{
		Rules: []nethttp.Rule{newRule(t, "closed", core.Blocked())},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, _ nethttp.Verdict) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
				t.Errorf("OnRefused: %v", err)
			}
		},
	})))
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		var he *echo.HTTPError
		if !errors.As(err, &he) {
			t.Fatalf("%v", err)
		}
		body := marshals(t, he.Message)
		c.Response().Header().Set("Content-Type", "application/json")
		c.Response().WriteHeader(429)
		if err := http.NewResponseController(c.Response()).SetWriteDeadline(time.Time{}); err != nil {
			t.Errorf("the error handler: %v", err)
		}
		c.Response().Write(body)
	}
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	e.ServeHTTP(w, request("GET", "/", "X-Own", "anna"))
	if w.set != 2 || w.Code != 429 || w.Header().Get("Content-Type") != nethttp.ProblemType {
		t.Errorf("%d deadlines, %d %v", w.set, w.Code, w.Header())
	}
}

// The error of a refused upgrade has the cause. The writer is put back after others.
func TestSocketErrors(t *testing.T) {
	slots, err := core.NewSlots(store, "errors", 1)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: slots, Key: own}}})
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	var failed error
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			before := c.Response().Writer
			failed = next(c)
			if c.Response().Writer != before {
				t.Errorf("after the handler, the writer is a %T", c.Response().Writer)
			}
			return failed
		}
	}, echomw.Sockets(guard))
	e.GET("/", func(c echo.Context) error { return c.NoContent(204) })
	upgrade := []string{
		"Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==",
	}
	if w := serve(e, request("GET", "/", upgrade...)); w.Code != 400 || !errors.Is(failed, keyfuncs.ErrAbsent) {
		t.Errorf("%d, %v", w.Code, failed)
	}
	if w := serve(e, request("GET", "/", append(upgrade, "X-Own", "anna")...)); w.Code != 204 || failed != nil {
		t.Errorf("%d, %v", w.Code, failed)
	}
}

func TestPanics(t *testing.T) {
	key := echomw.Route()
	two := newGuard(t, nethttp.Config{Rules: []nethttp.Rule{
		newRule(t, "first", core.Unlimited()), newRule(t, "second", core.Unlimited()),
	}})
	for name, f := range map[string]func(){
		"Limit":            func() { echomw.Limit(nil) },
		"LimitBy guard":    func() { echomw.LimitBy(nil, key) },
		"LimitBy no key":   func() { echomw.LimitBy(open(t)) },
		"LimitBy nil key":  func() { echomw.LimitBy(open(t), nil) },
		"LimitBy 2 for 1":  func() { echomw.LimitBy(open(t), key, key) },
		"LimitBy 1 for 2":  func() { echomw.LimitBy(two, key) },
		"Request nil":      func() { echomw.Request(nil) },
		"All of nothing":   func() { echomw.All() },
		"First of nil":     func() { echomw.First(nil) },
		"First of nothing": func() { echomw.First() },
	} {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "headgate: echomw: ") {
					t.Errorf("%s: panic %q", name, text)
				}
			}()
			f()
		}()
	}
}
