package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/rediskey"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

// Twemproxy, before two servers.
const nutcracker = `pool:
  listen: 127.0.0.1:%d
  redis: true
  hash: fnv1a_64
  hash_tag: "{}"
  distribution: ketama
  servers:
  - %s:1
  - %s:1
`

// Envoy, before two servers.
const envoy = `static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: {op_timeout: 20s, enable_hashtagging: true}
          prefix_routes: {catch_all_route: {cluster: redis}}
  clusters:
  - name: redis
    type: STATIC
    lb_policy: MAGLEV
    load_assignment:
      cluster_name: redis
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
`

const apart = "a proxy sends each script to the server of its first key"

// program returns the path of a program, or skips the test.
func program(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("HEADGATE_REQUIRE") == "1" {
		t.Fatalf("there is no %s: make tools installs it", names[0])
	}
	t.Skipf("there is no %s: make tools installs it", names[0])
	return ""
}

// proxy starts a proxy, and returns its address.
func proxy(t *testing.T, config string, command func(file string) []string) string {
	t.Helper()
	port := redistest.Port(t)
	var servers []any
	for range 2 {
		addr := redistest.Start(t).Addr()
		if config == envoy {
			_, addr, _ = net.SplitHostPort(addr)
		}
		servers = append(servers, addr)
	}
	words := command(file(t, "proxy.yaml", fmt.Sprintf(config, append([]any{port}, servers...)...)))
	proctest.StartCommand(t, exec.Command(words[0], words[1:]...))
	addr := fmt.Sprint("127.0.0.1:", port)
	for start := time.Now(); ; <-time.After(10 * time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err == nil {
			_ = conn.Close()
			return addr
		}
		if time.Since(start) > patient {
			t.Fatal(err)
		}
	}
}

func TestEnvoyIsRefused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS+"/"+runtime.GOARCH != "linux/amd64" {
		t.Skip("make tools installs it on linux/amd64 only")
	}
	path := program(t, "../../.bin/envoy/bin/envoy", "envoy")
	addr := proxy(t, envoy, func(file string) []string {
		return []string{path, "-c", file, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"}
	})
	code, out, stderr := headgate(t, "", "ping", "-redis", "redis://"+addr, "-timeout", patient.String())
	if code != 1 || !strings.Contains(out, apart) {
		t.Errorf("%d %s%s", code, out, stderr)
	}
}

// A server that refuses keys of several hash slots in a script is no such proxy.
func TestHashSlotsAreNoProxy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "cluster-enabled yes")
	add := []string{"CLUSTER", "ADDSLOTS"}
	for slot := range rediskey.HashSlots {
		add = append(add, strconv.Itoa(slot))
	}
	if _, err := server.Do(add...); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); time.Since(start) < patient; <-time.After(10 * time.Millisecond) {
		if _, err := server.Do("SET", "key", "1"); err == nil {
			break // a new Cluster waits for two seconds
		}
	}
	code, out, stderr := headgate(t, "", "ping", "-redis", "redis://"+server.Addr(), "-timeout", patient.String())
	if code != 0 {
		t.Errorf("%d %s%s", code, out, stderr)
	}
}

// Twemproxy hangs up when it is greeted, as go-redis does. A client that does not greet is told what Envoy's is.
func TestTwemproxyIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("make tools installs it on Debian and Ubuntu only")
	}
	path := program(t, "nutcracker", "/usr/sbin/nutcracker")
	addr := proxy(t, nutcracker, func(file string) []string {
		return []string{path, "-c", file, "-s", fmt.Sprint(redistest.Port(t)), "-o", filepath.Join(filepath.Dir(file), "log")}
	})
	code, out, stderr := headgate(t, "", "ping", "-redis", "redis://"+addr, "-timeout", patient.String())
	if code != 2 || !strings.Contains(stderr, "the server does not answer") {
		t.Errorf("%d %s%s", code, out, stderr)
	}
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, DisableIdentity: true, Dialer: rude})
	t.Cleanup(func() { _ = client.Close() })
	store, err := redisstore.New(client, redisstore.Config{Timeout: patient, SlotTTL: 3 * patient})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), apart) {
		t.Error(err)
	}
}

// rude dials, and answers a greeting in the place of the server.
func rude(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &rudeConn{Conn: conn}, err
}

type rudeConn struct {
	net.Conn

	greeted bool
}

func (c *rudeConn) Write(b []byte) (int, error) {
	if c.greeted = strings.Contains(string(b), "hello"); c.greeted {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *rudeConn) Read(b []byte) (int, error) {
	if c.greeted {
		c.greeted = false
		return copy(b, "-ERR unknown command\r\n"), nil
	}
	return c.Conn.Read(b)
}
