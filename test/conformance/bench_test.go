//go:build !race

package conformance

import (
	"net/http"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// sink is the cheapest writer whose header starts empty each time.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

var lax, strict = core.TokenBucket(core.PerSecond(1_000_000), 100_000_000), core.TokenBucket(core.PerHour(1), 1)

func anna(*http.Request) (string, error) { return "anna", nil }

// TestAllocations: also where an application inlines it, a framework's middleware allocates no
// more than net/http's, beyond what one that does nothing does.
func TestAllocations(t *testing.T) {
	for name, policy := range map[string]core.Policy{"admitted": lax, "refused": strict} {
		var engine float64
		for _, f := range frameworks {
			var count [2]float64
			for i := range count {
				var guard *nethttp.Guard
				if i == 1 {
					limiter := core.Must(core.New(memstore.New(memstore.Config{}), "api", policy))
					guard = core.Must(nethttp.New(rules(nethttp.Rule{Limiter: limiter, Key: client})))
				}
				h := f.serve(guard, func(http.ResponseWriter, *http.Request) {})
				r, w := request("GET", "/"), &sink{header: make(http.Header)}
				ask := func() {
					clear(w.header)
					h.ServeHTTP(w, r)
				}
				ask() // the first of a key is another matter
				count[i] = testing.AllocsPerRun(1000, ask)
			}
			switch added := count[1] - count[0]; {
			case f.name == "nethttp":
				engine = added
			case added > engine:
				t.Errorf("%s: %s adds %v allocations, net/http %v", name, f.name, added, engine)
			}
		}
	}
}

// What an adapter costs beyond the engine is
//
//	(Limit - Bare of the framework) - (Limit - Bare of nethttp)
//
// where Bare has a middleware that does nothing.
func BenchmarkFrameworks(b *testing.B) {
	keep := func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }
	for _, bm := range []struct {
		name   string
		policy core.Policy // the zero one: no guard
		settle func(*http.Request, nethttp.Outcome) int64
		handed bool // the key
		status int
	}{
		{name: "Bare", status: 200},
		{name: "Limit", policy: lax, status: 200},
		{name: "Settle", policy: lax, settle: keep, status: 200},
		{name: "Refused", policy: strict, status: 429},
		{name: "Handed", policy: lax, handed: true, status: 200},
	} {
		for _, f := range frameworks {
			b.Run(bm.name+"/"+f.name, func(b *testing.B) {
				var guard *nethttp.Guard
				if bm.policy != (core.Policy{}) {
					l, err := core.New(memstore.New(memstore.Config{}), "api", bm.policy)
					if err != nil {
						b.Fatal(err)
					}
					key := keyfuncs.Func(anna)
					if from := handed[f.name]; bm.handed && from != nil {
						key = from(key)
					}
					guard, err = nethttp.New(rules(nethttp.Rule{Limiter: l, Key: key, Settle: bm.settle}))
					if err != nil {
						b.Fatal(err)
					}
				}
				h := f.serve(guard, func(http.ResponseWriter, *http.Request) {})
				r, err := http.NewRequestWithContext(b.Context(), "GET", "http://example.com/", nil)
				if err != nil {
					b.Fatal(err)
				}
				w := &sink{header: make(http.Header)}
				h.ServeHTTP(w, r) // the first of a key is another matter
				b.ReportAllocs()
				for b.Loop() {
					clear(w.header)
					w.status = 200
					h.ServeHTTP(w, r)
				}
				if w.status != bm.status {
					b.Fatalf("status %d, not %d", w.status, bm.status)
				}
			})
		}
	}
}
