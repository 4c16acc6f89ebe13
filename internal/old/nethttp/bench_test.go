package nethttp_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/nethttp"
	"github.com/headgate/headgate/keyfuncs"
)

// sink is the cheapest writer whose header starts empty each time.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
func (s *sink) WriteHeader(status int)      { s.status = status }

func benchmark(b *testing.B, h http.Handler, from string, want int) {
	b.Helper()
	r, err := http.NewRequest("GET", "http://example.com/", nil)
	if err != nil {
		b.Fatal(err)
	}
	r.RemoteAddr = from
	w := &sink{header: make(http.Header)}
	h.ServeHTTP(w, r) // the first of a key is another matter
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		w.status = http.StatusOK
		h.ServeHTTP(w, r)
	}
	if w.status != want {
		b.Fatalf("status %d, not %d", w.status, want)
	}
}

// client is a key function that costs nothing, as the guard is what is measured.
func client(*http.Request) (string, error) { return "203.0.113.7", nil }

const ipv4 = "203.0.113.7:4711"

func nothing(http.ResponseWriter, *http.Request) {}

func BenchmarkBare(b *testing.B) {
	benchmark(b, http.HandlerFunc(nothing), ipv4, 200)
}

func BenchmarkGuard(b *testing.B) {
	lax, strict := core.TokenBucket(core.PerSecond(1_000_000), 100_000_000), core.TokenBucket(core.PerHour(1), 1)
	other := core.FixedWindow(core.PerHour(1 << 50))
	one := func(*http.Request) int64 { return 1 }
	keep := func(_ *http.Request, o nethttp.Outcome) int64 { return o.Cost }

	for _, bm := range []struct {
		name   string
		status int
		config func(limiter func(name string, p ...core.Policy) *core.Limiter) nethttp.Config
	}{
		{"Admitted", 200, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: l("api", lax), Key: client}}}
		}},
		{"Admitted/CostAndPlan", 200, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			free, paid := l("api", strict), l("api", lax)
			plan := func(*http.Request, string) *core.Limiter { return paid }
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: free, Key: client, Plan: plan, Cost: one}}}
		}},
		{"Admitted/TwoPolicies", 200, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: l("api", lax.Named("a"), other.Named("b")), Key: client}}}
		}},
		{"Admitted/TwoRules", 200, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: l("a", lax), Key: client}, {Limiter: l("b", other), Key: client}}}
		}},
		{"Admitted/NoFields", 200, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: l("api", lax), Key: client}}, NoFields: true}
		}},
		{"Admitted/Settle", 200, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: l("api", lax), Key: client, Settle: keep}}}
		}},
		{"Refused", 429, func(l func(string, ...core.Policy) *core.Limiter) nethttp.Config {
			return nethttp.Config{Rules: []nethttp.Rule{{Limiter: l("api", strict), Key: client}}}
		}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			store := memstore.New(memstore.Config{})
			guard, err := nethttp.New(bm.config(func(name string, p ...core.Policy) *core.Limiter {
				l, err := core.New(store, name, p...)
				if err != nil {
					b.Fatal(err)
				}
				return l
			}))
			if err != nil {
				b.Fatal(err)
			}
			benchmark(b, guard.Handler(http.HandlerFunc(nothing)), ipv4, bm.status)
		})
	}
}

// The whole path of a request: the guard above, with the key function that is used most.
func BenchmarkRemoteAddr(b *testing.B) {
	for _, bm := range []struct {
		name   string
		policy core.Policy
		status int
	}{
		{"Admitted", core.TokenBucket(core.PerSecond(1_000_000), 100_000_000), 200},
		{"Refused", core.TokenBucket(core.PerHour(1), 1), 429},
	} {
		for _, from := range []struct{ name, addr string }{
			{"IPv4", ipv4},
			{"IPv6", "[2001:db8:85a3:0:5678:8a2e:370:7334]:51234"},
		} {
			b.Run(bm.name+"/"+from.name, func(b *testing.B) {
				guard := newGuard(b, rules(nethttp.Rule{Limiter: memory(b, "api", bm.policy), Key: keyfuncs.RemoteAddr()}))
				benchmark(b, guard.Handler(http.HandlerFunc(nothing)), from.addr, bm.status)
			})
		}
	}
}

// Customers who each have a limiter of their own make requests in turn.
func BenchmarkPlans(b *testing.B) {
	for _, n := range []int{1, 10, 10_000} {
		for _, bm := range []struct {
			name   string
			policy core.Policy
			status int
		}{
			{"Admitted", core.TokenBucket(core.PerSecond(1_000_000), 100_000_000), 200},
			{"Refused", core.TokenBucket(core.PerHour(1), 1), 429},
		} {
			b.Run(fmt.Sprintf("%d/%s", n, bm.name), func(b *testing.B) {
				h := customers(b, n, bm.policy).Handler(http.HandlerFunc(nothing))
				for range n { // the first of a key is another matter
					h.ServeHTTP(&sink{header: make(http.Header)}, request("GET", "/"))
				}
				benchmark(b, h, ipv4, bm.status)
			})
		}
	}
}

// customers returns a guard for n customers, who make requests in turn and each have a plan
// of their own.
func customers(tb testing.TB, n int, p core.Policy) *nethttp.Guard {
	tb.Helper()
	free := memory(tb, "api", core.Blocked())
	names, plans := make([]string, n), make(map[string]*core.Limiter, n)
	for i := range n {
		l, err := free.With(p)
		if err != nil {
			tb.Fatal(err)
		}
		names[i] = strconv.Itoa(i)
		plans[names[i]] = l
	}
	next := 0
	return newGuard(tb, rules(nethttp.Rule{
		Limiter: free,
		Key: func(*http.Request) (string, error) {
			next++
			return names[next%n], nil
		},
		Plan: func(_ *http.Request, key string) *core.Limiter { return plans[key] },
	}))
}

// The part of the above that is the limiter's.
func BenchmarkLimiter(b *testing.B) {
	l, err := core.New(memstore.New(memstore.Config{}), "api", core.TokenBucket(core.PerSecond(1_000_000), 100_000_000))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if d, err := l.Allow(b.Context(), "203.0.113.7"); err != nil || !d.Allowed || d.ResetAfter > time.Hour {
			b.Fatal(d, err)
		}
	}
}
