package exampletest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest/proctest"
)

const requireProxies = "HEADGATE_REQUIRE"

// Nginx is an nginx in front of servers.
type Nginx struct {
	Addr string // from which it connects to the servers
	URL  string // at which it listens, without a slash, once Serve was called

	t       testing.TB
	program string
}

// NewNginx finds an address for an nginx. It skips the test where there is none.
func NewNginx(t testing.TB) *Nginx {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux, all of 127.0.0.0/8 is loopback")
	}
	for _, name := range []string{"nginx", "/usr/sbin/nginx"} { // which users other than root do not search
		if program, err := exec.LookPath(name); err == nil {
			return &Nginx{Addr: fmt.Sprintf("127.%d.%d.1", 64+rand.IntN(128), rand.IntN(256)), t: t, program: program}
		}
	}
	if os.Getenv(requireProxies) == "1" {
		t.Fatalf("nginx is not installed; %s=1 forbids to skip this test", requireProxies)
	}
	t.Skip("nginx is not installed: apt-get install nginx")
	return nil
}

// Serve starts it in front of servers, which get requests in turn, with the lines that make it
// append to X-Forwarded-For and pass WebSockets on.
func (n *Nginx) Serve(addrs ...string) {
	n.t.Helper()
	dir := n.t.TempDir()
	conf := fmt.Sprintf(`
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
	map $http_upgrade $websocket { default ""; ~*^websocket$ websocket; }
	map $websocket $connection_upgrade { default upgrade; "" ""; }
	upstream servers { server %s; }
	server {
		listen %s:8001;
		location / {
			proxy_bind %[2]s;
			proxy_pass http://servers;
			proxy_http_version 1.1;
			proxy_set_header Host $http_host;
			proxy_set_header Upgrade $websocket;
			proxy_set_header Connection $connection_upgrade;
			proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
		}
	}
}
`, strings.Join(addrs, "; server "), n.Addr)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		n.t.Fatal(err)
	}
	output, err := os.Create(path + ".log")
	if err != nil {
		n.t.Fatal(err)
	}
	defer output.Close()
	cmd := exec.CommandContext(context.Background(), n.program, "-p", dir, "-e", "stderr", "-c", path)
	cmd.Stdout, cmd.Stderr = output, output
	proctest.StartCommand(n.t, cmd)
	n.t.Cleanup(func() {
		if text, err := os.ReadFile(path + ".log"); n.t.Failed() && err == nil {
			n.t.Logf("log of nginx:\n%s", text[max(0, len(text)-4<<10):])
		}
	})
	n.URL = "http://" + n.Addr + ":8001"
	for deadline := time.Now().Add(30 * time.Second); ; {
		c, err := new(net.Dialer).DialContext(n.t.Context(), "tcp", n.Addr+":8001")
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Client returns a client that connects from an address of 127.0.0.0/8.
func (n *Nginx) Client(from string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	n.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
