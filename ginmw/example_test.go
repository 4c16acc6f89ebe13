package ginmw_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Two requests a minute for each client address.
func Example() {
	guard := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(2))))
	r := gin.New()
	r.Use(ginmw.Use(guard))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	ask(r, 3) // instead of r.Run()
	// Output:
	// 200 "api";r=1;t=60
	// 200 "api";r=0;t=60
	// 429 "api";r=0;t=60
}

// Signed-in users are charged by name, others by address.
func ExampleValue() {
	client := keyfuncs.First(ginmw.Value("user"), keyfuncs.RemoteAddr())
	guard := core.Must(nethttp.Limit("api", client, core.SlidingLog(core.PerMinute(1))))
	authenticate := func(c *gin.Context) {
		if name, password, ok := c.Request.BasicAuth(); ok && password == "open sesame" {
			c.Set("user", name)
		}
	}
	r := gin.New()
	r.Use(authenticate, ginmw.Use(guard))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	for _, user := range []string{"", "anna", "ben", "anna", ""} {
		req := httptest.NewRequest("GET", "/", nil)
		if user != "" {
			req.SetBasicAuth(user, "open sesame")
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
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
	r := gin.New()
	r.Use(ginmw.KeepVerdict(), ginmw.Use(guard))
	r.GET("/", func(c *gin.Context) {
		v, _ := ginmw.Verdict(c)
		c.String(http.StatusOK, "%d of %d left", v.Decision.Remaining, v.Decision.Limit)
	})

	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Body)
	// Output: 9 of 10 left
}

// ask sends n requests and prints the responses.
func ask(h http.Handler, n int) {
	for range n {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
}
