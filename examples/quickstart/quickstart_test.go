package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/redistest"
)

// The doc comment of the program, with the numbers that it has.
func TestAdmittedRefusedAdmittedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, admittedRefusedAdmittedAgain)
}

func admittedRefusedAdmittedAgain(t *testing.T) {
	app := appOf(t, 10, 10*time.Second)
	get := func() (*http.Response, string) {
		w := httptest.NewRecorder()
		app.ServeHTTP(w, httptest.NewRequest("GET", "/api/hello", nil))
		return w.Result(), w.Body.String()
	}

	for i := range 10 {
		r, body := get()
		if r.StatusCode != 200 || body != "hello\n" {
			t.Fatalf("request %d: %s, %q", i+1, r.Status, body)
		}
		checkPolicy(t, r.Header)
		if left, _ := rateLimit(t, r.Header); left != int64(9-i) {
			t.Errorf("request %d: RateLimit: %s", i+1, r.Header.Get("RateLimit"))
		}
		if r.Header.Get("Retry-After") != "" {
			t.Errorf("request %d was admitted with Retry-After", i+1)
		}
	}

	time.Sleep(2 * time.Second)
	r, body := get()
	if r.StatusCode != 429 {
		t.Fatalf("request 11: %s, %q", r.Status, body)
	}
	checkPolicy(t, r.Header)
	left, next := rateLimit(t, r.Header)
	if left != 0 || next != 8 {
		t.Errorf("RateLimit: %s", r.Header.Get("RateLimit"))
	}
	checkProblem(t, r.Header, body)
	var transcript bytes.Buffer
	fmt.Fprintf(&transcript, "HTTP/1.1 %s\n", r.Status)
	if err := r.Header.Write(&transcript); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	text := "//\t" + strings.ReplaceAll(strings.TrimSpace(strings.ReplaceAll(transcript.String(), "\r", "")), "\n", "\n//\t") + "\n//\n"
	if !strings.Contains(string(source), text) {
		t.Errorf("the doc comment does not have\n%s", text)
	}

	time.Sleep(8*time.Second - time.Microsecond)
	if r, _ := get(); r.StatusCode != 429 {
		t.Errorf("a microsecond before Retry-After: %s", r.Status)
	}
	time.Sleep(time.Microsecond)
	if r, body := get(); r.StatusCode != 200 || body != "hello\n" {
		t.Errorf("after Retry-After: %s, %q", r.Status, body)
	}
}

