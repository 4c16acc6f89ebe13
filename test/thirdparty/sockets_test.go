package thirdparty

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/headgate/headgate/contrib/echov5mw"
	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/echomw"
	"github.com/headgate/headgate/ginmw"
	"github.com/headgate/headgate/internal/backend"
	"github.com/headgate/headgate/internal/slots"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw"
)

// A mount is a way to put the guard in front of a handler, at /ws.
type mount struct {
	name  string
	serve func(g *websocketmw.Guard, h http.Handler) http.Handler
}

var mounts = []mount{
	{"nethttp", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/ws", g.Handler(h))
		return mux
	}},
	{"chi", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		r := chi.NewRouter()
		r.With(g.Handler).Handle("/ws", h)
		return r
	}},
	{"gin", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		r := gin.New()
		r.Any("/ws", ginmw.Middleware(g), gin.WrapH(h))
		return r
	}},
	{"gin-by", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		r := gin.New()
		r.Use(ginmw.Middleware(g))
		r.Any("/ws", gin.WrapH(h))
		return r
	}},
	{"gin-inside", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		r := gin.New()
		r.Any("/ws", gin.WrapH(g.Handler(h)))
		return r
	}},
	{"echo", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		e := echo4.New()
		e.Any("/ws", echo4.WrapHandler(h), echomw.Middleware(g))
		return e
	}},
	{"echo-by", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		e := echo4.New()
		e.Use(echomw.Middleware(g))
		e.Any("/ws", echo4.WrapHandler(h))
		return e
	}},
	{"echov5", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		e := echo5.New()
		e.Any("/ws", echo5.WrapHandler(h), echov5mw.Middleware(g))
		return e
	}},
	{"echov5-by", func(g *websocketmw.Guard, h http.Handler) http.Handler {
		e := echo5.New()
		e.Use(echov5mw.Middleware(g))
		e.Any("/ws", echo5.WrapHandler(h))
		return e
	}},
}

// A tally counts what a store of slots grants and gets back.
type tally struct {
	slots.Registry

	granted, released atomic.Int64
}

type tallied struct {
	slots.Hold

	t *tally
}

func (t *tally) Acquire(ctx context.Context, c slots.Acquisition) (slots.Grant, error) {
	g, err := t.Registry.Acquire(ctx, c)
	if err == nil {
		t.granted.Add(1)
		g.Hold = tallied{g.Hold, t}
	}
	return g, err
}

func (h tallied) Release() {
	h.t.released.Add(1)
	h.Hold.Release()
}

// A site is a server with one library under one mount.
type site struct {
	t      *testing.T
	store  *tally
	slots  *core.Slots
	guard  *websocketmw.Guard
	server *httptest.Server
	closed chan error // a socket has ended, why
	over   atomic.Int64
	secure bool
}

func newSite(t *testing.T, m mount, h http.Handler, secure bool, config websocketmw.Config) *site {
	t.Helper()
	memory := new(core.MemoryStore)
	s := &site{t: t, store: &tally{Registry: memory.Backend().Slots}, closed: make(chan error, 1000), secure: secure}
	if config.Rules == nil {
		config.Rules = make([]websocketmw.Rule, 1)
	}
	s.slots = core.NewSlots(tallies{s.store}, "ws", 1)
	config.Rules[0].Slots, config.Rules[0].Key = s.slots, keyfuncs.Everyone()
	config.OnClosed = func(_ *websocketmw.Socket, err error) {
		s.over.Add(1)
		s.closed <- err
	}
	var err error
	if s.guard, err = websocketmw.New(config); err != nil {
		t.Fatal(err)
	}
	s.server = httptest.NewUnstartedServer(m.serve(s.guard, h))
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.server.StartTLS()
	} else {
		s.server.Start()
	}
	t.Cleanup(s.server.Close)
	return s
}

type tallies struct{ t *tally }

func (s tallies) Backend() *backend.Stores { return &backend.Stores{Slots: s.t} }

