package websocketmw

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
)

func TestIdleAndAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var causes []error
		note := func(_ *Socket, err error) { causes = append(causes, err) }
		g, p := bubble(t, Config{MaxIdle: time.Minute, MaxAge: time.Hour, OnClosed: note}, serveUntilClose)
		for range 10 {
			time.Sleep(59 * time.Second)
			p.send(masked(0x8a, "pong"))
		}
		synctest.Wait()
		if g.open() != 1 {
			t.Fatal("a socket whose pongs arrive was closed")
		}
		begin := time.Now()
		if got := p.closes(); !strings.HasPrefix(got, "1001 ") || time.Since(begin) != time.Minute {
			t.Error(got, time.Since(begin))
		}
		p.send(masked(0x88, ""))
		synctest.Wait()
		if g.open() != 0 || len(causes) != 1 || !errors.Is(causes[0], ErrIdle) {
			t.Error(g.open(), causes)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var cause error
		begin := time.Now()
		_, p := bubble(t, Config{MaxIdle: time.Hour, MaxAge: time.Minute, OnClosed: func(_ *Socket, err error) { cause = err }}, serveUntilClose)
		if got := p.closes(); !strings.HasPrefix(got, "1001 ") || !aged(time.Since(begin)) {
			t.Error(got, time.Since(begin))
		}
		// The peer does not answer.
		_, _, err := p.frame()
		if synctest.Wait(); !errors.Is(err, io.EOF) || !aged(time.Since(begin)-closeTimeout) || !errors.Is(cause, ErrAged) {
			t.Error(err, time.Since(begin), cause)
		}
	})
}

// The Close frame is sent although the write deadline of the handler's last message has passed, and after the rest of a
// frame that a deadline has cut.
func TestCloseAfterTheWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := bubble(t, Config{MaxAge: time.Minute}, func(c net.Conn) {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			if n, err := c.Write([]byte{0x81, 1, 'a'}); n != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(n, err)
			}
			c.SetWriteDeadline(time.Now().Add(time.Minute / 2))
			c.Write([]byte{1, 'a'})
			serveUntilClose(c)
		})
		p.Conn.Read(make([]byte, 1))
		time.Sleep(2 * time.Second)
		io.ReadFull(p.in, make([]byte, 2))
		if got := p.closes(); !strings.HasPrefix(got, "1001 ") {
			t.Error(got)
		}
		p.Close()
	})
}

// The Close frame waits for the end of a frame that the handler has begun.
func TestCloseWaitsForTheFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		half := make(chan struct{})
		g, p := bubble(t, Config{}, func(c net.Conn) {
			go serveUntilClose(c)
			c.Write([]byte{0x81, 4, 'a'})
			<-half
			if n, err := c.Write([]byte{'b', 'c', 'd', 0x81, 1, 'x', 0x81}); n != 7 || err != nil {
				t.Error(n, err)
			}
			begin := time.Now()
			if n, err := c.Write([]byte{1, 'y'}); n != 2 || err != nil || time.Since(begin) != dropTime {
				t.Error(n, err, time.Since(begin))
			}
		})
		var head [3]byte
		io.ReadFull(p.in, head[:])
		g.closeEach(4000, strings.Repeat("ä", 100))
		g.closeEach(4001, "the second does not count")
		synctest.Wait()
		close(half)
		rest := make([]byte, 3)
		io.ReadFull(p.in, rest)
		if string(rest) != "bcd" {
			t.Errorf("%q", rest)
		}
		if op, payload, err := p.frame(); op != 8 || string(payload) != "\x0f\xa0"+strings.Repeat("ä", 61) {
			t.Errorf("%x %q %v", op, payload, err)
		}
		time.Sleep(time.Second) // the handler's writes are dropped
		p.send(masked(0x88, ""))
		synctest.Wait()
		if g.open() != 0 {
			t.Error("still open")
		}
	})
}

