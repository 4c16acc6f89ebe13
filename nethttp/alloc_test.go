package nethttp_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A sink is a response that nobody reads.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

// measured are guards whose requests take different ways.
func measured() map[string]nethttp.Config {
	of := func(policies ...core.Policy) nethttp.Rate {
		return nethttp.Rate{Limiter: core.NewLimiter(new(core.MemoryStore), "api", policies...), Key: keyfuncs.RemoteAddr()}
	}
	bucket := of(core.TokenBucket(1_000_000, time.Second))
	settles := bucket
	settles.Settle = nethttp.FailuresOnly
	return map[string]nethttp.Config{
		"admitted":     rates(bucket),
		"refused":      rates(of(core.SlidingLog(1, 24*time.Hour))), // from the second request on
		"blocked":      rates(of(core.Blocked())),
		"two policies": rates(of(core.TokenBucket(1_000_000, time.Second).Named("a"), core.FixedWindow(1<<40, time.Hour).Named("b"))),
		"no fields":    {Rates: []nethttp.Rate{bucket}, Fields: func(http.Header, *nethttp.Verdict) {}},
		"KeepVerdict":  {Rates: []nethttp.Rate{bucket}, KeepVerdict: true},
		"Observe":      {Rates: []nethttp.Rate{bucket}, Observe: func(*http.Request, *nethttp.Verdict) {}},
		"Settle":       rates(settles),
		"slots":        {Concurrency: []nethttp.Concurrency{{Slots: core.NewSlots(new(core.MemoryStore), "slots", 9), Key: keyfuncs.RemoteAddr()}}},
	}
}

// An admitted request, and a refused one, take at most one allocation, and KeepVerdict takes two more.
func TestAllocations(t *testing.T) {
	all := measured()
	for name, most := range map[string]float64{"admitted": 1, "refused": 1, "blocked": 1, "two policies": 1, "KeepVerdict": 3} {
		h := guardOf(t, all[name]).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w, r := &sink{make(http.Header)}, httptest.NewRequest("GET", "/", nil)
		if n := testing.AllocsPerRun(1000, func() {
			clear(w.header)
			h.ServeHTTP(w, r)
		}); n > most+raced { // the race detector empties pools
			t.Errorf("%s: %v allocations, at most %v", name, n, most)
		}
	}
}

// What a guard adds to a request.
func BenchmarkGuard(b *testing.B) {
	for name, c := range measured() {
		b.Run(name, func(b *testing.B) {
			h := guardOf(b, c).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			w, r := &sink{make(http.Header)}, httptest.NewRequest("GET", "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}
		})
	}
}
