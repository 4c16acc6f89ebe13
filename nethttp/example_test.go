package nethttp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

type (
	userKey struct{} // under which authentication stores the user in the context
	planKey struct{} // and the user's plan
)

var (
	user = keyfuncs.Context(userKey{})
	plan = keyfuncs.Context(planKey{})
)

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") }

// get asks for a path, and prints the status and what is left.
func get(h http.Handler, path string, fields ...string) {
	r := httptest.NewRequest("GET", path, nil)
	for i := 1; i < len(fields); i += 2 {
		r.Header.Set(fields[i-1], fields[i])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(strings.TrimSpace(fmt.Sprint(w.Code, " ", w.Header().Get("RateLimit"))))
}

// Two requests a minute for each client address.
func ExampleLimit() {
	limit := nethttp.Limit(new(core.MemoryStore), "address", keyfuncs.RemoteAddr(), core.SlidingLog(2, time.Minute))
	handler := limit.Handler(http.HandlerFunc(hello)) // for http.ListenAndServe

	for range 3 {
		get(handler, "/")
	}
	// Output:
	// 200 "address";r=1;t=60
	// 200 "address";r=0;t=60
	// 429 "address";r=0;t=60
}

// Behind proxies of a known network, with two policies for each client. Each of several has a name.
func ExampleLimit_policies() {
	client := keyfuncs.XForwardedFor("10.0.0.0/8")
	limit := nethttp.Limit(new(core.MemoryStore), "client", client,
		core.SlidingLog(60, time.Minute).Named("minute"), core.FixedWindow(1000, 24*time.Hour).Named("day"))

	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:1234" // of the proxy
	r.Header.Set("X-Forwarded-For", "203.0.113.7")
	w := httptest.NewRecorder()
	limit.Handler(http.HandlerFunc(hello)).ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"))
	// Output: 200 "minute";q=60;w=60, "day";q=1000;w=86400
}

// Two reports at once for each user.
func ExampleMaxInFlight() {
	reports := nethttp.MaxInFlight(new(core.MemoryStore), "reports", keyfuncs.Header("X-User"), 2)
	get(reports.Handler(http.HandlerFunc(hello)), "/", "X-User", "anna")
	// Output: 200 "reports";r=1
}

// A limit for each user, which is larger in the plan "gold", and one for the address that users share. Who is over one
// of them is charged to neither.
func ExampleNew() {
	store := new(core.MemoryStore) // or one of package redisstore, for all servers together
	api := core.NewLimiter(store, "user", core.SlidingLog(1, time.Minute)).
		WithPlan("gold", core.SlidingLog(600, time.Minute))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: api, Key: keyfuncs.Header("X-User"), Plan: keyfuncs.Header("X-Plan")}, // which authentication has set
		{Limiter: core.NewLimiter(store, "address", core.SlidingLog(50, time.Minute)), Key: keyfuncs.RemoteAddr()},
	}})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	get(handler, "/", "X-User", "anna")
	get(handler, "/", "X-User", "anna")
	get(handler, "/", "X-User", "anna", "X-Plan", "gold")
	// Output:
	// 200 "user";r=0;t=60, "address";r=49;t=60
	// 429 "user";r=0;t=60, "address";r=49;t=60
	// 200 "user";r=598;t=60, "address";r=48;t=60
}

// The error has all faults, one line a rule.
func ExampleNew_errors() {
	_, err := nethttp.New(nethttp.Config{
		Rates:       []nethttp.Rate{{}},
		Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(new(core.MemoryStore), "reports", 2)}},
	})
	fmt.Println(err)
	// Output:
	// headgate: Rates[0]: the Limiter is nil: make one with core.NewLimiter; the Key is nil: say who is counted, with a function of package keyfuncs
	// headgate: Concurrency[0]: the Key is nil: say whose requests are counted, with a function of package keyfuncs
}

