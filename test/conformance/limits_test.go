package conformance

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

// Limits of a document apply under each framework, by the key that is charged, and change while
// it runs.
func TestLimitsOfADocument(t *testing.T) {
	for _, f := range frameworks {
		t.Run(f.name, func(t *testing.T) {
			var limit atomic.Int64
			limit.Store(10)
			store := memstore.New(memstore.Config{})
			book, err := limits.Open(t.Context(), store, nil, limits.SourceFunc(func(context.Context) ([]byte, error) {
				return fmt.Appendf(nil, `{"limits": {"api": {"default": "free", "plans": {"free": "sliding-log %d/hour", "gold": "sliding-log 1000/hour"},
					"overrides": [{"key": "anna", "policies": "sliding-log 7/hour"}, {"key": "0:anna", "policies": "sliding-log 8/hour"}]}}}`, limit.Load()), nil
			}), limits.Config{Every: 1000 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer book.Close()
			api, err := book.Limit("api")
			if err != nil {
				t.Fatal(err)
			}
			keys := map[int]keyfuncs.Func{7: keyfuncs.Header("X-Client")}
			if from := handed[f.name]; from != nil {
				keys[8] = keyfuncs.First(from(keys[7]))
			}
			for anna, key := range keys {
				guard, err := nethttp.New(nethttp.Config{Rules: []nethttp.Rule{{
					Limit: api, Key: key, PlanName: func(r *http.Request) string { return r.Header.Get("X-Plan") },
				}}})
				if err != nil {
					t.Fatal(err)
				}
				h := f.serve(guard, func(http.ResponseWriter, *http.Request) {})
				is := func(client, plan string, want int64) {
					t.Helper()
					got := ask(h, request("GET", "/path", "X-Client", client, "X-Plan", plan)).Fields.Get("RateLimit-Policy")
					if want := fmt.Sprintf(`"api";q=%d;w=3600`, want); got != want {
						t.Errorf("%s: %s, want %s", client, got, want)
					}
				}
				is("anna", "gold", int64(anna))
				is("ben", "", limit.Load())
				is("ben", "gold", 1000)
				limit.Add(1)
				if err := book.Reload(t.Context()); err != nil {
					t.Fatal(err)
				}
				is("ben", "", limit.Load())
			}
		})
	}
}
