package keyfuncs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/headgate/headgate/keyfuncs"
)

// Clients connect to the server directly.
func ExampleRemoteAddr() {
	key := keyfuncs.RemoteAddr()

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "203.0.113.7:4711"
	fmt.Println(key(r))

	r.RemoteAddr = "[2001:db8:1:2:3:4:5:6]:4711"
	fmt.Println(key(r))
	// Output:
	// 203.0.113.7 <nil>
	// 2001:db8:1:2::/64 <nil>
}

// An nginx on the same host sets X-Real-IP.
func ExampleProxyHeader() {
	key := keyfuncs.ProxyHeader("X-Real-IP", "127.0.0.1", "::1")

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "127.0.0.1:4711"
	r.Header.Set("X-Real-IP", "203.0.113.7")
	fmt.Println(key(r))

	// The header is ignored if the client bypasses the proxy.
	r.RemoteAddr = "198.51.100.1:4711"
	fmt.Println(key(r))
	// Output:
	// 203.0.113.7 <nil>
	// 198.51.100.1 <nil>
}

// A load balancer in 10.0.0.0/8 appends to X-Forwarded-For.
func ExampleXForwardedFor() {
	key := keyfuncs.XForwardedFor("10.0.0.0/8")

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	// The client wrote the first, its balancer the second.
	r.Header.Set("X-Forwarded-For", "1.1.1.1, 203.0.113.7")
	fmt.Println(key(r))
	// Output: 203.0.113.7 <nil>
}

// Networks of a configuration file are checked first; all faults are reported at once.
func ExampleCheckNetworks() {
	err := keyfuncs.CheckNetworks("10.0.0.1/8", "::/0", "balancer", "192.0.2.0/24")
	fmt.Println(err)
	// Output:
	// headgate: keyfuncs: network "10.0.0.1/8": an address with the length of a network, which would be 10.0.0.0/8
	// headgate: keyfuncs: network "::/0": it contains every address: each client would be in it
	// headgate: keyfuncs: network "balancer": neither a network, such as 192.0.2.0/24, nor an address
}

// Two proxies append to Forwarded, the outer one with the client's port.
func ExampleForwarded() {
	key := keyfuncs.Forwarded("10.0.0.0/8")

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("Forwarded", `for="[2001:db8:1:2::7]:4711";proto=https, for=10.0.0.2`)
	fmt.Println(key(r))
	// Output: 2001:db8:1:2::/64 <nil>
}

// A CDN is in front of a load balancer, and the addresses of both change.
func ExampleBehindProxies() {
	key := keyfuncs.BehindProxies(2)

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711" // the balancer
	// Written by the client, the CDN and the balancer.
	r.Header.Set("X-Forwarded-For", "1.1.1.1, 203.0.113.7, 198.51.100.1")
	fmt.Println(key(r))
	// Output: 203.0.113.7 <nil>
}

// Customers of this service can move within a /48.
func ExampleNetwork() {
	key := keyfuncs.Network(keyfuncs.XForwardedFor("10.0.0.0/8"), 32, 48)

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("X-Forwarded-For", "2001:db8:1:2::7")
	fmt.Println(key(r))
	// Output: 2001:db8:1::/48 <nil>
}

// An API key identifies the client.
func ExampleHeader() {
	key := keyfuncs.Header("X-Api-Key")

	r := httptest.NewRequest("GET", "/", nil)
	_, err := key(r)
	fmt.Println(err, errors.Is(err, keyfuncs.ErrAbsent))

	r.Header.Set("X-Api-Key", "k-1234")
	fmt.Println(key(r))
	// Output:
	// headgate: keyfuncs: absent: header X-Api-Key true
	// k-1234 <nil>
}

// Route is used within the mux, which has chosen the pattern by then.
func ExampleRoute() {
	key := keyfuncs.Route()

	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(key(r))
	})
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/items/7", nil))
	// Output: GET /items/{id} <nil>
}

// A middleware that runs before has stored the user in the context.
func ExampleContext() {
	type userKey struct{}
	key := keyfuncs.Context(userKey{})

	r := httptest.NewRequest("GET", "/", nil)
	r = r.WithContext(context.WithValue(r.Context(), userKey{}, "anna"))
	fmt.Println(key(r))
	// Output: anna <nil>
}

// The whole service has one limit.
func ExampleEveryone() {
	key := keyfuncs.Everyone()
	fmt.Println(key(httptest.NewRequest("GET", "/", nil)))
	// Output: everyone <nil>
}

// Each client has a limit on each route.
func ExampleAll() {
	key := keyfuncs.All(keyfuncs.Route(), keyfuncs.RemoteAddr())

	r := httptest.NewRequest("GET", "/items/7", nil)
	r.Pattern = "GET /items/{id}"
	r.RemoteAddr = "203.0.113.7:4711"
	fmt.Println(key(r))
	// Output: 15:GET /items/{id},11:203.0.113.7, <nil>
}

// Signed-in users are charged by name, others by address.
func ExampleFirst() {
	type userKey struct{}
	key := keyfuncs.First(keyfuncs.Tag("user", keyfuncs.Context(userKey{})), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "203.0.113.7:4711"
	fmt.Println(key(r))

	r = r.WithContext(context.WithValue(r.Context(), userKey{}, "anna"))
	fmt.Println(key(r))
	// Output:
	// ip:203.0.113.7 <nil>
	// user:anna <nil>
}

// A custom function returns ErrAbsent if the request has no key, so that First tries the
// next function.
func ExampleFunc() {
	var tenant keyfuncs.Func = func(r *http.Request) (string, error) {
		name := r.PathValue("tenant")
		if name == "" {
			return "", fmt.Errorf("%w: tenant", keyfuncs.ErrAbsent)
		}
		return name, nil
	}
	key := keyfuncs.First(keyfuncs.Tag("tenant", tenant), keyfuncs.Tag("other", keyfuncs.Everyone()))

	r := httptest.NewRequest("GET", "/", nil)
	fmt.Println(key(r))

	r.SetPathValue("tenant", "acme")
	fmt.Println(key(r))
	// Output:
	// other:everyone <nil>
	// tenant:acme <nil>
}
