package websocketmw

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// mustNew is New of a Config that has no fault.
func mustNew(t testing.TB, c Config) *Guard {
	t.Helper()
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// newGuard returns a guard for one socket.
func newGuard(t testing.TB, config Config) *Guard {
	t.Helper()
	config.Rules = atMost(1)
	return mustNew(t, config)
}

// atMost returns a rule for n sockets of all clients together.
func atMost(n int64) []Rule {
	return []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", n), Key: keyfuncs.Everyone()}}
}

// everyone is the key of all requests under atMost.
const everyone = "everyone"

func (g *Guard) open() int { return len(g.oldestFirst()) }

// held returns how many slots are held under atMost.
func (g *Guard) held(t testing.TB) int64 {
	t.Helper()
	n, err := g.config.Rules[0].Slots.Count(context.Background(), everyone)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (g *Guard) closeEach(code int, reason string) {
	for _, s := range g.oldestFirst() {
		s.Close(code, reason)
	}
}

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

// A pipe is a ResponseWriter whose connection is one end of a pipe, or another.
type pipe struct {
	silent

	conn   net.Conn
	early  string      // what the server has read already
	header http.Header // nil: it is discarded
	status int         // that is in the server's buffer
}

func (p *pipe) Header() http.Header {
	if p.header == nil {
		return p.silent.Header()
	}
	return p.header
}

func (p *pipe) WriteHeader(status int) { p.status = status }

func (p *pipe) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if _, ok := p.conn.(*recorded); ok {
		return p.conn, nil, nil // as of a server that is not net/http's
	}
	in := bufio.NewReader(io.MultiReader(strings.NewReader(p.early), p.conn))
	_, _ = in.Peek(len(p.early))
	out := bufio.NewWriter(p.conn)
	if p.status != 0 {
		_, _ = out.WriteString(response101)
	}
	return p.conn, bufio.NewReadWriter(in, out), nil
}

// A peer is a client that reads and writes bytes.
type peer struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

// dialPipe sends a request over a pipe. The server has read what is early with it.
func dialPipe(t testing.TB, h http.Handler, r *http.Request, early string) *peer {
	client, server := net.Pipe()
	go h.ServeHTTP(&pipe{conn: server, early: early}, r)
	return &peer{t: t, Conn: client, in: bufio.NewReader(client)}
}

// taken returns a handler that takes the connection, and gives it to serve.
func taken(serve func(net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		serve(c)
	}
}

func pipeTo(t testing.TB, g *Guard, serve func(net.Conn)) *peer {
	t.Helper()
	p := dialPipe(t, g.Handler(taken(serve)), upgradeRequest(), "")
	p.upgraded()
	return p
}

func bubble(t testing.TB, config Config, serve func(net.Conn)) (*Guard, *peer) {
	t.Helper()
	g := newGuard(t, config)
	return g, pipeTo(t, g, serve)
}

// upgraded reads the 101.
func (p *peer) upgraded() {
	p.t.Helper()
	if response, err := http.ReadResponse(p.in, nil); err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		p.t.Fatal(response, err)
	}
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

// masked returns a frame of a client. Nobody unmasks it.
func masked(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	return append(append(b, 1, 2, 3, 4), payload...)
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

// heard is what a handler read, and the error of its last read.
type heard struct {
	sums  frames.Tally
	bytes []byte
	err   error
	done  chan struct{}
}

// hears is a bubble whose handler reads to the end.
func hears(t testing.TB, config Config) (*Guard, *peer, *heard) {
	t.Helper()
	h := &heard{done: make(chan struct{})}
	g, p := bubble(t, config, h.listen)
	return g, p, h
}

func (h *heard) listen(c net.Conn) {
	defer close(h.done)
	defer c.Close()
	for b := make([]byte, 512); h.err == nil; {
		var n int
		n, h.err = c.Read(b)
		h.bytes = append(h.bytes, b[:n]...)
	}
	var found frames.List
	if agreed := frames.ExtensionsOf("any"); !found.Walk(new(frames.Inspector), h.bytes, agreed) {
		found.Continue(h.bytes, agreed, make([]frames.Frame, len(h.bytes)))
	}
	h.sums = found.Used
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

// A recorded connection keeps what is written. Nothing is read from it, and it may take its time to close, as TLS may.
type recorded struct {
	net.Conn

	closes   chan struct{} // nil: at once
	answered func()        // called after a Close frame; nil: nothing is
	library  net.Conn      // what the handler took, or garbage collection would end the socket

	mu      sync.Mutex
	written []byte
}

func (c *recorded) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, p...)
	if p[0] == 0x88 && c.answered != nil {
		go c.answered()
	}
	return len(p), nil
}

func (c *recorded) Close() error {
	if c.closes != nil {
		<-c.closes
	}
	return nil
}
func (c *recorded) keep(library net.Conn)            { c.library = library }
func (c *recorded) SetWriteDeadline(time.Time) error { return nil }
