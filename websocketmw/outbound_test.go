package websocketmw

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/headgate/headgate/websocketmw/internal/conn"
)

// kinds notes the events of a guard.
type kinds struct {
	mu  sync.Mutex
	all []EventKind
}

func (k *kinds) note(_ *Socket, e Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, e.Kind)
}

func (k *kinds) count(kind EventKind) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.all {
		if one == kind {
			n++
		}
	}
	return n
}

var shortFrame = append([]byte{0x82, 100}, make([]byte, 100)...)

// A write that takes too long closes the socket: at its end with 1008 if the client reads on,
// and else without a word.
func TestWriteTimeout(t *testing.T) {
	for _, reads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var seen kinds
			begin := time.Now()
			g, p := bubble(t, Config{Outbound: Outbound{Timeout: time.Minute}, MaxIdle: time.Hour, Notify: seen.note}, func(c net.Conn) {
				go serveUntilClose(c)
				c.Write(shortFrame)
			})
			time.Sleep(time.Minute + time.Second)
			synctest.Wait()
			if seen.count(EventSlow) != 1 || g.Len() != 1 {
				t.Errorf("%v, %d open", seen.all, g.Len())
			}
			if reads {
				if got := p.closes(); got != "1008 the client reads too slowly" {
					t.Error(got)
				}
				p.send(masked(0x88, ""))
			} else {
				for g.Len() > 0 {
					time.Sleep(time.Second)
				}
				if took := time.Since(begin); took < time.Minute+conn.CloseTimeout || took > time.Minute+conn.CloseTimeout+2*time.Second {
					t.Errorf("closed after %v", took)
				}
			}
			synctest.Wait()
			if g.Len() != 0 || seen.count(EventSlow) != 1 {
				t.Errorf("%v, %d open", seen.all, g.Len())
			}
		})
	}
}

// A client that reads steadily has time for a long frame.
func TestSteadyReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen kinds
		const size = 20 * (32 << 10)
		g, p := bubble(t, Config{Outbound: Outbound{Timeout: time.Minute}, Notify: seen.note}, func(c net.Conn) {
			go serveUntilClose(c)
			frame := append([]byte{0x82, 127}, binary.BigEndian.AppendUint64(nil, size)...)
			if n, err := c.Write(append(frame, make([]byte, size)...)); n != len(frame)+size || err != nil {
				t.Error(n, err)
			}
		})
		for range size / (32 << 10) {
			time.Sleep(50 * time.Second)
			if _, err := io.CopyN(io.Discard, p.in, (32 << 10)); err != nil {
				t.Fatal(err)
			}
		}
		io.CopyN(io.Discard, p.in, 10)
		p.send(masked(0x88, ""))
		synctest.Wait()
		if g.Len() != 0 || seen.count(EventSlow) != 0 {
			t.Errorf("%v, %d open", seen.all, g.Len())
		}
	})
}

// Writes that take less than the timeout, and pauses between them, close nothing.
func TestWritesInTime(t *testing.T) {
	for _, most := range []int{0, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			var seen kinds
			done := make(chan struct{})
			g, p := bubble(t, Config{Outbound: Outbound{Timeout: time.Minute, MaxUnsent: most}, Notify: seen.note}, func(c net.Conn) {
				defer close(done)
				go serveUntilClose(c)
				for range 5 {
					c.Write(shortFrame)
					time.Sleep(5 * time.Minute)
				}
			})
			for range 5 {
				time.Sleep(59 * time.Second)
				if _, payload, err := p.frame(); len(payload) != 100 || err != nil {
					t.Fatal(err)
				}
				time.Sleep(4*time.Minute + time.Second)
			}
			<-done
			p.send(masked(0x88, ""))
			synctest.Wait()
			if g.Len() != 0 || seen.count(EventSlow) != 0 {
				t.Errorf("%v, %d open", seen.all, g.Len())
			}
		})
	}
}

// Writes return at once until too much is unsent; what was written arrives, and then 1008.
func TestMaxUnsent(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var seen kinds
			begin := time.Now()
			wrote := make([]time.Duration, 0, 10)
			g, p := bubble(t, Config{Outbound: Outbound{MaxUnsent: 5 * 102}, ObserveOnly: shadow, Notify: seen.note}, func(c net.Conn) {
				go serveUntilClose(c)
				for range 6 {
					c.SetWriteDeadline(time.Now()) // has no effect
					if n, err := c.Write(shortFrame); n != len(shortFrame) || err != nil {
						t.Error(n, err)
					}
					wrote = append(wrote, time.Since(begin))
				}
			})
			time.Sleep(time.Second)
			synctest.Wait()
			at := 6 // all return at once; in shadow, the last waits as it would without the guard
			if shadow {
				at = 5
			}
			if len(wrote) != at || wrote[at-1] != 0 || seen.count(EventSlow) != 1 {
				t.Errorf("%v, %v", wrote, seen.all)
			}
			for range 6 { // the one that was too much is complete too
				if op, payload, err := p.frame(); op != 0x2 || len(payload) != 100 || err != nil {
					t.Fatal(op, err)
				}
			}
			if !shadow {
				if got := p.closes(); got != "1008 the client reads too slowly" {
					t.Error(got)
				}
			}
			p.send(masked(0x88, ""))
			synctest.Wait()
			if g.Len() != 0 || seen.count(EventSlow) != 1 {
				t.Errorf("%v, %d open", seen.all, g.Len())
			}
		})
	}
}

