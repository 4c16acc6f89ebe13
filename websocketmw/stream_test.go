package websocketmw

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/websocketmw/internal/conn"
)

// An http2Writer is a writer of a server's stream: it is of no use when the handler has
// returned, and sends only what is flushed.
type http2Writer struct {
	header http.Header
	status int
	out    *bufio.Writer
	conn   net.Conn
	over   bool
}

func (w *http2Writer) use() {
	if w.over {
		panic("the handler has returned")
	}
}

func (w *http2Writer) Header() http.Header { return w.header }

func (w *http2Writer) WriteHeader(status int) {
	w.use()
	if w.status == 0 {
		w.status = status
	}
}

func (w *http2Writer) Write(p []byte) (int, error) {
	w.use()
	return w.out.Write(p)
}

func (w *http2Writer) FlushError() error {
	w.use()
	return w.out.Flush()
}

func (w *http2Writer) SetReadDeadline(time.Time) error {
	w.use()
	return nil
}

// SetWriteDeadline ends writes and flushes for which the client leaves no room.
func (w *http2Writer) SetWriteDeadline(at time.Time) error {
	w.use()
	return w.conn.SetWriteDeadline(at)
}

// An http2Peer is the client of a stream.
type http2Peer struct {
	*peer

	guard  *Guard
	writer *http2Writer
	begin  time.Time
	done   chan any // what the handler panicked with
}

func streamRequest() *http.Request {
	r := httptest.NewRequest("CONNECT", "/ws", nil)
	r.ProtoMajor, r.Header = 2, http.Header{":protocol": {"websocket"}}
	return r
}

// overHTTP2 runs a handler on a stream.
func overHTTP2(t *testing.T, config Config, handler http.HandlerFunc, f func(p *http2Peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, config)
		client, server := net.Pipe()
		r := streamRequest()
		body, in := io.Pipe() // its Close ends reads, as that of a server's body does
		r.Body = body
		go func() {
			_, _ = io.Copy(in, server)
			in.Close()
		}()
		p := &http2Peer{
			peer:   &peer{t: t, Conn: client, in: bufio.NewReader(client)},
			guard:  g,
			writer: &http2Writer{header: make(http.Header), out: bufio.NewWriter(server), conn: server},
			begin:  time.Now(), done: make(chan any, 1),
		}
		go func() {
			defer func() {
				p.writer.over = true
				p.done <- recover()
			}()
			g.Handler(handler).ServeHTTP(p.writer, r)
		}()
		f(p)
		client.Close()
		server.Close()
		body.Close()
		time.Sleep(time.Hour) // nothing is written when the handler has returned
		if g.Len() != 0 {
			t.Errorf("%d sockets are left", g.Len())
		}
	})
}

// echoes is a handler that only reads and writes.
func echoes(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	for b := make([]byte, 100); ; {
		_ = control.Flush()
		n, err := r.Body.Read(b)
		if err != nil {
			return
		}
		w.Write(unmasked(b[:n]))
	}
}

// unmasked returns a short frame without its mask.
func unmasked(b []byte) []byte {
	out := []byte{b[0], b[1] & 0x7f}
	for i, c := range b[6:] {
		out = append(out, c^b[2+i%4])
	}
	return out
}

// over waits until the handler has returned, and returns how long it took since the peer had
// begun.
func (p *http2Peer) over() time.Duration {
	if panicked := <-p.done; panicked != nil {
		p.t.Error(panicked)
	}
	return time.Since(p.begin)
}

// Over HTTP/2 all limits on a socket hold: the client gets a Close frame, and the handler's
// reads end when it answers, or 5 seconds later.
func TestLimitsOverHTTP2(t *testing.T) {
	for _, test := range []struct {
		name   string
		config Config
		send   []byte
		act    func(g *Guard)
		echoed string
		want   string
		after  time.Duration
	}{
		{name: "silence", config: Config{MaxIdle: time.Minute}, want: "1001 nothing was received for too long", after: time.Minute},
		{name: "Shutdown", act: func(g *Guard) { go g.Shutdown(context.Background()) }, want: "1001 the server is shutting down"},
		{name: "Close", act: func(g *Guard) { g.all()[0].Close(3000, "why") }, want: "3000 why"},
		{name: "messages", config: Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.FixedWindow(core.PerHour(1)))}}},
			send: append(masked(0x81, "one"), masked(0x81, "two")...), echoed: "one", want: `1008 over the limit "sent"`},
		{name: "a frame that is not masked", send: []byte{0x81, 1, 'a'}, want: "1002 a frame that is not masked"},
		{name: "controls", config: Config{}, send: bytes.Repeat(masked(0x8a, ""), 200+1), want: `1008 over the limit "control-frames"`},
	} {
		for _, answers := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				handler := echoes
				if test.name == "controls" {
					handler = func(w http.ResponseWriter, r *http.Request) {
						w.WriteHeader(http.StatusOK)
						io.Copy(io.Discard, r.Body)
					}
				}
				overHTTP2(t, test.config, handler, func(p *http2Peer) {
					synctest.Wait()
					if p.writer.status != http.StatusOK {
						t.Errorf("status %d", p.writer.status)
					}
					p.begin = time.Now()
					go p.Write(test.send)
					if test.act != nil {
						test.act(p.guard)
					}
					if test.echoed != "" {
						if _, got, err := p.frame(); string(got) != test.echoed || err != nil {
							t.Errorf("%q, %v", got, err)
						}
					}
					if got := p.closes(); !strings.HasPrefix(got, test.want) {
						t.Errorf("%q, not %q", got, test.want)
					}
					if d := time.Since(p.begin); d != test.after {
						t.Errorf("closed after %v", d)
					}
					want := test.after + conn.CloseTimeout
					if answers {
						want = test.after
						p.Write(masked(0x88, "\x03\xe9"))
						p.Close()
					}
					if d := p.over(); d < want || d > want+10*time.Millisecond {
						t.Errorf("the handler returned after %v, not %v", d, want)
					}
				})
			})
		}
	}
}

