package proxies

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest/proctest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

const require = "HEADGATE_REQUIRE"

// program returns the path of a proxy, or ends the test.
func program(t *testing.T, name string) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux, all of 127.0.0.0/8 is loopback")
	}
	for _, file := range []string{name, "/usr/sbin/" + name} { // which users other than root do not search
		if path, err := exec.LookPath(file); err == nil {
			return path
		}
	}
	if os.Getenv(require) == "1" {
		t.Fatalf("%s is not installed; %s=1 forbids to skip this test", name, require)
	}
	t.Skipf("%s is not installed: apt-get install %s", name, name)
	return ""
}

// The ports of the guarded servers, by key function; each is the same on every address.
const (
	byXFF = 9001 + iota
	byRealIP
	byForwarded
	byCount1
	byCount2
	byCookie
)

// A world is a set of proxies in front of guarded servers.
type world struct {
	t   *testing.T
	dir string

	// Addresses of their own for the proxies and the servers, so that their ports are free.
	nginx, haproxy, golang, servers string

	processes []*proctest.Command
	running   []*http.Server

	mutex    sync.Mutex
	recorded map[string][]string // keys by path, or "no key", of what the servers were asked
}

// newAddresses returns a world in which nothing runs yet.
func newAddresses(t *testing.T) *world {
	t.Helper()
	network := fmt.Sprintf("127.%d.%d.", 64+rand.IntN(128), rand.IntN(256))
	return &world{
		t: t, dir: t.TempDir(), recorded: make(map[string][]string),
		nginx: network + "1", haproxy: network + "2", golang: network + "3", servers: network + "4",
	}
}

// proxies returns the addresses that the proxies connect from.
func (w *world) proxies() []string { return []string{w.nginx, w.haproxy, w.golang} }

// newWorld starts everything.
func newWorld(t *testing.T) *world {
	t.Helper()
	nginx, haproxy := program(t, "nginx"), program(t, "haproxy")
	w := newAddresses(t)
	proxies := w.proxies()
	for port, key := range map[int]keyfuncs.Func{
		byXFF:       keyfuncs.XForwardedFor(proxies...),
		byRealIP:    keyfuncs.ProxyHeader("X-Real-IP", proxies...),
		byForwarded: keyfuncs.Forwarded(proxies...),
		byCount1:    keyfuncs.BehindProxies(1),
		byCount2:    keyfuncs.BehindProxies(2),
		byCookie:    keyfuncs.First(keyfuncs.Tag("cookie", cookie(t).Key), keyfuncs.Tag("ip", keyfuncs.XForwardedFor(proxies...))),
	} {
		server := w.guarded(key)
		w.serve(server, "tcp", fmt.Sprint(w.servers, ":", port))
		if port == byCount1 {
			w.serve(server, "unix", w.socket())
		}
	}
	for port, handler := range map[string]http.Handler{
		":8001": w.reverse(byXFF), ":8002": w.director(), ":8003": w.reverse(byCount2),
	} {
		w.serve(&http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: handler}, "tcp", w.golang+port)
	}
	nginxConf, nginxAddrs := w.nginxConf()
	haproxyConf, haproxyAddrs := w.haproxyConf()
	w.startProxies(nginx, nginxConf, haproxy, haproxyConf, slices.Concat(nginxAddrs, haproxyAddrs))
	return w
}

// startProxies runs both proxies, which listen at addrs.
func (w *world) startProxies(nginx, nginxConf, haproxy, haproxyConf string, addrs []string) {
	w.t.Helper()
	w.start(nginx, "nginx.conf", nginxConf, "-p", w.dir, "-e", "stderr", "-c")
	w.start(haproxy, "haproxy.cfg", haproxyConf, "-db", "-f")
	for _, addr := range addrs {
		w.await(addr)
	}
}

func (w *world) socket() string { return filepath.Join(w.dir, "socket") }

// guarded returns a server that admits all requests that have a key, and says in the
// response's field Charged which.
func (w *world) guarded(key keyfuncs.Func) *http.Server {
	limiter := core.NewLimiter(new(core.MemoryStore), "api", core.TokenBucket(1_000_000, time.Second))
	type response struct{}
	recording := func(r *http.Request) (string, error) {
		k, err := key(r)
		if err != nil {
			k = "no key"
		}
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.recorded[r.URL.Path] = append(w.recorded[r.URL.Path], k)
		r.Context().Value(response{}).(http.ResponseWriter).Header().Set("Charged", k)
		if err != nil {
			return "", err
		}
		return k, nil
	}
	guard, err := nethttp.New(nethttp.Config{Rates: []nethttp.Rate{{Limiter: limiter, Key: recording}}})
	if err != nil {
		w.t.Fatal(err)
	}
	handler := guard.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // and the trailers after it
		io.WriteString(rw, "served\n")
	}))
	return &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), response{}, rw)))
		}),
	}
}

