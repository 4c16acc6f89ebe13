package echov5mw_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Two requests a minute for each client address.
func Example() {
	guard := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(2))))
	e := echo.New()
	e.Use(echov5mw.Use(guard))
	e.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	ask(e, 3) // instead of e.Start(address)
	// Output:
	// 200 "api";r=1;t=60
	// 200 "api";r=0;t=60
	// 429 "api";r=0;t=60
}

// Signed-in users are charged by name, others by address.
func ExampleValue() {
	client := keyfuncs.First(echov5mw.Value("user"), keyfuncs.RemoteAddr())
	guard := core.Must(nethttp.Limit("api", client, core.SlidingLog(core.PerMinute(1))))
	authenticate := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if name, password, ok := c.Request().BasicAuth(); ok && password == "open sesame" {
				c.Set("user", name)
			}
			return next(c)
		}
	}
	e := echo.New()
	e.Use(authenticate, echov5mw.Use(guard))
	e.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	for _, user := range []string{"", "anna", "ben", "anna", ""} {
		req := httptest.NewRequest("GET", "/", nil)
		if user != "" {
			req.SetBasicAuth(user, "open sesame")
		}
		w := httptest.NewRecorder()
		e.ServeHTTP(w, req)
		fmt.Printf("%q %d\n", user, w.Code)
	}
	// Output:
	// "" 200
	// "anna" 200
	// "ben" 200
	// "anna" 429
	// "" 429
}

// A handler that writes how much is left.
func ExampleVerdict() {
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(10)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}}})
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.Use(echov5mw.KeepVerdict(), echov5mw.Use(guard))
	e.GET("/", func(c *echo.Context) error {
		v, _ := echov5mw.Verdict(c)
		return c.String(http.StatusOK, fmt.Sprintf("%d of %d left", v.Decision.Remaining, v.Decision.Limit))
	})

	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Body)
	// Output: 9 of 10 left
}

// The application's error handler writes refusals like other errors.
func ExampleErrors() {
	limiter, err := core.New(memstore.New(memstore.Config{}), "site", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}}})
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		var he *echo.HTTPError
		if errors.As(err, &he) {
			c.HTML(he.Code, fmt.Sprintf("<h1>%s</h1>", http.StatusText(he.Code)))
		}
	}
	e.Use(echov5mw.Errors(), echov5mw.Use(guard))
	e.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "hello") })

	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	// Output:
	// 200 text/plain; charset=UTF-8 hello
	// 429 text/html; charset=UTF-8 <h1>Too Many Requests</h1>
}

// ask sends n requests and prints the responses.
func ask(h http.Handler, n int) {
	for range n {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
}
