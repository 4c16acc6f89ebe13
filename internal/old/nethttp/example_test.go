package nethttp_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

// Two requests a minute for each client address.
func Example() {
	limit := core.Must(nethttp.Limit("api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(2))))
	handler := limit.Handler(http.HandlerFunc(hello))

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

// Behind proxies in known networks, the client's address is in a header that they write. A
// second policy, for the same clients, admits 1,000 requests a day; so each has a name.
func ExampleLimit() {
	client := keyfuncs.XForwardedFor("10.0.0.0/8")
	limit := core.Must(nethttp.Limit("api", client,
		core.SlidingLog(core.PerMinute(60)).Named("minute"), core.FixedWindow(core.PerDay(1000)).Named("day")))
	handler := limit.Handler(http.HandlerFunc(hello))

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:1234" // of the proxy
	r.Header.Set("X-Forwarded-For", "203.0.113.7")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"))
	// Output: 200 "minute";q=60;w=60, "day";q=1000;w=86400
}

// One limit for all servers.
func ExampleLimitIn() {
	store, err := redisstore.OpenURL("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limit := core.Must(nethttp.LimitIn(store, "api", keyfuncs.RemoteAddr(), core.SlidingLog(core.PerMinute(60))))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit.Handler(http.HandlerFunc(hello))))
}

// What does not make a limit is reported when it is made: everything at once.
func ExampleLimit_errors() {
	_, err := nethttp.Limit("", nil, core.SlidingLog(core.PerMinute(0)))
	fmt.Println(err)
	// Output:
	// headgate: limiter "": the name is empty
	// headgate: limiter "", policy #1: a rate of 0 events: to refuse everything, use Blocked
	// headgate: limit "": the key is nil: say who is charged, with a function of package keyfuncs
}

// A limit for each session, and a larger one for the address that sessions share. A
// request that is over the session's limit is not charged to the address either.
func ExampleNew_severalRules() {
	store := memstore.New(memstore.Config{})
	session := core.Must(core.New(store, "session", core.SlidingLog(core.PerMinute(1))))
	address := core.Must(core.New(store, "address", core.SlidingLog(core.PerMinute(50))))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{
			{Limiter: session, Key: keyfuncs.Header("X-Session")},
			{Limiter: address, Key: keyfuncs.RemoteAddr()},
		},
	}))
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
	free := core.Must(core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerHour(10))))
	gold := core.Must(free.With(core.SlidingLog(core.PerHour(1000))))
	plans := map[string]*core.Limiter{"anna": gold}

	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: free,
			Key:     keyfuncs.Header("X-Customer"), // set by authentication
			Plan:    func(_ *http.Request, customer string) *core.Limiter { return plans[customer] },
		}},
	}))
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
	logins := core.Must(core.New(memstore.New(memstore.Config{}), "logins",
		core.SlidingLog(core.Rate{Events: 3, Per: 15 * time.Minute})))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: logins,
			Key:     keyfuncs.RemoteAddr(),
			Settle:  nethttp.FailuresOnly,
		}},
	}))
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
	tokens := core.Must(core.New(memstore.New(memstore.Config{}), "tokens", core.TokenBucket(core.PerDay(10_000), 10_000)))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: tokens,
			Key:     keyfuncs.RemoteAddr(),
			Cost:    func(*http.Request) int64 { return 4000 },
			Settle:  nethttp.StatedCost,
		}},
	}))
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

// A limit on bytes: a client needs one byte to begin, and what was sent counts afterwards.
func ExampleRule_report() {
	bytes := core.Must(core.New(memstore.New(memstore.Config{}), "bytes", core.TokenBucket(core.PerHour(1000), 1000).Debt(10_000)))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Limiter: bytes,
			Key:     keyfuncs.RemoteAddr(),
			Report:  nethttp.BytesWritten,
		}},
	}))
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 5000))
	}))

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/download", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "bytes";r=1000
	// 429 "bytes";r=0;t=14404
}

