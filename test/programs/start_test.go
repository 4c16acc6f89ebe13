// Package programs tests the programs of README and of docs/start.md as these pages use them.
package programs

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	// The programs import these. So a result is not taken from the cache when one has changed.
	_ "github.com/headgate/headgate/core/redisstore"
	_ "github.com/headgate/headgate/core/stats"
	"github.com/headgate/headgate/internal/redistest"
	_ "github.com/headgate/headgate/limits"
	_ "github.com/headgate/headgate/websocketmw"
)

// programs is the folder of the built programs.
var programs string

func TestMain(m *testing.M) {
	sources, _ := filepath.Glob("*/main.go")
	for _, name := range sources {
		_, _ = os.ReadFile(name) // nor when a program has
	}
	dir, err := os.MkdirTemp("", "start")
	if err == nil {
		var out []byte
		out, err = exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./...").CombinedOutput()
		os.Stderr.Write(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

func newAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprint("127.0.0.1:", redistest.Port(t))
}

// run starts a program that listens on a port of its own, and returns its address.
func run(t *testing.T, name string, args ...string) (address string) {
	t.Helper()
	address = newAddress(t)
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, filepath.Join(programs, name), append([]string{"-addr", address}, args...)...)
	command.Stderr = t.Output()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = command.Wait() })
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return address
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// do sends a request with fields, alternating names and values, and returns the status and RateLimit.
func do(t *testing.T, method, url, body string, fields ...string) (status int, rateLimit string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header.Get("RateLimit")
}

// want fails the test unless the statuses are those of the requests that ask sends.
func want(t *testing.T, ask func(i int) int, statuses ...int) {
	t.Helper()
	for i, status := range statuses {
		if got := ask(i); got != status {
			t.Errorf("request %d: status %d, want %d", i+1, got, status)
		}
	}
}

// shared starts the program twice with one Redis, which is ready.
func shared(t *testing.T, name string, ready func(address string)) []string {
	t.Helper()
	redis := "redis://" + run(t, "redis") + "/0"
	servers := []string{run(t, name, "-redis", redis), run(t, name, "-redis", redis), run(t, name, "-redis", redis)}
	for _, s := range servers {
		ready(s)
	}
	return servers
}

func TestAPI(t *testing.T) {
	// The first call of a process may time out on a busy machine, so it is Ben's.
	servers := shared(t, "api", func(address string) { do(t, "GET", "http://"+address+"/", "", "X-API-Key", "key-of-ben") })
	anna := func(i int) int {
		status, _ := do(t, "GET", "http://"+servers[i%len(servers)]+"/", "", "X-API-Key", "key-of-anna")
		return status
	}
	want(t, anna, 200, 200, 200, 200, 200, 429, 429)
	if status, _ := do(t, "GET", "http://"+servers[0]+"/", "", "X-API-Key", "invented"); status != 401 {
		t.Errorf("an invented key: status %d", status)
	}
}

func TestLogin(t *testing.T) {
	url := "http://" + run(t, "login") + "/login"
	try := func(user, password string) int {
		status, _ := do(t, "POST", url, "user="+user+"&password="+password, "Content-Type", "application/x-www-form-urlencoded")
		return status
	}
	anna := func(int) int { return try("anna", "guess") }
	want(t, anna, 401, 401, 401, 401, 401, 429, 429)
	want(t, func(int) int { return try("Anna", "open+sesame") }, 429)
	want(t, func(int) int { return try("ben", "open+sesame") }, 200, 200, 200, 200, 200, 200, 200)
	want(t, func(int) int { return try("", "guess") }, 400)
	want(t, func(i int) int { return try(string(rune('a'+i)), "guess") }, 401, 401, 401, 401, 401, 429) // of the address
}

func TestTokens(t *testing.T) {
	url := "http://" + run(t, "tokens") + "/complete"
	if status, left := do(t, "POST", url, "", "X-User", "anna"); status != 200 || !strings.Contains(left, ";r=600;") {
		t.Errorf("the first request: %d, %s", status, left)
	}
	for range 1000 { // each uses one token at least
		if status, _ := do(t, "POST", url, "", "X-User", "anna"); status == 429 {
			return
		}
	}
	t.Error("the budget has no end")
}

func TestUpload(t *testing.T) {
	url := "http://" + run(t, "upload") + "/upload"
	file := strings.Repeat("x", 40_000_000)
	var left string
	want(t, func(int) (status int) {
		status, left = do(t, "PUT", url, file)
		return status
	}, 200, 200, 429)
	if !strings.HasPrefix(left, `"uploads";r=22;`) {
		t.Errorf("RateLimit: %s", left)
	}
}

func TestSockets(t *testing.T) {
	t.Parallel()
	try := func(address, user string) (*websocket.Conn, error) {
		conn, response, err := websocket.DefaultDialer.Dial("ws://"+address+"/ws", http.Header{"X-User": {user}})
		if response != nil {
			response.Body.Close()
		}
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return conn, err
	}
	dial := func(address, user string) *websocket.Conn {
		t.Helper()
		conn, err := try(address, user)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	servers := shared(t, "sockets", func(address string) { dial(address, "ben of "+address).Close() })
	first := dial(servers[0], "anna")
	time.Sleep(time.Second) // ages are accurate to the round trip of a query
	second := dial(servers[1], "anna")
	third, err := try(servers[2], "anna")
	if err == nil {
		t.Error("a socket of less than ten seconds was closed for a newer one")
	}
	for err != nil && t.Context().Err() == nil {
		time.Sleep(500 * time.Millisecond)
		third, err = try(servers[2], "anna")
	}
	for _, conn := range []*websocket.Conn{first, second, third} {
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := first.ReadMessage(); !websocket.IsCloseError(err, websocket.ClosePolicyViolation) {
		t.Errorf("the oldest socket: %v", err)
	}
	for _, conn := range []*websocket.Conn{second, third} {
		if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, text, err := conn.ReadMessage(); err != nil || string(text) != "hello" {
			t.Errorf("a younger socket: %q, %v", text, err)
		}
	}
}

func TestOperate(t *testing.T) {
	document, err := os.ReadFile("operate/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "limits.yaml")
	write := func(text string) {
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(string(document))
	operators := newAddress(t)
	address := run(t, "operate", "-limits", file, "-operators", operators)
	ask := func(int) int {
		status, _ := do(t, "GET", "http://"+address+"/", "")
		return status
	}
	want(t, ask, 200, 200, 200, 200, 200, 429)
	write(strings.ReplaceAll(string(document), "5/minute", "50/minute"))
	for ask(0) != 200 {
		time.Sleep(100 * time.Millisecond)
	}
	for path, text := range map[string]string{"/": "127.0.0.1", "/metrics": `result="refused"`} {
		response, err := http.Get("http://" + operators + path)
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !strings.Contains(string(page), text) {
			t.Errorf("%s does not say who was refused: %v\n%s", path, err, page)
		}
	}
}
