package websocketmw

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

// Beginnings of what a client sends, each of which ends within a frame, or a message.
func halves() map[string][]byte {
	long := func(n ...byte) []byte { return append(append([]byte{0x82, 0xff}, n...), 1, 2, 3, 4, 'a', 'b') }
	return map[string][]byte{
		"nothing":                      {},
		"half a header":                {0x81},
		"half a length":                {0x81, 0xff, 0, 0, 0},
		"half a mask":                  {0x81, 0x85, 1, 2},
		"half a payload":               masked(0x81, "hello")[:8],
		"half a message":               masked(0x01, "hello"),
		"half a control frame":         masked(0x89, "ping")[:7],
		"half a Close frame":           masked(0x88, "\x03\xe8bye")[:7],
		"longer than its connection":   long(0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"a gigabyte, of which 2 bytes": long(0, 0, 0, 0, 0x40, 0, 0, 0),
	}
}

// Who stops within a frame has its slot until the connection ends, whoever ends it, and not
// longer: the client, silence, age, the server, or the next thing that it sends. The guard's
// Close frame is sent in any case.
func TestHalfFrames(t *testing.T) {
	ends := map[string]struct {
		config Config
		end    func(g *Guard, p *peer)
		want   string // the Close frame
	}{
		"the client": {Config{}, func(_ *Guard, p *peer) { p.Conn.Close() }, ""},
		"silence":    {Config{MaxIdle: time.Minute}, nil, "1001 nothing"},
		"age":        {Config{MaxAge: time.Minute}, nil, "1001 the socket is too old"},
		"Shutdown":   {Config{}, func(g *Guard, _ *peer) { go g.Shutdown(context.Background()) }, "1001 the server"},
	}
	for what, half := range halves() {
		for how, end := range ends {
			t.Run(what+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var read atomic.Int64
					end.config.Bytes = []Inbound{{Limiter: newLimiter(core.FixedWindow(100, time.Hour))}}
					end.config.Messages = []Inbound{{Limiter: newLimiter(core.FixedWindow(2, time.Hour))}}
					g, p := bubble(t, end.config, func(c net.Conn) {
						defer c.Close()
						for b := make([]byte, 100); ; {
							n, err := c.Read(b)
							if read.Add(int64(n)); err != nil {
								return
							}
						}
					})
					p.Write(half)
					synctest.Wait()
					if g.open() != 1 || read.Load() != int64(len(half)) {
						t.Errorf("%d sockets, %d of %d bytes are read", g.open(), read.Load(), len(half))
					}
					if end.end != nil {
						end.end(g, p)
					}
					if end.want != "" {
						if got := p.closes(); !strings.HasPrefix(got, end.want) {
							t.Errorf("%q, not %q", got, end.want)
						}
						if _, err := io.Copy(io.Discard, p.in); err != nil { // until the guard cuts it
							t.Error(err)
						}
					}
					synctest.Wait()
					if o, err := g.config.Rules[0].Slots.Count(t.Context(), everyone(t, g)); g.open() != 0 || o != 0 || err != nil {
						t.Errorf("%d sockets and %d slots are left: %v", g.open(), o, err)
					}
					p.Conn.Close()
				})
			})
		}
	}
}

// everyone is the key of all requests to a guard.
func everyone(t *testing.T, g *Guard) string {
	t.Helper()
	key, err := g.config.Rules[0].Key(upgradeRequest())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A frame that is longer than what a limit on bytes ever admits is cut off at the limit,
// however it is announcedAt.
func TestLongFramesEndAtTheLimit(t *testing.T) {
	for _, size := range []string{"\x7f\xff\xff\xff\xff\xff\xff\xff", "\x00\x00\x00\x00\x40\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x10\x00"} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 1000
			var read atomic.Int64
			_, p := bubble(t, Config{Bytes: []Inbound{{Limiter: newLimiter(core.FixedWindow(limit, time.Hour))}}}, func(c net.Conn) {
				defer c.Close()
				for b := make([]byte, 64); ; {
					n, err := c.Read(b)
					if read.Add(int64(n)); err != nil {
						return
					}
				}
			})
			go func() {
				_, _ = p.Write(append([]byte{0x82, 0xff}, size+"\x01\x02\x03\x04"...))
				for ; ; time.Sleep(time.Millisecond) {
					if _, err := p.Write(bytes.Repeat([]byte{'a'}, 100)); err != nil {
						return
					}
				}
			}()
			if got := p.closes(); !strings.HasPrefix(got, "1008 ") {
				t.Error(got)
			}
			time.Sleep(2 * closeTimeout)
			if header := 2 + 8 + 4; read.Load() != int64(header+limit) {
				t.Errorf("%d bytes were read, not %d", read.Load(), header+limit)
			}
			p.Close()
		})
	}
}