// balanced fails unless all slots that were granted have been released.
func (s *site) balanced() {
	s.t.Helper()
	if granted, released := s.store.granted.Load(), s.store.released.Load(); granted != released || s.over.Load() != granted {
		s.t.Errorf("%d slots granted, %d released, %d sockets ended", granted, released, s.over.Load())
	}
}

// A caller is a client that reads and writes bytes.
type caller struct {
	net.Conn

	in *bufio.Reader
}

// call sends a handshake and returns the response.
func (s *site) call(fields ...string) (*caller, *http.Response) {
	s.t.Helper()
	c := s.send(fields...)
	response, _ := http.ReadResponse(c.in, nil) // nil if the library just hangs up
	return c, response
}

// send sends a handshake.
func (s *site) send(fields ...string) *caller {
	s.t.Helper()
	address := s.server.Listener.Addr().String()
	var c net.Conn
	var err error
	if s.secure {
		c, err = tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	} else {
		c, err = net.Dial("tcp", address)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	request := "GET /ws HTTP/1.1\r\nHost: " + address + "\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	if len(fields) == 0 {
		fields = []string{"Upgrade: websocket", "Origin: http://" + address}
	}
	if _, err := io.WriteString(c, request+strings.Join(fields, "\r\n")+"\r\n\r\n"); err != nil {
		s.t.Fatal(err)
	}
	return &caller{c, bufio.NewReader(c)}
}

// write sends a masked frame.
func (c *caller) write(first byte, payload string) error {
	key := [4]byte{5, 6, 7, 8}
	b := append([]byte{first, 0x80 | byte(len(payload))}, key[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^key[i%4])
	}
	_, err := c.Write(b)
	return err
}

// read returns the opcode and the payload of a frame of the server.
func (c *caller) read() (op byte, payload string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return 0, "", err
	}
	n := int(head[1])
	if n == 126 {
		var long [2]byte
		io.ReadFull(c.in, long[:])
		n = int(binary.BigEndian.Uint16(long[:]))
	}
	b := make([]byte, n)
	_, err = io.ReadFull(c.in, b)
	return head[0] & 0xf, string(b), err
}

// With every library under every mount, all slots are released, however the sockets end.
func TestSockets(t *testing.T) {
	t.Parallel()
	for _, l := range libraries {
		for _, m := range mounts {
			for _, secure := range []bool{false, true} {
				name := l.name + "/" + m.name
				if secure {
					name += "/tls"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					for _, story := range stories {
						if story.keeps && l.closes || story.forgets && l.leaks {
							continue
						}
						t.Run(story.name, func(t *testing.T) {
							config := websocketmw.Config{}
							if story.counts {
								config.Messages, config.Bytes = unlimited(), unlimited()
							}
							s := newSite(t, m, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
								l.upgrade(w, r, story.serve)
							}), secure, config)
							story.run(s)
							s.balanced()
						})
					}
				})
			}
		}
	}
}

func unlimited() []websocketmw.Inbound {
	return []websocketmw.Inbound{{Limiter: core.NewLimiter(new(core.MemoryStore), "sent", core.Unlimited())}}
}

// A socket of any library, to the stories.
type socket interface {
	Read() (string, error)
	Write(s string) error
	Close() error
}

func answer(s socket) {
	defer s.Close()
	for {
		m, err := s.Read()
		if err != nil || s.Write(m) != nil {
			return
		}
	}
}

