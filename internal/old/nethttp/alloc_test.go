//go:build !race

package nethttp_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/nethttp"
)

// TestAllocationsOfPlans: however many limiters there are, one that Plan returns takes no
// more allocations than the rule's own, except for a refusal's body and its length, and its
// longer text.
func TestAllocationsOfPlans(t *testing.T) {
	for name, test := range map[string]struct {
		policy core.Policy
		want   float64
	}{
		"admitted": {core.FixedWindow(core.PerDay(1 << 40)), 1},
		"refused":  {core.SlidingLog(core.PerDay(1)), 3},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 10_000
			h := customers(t, n, test.policy).Handler(http.HandlerFunc(nothing))
			r, w := request("GET", "/"), &sink{header: make(http.Header)}
			ask := func() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}
			for range n { // the first of a key is another matter
				ask()
			}
			if got := testing.AllocsPerRun(n, ask); got > test.want {
				t.Errorf("%v allocations, want %v", got, test.want)
			}
		})
	}
}

// TestAllocations: all fields of a response take one allocation, and the decision none. Text
// that is long takes more.
func TestAllocations(t *testing.T) {
	long := strings.Repeat("x", 63)
	lax, strict := core.FixedWindow(core.PerDay(1<<40)), core.SlidingLog(core.PerDay(1))
	for name, test := range map[string]struct {
		policies []core.Policy
		noFields bool
		want     float64
	}{
		"admitted":               {[]core.Policy{lax}, false, 1},
		"admitted, two policies": {[]core.Policy{lax.Named("a"), lax.Named("b")}, false, 1},
		"admitted, long names":   {[]core.Policy{lax.Named(long + "a"), lax.Named(long + "b")}, false, 3},
		"admitted, no fields":    {[]core.Policy{lax}, true, 0},
		"refused":                {[]core.Policy{strict}, false, 1},
		"refused, two policies":  {[]core.Policy{lax.Named("a"), strict.Named("b")}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := rules(nethttp.Rule{Limiter: memory(t, "api", test.policies...), Key: client})
			c.NoFields = test.noFields
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
