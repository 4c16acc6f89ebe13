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
func ExampleLimit() {
	guard := guardBy(keyfuncs.RemoteAddr())

	e := echo.New()
	e.Use(echomw.Limit(guard))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello\n") })
	log.Fatal(e.Start("127.0.0.1:8080"))
}

// The signed cookie of package keyfuncs in Echo.
func Example_signedCookie() {
	secret := make([]byte, 32) // from the configuration, the same on all servers
	rand.Read(secret)
	cookie, err := keyfuncs.NewSignedCookie("__Host-id", 24*time.Hour, secret)
	if err != nil {
		log.Fatal(err)
	}
	store := memstore.New(memstore.Config{})
	perBrowser, err := core.New(store, "browser", core.SlidingLog(core.PerMinute(60)))
	if err != nil {
		log.Fatal(err)
	}
	perAddress, err := core.New(store, "address", core.SlidingLog(core.PerMinute(300)))
	if err != nil {
		log.Fatal(err)
	}
	browser, address := cookie.OlderThan(time.Minute), keyfuncs.RemoteAddr()
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perBrowser, Key: keyfuncs.First(browser, address)},
		{Limiter: perAddress, Key: address},
	}})
	if err != nil {
		log.Fatal(err)
	}

	e := echo.New()
	e.Use(echomw.Limit(guard), echo.WrapMiddleware(cookie.Handler))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello\n") })

	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code, w.Result().Cookies()[0].Name)
	// Output: 200 __Host-id
}

func guardBy(key keyfuncs.Func) *nethttp.Guard {
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(60)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{Limiter: limiter, Key: key}}})
	if err != nil {
		log.Fatal(err)
	}
	return guard
}
