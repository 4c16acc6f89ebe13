package echov5mw_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

func TestKeys(t *testing.T) {
	fixed := func(key string, err error) keyfuncs.Func {
		return echov5mw.Key(func(*echo.Context) (string, error) { return key, err })
	}
	none := fixed("", keyfuncs.ErrAbsent)
	wrong := errors.New("wrong")
	for _, test := range []struct {
		name string
		key  keyfuncs.Func
		path string
		want string // empty: an error
		err  error
	}{
		{name: "request", key: guardtest.Own, want: "anna"},
		{name: "route", key: echov5mw.Route(), want: "/items/:id/*"},
		{name: "no route", key: echov5mw.Route(), path: "/nowhere", err: keyfuncs.ErrAbsent},
		{name: "parameter", key: echov5mw.Param("id"), want: "4711"},
		{name: "no parameter", key: echov5mw.Param("none"), err: keyfuncs.ErrAbsent},
		{name: "value", key: echov5mw.Value("text"), want: "ben"},
		{name: "value of a string type", key: echov5mw.Value("secret"), want: "s3cret"},
		{name: "value, a number", key: echov5mw.Value("number"), want: "42"},
		{name: "value, empty", key: echov5mw.Value("empty"), err: keyfuncs.ErrAbsent},
		{name: "value, nil", key: echov5mw.Value("nil"), err: keyfuncs.ErrAbsent},
		{name: "no value", key: echov5mw.Value("none"), err: keyfuncs.ErrAbsent},
		{name: "value of another type", key: echov5mw.Value("struct"), err: keyfuncs.ErrProgram},
		{name: "all", key: keyfuncs.All(echov5mw.Param("id"), guardtest.Own), want: "4:4711,4:anna,"},
		{name: "all, one absent", key: keyfuncs.All(echov5mw.Param("id"), none), err: keyfuncs.ErrAbsent},
		{name: "first", key: keyfuncs.First(none, echov5mw.Value("text"), guardtest.Own), want: "1:ben"},
		{name: "first, wrong", key: keyfuncs.First(none, fixed("", wrong), guardtest.Own), err: wrong},
		{name: "first of all", key: keyfuncs.First(none, keyfuncs.All(guardtest.Own, guardtest.Own)), want: "1:4:anna,4:anna,"},
		{name: "empty", key: fixed("", nil), err: guardtest.ErrAny},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got string
			var verdict nethttp.Verdict
			var failed error
			e := echo.New()
			e.Use(echov5mw.KeepVerdict(), echov5mw.Errors(), func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) error {
					c.Set("text", "ben")
					c.Set("secret", guardtest.Secret("s3cret"))
					c.Set("number", uint8(42))
					c.Set("empty", guardtest.Secret(""))
					c.Set("nil", nil)
					c.Set("struct", struct{ n int }{4711})
					failed = next(c)
					verdict, _ = echov5mw.Verdict(c)
					return failed
				}
			}, echov5mw.Use(guardtest.Open(t, echov5mw.Key(func(c *echo.Context) (text string, err error) {
				got, err = test.key(echov5mw.Request(c))
				return got, err
			}))))
			e.GET("/items/:id/*", func(c *echo.Context) error { return c.NoContent(204) })
			path := "/items/4711/more"
			if test.path != "" {
				path = test.path
			}
			w := guardtest.Serve(e, guardtest.Request("GET", path, "X-Own", "anna"))
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
				!errors.Is(test.err, guardtest.ErrAny) && !errors.Is(verdict.Err, test.err) {
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
	key := keyfuncs.First(echov5mw.Route(), keyfuncs.Everyone())
	var got string
	e := echo.New()
	e.Use(echov5mw.Use(guardtest.Open(t, echov5mw.Key(func(c *echo.Context) (text string, err error) {
		got, err = key(echov5mw.Request(c))
		return got, err
	}))))
	ok := func(c *echo.Context) error { return c.NoContent(204) }
	e.GET("/items/:id", ok)
	e.Group("/plain").GET("/items/:id", ok)
	e.Group("/api", echov5mw.KeepVerdict()).GET("/items/:id", ok)
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
		if w := guardtest.Serve(e, guardtest.Request(test.method, test.path)); w.Code != test.status || got != test.key {
			t.Errorf("%s %s: %d, key %q", test.method, test.path, w.Code, got)
		}
	}
}

