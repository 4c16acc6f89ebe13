package headgated_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
	"github.com/headgate/headgate/limits/yamldoc"
)

// Limits that are in Redis change for all servers, together with what routes say of them; and who pushes them
// learns which limits the routes need.
func TestLimitsInRedis(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { client.Close() })
	source := core.Must(redisdoc.New(client, redisdoc.Config{Key: "{limits}"}))
	push := func(text string) {
		t.Helper()
		d, err := limits.Parse([]byte(text+"\n...\n"), yamldoc.Decode)
		must(t, err)
		_, version, _ := source.Current(context.Background()) // 0: there is none yet
		_, err = source.Push(context.Background(), d, version)
		must(t, err)
	}
	p := newPage(`routes: [{charge: [{limit: api, key: everyone}]}]`)
	config := headgated.Config{Document: p, Redis: "redis://" + server.Addr(), LimitsKey: "{limits}", Timeout: 10 * time.Second}
	if _, err := headgated.New(config); err == nil || !strings.Contains(err.Error(), "there is no document at {limits}") {
		t.Fatal(err)
	}
	push("limits: {api: {plans: {free: sliding-log 2/hour}}}")
	s := open(t, config)
	limit := func(want int64) {
		t.Helper()
		if _, got := post(t, s.HTTP(), "/v1/check", charge); got.Limit != want {
			t.Errorf("the limit is %d, not %d", got.Limit, want)
		}
	}
	limit(2)
	push("limits: {api: {plans: {free: sliding-log 3/hour}}}")
	must(t, s.Reload(t.Context()))
	limit(3)
	servers, err := source.Servers(t.Context())
	must(t, err)
	if len(servers) != 1 || servers[0].Err != "" || len(servers[0].Program.Limits) != 1 || servers[0].Program.Limits[0] != "api" {
		t.Errorf("%+v", servers)
	}
	push("limits: {other: {plans: {free: sliding-log 3/hour}}}")
	if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "routes[0].charge[0].limit: there is no such limit") {
		t.Error(err)
	}
	limit(3)
	p.text.Store("limits: {api: {plans: {free: sliding-log 2/hour}}}")
	if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "remove these") {
		t.Error(err)
	}
	p.text.Store(`routes: [{charge: [{limit: other, key: everyone}]}]`)
	must(t, s.Reload(t.Context()))
	server.Kill()
	if err := s.Reload(t.Context()); err == nil {
		t.Error("Redis is away, and the limits were read")
	}
	if w := ask(s, proxy, "GET", "x", "/"); w.Code != 200 || !strings.HasPrefix(w.Header().Get("RateLimit-Policy"), `"other"`) {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