// An address of no interface is not one that a browser can open.
func TestReachable(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:8080":      "127.0.0.1:8080",
		"[::]:8080":         "127.0.0.1:8080",
		"127.0.0.1:8080":    "127.0.0.1:8080",
		"[::1]:8080":        "[::1]:8080",
		"192.0.2.1:8080":    "192.0.2.1:8080",
		"[2001:db8::1]:443": "[2001:db8::1]:443",
	} {
		if got := reachable(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))); got != want {
			t.Errorf("%s: %s, not %s", addr, got, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	server := start(t, 100, time.Minute)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 200},
		{"HEAD", "/", 200},
		{"GET", "/api/hello", 200},
		{"HEAD", "/api/hello", 200},
		{"POST", "/api/hello", 405},
		{"OPTIONS", "/api/hello", 405},
		{"POST", "/", 405},
		{"GET", "/api", 404},
		{"GET", "/api/hello/", 404},
		{"GET", "/ws", 400},
		{"POST", "/ws", 405},
		{"GET", "/favicon.ico", 404},
		{"POST", "/elsewhere", 404},
	} {
		r, _ := do(t, c.method, server.URL+c.path)
		if r.StatusCode != c.status {
			t.Errorf("%s %s: %s, not %d", c.method, c.path, r.Status, c.status)
		}
		if c.status == 405 && r.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow: %q", c.method, c.path, r.Header.Get("Allow"))
		}
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	server := start(t, 3, 1500*time.Millisecond)
	r, body := get(t, server.URL+"/")

	if v := r.Header.Get("Content-Type"); v != "text/html; charset=utf-8" {
		t.Errorf("Content-Type: %s", v)
	}
	for _, text := range []string{`data-limit="3"`, `data-window="1.5"`} {
		if !strings.Contains(body, text) {
			t.Errorf("the page has no %s", text)
		}
	}
	if !strings.Contains(body, "may have <span data-show=\"sockets\">2</span> WebSockets") {
		t.Error("the page does not tell how many sockets there may be")
	}
	for _, text := range []string{"{{", "://", `="//`, "src=", "@import", "url(", "style=", `onclick="`} {
		if strings.Contains(body, text) {
			t.Errorf("the page has %s", text)
		}
	}

	policy := make(map[string]string)
	for directive := range strings.SplitSeq(r.Header.Get("Content-Security-Policy"), ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), " ")
		policy[name] = value
	}
	if policy["default-src"] != "'none'" || policy["connect-src"] != "'self'" {
		t.Errorf("Content-Security-Policy: %q", policy)
	}
	for _, tag := range []string{"script", "style"} {
		if n := strings.Count(body, "<"+tag); n != 1 {
			t.Errorf("the page has %d elements %s", n, tag)
		}
		if !strings.HasPrefix(policy[tag+"-src"], "'sha256-") {
			t.Errorf("%s-src %s", tag, policy[tag+"-src"])
		}
	}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	program := build(t)

	t.Run("stops", func(t *testing.T) {
		t.Parallel()
		if runtime.GOOS != "windows" { // no process can send os.Interrupt there
			stops(t, program)
		}
	})

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"limit 0", []string{"-limit", "0"}, 2, "a rate of"},
		{"limit -1", []string{"-limit", "-1"}, 2, "a rate of"},
		{"limit too large", []string{"-limit", "9999999"}, 2, "at most 1024"},
		{"window 0", []string{"-window", "0"}, 2, "must be positive"},
		{"window -1s", []string{"-window", "-1s"}, 2, "must be positive"},
		{"window 500ns", []string{"-window", "500ns"}, 2, "whole number of microseconds"},
		{"window 1500ns", []string{"-window", "1500ns"}, 2, "whole number of microseconds"},
		{"sockets -1", []string{"-sockets", "-1"}, 2, "-sockets must not be negative"},
		{"both", []string{"-limit", "0", "-window", "0"}, 2, "must be positive"},
		{"no document", []string{"-limits", "none.yaml"}, 2, "no such file"},
		{"a document without hello", []string{"-limits", filepath.Join("testdata", "other.yaml")}, 2, `"hello"`},
		{"an argument", []string{"8080"}, 2, `"8080"`},
		{"no URL of Redis", []string{"-redis", "localhost"}, 2, "-redis"},
		{"address without port", []string{"-addr", "127.0.0.1"}, 1, "missing port"},
		{"address in use", []string{"-addr", taken.Addr().String()}, 1, "in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.says == "in use" && runtime.GOOS == "windows" {
				c.says = "bind"
			}
			// Should the program start against all expectation, port 0 keeps it
			// out of the way and the context of the test ends it.
			args := append([]string{"-addr", "127.0.0.1:0"}, c.args...)
			var out, errs strings.Builder
			cmd := exec.CommandContext(t.Context(), program, args...)
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != c.status {
				t.Errorf("%v, not exit status %d", err, c.status)
			}
			text, ok := strings.CutSuffix(errs.String(), "\n")
			if !ok || strings.Contains(text, "\n") || !strings.HasPrefix(text, "quickstart: ") || !strings.Contains(text, c.says) {
				t.Errorf("stderr %q, not one line with %q", errs.String(), c.says)
			}
			if out.Len() > 0 {
				t.Errorf("stdout %q", out.String())
			}
		})
	}
}

// launch starts the program, reads the address that it prints, and returns what it
// prints after that.
func launch(t *testing.T, program string, args ...string) (cmd *exec.Cmd, addr string, out *bufio.Reader) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), program, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = new(output)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out = bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v, after %q; stderr %q", err, line, cmd.Stderr)
	}
	_, addr, ok := strings.Cut(line, "http://")
	addr, _, _ = strings.Cut(addr, "/")
	if !ok || addr == "" {
		t.Fatalf("no address in %q", line)
	}
	return cmd, addr, out
}

