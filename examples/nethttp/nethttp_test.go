package main

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/exampletest"
	"github.com/headgate/headgate/keyfuncs"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestServer(t *testing.T) {
	t.Setenv("SECRET", strings.Repeat("s", 32))
	s := exampletest.Start(t)
	if r, body := s.Do("GET", "/"); r.StatusCode != 200 || !strings.Contains(body, "curl -i "+s.URL+"/api/hello\n") {
		t.Errorf("%s: %s", r.Status, body)
	}
	cookies, err := keyfuncs.NewSignedCookie(cookieName, time.Hour, secret())
	if err != nil {
		t.Fatal(err)
	}
	old := func() string {
		c := cookies.New(time.Now().Add(-2 * time.Minute))
		return c.Name + "=" + c.Value
	}

	// Each session has its limit, and those without one that is old enough share another.
	r, _ := s.Do("GET", "/api/hello")
	if len(r.Cookies()) != 1 {
		t.Fatalf("%s, cookies %v", r.Status, r.Cookies())
	}
	s.Admits(9, "GET", "/api/hello", "Cookie", r.Cookies()[0].Name+"="+r.Cookies()[0].Value)
	s.Admits(0, "GET", "/api/hello", "Cookie", "session=forged")
	for range 3 {
		s.Admits(10, "GET", "/api/hello", "Cookie", old())
	}
	// The address has no more.
	s.Admits(0, "GET", "/api/hello", "Cookie", old())
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
