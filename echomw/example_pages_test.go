package echomw_test

import (
	"log"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

func ExampleMiddleware_server() {
	limit := nethttp.Limit(new(core.MemoryStore), "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))

	e := echo.New()
	e.Use(echomw.Middleware(limit))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello\n") })
	log.Fatal(e.Start("127.0.0.1:8080"))
}