// Two sockets may be open; the third may not, and when one is closed there is room again.
func TestSockets(t *testing.T) {
	t.Parallel()
	url := "ws" + strings.TrimPrefix(start(t, 1, time.Minute).URL, "http") + "/ws"
	first, _ := dial(t, url)
	second, _ := dial(t, url)
	for _, conn := range []*websocket.Conn{first, second} {
		if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
			t.Errorf("an open socket: %q %v", message, err)
		}
	}
	if _, status := dial(t, url); status != 429 {
		t.Errorf("the third socket: status %d", status)
	}
	first.Close()
	third, status := dial(t, url)
	for status == 429 && t.Context().Err() == nil {
		third, status = dial(t, url) // the server is noticing
	}
	if _, message, err := third.ReadMessage(); err != nil || string(message) != "hello" {
		t.Errorf("a socket after one was closed: %q %v", message, err)
	}
}

// dial opens a socket as a browser does, on a page of the same server.
func dial(t *testing.T, url string) (conn *websocket.Conn, status int) {
	t.Helper()
	origin := strings.TrimSuffix("http"+strings.TrimPrefix(url, "ws"), "/ws")
	conn, r, err := websocket.DefaultDialer.DialContext(t.Context(), url, http.Header{"Origin": {origin}})
	if r == nil {
		t.Fatal(err)
	}
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	if limit := r.Header.Get("RateLimit-Policy"); err != nil && limit != `"sockets";q=2;qu="concurrent-requests"` {
		t.Errorf("RateLimit-Policy: %s", limit)
	}
	return conn, r.StatusCode
}

// Servers that were started with the same Redis share the limits.
func TestServersShareTheLimits(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr() + "/0"
	program := build(t)
	admitted, refused, open := 0, 0, 0
	for range 3 {
		_, addr, _ := launch(t, program, "-redis", url, "-limit", "5", "-window", "1h", "-sockets", "2")
		if _, status := dial(t, "ws://"+addr+"/ws"); status == 101 {
			open++
		}
		for range 4 {
			switch r, _ := get(t, "http://"+addr+"/api/hello"); r.StatusCode {
			case 200:
				admitted++
			case 429:
				refused++
			}
		}
	}
	if open != 2 {
		t.Errorf("%d sockets are open on three servers, under a limit of 2", open)
	}
	if admitted != 5 || refused != 7 {
		t.Errorf("three servers admitted %d and refused %d of 12 requests, under a limit of 5", admitted, refused)
	}
}

// An output is what a program has written so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// With -limits, a number that is saved applies to the page and the fields; a document
// that is not right changes nothing, and the server says so.
func TestLimitsFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "limits.yaml")
	save := func(text string) {
		t.Helper()
		if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	save(string(text))
	cmd, addr, _ := launch(t, build(t), "-limits", name)
	shows := func(limit int) bool {
		_, page := get(t, "http://"+addr+"/")
		_, numbers := get(t, "http://"+addr+"/limits")
		return strings.Contains(page, fmt.Sprintf(`data-limit="%d" data-window="10"`, limit)) &&
			numbers == fmt.Sprintf(`{"limit":%d,"seconds":10,"sockets":3}`+"\n", limit)
	}
	if !shows(10) {
		t.Error("the page does not show the limits of the document")
	}
	save(strings.Replace(string(text), "10/10s", "12/10s", 1))
	for !shows(12) {
		runtime.Gosched()
	}
	if r, _ := get(t, "http://"+addr+"/api/hello"); r.Header.Get("RateLimit-Policy") != `"hello";q=12;w=10` {
		t.Error(r.Header)
	}
	save(strings.Replace(string(text), "10/10s", "12/mintue", 1))
	for !strings.Contains(cmd.Stderr.(*output).String(), "line 5, column 12: \"sliding-log 12/mintue\"") {
		runtime.Gosched()
	}
	if !shows(12) {
		t.Error("the limits have changed")
	}
}

