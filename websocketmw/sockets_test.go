package websocketmw

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/conn"
)

// serveEcho reads until the peer closes, and closes.
func serveEcho(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(io.Discard, c)
}

// Whatever a handler does with its connection, the slot is released at the end.
func TestSlotsEndWithTheirSockets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		handler func(w http.ResponseWriter, r *http.Request)
		status  int
		open    bool // after the handler; the test closes its end
		frame   string
	}{
		{name: "serves and closes", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			serveEcho(c)
		}, status: 101, open: true},
		{name: "returns, and a goroutine serves", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			go serveEcho(c)
		}, status: 101, open: true},
		{name: "closes twice", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			c.Close()
			c.Close()
		}, status: 101},
		{name: "closes from two goroutines", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			go c.Close()
			c.Close()
		}, status: 101},
		{name: "panics after the upgrade", handler: func(w http.ResponseWriter, _ *http.Request) {
			take(w)
			panic(http.ErrAbortHandler)
		}, status: 101},
		{name: "panics before it", handler: func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}},
		{name: "exits its goroutine", handler: func(w http.ResponseWriter, _ *http.Request) {
			take(w)
			runtime.Goexit()
		}, status: 101},
		{name: "refuses", handler: func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no", http.StatusForbidden)
		}, status: 403},
		{name: "refuses by saying nothing", handler: func(http.ResponseWriter, *http.Request) {}, status: 200},
		{name: "takes the connection, refuses and forgets it", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, rw, _ := w.(http.Hijacker).Hijack()
			fmt.Fprint(rw, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
			rw.Flush()
		}, status: 400},
		{name: "takes the connection and says nothing", handler: func(w http.ResponseWriter, _ *http.Request) {
			http.NewResponseController(w).Hijack()
		}},
		{name: "says 101 first, and writes by the buffer", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(101)
			c, rw, _ := http.NewResponseController(w).Hijack()
			rw.Write([]byte{0x81, 2, 'h', 'i'})
			rw.Flush()
			serveEcho(c)
		}, status: 101, open: true},
		{name: "uses nothing but the buffers", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, rw, _ := w.(http.Hijacker).Hijack()
			defer c.Close()
			rw.WriteString(response101)
			rw.Flush()
			io.Copy(io.Discard, rw)
		}, status: 101, open: true},
		{name: "writes the response and a frame at once", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, response101+"\x81\x02hi")
			serveEcho(c)
		}, status: 101, open: true, frame: "hi"},
		{name: "writes the response byte by byte", handler: func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			for i := range len(response101) {
				io.WriteString(c, response101[i:i+1])
			}
			serveEcho(c)
		}, status: 101, open: true},
	} {
		for _, secure := range []bool{false, true} {
			for _, cuts := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/tls=%v/cuts=%v", c.name, secure, cuts), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, 1, secure, Config{NoCloseFrames: cuts}, http.HandlerFunc(c.handler))
					p := w.dial(handshakeText)
					response, err := http.ReadResponse(p.in, nil)
					if c.status != 0 {
						if err != nil || response.StatusCode != c.status {
							t.Fatal(response, err)
						}
						if c.status == 101 && !strings.Contains(c.name, "byte by byte") && response.Header.Get("RateLimit") != `"ws";r=0` {
							t.Errorf("fields %v", response.Header)
						}
					}
					if c.frame != "" {
						if _, got, err := p.frame(); string(got) != c.frame || err != nil {
							t.Errorf("%q, %v", got, err)
						}
					}
					if c.open {
						if w.held() != 1 || w.guard.Len() != 1 {
							t.Errorf("%d held", w.held())
						}
						p.Close()
					}
					w.until(EventClosed)
					if w.held() != 0 || w.guard.Len() != 0 {
						t.Errorf("%d held, %d sockets", w.held(), w.guard.Len())
					}
					if !c.open && response != nil && c.status != 200 && c.status != 403 {
						if _, err := io.ReadAll(p.in); errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
					}
				})
			}
		}
	}
}

