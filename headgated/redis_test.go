package headgated_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/internal/docstore"
	"github.com/headgate/headgate/internal/redistest"
)

// Limits that are in Redis change for all servers, together with what routes say of them; and who pushes them
// learns which limits the routes need.
func TestLimitsInRedis(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { client.Close() })
	documents := docstore.Store{Client: client, Key: "{limits}"}
	push := func(text string) {
		t.Helper()
		version, _ := documents.Version(context.Background()) // "": there is none yet
		must(t, documents.Write(context.Background(), []byte(text+"\n...\n"), version))
	}
	p := newPage(`routes: [{charge: [{limit: api, key: everyone}]}]`)
	config := headgated.Config{Document: p.load, Redis: "redis://" + server.Addr(), LimitsKey: "{limits}", Timeout: 10 * time.Second}
	if _, err := headgated.New(config); err == nil || !strings.Contains(err.Error(), "there is no document: push one") {
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
	tells := func(want string) {
		t.Helper()
		servers, err := documents.Servers(t.Context())
		must(t, err)
		if version, _ := documents.Version(t.Context()); len(servers) != 1 || servers[0].Found != version || (servers[0].Version == version) != (want == "") || !strings.Contains(servers[0].Err, want) {
			t.Errorf("%+v", servers)
		}
	}
	tells("")
	push("limits: {other: {plans: {free: sliding-log 3/hour}}}")
	if err := s.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "routes[0].charge[0].limit: there is no such limit") {
		t.Error(err)
	}
	tells("there is no such limit")
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

// The calls of one request share the timeout: when the first has used it up, the others are decided without Redis. A process
// that was itself stopped meanwhile, as on a busy machine, asks once more.
func TestOneTimeoutForARequest(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var asked atomic.Int64
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			asked.Add(1)
		}
	})
	s := open(t, headgated.Config{Redis: "redis://" + silent.Addr().String(), Timeout: 100 * time.Millisecond, Document: source(`rls: [{domain: d, descriptors: [
		{key: user, rate_limit: {unit: hour, requests_per_unit: 1}},
		{key: watched, rate_limit: {unit: hour, requests_per_unit: 1}, shadow_mode: true},
		{key: first, rate_limit: {unit: hour, requests_per_unit: 1}, quota_mode: true},
	]}]`)})
	w, _ := post(t, s.HTTP(), "/json", `{"domain": "d", "descriptors": [
		{"entries": [{"key": "user", "value": "a"}]}, {"entries": [{"key": "watched", "value": "a"}]}, {"entries": [{"key": "first", "value": "a"}]}]}`)
	if w.Code != 200 { // by the counts of this process
		t.Error(w.Code, w.Body)
	}
	must(t, silent.Close())
	if accepting.Wait(); asked.Load() < 1 || asked.Load() > 2 {
		t.Errorf("Redis was asked %d times", asked.Load())
	}
}

// A limit in shadow mode that gets no decision in time leaves the others their answer.
func TestShadowIsLate(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := open(t, headgated.Config{Redis: "redis://" + proxy.Addr(), Timeout: 3 * time.Second, Failure: redisstore.FailClosed, Document: source(rules)})
	ask := func() {
		t.Helper()
		w, _ := post(t, s.HTTP(), "/json", `{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}, {"entries": [{"key": "watched", "value": "a"}]}]}`)
		if w.Code != 200 {
			t.Error(w.Code, w.Body)
		}
	}
	ask()
	proxy.Delay(1700 * time.Millisecond) // two calls take longer than the timeout
	ask()
}

// Who gives up is no fault of Redis.
func TestCallerGivesUp(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	s := open(t, headgated.Config{Redis: "redis://" + silent.Addr().String(), Timeout: time.Minute, Document: source(rules)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	w, _ := post(t, s.HTTP(), "/json", `{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if got := metric(t, s, `ratelimit_service_should_rate_limit_error{err_type="redis_error"}`); w.Code != 503 || !strings.HasSuffix(got, " 0") {
		t.Error(w.Code, got)
	}
}

// What limits of Envoy's rate limit service take in Redis: bytes of a key, of which each has 16, and calls for a
// request, of one caller and of 64.
func BenchmarkRLSInRedis(b *testing.B) {
	for name, limit := range map[string]string{
		"window": "rate_limit: {unit: day, requests_per_unit: 10}", "sliding": "headgate: {policy: sliding-window 10/day}", "bucket": "headgate: {policy: token-bucket 10/day burst 10}",
	} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", name, callers), func(b *testing.B) {
				server := redistest.Start(b)
				_, conn := serveRLS(b, headgated.Config{
					Document: source("rls: [{domain: d, descriptors: [{key: user, " + limit + "}]}]"), Redis: "redis://" + server.Addr(), Timeout: 10 * time.Second,
				})
				c := pb.NewRateLimitServiceClient(conn)
				var next atomic.Int64
				ask := func() {
					if _, err := c.ShouldRateLimit(b.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: ds{d(fmt.Sprintf("user=%016d", next.Add(1)))}}); err != nil {
						b.Error(err)
					}
				}
				ask() // Redis learns the script
				used := func() float64 {
					n, err := strconv.ParseFloat(server.Info("memory")["used_memory"], 64)
					must(b, err)
					return n
				}
				before := used()
				server.ResetStats()
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						for range (b.N + i) / callers {
							ask()
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				keys := float64(next.Load() - 1)
				b.ReportMetric((used()-before)/keys, "redis-B/key")
				b.ReportMetric(float64(server.Calls("evalsha", "eval", "fcall"))/keys, "calls/op")
			})
		}
	}
}