// stories are what handlers do after the upgrade, and what happens.
var stories = []struct {
	name    string
	keeps   bool // the socket outlives the handler
	forgets bool // the socket is garbage
	counts  bool // the guard counts what is sent
	serve   func(socket)
	run     func(s *site)
}{
	{name: "echo", serve: answer, run: func(s *site) {
		first, response := s.call()
		if response == nil || response.StatusCode != 101 {
			s.t.Fatal(response)
		}
		if _, second := s.call(); second.StatusCode != 429 || second.Header.Get("RateLimit") != `"ws";r=0` || second.Header.Get("Retry-After") == "" {
			s.t.Error(second)
		}
		hears(s.t, first)
		first.Close()
		<-s.closed
	}},
	{name: "served by a goroutine", keeps: true, serve: func(c socket) { go answer(c) }, run: func(s *site) {
		c, _ := s.call()
		hears(s.t, c)
		if s.store.released.Load() != 0 {
			s.t.Error("the slot was not kept")
		}
		c.Close()
		<-s.closed
	}},
	{name: "closed twice", serve: func(c socket) {
		c.Close()
		c.Close()
	}, run: func(s *site) {
		s.call()
		<-s.closed
	}},
	{name: "panic", serve: func(socket) { panic(http.ErrAbortHandler) }, run: func(s *site) {
		c, _ := s.call()
		<-s.closed
		if _, err := io.ReadAll(c.in); errors.Is(err, io.ErrNoProgress) {
			s.t.Error(err)
		}
	}},
	{name: "failed handshake", serve: func(c socket) { c.Close() }, run: func(s *site) {
		// gobwas and x/net refuse the list, the others the origin.
		_, response := s.call("Upgrade: h2c, websocket", "Origin: http://elsewhere.example")
		if response != nil && response.StatusCode < 400 {
			s.t.Error(response)
		}
		<-s.closed
		if c, response := s.call(); response.StatusCode != 101 {
			s.t.Error("the slot was not given back")
		} else {
			c.Close()
			<-s.closed
		}
	}},
	{name: "forgotten", keeps: true, forgets: true, serve: func(socket) {}, run: func(s *site) {
		s.call()
		for done := false; !done; {
			runtime.GC()
			select {
			case <-s.closed:
				done = true
			default:
				runtime.Gosched()
			}
		}
	}},
	{name: "invalid frames", counts: true, serve: answer, run: func(s *site) {
		for name, frame := range map[string]string{
			"2^62 bytes":              "\x82\xff\x40\x00\x00\x00\x00\x00\x00\x00maskbytes",
			"unmasked":                "\x81\x05hello",
			"reserved bits":           "\xf1\x85mask\x05\x04\x1f\x07\x02",
			"an unknown opcode":       "\x83\x85mask\x05\x04\x1f\x07\x02",
			"an unknown control":      "\x8b\x80mask",
			"a ping in pieces":        "\x09\x85mask\x05\x04\x1f\x07\x02",
			"a continuation of none":  "\x80\x85mask\x05\x04\x1f\x07\x02",
			"a Close frame of 1 byte": "\x88\x81maskx",
			"half a header":           "\x82\xff\x00",
		} {
			c, response := s.call()
			if response == nil || response.StatusCode != 101 {
				s.t.Errorf("before %s: %v", name, response)
				continue
			}
			io.WriteString(c, frame)
			c.Conn.(interface{ CloseWrite() error }).CloseWrite()
			io.ReadAll(c.in) // until the server closes
			<-s.closed
			s.balanced()
		}
	}},
	{name: "shutdown under a flood", serve: func(c socket) {
		go func() {
			for c.Write(strings.Repeat("flood ", 1000)) == nil {
			}
		}()
		answer(c)
	}, run: func(s *site) {
		c, _ := s.call()
		done := make(chan error)
		go func() { done <- s.guard.Shutdown(s.t.Context()) }()
		op, said, err := c.read()
		for ; op != 8 && err == nil; op, said, err = c.read() {
		}
		if err != nil || binary.BigEndian.Uint16([]byte(said)) != 1001 {
			s.t.Errorf("%q, %v", said, err)
		}
		c.write(0x88, said)
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}},
}

// hears checks that the socket echoes messages, whole and in fragments.
func hears(t *testing.T, c *caller) {
	t.Helper()
	c.write(0x81, "hello")
	if op, said, err := c.read(); op != 1 || said != "hello" || err != nil {
		t.Errorf("%d %q %v", op, said, err)
	}
	c.write(0x01, "in ")
	c.write(0x80, "pieces")
	_, said, err := c.read()
	if said == "in " { // x/net gives messages by the frame
		_, last, _ := c.read()
		said += last
	}
	if said != "in pieces" || err != nil {
		t.Errorf("%q %v", said, err)
	}
}
