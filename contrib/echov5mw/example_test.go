package echov5mw_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Two requests a minute for each client address.
func ExampleMiddleware() {
	limit := nethttp.Limit(new(core.MemoryStore), "address", keyfuncs.RemoteAddr(), core.SlidingLog(2, time.Minute))

	e := echo.New()
	e.Use(echov5mw.Middleware(limit))
	e.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	for range 3 { // instead of e.Start(address)
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "address";r=1;t=60
	// 200 "address";r=0;t=60
	// 429 "address";r=0;t=60
}

// Signed-in users are counted by their names, others by their addresses.
func ExampleValue() {
	client := keyfuncs.First(keyfuncs.Tag("user", echov5mw.Value("user")), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
	limit := nethttp.Limit(new(core.MemoryStore), "client", client, core.SlidingLog(1, time.Minute))
	authenticate := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if name, password, ok := c.Request().BasicAuth(); ok && password == "open sesame" {
				c.Set("user", name)
			}
			return next(c)
		}
	}

	e := echo.New()
	e.Use(authenticate, echov5mw.Middleware(limit))
	e.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	for _, user := range []string{"", "anna", "ben", "anna", ""} {
		r := httptest.NewRequest("GET", "/", nil)
		if user != "" {
			r.SetBasicAuth(user, "open sesame")
		}
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		fmt.Printf("%q %d\n", user, w.Code)
	}
	// Output:
	// "" 200
	// "anna" 200
	// "ben" 200
	// "anna" 429
	// "" 429
}

// The application's error handler answers refusals as it answers other errors.
func ExampleMiddleware_errors() {
	limit := nethttp.Limit(new(core.MemoryStore), "site", keyfuncs.RemoteAddr(), core.SlidingLog(1, time.Minute))

	e := echo.New()
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		var v *nethttp.Verdict
		if errors.As(err, &v) {
			c.HTML(v.Status, fmt.Sprintf("<h1>%s</h1>", http.StatusText(v.Status)))
		}
	}
	e.Use(echov5mw.Middleware(limit))
	e.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 hello
	// 429 <h1>Too Many Requests</h1>
}