// A client over the limit is refused until another socket ends.
func TestLimit(t *testing.T) {
	w := newWorld(t, 1, false, Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		go serveEcho(c)
	}))
	first := w.open()
	if got := w.open().response.StatusCode; got != 429 {
		t.Fatal(got)
	}
	first.Close()
	w.until(EventClosed)
	if got := w.open().response.StatusCode; got != 101 {
		t.Fatal(got)
	}
}

// The slot of a connection that the handler dropped is released by garbage collection.
func TestForgottenSockets(t *testing.T) {
	for _, cuts := range []bool{false, true} {
		w := newWorld(t, 1, false, Config{NoCloseFrames: cuts, MaxIdle: 1 << 50, MaxAge: 1 << 50}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			take(w)
		}))
		p := w.open()
		forgotten := make(chan struct{})
		go func() {
			defer close(forgotten)
			w.until(EventForgotten)
			w.until(EventClosed)
		}()
		for done := false; !done; {
			runtime.GC()
			select {
			case <-forgotten:
				done = true
			default:
				runtime.Gosched()
			}
		}
		if w.held() != 0 {
			t.Errorf("%d held", w.held())
		}
		p.Close()
	}
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
			var events []Event
			g := newGuard(t, Config{Notify: func(_ *Socket, e Event) { events = append(events, e) }})
			client, server := net.Pipe()
			begin, done := time.Now(), make(chan struct{})
			go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				defer close(done)
				c, rw := take(w)
				defer c.Close()
				if n := rw.Reader.Buffered(); n != 0 {
					t.Errorf("%d bytes are buffered", n)
				}
				if got, err := io.ReadAll(c); len(got) > 0 || !errors.Is(err, conn.ErrInvalid) {
					t.Errorf("%q, %v", got, err)
				}
			})).ServeHTTP(&early{pipe{conn: server}, sent}, upgradeRequest())
			p := &peer{t: t, Conn: client, in: bufio.NewReader(client)}
			p.respond()
			if got := p.closes(); got != "1002 data before the handshake is complete" {
				t.Errorf("%s: %s", name, got)
			}
			if !strings.Contains(name, "Close") {
				p.Close()
			}
			<-done
			if len(events) != 2 || events[0].Kind != EventInvalid || events[0].Err == nil || time.Since(begin) != 0 {
				t.Errorf("%s: %v, %v", name, events, time.Since(begin))
			}
			p.Close()
		})
	}
}

// The wrapper has the connection's methods, except those that would bypass it.
func TestWhatLibrariesGet(t *testing.T) {
	type tcp interface {
		SetNoDelay(noDelay bool) error
		CloseWrite() error
		NetConn() net.Conn
	}
	conns := make(chan net.Conn, 1)
	for _, c := range []struct {
		secure, cuts, tcp, readsFrom bool
	}{
		{tcp: true},
		{cuts: true, tcp: true, readsFrom: true},
		{secure: true},
		{secure: true, cuts: true},
	} {
		w := newWorld(t, 1, c.secure, Config{NoCloseFrames: c.cuts}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			conns <- c
			_ = c
		}))
		w.open()
		conn := <-conns
		_, isTCP := conn.(tcp)
		_, readsFrom := conn.(io.ReaderFrom)
		if isTCP != c.tcp || readsFrom != c.readsFrom {
			t.Errorf("%+v: %T: tcp %v, ReadFrom %v", c, conn, isTCP, readsFrom)
		}
		if inner := conn.(interface{ NetConn() net.Conn }).NetConn(); inner == conn || inner == nil {
			t.Errorf("%T within %T", inner, conn)
		}
		conn.Close()
		w.until(EventClosed)
	}
}