// A Close before the handler has begun the WebSocket is sent when it has; one of a handler
// that begins none only ends its context.
func TestCloseBeforeTheStreamBegins(t *testing.T) {
	overHTTP2(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		w.WriteHeader(http.StatusOK)
		w.Write([]byte{0x81, 1, 'a'}) // is dropped
		io.Copy(io.Discard, r.Body)
	}, func(p *http2Peer) {
		synctest.Wait()
		p.guard.all()[0].Close(1001, "early")
		if got := p.closes(); got != "1001 early" {
			t.Error(got)
		}
		p.over()
	})
	overHTTP2(t, Config{}, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}, func(p *http2Peer) {
		synctest.Wait()
		p.guard.all()[0].Close(1001, "early")
		if d := p.over(); d != conn.CloseTimeout {
			t.Errorf("it took %v", d)
		}
	})
}

// A response that begins no WebSocket is written as it is.
func TestStreamThatIsRefused(t *testing.T) {
	overHTTP2(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, "not for you")
		w.(http.Flusher).Flush()
	}, func(p *http2Peer) {
		b := make([]byte, 11)
		if _, err := io.ReadFull(p.in, b); err != nil || string(b) != "not for you" || p.writer.status != http.StatusForbidden {
			t.Errorf("%d %q %v", p.writer.status, b, err)
		}
		p.over()
	})
}

// With Delay, reads end before the deadline that a handler sets.
func TestDelayOverHTTP2(t *testing.T) {
	overHTTP2(t, Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerMinute(10), 1)), Over: Delay}}},
		func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(8 * time.Second))
			echoes(w, r)
		}, func(p *http2Peer) {
			go p.Write(append(masked(0x81, "one"), masked(0x81, "two")...))
			if _, got, err := p.frame(); string(got) != "one" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if got := p.closes(); !strings.HasPrefix(got, "1008 ") { // 6 s are more than half of 8
				t.Error(got)
			}
			p.over()
		})
}

// A handler that panics gives its slot back.
func TestStreamPanics(t *testing.T) {
	overHTTP2(t, Config{MaxIdle: time.Minute, MaxAge: time.Minute}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		panic("on purpose")
	}, func(p *http2Peer) {
		if panicked := <-p.done; panicked != "on purpose" {
			t.Error(panicked)
		}
		if p.guard.Len() != 0 {
			t.Error("the socket is left")
		}
	})
}

// A client that stops reading keeps no slot: however the guard closes the socket, and whoever of the
// handler's goroutines writes, the handler returns.
func TestStreamOfClientThatDoesNotRead(t *testing.T) {
	idle, aged := Config{MaxIdle: time.Minute}, Config{MaxAge: time.Minute}
	slow := Config{Outbound: Outbound{Timeout: time.Minute}}
	unsent := Config{Outbound: Outbound{MaxUnsent: 1000}}
	mute := Config{MaxIdle: time.Minute, NoCloseFrames: true}
	for _, test := range []struct {
		name   string
		config Config
		act    func(g *Guard)
		within time.Duration
	}{
		{"MaxIdle", idle, nil, time.Minute + conn.CloseTimeout},
		{"MaxAge", aged, nil, time.Minute + conn.CloseTimeout},
		{"Timeout", slow, nil, time.Minute + conn.CloseTimeout},
		{"MaxUnsent", unsent, nil, conn.CloseTimeout},
		{"NoCloseFrames", mute, nil, time.Minute},
		{"Close", Config{}, func(g *Guard) { g.all()[0].Close(4000, "why") }, conn.CloseTimeout},
		{"Shutdown", Config{}, func(g *Guard) { go g.Shutdown(context.Background()) }, conn.CloseTimeout},
		{"Shutdown at once", Config{}, func(g *Guard) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = g.Shutdown(ctx)
		}, 0},
	} {
		for name, own := range map[string]bool{"the handler writes": true, "another goroutine writes": false} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				write := func(w http.ResponseWriter) {
					for err := error(nil); err == nil; {
						_, err = w.Write(shortFrame)
					}
				}
				overHTTP2(t, test.config, func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(http.StatusOK)
					if own {
						write(w)
						return
					}
					var writer sync.WaitGroup
					writer.Go(func() { write(w) })
					io.Copy(io.Discard, r.Body)
					writer.Wait()
				}, func(p *http2Peer) {
					time.Sleep(time.Millisecond) // it writes until there is no room
					if test.act != nil {
						test.act(p.guard)
					}
					if d := p.over(); d > test.within+100*time.Millisecond {
						t.Errorf("the handler returned after %v, not %v", d, test.within)
					}
				})
			})
		}
	}
}
