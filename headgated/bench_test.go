package headgated_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgated"
)

// What the doors take for a request, without the network: of a program, and of a proxy.
func BenchmarkDoors(b *testing.B) {
	const text = `
limits: {api: {plans: {free: fixed-window 1000000000/second}}}
trusted: [10.0.0.0/8]
routes: [{path: "/v1/{tenant}/chat", charge: [{limit: api, key: ["path:tenant", address]}]}]`
	s := open(b, headgated.Config{Document: newPage(text)})
	h := s.HTTP()
	b.Run("charge", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r := httptest.NewRequest("POST", "/v1/charge", strings.NewReader(charge))
			r.Header.Set("Content-Type", "application/json")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	})
	b.Run("auth", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ask(s, proxy, "POST", "api.example.com", "/v1/acme/chat")
		}
	})
}