// One message that is larger than MaxUnsent is no reason to close.
func TestMaxUnsentOfALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen kinds
		const size = 100_000
		_, p := bubble(t, Config{Outbound: Outbound{Timeout: time.Second, MaxUnsent: 10}, Notify: seen.note}, func(c net.Conn) {
			go serveUntilClose(c)
			c.Write(append([]byte{0x82, 127, 0, 0, 0, 0, 0, size >> 16, size >> 8 & 0xff, size & 0xff}, make([]byte, size)...))
		})
		if _, payload, err := p.frame(); len(payload) != size || err != nil {
			t.Error(len(payload), err)
		}
		synctest.Wait()
		p.send(masked(0x88, ""))
		synctest.Wait()
		if seen.count(EventSlow) != 0 {
			t.Error(seen.all)
		}
	})
}

// What is unsent when the handler closes the connection is sent, for as long as the peer reads
// within 5 seconds; the handler's reads end at once, and the slot is held until then.
func TestCloseWithSomethingUnsent(t *testing.T) {
	for _, reads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			g, p := bubble(t, Config{Outbound: Outbound{MaxUnsent: 1 << 20}}, func(c net.Conn) {
				c.Write(shortFrame)
				c.Write([]byte{0x88, 2, 3, 232})
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("a closed connection is read")
				}
				if _, err := c.Write(shortFrame); !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
			synctest.Wait()
			if g.Len() != 1 {
				t.Error("the socket has ended before all was sent")
			}
			if reads {
				if got := p.closes(); got != "1000 " {
					t.Error(got)
				}
				if rest, err := io.ReadAll(p.in); len(rest) > 0 || err != nil {
					t.Error(len(rest), err)
				}
			} else {
				time.Sleep(conn.CloseTimeout)
			}
			synctest.Wait()
			if g.Len() != 0 || !reads && time.Since(begin) != conn.CloseTimeout {
				t.Errorf("%d open after %v", g.Len(), time.Since(begin))
			}
		})
	}
}

// A peer that never reads cannot keep its socket open, whoever closes it.
func TestUnsentForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := bubble(t, Config{Outbound: Outbound{MaxUnsent: 300}}, func(c net.Conn) {
			go serveUntilClose(c)
			for err := error(nil); err == nil; {
				_, err = c.Write(shortFrame)
			}
		})
		begin := time.Now()
		err := g.Shutdown(t.Context())
		synctest.Wait()
		if err != nil || time.Since(begin) > conn.CloseTimeout || g.Len() != 0 {
			t.Error(err, time.Since(begin), g.Len())
		}
	})
}

// A frame in pieces that is more than twice what may be unsent is not kept: the connection is cut.
func TestUnsentFrameInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen kinds
		kept := 0
		g, _ := bubble(t, Config{Outbound: Outbound{MaxUnsent: 1000}, Notify: seen.note}, func(c net.Conn) {
			defer c.Close()
			_, err := c.Write([]byte{0x82, 127, 0, 0, 0, 0, 1, 0, 0, 0})
			for ; err == nil; kept += 100 {
				_, err = c.Write(make([]byte, 100))
			}
		})
		synctest.Wait()
		if g.Len() != 0 || seen.count(EventSlow) != 1 || kept > 2000 {
			t.Errorf("%d open, %v, %d bytes kept", g.Len(), seen.all, kept)
		}
	})
}

// A real client that does not read, behind gorilla: its kernel's buffers fill up, and it is
// closed, while another gets every message.
func TestSlowReader(t *testing.T) {
	var seen kinds
	c := Config{Outbound: Outbound{MaxUnsent: 256 << 10}, Notify: seen.note}
	for _, secure := range []bool{false, true} {
		up := websocket.Upgrader{}
		joined := make(chan *websocket.Conn, 2)
		g := newGuardFor(t, c, 2)
		server := httptest.NewUnstartedServer(g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := up.Upgrade(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			joined <- conn
			for err == nil {
				_, _, err = conn.ReadMessage()
			}
		})))
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		dialer := websocket.Dialer{TLSClientConfig: server.Client().Transport.(*http.Transport).TLSClientConfig}
		dial := func() *websocket.Conn {
			conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		slow := dial()
		slowSide := <-joined
		quick := dial()
		quickSide := <-joined
		before := seen.count(EventSlow)
		message := make([]byte, 64<<10)
		for i := 0; seen.count(EventSlow) == before; i++ {
			if i == 10_000 {
				t.Fatal("640 MB are unsent")
			}
			_ = slowSide.WriteMessage(websocket.BinaryMessage, message)
			if err := quickSide.WriteMessage(websocket.BinaryMessage, message); err != nil {
				t.Fatal(err)
			}
			if _, m, err := quick.ReadMessage(); len(m) != len(message) || err != nil {
				t.Fatal(err)
			}
		}
		// It reads at last: all that was kept, and why it is closed.
		var closed *websocket.CloseError
		for {
			_, _, err := slow.ReadMessage()
			if errors.As(err, &closed) && closed.Code == 1008 {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		slow.Close()
		quick.Close()
		if err := g.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		server.Close()
	}
}
