package main

import (
	"bufio"
	"encoding/json"
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

// limited is what requests are charged through proxies.
const limited = `limits:
  api: {plans: {api: sliding-log 20/hour}}
  all: {plans: {all: sliding-log 30/hour}}
routes:
  - {path: "/limited/{name}", host: www.example.com, method: GET, charge: [{limit: api, key: "path:name"}, {limit: all, key: everyone}]}
  - {path: /key, charge: [{limit: api, key: "header:X-Api-Key"}]}
  - {path: /address, charge: [{limit: api, key: address, units: 10}]}
`

// A world is two services over one Redis, which a proxy asks.
type world struct {
	sockets     [2]string
	services    [2]*service
	application string
}

func newWorld(t *testing.T) *world {
	redis := redistest.Start(t)
	w := &world{application: application(t)}
	dir := t.TempDir()
	document := write(t, limited)
	for i := range w.sockets {
		w.sockets[i] = filepath.Join(dir, string(rune('a'+i)))
		// A decision may take long on a busy machine, and none is to be made without Redis.
		w.services[i] = start(t, "-config", document, "-http", "unix:"+w.sockets[i], "-redis", "redis://"+redis.Addr(), "-timeout", "10s", "-failure", "closed")
	}
	return w
}

func TestNginx(t *testing.T) {
	name := program(t, "nginx", "/usr/sbin/nginx")
	w, dir, port := newWorld(t), t.TempDir(), freePort(t)
	lines := replaced(t, block(t, "docs/headgated.md", "nginx"), "server unix:/run/headgated/http.sock;",
		"server unix:"+w.sockets[0]+"; server unix:"+w.sockets[1]+";", "listen 80;", "listen 127.0.0.1:"+port+";", "http://application", "http://"+w.application)
	conf := "daemon off; master_process off; pid nginx.pid; error_log stderr; events {}\nhttp {\naccess_log off; client_body_temp_path a; proxy_temp_path b;\n" +
		"fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n" + lines + "}\n"
	must(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o600))
	launch(t, dir, port, name, "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	w.behind(t, port, http.StatusInternalServerError)
}

func TestCaddy(t *testing.T) {
	name := program(t, filepath.Join(repository, ".bin/caddy/bin/caddy"), "caddy")
	w, dir, port := newWorld(t), t.TempDir(), freePort(t)
	lines := replaced(t, block(t, "docs/headgated.md", "caddy"), "forward_auth unix//run/headgated/http.sock", "forward_auth unix/"+w.sockets[0]+" unix/"+w.sockets[1],
		":80 {", ":"+port+" {", "application:8080", w.application)
	must(t, os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte("{\nadmin off\nauto_https off\n}\n"+lines), 0o600))
	launch(t, dir, port, name, "run", "--config", "Caddyfile", "--adapter", "caddyfile")
	w.behind(t, port, http.StatusBadGateway)
}

func TestHAProxy(t *testing.T) {
	name := program(t, "haproxy", "/usr/sbin/haproxy")
	w, dir, port := newWorld(t), t.TempDir(), freePort(t)
	must(t, os.WriteFile(filepath.Join(dir, "headgated.lua"), []byte(block(t, "docs/headgated.md", "headgated.lua")), 0o600))
	ask := "http-request lua.headgated http://headgated/v1/auth unix@"
	lines := replaced(t, block(t, "docs/headgated.md", "haproxy"), "/etc/haproxy/headgated.lua", filepath.Join(dir, "headgated.lua"), "bind :80", "bind 127.0.0.1:"+port,
		ask+"/run/headgated/http.sock", ask+w.sockets[0]+" if { rand(2) 0 }\n\t"+ask+w.sockets[1]+" if !{ var(txn.ratelimit) -m found }", "application:8080", w.application)
	must(t, os.WriteFile(filepath.Join(dir, "haproxy.cfg"), []byte(lines), 0o600))
	launch(t, dir, port, name, "-db", "-f", "haproxy.cfg")
	w.behind(t, port, http.StatusServiceUnavailable)
}