// serve runs a server until the test ends.
func (w *world) serve(server *http.Server, network, addr string) {
	w.t.Helper()
	l, err := new(net.ListenConfig).Listen(w.t.Context(), network, addr)
	if err != nil {
		w.t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	w.running = append(w.running, server)
	w.t.Cleanup(func() { _ = server.Close() })
}

// stop ends the proxies, and then waits until the servers have handled all that they got.
func (w *world) stop() {
	w.t.Helper()
	for _, p := range w.processes {
		p.Kill()
	}
	for _, s := range w.running {
		if err := s.Shutdown(w.t.Context()); err != nil {
			w.t.Error(err)
		}
	}
}

// director is a proxy of net/http that sets X-Real-IP where its documentation warns against
// it: what the client names in Connection is removed afterwards.
func (w *world) director() http.Handler {
	return &httputil.ReverseProxy{Transport: w.transport(w.golang), ErrorLog: silent, Director: func(r *http.Request) {
		r.URL.Scheme, r.URL.Host = "http", fmt.Sprint(w.servers, ":", byRealIP)
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		r.Header.Set("X-Real-IP", host)
	}}
}

// reverse is the usual proxy of net/http, which removes what the client names in Connection
// before it appends to X-Forwarded-For.
func (w *world) reverse(port int) http.Handler {
	target, err := url.Parse(fmt.Sprint("http://", w.servers, ":", port))
	if err != nil {
		w.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.ErrorLog = w.transport(w.golang), silent
	return proxy
}

// silent is for proxies that would log each request that they refuse.
var silent = log.New(io.Discard, "", 0)

// transport connects from an address.
func (w *world) transport(from string) *http.Transport {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	w.t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// The proxies' configurations begin with what is the same in all servers.
const (
	nginxHead = `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	client_header_timeout 1s;
	client_body_timeout 1s;
	map $http_upgrade $connection_upgrade { default upgrade; "" ""; }
	map $remote_addr $forwarded_element { ~: 'for="[$remote_addr]"'; default for=$remote_addr; }
	proxy_http_version 1.1;
`
	haproxyHead = `
defaults
	mode http
	timeout connect 5s
	timeout client 5s
	timeout server 5s
	timeout http-request 1s
	timeout http-keep-alive 1s
`
)

// The lines that make them name the client, one header each.
const (
	nginxList     = "X-Forwarded-For $proxy_add_x_forwarded_for"
	nginxSingle   = "X-Real-IP $remote_addr"
	nginxPairs    = `Forwarded "$http_forwarded, $forwarded_element"`
	haproxyList   = "option forwardfor"
	haproxySingle = "http-request set-header X-Real-IP %[src]"
	haproxyPairs  = "http-request add-header Forwarded for=%[src] if { src 0.0.0.0/0 }\n" +
		"\thttp-request add-header Forwarded 'for=\"[%[src]]\"' if !{ src 0.0.0.0/0 }"
)

// nginxConf returns a configuration in which each server has one of the lines that the
// documentation names, and the addresses at which it listens.
func (w *world) nginxConf() (conf string, addrs []string) {
	const list, single, pairs = nginxList, nginxSingle, nginxPairs
	var b strings.Builder
	b.WriteString(nginxHead)
	for _, s := range []struct {
		listen, header, to string
	}{
		{"8001", list, fmt.Sprint(w.servers, ":", byXFF)},
		{"8002", single, fmt.Sprint(w.servers, ":", byRealIP)},
		{"8003", pairs, fmt.Sprint(w.servers, ":", byForwarded)},
		{"8004", list, fmt.Sprint(w.servers, ":", byCount1)},
		{"8005", list, "unix:" + w.socket()},
		{"8006", list, fmt.Sprint(w.servers, ":", byCookie)},
		{"8011", list, fmt.Sprint(w.haproxy, ":8001")},
		{"8012", list, fmt.Sprint(w.haproxy, ":8022")},
		{"8022", list, fmt.Sprint(w.servers, ":", byCount2)},
		{"8021", list, fmt.Sprint(w.golang, ":8001")},
		{"8031 http2", list, fmt.Sprint(w.servers, ":", byXFF)},
		{"8032 http2", list, fmt.Sprint(w.servers, ":", byCookie)},
		{"8041 proxy_protocol", list, fmt.Sprint(w.servers, ":", byXFF)},
		{"8042 proxy_protocol", single, fmt.Sprint(w.servers, ":", byRealIP)},
		{"8043 proxy_protocol", pairs, fmt.Sprint(w.servers, ":", byForwarded)},
	} {
		port, _, _ := strings.Cut(s.listen, " ")
		addrs = append(addrs, w.nginx+":"+port)
		from := w.nginx
		if strings.HasPrefix(s.to, "unix:") {
			from = "off"
		}
		fmt.Fprintf(&b, `
	upstream u%s { server %s; keepalive 4; }
	server {
		listen %s:%s;
		set_real_ip_from 127.0.0.0/8;
		real_ip_header proxy_protocol;
		location / {
			proxy_bind %s;
			proxy_pass http://u%s;
			proxy_set_header Host $host;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection $connection_upgrade;
			proxy_set_header %s;
		}
	}
`, port, s.to, w.nginx, s.listen, from, port, s.header)
	}
	b.WriteString("}\n")
	return b.String(), addrs
}

// haproxyConf returns the same for HAProxy.
func (w *world) haproxyConf() (conf string, addrs []string) {
	const list, single, pairs = haproxyList, haproxySingle, haproxyPairs
	var b strings.Builder
	b.WriteString(haproxyHead)
	for _, s := range []struct {
		bind, header, to string
	}{
		{"8001", list, fmt.Sprint(w.servers, ":", byXFF)},
		{"8002", single, fmt.Sprint(w.servers, ":", byRealIP)},
		{"8003", pairs, fmt.Sprint(w.servers, ":", byForwarded)},
		{"8004", list, fmt.Sprint(w.servers, ":", byCount1)},
		{"8006", list, fmt.Sprint(w.servers, ":", byCookie)},
		{"8011", list, fmt.Sprint(w.nginx, ":8001")},
		{"8012", list, fmt.Sprint(w.nginx, ":8022")},
		{"8022", list, fmt.Sprint(w.servers, ":", byCount2)},
		{"8021", list, fmt.Sprint(w.golang, ":8001")},
		{"8023", list, fmt.Sprint(w.golang, ":8003")},
		{"8031 proto h2", list, fmt.Sprint(w.servers, ":", byXFF)},
		{"8032 proto h2", list, fmt.Sprint(w.servers, ":", byCookie)},
		{"8041 accept-proxy", list, fmt.Sprint(w.servers, ":", byXFF)},
		{"8042 accept-proxy", single, fmt.Sprint(w.servers, ":", byRealIP)},
		{"8043 accept-proxy", pairs, fmt.Sprint(w.servers, ":", byForwarded)},
	} {
		port, _, _ := strings.Cut(s.bind, " ")
		addrs = append(addrs, w.haproxy+":"+port)
		fmt.Fprintf(&b, `
listen l%s
	bind %s:%s
	%s
	server s %s source %s
`, port, w.haproxy, s.bind, s.header, s.to, w.haproxy)
	}
	return b.String(), addrs
}

// start runs a proxy with a configuration, whose name ends its arguments.
func (w *world) start(program, name, conf string, args ...string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		w.t.Fatal(err)
	}
	output, err := os.Create(path + ".log")
	if err != nil {
		w.t.Fatal(err)
	}
	defer output.Close()
	cmd := exec.CommandContext(context.Background(), program, append(args, path)...)
	cmd.Stdout, cmd.Stderr = output, output
	w.processes = append(w.processes, proctest.StartCommand(w.t, cmd))
	w.t.Cleanup(func() {
		if text, err := os.ReadFile(path + ".log"); w.t.Failed() && err == nil {
			w.t.Logf("log of %s:\n%s", program, text[max(0, len(text)-4<<10):])
		}
	})
}

// await waits until something listens at addr.
func (w *world) await(addr string) {
	w.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// dial connects to addr from a client's address.
func dial(t *testing.T, client, addr string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	c, err := dialer.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	// A bound, should neither side end the connection; the proxies end all within a second.
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

func cookie(t *testing.T) *keyfuncs.SignedCookie {
	t.Helper()
	c, err := keyfuncs.NewSignedCookie("__Host-id", time.Hour, make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
