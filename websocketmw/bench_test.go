package websocketmw

import (
	"bufio"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
)

func benchGuard(t testing.TB, config Config) *Guard {
	config.Rules = atMost(core.NoLimit)
	return mustNew(t, config)
}

func configs() map[string]Config {
	l := core.NewLimiter(new(core.MemoryStore), "sent", core.TokenBucket(1_000_000, time.Second).Burst(100_000_000))
	return map[string]Config{"Default": {}, "MaxIdle": {MaxIdle: time.Hour}, "Inbound": {Messages: []Inbound{{Limiter: l}}}}
}

// idle is a connection that does no work: every read returns the same frame.
type idle struct {
	net.Conn

	frame []byte
}

func (c *idle) Read(p []byte) (int, error)  { return copy(p, c.frame), nil }
func (c *idle) Write(p []byte) (int, error) { return len(p), nil }
func (c *idle) Close() error                { return nil }

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
	for name, config := range configs() {
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
	return o.conn, bufio.NewReadWriter(o.in, o.out), nil
}

// A socket from upgrade to end, without a network.
func BenchmarkUpgrade(b *testing.B) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		c.Close()
	})
	r := upgradeRequest()
	busy := benchGuard(b, Config{}) // which has a socket already, and listens
	var open net.Conn
	busy.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { open, _ = take(w) })).ServeHTTP(newOnIdle(nil), r)
	defer func() { open.Close() }()
	for name, handler := range map[string]http.Handler{"Bare": h, "Guard": benchGuard(b, Config{}).Handler(h), "Busy": busy.Handler(h)} {
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
	for name, config := range map[string]Config{"Default": {}, "MaxIdle": {MaxIdle: time.Hour}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(bytesOfASocket(b, config, 20_000), "bytes/socket")
			}
		})
	}
}

// An open socket takes at most 720 bytes, and 850 with MaxIdle, which has a timer.
func TestMemory(t *testing.T) {
	for _, c := range []struct {
		config Config
		most   float64
	}{{Config{}, 720}, {Config{MaxIdle: time.Hour}, 850}} {
		n := math.Inf(1)
		for range 3 { // other tests may still be ending something
			n = min(n, bytesOfASocket(t, c.config, 10_000))
		}
		if n > c.most {
			t.Errorf("%.0f bytes, not %.0f, with MaxIdle %v", n, c.most, c.config.MaxIdle)
		}
	}
}

func bytesOfASocket(t testing.TB, config Config, sockets int) float64 {
	g := benchGuard(t, config)
	conns := make([]net.Conn, 0, sockets)
	h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		conns = append(conns, c)
	}))
	r, bare := upgradeRequest(), newOnIdle(nil)
	before := heap()
	for range sockets {
		h.ServeHTTP(bare, r)
	}
	after := heap()
	for _, c := range conns {
		c.Close()
	}
	return float64(after-before) / float64(sockets)
}

// heap returns the bytes in use. Collections go on until they find nothing more: what has a cleanup takes several.
func heap() uint64 {
	var m runtime.MemStats
	for last := uint64(math.MaxUint64); ; last = m.HeapAlloc {
		runtime.GC()
		if runtime.ReadMemStats(&m); m.HeapAlloc >= last {
			return m.HeapAlloc
		}
	}
}
