package ginmw_test

import (
	"log"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func ExampleMiddleware_server() {
	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))

	r := gin.Default()
	r.Use(ginmw.Middleware(limit))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	log.Fatal(r.Run("127.0.0.1:8080"))
}

// Keys of Gin's context beside those of the request.
func ExampleValue_severalRules() {
	authenticate := func(c *gin.Context) { c.Set("user", "anna") } // yours
	store := new(core.MemoryStore)
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: core.NewLimiter(store, "user", core.SlidingLog(60, time.Minute)), Key: ginmw.Value("user"), Plan: ginmw.Value("plan")},
		{Limiter: core.NewLimiter(store, "address", core.SlidingLog(300, time.Minute)), Key: keyfuncs.RemoteAddr()},
	}})
	if err != nil {
		log.Fatal(err)
	}

	r := gin.New()
	r.Use(authenticate, ginmw.Middleware(guard))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	log.Fatal(r.Run("127.0.0.1:8080"))
}
