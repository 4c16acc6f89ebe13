package websocketmw

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What a client sends after the guard closed its socket does not reach the handler, however it is cut: only the rest of
// the frame that had begun does, and the client's Close frame.
func TestNothingIsReadAfterClose(t *testing.T) {
	closes := masked(0x88, "\x03\xe8bye")
	after := slices.Concat(masked(0x01, strings.Repeat("x", 300)), masked(0x89, "ping"), masked(0x80, "y"), masked(0x8a, ""), closes, masked(0x88, ""), masked(0x81, "z"))
	for _, c := range []struct {
		begun  []byte
		before []int
	}{{masked(0x81, "hello"), []int{0, 1, 2, 4, 7, 11}}, {masked(0x81, ""), []int{3, 6}}} {
		for i := range 3 * len(c.before) {
			begun, before, size := c.begun, c.before[i/3], []int{1, 7, 500}[i%3]
			synctest.Test(t, func(t *testing.T) {
				g, p, h := hears(t, Config{})
				p.send(begun[:before])
				synctest.Wait()
				g.closeEach(4001, "banned")
				if got := p.closes(); got != "4001 banned" {
					t.Error(got)
				}
				want := slices.Concat(begun, closes)
				sent := slices.Concat(begun[before:], after)
				if before == 0 {
					want, sent = closes, after
				}
				for piece := range slices.Chunk(sent, size) {
					p.send(piece)
				}
				p.Close()
				if <-h.done; !bytes.Equal(h.bytes, want) {
					t.Errorf("%d bytes, then %d at once: %q, not %q", before, size, h.bytes, want)
				}
			})
		}
	}
	synctest.Test(t, func(t *testing.T) { // a frame that is longer than its connection
		long := []byte("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xffmaskpayload")
		g, p, h := hears(t, Config{})
		p.send(long[:10])
		synctest.Wait()
		g.closeEach(4001, "banned")
		p.closes()
		p.send(long[10:])
		p.Close()
		if <-h.done; !bytes.Equal(h.bytes, long) {
			t.Errorf("%q, not %q", h.bytes, long)
		}
	})
}

// The rest of a frame whose beginning was dropped is dropped too, whatever happens in between: the
// handler's read deadline passes, or it reads the client's Close frame.
func TestDroppedFrameIsCut(t *testing.T) {
	closes := masked(0x88, "\x03\xe8bye")
	whole := masked(0x82, "abc\x83\xffEVIL")
	half, rest := whole[:9], whole[9:]
	for name, sent := range map[string][]byte{"by a deadline": half, "behind a Close frame": slices.Concat(closes, half)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var read []byte
				g, p := bubble(t, Config{}, func(c net.Conn) {
					defer c.Close()
					for b, end := make([]byte, 64), time.Now().Add(closeTimeout); time.Now().Before(end); {
						_ = c.SetReadDeadline(time.Now().Add(time.Second))
						n, _ := c.Read(b)
						read = append(read, b[:n]...)
					}
				})
				g.closeEach(4001, "banned")
				p.closes()
				p.send(sent)
				time.Sleep(2 * time.Second) // deadlines pass
				p.send(rest)
				if !bytes.HasPrefix(sent, closes) {
					p.send(closes)
				}
				time.Sleep(closeTimeout) // the handler returns
				synctest.Wait()
				if !bytes.Equal(read, closes) {
					t.Errorf("%q, not %q", read, closes)
				}
			})
		})
	}
}

// A Close frame that RFC 6455 forbids does not reach the handler either, and a client that never answers is cut.
func TestNoAnswerToClose(t *testing.T) {
	for i, sent := range [][]byte{
		{0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4},
		masked(0x08, ""),
		masked(0x82, strings.Repeat("x", 1000)),
	} {
		synctest.Test(t, func(t *testing.T) {
			g, p, h := hears(t, Config{})
			g.closeEach(4001, "banned")
			p.closes()
			p.send(sent)
			time.Sleep(closeTimeout)
			synctest.Wait()
			if len(h.bytes) > 0 || g.open() != 0 || errors.Is(h.err, ErrProtocol) != (i < 2) {
				t.Errorf("%q, %d open, %v", h.bytes, g.open(), h.err)
			}
		})
	}
}

// What was sent before a client knew that the server shuts down is read. Who is evicted is heard no more.
func TestAllIsReadAfterLeaving(t *testing.T) {
	sent := slices.Concat(masked(0x81, "hello"), masked(0x88, ""))
	for cause, want := range map[error][]byte{ErrShutdown: sent, ErrEvicted: masked(0x88, "")} {
		synctest.Test(t, func(t *testing.T) {
			g, p, h := hears(t, Config{})
			g.oldestFirst()[0].close(cause, 1001, "")
			p.closes()
			p.send(sent)
			p.Close()
			if <-h.done; !bytes.Equal(h.bytes, want) {
				t.Errorf("%v: %q, not %q", cause, h.bytes, want)
			}
		})
	}
}
