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
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

const handshake = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// serveUpgrades starts a server with a guard of one socket, and returns what opens a connection to it, and what
// gets the cause of each socket's end.
func serveUpgrades(t *testing.T, secure bool, config Config, handler http.HandlerFunc) (g *Guard, dial func(fields ...string) *peer, ends chan error) {
	t.Helper()
	ends = make(chan error, 100)
	config.OnClosed = func(s *Socket, err error) {
		if s.close(nil, 4000, "") {
			t.Error("what has ended begins to close")
		}
		ends <- err
	}
	g = newGuard(t, config)
	server := httptest.NewUnstartedServer(g.Handler(handler))
	server.Config.ErrorLog = silentLogger // handlers panic on purpose
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return g, func(fields ...string) *peer {
		var conn net.Conn
		var err error
		if conn, err = net.Dial("tcp", server.Listener.Addr().String()); err == nil && secure {
			conn = tlsClient(conn, server)
		}
		if err == nil {
			_, err = io.WriteString(conn, strings.Replace(handshake, "\r\n\r\n", strings.Join(append([]string{""}, fields...), "\r\n")+"\r\n\r\n", 1))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return &peer{t: t, Conn: conn, in: bufio.NewReader(conn)}
	}, ends
}

// Whatever a handler does with its connection, the slot is released at the end, and not before.
func TestSlotsEndWithTheirSockets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		status  int
		open    bool // after the handler; the client closes it
	}{
		{"serves and closes", func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			serveUntilClose(c)
		}, 101, true},
		{"returns, and a goroutine serves", func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			go serveUntilClose(c)
		}, 101, true},
		{"closes twice", func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			c.Close()
			c.Close()
		}, 101, false},
		{"closes from two goroutines", func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			go c.Close()
			c.Close()
		}, 101, false},
		{"panics after the upgrade", func(w http.ResponseWriter, _ *http.Request) {
			take(w)
			panic(http.ErrAbortHandler)
		}, 101, false},
		{"panics before it", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, false},
		{"exits its goroutine", func(w http.ResponseWriter, _ *http.Request) {
			take(w)
			runtime.Goexit()
		}, 101, false},
		{"refuses", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, 403, false},
		{"refuses by saying nothing", func(http.ResponseWriter, *http.Request) {}, 200, false},
		{"takes the connection, refuses and forgets it", func(w http.ResponseWriter, _ *http.Request) {
			_, rw, _ := w.(http.Hijacker).Hijack()
			fmt.Fprint(rw, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
			rw.Flush()
		}, 400, false},
		{"takes the connection and says nothing", func(w http.ResponseWriter, _ *http.Request) {
			http.NewResponseController(w).Hijack()
		}, 0, false},
		{"says 101 first, and writes by the buffer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(101)
			c, rw, _ := http.NewResponseController(w).Hijack()
			rw.Write([]byte{0x81, 2, 'h', 'i'})
			rw.Flush()
			serveUntilClose(c)
		}, 101, true},
		{"uses nothing but the buffers", func(w http.ResponseWriter, _ *http.Request) {
			c, rw, _ := w.(http.Hijacker).Hijack()
			rw.WriteString(response101)
			rw.Flush()
			go func() {
				defer c.Close()
				io.Copy(io.Discard, rw)
			}()
		}, 101, true},
		{"writes the response byte by byte", func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			for i := range len(response101) {
				io.WriteString(c, response101[i:i+1])
			}
			serveUntilClose(c)
		}, 101, true},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tls=%v", c.name, secure), func(t *testing.T) {
				t.Parallel()
				g, dial, ends := serveUpgrades(t, secure, Config{}, c.handler)
				p := dial()
				response, err := http.ReadResponse(p.in, nil)
				if c.status != 0 && (err != nil || response.StatusCode != c.status) {
					t.Fatal(response, err)
				}
				if c.open {
					if g.held(t) != 1 || g.open() != 1 {
						t.Errorf("%d held", g.held(t))
					}
					p.Close()
				}
				if cause := <-ends; cause != nil || g.held(t) != 0 {
					t.Errorf("%v, %d held", cause, g.held(t))
				}
				if c.status == 0 || c.status == 101 || c.status == 400 { // the connection is closed
					io.Copy(io.Discard, p.in)
				}
			})
		}
	}
}

