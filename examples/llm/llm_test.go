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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

// A reply is the response to a prompt, to its end.
type reply struct {
	status      int
	left, retry int64  // of the fields
	answer      string // without the last line
	used        int64  // as that says
}

// ask sends a prompt to a handler.
func ask(h http.Handler, path, prompt string) (r reply) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", path, strings.NewReader(prompt)))
	r.status = w.Code
	_, after, _ := strings.Cut(w.Header().Get("RateLimit"), ";r=")
	text, _, _ := strings.Cut(after, ";")
	r.left, _ = strconv.ParseInt(text, 10, 64)
	r.retry, _ = strconv.ParseInt(w.Header().Get("Retry-After"), 10, 64)
	answer, last, _ := strings.Cut(w.Body.String(), "\n\n")
	r.answer = answer
	_, _ = fmt.Sscanf(last, "%d tokens used", &r.used)
	return r
}

// handler returns the server's, over a store.
func handler(t *testing.T, store core.Store) http.Handler {
	t.Helper()
	h, err := routes(store, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

const everything = "Tell me everything"

// An estimate is reserved and settled: the limit is never exceeded.
func TestEstimateAndSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := handler(t, new(core.MemoryStore))
		for i, c := range []struct {
			prompt string
			most   int
			want   reply
		}{
			{"Tell me about rate limits", 300, reply{status: 200, left: 691, used: 41}},
			{everything, 600, reply{status: 200, left: 959 - 606, used: 606}},
			{everything, 600, reply{status: 429, left: 353, retry: 911}}, // 253 tokens
		} {
			got := ask(h, fmt.Sprintf("/api/estimated?max_tokens=%d", c.most), c.prompt)
			if words := int64(len(strings.Fields(got.answer))); got.status == 200 && words != got.used-promptTokens(int64(len(c.prompt))) {
				t.Errorf("%d: the answer has %d words", i, words)
			}
			if got.answer = ""; got != c.want {
				t.Errorf("%d: %+v, want %+v", i, got, c.want)
			}
		}
	})
}

// A client whose answer costs five times its limit is refused after it, for as long as its debt
// lasts, and no longer.
func TestReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := handler(t, new(core.MemoryStore))
		const wait = 14426 // seconds, until 4006 tokens are repaid, and one is left
		first, second := ask(h, "/api/reported", everything), ask(h, "/api/reported", "hello")
		if first.status != 200 || first.left != 999 || first.used != 5006 || second.status != 429 || second.retry != wait {
			t.Errorf("%d, %d used, then %+v", first.status, first.used, second)
		}
		time.Sleep((wait - 1) * time.Second)
		if early := ask(h, "/api/reported", "hello"); early.status != 429 || early.retry != 1 {
			t.Errorf("before the debt is repaid: %+v", early)
		}
		time.Sleep(time.Second)
		if late := ask(h, "/api/reported", "hello"); late.status != 200 {
			t.Errorf("after that: %+v", late)
		}
	})
}

// Two servers on one Redis refuse what one of them has counted, and after their first looks without a
// call of Redis.
func TestReportShared(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t).Addr() + "/0"
	var calls atomic.Int64
	server := func() http.Handler {
		s, err := redisstore.Open(url, redisstore.Config{
			RefusalTTL: time.Hour, Timeout: time.Minute, Failure: redisstore.FailClosed,
			Observers: []*core.Observer{{Decided: func(_ context.Context, e core.DecisionEvent) {
				if e.Source != "cache" {
					calls.Add(1)
				}
			}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close(context.Background()) })
		return handler(t, s)
	}
	one, other := server(), server()
	if first := ask(one, "/api/reported", everything); first.status != 200 || first.used != 5006 {
		t.Errorf("%+v", first)
	}
	for i, h := range []http.Handler{one, other} {
		before := calls.Load()
		for range 50 {
			if r := ask(h, "/api/reported", everything); r.status != 429 || r.retry < 14000 || r.retry > 14426 {
				t.Fatalf("server %d: %+v", i+1, r)
			}
		}
		if n := calls.Load() - before; n > 2 {
			t.Errorf("server %d: 50 refusals took %d calls of Redis", i+1, n)
		}
	}
	if r := ask(other, "/api/estimated?max_tokens=10", "hello"); r.status != 200 {
		t.Errorf("under the other limit: %+v", r)
	}
}

// Of requests at once, the estimate admits what fits, and the check all.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, err := routes(new(core.MemoryStore), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int64{"/api/estimated?max_tokens=300": 3, "/api/reported": 10} {
			var all sync.WaitGroup
			var admitted atomic.Int64
			for range 10 {
				all.Go(func() {
					if ask(h, path, everything).status == 200 {
						admitted.Add(1)
					}
				})
			}
			if all.Wait(); admitted.Load() != want {
				t.Errorf("%s: %d of 10 admitted, want %d", path, admitted.Load(), want)
			}
		}
	})
}

