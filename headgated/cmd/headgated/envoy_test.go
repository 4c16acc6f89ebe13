package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest"
)

// The limits of requests through Envoy.
const (
	frontRules = `domain: front
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 20}}
- {key: everyone, rate_limit: {unit: year, requests_per_unit: 30}}
- {key: cost, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: bytes, rate_limit: {unit: year, requests_per_unit: 30}}
- {key: price, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: load, rate_limit: {unit: year, requests_per_unit: 2000}}
- {key: host, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: fast, quota_mode: true, metadata: {server: large}, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: slow, quota_mode: true, metadata: {server: small}, rate_limit: {unit: year, requests_per_unit: 2}}
`
	otherRules = `domain: other
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 5}}
`
)

// A listener has the rate limit filter. Without a decision, it refuses requests or lets them pass.
const envoyListener = `  - address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: front
              timeout: 10s
              failure_mode_deny: DENY
              rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: headgated}}}
          - {name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              rate_limits:
              - actions: [{request_headers: {header_name: x-user, descriptor_key: host}}]
              routes:
              - match: {prefix: /cost}
                route: {cluster: application}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - {hits_addend: {number: 0}, actions: [{request_headers: {header_name: x-user, descriptor_key: cost}}]}
                    - {hits_addend: {number: 12}, apply_on_stream_done: true, actions: [{request_headers: {header_name: x-user, descriptor_key: cost}}]}
              - match: {prefix: /bytes}
                route: {cluster: application}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - {hits_addend: {number: 0}, actions: [{request_headers: {header_name: x-user, descriptor_key: bytes}}]}
                    - {hits_addend: {format: "%BYTES_SENT%"}, apply_on_stream_done: true, actions: [{request_headers: {header_name: x-user, descriptor_key: bytes}}]}
              - match: {prefix: /price}
                route: {cluster: application}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - {hits_addend: {format: "%REQ(x-price)%"}, actions: [{request_headers: {header_name: x-user, descriptor_key: price}}]}
              - match: {prefix: /load}
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{generic_key: {descriptor_key: load, descriptor_value: all}}]
              - match: {prefix: /watched}
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: watched}}]
              - match: {prefix: /host}
                route: {cluster: application}
              - match: {prefix: /both}
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    vh_rate_limits: INCLUDE
              - match: {prefix: /other}
                route: {cluster: application}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    domain: other
                    rate_limits:
                    - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
              - match: {prefix: /quota}
                response_headers_to_add: [{header: {key: x-server, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:server)%"}}]
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: fast}}]
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: slow}}]
              - match: {prefix: /}
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
                  - actions: [{generic_key: {descriptor_key: everyone, descriptor_value: all}}]
`

const envoyClusters = `  clusters:
  - name: application
    load_assignment: {cluster_name: application, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: APPLICATION}}}}]}]}
  - name: headgated
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: headgated
      endpoints:
      - lb_endpoints:
`

// envoyProgram returns the path of Envoy, or skips the test.
func envoyProgram(t testing.TB) string {
	t.Helper()
	onlyOn(t, "linux/amd64")
	return program(t, filepath.Join(repository, ".bin/envoy/bin/envoy"), "envoy")
}

// A front is an Envoy with three listeners, before an application. It asks services about requests.
type front struct {
	t          testing.TB
	args       []string // of the services
	services   []*service
	deny, pass string // the listeners: without a decision, one refuses requests, another lets them pass
	watch      string // and the third refuses none
}

// newFront starts Envoy, and a service at each of these addresses, which are HOST:0 or a socket.
func newFront(t testing.TB, doors []string, args ...string) *front {
	t.Helper()
	name, dir := envoyProgram(t), t.TempDir()
	rules := filepath.Join(dir, "rules")
	must(t, os.Mkdir(rules, 0o700))
	must(t, os.WriteFile(filepath.Join(rules, "front.yaml"), []byte(frontRules), 0o600))
	must(t, os.WriteFile(filepath.Join(rules, "other.yaml"), []byte(otherRules), 0o600))
	f := &front{t: t, args: append([]string{"-envoy-config", rules, "-http", "127.0.0.1:0", "-response-metadata"}, args...)}
	config := "static_resources:\n  listeners:\n"
	for listener, deny := range map[*string]string{
		&f.deny: "true", &f.pass: "false", &f.watch: "false\n              filter_enforced: {default_value: {numerator: 0}}",
	} {
		port := freePort(t)
		*listener = "http://127.0.0.1:" + port
		config += strings.NewReplacer("PORT", port, "DENY", deny).Replace(envoyListener)
	}
	config += strings.ReplaceAll(envoyClusters, "APPLICATION", port(t, application(t)))
	for _, door := range doors {
		s := start(t, append(f.args, "-grpc", door)...)
		f.services = append(f.services, s)
		if socket, ok := strings.CutPrefix(door, "unix:"); ok {
			config += "        - {endpoint: {address: {pipe: {path: " + socket + "}}}}\n"
		} else {
			config += "        - {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: " + port(t, s.grpc) + "}}}}\n"
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "envoy.yaml"), []byte(config), 0o600))
	launch(t, dir, f.deny[strings.LastIndex(f.deny, ":")+1:], name,
		"-c", filepath.Join(dir, "envoy.yaml"), "--concurrency", "2", "--use-dynamic-base-id", "--log-level", "warning")
	return f
}