// The slot of a connection that the handler has dropped is released by garbage collection.
func TestDroppedConnections(t *testing.T) {
	g, dial, ends := serveUpgrades(t, false, Config{MaxIdle: time.Hour, MaxAge: time.Hour}, func(w http.ResponseWriter, _ *http.Request) { take(w) })
	p := dial()
	if _, err := http.ReadResponse(p.in, nil); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		runtime.GC()
		select {
		case err := <-ends:
			if done = true; err != nil {
				t.Error(err)
			}
		default:
			runtime.Gosched()
		}
	}
	if g.held(t) != 0 {
		t.Errorf("%d held", g.held(t))
	}
	io.Copy(io.Discard, p.in) // until it is closed
}

// Cleanups of the runtime do not wait for a connection that takes its time to close.
func TestCleanupsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, inner := newGuard(t, Config{}), &recorded{closes: make(chan struct{})}
		g.Handler(taken(inner.keep)).ServeHTTP(&pipe{conn: inner}, upgradeRequest())
		g.oldestFirst()[0].endUnreachable()
		synctest.Wait()
		if g.open() != 1 {
			t.Error("it has ended before its connection is closed")
		}
		close(inner.closes)
		synctest.Wait()
		if g.open() != 0 {
			t.Error("it has not ended")
		}
	})
}

// A socket that is closed in many ways at the same time gets one Close frame, and ends once, for the cause of that
// frame.
func TestManyClose(t *testing.T) {
	const silence = time.Minute
	reasons := map[error]string{nil: "by the program", ErrIdle: "nothing was received for too long", ErrShutdown: "the server is shutting down"}
	seen := make(map[error]bool)
	for range 500 {
		synctest.Test(t, func(t *testing.T) {
			var causes []error
			g := newGuard(t, Config{MaxIdle: silence, OnClosed: func(_ *Socket, err error) { causes = append(causes, err) }})
			inner := new(recorded)
			g.Handler(taken(inner.keep)).ServeHTTP(&pipe{conn: inner}, upgradeRequest())
			s := g.oldestFirst()[0]
			for i := range 4 {
				go func() {
					time.Sleep(silence)
					if i < 2 {
						s.Close(4000, reasons[nil])
					} else {
						_ = g.Shutdown(t.Context())
					}
					_ = s.end()
				}()
			}
			time.Sleep(silence + closeTimeout)
			synctest.Wait()
			if len(causes) != 1 {
				t.Fatalf("it has ended %d times", len(causes))
			}
			seen[causes[0]] = true
			if got := strings.TrimPrefix(string(inner.written), response101); got != "" && (len(got) != 4+len(reasons[causes[0]]) || got[4:] != reasons[causes[0]]) {
				t.Errorf("%q was written, and the cause is %v", got, causes[0])
			}
		})
	}
	if len(seen) < 2 {
		t.Errorf("nothing happened at the same time: %v", seen)
	}
}

// A shortConn is a connection whose writes fail after some bytes.
type shortConn struct {
	recorded

	left int
}

func (c *shortConn) Write(p []byte) (int, error) {
	n := min(c.left, len(p))
	if c.left -= n; n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// A failed write returns how many bytes were written, also while the guard wants to close.
func TestWritesFail(t *testing.T) {
	const text, first = response101 + "\x81\x02hi", len(response101) + 1
	for _, written := range []int{0, 10, len(response101) - 1, len(response101), first + 1} {
		for _, closes := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				newGuard(t, Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c, _, _ := w.(http.Hijacker).Hijack()
					n, err := io.WriteString(c, text[:first])
					if s, _ := FromContext(r.Context()); closes {
						s.Close(4000, "bye")
						synctest.Wait()
					}
					if err == nil {
						var m int
						m, err = io.WriteString(c, text[first:])
						n += m
					}
					if c.Close(); n != written || !errors.Is(err, io.ErrShortWrite) {
						t.Errorf("%d bytes written: %d, %v", written, n, err)
					}
				})).ServeHTTP(&pipe{conn: &shortConn{left: written}}, upgradeRequest())
			})
		}
	}
}

