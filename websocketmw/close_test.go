package websocketmw

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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
		g, p := bubble(t, Config{MaxIdle: time.Minute, OnClosed: note}, serveUntilClose)
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
		begin := time.Now()
		_, p := bubble(t, Config{MaxIdle: time.Hour, MaxAge: time.Minute}, serveUntilClose)
		if got := p.closes(); !strings.HasPrefix(got, "1001 ") || !aged(time.Since(begin)) {
			t.Error(got, time.Since(begin))
		}
		// The peer does not answer.
		if _, _, err := p.frame(); !errors.Is(err, io.EOF) || !aged(time.Since(begin)-closeTimeout) {
			t.Error(err, time.Since(begin))
		}
	})
}

// The Close frame is sent although the write deadline of the handler's last message has
// passed.
func TestCloseAfterTheWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := bubble(t, Config{MaxAge: time.Minute}, func(c net.Conn) {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			serveUntilClose(c)
		})
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
			if n, err := c.Write([]byte{1, 'y'}); n != 2 || err != nil {
				t.Error(n, err)
			}
		})
		var head [3]byte
		io.ReadFull(p.in, head[:])
		for _, s := range g.oldestFirst() {
			s.Close(4000, strings.Repeat("ä", 100))
			s.Close(4001, "the second does not count")
		}
		synctest.Wait()
		close(half)
		rest := make([]byte, 3)
		io.ReadFull(p.in, rest)
		if string(rest) != "bcd" {
			t.Errorf("%q", rest)
		}
		if got := p.closes(); got != "4000 "+strings.Repeat("ä", 61) {
			t.Error(got)
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
		{1000, 1000}, {1003, 1003}, {1007, 1007}, {1011, 1011}, {1012, 1012}, {1014, 1014},
		{3000, 3000}, {4999, 4999},
		{-1, 1011}, {0, 1011}, {1, 1011}, {999, 1011}, {1004, 1011}, {1005, 1011}, {1006, 1011},
		{1015, 1011}, {1016, 1011}, {2999, 1011}, {5000, 1011}, {65536 + 1000, 1011}, {70000, 1011},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, p := bubble(t, Config{}, serveUntilClose)
			for _, s := range g.oldestFirst() {
				s.Close(c.code, "bye")
			}
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
		for _, s := range g.oldestFirst() {
			s.Close(1001, "")
		}
		got := p.closes()
		synctest.Wait() // the slot is released after the connection is closed
		if got != "error" || g.open() != 0 {
			t.Error(got, g.open())
		}
	})
}

// Frames that are in the server's buffer when the handler hijacks after its 101 are counted
// by Buffered and are read.
func TestEarlyFrames(t *testing.T) {
	first, second := string(masked(0x81, strings.Repeat("early ", 100))), string(masked(0x81, "late"))
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		client, server := net.Pipe()
		done := make(chan struct{})
		go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			defer close(done)
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer c.Close()
			if n := rw.Reader.Buffered(); n != len(first) {
				t.Errorf("%d bytes are buffered, not %d", n, len(first))
			}
			b := make([]byte, len(first)+len(second))
			if _, err := io.ReadFull(rw, b); err != nil || string(b) != first+second {
				t.Errorf("%q, %v", b, err)
			}
		})).ServeHTTP(&early{pipe{conn: server}, first}, upgradeRequest())
		client.Write([]byte(second))
		<-done
	})
}

