package middleware

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

var (
	never = limit{1_000_000_000, 1000 * time.Second} // is not reached by a benchmark of some seconds
	small = limit{10, 24 * time.Hour}
)

func BenchmarkAdmitted(b *testing.B) { added(b, never, http.StatusNoContent) }

func BenchmarkRefused(b *testing.B) { added(b, small, http.StatusTooManyRequests) }

// added reports what the limit adds to a request. An iteration serves a number of
// requests without it, and as many with it.
func added(b *testing.B, l limit, want int) {
	const requests = 1000
	for _, s := range systems {
		b.Run("system="+s.name, func(b *testing.B) {
			bare, guarded := s.handlers(b, l)
			w, r := newWriter(), request()
			for range small.n {
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

func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = "192.0.2.1:1234"
	return r
}

// A writer is a response that nobody reads. Its header is a map that is cleared
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
