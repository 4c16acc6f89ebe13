package keyfuncs_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A campus has many students behind one address. Each student whose cookie is older than
// ten minutes has a limit. All others at the address share one, so that omitting, rotating
// or forging cookies does not escape a limit. The address gets few new cookies a day, so
// that few can be collected, and has a larger limit for all of them. Students who sign in
// are not newcomers.
func ExampleSignedCookie() {
	secret := make([]byte, 32) // from the configuration, the same on all servers
	rand.Read(secret)
	cookie, err := keyfuncs.NewSignedCookie("__Host-client", 24*time.Hour, secret)
	if err != nil {
		log.Fatal(err)
	}
	const probation = 10 * time.Minute
	student, address := cookie.OlderThan(probation), keyfuncs.RemoteAddr()

	store := new(core.MemoryStore)
	limiter := func(name string, n int64, per time.Duration) *core.Limiter {
		return core.NewLimiter(store, name, core.SlidingLog(n, per))
	}
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: limiter("student", 2, time.Minute), Key: student, Skip: keyfuncs.Lacks(student)},
		{Limiter: limiter("newcomers", 4, time.Minute), Key: address, Skip: keyfuncs.Has(student)},
		{Limiter: limiter("cookies", 2, 24*time.Hour), Key: address, Skip: keyfuncs.Has(cookie.Key)}, // a day is how long a cookie is valid
		{Limiter: limiter("address", 100, time.Minute), Key: address},                                // 2×2 + 2 + 4 more than the students need
	}})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") })
	handler := guard.Handler(cookie.Handler(hello)) // refused clients get no cookie

	// signIn returns the cookie to set when a student has signed in. Limit that by account.
	signIn := func() *http.Cookie { return cookie.New(time.Now().Add(-probation)) }

	ask := func(name string, c *http.Cookie) (given *http.Cookie) {
		r := httptest.NewRequest("GET", "/", nil)
		if c != nil {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(name, w.Code)
		if set := w.Result().Cookies(); len(set) > 0 {
			given = set[0]
		}
		return given
	}

	mallory := signIn()
	for range 3 {
		ask("mallory:", mallory)
	}
	given := ask("  without cookie:", nil)
	ask("  with the new one:", given)
	ask("  with a forged one:", &http.Cookie{Name: given.Name, Value: given.Value[1:] + "A"})
	ask("  for a third cookie:", nil)
	ask("  with the new one:", given)
	ask("  with the new one:", given)
	ask("anna:", signIn())
	// Output:
	// mallory: 200
	// mallory: 200
	// mallory: 429
	//   without cookie: 200
	//   with the new one: 200
	//   with a forged one: 200
	//   for a third cookie: 429
	//   with the new one: 200
	//   with the new one: 429
	// anna: 200
}

// Monitors in a network of your own are not limited.
func ExampleIn() {
	address := keyfuncs.RemoteAddr()
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{Limiter: core.NewLimiter(new(core.MemoryStore), "api", core.SlidingLog(1, time.Minute)), Key: address}},
		Skip:  keyfuncs.In(address, "192.0.2.0/24", "2001:db8::1"),
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	for _, remote := range []string{"192.0.2.7:80", "192.0.2.7:80", "203.0.113.7:80", "203.0.113.7:80"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.RemoteAddr = remote
		handler.ServeHTTP(w, r)
		fmt.Println(remote, w.Code)
	}
	// Output:
	// 192.0.2.7:80 200
	// 192.0.2.7:80 200
	// 203.0.113.7:80 200
	// 203.0.113.7:80 429
}

// A token cannot be read in a store.
func ExampleBearer() {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer s3cr3t")
	fmt.Println(keyfuncs.Bearer()(r))
	// Output: TnOMpVY8Bs_QAYKZkz1Y2w <nil>
}
