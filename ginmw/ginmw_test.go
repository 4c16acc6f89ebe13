package ginmw_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	m.Run()
}

func ok(c *gin.Context) { c.Status(204) }

// The engine, groups and routes can each have a guard; the engine's limits what no route matches, but not routes and
// groups that were made before it.
func TestWhatIsLimited(t *testing.T) {
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.GET("/before", ok)
	before := r.Group("/group")
	r.GET("/route", ginmw.Middleware(guardtest.Closed()), ok)
	r.Group("/in", ginmw.Middleware(guardtest.Closed())).GET("/it", ok)
	r.Use(ginmw.Middleware(guardtest.Closed()))
	r.GET("/after", ok)
	before.GET("/after", ok)
	for target, want := range map[string]int{
		"GET /after": 429, "GET /none": 429, "POST /after": 429, "POST /before": 429, "GET /before": 204, "GET /group/after": 204,
		"GET /route": 429, "GET /in/it": 429, "HEAD /none": 429, "GET /after/": 301,
	} {
		method, path, _ := strings.Cut(target, " ")
		if w := guardtest.Serve(r, guardtest.Request(method, path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

// Values of the context are keys, of their text, and refusals are errors.
func TestValues(t *testing.T) {
	guardtest.CheckKeys(t, ginmw.Value, func(key keyfuncs.Func) (http.Handler, func() error) {
		var errs []error
		e := gin.New()
		e.Use(func(c *gin.Context) {
			for name, value := range guardtest.Values {
				c.Set(name, value)
			}
			c.Next()
			for _, err := range c.Errors {
				errs = append(errs, err)
			}
		}, ginmw.Middleware(guardtest.Open(key)))
		e.GET("/", ok)
		return e, func() error { return errors.Join(errs...) }
	})
	for name, key := range map[string]keyfuncs.Func{
		"Value": ginmw.Value("user"), "Route": ginmw.Route(), "Key": ginmw.Key(func(*gin.Context) (string, error) { return "anna", nil }),
	} {
		if _, err := key(guardtest.Request("GET", "/")); !errors.Is(err, keyfuncs.ErrProgram) {
			t.Errorf("%s without a middleware: %v", name, err)
		}
	}
}

// Route is the pattern, with or without one.
func TestRoute(t *testing.T) {
	var got string
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.Use(ginmw.Middleware(guardtest.Open(func(r *http.Request) (text string, err error) {
		got, err = ginmw.Route()(r)
		return got, err
	})))
	e.GET("/items/:id/*rest", ok)
	for target, want := range map[string]string{"GET /items/1/2": "/items/:id/*rest", "GET /nowhere": "no route", "POST /items/1/2": "no route"} {
		method, path, _ := strings.Cut(target, " ")
		guardtest.Serve(e, guardtest.Request(method, path))
		if got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}

// A refusal is that of net/http to the byte, is written at once, aborts, and is in c.Errors; OnRefused answers as under
// net/http, also where no route has matched.
func TestRefusals(t *testing.T) {
	for name, onRefused := range map[string]func(http.ResponseWriter, *http.Request, *nethttp.Verdict){
		"the document": nil,
		"nothing":      func(http.ResponseWriter, *http.Request, *nethttp.Verdict) {},
		"a status":     func(w http.ResponseWriter, _ *http.Request, _ *nethttp.Verdict) { w.WriteHeader(503) },
		"a body": func(w http.ResponseWriter, _ *http.Request, _ *nethttp.Verdict) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "wait")
		},
		"a page": func(w http.ResponseWriter, _ *http.Request, _ *nethttp.Verdict) {
			http.Error(w, "wait", http.StatusBadGateway)
		},
	} {
		guard := guardtest.Guard(t, nethttp.Config{
			Rates:     []nethttp.Rate{{Limiter: core.NewLimiter(new(core.MemoryStore), "closed", core.Blocked()), Key: guardtest.Own}},
			OnRefused: onRefused,
		})
		for _, target := range []string{"GET /", "HEAD /", "GET /nowhere"} {
			for _, own := range []string{"anna", ""} {
				var errs []*gin.Error
				e := gin.New()
				e.Use(func(c *gin.Context) {
					c.Next()
					if errs = c.Errors; !c.Writer.Written() || !c.IsAborted() {
						t.Errorf("written %v, aborted %v", c.Writer.Written(), c.IsAborted())
					}
				}, ginmw.Middleware(guard))
				e.Match([]string{"GET", "HEAD"}, "/", func(*gin.Context) { t.Error("the handler ran") })
				method, path, _ := strings.Cut(target, " ")
				r := guardtest.Request(method, path, "X-Own", own)
				want, got := guardtest.Serve(guard.Handler(http.NotFoundHandler()), r), guardtest.Serve(e, r)
				if got.Code != want.Code || !reflect.DeepEqual(got.Header(), want.Header()) || got.Body.String() != want.Body.String() {
					t.Errorf("%s, %s: %d %v %q\nwant %d %v %q", name, target, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
				}
				var v *nethttp.Verdict
				if len(errs) != 1 || !errors.As(errs[0], &v) || v.Key() != own || errors.Is(errs[0], keyfuncs.ErrAbsent) != (own == "") {
					t.Errorf("%s, %s: errors %v", name, target, errs)
				}
			}
		}
	}
}

// What is settled is the status that Gin sends.
func TestSettle(t *testing.T) {
	guard, limiter, want := guardtest.Settling(t)
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) {
		if c.AbortWithStatus(502); c.Writer.Status() != 502 {
			t.Error(c.Writer.Status())
		}
	}))
	e.Use(ginmw.Middleware(guard))
	e.GET("/json", func(c *gin.Context) { c.JSON(201, "ok") })
	e.GET("/status", func(c *gin.Context) { c.Status(404) })
	e.GET("/abort", func(c *gin.Context) { c.AbortWithStatus(403) })
	e.GET("/error", func(c *gin.Context) { c.AbortWithError(409, guardtest.ErrAny) })
	e.GET("/flush", func(c *gin.Context) { c.Writer.Flush() })
	e.GET("/panic", func(c *gin.Context) {
		c.Status(204)
		panic("boom")
	})
	e.GET("/cost", func(c *gin.Context) {
		if err := nethttp.SetCost(c.Request.Context(), limiter, 7); err != nil {
			t.Error(err)
		}
	})
	e.GET("/hijack", func(c *gin.Context) {
		if conn, _, err := c.Writer.Hijack(); err == nil {
			conn.Close()
		}
	})
	want(e, map[string]nethttp.Outcome{
		"/json": {Status: 201, Bytes: 4, Cost: 1}, "/status": {Status: 404, Cost: 1}, "/abort": {Status: 403, Cost: 1},
		"/error": {Status: 409, Cost: 1}, "/flush": {Status: 200, Cost: 1}, "/panic": {Status: 500, Cost: 1}, "/cost": {Status: 200, Cost: 7},
		"/nowhere": {Status: 404, Cost: 1}, "/hijack": {}, // which is not settled
	})
	if w := guardtest.Serve(e, guardtest.Request("GET", "/nowhere", "X-Own", "anna")); w.Code != 404 || w.Body.String() != "404 page not found" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// deadlines is a writer of which only http.ResponseController finds what it can.
type deadlines struct {
	*httptest.ResponseRecorder

	set bool
}

func (w *deadlines) SetWriteDeadline(time.Time) error {
	w.set = true
	return nil
}

// Behind a guard that looks at the response, http.ResponseController finds the server's writer, and streams work under
// a real server, whether the guard is within Gin or around it.
func TestWriters(t *testing.T) {
	guard, _, _ := guardtest.Settling(t)
	e := gin.New()
	e.Use(ginmw.Middleware(guard))
	e.GET("/", func(c *gin.Context) {
		if err := http.NewResponseController(c.Writer).SetWriteDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
	})
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	if e.ServeHTTP(w, guardtest.Request("GET", "/", "X-Own", "anna")); !w.set {
		t.Error("the deadline was not set")
	}
	stream := func(c *gin.Context) {
		c.Stream(func(w io.Writer) bool { _, err := io.WriteString(w, "data"); return err != nil })
	}
	around := gin.New()
	around.GET("/stream", stream)
	e.GET("/stream", stream)
	for _, h := range []http.Handler{e, guard.Handler(around)} {
		server := httptest.NewServer(h)
		defer server.Close()
		q := guardtest.Request("GET", server.URL+"/stream", "X-Own", "anna")
		q.RequestURI = ""
		response, err := server.Client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 200 || string(body) != "data" {
			t.Errorf("%d %q %v", response.StatusCode, body, err)
		}
	}
}

// All functions of a Config find Gin's context, and nobody does when the guard is done with it.
func TestContext(t *testing.T) {
	var saw []string
	var late *http.Request
	see := func(name string, r *http.Request) {
		user := "nobody"
		if c := ginmw.Context(r); c != nil {
			user = c.GetString("user")
		}
		saw, late = append(saw, name+" "+user), r
	}
	guard := guardtest.Guard(t, nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(new(core.MemoryStore), "context", core.SlidingLog(100, time.Hour)).WithPlan("gold", core.SlidingLog(9, time.Hour)),
			Key:     ginmw.Value("user"), Plan: ginmw.Value("plan"),
			Skip:   func(r *http.Request) bool { see("Skip", r); return false },
			Cost:   func(r *http.Request) int64 { see("Cost", r); return 1 },
			Settle: func(r *http.Request, o nethttp.Outcome) int64 { see("Settle", r); return o.Cost },
		}},
		Observe: func(r *http.Request, v *nethttp.Verdict) { see(fmt.Sprint("Observe ", v.Decision.Limit), r) },
	})
	e := gin.New()
	e.Use(func(c *gin.Context) {
		c.Set("user", "anna")
		c.Set("plan", "gold")
	}, ginmw.Middleware(guard))
	e.GET("/", func(c *gin.Context) { see("handler", c.Request) })
	guardtest.Serve(e, guardtest.Request("GET", "/"))
	see("late", late)
	see("elsewhere", guardtest.Request("GET", "/"))
	if got, want := strings.Join(saw, ", "), "Cost anna, Skip anna, Observe 9 anna, handler anna, Settle anna, late nobody, elsewhere nobody"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"no guard": func() { ginmw.Middleware(nil) }, "a nil guard": func() { ginmw.Middleware((*nethttp.Guard)(nil)) }, "Key": func() { ginmw.Key(nil) },
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

// A hint is no answer: the guard refuses after it.
func TestHintIsNoAnswer(t *testing.T) {
	guard := guardtest.Guard(t, nethttp.Config{
		Rates:     []nethttp.Rate{{Limiter: core.NewLimiter(new(core.MemoryStore), "closed", core.Blocked()), Key: guardtest.Own}},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, _ *nethttp.Verdict) { w.WriteHeader(http.StatusEarlyHints) },
	})
	e := gin.New()
	e.Use(ginmw.Middleware(guard))
	e.GET("/", func(*gin.Context) { t.Error("the handler ran") })
	got := guardtest.Serve(e, guardtest.Request("GET", "/", "X-Own", "anna"))
	if got.Code != http.StatusTooManyRequests || got.Body.Len() == 0 {
		t.Errorf("%d %q", got.Code, got.Body)
	}
}
