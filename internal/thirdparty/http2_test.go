package thirdparty

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headgate/headgate/websocketmw"
)

// An http2Client opens WebSockets over HTTP/2 (RFC 8441).
type http2Client struct {
	t      *testing.T
	framer *http2.Framer
	text   bytes.Buffer
	fields *hpack.Encoder
}

func newHTTP2Client(t *testing.T, address string) *http2Client {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &http2Client{t: t, framer: http2.NewFramer(conn, conn)}
	c.fields = hpack.NewEncoder(&c.text)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	io.WriteString(conn, http2.ClientPreface)
	c.framer.WriteSettings()
	settings, _ := c.read(0).(*http2.SettingsFrame)
	if v, ok := settings.Value(http2.SettingEnableConnectProtocol); !ok || v != 1 {
		t.Fatalf("the server offers no extended CONNECT: %v", settings)
	}
	c.framer.WriteSettingsAck()
	return c
}

// read returns the next frame of the stream with content.
func (c *http2Client) read(stream uint32) http2.Frame {
	c.t.Helper()
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			c.t.Fatal(err)
		}
		if _, ok := f.(*http2.WindowUpdateFrame); !ok && f.Header().StreamID == stream {
			return f
		}
	}
}

// connect sends an extended CONNECT, and returns the status and the RateLimit field.
func (c *http2Client) connect(stream uint32) (answer string) {
	c.t.Helper()
	c.text.Reset()
	for _, f := range [][2]string{
		{":method", "CONNECT"}, {":protocol", "websocket"}, {":scheme", "https"}, {":authority", "a.example"}, {":path", "/ws"},
	} {
		c.fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.text.Bytes(), EndHeaders: true})
	for _, f := range c.read(stream).(*http2.MetaHeadersFrame).Fields {
		if f.Name == ":status" || f.Name == "ratelimit" {
			answer += f.Value
		}
	}
	return answer
}

// A slot is held for as long as the stream of the WebSocket is open.
func TestHTTP2(t *testing.T) {
	const setting = "http2xconnect=1" // the server reads it when the process starts
	if os.Getenv("GODEBUG") != setting {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHTTP2$")
		cmd.Env = append(os.Environ(), "GODEBUG="+setting)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	direct := mount{"direct", func(g *websocketmw.Guard, h http.Handler) http.Handler { return g.Handler(h) }}
	s := newSite(t, direct, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc, b := http.NewResponseController(w), make([]byte, len("hello"))
		defer context.AfterFunc(r.Context(), func() { r.Body.Close() })()
		for rc.Flush(); ; rc.Flush() {
			if _, err := io.ReadFull(r.Body, b); err != nil {
				return
			}
			w.Write(b)
		}
	}), true, websocketmw.Config{})
	c := newHTTP2Client(t, s.server.Listener.Addr().String())

	if got := c.connect(1); got != `200"ws";r=0` {
		t.Error("the first socket:", got)
	}
	c.framer.WriteData(1, false, []byte("hello"))
	if data, ok := c.read(1).(*http2.DataFrame); !ok || string(data.Data()) != "hello" {
		t.Error("no echo:", data)
	}
	if got := c.connect(3); got != `429"ws";r=0` {
		t.Error("the second socket:", got)
	}
	c.framer.WriteData(1, true, nil)
	<-s.closed
	if got := c.connect(5); got != `200"ws";r=0` {
		t.Error("the slot was not released:", got)
	}
	if err := s.guard.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if got := c.connect(7); got != "503" {
		t.Error("after Shutdown:", got)
	}
	s.balanced()
}