// Clients get only codes that may be sent.
func TestCloseCodes(t *testing.T) {
	for _, c := range []struct{ code, want int }{
		{1000, 1000}, {1003, 1003}, {1007, 1007}, {1011, 1011}, {1012, 1012}, {1014, 1014}, {3000, 3000}, {4999, 4999},
		{-1, 1011}, {0, 1011}, {999, 1011}, {1004, 1011}, {1006, 1011}, {1015, 1011}, {2999, 1011}, {5000, 1011}, {65536 + 1000, 1011},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, p := bubble(t, Config{}, serveUntilClose)
			g.closeEach(c.code, "bye")
			if got, want := p.closes(), fmt.Sprintf("%d bye", c.want); got != want {
				t.Errorf("%d: %q, not %q", c.code, got, want)
			}
			p.Close()
		})
	}
}

// After the handler's own Close frame the guard sends none.
func TestOneCloseFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := bubble(t, Config{}, func(c net.Conn) {
			go serveUntilClose(c)
			c.Write([]byte{0x88, 2, 3, 232})
		})
		if got := p.closes(); got != "1000 " {
			t.Error(got)
		}
		g.closeEach(1001, "")
		got := p.closes()
		synctest.Wait() // the slot is released after the connection is closed
		if got != "error" || g.open() != 0 {
			t.Error(got, g.open())
		}
	})
}

// statusFirst takes the connection like a library that writes the 101 by WriteHeader.
func statusFirst(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter) {
	w.WriteHeader(http.StatusSwitchingProtocols)
	c, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	return c, rw
}

// Frames that are in the server's buffer when the handler hijacks after its 101 are counted by Buffered and are read.
func TestEarlyFrames(t *testing.T) {
	first, second := string(masked(0x81, strings.Repeat("early ", 100))), string(masked(0x81, "late"))
	synctest.Test(t, func(t *testing.T) {
		p := dialPipe(t, newGuard(t, Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rw := statusFirst(w)
			defer c.Close()
			if n := rw.Reader.Buffered(); n != len(first) {
				t.Errorf("%d bytes are buffered, not %d", n, len(first))
			}
			b := make([]byte, len(first)+len(second))
			if _, err := io.ReadFull(rw, b); err != nil || string(b) != first+second {
				t.Errorf("%q, %v", b, err)
			}
		})), upgradeRequest(), first)
		p.upgraded()
		p.send([]byte(second))
		synctest.Wait()
	})
}

// What a client sends before the 101 reaches no library, and closes the socket with 1002: whether the library would read
// it, drop it or refuse.
func TestTooEarly(t *testing.T) {
	message := string(masked(0x81, "hello"))
	for _, sent := range []string{message, "\x82\xff\x40", message + string(masked(0x88, ""))} {
		synctest.Test(t, func(t *testing.T) {
			var cause error
			begin, g := time.Now(), newGuard(t, Config{OnClosed: func(_ *Socket, err error) { cause = err }})
			p := dialPipe(t, g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				c, rw, _ := w.(http.Hijacker).Hijack()
				defer c.Close()
				if n := rw.Reader.Buffered(); n != 0 {
					t.Errorf("%d bytes are buffered", n)
				}
				if _, err := rw.ReadByte(); !errors.Is(err, ErrProtocol) || time.Since(begin) != 0 { // it is too early for a Close frame
					t.Error(err, time.Since(begin))
				}
				io.WriteString(c, response101)
				if got, err := io.ReadAll(c); len(got) > 0 || !errors.Is(err, ErrProtocol) {
					t.Errorf("%q, %v", got, err)
				}
			})), upgradeRequest(), sent)
			p.upgraded()
			if got := p.closes(); got != "1002 data before the handshake is complete" {
				t.Errorf("%q: %s", sent, got)
			}
			if !strings.Contains(sent, "\x88") { // whose Close frame is the answer
				p.Close()
			}
			synctest.Wait()
			if !errors.Is(cause, ErrProtocol) || time.Since(begin) != 0 {
				t.Errorf("%q: %v, %v", sent, cause, time.Since(begin))
			}
			p.Close()
		})
	}
}

// aged reports whether a socket with a MaxAge of a minute has ended in time.
func aged(d time.Duration) bool { return d > 54*time.Second-time.Millisecond && d <= time.Minute }

