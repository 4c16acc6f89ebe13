package websocketmw

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/keyfuncs"
)

// heard is what a handler read.
type heard struct {
	sums [Bytes + 1]int64
	err  error
	done chan struct{}
}

// listen reads until an error, and closes.
func (h *heard) listen(c net.Conn) {
	defer close(h.done)
	defer c.Close()
	var w walker
	b := make([]byte, 512)
	for h.err == nil {
		var n int
		n, h.err = c.Read(b)
		walkUnits(&w, b[:n], func(_ int, u Unit, n int64) bool {
			h.sums[u] += n
			return true
		})
	}
}

func newLimiter(t *testing.T, policies ...core.Policy) *core.Limiter {
	t.Helper()
	l, err := core.New(memstore.New(memstore.Config{}), "sent", policies...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestInboundCloses(t *testing.T) {
	five := strings.Repeat(string(masked(0x81, "hello")), 5)
	pieces := string(masked(0x01, "a")) + strings.Repeat(string(masked(0x00, "b")), 9)
	pings := strings.Repeat(string(masked(0x89, "ping")), 20)
	for _, c := range []struct {
		name  string
		unit  Unit
		limit int64
		sent  string
		want  int64 // units that the handler reads
		close string
	}{
		{"messages within the limit", Messages, 5, five + pings, 5, ""},
		{"one too many", Messages, 4, five, 4, `1008 over the limit "sent"`},
		{"the first is too many", Messages, 1, five, 1, `1008 over the limit "sent"`},
		{"a message is one, in however many pieces", Messages, 1, pieces, 1, ""},
		{"frames", Frames, 7, pieces, 7, `1008 over the limit "sent"`},
		{"frames within", Frames, 10, pieces, 10, ""},
		{"bytes within", Bytes, 25, five, 25, ""},
		{"bytes", Bytes, 24, five, -1, `1008 over the limit "sent"`},
		{"a frame that claims to be endless", Bytes, 100, "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xffmask" + strings.Repeat("x", 101), -1, `1008 over the limit "sent"`},
		{"control frames", Frames, 1, pings, 0, ""},
	} {
		for _, together := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := heard{done: make(chan struct{})}
					over := 0
					g, p := bubble(t, Config{
						Inbound: []Inbound{{Limiter: newLimiter(t, core.SlidingLog(core.PerHour(c.limit))), Unit: c.unit}},
						Notify: func(_ *Socket, e Event) {
							if e.Kind == EventOver && e.Limit == "sent" && e.Err == nil {
								over++
							}
						},
					}, h.listen)
					go func() {
						if together {
							p.Write([]byte(c.sent))
						} else {
							for i := range len(c.sent) {
								p.Write([]byte(c.sent[i : i+1]))
							}
						}
						p.Write(masked(0x88, ""))
						if c.close == "" {
							p.Close()
						}
					}()
					if c.close != "" {
						if got := p.closes(); got != c.close {
							t.Errorf("%q, not %q", got, c.close)
						}
						p.Close()
					}
					<-h.done
					synctest.Wait()
					if c.want >= 0 && h.sums[c.unit] != c.want || h.sums[c.unit] > c.limit {
						t.Errorf("the handler read %d, not %d", h.sums[c.unit], c.want)
					}
					if refused := c.close != ""; errors.Is(h.err, errOver) != refused || (over == 1) != refused || g.Len() != 0 {
						t.Errorf("%v, %d events, %d sockets", h.err, over, g.Len())
					}
				})
			})
		}
	}
}

// Delayed messages all arrive, and no faster than the limit.
func TestInboundDelays(t *testing.T) {
	for _, c := range []struct {
		unit Unit
		want time.Duration
	}{
		{Messages, 9 * time.Second},
		{Bytes, 49 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := heard{done: make(chan struct{})}
			_, p := bubble(t, Config{
				Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerSecond(1), 1)), Unit: c.unit, Over: Delay}},
			}, h.listen)
			begin := time.Now()
			p.send([]byte(strings.Repeat(string(masked(0x81, "hello")), 10)))
			p.Close()
			<-h.done
			if took := time.Since(begin).Truncate(time.Second); h.sums[Messages] != 10 || took != c.want {
				t.Errorf("%v, %v", h.sums, took)
			}
		})
	}
}

// A delay is at most half of the time left to the read deadline, and at most ten seconds,
// and ends when the socket is closed.
func TestDelaysAreBounded(t *testing.T) {
	for _, c := range []struct {
		deadline, want time.Duration
	}{{0, maxDelay}, {time.Hour, maxDelay}, {8 * time.Second, 4 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			begin, read := time.Now(), make(chan time.Duration, 9)
			_, p := bubble(t, Config{
				Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerHour(1), 1)), Over: Delay}},
			}, func(conn net.Conn) {
				defer conn.Close()
				b := make([]byte, 4096)
				for range 2 {
					if c.deadline > 0 {
						conn.SetReadDeadline(time.Now().Add(c.deadline))
					}
					if _, err := conn.Read(b); err != nil {
						t.Error(err)
					}
					read <- time.Since(begin)
				}
			})
			p.send(masked(0x81, "a"))
			p.send(masked(0x81, "b"))
			if a, b := <-read, <-read; a != 0 || b != c.want {
				t.Error(a, b)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		g, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerHour(1), 1)), Over: Delay}},
		}, h.listen)
		p.send(masked(0x81, "a"))
		p.send(masked(0x81, "b"))
		synctest.Wait()
		begin := time.Now()
		for _, s := range g.all() {
			s.cut()
		}
		<-h.done
		if h.err == nil || time.Since(begin) != 0 {
			t.Error(h.err, time.Since(begin))
		}
	})
}

