package conformance

import (
	"net/http"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
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

var lax, strict = core.TokenBucket(1_000_000, time.Second), core.Blocked()

// What an adapter costs beyond the engine is
//
//	(Limit - Bare of the framework) - (Limit - Bare of nethttp)
//
// where Bare has a middleware that does nothing.
func BenchmarkFrameworks(b *testing.B) {
	keep := func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }
	for _, bm := range []struct {
		name   string
		policy core.Policy
		guard  bool
		settle func(*http.Request, nethttp.Outcome) int64
		handed bool // the key
		status int
	}{
		{name: "Bare", status: 200},
		{name: "Limit", guard: true, policy: lax, status: 200},
		{name: "Settle", guard: true, policy: lax, settle: keep, status: 200},
		{name: "Refused", guard: true, policy: strict, status: 429},
		{name: "Handed", guard: true, policy: lax, handed: true, status: 200},
	} {
		for _, f := range frameworks {
			b.Run(bm.name+"/"+f.name, func(b *testing.B) {
				var guard *nethttp.Guard
				if bm.guard {
					key := client
					if from := handed[f.name]; bm.handed && from != nil {
						key = from(key)
					}
					var err error
					guard, err = nethttp.New(rates(nethttp.Rate{Limiter: core.NewLimiter(new(core.MemoryStore), "api", bm.policy), Key: key, Settle: bm.settle}))
					if err != nil {
						b.Fatal(err)
					}
				}
				h := f.serve(guard, func(http.ResponseWriter, *http.Request) {})
				r, err := http.NewRequestWithContext(b.Context(), "GET", "http://example.com/", nil)
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("X-Client", "anna")
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
