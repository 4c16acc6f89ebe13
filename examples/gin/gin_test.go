package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/exampletest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestServer(t *testing.T) {
	t.Parallel()
	s := exampletest.Start(t)
	if r, body := s.Do("GET", "/"); r.StatusCode != 200 || !strings.Contains(body, "curl -i "+s.URL+"/api/hello\n") {
		t.Errorf("%s: %s", r.Status, body)
	}
	s.Admits(10, "GET", "/api/hello")
	s.Admits(100, "GET", "/api/hello", "Authorization", "Bearer token-of-anna")
	s.Admits(10, "GET", "/api/hello", "Authorization", "Bearer token-of-ben")
	// A made-up token is worth nothing.
	s.Admits(0, "GET", "/api/hello", "Authorization", "Bearer token-of-mallory")
	s.Stop()
}

func TestFleet(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	exampletest.Fleet(t, func(s *redisstore.Store, address keyfuncs.Func) (http.Handler, *websocketmw.Guard) {
		return routes(s, address)
	})
}