// A route, a group and the engine can each have a guard.
func TestWhere(t *testing.T) {
	closed := guardtest.Guard(t, nethttp.Config{Rules: []nethttp.Rule{guardtest.Rule(t, "closed", core.Blocked())}})
	ok := func(c *echo.Context) error { return c.NoContent(204) }
	e := echo.New()
	e.Use(echov5mw.Use(guardtest.Open(t, guardtest.Own)))
	e.GET("/route", ok, echov5mw.Use(closed))
	e.Group("/group", echov5mw.Use(closed)).GET("/in", ok)
	e.GET("/free", ok)
	for path, want := range map[string]int{"/route": 429, "/group/in": 429, "/free": 204, "/nowhere": 404} {
		if w := guardtest.Serve(e, guardtest.Request("GET", path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, keep := range []bool{false, true} {
		e := echo.New()
		if keep {
			e.Use(echov5mw.KeepVerdict())
		}
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error {
				if _, ok := echov5mw.Verdict(c); ok {
					t.Error("a verdict before the guard")
				}
				return next(c)
			}
		}, echov5mw.Use(guardtest.Open(t, guardtest.Own)))
		e.GET("/", func(c *echo.Context) error {
			if v, ok := echov5mw.Verdict(c); ok != keep || keep && !v.Decision.Allowed {
				t.Errorf("keep %v: %v, %v", keep, v.Decision, ok)
			}
			return nil
		})
		guardtest.Serve(e, guardtest.Request("GET", "/", "X-Own", "anna"))
	}
}

// What is settled is the status that Echo will send.
func TestSettle(t *testing.T) {
	outcomes := guardtest.Settling(t)
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
			defer func() {
				if recover() != nil {
					err = echo.ErrBadGateway
				}
			}()
			return next(c)
		}
	})
	e.Use(echov5mw.Use(outcomes.Guard))
	e.GET("/json", func(c *echo.Context) error { return c.JSON(201, 1234) })
	e.GET("/error", func(*echo.Context) error { return echo.NewHTTPError(403, "no") })
	e.GET("/guardtest.Own", func(*echo.Context) error { return guardtest.ErrAny })
	e.GET("/late", func(c *echo.Context) error {
		c.JSON(201, 1234)
		return guardtest.ErrAny
	})
	e.GET("/panic", func(*echo.Context) error { panic("boom") })
	e.GET("/cost", func(c *echo.Context) error {
		nethttp.SetCost(c.Request().Context(), "settled", 7)
		return nil
	})
	outcomes.Want(t, e, map[string]nethttp.Outcome{
		"/json":          {Status: 201, Written: 5, Cost: 1},
		"/error":         {Status: 403, Cost: 1},
		"/guardtest.Own": {Status: 500, Cost: 1},
		"/late":          {Status: 201, Written: 5, Cost: 1},
		"/panic":         {Status: 500, Cost: 1},
		"/cost":          {Status: 200, Cost: 7},
		"/nowhere":       {Status: 404, Cost: 1},
	})
}

// A refusal is that of net/http to the byte, and no error handler sees it.
func TestRefusal(t *testing.T) {
	page := func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) { http.Error(w, "wait", v.Status()) }
	for _, test := range []struct {
		name    string
		request *http.Request
		config  nethttp.Config
	}{
		{"GET", guardtest.Request("GET", "/", "X-Own", "anna"), nethttp.Config{}},
		{"HEAD", guardtest.Request("HEAD", "/", "X-Own", "anna"), nethttp.Config{}},
		{"no key", guardtest.Request("GET", "/"), nethttp.Config{}},
		{"a page", guardtest.Request("GET", "/", "X-Own", "anna"), nethttp.Config{OnRefused: page}},
		{"nothing", guardtest.Request("GET", "/", "X-Own", "anna"), nethttp.Config{OnRefused: func(http.ResponseWriter, *http.Request, nethttp.Verdict) {}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.Rules = []nethttp.Rule{guardtest.Rule(t, "closed", core.Blocked())}
			guard := guardtest.Guard(t, test.config)
			e := echo.New()
			e.HTTPErrorHandler = func(_ *echo.Context, err error) { t.Errorf("the error handler got %v", err) }
			e.Use(echov5mw.Use(guard))
			e.GET("/", func(*echo.Context) error {
				t.Error("the handler ran")
				return nil
			})
			want, got := guardtest.Serve(guard.Handler(http.NotFoundHandler()), test.request), guardtest.Serve(e, test.request)
			if got.Code != want.Code || !reflect.DeepEqual(got.Header(), want.Header()) || got.Body.String() != want.Body.String() {
				t.Errorf("%d %v %q\nwant %d %v %q", got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
			}
		})
	}
}