// WriteTo of a TCP connection reads through the guard.
func TestWriteTo(t *testing.T) {
	got := make(chan string, 1)
	w := newWorld(t, 1, false, Config{NoCloseFrames: true}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		defer c.Close()
		var b bytes.Buffer
		io.Copy(&b, c)
		got <- b.String()
	}))
	p := w.open()
	message := masked(0x81, "hello")
	p.send(append(message, "\x81\x05hello"...)) // the second is not masked
	if s := <-got; s != string(message) {
		t.Errorf("%q", s)
	}
}

// The guard's writer has Hijack only if the server's has it.
func TestNoHijack(t *testing.T) {
	store := &counter{Noticer: memstore.New(memstore.Config{})}
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 1), Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(http.Hijacker); ok {
			t.Error("a recorder can hijack")
		}
		if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Error(err)
		}
		w.(http.Flusher).Flush()
	})).ServeHTTP(httptest.NewRecorder(), upgradeRequest())
	if _, granted, released := store.counts(); granted != 1 || released != 1 {
		t.Errorf("%d granted, %d released", granted, released)
	}
}

// failing is a writer whose Hijack fails, inside one that has none.
type failing struct{ http.ResponseWriter }

func (failing) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, io.ErrClosedPipe }

type wrapping struct{ http.ResponseWriter }

func (w wrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestHijackFails(t *testing.T) {
	store := &counter{Noticer: memstore.New(memstore.Config{})}
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 1), Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	})).ServeHTTP(wrapping{failing{httptest.NewRecorder()}}, upgradeRequest())
	if _, granted, released := store.counts(); granted != 1 || released != 1 {
		t.Errorf("%d granted, %d released", granted, released)
	}
}

type silent struct{}

func (*silent) Header() http.Header         { return http.Header{} }
func (*silent) Write(b []byte) (int, error) { return len(b), nil }
func (*silent) WriteHeader(int)             {}

func TestContext(t *testing.T) {
	type userKey struct{}
	sockets := make(chan *Socket, 1)
	w := newWorld(t, 1, false, Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(context.WithValue(r.Context(), userKey{}, "ann"))
		s, ok := FromContext(r.Context())
		if !ok || s.Slot().Occupancies()[0].Held != 1 {
			panic("no socket")
		}
		c, _ := take(w)
		go serveEcho(c)
		sockets <- s
	}))
	p := w.open()
	s := <-sockets
	ctx := s.Context()
	if inner, ok := FromContext(ctx); !ok || inner != s {
		t.Error("the context has lost its socket")
	}
	if ctx.Err() != nil || s.Context() != ctx {
		t.Error(ctx.Err())
	}
	p.Close()
	<-s.Done()
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Error(ctx.Err(), context.Cause(ctx))
	}
	w.until(EventClosed)
}

// A socket has the context of its request before it is served.
func TestContextBeforeTheHandler(t *testing.T) {
	g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}}})
	if err != nil {
		t.Fatal(err)
	}
	r := upgradeRequest()
	ctx, leave := context.WithCancel(r.Context())
	v := g.Check(r.WithContext(ctx))
	socketOf(v).Context()
	v.Serve(httptest.NewRecorder(), r.WithContext(ctx), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if s, ok := FromContext(r.Context()); !ok || s != socketOf(v) {
			t.Error("the context has no socket")
		}
		leave()
		if r.Context().Err() == nil {
			t.Error("the handler's context outlives that of the request")
		}
	}))
}

// A plain TCP connection has deadlines.
func TestDeadlines(t *testing.T) {
	errs := make(chan error, 2)
	w := newWorld(t, 1, false, Config{NoCloseFrames: true}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		defer c.Close()
		past := time.Unix(1, 0)
		for _, set := range []func(time.Time) error{c.SetDeadline, c.SetReadDeadline} {
			if err := errors.Join(c.SetDeadline(time.Time{}), set(past)); err != nil {
				errs <- err
				continue
			}
			_, err := c.Read(make([]byte, 1))
			errs <- err
		}
	}))
	w.open()
	for range 2 {
		if err := <-errs; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	}
}
