package conformance

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

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
				slots := core.NewSlots(new(core.MemoryStore), "ws", 1)
				guard, err := websocketmw.New(websocketmw.Config{Rules: []websocketmw.Rule{{Slots: slots, Key: keyfuncs.Everyone()}}})
				if err != nil {
					t.Fatal(err)
				}
				held := func() int64 {
					n, err := slots.Count(t.Context(), "everyone")
					if err != nil {
						t.Error(err)
					}
					return n
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
				if response.StatusCode != 101 || held() != 1 {
					t.Errorf("status %d, %d held", response.StatusCode, held())
				}
				close(closing)
				if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
					t.Errorf("after the upgrade: %q, %v", rest, err)
				}
				<-done
				if n := held(); n != 0 {
					t.Errorf("%d are held", n)
				}
			})
		}
	}
}