// Shutdown closes sockets over the time of Drain, the oldest first, and refuses new ones meanwhile.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sockets, drain = 100, time.Minute
		causes := make(chan error, sockets)
		g := mustNew(t, Config{Rules: atMost(core.NoLimit), Drain: drain, OnClosed: func(_ *Socket, err error) { causes <- err }})
		var peers []*peer
		for range sockets {
			peers = append(peers, pipeTo(t, g, serveUntilClose))
			time.Sleep(time.Millisecond)
		}
		for _, p := range peers {
			go func() {
				p.closes()
				p.Write(masked(0x88, ""))
			}()
		}
		done, start := make(chan error), time.Now()
		go func() { done <- g.Shutdown(t.Context()) }()
		for i := range 10 {
			time.Sleep(time.Until(start.Add(drain/10*time.Duration(i) + drain/20)))
			synctest.Wait()
			if n, want := sockets-g.open(), i*sockets/10+sockets/20; n < want || n > want+1 {
				t.Errorf("%d are closed after %v, want %d", n, time.Since(start), want)
			}
		}
		if s, a := g.admit(upgradeRequest(), upgrade); s != nil || a.Status != 503 || a.RetryAfter == 0 {
			t.Error(s, a)
		}
		if err := <-done; err != nil || time.Since(start) > drain {
			t.Error(err, time.Since(start))
		}
		close(causes)
		for err := range causes {
			if !errors.Is(err, ErrShutdown) {
				t.Error(err)
			}
		}
	})
}

// An upgrade in progress when the guard shuts down is closed as soon as it is complete. Shutdown waits 5 seconds for that;
// who upgrades later gets a connection that is closed.
func TestShutdownBeforeTheUpgrade(t *testing.T) {
	const down = "1001 the server is shutting down"
	for _, c := range []struct {
		late, hijacked, want time.Duration
		closes               string
	}{{time.Second, 0, time.Second, down}, {0, time.Second, time.Second, down}, {time.Minute, 0, closeTimeout, "error"}} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, Config{})
			p := dialPipe(t, g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(c.late)
				conn, _, _ := w.(http.Hijacker).Hijack()
				time.Sleep(c.hijacked)
				io.WriteString(conn, response101)
				serveUntilClose(conn)
			})), upgradeRequest(), "")
			closes := make(chan string)
			go func() {
				http.ReadResponse(p.in, nil)
				got := p.closes()
				p.Write(masked(0x88, ""))
				closes <- got
			}()
			synctest.Wait()
			begin := time.Now()
			err := g.Shutdown(t.Context())
			took := time.Since(begin)
			if got := <-closes; err != nil || took != c.want || got != c.closes || g.open() != 0 {
				t.Errorf("%v after %v: %q, %d open", err, took, got, g.open())
			}
		})
	}
}

// A library gets the connection's methods, but for those that would bypass the guard, over TCP and TLS. The socket's
// context ends with the socket, not with the handler, and has the request's values.
func TestWhatLibrariesGet(t *testing.T) {
	type tcp interface {
		SetNoDelay(noDelay bool) error
		CloseWrite() error
	}
	for _, secure := range []bool{false, true} {
		conns, requests := make(chan net.Conn, 1), make(chan *http.Request, 1)
		g, dial, _ := serveUpgrades(t, secure, Config{MaxIdle: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
			c, _ := take(w)
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			conns <- c
			requests <- r
		})
		dial()
		conn, r := <-conns, <-requests
		_, isTCP := conn.(tcp)
		_, readsFrom := conn.(io.ReaderFrom)
		if isTCP == secure || readsFrom || conn.(interface{ NetConn() net.Conn }).NetConn() == conn {
			t.Errorf("%v: %T", secure, conn)
		}
		for _, set := range []func(time.Time) error{conn.SetReadDeadline, conn.SetDeadline} {
			set(time.Now())
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			set(time.Time{})
		}
		s, _ := FromContext(r.Context())
		<-r.Context().Done() // the handler has returned
		if ctx := s.Context(); ctx.Err() != nil || ctx.Value(http.ServerContextKey) == nil {
			t.Error(ctx.Err(), ctx.Value(http.ServerContextKey))
		}
		if first, second := conn.Close(), conn.Close(); first != nil || !errors.Is(second, net.ErrClosed) {
			t.Error(first, second)
		}
		<-s.Context().Done()
		if !errors.Is(context.Cause(s.Context()), context.Canceled) || g.open() != 0 || s.timer.Stop() {
			t.Error(context.Cause(s.Context()), g.open(), "or its timer runs")
		}
	}
}
