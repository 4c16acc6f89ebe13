package exampletest

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// Fleet tests two servers of the API of examples/gin or examples/echo, with one Redis and behind
// one nginx.
func Fleet(t *testing.T, routes func(*redisstore.Store, keyfuncs.Func) (http.Handler, *websocketmw.Guard)) {
	t.Helper()
	nginx, redis := NewNginx(t), redistest.Start(t)
	address := keyfuncs.XForwardedFor(nginx.Addr)
	var guards []*websocketmw.Guard
	var addrs []string
	for range 2 {
		store, err := redisstore.Open("redis://"+redis.Addr()+"/0", redisstore.Config{
			Failure: redisstore.FailClosed,             // no test should pass because Redis was slow,
			Timeout: time.Minute, SlotTTL: time.Minute, // nor fail because the machine is busy
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Client().Close() })
		handler, sockets := routes(store, address)
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		guards, addrs = append(guards, sockets), append(addrs, server.Listener.Addr().String())
	}
	nginx.Serve(addrs...)

	send := func(from, method, path string, fields ...string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, nginx.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		response, err := nginx.Client(from).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	// Each address has ten requests a minute on both servers, whatever it says that it is.
	for i := range 22 {
		from := []string{"127.0.0.2", "127.0.0.3"}[i%2]
		want := 200
		if i >= 20 {
			want = 429
		}
		if got := send(from, "GET", "/api/hello", "X-Forwarded-For", "192.0.2."+strconv.Itoa(i)); got != want {
			t.Errorf("request %d of %s: %d, want %d", i/2+1, from, got, want)
		}
	}
	// Right passwords are free, and after three wrong ones none is read.
	for i, want := range []int{200, 401, 200, 401, 401, 429} {
		r := url.Values{"password": {"wrong"}}
		if want == 200 {
			r.Set("password", "open sesame")
		}
		response, err := nginx.Client("127.0.0.4").PostForm(nginx.URL+"/login", r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("login %d: %d, want %d", i+1, response.StatusCode, want)
		}
	}

	// Three sockets of a user on both servers.
	dial := func(token string) (*websocket.Conn, int) {
		t.Helper()
		conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(nginx.URL, "http")+"/api/echo",
			http.Header{"Authorization": {"Bearer " + token}})
		if response == nil {
			t.Fatal(err)
		}
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return conn, response.StatusCode
	}
	var open []*websocket.Conn
	for i, want := range []int{101, 101, 101, 429} {
		conn, got := dial("token-of-ben")
		if got != want {
			t.Fatalf("socket %d: %d, want %d", i+1, got, want)
		}
		if conn != nil {
			open = append(open, conn)
		}
	}
	if _, got := dial("token-of-mallory"); got != 400 { // who has no key
		t.Errorf("a stranger's socket: %d", got)
	}
	if err := open[0].WriteMessage(websocket.TextMessage, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, message, err := open[0].ReadMessage(); err != nil || string(message) != "hi" {
		t.Errorf("%q, %v", message, err)
	}

	// When the servers stop, the sockets are told.
	stopped := make(chan error)
	for _, g := range guards {
		go func() { stopped <- g.Shutdown(t.Context()) }()
	}
	for _, conn := range open {
		if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseGoingAway) {
			t.Errorf("a socket ended with %v", err)
		}
	}
	for range guards {
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}
}
