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
	// Right passwords cost nothing, and wrong ones until there were three.
	for _, password := range []string{"open+sesame", "1", "open+sesame", "2", "open+sesame", "3"} {
		want := 401
		if password == "open+sesame" {
			want = 200
		}
		if r, body := s.Do("POST", "/api/login?password="+password); r.StatusCode != want {
			t.Errorf("%s: %s, %s", password, r.Status, body)
		}
	}
	s.Admits(0, "POST", "/api/login?password=open+sesame")
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
