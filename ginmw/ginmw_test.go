package ginmw_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/guardtest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	m.Run()
}

// The engine's middleware limits what no route matches, but not routes and groups that
// were made before it.
func TestWhatIsLimited(t *testing.T) {
	r := gin.New()
	r.HandleMethodNotAllowed = true
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	r.NoRoute(ok)
	r.NoMethod(ok)
	r.GET("/before", ok)
	group := r.Group("/group")
	r.Use(ginmw.Use(guardtest.Guard(t, nethttp.Config{Rules: []nethttp.Rule{guardtest.Rule(t, "limited", core.Blocked())}})))
	r.GET("/after", ok)
	group.GET("/after", ok)
	for target, want := range map[string]int{
		"GET /after": 429, "GET /none": 429, "POST /after": 429, "POST /before": 429, "GET /before": 200, "GET /group/after": 200,
	} {
		method, path, _ := strings.Cut(target, " ")
		if w := guardtest.Serve(r, guardtest.Request(method, path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

// A body without a status has status 200, as under net/http, also where no route matched.
func TestBodyWithoutStatus(t *testing.T) {
	r := gin.New()
	r.Use(ginmw.Use(guardtest.Guard(t, nethttp.Config{
		Rules:     []nethttp.Rule{guardtest.Rule(t, "closed", core.Blocked())},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, _ nethttp.Verdict) { w.Write([]byte("body")) },
	})))
	if w := guardtest.Serve(r, guardtest.Request("GET", "/", "X-Own", "anna")); w.Code != 200 || w.Body.String() != "body" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestKeys(t *testing.T) {
	fixed := func(key string, err error) keyfuncs.Func {
		return ginmw.Key(func(*gin.Context) (string, error) { return key, err })
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
		{name: "route", key: ginmw.Route(), want: "/items/:id/*rest"},
		{name: "no route", key: ginmw.Route(), path: "/nowhere", err: keyfuncs.ErrAbsent},
		{name: "parameter", key: ginmw.Param("id"), want: "4711"},
		{name: "no parameter", key: ginmw.Param("none"), err: keyfuncs.ErrAbsent},
		{name: "value", key: ginmw.Value("text"), want: "ben"},
		{name: "value of a string type", key: ginmw.Value("secret"), want: "s3cret"},
		{name: "value, a number", key: ginmw.Value("number"), want: "42"},
		{name: "value, empty", key: ginmw.Value("empty"), err: keyfuncs.ErrAbsent},
		{name: "value, nil", key: ginmw.Value("nil"), err: keyfuncs.ErrAbsent},
		{name: "no value", key: ginmw.Value("none"), err: keyfuncs.ErrAbsent},
		{name: "value of another type", key: ginmw.Value("struct"), err: keyfuncs.ErrProgram},
		{name: "all", key: keyfuncs.All(ginmw.Param("id"), guardtest.Own), want: "4:4711,4:anna,"},
		{name: "all, one absent", key: keyfuncs.All(ginmw.Param("id"), none), err: keyfuncs.ErrAbsent},
		{name: "first", key: keyfuncs.First(none, ginmw.Value("text"), guardtest.Own), want: "1:ben"},
		{name: "first, wrong", key: keyfuncs.First(none, fixed("", wrong), guardtest.Own), err: wrong},
		{name: "first of all", key: keyfuncs.First(none, keyfuncs.All(guardtest.Own, guardtest.Own)), want: "1:4:anna,4:anna,"},
		{name: "empty", key: fixed("", nil), err: guardtest.ErrAny},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got string
			var verdict nethttp.Verdict
			var errs []*gin.Error
			e := gin.New()
			e.Use(ginmw.KeepVerdict(), func(c *gin.Context) {
				c.Next()
				errs = c.Errors
				verdict, _ = ginmw.Verdict(c)
			}, func(c *gin.Context) {
				c.Set("text", "ben")
				c.Set("secret", guardtest.Secret("s3cret"))
				c.Set("number", uint8(42))
				c.Set("empty", guardtest.Secret(""))
				c.Set("nil", nil)
				c.Set("struct", struct{ n int }{4711})
			}, ginmw.Use(guardtest.Open(t, ginmw.Key(func(c *gin.Context) (text string, err error) {
				got, err = test.key(ginmw.Request(c))
				return got, err
			}))))
			e.GET("/items/:id/*rest", func(c *gin.Context) { c.Status(204) })
			path := "/items/4711/more"
			if test.path != "" {
				path = test.path
			}
			w := guardtest.Serve(e, guardtest.Request("GET", path, "X-Own", "anna"))
			if got != test.want {
				t.Errorf("key %q, want %q", got, test.want)
			}
			if test.err == nil {
				if w.Code != 204 || len(errs) != 0 || verdict.Err != nil {
					t.Errorf("%d, %v, %v", w.Code, errs, verdict.Err)
				}
				return
			}
			status := 400
			if errors.Is(test.err, keyfuncs.ErrProgram) {
				status = 500
			}
			if w.Code != status || len(errs) != 1 || !errors.Is(errs[0].Err, verdict.Err) ||
				!errors.Is(test.err, guardtest.ErrAny) && !errors.Is(verdict.Err, test.err) {
				t.Errorf("%d, %v, %v", w.Code, errs, verdict.Err)
			}
			if strings.Contains(fmt.Sprint(verdict.Err), "4711") {
				t.Errorf("the error has the value: %v", verdict.Err)
			}
		})
	}
}

// What Route charges if no route matches.
func TestRoute(t *testing.T) {
	key := keyfuncs.First(ginmw.Route(), keyfuncs.Everyone())
	var got string
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.Use(ginmw.Use(guardtest.Open(t, ginmw.Key(func(c *gin.Context) (text string, err error) {
		got, err = key(ginmw.Request(c))
		return got, err
	}))))
	e.Group("/api", ginmw.KeepVerdict()).GET("/items/:id", func(c *gin.Context) { c.Status(204) })
	for _, test := range []struct {
		method, path string
		status       int
		key          string
	}{
		{"GET", "/api/items/1", 204, "0:/api/items/:id"},
		{"GET", "/nowhere", 404, "1:everyone"},
		{"GET", "/api/nowhere", 404, "1:everyone"},
		{"POST", "/api/items/1", 405, "1:everyone"},
	} {
		if w := guardtest.Serve(e, guardtest.Request(test.method, test.path)); w.Code != test.status || got != test.key {
			t.Errorf("%s %s: %d, key %q", test.method, test.path, w.Code, got)
		}
	}
}

// A route, a group and the engine can each have a guard.
func TestWhere(t *testing.T) {
	closed := guardtest.Guard(t, nethttp.Config{Rules: []nethttp.Rule{guardtest.Rule(t, "closed", core.Blocked())}})
	ok := func(c *gin.Context) { c.Status(204) }
	e := gin.New()
	e.Use(ginmw.Use(guardtest.Open(t, guardtest.Own)))
	e.GET("/route", ginmw.Use(closed), ok)
	e.Group("/group", ginmw.Use(closed)).GET("/in", ok)
	e.GET("/free", ok)
	for path, want := range map[string]int{"/route": 429, "/group/in": 429, "/free": 204, "/nowhere": 404} {
		if w := guardtest.Serve(e, guardtest.Request("GET", path, "X-Own", "anna")); w.Code != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, keep := range []bool{false, true} {
		e := gin.New()
		if keep {
			e.Use(ginmw.KeepVerdict())
		}
		e.Use(func(c *gin.Context) {
			if _, ok := ginmw.Verdict(c); ok {
				t.Error("a verdict before the guard")
			}
		}, ginmw.Use(guardtest.Open(t, guardtest.Own)))
		e.GET("/", func(c *gin.Context) {
			if v, ok := ginmw.Verdict(c); ok != keep || keep && !v.Decision.Allowed {
				t.Errorf("keep %v: %v, %v", keep, v.Decision, ok)
			}
		})
		guardtest.Serve(e, guardtest.Request("GET", "/", "X-Own", "anna"))
	}
}

// What is settled is the status that Gin will send.
func TestSettle(t *testing.T) {
	outcomes := guardtest.Settling(t)
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(502) }))
	e.Use(ginmw.Use(outcomes.Guard))
	e.GET("/json", func(c *gin.Context) { c.JSON(201, "ok") })
	e.GET("/status", func(c *gin.Context) { c.Status(404) })
	e.GET("/abort", func(c *gin.Context) { c.AbortWithStatus(403) })
	e.GET("/panic", func(c *gin.Context) {
		c.Status(204)
		panic("boom")
	})
	e.GET("/cost", func(c *gin.Context) { nethttp.SetCost(c.Request.Context(), "settled", 7) })
	outcomes.Want(t, e, map[string]nethttp.Outcome{
		"/json":    {Status: 201, Written: 4, Cost: 1},
		"/status":  {Status: 404, Cost: 1},
		"/abort":   {Status: 403, Cost: 1},
		"/panic":   {Status: 500, Cost: 1},
		"/cost":    {Status: 200, Cost: 7},
		"/nowhere": {Status: 404, Cost: 1},
	})
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

// Under a rule with Settle, http.ResponseController still finds the server's writer.
func TestController(t *testing.T) {
	rule := guardtest.Rule(t, "settled", core.Unlimited())
	rule.Settle = nethttp.StatedCost
	e := gin.New()
	e.Use(ginmw.Use(guardtest.Guard(t, nethttp.Config{Rules: []nethttp.Rule{rule}})))
	e.GET("/", func(c *gin.Context) {
		if err := http.NewResponseController(c.Writer).SetWriteDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
	})
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	if e.ServeHTTP(w, guardtest.Request("GET", "/", "X-Own", "anna")); !w.set {
		t.Error("the deadline was not set")
	}
}

// Outer middleware that writes responses if nothing was written leaves refusals alone.
func TestRefusalIsWritten(t *testing.T) {
	e := gin.New()
	e.Use(func(c *gin.Context) {
		c.Next()
		if !c.Writer.Written() {
			c.String(500, "nothing was written")
		}
		if !c.IsAborted() {
			t.Error("not aborted")
		}
	}, ginmw.Use(guardtest.Guard(t, nethttp.Config{Rules: []nethttp.Rule{guardtest.Rule(t, "closed", core.Blocked())}})))
	e.HEAD("/", func(*gin.Context) { t.Error("the handler ran") })
	if w := guardtest.Serve(e, guardtest.Request("HEAD", "/", "X-Own", "anna")); w.Code != 429 || w.Body.Len() > 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A refused upgrade is written at once, also if OnRefused writes no body, and its error is
// in the context.
func TestSocketRefusalIsWritten(t *testing.T) {
	guard := guardtest.Sockets(t, websocketmw.Config{
		OnRefused: func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) { w.WriteHeader(v.Status()) },
	})
	e := gin.New()
	e.Use(func(c *gin.Context) {
		c.Next()
		if !c.Writer.Written() || !c.IsAborted() {
			t.Errorf("written %v, aborted %v", c.Writer.Written(), c.IsAborted())
		}
		if len(c.Errors) != 1 || !errors.Is(c.Errors[0].Err, keyfuncs.ErrAbsent) {
			t.Errorf("errors %v", c.Errors)
		}
	}, ginmw.Use(guard))
	e.GET("/", func(*gin.Context) { t.Error("the handler ran") })
	w := guardtest.Serve(e, guardtest.Upgrade("/"))
	if w.Code != 400 || w.Body.Len() > 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"Limit": func() { ginmw.Use(nil) },
		"Key":   func() { ginmw.Key(nil) },
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

// The functions of a Config find Gin's context, with what middleware has stored in it.
func TestContext(t *testing.T) {
	var saw []string
	see := func(name string, r *http.Request) {
		user := "nobody"
		if c := ginmw.Context(r); c != nil {
			user = c.GetString("user")
		}
		saw = append(saw, name+" "+user)
	}
	rule := guardtest.Rule(t, "context", core.SlidingLog(core.PerHour(1000)))
	rule.Key = ginmw.Value("user")
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
	e := gin.New()
	e.Use(func(c *gin.Context) { c.Set("user", "anna") }, ginmw.Use(guard))
	e.GET("/", func(c *gin.Context) { see("handler", c.Request) })
	guardtest.Serve(e, guardtest.Request("GET", "/"))
	if got, want := strings.Join(saw, ", "), "Cost anna, Plan of anna anna, Observe anna, handler anna, Settle anna"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	saw = nil
	if see("elsewhere", guardtest.Request("GET", "/")); saw[0] != "elsewhere nobody" {
		t.Error(saw)
	}
}

// Streams of Gin work behind a guard of the server, too, which records the response.
func TestStream(t *testing.T) {
	counts := guardtest.Rule(t, "bytes", core.SlidingLog(core.PerHour(1000)))
	counts.Report = nethttp.BytesWritten
	guard := guardtest.Guard(t, nethttp.Config{Rules: []nethttp.Rule{counts}})
	r := gin.New()
	r.GET("/", func(c *gin.Context) {
		c.Stream(func(w io.Writer) bool { _, err := io.WriteString(w, "data"); return err != nil })
	})
	server := httptest.NewServer(guard.Handler(r))
	defer server.Close()
	q := guardtest.Request("GET", server.URL, "X-Own", "anna")
	q.RequestURI = ""
	response, err := server.Client().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 || string(body) != "data" {
		t.Errorf("%d %q %v", response.StatusCode, body, err)
	}
}
