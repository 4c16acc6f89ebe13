package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/headgate/headgate/internal/redistest"
)

// descriptors are the limits of requests through Envoy.
const descriptors = `domain: front
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 20}}
- {key: everyone, rate_limit: {unit: year, requests_per_unit: 30}}
- {key: cost, rate_limit: {unit: year, requests_per_unit: 10}}
`

// A path has a limit by user and one for all. Behind /cost, the cost of an answer is counted when it is done.
const envoyConfig = `static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
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
              failure_mode_deny: true
              rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: headgated}}}
          - {name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /cost}
                route:
                  cluster: application
                  rate_limits:
                  - {hits_addend: {number: 0}, actions: [{request_headers: {header_name: x-user, descriptor_key: cost}}]}
                  - {hits_addend: {number: 12}, apply_on_stream_done: true, actions: [{request_headers: {header_name: x-user, descriptor_key: cost}}]}
              - match: {prefix: /}
                route:
                  cluster: application
                  rate_limits:
                  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
                  - actions: [{generic_key: {descriptor_key: everyone, descriptor_value: all}}]
  clusters:
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
        - {endpoint: {address: {pipe: {path: SOCKET0}}}}
        - {endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: SERVICE1}}}}
`

func port(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	must(t, err)
	return port
}

// newEnvoy starts Envoy and two services over one Redis, and returns what makes a request.
func newEnvoy(t *testing.T) (services [2]*service, get func(path, user string) (*http.Response, string)) {
	t.Helper()
	onlyOn(t, "linux/amd64")
	name := program(t, filepath.Join(repository, ".bin/envoy/bin/envoy"), "envoy")
	redis, dir := redistest.Start(t), t.TempDir()
	rules := filepath.Join(dir, "rules")
	must(t, os.Mkdir(rules, 0o700))
	must(t, os.WriteFile(filepath.Join(rules, "front.yaml"), []byte(descriptors), 0o600))
	socket := filepath.Join(dir, "grpc.sock")
	for i, door := range []string{"unix:" + socket, "127.0.0.1:0"} {
		services[i] = start(t, "-envoy-config", rules, "-grpc", door, "-http", "127.0.0.1:0", "-redis", "redis://"+redis.Addr(), "-timeout", "10s", "-failure", "closed")
	}
	behind := port(t, application(t))
	listen := freePort(t)
	config := strings.NewReplacer("PORT", listen, "APPLICATION", behind, "SOCKET0", socket, "SERVICE1", port(t, services[1].grpc)).Replace(envoyConfig)
	must(t, os.WriteFile(filepath.Join(dir, "envoy.yaml"), []byte(config), 0o600))
	launch(t, dir, listen, name, "-c", filepath.Join(dir, "envoy.yaml"), "--concurrency", "2", "--use-dynamic-base-id", "--log-level", "warning")
	return services, func(path, user string) (*http.Response, string) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:"+listen+path, nil)
		must(t, err)
		r.Header.Set("X-User", user)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return &http.Response{}, ""
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response, string(body)
	}
}

func TestEnvoy(t *testing.T) {
	services, get := newEnvoy(t)
	admitted := func(user string) int { // of 200 requests
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := make(map[int]int)
		for range 8 {
			wg.Go(func() {
				for range 25 {
					response, _ := get("/", user)
					mu.Lock()
					codes[response.StatusCode]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if codes[200]+codes[429] != 200 {
			t.Errorf("%v", codes)
		}
		return codes[200]
	}
	response, body := get("/", "anna")
	if h := response.Header; response.StatusCode != 200 || body != "from the application" || !strings.HasPrefix(h.Get("RateLimit"), `"front.user";r=19;t=`) ||
		h.Get("RateLimit-Policy") != `"front.user";q=20;w=31536000, "front.everyone";q=30;w=31536000` {
		t.Errorf("%d %v %s", response.StatusCode, h, body)
	}
	if n := admitted("anna"); n != 19 {
		t.Errorf("anna: %d are admitted, not 19", n)
	}
	if n := admitted("ben"); n != 10 { // which is what all have left
		t.Errorf("ben: %d are admitted, not 10", n)
	}
	if left := envoyLeft(t, services[1], "ben"); left != 10 {
		t.Errorf("ben has %d left, not 10: what was refused was charged", left)
	}
	response, body = get("/", "anna")
	var problem struct{ Status int }
	if h := response.Header; response.StatusCode != 429 || h.Get("Retry-After") == "" || h.Get("Content-Type") != "application/problem+json" ||
		!strings.HasPrefix(h.Get("RateLimit"), `"front.`) || json.Unmarshal([]byte(body), &problem) != nil || problem.Status != 429 {
		t.Errorf("%d %v %s", response.StatusCode, h, body)
	}
	if response, _ := get("/cost", "cora"); response.StatusCode != 200 {
		t.Errorf("the first costs what is not known yet: %d", response.StatusCode)
	}
	wait(t, "the cost of an answer counts", func() bool {
		response, _ := get("/cost", "cora")
		return response.StatusCode == 429
	})
	for _, s := range services {
		s.Kill()
	}
	if response, _ := get("/", "dora"); response.StatusCode != http.StatusInternalServerError {
		t.Errorf("without a service: %d, not 500", response.StatusCode)
	}
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
