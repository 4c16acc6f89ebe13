package websocketmw

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/conn"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// serveUntilClose closes the connection after a Close frame, as all libraries do.
func serveUntilClose(c net.Conn) {
	defer c.Close()
	var w frames.Walker
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		if closes, _ := w.Walk(b[:n]); closes || err != nil {
			return
		}
	}
}

// Clients get a Close frame between two frames, even if the handler never stops writing, or
// writes frames in pieces.
func TestShutdown(t *testing.T) {
	t.Parallel()
	frame := append([]byte{0x82, 126, 1, 0}, make([]byte, 256)...)
	for _, c := range []struct {
		name   string
		config Config
		write  func(c net.Conn) // until an error
		want   string
	}{
		{"a quiet socket", Config{}, func(net.Conn) {}, "1001 the server is shutting down"},
		{"restart", Config{ShutdownCode: 1012}, func(net.Conn) {}, "1012 the server is shutting down"},
		{"no frames", Config{NoCloseFrames: true}, func(net.Conn) {}, "error"},
		{"a flood", Config{}, func(c net.Conn) {
			for err := error(nil); err == nil; {
				_, err = c.Write(frame)
			}
		}, "1001 the server is shutting down"},
		{"a flood in odd pieces", Config{}, func(c net.Conn) {
			many := make([]byte, 0, 7*len(frame))
			for range 7 {
				many = append(many, frame...)
			}
			for at := 0; ; at = (at + 101) % len(many) {
				if n, err := c.Write(many[at:min(at+101, len(many))]); err != nil {
					return
				} else if at+n == len(many) {
					at = -101
				}
			}
		}, "1001 the server is shutting down"},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1, secure, c.config, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					conn, _ := take(w)
					go c.write(conn)
					go serveUntilClose(conn)
				}))
				p := w.open()
				done := make(chan error)
				go func() { done <- w.guard.Shutdown(t.Context()) }()
				if got := p.closes(); got != c.want {
					t.Errorf("%q, not %q", got, c.want)
				}
				p.Write(masked(0x88, "\x03\xe9"))
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

// When the context is done, sockets whose peers do not answer are closed at once.
func TestShutdownCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := bubble(t, Config{}, serveUntilClose)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		if err := g.Shutdown(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if took := time.Since(begin); g.Len() != 0 || took != 0 {
			t.Errorf("%d sockets after %v", g.Len(), took)
		}
	})
}

// slowCloser is a store that cannot close slots.
type slowCloser struct {
	core.SlotStore

	mu     sync.Mutex
	closed []string
}

func (s *slowCloser) CloseSlots(ctx context.Context, name string) error {
	s.mu.Lock()
	if ctx.Err() == nil {
		s.closed = append(s.closed, name)
	}
	s.mu.Unlock()
	<-ctx.Done()
	return fmt.Errorf("%s: %w", name, ctx.Err())
}

// A store that cannot close the slots of one rule does not keep Shutdown from closing those
// of the others. All errors are returned, after conn.CloseTimeout even if the context is done.
func TestShutdownWithASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowCloser{SlotStore: memstore.New(memstore.Config{})}
		g, err := New(Config{Rules: []nethttp.Rule{
			{Slots: newSlots(t, store, "a", 1), Key: keyfuncs.Everyone()},
			{Slots: newSlots(t, store, "b", 1), Key: keyfuncs.Everyone()},
			{Slots: newSlots(t, store, "c", 1), Key: keyfuncs.Everyone()},
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		err = g.Shutdown(ctx)
		if slices.Sort(store.closed); strings.Join(store.closed, "") != "abc" || time.Since(begin) != conn.CloseTimeout {
			t.Errorf("closed %q in %v", store.closed, time.Since(begin))
		}
		for _, name := range []string{"a", "b", "c"} {
			if err == nil || !strings.Contains(err.Error(), name+": ") {
				t.Errorf("no error of %q in %v", name, err)
			}
		}
	})
}

