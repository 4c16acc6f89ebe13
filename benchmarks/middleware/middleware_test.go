// Package middleware measures what limits add to an HTTP request: headgate and
// other libraries around the same handler. See the README in the folder above.
package middleware

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headgate/headgate/benchmarks/systems"
)

var (
	never = systems.Limit{N: 1_000_000_000, Per: 1000 * time.Second} // is not reached by a benchmark of some seconds
	small = systems.Limit{N: 10, Per: 24 * time.Hour}
)

func BenchmarkAdmitted(b *testing.B) { added(b, never, http.StatusNoContent) }

func BenchmarkRefused(b *testing.B) { added(b, small, http.StatusTooManyRequests) }

// added reports what the limit adds to a request. An iteration serves a number of
// requests without it, and as many with it.
func added(b *testing.B, l systems.Limit, want int) {
	const requests = 1000
	for _, s := range systems.All {
		b.Run("system="+s.Name, func(b *testing.B) {
			bare, guarded := handlers(b, s, l)
			w, r := newWriter(), request()
			for range small.N {
				w.serve(guarded, r)
			}
			if got := w.serve(guarded, r); got != want {
				b.Fatalf("status %d, want %d", got, want)
			}
			var without, with time.Duration
			for b.Loop() {
				start := time.Now()
				for range requests {
					w.serve(bare, r)
				}
				middle := time.Now()
				for range requests {
					w.serve(guarded, r)
				}
				without += middle.Sub(start)
				with += time.Since(middle)
			}
			if got := w.serve(guarded, r); got != want {
				b.Fatalf("status %d, want %d", got, want)
			}
			b.ReportMetric(float64(with-without)/float64(b.N)/requests, "ns-added/req")
			b.ReportMetric(testing.AllocsPerRun(requests, func() { w.serve(guarded, r) })-
				testing.AllocsPerRun(requests, func() { w.serve(bare, r) }), "allocs-added/req")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// handlers returns the handler of the benchmarks without and with the limit.
func handlers(tb testing.TB, s systems.System, l systems.Limit) (bare, guarded http.Handler) {
	tb.Helper()
	work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	bare, guarded, err := s.Handlers(work, l)
	if err != nil {
		tb.Fatal(err)
	}
	return bare, guarded
}

func TestSystemsKeepTheLimit(t *testing.T) {
	for _, s := range systems.All {
		t.Run(s.Name, func(t *testing.T) {
			bare, guarded := handlers(t, s, small)
			w, r := newWriter(), request()
			for i := range 2 * small.N {
				want := http.StatusNoContent
				if got := w.serve(bare, r); got != want {
					t.Fatalf("request %d, no limit: status %d", i+1, got)
				}
				if i >= small.N {
					want = http.StatusTooManyRequests
				}
				if got := w.serve(guarded, r); got != want {
					t.Fatalf("request %d: status %d, want %d", i+1, got, want)
				}
			}
		})
	}
}

func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = "192.0.2.1:1234"
	return r
}

// A writer discards the response. Its header is a map that is cleared
// for each request, so that only what systems put into it is measured.
type writer struct {
	header http.Header
	status int
}

func newWriter() *writer { return &writer{header: make(http.Header)} }

func (w *writer) serve(h http.Handler, r *http.Request) (status int) {
	clear(w.header)
	w.status = http.StatusOK
	h.ServeHTTP(w, r)
	return w.status
}

func (w *writer) Header() http.Header         { return w.header }
func (w *writer) WriteHeader(status int)      { w.status = status }
func (w *writer) Write(b []byte) (int, error) { return len(b), nil }