func port(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	must(t, err)
	return port
}

// get makes a request, and returns the response, whose status is 0 if there is none, and its body.
func (f *front) get(url, user string, fields ...string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), "GET", url, nil)
	must(f.t, err)
	r.Header.Set("X-User", user)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Error(err)
		return &http.Response{}, ""
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response, string(body)
}

// status returns that of a request.
func (f *front) status(url, user string, fields ...string) int {
	f.t.Helper()
	response, _ := f.get(url, user, fields...)
	return response.StatusCode
}

// admitted makes n requests by eight clients at once, and returns how many are admitted. The others are refused.
func (f *front) admitted(n int, url, user string) int {
	f.t.Helper()
	var admitted, begun atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for begun.Add(1) <= int64(n) {
				switch status := f.status(url, user); status {
				case http.StatusOK:
					admitted.Add(1)
				case http.StatusTooManyRequests:
				default:
					f.t.Errorf("%s: %d", url, status)
				}
			}
		})
	}
	wg.Wait()
	return int(admitted.Load())
}

// Two services over one Redis, behind Envoy, admit exactly the limits, and the client sees these.
func TestEnvoy(t *testing.T) {
	redis := redistest.Start(t)
	f := newFront(t, []string{"unix:" + filepath.Join(t.TempDir(), "a"), "127.0.0.1:0"}, "-redis", "redis://"+redis.Addr(), "-timeout", "10s", "-failure", "closed")
	response, body := f.get(f.deny+"/", "anna")
	if h := response.Header; response.StatusCode != 200 || body != "from the application" || !strings.HasPrefix(h.Get("RateLimit"), `"front.user";r=19;t=`) ||
		h.Get("RateLimit-Policy") != `"front.user";q=20;w=31536000, "front.everyone";q=30;w=31536000` {
		t.Errorf("%d %v %s", response.StatusCode, h, body)
	}
	if n := f.admitted(200, f.deny+"/", "anna"); n != 19 {
		t.Errorf("anna: %d are admitted, not 19", n)
	}
	if n := f.admitted(200, f.deny+"/", "ben"); n != 10 { // which is what all have left
		t.Errorf("ben: %d are admitted, not 10", n)
	}
	if left := envoyLeft(t, f.services[1], "ben"); left != 10 {
		t.Errorf("ben has %d left, not 10: what was refused was charged", left)
	}
	response, body = f.get(f.deny+"/", "anna")
	var problem struct{ Status int }
	if h := response.Header; response.StatusCode != 429 || h.Get("Retry-After") == "" || h.Get("Content-Type") != "application/problem+json" ||
		!strings.HasPrefix(h.Get("RateLimit"), `"front.`) || json.Unmarshal([]byte(body), &problem) != nil || problem.Status != 429 {
		t.Errorf("%d %v %s", response.StatusCode, h, body)
	}
}

