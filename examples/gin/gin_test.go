package main

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestServer(t *testing.T) {
	t.Parallel()
	s := exampletest.Start(t)
	if r, body := s.Do("GET", "/"); r.StatusCode != 200 || !strings.Contains(body, "curl -i "+s.URL+"/api/hello\n") {
		t.Errorf("%s: %s", r.Status, body)
	}
	s.Admits(10, "GET", "/api/hello")
	s.Admits(10, "GET", "/api/hello", "Authorization", "Bearer token-of-anna")
	if r, body := s.Do("GET", "/api/hello", "Authorization", "Bearer token-of-ben"); r.StatusCode != 200 || body != "hello, ben\n" {
		t.Errorf("%s: %s", r.Status, body)
	}
	// A made-up token is worth nothing.
	s.Admits(0, "GET", "/api/hello", "Authorization", "Bearer token-of-mallory")
	s.Stop()
}

func TestServersShareTheLimit(t *testing.T) {
	one, other := exampletest.StartShared(t, "/api/hello")
	for range 5 {
		if r, _ := one.Do("GET", "/api/hello"); r.StatusCode != 200 {
			t.Error(r.Status)
		}
	}
	other.Admits(5, "GET", "/api/hello")
	one.Admits(0, "GET", "/api/hello")
}
