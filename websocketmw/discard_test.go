package websocketmw

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What a client sends after the guard closed its socket does not reach the handler, however it is
// cut: only the rest of the frame that had begun does, and the client's Close frame.
func TestNothingIsReadAfterClose(t *testing.T) {
	begun := masked(0x81, "hello")
	closes := masked(0x88, "\x03\xe8bye")
	after := slices.Concat(masked(0x01, strings.Repeat("x", 300)), masked(0x89, "ping"), masked(0x80, "y"), masked(0x8a, ""), closes, masked(0x88, ""), masked(0x81, "z"))
	for _, before := range []int{0, 1, 2, 4, 7, len(begun)} {
		for _, size := range []int{1, 7, 500} {
			t.Run(fmt.Sprintf("%d bytes, then %d at once", before, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var read []byte
					g, p := bubble(t, Config{}, func(c net.Conn) {
						defer c.Close()
						for b := make([]byte, 64); ; {
							n, err := c.Read(b)
							if read = append(read, b[:n]...); err != nil || len(read) > 0 && bytes.HasSuffix(read, closes) {
								return
							}
						}
					})
					p.send(begun[:before])
					synctest.Wait()
					for _, s := range g.oldestFirst() {
						s.Close(4001, "banned")
					}
					if got := p.closes(); got != "4001 banned" {
						t.Error(got)
					}
					rest := begun[before:]
					if before == 0 {
						rest = nil
					}
					for piece := range slices.Chunk(slices.Concat(rest, after), size) {
						p.Write(piece) // which fails at the end
					}
					synctest.Wait()
					want := closes
					if before > 0 {
						want = slices.Concat(begun, closes)
					}
					if !bytes.Equal(read, want) || g.open() != 0 {
						t.Errorf("%q, not %q; %d open", read, want, g.open())
					}
				})
			})
		}
	}
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
				for _, s := range g.oldestFirst() {
					s.Close(4001, "banned")
				}
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

// A Close frame that RFC 6455 forbids does not reach the handler either, and a client that never
// answers is cut.
func TestNoAnswerToClose(t *testing.T) {
	for name, sent := range map[string][]byte{
		"too long":   append([]byte{0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 1, 2, 3, 4),
		"fragmented": masked(0x08, ""),
		"data only":  masked(0x82, strings.Repeat("x", 1000)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var read []byte
				g, p := bubble(t, Config{}, func(c net.Conn) {
					defer c.Close()
					for b := make([]byte, 64); ; {
						n, err := c.Read(b)
						if read = append(read, b[:n]...); err != nil {
							return
						}
					}
				})
				for _, s := range g.oldestFirst() {
					s.Close(4001, "banned")
				}
				p.closes()
				p.send(sent)
				time.Sleep(closeTimeout)
				synctest.Wait()
				if len(read) > 0 || g.open() != 0 {
					t.Errorf("%q, %d open", read, g.open())
				}
			})
		})
	}
}

// What was sent before a client knew that the server shuts down is read.
func TestAllIsReadAfterLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := slices.Concat(masked(0x81, "hello"), masked(0x88, ""))
		var read []byte
		g, p := bubble(t, Config{}, func(c net.Conn) {
			defer c.Close()
			for b := make([]byte, 64); len(read) < len(sent); {
				n, err := c.Read(b)
				if read = append(read, b[:n]...); err != nil {
					return
				}
			}
		})
		go g.Shutdown(t.Context())
		p.closes()
		p.send(sent)
		synctest.Wait()
		if !bytes.Equal(read, sent) {
			t.Errorf("%q, not %q", read, sent)
		}
	})
}
