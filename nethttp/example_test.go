package nethttp_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// Two requests a minute for each client address.
func Example() {
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(2)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for range 3 {
		show(handler, httptest.NewRequest("GET", "/", nil))
	}
	// Output:
	// 200 OK
	//   Ratelimit: "api";r=1;t=60
	//   Ratelimit-Policy: "api";q=2;w=60
	// hello
	// 200 OK
	//   Ratelimit: "api";r=0;t=60
	//   Ratelimit-Policy: "api";q=2;w=60
	// hello
	// 429 Too Many Requests
	//   Ratelimit: "api";r=0;t=60
	//   Ratelimit-Policy: "api";q=2;w=60
	//   Retry-After: 60
	// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["api"]}
}

// A limit for each session, and a larger one for the address that sessions share. A
// request that is over the session's limit is not charged to the address either.
func ExampleNew_severalRules() {
	store := memstore.New(memstore.Config{})
	session, err := core.New(store, "session", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	address, err := core.New(store, "address", core.SlidingLog(core.PerMinute(50)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{
			{Limiter: session, Key: keyfuncs.Header("X-Session")},
			{Limiter: address, Key: keyfuncs.RemoteAddr()},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for _, id := range []string{"anna", "anna", "ben"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Session", id)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(id, w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// anna 200 "session";r=0;t=60, "address";r=49;t=60
	// anna 429 "session";r=0;t=60, "address";r=49;t=60
	// ben 200 "session";r=0;t=60, "address";r=48;t=60
}

// Paying customers have a larger limit. Used units still count when the plan changes.
func ExampleRule_plan() {
	free, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerHour(10)))
	if err != nil {
		log.Fatal(err)
	}
	gold, err := free.With(core.SlidingLog(core.PerHour(1000)))
	if err != nil {
		log.Fatal(err)
	}
	plans := map[string]*core.Limiter{"anna": gold}

	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: free,
			Key:     keyfuncs.Header("X-Customer"), // set by authentication
			Plan:    func(_ *http.Request, customer string) *core.Limiter { return plans[customer] },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for _, name := range []string{"anna", "ben"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Customer", name)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(name, w.Header().Get("RateLimit-Policy"), w.Header().Get("RateLimit"))
	}
	// Output:
	// anna "api";q=1000;w=3600 "api";r=999;t=3600
	// ben "api";q=10;w=3600 "api";r=9;t=3600
}

// Only failed logins count: three wrong passwords in a quarter of an hour are
// enough, and the right one is free.
func ExampleRule_settle() {
	logins, err := core.New(memstore.New(memstore.Config{}), "logins",
		core.SlidingLog(core.Rate{Events: 3, Per: 15 * time.Minute}))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: logins,
			Key:     keyfuncs.RemoteAddr(),
			Settle: func(_ *http.Request, o nethttp.Outcome) int64 {
				if o.Status < 400 { // not: unless it is 401, because a client may cause other errors
					return 0
				}
				return o.Cost
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	login := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("password") != "open sesame" {
			http.Error(w, "wrong password", http.StatusUnauthorized)
		}
	}))

	for _, password := range []string{"open sesame", "1234", "open sesame", "1234", "1234", "open sesame"} {
		r := httptest.NewRequest("POST", "/login", strings.NewReader("password="+password))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		login.ServeHTTP(w, r)
		fmt.Println(password, w.Code)
	}
	// Output:
	// open sesame 200
	// 1234 401
	// open sesame 200
	// 1234 401
	// 1234 401
	// open sesame 429
}

// The tokens of a language model: an estimate is reserved, and the handler sets the final
// number.
func ExampleSetCost() {
	tokens, err := core.New(memstore.New(memstore.Config{}), "tokens", core.TokenBucket(core.PerDay(10_000), 10_000))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: tokens,
			Key:     keyfuncs.RemoteAddr(),
			Cost:    func(*http.Request) int64 { return 4000 },
			Settle:  nethttp.StatedCost,
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const used = 1234
		nethttp.SetCost(r.Context(), "tokens", used)
	}))

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/complete", nil))
		fmt.Println(w.Header().Get("RateLimit"))
	}
	// Output:
	// "tokens";r=6000;t=9
	// "tokens";r=4766;t=9
}

// Shadow mode shows which requests a limit would refuse, before it does.
func ExampleConfig_observeOnly() {
	limiter, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules:       []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
		ObserveOnly: true,
		Observe: func(r *http.Request, v nethttp.Verdict) {
			if v.Status() != 0 {
				fmt.Println("would answer", v.Status(), "to", r.URL.Path)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for _, path := range []string{"/a", "/b"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /a 200
	// would answer 429 to /b
	// /b 200
}

// A page instead of the problem document. The fields are already set.
func ExampleConfig_onRefused() {
	limiter, err := core.New(memstore.New(memstore.Config{}), "site", core.SlidingLog(core.PerMinute(1)))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(v.Status())
			fmt.Fprintln(w, "please wait", v.Decision.RetryAfter.Round(time.Second))
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 hello
	// 429 please wait 1m0s
}

// A client that keeps to 50 requests a second, and to what the server says.
func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(hello))
	defer server.Close()

	limiter, err := core.New(memstore.New(memstore.Config{}), "outgoing", core.SlidingLog(core.PerSecond(50)))
	if err != nil {
		log.Fatal(err)
	}
	transport, err := nethttp.NewTransport(nethttp.TransportConfig{
		Limiter: limiter,
		Retries: 3,
		Reads:   []nethttp.Reader{nethttp.GitHub},
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}

	response, err := client.Get(server.URL)
	if err != nil { // it was not sent, or there is no answer
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
	// Output: 200 OK
}

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") }

func show(h http.Handler, r *http.Request) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	response := w.Result()
	fmt.Println(response.Status)
	for _, name := range []string{"Ratelimit", "Ratelimit-Policy", "Retry-After"} {
		if value := response.Header.Get(name); value != "" {
			fmt.Printf("  %s: %s\n", name, value)
		}
	}
	fmt.Println(strings.TrimSpace(w.Body.String()))
}
