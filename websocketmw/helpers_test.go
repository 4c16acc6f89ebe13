package websocketmw

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// A counter is a store of slots that counts calls. It can fail, and lose slots.
type counter struct {
	store.Noticer

	mu                       sync.Mutex
	asked, granted, released int
	err                      error
	lost                     chan struct{}
	source                   core.Source

	doubt   chan struct{}
	surplus int // so many slots are shed
	sheds   int // how often that was asked for
	unknown int // so many times there is no answer
}

type countedHold struct {
	store.Hold

	c    *counter
	lost chan struct{}
}

func (c *counter) AcquireSlots(ctx context.Context, claims []store.Claim) (store.Grant, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.err != nil {
		return store.Grant{}, c.err
	}
	g, err := c.Noticer.AcquireSlots(ctx, claims)
	if err == nil {
		c.granted++
		g.Hold = &countedHold{g.Hold, c, c.lost}
		if c.source != 0 {
			g.Source = c.source
		}
	}
	return g, err
}

func (h *countedHold) Release() {
	h.c.mu.Lock()
	h.c.released++
	h.c.mu.Unlock()
	h.Hold.Release()
}

func (h *countedHold) Lost() <-chan struct{} { return h.lost }

func (h *countedHold) Doubt() <-chan struct{} {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	return h.c.doubt
}

func (h *countedHold) Shed(context.Context) (bool, error) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.c.sheds++
	switch {
	case h.c.unknown > 0:
		h.c.unknown--
		return false, core.ErrUnavailable
	case h.c.surplus > 0:
		h.c.surplus--
		h.c.released++
		h.Hold.Release()
		return true, nil
	}
	return false, nil
}

// doubts makes the store tell of a doubt, with so many slots too many.
func (c *counter) doubts(surplus int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.doubt)
	c.doubt, c.surplus = make(chan struct{}), surplus
}

func (c *counter) counts() (asked, granted, released int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.granted, c.released
}

// A world is a guard in front of a handler on a server.
type world struct {
	t      *testing.T
	store  *counter
	slots  *core.Slots
	guard  *Guard
	server *httptest.Server
	events chan Event
}

// newWorld starts the server. All clients share the limit. At the end of the test, as many
// slots must have been released as granted.
func newWorld(t *testing.T, limit int64, secure bool, config Config, handler http.Handler) *world {
	t.Helper()
	w := &world{t: t, store: &counter{Noticer: memstore.New(memstore.Config{})}, events: make(chan Event, 1000)}
	var err error
	if w.slots, err = core.NewSlots(w.store, "ws", limit); err != nil {
		t.Fatal(err)
	}
	if config.Rules == nil {
		config.Rules = []nethttp.Rule{{Slots: w.slots, Key: keyfuncs.Everyone()}}
	}
	also := config.Notify
	config.Notify = func(s *Socket, e Event) {
		if also != nil {
			also(s, e)
		}
		w.events <- e
	}
	if w.guard, err = New(config); err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewUnstartedServer(w.guard.Handler(handler))
	w.server.Config.ErrorLog = discard
	if secure {
		w.server.StartTLS()
	} else {
		w.server.Start()
	}
	t.Cleanup(func() {
		w.server.Close()
		if err := w.guard.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		<-w.guard.fleet.Empty()
		if _, granted, released := w.store.counts(); granted != released {
			t.Errorf("%d slots granted, %d released", granted, released)
		}
	})
	return w
}

// newGuard returns a guard for one socket.
func newGuard(t *testing.T, config Config) *Guard {
	t.Helper()
	return newGuardFor(t, config, 1)
}

func newGuardFor(t *testing.T, config Config, limit int64) *Guard {
	t.Helper()
	config.Rules = []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", limit), Key: keyfuncs.Everyone()}}
	g, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// until waits for an event of a kind.
func (w *world) until(kind EventKind) {
	w.t.Helper()
	for e := range w.events {
		if e.Kind == kind {
			return
		}
	}
}

// held returns the number of slots that are held.
func (w *world) held() int64 {
	w.t.Helper()
	key, _ := keyfuncs.Everyone()(nil)
	n, err := w.slots.Count(context.Background(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

const handshakeText = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// A peer is a client that reads and writes bytes.
type peer struct {
	t *testing.T
	net.Conn
	in       *bufio.Reader
	response *http.Response
}

// dial connects and sends text.
func (w *world) dial(text string) *peer {
	w.t.Helper()
	address := w.server.Listener.Addr().String()
	var c net.Conn
	var err error
	if w.server.TLS != nil {
		c, err = tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	} else {
		c, err = net.Dial("tcp", address)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	p := &peer{t: w.t, Conn: c, in: bufio.NewReader(c)}
	p.send([]byte(text))
	return p
}

// open sends an upgrade and reads the response.
func (w *world) open() *peer {
	w.t.Helper()
	p := w.dial(handshakeText)
	p.respond()
	return p
}

func (p *peer) respond() *http.Response {
	p.t.Helper()
	var err error
	if p.response, err = http.ReadResponse(p.in, nil); err != nil {
		p.t.Fatal(err)
	}
	return p.response
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// frame reads a frame of the server.
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

// closes reads up to the Close frame and returns its code and reason, such as "1001 reason",
// or "error".
func (p *peer) closes() string {
	for {
		op, payload, err := p.frame()
		switch {
		case err != nil:
			return "error"
		case op == 0x8: // Close
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

// pieces returns a stream in pieces of the given lengths, repeated.
func pieces(stream []byte, cuts []int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := 0; len(stream) > 0; i++ {
			n := len(stream)
			if len(cuts) > 0 {
				n = min(n, max(1, cuts[i%len(cuts)]))
			}
			if !yield(stream[:n]) {
				return
			}
			stream = stream[n:]
		}
	}
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

// socketOf returns the socket of a verdict, or nil.
func socketOf(v nethttp.Verdict) *Socket {
	a, _ := v.Attempt().(*attempt)
	if a == nil {
		return nil
	}
	return a.socket
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

// serve upgrades for a client that answers a Close frame.
func serve(v nethttp.Verdict) {
	a := &answering{closes: make(chan struct{})}
	v.Serve(a, upgradeRequest(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := take(w)
		s, _ := FromContext(r.Context())
		go func() {
			select {
			case <-a.closes:
				c.Close()
			case <-s.Done():
			}
		}()
	}))
}