// What a client sends before the 101 reaches no library, and closes the socket with 1002:
// whether the library would read it, drop it or refuse.
func TestTooEarly(t *testing.T) {
	message := string(masked(0x81, "hello"))
	for name, sent := range map[string]string{"a message": message, "half a header": "\x82\xff\x40", "a message and a Close frame": message + string(masked(0x88, ""))} {
		synctest.Test(t, func(t *testing.T) {
			var cause error
			g := newGuard(t, Config{OnClosed: func(_ *Socket, err error) { cause = err }})
			client, server := net.Pipe()
			begin, done := time.Now(), make(chan struct{})
			go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(done)
				c, rw := take(w)
				defer c.Close()
				if n := rw.Reader.Buffered(); n != 0 {
					t.Errorf("%d bytes are buffered", n)
				}
				if got, err := io.ReadAll(c); len(got) > 0 || !errors.Is(err, ErrProtocol) {
					t.Errorf("%q, %v", got, err)
				}
			})).ServeHTTP(&early{pipe{conn: server}, sent}, upgradeRequest())
			p := &peer{t: t, Conn: client, in: bufio.NewReader(client)}
			http.ReadResponse(p.in, nil)
			if got := p.closes(); got != "1002 data before the handshake is complete" {
				t.Errorf("%s: %s", name, got)
			}
			if !strings.Contains(name, "Close") {
				p.Close()
			}
			<-done
			if !errors.Is(cause, ErrProtocol) || time.Since(begin) != 0 {
				t.Errorf("%s: %v, %v", name, cause, time.Since(begin))
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
		g, err := New(Config{
			Rules: []Rule{{Slots: core.NewSlots(new(core.MemoryStore), "ws", core.NoLimit), Key: byUser}},
			Drain: drain, OnClosed: func(_ *Socket, err error) { causes <- err },
		})
		if err != nil {
			t.Fatal(err)
		}
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

// A handler that neither upgrades nor returns does not block Shutdown.
func TestShutdownOfHandlersThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		done := make(chan struct{})
		go g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-done })).ServeHTTP(silent{}, upgradeRequest())
		synctest.Wait()
		begin := time.Now()
		if err := g.Shutdown(context.Background()); err != nil || time.Since(begin) != closeTimeout {
			t.Error(err, time.Since(begin))
		}
		close(done)
		synctest.Wait()
		if g.open() != 0 {
			t.Error("still open")
		}
	})
}

// A handler that upgrades after Shutdown gets a connection that is closed.
func TestUpgradeAfterShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{})
		client, server := net.Pipe()
		late, read := make(chan struct{}), make(chan error, 1)
		go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-late
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, err = c.Read(make([]byte, 10))
			}
			read <- err
		})).ServeHTTP(&pipe{conn: server}, upgradeRequest())
		synctest.Wait()
		if err := g.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		synctest.Wait() // the socket has ended
		close(late)
		if err := <-read; err == nil {
			t.Error("the connection is open")
		}
		client.Close()
	})
}

// A library gets the connection's methods, but for those that would bypass the guard, over TCP and TLS. The socket's
// context ends with the socket, not with the handler, and has the request's values.
func TestWhatLibrariesGet(t *testing.T) {
	type tcp interface {
		SetNoDelay(noDelay bool) error
		CloseWrite() error
		NetConn() net.Conn
	}
	type key struct{}
	for _, secure := range []bool{false, true} {
		conns, sockets, returned := make(chan net.Conn, 1), make(chan *Socket, 1), make(chan struct{})
		g := newGuard(t, Config{})
		h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _ := take(w)
			s, ok := FromContext(r.Context())
			if !ok {
				panic("no socket")
			}
			conns <- c
			sockets <- s
		}))
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, "ann")))
			close(returned)
		}))
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		client, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if secure {
			client = tlsClient(client, server)
		}
		io.WriteString(client, handshake)
		conn, s := <-conns, <-sockets
		_, isTCP := conn.(tcp)
		_, readsFrom := conn.(io.ReaderFrom)
		if isTCP == secure || readsFrom || conn.(interface{ NetConn() net.Conn }).NetConn() == conn {
			t.Errorf("%v: %T", secure, conn)
		}
		<-returned
		if ctx := s.Context(); ctx.Err() != nil || ctx.Value(key{}) != "ann" {
			t.Error(ctx.Err(), ctx.Value(key{}))
		}
		conn.Close()
		conn.Close()
		<-s.Context().Done()
		if !errors.Is(context.Cause(s.Context()), context.Canceled) || g.open() != 0 {
			t.Error(context.Cause(s.Context()), g.open())
		}
		client.Close()
	}
}
