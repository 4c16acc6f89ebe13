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

// A plan is chosen by the key that is charged: that of the rule, or of the framework's
// LimitBy in its place.
func TestPlansByKey(t *testing.T) {
	byRule, byFramework := keyfuncs.Header("X-Client"), keyfuncs.First(keyfuncs.Header("X-Client"))
	for _, f := range frameworks {
		for _, test := range []struct {
			name string
			keys []keyfuncs.Func // of the framework
			gold string
		}{
			{"the rule's key", nil, "anna"},
			{"the framework's key", []keyfuncs.Func{byFramework}, "0:anna"},
		} {
			if test.keys != nil && (f.name == "nethttp" || f.name == "chi") {
				continue // which have no keys of their own
			}
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
					Limiter: free, Key: byRule,
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
				h := f.serve(guard, func(http.ResponseWriter, *http.Request) {}, test.keys...)
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
