package conformance

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/nethttp"
)

// Limits of a document apply under each framework, by the key that is counted, and change while it runs.
func TestLimitsOfADocument(t *testing.T) {
	for _, f := range frameworks {
		t.Run(f.name, func(t *testing.T) {
			var limit atomic.Int64
			limit.Store(10)
			book, err := limits.Open(t.Context(), new(core.MemoryStore), func(context.Context) ([]byte, error) {
				return fmt.Appendf(nil, `{"limits": {"api": {"default": "free", "plans": {"free": "sliding-log %d/hour", "gold": "sliding-log 1000/hour"},
					"overrides": [{"key": "anna", "policies": "sliding-log 7/hour"}, {"key": "user:anna", "policies": "sliding-log 8/hour"}]}}}`, limit.Load()), nil
			}, limits.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer book.Close()
			api, err := book.Limiter("api")
			if err != nil {
				t.Fatal(err)
			}
			keys := map[int64]keyfuncs.Func{7: client}
			if from := handed[f.name]; from != nil {
				keys[8] = keyfuncs.First(keyfuncs.Tag("user", from(client)))
			}
			for anna, key := range keys {
				guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{Limiter: api, Key: key, Plan: keyfuncs.Header("X-Plan")}}})
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
				is("anna", "gold", anna)
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
