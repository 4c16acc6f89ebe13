//go:build !race

package nethttp_test

import (
	"net/http"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/nethttp"
)

// TestAllocations: the fields take two allocations, the text of RateLimit and a
// slice for all values, a refusal one more for Retry-After, and the decision none.
// The race detector allocates, so under it there is no such test.
func TestAllocations(t *testing.T) {
	lax, strict := core.FixedWindow(core.PerDay(1<<40)), core.SlidingLog(core.PerDay(1))
	for name, test := range map[string]struct {
		policies []core.Policy
		fields   nethttp.Fields
		want     float64
	}{
		"admitted":               {[]core.Policy{lax}, nil, 2},
		"admitted, two policies": {[]core.Policy{lax.Named("a"), lax.Named("b")}, nil, 2},
		"admitted, no fields":    {[]core.Policy{lax}, nethttp.NoFields, 0},
		"refused":                {[]core.Policy{strict}, nil, 3},
		"refused, two policies":  {[]core.Policy{lax.Named("a"), strict.Named("b")}, nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			c := rules(nethttp.Rule{Limiter: memory(t, "api", test.policies...), Key: client})
			c.Fields = test.fields
			h := newGuard(t, c).Handler(http.HandlerFunc(nothing))
			r, w := request("GET", "/"), &sink{header: make(http.Header)}
			h.ServeHTTP(w, r) // the first of a key is another matter
			if got := testing.AllocsPerRun(1000, func() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}); got > test.want {
				t.Errorf("%v allocations, want %v", got, test.want)
			}
		})
	}
}