// Concurrent writes do not interleave, as on any net.Conn.
func TestConcurrentWrites(t *testing.T) {
	const size = 10_000
	inner := new(recorded)
	newGuard(t, Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		defer c.Close()
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				frame := append([]byte{0x82, 126, size >> 8, size & 0xff}, strings.Repeat(string(rune('a'+i)), size)...)
				if n, err := c.Write(frame); n != len(frame) || err != nil {
					t.Error(n, err)
				}
			})
		}
		all.Wait()
	})).ServeHTTP(&pipe{conn: inner}, upgradeRequest())
	rest := strings.TrimPrefix(string(inner.written), response101)
	for range 8 {
		if len(rest) < 4+size || strings.Trim(rest[4:4+size], rest[4:5]) != "" {
			t.Fatal("a write has bytes of another")
		}
		rest = rest[4+size:]
	}
}

// Clients get a Close frame between two frames, even if the handler never stops writing, or writes frames in pieces.
func TestShutdownAmongWrites(t *testing.T) {
	t.Parallel()
	frame := append([]byte{0x82, 126, 1, 0}, make([]byte, 256)...)
	many := make([]byte, 0, 7*len(frame))
	for range 7 {
		many = append(many, frame...)
	}
	for name, write := range map[string]func(c net.Conn){
		"nothing": func(net.Conn) {},
		"frames": func(c net.Conn) {
			for err := error(nil); err == nil; {
				_, err = c.Write(frame)
			}
		},
		"odd pieces": func(c net.Conn) {
			for at := 0; ; at %= len(many) {
				n, err := c.Write(many[at:min(at+101, len(many))])
				if at += n; err != nil {
					return
				}
			}
		},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tls=%v", name, secure), func(t *testing.T) {
				t.Parallel()
				g, dial, _ := serveUpgrades(t, secure, Config{}, func(w http.ResponseWriter, _ *http.Request) {
					conn, _ := take(w)
					go write(conn)
					go serveUntilClose(conn)
				})
				p := dial()
				if _, err := http.ReadResponse(p.in, nil); err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() { done <- g.Shutdown(t.Context()) }()
				if got := p.closes(); got != "1001 the server is shutting down" {
					t.Error(got)
				}
				p.send(masked(0x88, "\x03\xe9"))
				if err := <-done; err != nil {
					t.Error(err)
				}
				if rest, _ := io.ReadAll(p.in); len(rest) > 0 {
					t.Errorf("%d bytes after the Close frame", len(rest))
				}
			})
		}
	}
}

// When the context is done, sockets whose clients do not answer are closed at once; also if the draining has just begun.
func TestShutdownHeedsItsContext(t *testing.T) {
	late := context.DeadlineExceeded
	for _, c := range []struct {
		sockets              int64
		drain, timeout, want time.Duration
		err                  error
	}{{1, 0, 0, 0, late}, {1, time.Hour, time.Minute, closeTimeout, nil}, {2, time.Hour, time.Minute, time.Minute, late}, {0, time.Hour, time.Minute, 0, nil}} {
		synctest.Test(t, func(t *testing.T) {
			g := mustNew(t, Config{Drain: c.drain, Rules: atMost(c.sockets)})
			for range c.sockets {
				pipeTo(t, g, serveUntilClose)
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			defer cancel()
			begin := time.Now()
			err := g.Shutdown(ctx)
			took := time.Since(begin)
			if synctest.Wait(); !errors.Is(err, c.err) || took != c.want || g.open() != 0 {
				t.Errorf("%+v: %v after %v, %d sockets", c, err, took, g.open())
			}
		})
	}
}

// The draining ends with the last socket, and Shutdown waits for OnClosed.
func TestShutdownEndsWithTheLastSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int64
		g := mustNew(t, Config{Drain: time.Hour, Rules: atMost(10), OnClosed: func(*Socket, error) {
			time.Sleep(time.Second)
			ended.Add(1)
		}})
		pipeTo(t, g, func(c net.Conn) { c.Close() }) // the last one before was no reason to stop waiting
		time.Sleep(time.Minute)
		for range 9 {
			pipeTo(t, g, serveUntilClose)
		}
		done := make(chan error)
		go func() { done <- g.Shutdown(t.Context()) }()
		synctest.Wait()
		begin := time.Now()
		for _, s := range g.oldestFirst() {
			go s.end()
		}
		if err := <-done; err != nil || time.Since(begin) != time.Second || ended.Load() != 10 {
			t.Errorf("%v after %v, %d have ended", err, time.Since(begin), ended.Load())
		}
	})
}

