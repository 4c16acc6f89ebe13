package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
)

// start serves the routes.
func start(t *testing.T, store core.Store) string {
	t.Helper()
	chat, err := newChat(store)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(chat.routes())
	t.Cleanup(func() {
		if err := chat.guard.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return server.URL
}

// dial opens a socket of a user, as a program does or, with an origin, a browser.
func dial(t *testing.T, url, user, origin string) (*websocket.Conn, *http.Response) {
	t.Helper()
	header := make(http.Header)
	if user != "" {
		header.Set("Cookie", "user="+user)
	}
	if origin != "" {
		header.Set("Origin", origin)
	}
	conn, response, err := websocket.DefaultDialer.Dial(strings.Replace(url, "http", "ws", 1)+"/chat", header)
	if err != nil && !errors.Is(err, websocket.ErrBadHandshake) {
		t.Fatal(err)
	}
	if conn != nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, response
}

// hear waits for a text, whatever else is said before.
func hear(t *testing.T, conn *websocket.Conn, want string) {
	t.Helper()
	for {
		_, text, err := conn.ReadMessage()
		if err != nil {
			t.Fatalf("instead of %q: %v", want, err)
		}
		if string(text) == want {
			return
		}
	}
}

func closeOf(conn *websocket.Conn) string {
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			return err.Error()
		}
	}
}

func TestChat(t *testing.T) {
	url := start(t, new(core.MemoryStore))
	first, _ := dial(t, url, "ann", "")
	second, _ := dial(t, url, "ann", "")
	third, _ := dial(t, url, "ann", "")
	if _, response := dial(t, url, "ann", ""); response.StatusCode != 429 || response.Header.Get("Retry-After") == "" {
		t.Errorf("the fourth socket: %v", response)
	}
	if _, response := dial(t, url, "", ""); response.StatusCode != 400 {
		t.Errorf("nobody's socket: %v", response)
	}
	if _, response := dial(t, url, "ann", url); response.StatusCode != 429 {
		t.Errorf("a browser's fourth: %v", response)
	}
	// Who hears what he says himself is in the room. The 101 comes a moment earlier.
	for i, conn := range []*websocket.Conn{first, second, third} {
		said := fmt.Sprint("hello ", i)
		if err := conn.WriteMessage(websocket.TextMessage, []byte(said)); err != nil {
			t.Fatal(err)
		}
		hear(t, conn, said)
	}
	hear(t, first, "hello 2")
	hear(t, second, "hello 2")
	for range 50 {
		first.WriteMessage(websocket.TextMessage, []byte("flood"))
	}
	if got := closeOf(first); !strings.Contains(got, "1008") {
		t.Errorf("a flood: %s", got)
	}
}

// A user's sockets are counted, and closed together. Other users are not asked about.
func TestSignOut(t *testing.T) {
	url := start(t, new(core.MemoryStore))
	ask := func(method, path, user string) (status int, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Cookie", "user="+user)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(b)
	}
	first, _ := dial(t, url, "ann", "")
	second, _ := dial(t, url, "ann", "")
	other, _ := dial(t, url, "bob", "")
	if status, body := ask("GET", "/sockets", "ann"); status != 200 || body != "2\n" {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := ask("GET", "/sockets", ""); status != 403 {
		t.Error(status)
	}
	if status, body := ask("POST", "/signout", "ann"); status != 200 || body != "2\n" {
		t.Errorf("%d %s", status, body)
	}
	for _, conn := range []*websocket.Conn{first, second} {
		if got := closeOf(conn); !strings.Contains(got, "4010") {
			t.Error(got)
		}
	}
	if err := other.WriteMessage(websocket.TextMessage, []byte("I am here")); err != nil {
		t.Error(err)
	}
	hear(t, other, "I am here")
}

// A cookie is no proof: whoever has many names has one address.
func TestManyNames(t *testing.T) {
	url := start(t, new(core.MemoryStore))
	for i := range addressLimit {
		if conn, response := dial(t, url, fmt.Sprint("user", i), ""); conn == nil {
			t.Fatalf("socket %d: %v", i, response)
		}
	}
	if _, response := dial(t, url, "another", ""); response.StatusCode != 429 || !strings.HasPrefix(response.Header.Get("RateLimit"), `"address";r=0`) {
		t.Errorf("one too many: %v", response)
	}
}

func TestPage(t *testing.T) {
	response, err := http.Get(start(t, new(core.MemoryStore)) + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 200 || !strings.Contains(string(body), "new WebSocket(") || response.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("%s %v", response.Status, response.Header)
	}
	for _, text := range []string{"src=", "@import", "url(", `onclick="`} {
		if strings.Contains(string(body), text) {
			t.Errorf("the page has %s", text)
		}
	}
}

// Two servers, one limit.
func TestRedis(t *testing.T) {
	options := "redis://" + redistest.Start(t).Addr() + "/0"
	var urls []string
	for range 2 {
		store, err := newStore(options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.(*redisstore.Store).Client().Close() })
		urls = append(urls, start(t, store))
	}
	for i := range userLimit {
		if _, response := dial(t, urls[i%2], "ann", ""); response.StatusCode != 101 {
			t.Fatalf("socket %d: %s", i, response.Status)
		}
	}
	for _, url := range urls {
		if _, response := dial(t, url, "ann", ""); response.StatusCode != 429 {
			t.Errorf("the fourth socket: %s", response.Status)
		}
	}
}

// The program says where it listens, and closes its sockets when it is interrupted.
func TestProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "websocket")
	if runtime.GOOS == "windows" { // no process can send os.Interrupt there
		return
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"-redis", "localhost"}, {"8080"}} {
		var exit *exec.ExitError
		if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
	cmd := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(line, "Listening on ")
	url, _, _ := strings.Cut(rest, "/,")
	conn, _ := dial(t, url, "ann", "")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if got := closeOf(conn); !strings.Contains(got, "1001") {
		t.Error(got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
