package conformance

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/test/conformance/scenes"
	"github.com/headgate/headgate/websocketmw"
)

// In shadow mode nothing is refused, and no field is set, under any framework.
func TestSocketsInShadow(t *testing.T) {
	for name, serve := range mounts {
		for _, key := range keysOf(name, keyfuncs.Everyone()) {
			slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 0)
			if err != nil {
				t.Fatal(err)
			}
			var observed []int
			guard, err := websocketmw.New(websocketmw.Config{
				Rules:       []nethttp.Rule{{Slots: slots, Key: key}},
				ObserveOnly: true,
				Observe:     func(_ *http.Request, v nethttp.Verdict) { observed = append(observed, v.Status()) },
			})
			if err != nil {
				t.Fatal(err)
			}
			h := serve(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, ok := websocketmw.FromContext(r.Context()); !ok {
					t.Errorf("%s: there is no socket", name)
				}
				w.Write([]byte("hello"))
			}))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, scenes.Upgrade("/"))
			if w.Code != 200 || w.Body.String() != "hello" || w.Header().Get("RateLimit-Policy") != "" || len(observed) != 1 || observed[0] != 429 || guard.Len() != 0 {
				t.Errorf("%s: %d %v %q, observed %d, %d sockets", name, w.Code, w.Header(), w.Body, observed, guard.Len())
			}
		}
	}
}

// What is refused, and what passes, looks the same under all frameworks.
func TestSockets(t *testing.T) {
	byPath := func(r *http.Request) (string, error) {
		switch r.URL.Path {
		case "/nobody":
			return "", keyfuncs.ErrAbsent
		case "/program":
			return "", keyfuncs.ErrProgram
		case "/v4":
			return "", echo4.NewHTTPError(401, "who are you")
		case "/v5":
			return "", echo5.NewHTTPError(401, "who are you")
		}
		return r.URL.Path, nil
	}
	limits := map[string]int64{"/one": 1, "/none": 0}
	const quota = `429 "ws";r=0 no-store application/problem+json {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["ws"]}`
	const noKey = `400 no-store application/problem+json {"type":"about:blank","title":"Bad Request","status":400}`
	for name, serve := range mounts {
		for _, key := range keysOf(name, byPath) {
			slots, err := core.NewSlotsFunc(memstore.New(memstore.Config{}), "ws", func(key string) int64 { return limits[key] })
			if err != nil {
				t.Fatal(err)
			}
			guard, err := websocketmw.New(websocketmw.Config{Rules: []nethttp.Rule{{Slots: slots, Key: key}}})
			if err != nil {
				t.Fatal(err)
			}
			h := serve(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if s, ok := websocketmw.FromContext(r.Context()); ok {
					if all := guard.Sockets("ws", r.URL.Path); len(all) != 1 || all[0] != s {
						t.Errorf("%s: the key has %d sockets", name, len(all))
					}
					w.Header().Set("X-Socket", "yes")
				}
				w.Write([]byte("hello"))
			}))
			for _, c := range []struct {
				r    *http.Request
				want string
			}{
				{httptest.NewRequest("GET", "/none", nil), `200  hello`},
				{scenes.Upgrade("/one"), `200 "ws";r=0 yes hello`},
				{scenes.Upgrade("/one"), `200 "ws";r=0 yes hello`}, // the first was given back
				{scenes.Upgrade("/none"), quota},
				{scenes.Upgrade("/nobody"), noKey},
				{scenes.Upgrade("/program"), `500 no-store application/problem+json {"type":"about:blank","title":"Internal Server Error","status":500}`},
				{scenes.Upgrade("/v4"), noKey},
				{scenes.Upgrade("/v5"), noKey},
			} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, c.r)
				head := w.Header()
				kind, _, _ := strings.Cut(head.Get("Content-Type"), "; ")
				if kind == "text/plain" {
					kind = ""
				}
				got := strings.Join(strings.Fields(strings.Join([]string{
					w.Result().Status[:3], head.Get("RateLimit"), head.Get("X-Socket"), head.Get("Cache-Control"), kind, w.Body.String(),
				}, " ")), " ")
				if want := strings.Join(strings.Fields(c.want), " "); got != want {
					t.Errorf("%s: %s\n%s, not\n%s", name, c.r.URL, got, want)
				}
				if (w.Code == 429) != (head.Get("Retry-After") != "") {
					t.Errorf("%s: %v", name, head)
				}
			}
			if guard.Len() != 0 {
				t.Errorf("%s: %d sockets are left", name, guard.Len())
			}
			if err := guard.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, scenes.Upgrade("/one")); w.Code != 503 || w.Header().Get("Retry-After") == "" {
				t.Errorf("%s: %d %v", name, w.Code, w.Header())
			}
		}
	}
}

// The ways in which libraries upgrade work under all frameworks, and the slot is held
// until the connection is closed.
func TestUpgrades(t *testing.T) {
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	upgrades := map[string]func(w http.ResponseWriter) (net.Conn, error){
		"by assertion": func(w http.ResponseWriter) (net.Conn, error) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, err = io.WriteString(conn, switching)
			}
			return conn, err
		},
		"by controller": func(w http.ResponseWriter) (net.Conn, error) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, err = io.WriteString(conn, switching)
			}
			return conn, err
		},
		"status first": func(w http.ResponseWriter) (net.Conn, error) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, _, err := http.NewResponseController(w).Hijack()
			return conn, err
		},
	}
	for framework, serve := range mounts {
		for way, upgrade := range upgrades {
			t.Run(framework+" "+way, func(t *testing.T) {
				slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", 1)
				if err != nil {
					t.Fatal(err)
				}
				guard, err := websocketmw.New(websocketmw.Config{Rules: []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone()}}})
				if err != nil {
					t.Fatal(err)
				}
				closing, done := make(chan struct{}), make(chan struct{})
				h := serve(guard, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
						t.Errorf("SetWriteDeadline: %v", err)
					}
					conn, err := upgrade(w)
					if err != nil {
						t.Error(err)
						return
					}
					<-closing
					conn.Close()
				}))
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(done)
					h.ServeHTTP(w, r)
				}))
				defer server.Close()
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
					"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
				reader := bufio.NewReader(conn)
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Fatal(err)
				}
				if response.StatusCode != 101 || guard.Len() != 1 {
					t.Errorf("status %d, %d sockets", response.StatusCode, guard.Len())
				}
				close(closing)
				if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
					t.Errorf("after the upgrade: %q, %v", rest, err)
				}
				<-done
				if guard.Len() != 0 {
					t.Errorf("%d sockets are left", guard.Len())
				}
			})
		}
	}
}

// Faults of the program panic where the middleware is made.
func TestSocketsPanics(t *testing.T) {
	for name, serve := range mounts {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "headgate: ") {
					t.Errorf("%s: panic %q", name, text)
				}
			}()
			serve((*websocketmw.Guard)(nil), http.NotFoundHandler())
		}()
	}
}
