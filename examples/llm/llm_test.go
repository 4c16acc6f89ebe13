package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core/memstore"
)

type reply struct {
	Answer         string
	Reserved, Used int64
}

func ask(t *testing.T, url, prompt string, maxTokens int) (*http.Response, reply) {
	t.Helper()
	response, body := do(t, "POST", fmt.Sprintf("%s/api/chat?max_tokens=%d", url, maxTokens), strings.NewReader(prompt))
	var r reply
	if response.StatusCode == 200 {
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatalf("%v in %q", err, body)
		}
	}
	return response, r
}

func left(t *testing.T, r *http.Response) (left int64) {
	t.Helper()
	if _, err := fmt.Sscanf(r.Header.Get("RateLimit"), `"tokens";r=%d`, &left); err != nil {
		t.Fatalf("RateLimit: %q", r.Header.Get("RateLimit"))
	}
	return left
}

// The story that the doc comment tells.
func TestReserveAndSettle(t *testing.T) {
	t.Parallel()
	url, begin := start(t), time.Now()

	first, a := ask(t, url, "Tell me about rate limits", 300)
	second, b := ask(t, url, "Tell me everything", 600)
	third, c := ask(t, url, "Tell me everything", 600)
	rest, _ := do(t, "GET", url+"/api/hello", nil)
	if took := time.Since(begin); took > 50*time.Second {
		t.Logf("this machine took %v, about a window: that proves nothing", took)
		return
	}

	if first.StatusCode != 200 || a.Reserved != 309 || a.Used != 41 || left(t, first) != 691 {
		t.Errorf("first: %s, reserved %d, used %d, RateLimit %s", first.Status, a.Reserved, a.Used, first.Header.Get("RateLimit"))
	}
	if words := len(strings.Fields(a.Answer)); words != 32 {
		t.Errorf("the answer has %d words", words)
	}
	if second.StatusCode != 200 || b.Reserved != 606 || b.Used != 606 || left(t, second) != 959-606 {
		t.Errorf("second: %s, reserved %d, used %d, RateLimit %s", second.Status, b.Reserved, b.Used, second.Header.Get("RateLimit"))
	}
	if third.StatusCode != 429 || c.Answer != "" || third.Header.Get("Retry-After") == "" {
		t.Errorf("third: %s, Retry-After %q", third.Status, third.Header.Get("Retry-After"))
	}
	if rest.StatusCode != 200 || left(t, rest) != 959-606-1 {
		t.Errorf("hello: %s, RateLimit %s", rest.Status, rest.Header.Get("RateLimit"))
	}
}

// What is used is never more than what was reserved, which is never more than the limit.
func TestEstimate(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?max_tokens=", "?max_tokens=x", "?max_tokens=-5", "?max_tokens=0", "?max_tokens=1", "?max_tokens=7",
		"?max_tokens=600", "?max_tokens=99999999999999999999", "?max_tokens=9000"} {
		for _, prompt := range []string{"", "a", "everything", "everything " + strings.Repeat("é", 500), strings.Repeat("k", 1024), strings.Repeat("k", 1025)} {
			for _, chunked := range []bool{false, true} {
				r := httptest.NewRequest("POST", "/api/chat"+query, strings.NewReader(prompt))
				if chunked {
					r.ContentLength = -1
				}
				reserved := estimate(r)
				w := httptest.NewRecorder()
				chat(w, r)
				var got reply
				if len(prompt) > 1024 {
					if w.Code != 400 {
						t.Errorf("%d bytes: %d", len(prompt), w.Code)
					}
					continue
				}
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
					t.Fatal(err)
				}
				if got.Reserved != reserved || got.Used > reserved || got.Used < 1 || reserved > 1000 {
					t.Errorf("%s, %d bytes, chunked %v: reserved %d, used %d", query, len(prompt), chunked, reserved, got.Used)
				}
			}
		}
	}
}

// A model without an end stops when nobody listens.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	words := 0
	for range model(ctx, "everything") {
		if words++; words == 100 {
			cancel()
		}
	}
	if words != 100 {
		t.Errorf("%d words", words)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	url := start(t)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 200},
		{"GET", "/api/hello", 200},
		{"POST", "/api/chat", 200},
		{"GET", "/api/chat", 405},
		{"POST", "/api/hello", 405},
		{"GET", "/favicon.ico", 404},
	} {
		if r, body := do(t, c.method, url+c.path, nil); r.StatusCode != c.status {
			t.Errorf("%s %s: %s, %s", c.method, c.path, r.Status, body)
		}
	}
	r, body := do(t, "GET", url+"/", nil)
	if !strings.Contains(body, `fetch("/api/chat`) || !strings.Contains(r.Header.Get("Content-Security-Policy"), "script-src 'sha256-") {
		t.Errorf("%v\n%s", r.Header, body)
	}
}

func TestProgram(t *testing.T) {
	t.Parallel()
	program := build(t)
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"an argument", []string{"8080"}, 2, `"8080"`},
		{"no URL of Redis", []string{"-redis", "localhost"}, 2, "-redis"},
		{"address without port", []string{"-addr", "127.0.0.1"}, 1, "missing port"},
	} {
		var out, errs strings.Builder
		cmd := exec.CommandContext(t.Context(), program, append([]string{"-addr", "127.0.0.1:0"}, c.args...)...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != c.status {
			t.Errorf("%s: %v, not exit status %d", c.name, err, c.status)
		}
		text, ok := strings.CutSuffix(errs.String(), "\n")
		if !ok || strings.Contains(text, "\n") || !strings.HasPrefix(text, "llm: ") || !strings.Contains(text, c.says) || out.Len() > 0 {
			t.Errorf("%s: stderr %q, stdout %q", c.name, &errs, &out)
		}
	}
	if runtime.GOOS != "windows" { // no process can send os.Interrupt there
		stops(t, program)
	}
}

// stops starts the program, uses it, interrupts it, and sees that it ends well and lets
// go of its port.
func stops(t *testing.T, program string) {
	cmd := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0")
	var errs strings.Builder
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v, stderr %q", err, &errs)
	}
	_, addr, _ := strings.Cut(line, "http://")
	addr, _, _ = strings.Cut(addr, "/")
	if r, _ := ask(t, "http://"+addr, "hello", 10); r.StatusCode != 200 {
		t.Error(r.Status)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil || strings.Count(string(rest), "curl -i ") != 3 || strings.Contains(string(rest), "%!") {
		t.Errorf("%v, %s", err, rest)
	}
	if err := cmd.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("%v, stderr %q", err, &errs)
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Error("the port is still open")
	}
}

func start(t *testing.T) (url string) {
	t.Helper()
	handler, err := routes(memstore.New(memstore.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "llm")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

func do(t *testing.T, method, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}
