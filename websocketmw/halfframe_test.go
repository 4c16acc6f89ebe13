package websocketmw

import (
	"context"
	"io"
	"strings"
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

// Who stops within a frame has its slot until the connection ends, whoever ends it, and not longer: the client, silence,
// age or the server. The guard's Close frame is sent in any case.
func TestHalfFrames(t *testing.T) {
	ends := map[string]struct {
		config Config
		end    func(g *Guard, p *peer)
		want   string // the Close frame
	}{
		"the client": {Config{}, func(_ *Guard, p *peer) { p.Close() }, "error"},
		"silence":    {Config{MaxIdle: time.Minute}, func(*Guard, *peer) {}, "1001 nothing"},
		"age":        {Config{MaxAge: time.Minute}, func(*Guard, *peer) {}, "1001 the socket is too old"},
		"Shutdown":   {Config{}, func(g *Guard, _ *peer) { go g.Shutdown(context.Background()) }, "1001 the server"},
	}
	for what, half := range halves() {
		for how, end := range ends {
			synctest.Test(t, func(t *testing.T) {
				end.config.Bytes = []Inbound{{Limiter: newLimiter(core.FixedWindow(100, time.Hour))}}
				end.config.Messages = []Inbound{{Limiter: newLimiter(core.FixedWindow(2, time.Hour))}}
				g, p, h := hears(t, end.config)
				p.Write(half)
				synctest.Wait()
				if g.open() != 1 || g.held(t) != 1 || len(h.bytes) != len(half) {
					t.Errorf("%s, %s: %d sockets, %d of %d bytes are read", what, how, g.open(), len(h.bytes), len(half))
				}
				end.end(g, p)
				if got := p.closes(); !strings.HasPrefix(got, end.want) {
					t.Errorf("%s, %s: %q, not %q", what, how, got, end.want)
				}
				io.Copy(io.Discard, p.in) // until the guard cuts it
				if synctest.Wait(); g.open() != 0 || g.held(t) != 0 {
					t.Errorf("%s, %s: %d sockets and %d slots are left", what, how, g.open(), g.held(t))
				}
				p.Close()
			})
		}
	}
}