// Behind Errors, refusals are errors, which the application's error handler may write as it
// likes. The fields are there.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name    string
		request *http.Request
		status  int
		within  error // of the error; nil: none is
		fields  string
	}{
		{"over the limit", guardtest.Request("GET", "/", "X-Own", "anna"), 429, nil, `"closed";r=0`},
		{"no key", guardtest.Request("GET", "/"), 400, keyfuncs.ErrAbsent, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := echo.New()
			e.HTTPErrorHandler = func(c *echo.Context, err error) {
				var he *echo.HTTPError
				if !errors.As(err, &he) || he.Code != test.status || he.Message != http.StatusText(test.status) ||
					(errors.Unwrap(err) == nil) != (test.within == nil) || test.within != nil && !errors.Is(err, test.within) {
					t.Errorf("the error is %v", err)
				}
				if err := c.HTML(test.status, "<p>"); err != nil {
					t.Error(err)
				}
			}
			e.Use(echov5mw.Errors(), echov5mw.Use(guardtest.Guard(t, nethttp.Config{
				Rules:     []nethttp.Rule{guardtest.Rule(t, "closed", core.Blocked())},
				OnRefused: func(http.ResponseWriter, *http.Request, nethttp.Verdict) { t.Error("OnRefused was called") },
			})))
			e.GET("/", func(*echo.Context) error {
				t.Error("the handler ran")
				return nil
			})
			w := guardtest.Serve(e, test.request)
			if h := w.Header(); w.Code != test.status || h.Get("Content-Type") != "text/html; charset=UTF-8" || w.Body.String() != "<p>" ||
				h.Get("RateLimit") != test.fields || h.Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v %q", w.Code, h, w.Body)
			}
		})
	}
}

// The functions of a Config find Echo's context, with what middleware has stored in it.
func TestContext(t *testing.T) {
	var saw []string
	see := func(name string, r *http.Request) {
		user := "nobody"
		if c := echov5mw.Context(r); c != nil {
			user, _ = c.Get("user").(string)
		}
		saw = append(saw, name+" "+user)
	}
	rule := guardtest.Rule(t, "context", core.SlidingLog(core.PerHour(1000)))
	rule.Key = echov5mw.Value("user")
	rule.Cost = func(r *http.Request) int64 {
		see("Cost", r)
		return 1
	}
	rule.Plan = func(r *http.Request, key string) *core.Limiter {
		see("Plan of "+key, r)
		return nil
	}
	rule.Settle = func(r *http.Request, o nethttp.Outcome) int64 {
		see("Settle", r)
		return o.Cost
	}
	guard := guardtest.Guard(t, nethttp.Config{
		Rules:   []nethttp.Rule{rule},
		Observe: func(r *http.Request, _ nethttp.Verdict) { see("Observe", r) },
	})
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.Set("user", "anna")
			return next(c)
		}
	}, echov5mw.Use(guard))
	e.GET("/", func(c *echo.Context) error {
		see("handler", c.Request())
		return nil
	})
	guardtest.Serve(e, guardtest.Request("GET", "/"))
	if got, want := strings.Join(saw, ", "), "Cost anna, Plan of anna anna, Observe anna, handler anna, Settle anna"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	saw = nil
	if see("elsewhere", guardtest.Request("GET", "/")); saw[0] != "elsewhere nobody" {
		t.Error(saw)
	}
}

// The refusal of an upgrade is written.
func TestSocketRefusal(t *testing.T) {
	e := echo.New()
	var failed error
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			failed = next(c)
			return failed
		}
	}, echov5mw.Use(guardtest.Sockets(t, websocketmw.Config{})))
	e.GET("/", func(c *echo.Context) error { return c.NoContent(204) })
	if w := guardtest.Serve(e, guardtest.Upgrade("/")); w.Code != 400 || failed != nil {
		t.Errorf("%d, %v", w.Code, failed)
	}
	if w := guardtest.Serve(e, guardtest.Upgrade("/", "X-Own", "anna")); w.Code != 204 || failed != nil {
		t.Errorf("%d, %v", w.Code, failed)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"Use": func() { echov5mw.Use(nil) },
		"Key": func() { echov5mw.Key(nil) },
	} {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "headgate: ") {
					t.Errorf("%s: panic %q", name, text)
				}
			}()
			f()
		}()
	}
}