// Shadow mode shows which requests a limit would refuse, before it does.
func ExampleConfig_observeOnly() {
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(1))))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules:       []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
		ObserveOnly: true,
		Observe: func(r *http.Request, v nethttp.Verdict) {
			if v.Status() != 0 {
				fmt.Println("would answer", v.Status(), "to", r.URL.Path)
			}
		},
	}))
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
	limiter := core.Must(core.New(memstore.New(memstore.Config{}), "site", core.SlidingLog(core.PerMinute(1))))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{Limiter: limiter, Key: keyfuncs.RemoteAddr()}},
		OnRefused: func(w http.ResponseWriter, _ *http.Request, v nethttp.Verdict) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(v.Status())
			fmt.Fprintln(w, "please wait", v.Decision.RetryAfter.Round(time.Second))
		},
	}))
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

// Two reports at once for each user; others are refused.
func ExampleInFlight() {
	user := keyfuncs.Header("X-User") // set by authentication
	reports := core.Must(nethttp.InFlight("reports", user, 2))
	handler := reports.Handler(http.HandlerFunc(hello))

	r := httptest.NewRequest("GET", "/report", nil)
	r.Header.Set("X-User", "anna")
	show(handler, r)
	// Output:
	// 200 OK
	//   Ratelimit: "reports";r=1
	//   Ratelimit-Policy: "reports";q=2;qu="concurrent-requests"
	// hello
}

// Two reports at once for each user. Five more requests wait, for up to ten seconds.
func ExampleNew_queue() {
	slots := core.Must(core.NewSlots(memstore.New(memstore.Config{}), "reports", 2))
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{{
			Key:   keyfuncs.Header("X-User"), // set by authentication
			Slots: slots,
			Queue: 5,
		}},
		Wait: 10 * time.Second,
	}))
	handler := guard.Handler(http.HandlerFunc(hello))

	r := httptest.NewRequest("GET", "/report", nil)
	r.Header.Set("X-User", "anna")
	show(handler, r)
	// Output:
	// 200 OK
	//   Ratelimit: "reports";r=1
	//   Ratelimit-Policy: "reports";q=2;qu="concurrent-requests"
	// hello
}

// Each user may send 60 requests and use 10,000 tokens in a minute, and have two requests handled at
// once.
func ExampleNew_ratesAndSlots() {
	store := memstore.New(memstore.Config{})
	requests := core.Must(core.New(store, "requests", core.SlidingLog(core.PerMinute(60))))
	tokens := core.Must(core.New(store, "tokens", core.SlidingLog(core.PerMinute(10_000))))
	running := core.Must(core.NewSlots(store, "running", 2))
	user := keyfuncs.Header("X-User") // set by authentication
	estimate := func(r *http.Request) int64 { return max(1, r.ContentLength/4) }
	guard := core.Must(nethttp.New(nethttp.Config{
		Rules: []nethttp.Rule{
			{Key: user, Limiter: requests},
			{Key: user, Limiter: tokens, Cost: estimate, Settle: nethttp.StatedCost},
			{Key: user, Slots: running, Queue: 5},
		},
		Wait: 10 * time.Second,
	}))
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nethttp.SetCost(r.Context(), "tokens", 700) // as many as were used
		hello(w, r)
	}))

	r := httptest.NewRequest("POST", "/chat", strings.NewReader(strings.Repeat("word ", 400)))
	r.Header.Set("X-User", "anna")
	show(handler, r)
	left := core.Must(tokens.Peek(r.Context(), "anna"))
	fmt.Println(left.Remaining, "tokens are left")
	// Output:
	// 200 OK
	//   Ratelimit: "requests";r=59;t=60, "tokens";r=9500;t=60, "running";r=1
	//   Ratelimit-Policy: "requests";q=60;w=60, "tokens";q=10000;w=60, "running";q=2;qu="concurrent-requests"
	// hello
	// 9300 tokens are left
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