// Several limits delay the same bytes for no longer than one.
func TestDelaysDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		slow := func() Inbound {
			return Inbound{Limiter: newLimiter(t, core.TokenBucket(core.PerHour(1), 1)), Over: Delay}
		}
		_, p := bubble(t, Config{Inbound: []Inbound{slow(), slow(), slow()}}, h.listen)
		begin := time.Now()
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		p.Close()
		<-h.done
		if took := time.Since(begin); h.sums[Messages] != 2 || took != maxDelay {
			t.Error(h.sums, took)
		}
	})
}

// A delay ends when the guard closes the socket, and the peer's answer is read.
func TestDelaysHeedClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		g, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerHour(1), 1)), Over: Delay}},
		}, h.listen)
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		synctest.Wait()
		begin := time.Now()
		for _, s := range g.all() {
			s.Close(1001, "bye")
		}
		if got := p.closes(); got != "1001 bye" {
			t.Error(got)
		}
		p.send(masked(0x88, "\x03\xe9"))
		p.Close()
		<-h.done
		if took := time.Since(begin); h.sums[Messages] != 2 || took != 0 {
			t.Error(h.sums, took)
		}
	})
}

// A delayed socket is not idle.
func TestDelaysAreNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerHour(1), 1)), Over: Delay}},
			MaxIdle: maxDelay / 2,
		}, h.listen)
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		begin := time.Now()
		if got := p.closes(); !strings.HasPrefix(got, "1001 nothing was received") || time.Since(begin) != maxDelay+maxDelay/2 {
			t.Error(got, time.Since(begin))
		}
		p.Close()
		<-h.done
	})
}

func TestInboundReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		over := 0
		_, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.Blocked()), Over: Report}},
			Notify: func(_ *Socket, e Event) {
				if e.Kind == EventOver {
					over++
				}
			},
		}, h.listen)
		for range 3 {
			p.send(masked(0x81, "hello"))
		}
		p.Close()
		<-h.done
		if h.sums[Messages] != 3 || over != 3 {
			t.Error(h, over)
		}
	})
}

// There is no delay for what the limiter can never admit.
func TestDelayForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.Blocked()), Over: Delay}}}, h.listen)
		go p.Write(masked(0x81, "hello"))
		if got := p.closes(); !strings.HasPrefix(got, "1008 ") {
			t.Error(got)
		}
		p.Close()
	})
}

// Sockets with the same key share a limit.
func TestSharedBudgets(t *testing.T) {
	for _, shared := range []bool{false, true} {
		in := Inbound{Limiter: newLimiter(t, core.SlidingLog(core.PerHour(3)))}
		if shared {
			in.Key = keyfuncs.Everyone()
		}
		var refused int
		w := newWorld(t, 2, false, Config{Inbound: []Inbound{in}}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _ := take(w)
			go func() {
				defer c.Close()
				for b := make([]byte, 100); ; {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					c.Write(append([]byte{0x82, byte(n)}, b[:n]...))
				}
			}()
		}))
		for range 2 {
			p := w.open()
			for range 3 {
				p.send(masked(0x81, "hello"))
				if op, _, err := p.frame(); err != nil || op == opClose {
					refused++
					break
				}
			}
			p.Close()
			w.until(EventClosed)
		}
		if (refused == 1) != shared {
			t.Errorf("shared %v: %d sockets were closed", shared, refused)
		}
	}
}

// broken is a store that is unreachable.
type broken struct{ core.Store }

func (broken) Decide(context.Context, core.Charge, bool) (core.Result, error) {
	return core.Result{}, core.ErrUnavailable
}

// If the store is unreachable, Close closes with 1013, and Delay and Report read on.
func TestInboundStoreAway(t *testing.T) {
	for over, want := range map[Over]string{Close: "1013 try again later", Delay: "error", Report: "error"} {
		synctest.Test(t, func(t *testing.T) {
			l, err := core.New(broken{memstore.New(memstore.Config{})}, "sent", core.SlidingLog(core.PerHour(1)))
			if err != nil {
				t.Fatal(err)
			}
			h := heard{done: make(chan struct{})}
			told := false
			_, p := bubble(t, Config{
				Inbound: []Inbound{{Limiter: l, Over: over}},
				Notify:  func(_ *Socket, e Event) { told = told || errors.Is(e.Err, core.ErrUnavailable) },
			}, h.listen)
			go func() {
				p.Write(masked(0x81, "hello"))
				if over != Close {
					p.Close()
				}
			}()
			if got := p.closes(); got != want {
				t.Errorf("%q, not %q", got, want)
			}
			p.Close()
			<-h.done
			if !told || (over == Close) != (h.sums[Messages] == 0) {
				t.Error(told, h)
			}
		})
	}
}