// An upgrade in progress when the guard shuts down is closed as soon as it is complete.
func TestShutdownBeforeTheUpgrade(t *testing.T) {
	begun, shut := make(chan struct{}), make(chan struct{})
	w := newWorld(t, 1, false, Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-shut
		conn, _ := take(w)
		serveUntilClose(conn)
	}))
	p := w.dial(handshakeText)
	<-begun
	done := make(chan error)
	go func() { done <- w.guard.Shutdown(t.Context()) }()
	for !w.guard.fleet.Draining() {
	}
	for _, s := range w.guard.all() {
		for closing := false; !closing; {
			_, _, closing = s.life.Closing()
		}
	}
	close(shut)
	p.respond()
	if got := p.closes(); !strings.HasPrefix(got, "1001 ") {
		t.Error(got)
	}
	p.send(masked(0x88, ""))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// EventLost is also sent for a socket whose slot is lost already.
func TestLostAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counter{Noticer: memstore.New(memstore.Config{}), lost: make(chan struct{})}
		lost := 0
		g, err := New(Config{
			Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 2), Key: keyfuncs.Everyone()}},
			Notify: func(_ *Socket, e Event) {
				if e.Kind == EventLost {
					lost++
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		first := g.Check(upgradeRequest())
		close(store.lost)
		synctest.Wait()
		second := g.Check(upgradeRequest())
		synctest.Wait()
		if lost != 2 {
			t.Errorf("%d events, not 2", lost)
		}
		socketOf(first).life.End()
		socketOf(second).life.End()
	})
}

func TestLost(t *testing.T) {
	w := newWorld(t, 3, false, Config{OnExcess: Shed}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _ := take(w)
		go serveUntilClose(conn)
	}))
	w.store.lost = make(chan struct{})
	a, b := w.open(), w.open()
	close(w.store.lost)
	w.until(EventLost)
	w.until(EventLost)
	c := w.open() // whose slot is lost already
	w.until(EventLost)
	for _, p := range []*peer{a, b, c} { // nothing is too many
		p.send(masked(0x88, ""))
		w.until(EventClosed)
	}
}

// pipe is a server's writer whose connection is a net.Pipe.
type pipe struct {
	silent

	conn net.Conn
}

func (p *pipe) Hijack() (net.Conn, *bufio.ReadWriter, error) { return p.conn, nil, nil }

// bubble runs a handler on a pipe, and returns the guard and the peer.
func bubble(t *testing.T, config Config, handler func(net.Conn)) (*Guard, *peer) {
	t.Helper()
	g := newGuard(t, config)
	return g, pipeTo(t, g, handler)
}

// pipeTo opens a socket through a guard.
func pipeTo(t *testing.T, g *Guard, handler func(net.Conn)) *peer {
	t.Helper()
	client, server := net.Pipe()
	go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _ := take(w)
		handler(c)
	})).ServeHTTP(&pipe{conn: server}, upgradeRequest())
	p := &peer{t: t, Conn: client, in: bufio.NewReader(client)}
	p.respond()
	return p
}

func TestIdleAndAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []EventKind
		note := func(_ *Socket, e Event) { events = append(events, e.Kind) }
		g, p := bubble(t, Config{MaxIdle: time.Minute, Notify: note}, serveUntilClose)
		for range 10 {
			time.Sleep(59 * time.Second)
			p.send(masked(0x8a, "pong"))
		}
		synctest.Wait()
		if g.Len() != 1 {
			t.Fatal("a socket whose pongs arrive was closed")
		}
		begin := time.Now()
		if got := p.closes(); !strings.HasPrefix(got, "1001 ") || time.Since(begin) != time.Minute {
			t.Error(got, time.Since(begin))
		}
		p.send(masked(0x88, ""))
		synctest.Wait()
		if g.Len() != 0 || len(events) != 2 || events[0] != EventIdle || events[1] != EventClosed {
			t.Error(g.Len(), events)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, p := bubble(t, Config{MaxIdle: time.Hour, MaxAge: time.Minute}, serveUntilClose)
		if got := p.closes(); !strings.HasPrefix(got, "1001 ") || !aged(time.Since(begin)) {
			t.Error(got, time.Since(begin))
		}
		// The peer does not answer.
		if _, _, err := p.frame(); !errors.Is(err, io.EOF) || !aged(time.Since(begin)-conn.CloseTimeout) {
			t.Error(err, time.Since(begin))
		}
	})
}

// aged reports whether a MaxAge of a minute may have ended a socket of that age.
func aged(age time.Duration) bool { return age >= 54*time.Second && age <= time.Minute }