// Sixty requests a minute and two at once for each user, while five more wait for up to ten seconds.
func ExampleConcurrency() {
	store := new(core.MemoryStore)
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{Limiter: core.NewLimiter(store, "requests", core.SlidingLog(60, time.Minute)), Key: user}},
		Concurrency: []nethttp.Concurrency{{
			Slots: core.NewSlots(store, "reports", 2).WithPlan("gold", 10), Key: user, Plan: plan,
			Queue: 5, MaxWait: 10 * time.Second,
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/reports/", guard.Handler(http.HandlerFunc(hello)))
}

// Health checks are free, and an export costs ten units.
func ExampleRate_cost() {
	guard, err := nethttp.New(nethttp.Config{
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(new(core.MemoryStore), "api", core.SlidingLog(60, time.Minute)),
			Key:     keyfuncs.RemoteAddr(),
			Cost: func(r *http.Request) int64 {
				if r.URL.Path == "/export" {
					return 10
				}
				return 1
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for _, path := range []string{"/", "/export", "/healthz"} {
		get(handler, path)
	}
	// Output:
	// 200 "api";r=59;t=60
	// 200 "api";r=49;t=60
	// 200
}

// Only wrong passwords count: after three in a quarter of an hour nobody gets in, and right ones are free.
func ExampleRate_settle() {
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: core.NewLimiter(new(core.MemoryStore), "logins", core.SlidingLog(3, 15*time.Minute)),
		Key:     keyfuncs.RemoteAddr(),
		Settle:  nethttp.FailuresOnly,
	}}})
	if err != nil {
		log.Fatal(err)
	}
	login := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("password") != "sesame" {
			http.Error(w, "wrong password", http.StatusUnauthorized)
		}
	}))

	for _, password := range []string{"sesame", "1234", "sesame", "1234", "1234", "sesame"} {
		get(login, "/login?password="+password)
	}
	// Output:
	// 200 "logins";r=2;t=900
	// 401 "logins";r=2;t=900
	// 200 "logins";r=1;t=900
	// 401 "logins";r=1;t=900
	// 401 "logins";r=0
	// 429 "logins";r=0;t=900
}

// The tokens of a language model: an estimate is charged, and the handler says how many it were.
func ExampleSetCost() {
	tokens := core.NewLimiter(new(core.MemoryStore), "tokens", core.TokenBucket(10_000, 24*time.Hour))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: tokens, Key: keyfuncs.RemoteAddr(), Cost: func(*http.Request) int64 { return 4000 }},
	}})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := nethttp.SetCost(r.Context(), tokens, 1234); err != nil {
			log.Print(err)
		}
	}))

	get(handler, "/complete")
	get(handler, "/complete")
	// Output:
	// 200 "tokens";r=6000;t=9
	// 200 "tokens";r=4766;t=9
}

// Bytes: one to get in, and the others afterwards, also below zero.
func ExampleBytesWritten() {
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: core.NewLimiter(new(core.MemoryStore), "bytes", core.TokenBucket(1000, time.Hour).Debt(10_000)),
		Key:     keyfuncs.RemoteAddr(),
		Settle:  nethttp.BytesWritten,
	}}})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 5000)) }))

	get(handler, "/download")
	get(handler, "/download")
	// Output:
	// 200 "bytes";r=999;t=4
	// 429 "bytes";r=0;t=14404
}

// A new limit on trial beside the one in force.
func ExampleRate_observeOnly() {
	store := new(core.MemoryStore)
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{
			{Limiter: core.NewLimiter(store, "api", core.SlidingLog(60, time.Minute)), Key: keyfuncs.RemoteAddr()},
			{Limiter: core.NewLimiter(store, "api-next", core.SlidingLog(1, time.Minute)), Key: keyfuncs.RemoteAddr(), ObserveOnly: true},
		},
		Observe: func(_ *http.Request, v *nethttp.Verdict) {
			if v.ObserveOnly {
				fmt.Println(v.Limiter, "would refuse", v.Key())
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	get(handler, "/")
	get(handler, "/")
	// Output:
	// 200 "api";r=59;t=60
	// api-next would refuse 192.0.2.1
	// 200 "api";r=58;t=60
}

// One's own fields, and one's own answer.
func ExampleConfig_onRefused() {
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(new(core.MemoryStore), "questions", core.SlidingLog(1, time.Minute)), Key: keyfuncs.RemoteAddr(),
		}},
		Fields: func(h http.Header, v *nethttp.Verdict) {
			nethttp.RateLimitFields(h, v) // or XRateLimitFields, or none
			h.Set("X-Quota-Left", strconv.FormatInt(v.Decision.Remaining, 10))
		},
		OnRefused: func(w http.ResponseWriter, r *http.Request, v *nethttp.Verdict) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(v.Status)
			json.NewEncoder(w).Encode(map[string]any{"error": "slow_down", "retry_in": v.RetryAfter.Round(time.Second).Seconds()})
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(hello))

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Print(w.Code, " ", w.Header().Get("X-Quota-Left"), " ", w.Body)
	}
	// Output:
	// 200 0 hello
	// 429 0 {"error":"slow_down","retry_in":60}
}

// A handler that says how much is left.
func ExampleVerdictFrom() {
	guard, err := nethttp.New(nethttp.Config{
		Rates: []nethttp.Rate{{
			Limiter: core.NewLimiter(new(core.MemoryStore), "left", core.SlidingLog(10, time.Minute)), Key: keyfuncs.RemoteAddr(),
		}},
		KeepVerdict: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, _ := nethttp.VerdictFrom(r.Context())
		fmt.Fprintf(w, "%d of %d left", v.Decision.Remaining, v.Decision.Limit)
	}))

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Body)
	// Output: 9 of 10 left
}
