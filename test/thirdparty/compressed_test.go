package thirdparty

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	coder "github.com/coder/websocket"
	gorillaws "github.com/gorilla/websocket"
	"github.com/lxzan/gws"

	"github.com/headgate/headgate/websocketmw"
)

// A gwsEcho sends messages back.
type gwsEcho struct{ gws.BuiltinEventHandler }

func (gwsEcho) OnMessage(c *gws.Conn, m *gws.Message) {
	defer m.Close()
	_ = c.WriteMessage(m.Opcode, m.Bytes())
}

// Compressed messages pass, if the server agrees to permessage-deflate, and their first frames
// have RSV1.
func TestCompressed(t *testing.T) {
	t.Parallel()
	message := strings.Repeat("compressed ", 5000)
	for name, serve := range map[string]http.HandlerFunc{
		"gorilla": func(w http.ResponseWriter, r *http.Request) {
			u := gorillaws.Upgrader{EnableCompression: true}
			if c, err := u.Upgrade(w, r, nil); err == nil {
				answer(gorillaSocket{c})
			}
		},
		"coder": func(w http.ResponseWriter, r *http.Request) {
			c, err := coder.Accept(w, r, &coder.AcceptOptions{CompressionMode: coder.CompressionContextTakeover})
			if err == nil {
				c.SetReadLimit(-1)
				answer(coderSocket{c})
			}
		},
		"gws": func(w http.ResponseWriter, r *http.Request) {
			u := gws.NewUpgrader(gwsEcho{}, &gws.ServerOption{PermessageDeflate: gws.PermessageDeflate{Enabled: true}})
			if c, err := u.Upgrade(w, r); err == nil {
				c.ReadLoop()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(guard(t, websocketmw.Config{Messages: unlimited(), Bytes: unlimited()}).Handler(serve))
			defer server.Close()
			d := gorillaws.Dialer{EnableCompression: true, WriteBufferSize: 64} // of many fragments
			c, response, err := d.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := response.Header.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(got, "permessage-deflate") {
				t.Fatalf("the server agreed to %q", got)
			}
			for range 3 {
				if err := c.WriteMessage(gorillaws.TextMessage, []byte(message)); err != nil {
					t.Fatal(err)
				}
				if _, got, err := c.ReadMessage(); err != nil || string(got) != message {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
}