// A peer that does not read cannot keep its socket open: neither a blocked write nor the
// Close frame delays the end.
func TestPeersThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		g, p := bubble(t, Config{MaxAge: time.Minute}, func(c net.Conn) {
			defer c.Close()
			for err := error(nil); err == nil; {
				_, err = c.Write([]byte{0x81, 2, 'h', 'i'})
			}
		})
		if err := g.Shutdown(t.Context()); err != nil || time.Since(begin) != conn.CloseTimeout {
			t.Error(err, time.Since(begin))
		}
		_ = p
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
		for _, s := range g.all() {
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
		if g.Len() != 0 {
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
			for _, s := range g.all() {
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
		for _, s := range g.all() {
			s.Close(1001, "")
		}
		got := p.closes()
		synctest.Wait() // the slot is released after the connection is closed
		if got != "error" || g.Len() != 0 {
			t.Error(got, g.Len())
		}
	})
}

// A handler that neither upgrades nor returns does not block Shutdown. If it upgrades later,
// its connection is closed.
func TestShutdownOfHandlersThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Config{Rules: []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}}})
		if err != nil {
			t.Fatal(err)
		}
		client, server := net.Pipe()
		begun, shut := make(chan struct{}), make(chan struct{})
		go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(begun)
			<-shut
			w.(http.Hijacker).Hijack()
			serveUntilClose(server)
		})).ServeHTTP(&pipe{conn: server}, upgradeRequest())
		<-begun
		begin := time.Now()
		if err := g.Shutdown(context.Background()); err != nil || time.Since(begin) != conn.CloseTimeout {
			t.Error(err, time.Since(begin))
		}
		close(shut)
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || time.Since(begin) != conn.CloseTimeout {
			t.Error(err, time.Since(begin))
		}
		synctest.Wait()
		if g.Len() != 0 {
			t.Error("still open")
		}
	})
}

// EventClosed is the last event, even if a callback ends other sockets.
func TestClosedIsTheLastEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counter{Noticer: memstore.New(memstore.Config{}), lost: make(chan struct{})}
		var both [2]nethttp.Verdict
		var events []EventKind
		g, err := New(Config{
			Rules: []nethttp.Rule{{Slots: newSlots(t, store, "ws", 2), Key: keyfuncs.Everyone()}},
			Notify: func(_ *Socket, e Event) {
				events = append(events, e.Kind)
				if e.Kind == EventLost {
					socketOf(both[0]).life.End()
					socketOf(both[1]).life.End()
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		both = [2]nethttp.Verdict{g.Check(upgradeRequest()), g.Check(upgradeRequest())}
		close(store.lost)
		synctest.Wait()
		if !slices.Equal(events, []EventKind{EventLost, EventClosed, EventClosed}) {
			t.Error(events)
		}
	})
}

// Sockets whose slots are never lost leave no goroutine behind.
func TestWatchersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		store := &counter{Noticer: memstore.New(memstore.Config{}), lost: make(chan struct{}), doubt: make(chan struct{})}
		g, err := New(Config{
			Rules:  []nethttp.Rule{{Slots: newSlots(t, store, "ws", 2), Key: keyfuncs.Everyone()}},
			Notify: func(*Socket, Event) {}, OnExcess: Shed,
		})
		if err != nil {
			t.Fatal(err)
		}
		a, b := g.Check(upgradeRequest()), g.Check(upgradeRequest())
		socketOf(a).life.End()
		socketOf(b).life.End()
	})
}

// An upgrade that waits when the guard shuts down is refused then, and its units go back.
func TestShutdownWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := newLimiter(t, core.SlidingLog(core.PerHour(100)))
		key := keyfuncs.Everyone()
		g, err := New(Config{
			Rules: []nethttp.Rule{
				{Limiter: rate, Key: key},
				{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: key, Queue: 1},
			},
			Wait: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		first := g.Check(upgradeRequest())
		var second nethttp.Verdict
		done := make(chan struct{})
		go func() {
			second = g.Check(upgradeRequest())
			close(done)
		}()
		synctest.Wait()
		time.Sleep(time.Minute)
		if err := g.Shutdown(t.Context()); err != nil { // which ends the first
			t.Error(err)
		}
		<-done
		first.End(nethttp.Outcome{})
		everyone, _ := key(nil)
		d, err := rate.Peek(t.Context(), everyone)
		if second.Status() != 503 || !errors.Is(second.Err, core.ErrClosed) || err != nil || d.Remaining != 99 || g.Len() != 0 {
			t.Errorf("%d, %v; %d left, %v", second.Status(), second.Err, d.Remaining, err)
		}
	})
}