func TestInboundKeys(t *testing.T) {
	g, err := New(Config{
		Rules:   []Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}},
		Inbound: []Inbound{{Limiter: newLimiter(t, core.Unlimited()), Key: keyfuncs.Header("X-User")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if v := g.Check(upgradeRequest()); v.Status() != 400 || !errors.Is(v.Err, keyfuncs.ErrAbsent) || g.Len() != 0 {
		t.Errorf("%+v", v)
	}
	if v := g.Check(upgradeRequest("X-User", "ann")); v.Status() != 0 {
		t.Errorf("%+v", v)
	}
	_, err = New(Config{
		Rules:   []Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}},
		Inbound: []Inbound{{Unit: 9, Over: 9}},
	})
	for _, field := range []string{"Inbound[0].Limiter", "Inbound[0].Unit", "Inbound[0].Over"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("no %s in %v", field, err)
		}
	}
}

// early is a pipe whose server read more than the handshake.
type early struct {
	pipe

	sent string
}

func (e *early) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r := bufio.NewReader(io.MultiReader(strings.NewReader(e.sent), e.conn))
	_, _ = r.Peek(len(e.sent))
	return e.conn, bufio.NewReadWriter(r, bufio.NewWriter(e.conn)), nil
}

// A client that sends too much with the handshake gets a Close frame at once.
func TestTooMuchTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Config{
			Rules:   []Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}},
			Inbound: []Inbound{{Limiter: newLimiter(t, core.SlidingLog(core.PerHour(2)))}},
		})
		if err != nil {
			t.Fatal(err)
		}
		message := string(masked(0x81, "hello"))
		client, server := net.Pipe()
		begin := time.Now()
		go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rw := take(w)
			defer c.Close()
			if got, err := io.ReadAll(rw); string(got) != message+message || !errors.Is(err, errOver) {
				t.Errorf("%q, %v", got, err)
			}
		})).ServeHTTP(&early{pipe{conn: server}, strings.Repeat(message, 3)}, upgradeRequest())
		p := &peer{t: t, Conn: client, in: bufio.NewReader(client)}
		p.respond()
		if got := p.closes(); !strings.HasPrefix(got, "1008 ") || time.Since(begin) != 0 {
			t.Error(got, time.Since(begin))
		}
		p.Close()
	})
}

// The guard does not wait for a second Close frame of a peer whose own came with the excess.
func TestTooMuchAndClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		begin := time.Now()
		_, p := bubble(t, Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.Blocked())}}}, h.listen)
		go p.Write(append(masked(0x81, "hello"), masked(0x88, "")...))
		if got := p.closes(); !strings.HasPrefix(got, "1008 ") {
			t.Error(got)
		}
		if <-h.done; time.Since(begin) != 0 {
			t.Error(time.Since(begin))
		}
	})
}

// A socket over a limit is read until the peer answers, whatever the handler's read deadline:
// otherwise the peer might lose the Close frame. A peer that does not answer is cut off.
func TestTooMuchAndSlow(t *testing.T) {
	for _, c := range []struct{ answers, want time.Duration }{
		{3 * time.Second, 3 * time.Second},
		{time.Hour, closeTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := heard{done: make(chan struct{})}
			begin := time.Now()
			_, p := bubble(t, Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.Blocked())}}}, func(conn net.Conn) {
				conn.SetReadDeadline(begin.Add(time.Second))
				h.listen(conn)
			})
			go p.Write(masked(0x81, "hello"))
			if got := p.closes(); !strings.HasPrefix(got, "1008 ") {
				t.Error(got)
			}
			answer := time.AfterFunc(c.answers, func() { p.Write(masked(0x88, "")) })
			<-h.done
			if took := time.Since(begin); took != c.want {
				t.Errorf("%v, not %v", took, c.want)
			}
			answer.Stop()
			p.Close()
		})
	}
}

// A socket over two limits is closed for the first.
func TestTwoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second, err := core.New(memstore.New(memstore.Config{}), "second", core.Blocked())
		if err != nil {
			t.Fatal(err)
		}
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.Blocked())}, {Limiter: second}}}, h.listen)
		go p.Write(masked(0x81, "hello"))
		if got := p.closes(); got != `1008 over the limit "sent"` {
			t.Error(got)
		}
		p.Close()
		<-h.done
	})
}

// A delayed read ends at once when another goroutine closes the connection.
func TestDelaysHeedTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		conns := make(chan net.Conn, 1)
		_, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.PerHour(1), 1)), Over: Delay}},
		}, func(c net.Conn) {
			conns <- c
			h.listen(c)
		})
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		synctest.Wait()
		begin := time.Now()
		(<-conns).Close()
		<-h.done
		if h.err == nil || time.Since(begin) != 0 {
			t.Error(h.err, time.Since(begin))
		}
	})
}
