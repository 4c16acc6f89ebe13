package keyfuncs_test

import (
	"crypto/rand"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A browser is charged by its cookie when that is a minute old, and by address until then.
// The address has a limit of its own, for clients that collect cookies.
func ExampleNewSignedCookie() {
	cookie, err := keyfuncs.NewSignedCookie("__Host-id", 24*time.Hour, serverSecret)
	if err != nil {
		log.Fatal(err)
	}
	store, address := new(core.MemoryStore), keyfuncs.RemoteAddr()
	browser := keyfuncs.First(keyfuncs.Tag("browser", cookie.OlderThan(time.Minute)), keyfuncs.Tag("ip", address))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: core.NewLimiter(store, "browser", core.SlidingLog(60, time.Minute)), Key: browser},
		{Limiter: core.NewLimiter(store, "address", core.SlidingLog(300, time.Minute)), Key: address},
	}})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(cookie.Handler(http.HandlerFunc(hello)))

	listen(handler) // http.ListenAndServe("127.0.0.1:8080", handler)
	// Output:
	// 200 "browser";r=59;t=60, "address";r=299;t=60
	// 200 "browser";r=58;t=60, "address";r=298;t=60
}

// serverSecret comes from the configuration: at least 32 random bytes, the same on all servers.
var serverSecret = func() []byte {
	b := make([]byte, 32)
	rand.Read(b)
	return b
}()

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

// listen sends a request without a cookie, then one with the cookie it was given.
var listen = func(h http.Handler) {
	r := httptest.NewRequest("GET", "/", nil)
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
		for _, c := range w.Result().Cookies() {
			r.AddCookie(c)
		}
	}
}

// Whatever an attacker does with cookies, it is served what its address may have; and until
// it has waited for its cookies to count, what one browser may have.
func TestCollectedCookies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const browserLimit, addressLimit = 60, 300 // of the example
		var handler http.Handler
		defer func(saved func(http.Handler)) { listen = saved }(listen)
		listen = func(h http.Handler) { handler = h }
		ExampleNewSignedCookie()

		ask := func(remote string, cookie *http.Cookie) (served int, given []*http.Cookie) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = remote
			if cookie != nil {
				r.AddCookie(cookie)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code == http.StatusOK {
				served = 1
			}
			return served, w.Result().Cookies()
		}
		// attack takes all cookies that it can get, and uses all that it has.
		var cookies []*http.Cookie
		attack := func() (served int) {
			for range 2 * addressLimit {
				n, given := ask("203.0.113.7:80", nil)
				served += n
				cookies = append(cookies, given...)
			}
			for _, cookie := range cookies {
				for range browserLimit {
					n, _ := ask("203.0.113.7:80", cookie)
					served += n
				}
			}
			return served
		}
		if served := attack(); served != browserLimit || len(cookies) != browserLimit {
			t.Errorf("at once, an attacker was served %d requests and %d cookies", served, len(cookies))
		}
		for range 3 {
			time.Sleep(time.Minute)
			if served := attack(); served != addressLimit {
				t.Errorf("with %d cookies, an attacker was served %d requests in a minute", len(cookies), served)
			}
			if served, _ := ask("203.0.113.8:80", nil); served == 0 {
				t.Error("another address is refused")
			}
		}
	})
}
