package echomw_test

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A limit on all routes.
func ExampleUse() {
	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))

	e := echo.New()
	e.Use(echomw.Use(limit))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello\n") })
	log.Fatal(e.Start("127.0.0.1:8080"))
}

// The signed cookie of package keyfuncs in Echo.
func Example_signedCookie() {
	secret := make([]byte, 32) // from the configuration, the same on all servers
	rand.Read(secret)
	cookie := core.Must(keyfuncs.NewSignedCookie("__Host-id", 24*time.Hour, secret))
	store := memstore.New(memstore.Config{})
	perBrowser := core.Must(core.New(store, "browser", core.SlidingLog(core.PerMinute(60))))
	perAddress := core.Must(core.New(store, "address", core.SlidingLog(core.PerMinute(300))))
	browser, address := cookie.OlderThan(time.Minute), keyfuncs.RemoteAddr()
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perBrowser, Key: keyfuncs.First(browser, address)},
		{Limiter: perAddress, Key: address},
	}}))

	e := echo.New()
	e.Use(echomw.Use(guard), echo.WrapMiddleware(cookie.Handler))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello\n") })

	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code, w.Result().Cookies()[0].Name)
	// Output: 200 __Host-id
}