// What is used is never more than what was reserved, which is never more than the limit.
func TestEstimate(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?max_tokens=", "?max_tokens=x", "?max_tokens=-5", "?max_tokens=0", "?max_tokens=1", "?max_tokens=7",
		"?max_tokens=600", "?max_tokens=99999999999999999999", "?max_tokens=9000"} {
		for _, prompt := range []string{"", "a", "everything", "everything " + strings.Repeat("é", 500), strings.Repeat("k", 1024), strings.Repeat("k", 1025)} {
			for _, length := range []int64{int64(len(prompt)), -1} {
				r := httptest.NewRequest("POST", "/api/estimated"+query, strings.NewReader(prompt))
				r.ContentLength = length
				reserved := estimate(r)
				got := ask(chat{nil, answerTokens, 0}, "/api/estimated"+query, prompt)
				if want := map[bool]int{false: 200, true: 400}[len(prompt) > 1024]; got.status != want {
					t.Errorf("%d bytes: %d", len(prompt), got.status)
				}
				if got.used > reserved || got.status == 200 && got.used < 1 || reserved > limit {
					t.Errorf("%s, %d bytes, length %d: reserved %d, used %d", query, len(prompt), length, reserved, got.used)
				}
			}
		}
	}
}

// The model stops when nobody listens.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	words := 0
	for range model(ctx, "everything", 0) {
		if words++; words == 100 {
			cancel()
		}
	}
	if words != 100 {
		t.Errorf("%d words", words)
	}
}

// An answer is a stream, and what is left is seen and forgotten.
func TestRoutes(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(handler(t, new(core.MemoryStore)))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 200},
		{"GET", "/api/now", 200},
		{"POST", "/api/estimated", 200},
		{"POST", "/api/reported", 200},
		{"POST", "/api/reset", 204},
		{"GET", "/api/estimated", 405},
		{"POST", "/api/now", 405},
		{"GET", "/favicon.ico", 404},
	} {
		if r, body := do(t, c.method, server.URL+c.path, nil); r.StatusCode != c.status {
			t.Errorf("%s %s: %s, %s", c.method, c.path, r.Status, body)
		}
	}
	r, body := do(t, "GET", server.URL+"/", nil)
	if !strings.Contains(body, `fetch("/api/now`) || !strings.Contains(r.Header.Get("Content-Security-Policy"), "script-src 'sha256-") {
		t.Errorf("%v\n%s", r.Header, body)
	}
	if r, body := do(t, "POST", server.URL+"/api/reported", strings.NewReader(everything)); len(r.TransferEncoding) == 0 || !strings.HasSuffix(body, "\n\n5006 tokens used\n") {
		t.Errorf("%v, %.200q", r.TransferEncoding, body)
	}
	for _, want := range []bool{true, false} { // in debt
		_, body := do(t, "GET", server.URL+"/api/now", nil)
		var got view
		if err := json.Unmarshal([]byte(body), &got); err != nil || (got.Reported.Wait > 14000) != want || got.Estimated != (state{Left: limit}) {
			t.Errorf("%v, %s", err, body)
		}
		do(t, "POST", server.URL+"/api/reset", nil)
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
	if r, _ := do(t, "POST", "http://"+addr+"/api/estimated?max_tokens=10", strings.NewReader("hello")); r.StatusCode != 200 {
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
