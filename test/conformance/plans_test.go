package conformance

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A plan is chosen by the key that is charged.
func TestPlansByKey(t *testing.T) {
	byRequest := keyfuncs.Header("X-Client")
	for _, f := range frameworks {
		tests := []struct {
			name string
			key  keyfuncs.Func
			gold string
		}{{"the request's key", byRequest, "anna"}}
		if from := handed[f.name]; from != nil {
			tests = append(tests, tests[0])
			tests[1].name, tests[1].key, tests[1].gold = "the framework's key", keyfuncs.First(from(byRequest)), "0:anna"
		}
		for _, test := range tests {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				free, err := core.New(memstore.New(memstore.Config{}), "api", core.SlidingLog(core.PerHour(10)))
				if err != nil {
					t.Fatal(err)
				}
				gold, err := free.With(core.SlidingLog(core.PerHour(1000)))
				if err != nil {
					t.Fatal(err)
				}
				plans := map[string]*core.Limiter{test.gold: gold}
				guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
					Limiter: free, Key: test.key,
					Plan: func(r *http.Request, key string) *core.Limiter {
						if r.URL.Path != "/path" {
							t.Errorf("Plan got a request for %s", r.URL.Path)
						}
						return plans[key]
					},
				}}})
				if err != nil {
					t.Fatal(err)
				}
				h := f.serve(guard, func(http.ResponseWriter, *http.Request) {})
				for client, limit := range map[string]int{"anna": 1000, "ben": 10} {
					got := ask(h, request("GET", "/path", "X-Client", client)).Fields.Get("RateLimit-Policy")
					if want := fmt.Sprintf(`"api";q=%d;w=3600`, limit); got != want {
						t.Errorf("%s: %s, want %s", client, got, want)
					}
				}
			})
		}
	}
}