// What Envoy can say of a route, and of hits, counts as its documents have it.
func TestEnvoyScenes(t *testing.T) {
	f := newFront(t, []string{"127.0.0.1:0"})
	statuses := func(path, user string, want ...int) {
		t.Helper()
		for i, want := range want {
			if got := f.status(f.deny+path, user); got != want {
				t.Errorf("%s: request %d: %d, not %d", path, i+1, got, want)
			}
		}
	}
	t.Run("the virtual host's limits", func(t *testing.T) {
		statuses("/host", "anna", 200, 200, 200, 429)
		statuses("/both", "anna", 429)
		statuses("/both", "ben", 200, 200, 200, 429)
		if left := envoyLeft(t, f.services[0], "ben"); left != 17 {
			t.Errorf("ben has %d left, not 17", left)
		}
	})
	t.Run("the route's domain and limits", func(t *testing.T) {
		statuses("/other", "cora", 200, 200, 200, 200, 200, 429)
		if left := envoyLeft(t, f.services[0], "cora"); left != 20 {
			t.Errorf("in the other domain cora has %d left, not 20", left)
		}
	})
	t.Run("the cost of a request", func(t *testing.T) {
		for i, want := range []int{200, 200, 200, 429, 429} { // 3, 6, 9; and 12 counts, though it is refused
			if got := f.status(f.deny+"/price", "anna", "X-Price", "3"); got != want {
				t.Errorf("request %d: %d, not %d", i+1, got, want)
			}
		}
	})
	t.Run("the cost of an answer", func(t *testing.T) {
		for path, want := range map[string][]int{"/cost": {200, 429, 429}, "/bytes": {200, 200, 429}} { // 12 of 10; 20 and 40 bytes of 30
			for _, want := range want {
				before := f.asked()
				statuses(path, "anna", want)
				wait(t, "the cost is reported, also of what is refused", func() bool { return f.asked() == before+2 })
			}
		}
		if got := f.metric(`ratelimit_service_rate_limit_total_hits{domain="front",key1="cost",key2=""}`); got != "36" {
			t.Errorf("%s hits of three requests, not 36", got)
		}
	})
	t.Run("shadow mode", func(t *testing.T) {
		statuses("/watched", "anna", 200, 200, 200, 200)
		if got := f.metric(`ratelimit_service_rate_limit_shadow_mode{domain="front",key1="watched",key2=""}`); got != "2" {
			t.Errorf("%s hits are beyond the limit, not 2", got)
		}
	})
	t.Run("a filter that does not enforce", func(t *testing.T) {
		for range 8 {
			if response, body := f.get(f.watch+"/other", "dora"); response.StatusCode != 200 || body != "from the application" {
				t.Errorf("%d %v %s", response.StatusCode, response.Header, body)
			}
		}
		if got := f.metric(`ratelimit_service_rate_limit_over_limit{domain="other",key1="user",key2=""}`); got != "4" { // cora's, and three
			t.Errorf("%s hits are beyond the limit, not 4", got)
		}
	})
	t.Run("quotas and metadata", func(t *testing.T) {
		for _, want := range []string{"large", "small", ""} {
			response, _ := f.get(f.deny+"/quota", "anna")
			if got := response.Header.Get("X-Server"); got != want || (response.StatusCode == 429) != (want == "") {
				t.Errorf("%d, by server %q, not %q", response.StatusCode, got, want)
			}
		}
	})
}

// metric returns the value of a metric of the first service, or nothing.
func (f *front) metric(name string) string {
	f.t.Helper()
	r, err := http.Get("http://" + f.services[0].admin + "/metrics")
	must(f.t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(f.t, err)
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// asked returns how many requests the first service has answered.
func (f *front) asked() int {
	f.t.Helper()
	n, _ := strconv.Atoi(f.metric(`headgated_requests_total{code="OK",path="grpc"}`))
	return n
}

// envoyLeft returns how much of a user's limit is left.
func envoyLeft(t *testing.T, s *service, user string) int {
	t.Helper()
	response, err := http.Post(s.url("/json"), "application/json", strings.NewReader(fmt.Sprintf(
		`{"domain": "front", "descriptors": [{"entries": [{"key": "user", "value": %q}], "hitsAddend": "0"}]}`, user)))
	must(t, err)
	defer response.Body.Close()
	var got struct {
		Statuses []struct{ LimitRemaining int }
	}
	must(t, json.NewDecoder(response.Body).Decode(&got))
	return got.Statuses[0].LimitRemaining
}

// A service that is killed under load leaves Envoy to its failure mode, and with the next the limits are back:
// what was charged and not answered is lost, and nothing more.
func TestEnvoyWithoutService(t *testing.T) {
	redis := redistest.Start(t)
	socket := "unix:" + filepath.Join(t.TempDir(), "grpc")
	f := newFront(t, []string{socket}, "-redis", "redis://"+redis.Addr(), "-timeout", "10s", "-failure", "closed")
	var admitted, unknown atomic.Int64
	var wg sync.WaitGroup
	killed := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				switch status := f.status(f.deny+"/load", "anna"); status {
				case http.StatusOK:
					if admitted.Add(1) == 200 {
						close(killed)
					}
				case http.StatusInternalServerError:
					unknown.Add(1)
					return
				default:
					t.Errorf("%d", status)
					return
				}
			}
		})
	}
	<-killed
	f.services[0].Kill()
	wg.Wait()
	if refuses, passes := f.status(f.deny+"/load", "anna"), f.status(f.pass+"/load", "anna"); refuses != 500 || passes != 200 {
		t.Errorf("without a service, one listener answers %d, not 500, the other %d, not 200", refuses, passes)
	}
	start(t, append(f.args, "-grpc", socket)...)
	wait(t, "Envoy asks again", func() bool {
		status := f.status(f.deny+"/load", "anna")
		if status == http.StatusOK {
			admitted.Add(1)
		}
		return status == http.StatusOK
	})
	admitted.Add(int64(f.admitted(2000, f.deny+"/load", "anna")))
	if n := admitted.Load(); n > 2000 || n < 2000-unknown.Load() {
		t.Errorf("%d of 2000 were admitted, and %d have no answer", n, unknown.Load())
	}
	if status := f.status(f.pass+"/load", "anna"); status != 429 {
		t.Errorf("the limit is not back: %d", status)
	}
}

