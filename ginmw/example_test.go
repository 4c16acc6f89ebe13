package ginmw_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Two requests a minute for each client address.
func ExampleMiddleware() {
	limit := nethttp.Limit(new(core.MemoryStore), "address", keyfuncs.RemoteAddr(), core.SlidingLog(2, time.Minute))

	r := gin.New()
	r.Use(ginmw.Middleware(limit))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	for range 3 { // instead of r.Run(address)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "address";r=1;t=60
	// 200 "address";r=0;t=60
	// 429 "address";r=0;t=60
}

// Signed-in users are counted by their names, others by their addresses.
func ExampleValue() {
	client := keyfuncs.First(keyfuncs.Tag("user", ginmw.Value("user")), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
	limit := nethttp.Limit(new(core.MemoryStore), "client", client, core.SlidingLog(1, time.Minute))
	authenticate := func(c *gin.Context) {
		if name, password, ok := c.Request.BasicAuth(); ok && password == "open sesame" {
			c.Set("user", name)
		}
	}

	r := gin.New()
	r.Use(authenticate, ginmw.Middleware(limit))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	for _, user := range []string{"", "anna", "ben", "anna", ""} {
		q := httptest.NewRequest("GET", "/", nil)
		if user != "" {
			q.SetBasicAuth(user, "open sesame")
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, q)
		fmt.Printf("%q %d\n", user, w.Code)
	}
	// Output:
	// "" 200
	// "anna" 200
	// "ben" 200
	// "anna" 429
	// "" 429
}