// The error of Shutdown has those of all slots that could not be closed, in 5 seconds, whatever its context.
func TestShutdownWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rules []Rule
		for name, store := range map[string]core.Store{"user": new(silentStore), "server": new(core.MemoryStore), "address": new(silentStore)} {
			rules = append(rules, Rule{Slots: core.NewSlots(store, name, 1), Key: keyfuncs.Everyone()})
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		err := mustNew(t, Config{Rules: rules}).Shutdown(ctx)
		if text := fmt.Sprint(err); strings.Count(text, `no answer about "user"`) != 1 || strings.Count(text, `no answer about "address"`) != 1 || time.Since(begin) != closeTimeout {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// A client that does not read cannot keep its socket open: neither a write that hangs nor the Close frame delays the end.
func TestClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := bubble(t, Config{}, func(c net.Conn) {
			defer c.Close()
			for err := error(nil); err == nil; {
				_, err = c.Write([]byte{0x81, 2, 'h', 'i'})
			}
		})
		begin := time.Now()
		if err := g.Shutdown(t.Context()); err != nil || time.Since(begin) != closeTimeout {
			t.Error(err, time.Since(begin))
		}
	})
}

// Sockets that were opened together are not closed together: MaxAge is up to a tenth less.
func TestMaxAgeIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sockets, parts = 1000, 10
		g := mustNew(t, Config{MaxAge: 10 * time.Hour, Rules: atMost(core.NoLimit)})
		h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _ := take(w)
			s, _ := FromContext(r.Context())
			go func() {
				<-s.Context().Done()
				c.Close()
			}()
		}))
		start := time.Now()
		for range sockets {
			h.ServeHTTP(&pipe{conn: new(recorded)}, upgradeRequest())
		}
		time.Sleep(time.Until(start.Add(9 * time.Hour)))
		if g.open() < sockets-1 {
			t.Errorf("%d are closed too early", sockets-g.open())
		}
		before := g.open()
		for range parts {
			time.Sleep(time.Hour / parts)
			synctest.Wait()
			now := g.open()
			if d := before - now; d < sockets/parts/2 || d > sockets/parts*2 {
				t.Errorf("%d of %d are closed within a tenth of the time", d, sockets)
			}
			before = now
		}
		time.Sleep(closeTimeout)
		synctest.Wait()
		if g.open() != 0 {
			t.Errorf("%d are open", g.open())
		}
	})
}

// What the 101 says decides about the reserved bits, however the library writes it.
func TestAgreedExtensions(t *testing.T) {
	write := func(step int) func(http.ResponseWriter, string) net.Conn {
		return func(w http.ResponseWriter, agreed string) net.Conn {
			c, _, _ := w.(http.Hijacker).Hijack()
			for response := strings.TrimSuffix(response101, "\r\n") + agreed + "\r\n"; response != ""; {
				n := min(step, len(response))
				io.WriteString(c, response[:n])
				response = response[n:]
			}
			return c
		}
	}
	header := func(w http.ResponseWriter, agreed string) net.Conn {
		name, value, _ := strings.Cut(agreed, ":")
		w.Header().Set(name, strings.TrimSpace(value))
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, _, _ := w.(http.Hijacker).Hijack()
		return c
	}
	for _, respond := range []func(http.ResponseWriter, string) net.Conn{write(1000), write(1), write(60), header} {
		for agreed, valid := range map[string]bool{
			"":                                   false,
			"Sec-WebSocket-Extensions: \r\n":     false,
			"X: Sec-WebSocket-Extensions: a\r\n": false,
			"Sec-WebSocket-Extensions: permessage-deflate; a=b\r\n":           true,
			"sec-websocket-extensions:foo\r\n":                                true,
			"Sec-WebSocket-Extensions: foo\r\nSec-WebSocket-Extensions: \r\n": true,
		} {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				h := heard{done: make(chan struct{})}
				go newGuard(t, Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					h.listen(respond(w, agreed))
				})).ServeHTTP(&pipe{conn: server, header: http.Header{}}, changed("Sec-WebSocket-Extensions", "permessage-deflate, foo"))
				go io.Copy(io.Discard, client)
				client.Write(masked(0xc1, "compressed"))
				client.Write(masked(0x88, ""))
				client.Close()
				<-h.done
				if (h.sums[frames.Messages] == 1) != valid || errors.Is(h.err, ErrProtocol) == valid {
					t.Errorf("%q: %v, %v", agreed, h.sums, h.err)
				}
			})
		}
	}
}