// Without its Redis a server says so, and serves.
func TestRedisIsAway(t *testing.T) {
	cmd, addr, _ := launch(t, build(t), "-redis", "redis://127.0.0.1:1/0")
	if r, _ := get(t, "http://"+addr+"/api/hello"); r.StatusCode != 200 {
		t.Errorf("%s", r.Status)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // what it wrote is complete then
	if text := cmd.Stderr.(*output).String(); !strings.Contains(text, "quickstart: Redis cannot be used (") {
		t.Errorf("stderr %q", text)
	}
}

// stops starts the program, uses it, interrupts it, and sees that it ends well and
// lets go of its port, although a client keeps its connection open.
func stops(t *testing.T, program string) {
	cmd, addr, out := launch(t, program, "-limit", "2")
	r, body := get(t, "http://"+addr+"/api/hello")
	if r.StatusCode != 200 || body != "hello\n" {
		t.Errorf("%s, %q", r.Status, body)
	}

	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil { // it does if it had to wait for the connection until its deadline
		t.Error(err)
	}
	for _, text := range []string{
		"curl -i http://" + addr + "/api/hello\n",
		"'http://" + addr + "/api/hello?[1-3]'\n",
		`'%{http_code}\n'`,
	} {
		if !strings.Contains(string(rest), text) {
			t.Errorf("the greeting has no %s", text)
		}
	}
	if errs := cmd.Stderr.(*output); errs.String() != "" {
		t.Errorf("stderr %q", errs.String())
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("the port is still open")
	}
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "quickstart")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func start(t *testing.T, limit int64, window time.Duration) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(appOf(t, limit, window))
	t.Cleanup(server.Close)
	return server
}

func appOf(t *testing.T, limit int64, window time.Duration) *app {
	t.Helper()
	store := new(core.MemoryStore)
	limiter, err := newLimiter(store, limit, window)
	if err != nil {
		t.Fatal(err)
	}
	return newApp(store, limiter, 2)
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	return do(t, "GET", url)
}

func do(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// item returns the parameters of a field that is a list of the one item "hello".
func item(t *testing.T, h http.Header, field string) *httpsfv.Params {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h.Values(field))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s %q: %d items, %v", field, h.Values(field), len(list), err)
	}
	item, ok := list[0].(httpsfv.Item)
	if !ok || item.Value != "hello" {
		t.Fatalf("%s %q is not about hello", field, h.Values(field))
	}
	if canonical, err := httpsfv.Marshal(list); err != nil || canonical != h.Get(field) {
		t.Errorf("%s %q is not canonical: %q, %v", field, h.Get(field), canonical, err)
	}
	return item.Params
}

func integer(t *testing.T, p *httpsfv.Params, name string) int64 {
	t.Helper()
	value, ok := p.Get(name)
	n, isInt := value.(int64)
	if !ok || !isInt {
		t.Fatalf("parameter %s is %v", name, value)
	}
	return n
}

func checkPolicy(t *testing.T, h http.Header) {
	t.Helper()
	p := item(t, h, "RateLimit-Policy")
	if q, w := integer(t, p, "q"), integer(t, p, "w"); q != 10 || w != 10 {
		t.Errorf("RateLimit-Policy: %s", h.Get("RateLimit-Policy"))
	}
}

func rateLimit(t *testing.T, h http.Header) (left, next int64) {
	t.Helper()
	p := item(t, h, "RateLimit")
	return integer(t, p, "r"), integer(t, p, "t")
}

func checkProblem(t *testing.T, h http.Header, body string) {
	t.Helper()
	if media, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || media != "application/problem+json" {
		t.Errorf("Content-Type: %q", h.Get("Content-Type"))
	}
	var problem struct {
		Type, Title string
		Status      int
		Violated    []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(body), &problem); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if problem.Type != "https://iana.org/assignments/http-problem-types#quota-exceeded" || problem.Title == "" ||
		problem.Status != 429 || len(problem.Violated) != 1 || problem.Violated[0] != "hello" {
		t.Errorf("body %s", body)
	}
}
