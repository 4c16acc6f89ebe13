package websocketmw

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
)

// benchGuard returns a guard without a limit.
func benchGuard(b *testing.B, config Config) *Guard {
	b.Helper()
	slots, err := core.NewSlots(memstore.New(memstore.Config{}), "ws", core.NoLimit)
	if err != nil {
		b.Fatal(err)
	}
	config.Rules = []nethttp.Rule{{Slots: slots, Key: keyfuncs.Everyone()}}
	g, err := New(config)
	if err != nil {
		b.Fatal(err)
	}
	return g
}

// configs are the configurations that affect reads and writes.
func configs(b *testing.B) map[string]Config {
	l, err := core.New(memstore.New(memstore.Config{}), "sent", core.TokenBucket(core.PerSecond(1_000_000), 100_000_000))
	if err != nil {
		b.Fatal(err)
	}
	return map[string]Config{
		"NoCloseFrames": {NoCloseFrames: true},
		"Default":       {},
		"MaxIdle":       {MaxIdle: time.Hour},
		"Inbound":       {Inbound: []Inbound{{Limiter: l}}},
	}
}

// idle is a connection that does no work: every read returns the same frame.
type idle struct {
	net.Conn

	frame []byte
}

func (c *idle) Read(p []byte) (int, error)  { return copy(p, c.frame), nil }
func (c *idle) Write(p []byte) (int, error) { return len(p), nil }

// The cost of the wrapper itself, for a message of 100 bytes.
func BenchmarkConn(b *testing.B) {
	frame, answer := masked(0x82, strings.Repeat("x", 100)), append([]byte{0x82, 100}, make([]byte, 100)...)
	run := func(b *testing.B, c net.Conn) {
		p := make([]byte, 4096)
		b.Run("Read", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Read(p)
			}
		})
		b.Run("Write", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Write(answer)
			}
		})
	}
	b.Run("Bare", func(b *testing.B) { run(b, &idle{frame: frame}) })
	for name, config := range configs(b) {
		b.Run(name, func(b *testing.B) {
			g := benchGuard(b, config)
			g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				c, _ := take(w)
				defer c.Close()
				run(b, c)
			})).ServeHTTP(newOnIdle(frame), upgradeRequest())
		})
	}
}

type onIdle struct {
	silent

	conn *idle
	in   *bufio.Reader
	out  *bufio.Writer
}

func newOnIdle(frame []byte) *onIdle {
	return &onIdle{conn: &idle{frame: frame}, in: bufio.NewReader(nil), out: bufio.NewWriter(nil)}
}

func (o *onIdle) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return closable{o.conn}, bufio.NewReadWriter(o.in, o.out), nil
}

// closable is idle with Close.
type closable struct{ *idle }

func (closable) Close() error                     { return nil }
func (closable) SetDeadline(time.Time) error      { return nil }
func (closable) SetReadDeadline(time.Time) error  { return nil }
func (closable) SetWriteDeadline(time.Time) error { return nil }

// A million frames, in reads of 4 KiB, by the size of their payload, and with a limit that admits
// them.
func BenchmarkMillionFrames(b *testing.B) {
	const frames = 1_000_000
	l, err := core.New(memstore.New(memstore.Config{}), "sent", core.TokenBucket(core.PerSecond(1_000_000), 1_000_000_000))
	if err != nil {
		b.Fatal(err)
	}
	for name, config := range map[string]Config{"Default": {}, "Inbound": {Inbound: []Inbound{{Limiter: l}}}} {
		for _, size := range []int{1, 100, 1000} {
			frame := masked(0x82, strings.Repeat("x", size))
			each := max(1, 4096/len(frame))
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) {
				benchGuard(b, config).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					c, _ := take(w)
					defer c.Close()
					p := make([]byte, 4096)
					for b.Loop() {
						for range frames / each {
							_, _ = c.Read(p)
						}
					}
				})).ServeHTTP(newOnIdle([]byte(strings.Repeat(string(frame), each))), upgradeRequest())
			})
		}
	}
}

// A round trip of a message with gorilla, over the loopback.
func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{100, 16 << 10} {
		run := func(b *testing.B, wrap func(http.Handler) http.Handler) {
			up := websocket.Upgrader{}
			server := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c, err := up.Upgrade(w, r, nil)
				if err != nil {
					return
				}
				defer c.Close()
				for {
					kind, m, err := c.ReadMessage()
					if err != nil || c.WriteMessage(kind, m) != nil {
						return
					}
				}
			})))
			defer server.Close()
			c, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			m := make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := c.WriteMessage(websocket.BinaryMessage, m); err != nil {
					b.Fatal(err)
				}
				if _, _, err := c.ReadMessage(); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run("Bare/"+strconv.Itoa(size), func(b *testing.B) { run(b, func(h http.Handler) http.Handler { return h }) })
		for name, config := range configs(b) {
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) { run(b, benchGuard(b, config).Handler) })
		}
	}
}

// A socket from upgrade to end, without a network.
func BenchmarkUpgrade(b *testing.B) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		c.Close()
	})
	r := upgradeRequest()
	for name, handler := range map[string]http.Handler{"Bare": h, "Guard": benchGuard(b, Config{}).Handler(h)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			on := newOnIdle(nil)
			for b.Loop() {
				handler.ServeHTTP(on, r)
			}
		})
	}
}

// The memory of an open socket: bytes/socket.
func BenchmarkMemory(b *testing.B) {
	const sockets = 20_000
	for name, config := range map[string]Config{"Default": {}, "MaxIdle": {MaxIdle: time.Hour}, "Server": {MaxIdle: time.Hour, Server: "a"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				g := benchGuard(b, config)
				conns := make([]net.Conn, 0, sockets)
				h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					c, _, _ := w.(http.Hijacker).Hijack()
					io.WriteString(c, response101)
					conns = append(conns, c)
				}))
				r := upgradeRequest()
				bare := newOnIdle(nil)
				before := heap()
				for range sockets {
					h.ServeHTTP(bare, r)
				}
				after := heap()
				b.ReportMetric(float64(after-before)/sockets, "bytes/socket")
				for _, c := range conns {
					c.Close()
				}
			}
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