// Without Redis, services decide by themselves, and no request fails. What was counted counts again when it is back.
func TestEnvoyWithoutRedis(t *testing.T) {
	for name, test := range map[string]struct{ away, back func(*redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"silent": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t, "appendonly yes", "appendfsync always")
			f := newFront(t, []string{"127.0.0.1:0"}, "-redis", "redis://"+redis.Addr(), "-failure", "local", "-servers", "1")
			wait(t, "anna's limit is used up, in Redis", func() bool {
				return f.status(f.deny+"/other", "anna") == 429 && f.metric("headgate_store_servers_away") == "0"
			})
			f.under(func(answered func(n int)) { answered(2000) }) // for comparison
			f.under(func(answered func(n int)) {
				answered(200)
				test.away(redis)
				answered(2000)
			})
			if n := f.admitted(20, f.deny+"/other", "ben"); n != 5 {
				t.Errorf("without Redis, %d of ben's are admitted, not 5", n)
			}
			test.back(redis)
			wait(t, "Redis decides again", func() bool { return f.metric("headgate_store_servers_away") == "0" })
			if status := f.status(f.deny+"/other", "anna"); status != 429 {
				t.Errorf("what anna used is forgotten: %d", status)
			}
		})
	}
}

// under calls a function while eight clients make requests, which must not fail. It can wait until so many more have
// been answered.
func (f *front) under(do func(answered func(n int))) {
	f.t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				begin := time.Now()
				if status := f.status(f.deny+"/load", "anna"); status != 200 && status != 429 {
					f.t.Errorf("%d", status)
				}
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	do(func(n int) {
		mu.Lock()
		n += len(took)
		mu.Unlock()
		wait(f.t, "there are answers", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(took) >= n
		})
	})
	close(stop)
	wg.Wait()
	slices.Sort(took)
	f.t.Logf("%d requests: p50 %v, p99 %v", len(took), took[len(took)/2], took[len(took)*99/100])
}

// Whatever bytes a client sends in a header that is counted, it does not get around the limit. Of more than 4 KiB, the
// service decides nothing, and Envoy goes by its failure mode.
func TestEnvoyHostileHeaders(t *testing.T) {
	f := newFront(t, []string{"127.0.0.1:0"})
	for _, value := range []string{"\xff", "\xed\xa0\x80", "a\xc3", "%ff", "\t", strings.Repeat("a", 4000)} {
		codes := make(map[string]int)
		for range 7 {
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.pass, "http://"))
			must(t, err)
			_, err = io.WriteString(conn, "GET /other HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-User: a"+value+"z\r\n\r\n")
			must(t, err)
			line, _ := bufio.NewReader(conn).ReadString('\n')
			conn.Close()
			codes[strings.TrimPrefix(strings.TrimSpace(line), "HTTP/1.1 ")]++
		}
		if codes["200 OK"] > 5 {
			t.Errorf("%.10q: %v", value, codes)
		}
	}
	long := strings.Repeat("a", 5000)
	if refuses, passes := f.status(f.deny+"/other", long), f.status(f.pass+"/other", long); refuses != 500 || passes != 200 {
		t.Errorf("a long header: %d, not 500, and %d, not 200", refuses, passes)
	}
}
