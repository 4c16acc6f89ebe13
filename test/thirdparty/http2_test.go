package thirdparty

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/websocketmw"
)

// An http2Client opens WebSockets over HTTP/2 (RFC 8441).
type http2Client struct {
	t      *testing.T
	framer *http2.Framer
	text   bytes.Buffer
	fields *hpack.Encoder
	got    []byte // of the stream that was read last
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

// data returns the next n bytes of the stream.
func (c *http2Client) data(stream uint32, n int) string {
	c.t.Helper()
	for len(c.got) < n {
		f, _ := c.read(stream).(*http2.DataFrame)
		if f == nil || f.StreamEnded() {
			c.t.Fatalf("the stream has ended after %q", c.got)
		}
		c.got = append(c.got, f.Data()...)
	}
	data := c.got[:n]
	c.got = c.got[n:]
	return string(data)
}

// connect sends an extended CONNECT, and returns the status and the RateLimit field.
func (c *http2Client) connect(stream uint32) (answer string) {
	c.t.Helper()
	c.text.Reset()
	c.got = nil
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

// Under all mounts, a slot is held for as long as the stream of the WebSocket is open, and
// what limits a socket holds for it, too.
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
	for _, m := range mounts {
		t.Run(m.name+", of a client that does not read", func(t *testing.T) { stopReading(t, m) })
		for _, begins := range []string{"by Flush", "by WriteHeader", "by Write"} {
			t.Run(m.name+" "+begins, func(t *testing.T) {
				overHTTP2(t, m, func(w http.ResponseWriter, r *http.Request) { echoStream(w, r, begins) })
			})
		}
	}
}

const (
	hello    = "\x81\x85\x00\x00\x00\x00hello" // the mask is zero
	welcome  = "\x81\x07welcome"
	answered = "\x81\x05hello"
	closing  = "\x88\x80\x00\x00\x00\x00"
)

// echoStream is a handler that welcomes, and then echoes frames with hello.
func echoStream(w http.ResponseWriter, r *http.Request, begins string) {
	switch begins {
	case "by Flush":
		w.(http.Flusher).Flush()
	case "by WriteHeader":
		w.WriteHeader(http.StatusOK)
	}
	io.WriteString(w, welcome)
	rc, b := http.NewResponseController(w), make([]byte, len(hello))
	for rc.Flush(); ; rc.Flush() {
		if _, err := io.ReadFull(r.Body, b); err != nil {
			return
		}
		w.Write([]byte(answered))
	}
}

func overHTTP2(t *testing.T, m mount, h http.HandlerFunc) {
	s := newSite(t, m, h, true, websocketmw.Config{
		MaxIdle: time.Hour,
		Inbound: []websocketmw.Inbound{{Limiter: newLimiter(t, core.FixedWindow(core.PerHour(2)))}},
	})
	c := newHTTP2Client(t, s.server.Listener.Addr().String())
	expect := func(stream uint32, want string) {
		t.Helper()
		if got := c.data(stream, len(want)); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	open := func(stream uint32) {
		t.Helper()
		if got := c.connect(stream); got != `200"ws";r=0` {
			t.Fatal("the socket:", got)
		}
		expect(stream, welcome)
	}
	closed := func(stream uint32, code string) {
		t.Helper()
		head := c.data(stream, 2)
		if said := c.data(stream, int(head[1])); head[0] != 0x88 || said[:2] != code {
			t.Fatalf("%q %q", head, said)
		}
	}

	open(1)
	c.framer.WriteData(1, false, []byte(hello))
	expect(1, answered)
	if got := c.connect(3); got != `429"ws";r=0` {
		t.Error("the second socket:", got)
	}
	c.framer.WriteData(1, true, nil)
	<-s.closed

	open(5) // the slot was released
	for range 3 {
		c.framer.WriteData(5, false, []byte(hello))
	}
	expect(5, answered+answered)
	closed(5, "\x03\xf0") // 1008: one too many
	c.framer.WriteData(5, false, []byte(closing))
	<-s.closed

	open(7)
	c.framer.WriteData(7, false, []byte("\x83\x80\x00\x00\x00\x00"))
	closed(7, "\x03\xea") // 1002: there is no such frame
	c.framer.WriteData(7, true, []byte(closing))
	<-s.closed

	open(9)
	done := make(chan error)
	go func() { done <- s.guard.Shutdown(t.Context()) }()
	closed(9, "\x03\xe9") // 1001
	c.framer.WriteData(9, true, []byte(closing))
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := c.connect(11); got != "503" {
		t.Error("after Shutdown:", got)
	}
	s.balanced()

	s = newSite(t, m, h, true, websocketmw.Config{MaxIdle: time.Millisecond})
	c = newHTTP2Client(t, s.server.Listener.Addr().String())
	if got := c.connect(1); got != `200"ws";r=0` {
		t.Fatal("the socket:", got)
	}
	head := c.data(1, 2)
	if head == welcome[:2] { // unless it comes too late
		c.data(1, len(welcome)-2)
		head = c.data(1, 2)
	}
	if said := c.data(1, int(head[1])); head[0] != 0x88 || said[:2] != "\x03\xe9" { // 1001: silence
		t.Fatalf("%q %q", head, said)
	}
	c.framer.WriteData(1, true, []byte(closing))
	<-s.closed
	s.balanced()
}

func newLimiter(t *testing.T, p core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(memstore.New(memstore.Config{}), "sent", p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// stopReading has a client open a WebSocket and read nothing, and the server shut down at once.
func stopReading(t *testing.T, m mount) {
	begun := make(chan struct{})
	s := newSite(t, m, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).Flush()
		close(begun)
		for err := error(nil); err == nil; { // until the window is full, and then for ever
			_, err = io.WriteString(w, welcome)
		}
	}), true, websocketmw.Config{})
	c := newHTTP2Client(t, s.server.Listener.Addr().String())
	if got := c.connect(1); got != `200"ws";r=0` {
		t.Fatal("the socket:", got)
	}
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.guard.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-s.closed
	s.balanced()
}