// behind makes requests through a proxy, which answers with a status of its own while no service does.
func (w *world) behind(t *testing.T, port string, without int) {
	t.Helper()
	get := func(path string, fields ...string) (*http.Response, string) {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:"+port+path, nil)
		must(t, err)
		r.Host = "www.example.com"
		for i := 0; i < len(fields); i += 2 {
			r.Header.Add(fields[i], fields[i+1])
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return &http.Response{}, ""
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response, string(body)
	}
	admitted := func(name string) int { // of 200 requests
		var wg sync.WaitGroup
		var mu sync.Mutex
		codes := make(map[int]int)
		for range 8 {
			wg.Go(func() {
				for range 25 {
					response, _ := get("/limited/" + name)
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
	response, body := get("/limited/anna", "X-Forwarded-Uri", "/free", "X-Forwarded-Host", "other", "X-Forwarded-Method", "POST")
	if h := response.Header; response.StatusCode != 200 || body != "from the application" || h.Get("RateLimit-Policy") != `"api";q=20;w=3600, "all";q=30;w=3600` ||
		!strings.HasPrefix(h.Get("RateLimit"), `"api";r=19;t=`) {
		t.Errorf("%d %v %s", response.StatusCode, h, body)
	}
	if n := admitted("anna"); n != 19 {
		t.Errorf("anna: %d are admitted, not 19", n)
	}
	if n := admitted("ben"); n != 10 { // which is what all have left
		t.Errorf("ben: %d are admitted, not 10", n)
	}
	if n := w.left(t, "ben"); n != 10 {
		t.Errorf("ben has %d left, not 10: what was refused was charged", n)
	}
	response, body = get("/limited/anna")
	var problem struct {
		Type   string
		Status int
	}
	if h := response.Header; response.StatusCode != 429 || h.Get("Retry-After") == "" || h.Get("Content-Type") != "application/problem+json" ||
		!strings.HasPrefix(h.Get("RateLimit"), `"api";r=0;t=`) || json.Unmarshal([]byte(body), &problem) != nil || problem.Status != 429 || !strings.HasSuffix(problem.Type, "#quota-exceeded") {
		t.Errorf("%d %v %s", response.StatusCode, h, body)
	}
	if response, _ := get("/key"); response.StatusCode != 400 {
		t.Errorf("without a key: %d", response.StatusCode)
	}
	if response, body := get("/free"); response.StatusCode != 200 || body != "from the application" || len(response.Header["Ratelimit"]) > 0 {
		t.Errorf("free: %d %v %s", response.StatusCode, response.Header, body)
	}
	if response, _ := get("/forbidden"); response.StatusCode != 403 {
		t.Errorf("forbidden: %d", response.StatusCode)
	}
	for _, raw := range []string{ // each is for www.example.com
		"GET /limited/raw HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n",
		"GET http://www.example.com/limited/raw HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n",
		"GET /limited//./raw?a HTTP/1.1\r\nHost: WWW.example.com:80\r\nConnection: close\r\n\r\n",
		"GET /limited/%72aw HTTP/1.1\r\nHost: www.example.com.\r\nConnection: close\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		must(t, err)
		_, err = io.WriteString(conn, raw)
		must(t, err)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		if conn.Close(); response.StatusCode == 200 || response.StatusCode == 429 && !strings.Contains(response.Header.Get("RateLimit-Policy"), `"all"`) {
			t.Errorf("%q: %d %v", raw, response.StatusCode, response.Header)
		}
	}
	var codes []int
	for _, forged := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} { // another address each time, if it were believed
		response, _ := get("/address", "X-Forwarded-For", forged)
		codes = append(codes, response.StatusCode)
	}
	if len(codes) != 3 || codes[0] != 200 || codes[1] != 200 || codes[2] != 429 {
		t.Errorf("with forged addresses: %v", codes)
	}
	for _, s := range w.services {
		s.Kill()
	}
	if response, _ := get("/free"); response.StatusCode != without {
		t.Errorf("without a service: %d, not %d", response.StatusCode, without)
	}
}

// left returns how much of its own limit a name has left.
func (w *world) left(t *testing.T, name string) int64 {
	t.Helper()
	var got struct{ Remaining int64 }
	body := overSocket(t, w.sockets[0], "/v1/check", `{"charges": [{"limit": "api", "key": "`+name+`"}]}`)
	must(t, json.Unmarshal([]byte(body), &got))
	return got.Remaining
}
