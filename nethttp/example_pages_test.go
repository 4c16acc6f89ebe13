package nethttp_test

import (
	"log"
	"net/http"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// One limit for all servers.
func ExampleLimit_redis() {
	store, err := redisstore.Open("redis://localhost:6379/0", redisstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limit := nethttp.Limit(store, "api", keyfuncs.RemoteAddr(), core.SlidingLog(60, time.Minute))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit.Handler(http.HandlerFunc(hello))))
}

// Limits with different keys are rules of one guard.
func ExampleNew_severalKeys() {
	store := new(core.MemoryStore)
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{
		{Limiter: core.NewLimiter(store, "user", core.SlidingLog(60, time.Minute)), Key: keyfuncs.Context(userKey{})},
		{Limiter: core.NewLimiter(store, "address", core.SlidingLog(300, time.Minute)), Key: keyfuncs.RemoteAddr()},
	}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/api/", guard.Handler(http.HandlerFunc(hello)))
}

// A plan has other policies, and a costly route more units.
func ExampleRate_plan() {
	users := core.NewLimiter(new(core.MemoryStore), "user", core.SlidingLog(60, time.Minute)).
		WithPlan("gold", core.SlidingLog(600, time.Minute))
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{
		Limiter: users,
		Key:     keyfuncs.Context(userKey{}),
		Plan:    keyfuncs.Context(planKey{}), // absent, or not "gold": the default
		Cost: func(r *http.Request) int64 {
			if r.URL.Path == "/export" {
				return 10
			}
			return 1
		},
	}}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/", guard.Handler(http.HandlerFunc(hello)))
}

// HTTP/2 without TLS, behind a proxy.
func ExampleGuard_Handler_http2() {
	client := keyfuncs.XForwardedFor("10.0.0.0/8")
	limit := nethttp.Limit(new(core.MemoryStore), "client", client, core.SlidingLog(60, time.Minute))

	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: limit.Handler(http.HandlerFunc(hello)), Protocols: protocols}
	log.Fatal(server.ListenAndServe())
}
