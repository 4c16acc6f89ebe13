package websocketmw

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// newGuard returns a guard for one socket.
func newGuard(t testing.TB, config Config) *Guard {
	t.Helper()
	config.Rules = []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", 1), Key: keyfuncs.Everyone()}}
	g, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *Guard) open() int { return len(g.oldestFirst()) }

func (g *Guard) endAll() {
	for _, s := range g.oldestFirst() {
		_ = s.end()
	}
}

func upgradeRequest() *http.Request {
	r := httptest.NewRequest("GET", "/ws", nil)
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(name, value)
	}
	return r
}

// A silent ResponseWriter discards what it gets.
type silent struct{}

func (silent) Header() http.Header         { return http.Header{} }
func (silent) Write(p []byte) (int, error) { return len(p), nil }
func (silent) WriteHeader(int)             {}

// A pipe is a ResponseWriter whose connection is one end of a pipe.
type pipe struct {
	silent

	conn net.Conn
}

func (p *pipe) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return p.conn, bufio.NewReadWriter(bufio.NewReader(p.conn), bufio.NewWriter(p.conn)), nil
}

// A peer is a client that reads and writes bytes.
type peer struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

func bubble(t *testing.T, config Config, handler func(net.Conn)) (*Guard, *peer) {
	t.Helper()
	g := newGuard(t, config)
	return g, pipeTo(t, g, handler)
}

func pipeTo(t *testing.T, g *Guard, handler func(net.Conn)) *peer {
	t.Helper()
	client, server := net.Pipe()
	go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		handler(c)
	})).ServeHTTP(&pipe{conn: server}, upgradeRequest())
	p := &peer{t: t, Conn: client, in: bufio.NewReader(client)}
	if _, err := http.ReadResponse(p.in, nil); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) frame() (op byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.in, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1])
	switch n {
	case 126:
		var b [2]byte
		io.ReadFull(p.in, b[:])
		n = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		io.ReadFull(p.in, b[:])
		n = binary.BigEndian.Uint64(b[:])
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(p.in, payload)
	return head[0] & 0xf, payload, err
}

// closes reads up to the Close frame and returns its code and reason, or "error".
func (p *peer) closes() string {
	for {
		op, payload, err := p.frame()
		switch {
		case err != nil:
			return "error"
		case op == 0x8:
			return fmt.Sprintf("%d %s", binary.BigEndian.Uint16(payload), payload[2:])
		}
	}
}

// masked returns a frame of a client.
func masked(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = append(b, 0x80|126, byte(n>>8), byte(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	key := [4]byte{1, 2, 3, 4}
	b = append(b, key[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^key[i%4])
	}
	return b
}

const response101 = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

// take hijacks the connection like a library that writes the response itself.
func take(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter) {
	c, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	if _, err := io.WriteString(c, response101); err != nil {
		panic(err)
	}
	return c, rw
}

// heard is what a handler read.
type heard struct {
	sums frames.Tally
	err  error
	done chan struct{}
}

func (h *heard) listen(c net.Conn) {
	defer close(h.done)
	defer c.Close()
	var in frames.Inspector
	b := make([]byte, 512)
	for h.err == nil {
		var n int
		n, h.err = c.Read(b)
		var found frames.List
		if agreed := frames.ExtensionsOf("any"); !found.Walk(&in, b[:n], agreed) {
			found.Continue(b[:n], agreed, make([]frames.Frame, len(b)))
		}
		in = found.After
		for u, n := range found.Used {
			h.sums[u] += n
		}
	}
}

func newLimiter(policies ...core.Policy) *core.Limiter {
	return core.NewLimiter(new(core.MemoryStore), "sent", policies...)
}

func every(d time.Duration) core.Policy { return core.TokenBucket(1, d) }

// serveUntilClose closes the connection after a Close frame, as all libraries do.
func serveUntilClose(c net.Conn) {
	defer c.Close()
	var w frames.Walker
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		if closes, _ := w.Walk(b[:n]); closes || err != nil {
			return
		}
	}
}

var silentLogger = log.New(io.Discard, "", 0)

func tlsClient(conn net.Conn, server *httptest.Server) net.Conn {
	config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com" // as in the certificate
	return tls.Client(conn, config)
}

// An answering connection is one whose client answers a Close frame, and does nothing else.
type answering struct {
	silent

	closes chan struct{} // closed when the client got a Close frame
}

func (a *answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return answeringConn{nil, a}, nil, nil
}

type answeringConn struct {
	net.Conn

	client *answering
}

func (c answeringConn) Write(p []byte) (int, error) {
	if p[0] == 0x88 {
		close(c.client.closes)
	}
	return len(p), nil
}

func (answeringConn) Close() error                     { return nil }
func (answeringConn) SetWriteDeadline(time.Time) error { return nil }
