package ginmw_test

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A limit on all routes.
func ExampleUse() {
	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))

	r := gin.Default()
	r.Use(ginmw.Use(limit))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	log.Fatal(r.Run("127.0.0.1:8080"))
}

// Keys from Gin's context stand beside those from the request.
func ExampleValue_severalRules() {
	store := memstore.New(memstore.Config{})
	perUser := core.Must(core.New(store, "user", core.SlidingLog(core.PerMinute(60))))
	perAddress := core.Must(core.New(store, "address", core.SlidingLog(core.PerMinute(300))))
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perUser, Key: ginmw.Value("user")},
		{Limiter: perAddress, Key: keyfuncs.RemoteAddr()},
	}}))

	r := gin.New()
	r.Use(authenticate, ginmw.Use(guard))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })

	listen(r) // r.Run("127.0.0.1:8080")
	// Output:
	// 200 "user";r=59;t=60, "address";r=299;t=60
	// 200 "user";r=58;t=60, "address";r=298;t=60
}

// The signed cookie of package keyfuncs in Gin: its handler only sets the cookie.
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
	set := cookie.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	r := gin.New()
	r.Use(ginmw.Use(guard), func(c *gin.Context) { set.ServeHTTP(c.Writer, c.Request) })
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })

	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Code, w.Result().Cookies()[0].Name)
	// Output: 200 __Host-id
}

// authenticate stands for a middleware that verifies who the user is.
func authenticate(c *gin.Context) { c.Set("user", "anna") }

func listen(h http.Handler) { ask(h, 2) }
