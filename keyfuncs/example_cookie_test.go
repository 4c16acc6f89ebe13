package keyfuncs_test

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A browser is charged by its cookie, and by address until it has one.
func ExampleNewSignedCookie() {
	cookie, err := keyfuncs.NewSignedCookie("__Host-id", 24*time.Hour, serverSecret)
	if err != nil {
		log.Fatal(err)
	}
	guard := guardBy(keyfuncs.First(cookie.Key, keyfuncs.RemoteAddr()))
	handler := guard.Handler(cookie.Handler(http.HandlerFunc(hello)))

	listen(handler) // http.ListenAndServe("127.0.0.1:8080", handler)
	// Output:
	// 200, 59 left of the address
	// 200, 59 left of the cookie
}

// serverSecret comes from the configuration: at least 32 random bytes, the same on all servers.
var serverSecret = func() []byte {
	b := make([]byte, 32)
	rand.Read(b)
	return b
}()

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

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

// listen sends a request without a cookie, then one with the cookie it was given.
func listen(h http.Handler) {
	r := httptest.NewRequest("GET", "/", nil)
	for _, charged := range []string{"address", "cookie"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var left int
		if _, err := fmt.Sscanf(w.Header().Get("RateLimit"), `"api";r=%d;`, &left); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d, %d left of the %s\n", w.Code, left, charged)
		for _, c := range w.Result().Cookies() {
			r.AddCookie(c)
		}
	}
}
