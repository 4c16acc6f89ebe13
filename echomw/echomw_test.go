package echomw_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func ok(c echo.Context) error { return c.NoContent(204) }

// watched is middleware that calls look with the error of what follows.
func watched(look func(c echo.Context, err error)) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			look(c, err)
			return err
		}
	}
}

// The engine, groups and routes can each have a guard; the engine's limits what no route matches, too.
func TestWhatIsLimited(t *testing.T) {
	closed := echomw.Middleware(guardtest.Closed())
	e := echo.New()
	e.GET("/route", ok, closed)
	e.Group("/group", closed).GET("/in", ok)
	e.GET("/free", ok)
	for path, want := range map[string]int{"/route": 429, "/group/in": 429, "/group/nowhere": 429, "/free": 204, "/nowhere": 404} {
		if w := guardtest.Serve(e, guardtest.Request("GET", path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	e.Use(closed)
	for target, want := range map[string]int{"GET /free": 429, "GET /nowhere": 429, "POST /free": 429, "OPTIONS /free": 429} {
		method, path, _ := strings.Cut(target, " ")
		if w := guardtest.Serve(e, guardtest.Request(method, path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

// Values of the context are keys, of their text, and refusals are errors.
func TestValues(t *testing.T) {
	guardtest.CheckKeys(t, echomw.Value, func(key keyfuncs.Func) (http.Handler, func() error) {
		var failed error
		e := echo.New()
		e.Use(watched(func(_ echo.Context, err error) { failed = err }), func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				for name, value := range guardtest.Values {
					c.Set(name, value)
				}
				return next(c)
			}
		}, echomw.Middleware(guardtest.Open(key)))
		e.GET("/", ok)
		return e, func() error { return failed }
	})
	for name, key := range map[string]keyfuncs.Func{
		"Value": echomw.Value("user"), "Route": echomw.Route(), "Key": echomw.Key(func(echo.Context) (string, error) { return "anna", nil }),
	} {
		if _, err := key(guardtest.Request("GET", "/")); !errors.Is(err, keyfuncs.ErrProgram) {
			t.Errorf("%s without a middleware: %v", name, err)
		}
	}
}

// Route is the pattern, with or without one.
func TestRoute(t *testing.T) {
	var got string
	e := echo.New()
	e.Use(echomw.Middleware(guardtest.Open(func(r *http.Request) (text string, err error) {
		got, err = echomw.Route()(r)
		return got, err
	})))
	e.GET("/items/:id", ok)
	e.Group("/api", watched(func(echo.Context, error) {})).GET("/items/:id", ok)
	for target, want := range map[string]string{
		"GET /items/1": "/items/:id", "GET /nowhere": "no route", "POST /items/1": "/items/:id", "GET /api/items/1": "/api/items/:id", "GET /api/nowhere": "/api/*",
	} {
		method, path, _ := strings.Cut(target, " ")
		guardtest.Serve(e, guardtest.Request(method, path))
		if got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}

// A refusal goes to the application's error handler once, with its fields, and has the verdict. Echo's own handler
// answers with the document. Where OnRefused answers, as under net/http, there is no error.
func TestRefusals(t *testing.T) {
	page := func(w http.ResponseWriter, _ *http.Request, v *nethttp.Verdict) { http.Error(w, "wait", v.Status) }
	for _, test := range []struct {
		name      string
		onRefused func(http.ResponseWriter, *http.Request, *nethttp.Verdict)
		handler   echo.HTTPErrorHandler
		own, body string
	}{
		{name: "Echo's own", own: "anna"},
		{name: "Echo's own, no key"},
		{name: "OnRefused that writes nothing", onRefused: func(http.ResponseWriter, *http.Request, *nethttp.Verdict) {}, own: "anna"},
		{name: "OnRefused", onRefused: page, own: "anna", body: "wait\n"},
		{name: "an own handler", handler: func(err error, c echo.Context) { c.HTML(http.StatusTooManyRequests, "<p>") }, own: "anna", body: "<p>"},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			t.Run(test.name+"/"+method, func(t *testing.T) {
				guard := guardtest.Guard(t, nethttp.Config{
					Rates:     []nethttp.Rate{{Limiter: core.NewLimiter(new(core.MemoryStore), "closed", core.Blocked()), Key: guardtest.Own}},
					OnRefused: test.onRefused,
				})
				var failed []error
				e := echo.New()
				e.HTTPErrorHandler = func(err error, c echo.Context) {
					if failed = append(failed, err); test.handler != nil {
						test.handler(err, c)
						return
					}
					e.DefaultHTTPErrorHandler(err, c)
				}
				e.Use(echomw.Middleware(guard))
				e.Match([]string{"GET", "HEAD"}, "/", func(echo.Context) error {
					t.Error("the handler ran")
					return nil
				})
				r := guardtest.Request(method, "/", "X-Own", test.own)
				want, got := guardtest.Serve(guard.Handler(http.NotFoundHandler()), r), guardtest.Serve(e, r)
				body := strings.TrimSuffix(got.Body.String(), "\n")
				if test.body != "" && body != strings.TrimSuffix(test.body, "\n") || test.body == "" && body != want.Body.String() || got.Code != want.Code {
					t.Errorf("%d %q, want %d %q", got.Code, got.Body, want.Code, want.Body)
				}
				for _, name := range []string{"RateLimit", "RateLimit-Policy", "Retry-After", "Cache-Control"} {
					if !reflect.DeepEqual(got.Header().Values(name), want.Header().Values(name)) {
						t.Errorf("%s: %q, want %q", name, got.Header().Values(name), want.Header().Values(name))
					}
				}
				if answered := test.body == "wait\n"; answered {
					if len(failed) != 0 {
						t.Error(failed)
					}
					return
				}
				var v *nethttp.Verdict
				var he *echo.HTTPError
				if len(failed) != 1 || !errors.As(failed[0], &he) || he.Code != want.Code || !errors.As(failed[0], &v) || v.Status != want.Code ||
					errors.Is(failed[0], keyfuncs.ErrAbsent) != (test.own == "") || test.own != "" && strings.Contains(fmt.Sprint(failed[0]), test.own) {
					t.Errorf("%v", failed)
				}
			})
		}
	}
}

// What is settled is the status that Echo sends, also of errors, by the application's handler.
func TestSettle(t *testing.T) {
	guard, limiter, want := guardtest.Settling(t)
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if c.Response().Committed {
			return
		}
		if errors.Is(err, guardtest.ErrAny) {
			c.String(418, "teapot")
			return
		}
		e.DefaultHTTPErrorHandler(err, c)
	}
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			response := c.Response()
			defer func() {
				if recover() != nil {
					err = echo.ErrBadGateway
				}
				if c.Response() != response {
					t.Error("the response is another one afterwards")
				}
			}()
			return next(c)
		}
	}, echomw.Middleware(guard))
	e.GET("/json", func(c echo.Context) error { return c.JSON(201, 1234) })
	e.GET("/error", func(echo.Context) error { return echo.NewHTTPError(403, "no") })
	e.GET("/own", func(echo.Context) error { return guardtest.ErrAny })
	e.GET("/late", func(c echo.Context) error { return errors.Join(c.JSON(201, 1234), guardtest.ErrAny) })
	e.GET("/panic", func(echo.Context) error { panic("boom") })
	e.GET("/stream", func(c echo.Context) error {
		c.Response().Flush()
		_, err := io.WriteString(c.Response(), "data")
		return err
	})
	e.GET("/cost", func(c echo.Context) error { return nethttp.SetCost(c.Request().Context(), limiter, 7) })
	e.GET("/hijack", func(c echo.Context) error {
		conn, _, err := c.Response().Hijack()
		if err == nil {
			conn.Close()
		}
		return nil
	})
	want(e, map[string]nethttp.Outcome{
		"/json": {Status: 201, Bytes: 5, Cost: 1}, "/error": {Status: 403, Bytes: 17, Cost: 1}, "/own": {Status: 418, Bytes: 6, Cost: 1},
		"/late": {Status: 201, Bytes: 5, Cost: 1}, "/panic": {Status: 500, Cost: 1}, "/stream": {Status: 200, Bytes: 4, Cost: 1},
		"/cost": {Status: 200, Cost: 7}, "/nowhere": {Status: 404, Bytes: 24, Cost: 1}, "/hijack": {}, // which is not settled
	})
}

// All functions of a Config find Echo's context, and nobody does when the guard is done with it.
func TestContext(t *testing.T) {
	var saw []string
	var late *http.Request
	see := func(name string, r *http.Request) {
		user := "nobody"
		if c := echomw.Context(r); c != nil {
			user, _ = c.Get("user").(string)
		}
		saw, late = append(saw, name+" "+user), r
	}
	guard := guardtest.Guard(t, nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(new(core.MemoryStore), "context", core.SlidingLog(100, time.Hour)).WithPlan("gold", core.SlidingLog(9, time.Hour)),
			Key:     echomw.Value("user"), Plan: echomw.Value("plan"),
			Skip:   func(r *http.Request) bool { see("Skip", r); return false },
			Cost:   func(r *http.Request) int64 { see("Cost", r); return 1 },
			Settle: func(r *http.Request, o nethttp.Outcome) int64 { see("Settle", r); return o.Cost },
		}},
		Observe: func(r *http.Request, v *nethttp.Verdict) { see(fmt.Sprint("Observe ", v.Decision.Limit), r) },
	})
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", "anna")
			c.Set("plan", "gold")
			return next(c)
		}
	}, echomw.Middleware(guard))
	e.GET("/", func(c echo.Context) error { see("handler", c.Request()); return nil })
	guardtest.Serve(e, guardtest.Request("GET", "/"))
	see("late", late)
	see("elsewhere", guardtest.Request("GET", "/"))
	if got, want := strings.Join(saw, ", "), "Cost anna, Skip anna, Observe 9 anna, handler anna, Settle anna, late nobody, elsewhere nobody"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"no guard": func() { echomw.Middleware(nil) }, "Key": func() { echomw.Key(nil) },
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
