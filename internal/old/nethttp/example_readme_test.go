package nethttp_test

import (
	"context"
	"log"
	"net/http"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

type (
	userKey struct{} // under which authentication stores the user in the context
	planKey struct{} // the user's plan
)

// Two limits for each request: one for the user and a larger one for the address.
func ExampleGuard_Handler() {
	store := memstore.New(memstore.Config{})
	perUser := core.Must(core.New(store, "user", core.SlidingLog(core.PerMinute(60))))
	perAddress := core.Must(core.New(store, "address", core.SlidingLog(core.PerMinute(300))))
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{
		{Limiter: perUser, Key: keyfuncs.Context(userKey{})},
		{Limiter: perAddress, Key: keyfuncs.RemoteAddr()},
	}}))
	http.Handle("/api/", guard.Handler(http.HandlerFunc(hello)))
}

// HTTP/2 without TLS, as a proxy may speak it.
func ExampleGuard_Handler_http2() {
	client := keyfuncs.XForwardedFor("10.0.0.0/8")
	limit := core.Must(nethttp.Limit("api", client, core.SlidingLog(core.PerMinute(60))))

	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: limit.Handler(http.HandlerFunc(hello)), Protocols: protocols}
	log.Fatal(server.ListenAndServe())
}

// A larger limit for a plan, and a route that costs ten units.
func ExampleRule_cost() {
	free := core.Must(core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerMinute(60))))
	gold := core.Must(free.With(core.SlidingLog(core.PerMinute(600))))
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
		Limiter: free, // when Plan returns nil
		Key:     keyfuncs.Context(userKey{}),
		Plan: func(r *http.Request, _ string) *core.Limiter {
			if r.Context().Value(planKey{}) == "gold" {
				return gold
			}
			return nil
		},
		Cost: func(r *http.Request) int64 {
			if r.URL.Path == "/export" {
				return 10
			}
			return 1
		},
	}}}))
	http.Handle("/", guard.Handler(http.HandlerFunc(hello)))
}

// Limits that stand in a file, and change when it does.
func ExampleRule_limit() {
	store := memstore.New(memstore.Config{})
	book, err := limits.Open(context.Background(), store, store, limits.File("limits.yaml"), limits.Config{
		Decode: yamldoc.Decode,
		Changed: func(e limits.Event) {
			log.Printf("limits of version %s (%v)\n%v", e.State.Version, e.State.Err, e.Diff)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	api, err := book.Limit("api")
	if err != nil {
		log.Fatal(err)
	}
	guard := core.Must(nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
		Limit: api,
		Key:   keyfuncs.Context(userKey{}),
		PlanName: func(r *http.Request) string {
			plan, _ := r.Context().Value(planKey{}).(string)
			return plan
		},
	}}}))
	http.Handle("/", guard.Handler(http.HandlerFunc(hello)))
}
