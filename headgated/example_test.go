package headgated_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/limits"
)

// A program asks the service of a document. Here the service is in the same process; the command
// headgated is one in a process of its own.
func Example() {
	s := core.Must(headgated.New(headgated.Config{
		Document: limits.Bytes([]byte(`
limits:
  api: {plans: {free: sliding-log 2/hour}}
routes:
  - {path: /healthz, charge: []}
  - charge: [{limit: api, key: address}]
`)),
		HTTP:   "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler),
	}))
	addrs := core.Must(s.Listen())
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx) }()

	for range 3 {
		response := core.Must(http.Post("http://"+addrs.HTTP+"/v1/charge", "application/json",
			strings.NewReader(`{"charges": [{"limit": "api", "key": "anna"}]}`)))
		response.Body.Close()
		fmt.Printf("%s, Retry-After: %q\n", response.Status, response.Header.Get("Retry-After"))
	}

	stop()
	fmt.Println(<-served)
	// Output:
	// 200 OK, Retry-After: ""
	// 200 OK, Retry-After: ""
	// 429 Too Many Requests, Retry-After: "3600"
	// <nil>
}

// A Go program can have the doors among its own.
func ExampleServer_HTTP() {
	s := core.Must(headgated.New(headgated.Config{
		Document: limits.Bytes([]byte(`limits: {api: {plans: {free: sliding-log 2/hour}}}`)),
		Logger:   slog.New(slog.DiscardHandler),
	}))
	defer s.Close()
	mux := http.NewServeMux()
	mux.Handle("/v1/", s.HTTP())
	mux.Handle("/debug/headgate/", s.Admin())

	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/v1/check", strings.NewReader(`{"charges": [{"limit": "api", "key": "anna"}]}`))
	r.Header.Set("Content-Type", "application/json")
	mux.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"))
	// Output: 200 "api";q=2;w=3600
}
