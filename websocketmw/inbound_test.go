package websocketmw

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/store"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/nethttp"
	"github.com/headgate/headgate/websocketmw/internal/conn"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// heard is what a handler read.
type heard struct {
	sums frames.Tally
	err  error
	done chan struct{}
}

// listen reads until an error, and closes.
func (h *heard) listen(c net.Conn) {
	defer close(h.done)
	defer c.Close()
	var in frames.Inspector
	b := make([]byte, 512)
	for h.err == nil {
		var n int
		n, h.err = c.Read(b)
		var found frames.Found
		if agreed := frames.ExtensionsOf("any"); !found.Walk(&in, b[:n], agreed) {
			found.Go(b[:n], agreed, make([]frames.Frame, len(b)))
		}
		in = found.After
		for u, n := range found.Used {
			h.sums[u] += n
		}
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
		{"bytes", Bytes, 24, five, 24, `1008 over the limit "sent"`},
		{"bytes of empty messages", Bytes, 3, strings.Repeat(string(masked(0x81, "")), 9), 3, `1008 over the limit "sent"`},
		{"more than the limit could ever admit at once", Messages, 3, strings.Repeat(five, 100), 3, `1008 over the limit "sent"`},
		{"a frame that claims to be endless", Bytes, 100, "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xffmask" + strings.Repeat("x", 101), 100, `1008 over the limit "sent"`},
		{"control frames are no frames of messages", Frames, 1, pings, 0, ""},
		{"control frames", Controls, 7, pings, 7, `1008 over the limit "sent"`},
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
					if h.sums[c.unit] != c.want {
						t.Errorf("the handler read %d, not %d", h.sums[c.unit], c.want)
					}
					if refused := c.close != ""; errors.Is(h.err, conn.ErrOver) != refused || (over == 1) != refused || g.Len() != 0 {
						t.Errorf("%v, %d events, %d sockets", h.err, over, g.Len())
					}
				})
			})
		}
	}
}

// What RFC 6455 forbids is not read, whatever the Config, and closes the socket with 1002.
func TestInvalidFrames(t *testing.T) {
	message := string(masked(0x81, "hello"))
	for _, c := range []struct{ sent, want string }{
		{string(masked(0x83, "x")), "1002 a reserved opcode"},
		{string(masked(0x8b, "x")), "1002 a reserved opcode"},
		{"\x81\x05hello", "1002 a frame that is not masked"},
		{"\x82\xff\x80\x00\x00\x00\x00\x00\x00\x05maskhello", "1002 a length of 2^63 or more"},
		{string(masked(0x80, "x")), "1002 a continuation of nothing"},
		{string(masked(0xc1, "x")), "1002 a reserved bit"},
	} {
		for _, config := range []Config{
			{},
			{Inbound: []Inbound{{Limiter: newLimiter(t, core.Unlimited()), Unit: Bytes, Over: Report}}},
		} {
			synctest.Test(t, func(t *testing.T) {
				var events []Event
				config.Notify = func(_ *Socket, e Event) { events = append(events, e) }
				h := heard{done: make(chan struct{})}
				begin := time.Now()
				_, p := bubble(t, config, h.listen)
				go p.Write([]byte(message + c.sent + message + string(masked(0x88, ""))))
				if got := p.closes(); got != c.want {
					t.Errorf("%q: %q, not %q", c.sent, got, c.want)
				}
				p.Close()
				<-h.done
				if h.sums != (frames.Tally{1, 1, 5, 0}) || !errors.Is(h.err, conn.ErrInvalid) || !errors.Is(h.err, net.ErrClosed) || time.Since(begin) != 0 {
					t.Errorf("%q: %v, %v", c.sent, h.sums, h.err)
				}
				if len(events) != 2 || events[0].Kind != EventInvalid || !strings.HasSuffix(events[0].Err.Error(), strings.TrimPrefix(c.want, "1002")) {
					t.Errorf("%q: %v", c.sent, events)
				}
			})
		}
	}
}

// headed is a pipe that keeps the header.
type headed struct {
	pipe

	header http.Header
}

func (h *headed) Header() http.Header { return h.header }

// What the 101 says decides about the reserved bits, not what the client offered.
func TestAgreedExtensions(t *testing.T) {
	write := func(step int) func(http.ResponseWriter, string) net.Conn {
		return func(w http.ResponseWriter, agreed string) net.Conn {
			c, _, _ := w.(http.Hijacker).Hijack()
			response := strings.TrimSuffix(response101, "\r\n") + agreed + "\r\n"
			for piece := range pieces([]byte(response), []int{step}) {
				c.Write(piece)
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
		for agreed, want := range map[string]string{
			"":                                   "a reserved bit",
			"Sec-WebSocket-Extensions: \r\n":     "a reserved bit",
			"X: Sec-WebSocket-Extensions: a\r\n": "a reserved bit",
			"Sec-WebSocket-Extensions: permessage-deflate; a=b\r\n": "",
			"sec-websocket-extensions:foo\r\n":                      "",
		} {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				h := heard{done: make(chan struct{})}
				r := upgradeRequest("Sec-WebSocket-Extensions", "permessage-deflate, foo")
				go newGuard(t, Config{}).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					h.listen(respond(w, agreed))
				})).ServeHTTP(&headed{pipe{conn: server}, http.Header{}}, r)
				go io.Copy(io.Discard, client)
				client.Write(masked(0xc1, "compressed"))
				client.Write(masked(0x88, ""))
				client.Close()
				<-h.done
				if (h.sums[Messages] == 1) != (want == "") || errors.Is(h.err, conn.ErrInvalid) != (want != "") {
					t.Errorf("%q: %v, %v", agreed, h.sums, h.err)
				}
			})
		}
	}
}

// Control frames are limited in any case, and those that the server asked for are free.
func TestControlFrames(t *testing.T) {
	ping, pong := masked(0x89, ""), masked(0x8a, "")
	over := `1008 over the limit "control-frames"`
	every := func(d time.Duration, frame []byte, n int) func(*peer) {
		return func(p *peer) {
			for range n {
				p.Write(frame)
				time.Sleep(d)
			}
		}
	}
	answers := func(*peer) {} // by the reader
	for _, c := range []struct {
		name   string
		config Config
		pings  int // of the server
		send   func(*peer)
		want   int64
		close  string
	}{
		{"a burst", Config{}, 0, every(0, ping, 200), 200, ""},
		{"one too many", Config{}, 0, every(0, ping, 201), 200, over},
		{"many in a read", Config{}, 0, every(0, bytes.Repeat(pong, 80), 3), 200, over},
		{"the rate", Config{}, 0, every(time.Second/20, ping, 10_000), 10_000, ""},
		{"faster than the rate", Config{}, 0, every(time.Second/(20*2), ping, 10_000), 399, over},
		{"answers", Config{}, 1000, answers, 0, ""},
		{"answers that nobody asked for", Config{}, 0, every(0, pong, 201), 200, over},
		{"a Close frame", Config{}, 0, every(0, masked(0x88, ""), 1), 0, ""},
		{"Close frames", Config{}, 0, every(0, masked(0x88, ""), 202), 200, over},
		{
			"another limit", Config{Inbound: []Inbound{{Unit: Controls, Limiter: newLimiter(t, core.TokenBucket(core.PerSecond(1), 3))}}},
			0, every(0, ping, 4), 3, `1008 over the limit "sent"`,
		},
		{"no limit", Config{Inbound: []Inbound{{Unit: Controls, Limiter: newLimiter(t, core.Unlimited())}}}, 0, every(0, ping, 10_000), 10_000, ""},
		{
			"beside a limit on messages", Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.SlidingLog(core.PerHour(1)))}}},
			0, every(0, ping, 201), 200, over,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := heard{done: make(chan struct{})}
				g, p := bubble(t, c.config, func(conn net.Conn) {
					go func() {
						for range c.pings {
							conn.Write([]byte{0x89, 0})
						}
					}()
					h.listen(conn)
				})
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					c.send(p)
				}()
				got := make(chan string, 1)
				go func() {
					for answered := 0; ; {
						op, payload, err := p.frame()
						switch {
						case err != nil:
							got <- ""
							return
						case op == 0x8: // Close
							got <- fmt.Sprintf("%d %s", binary.BigEndian.Uint16(payload), payload[2:])
							p.Close()
							return
						default:
							p.Write(pong)
							if answered++; answered == c.pings {
								p.Close()
							}
						}
					}
				}()
				<-sent
				synctest.Wait()
				for _, s := range g.all() {
					s.life.Cut()
				}
				<-h.done
				// The answer to the last ping may be read before the guard knows that it was sent.
				if n := h.sums[Controls]; c.pings == 0 && n != c.want {
					t.Errorf("the handler read %d", n)
				}
				if g := <-got; g != c.close {
					t.Errorf("%q, not %q", g, c.close)
				}
			})
		})
	}
}

// The guard does not see pings behind NoCloseFrames, so pongs count.
func TestControlFramesUnfollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{NoCloseFrames: true}, h.listen)
		go io.Copy(io.Discard, p.Conn)
		for range 300 {
			p.Write(masked(0x8a, ""))
		}
		if <-h.done; h.sums[Controls] != 200 || !errors.Is(h.err, conn.ErrOver) {
			t.Error(h.sums, h.err)
		}
	})
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

// If the limiter would delay a read by more than ten seconds, or half of the time left to the
// read deadline, the socket is closed.
func TestDelaysAreBounded(t *testing.T) {
	for _, c := range []struct {
		every, deadline time.Duration
		closed          bool
	}{
		{(10 * time.Second), 0, false},
		{(10 * time.Second) + time.Microsecond, 0, true},
		{(10 * time.Second), time.Hour, false},
		{time.Hour, 9 * time.Hour, true},
		{4 * time.Second, 8 * time.Second, false},
		{4 * time.Second, 8*time.Second - 2, true},
		{time.Microsecond, -1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, read := time.Now(), make(chan error, 2)
			_, p := bubble(t, Config{
				Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.Every(c.every), 1)), Over: Delay}},
			}, func(conn net.Conn) {
				defer conn.Close()
				b := make([]byte, 4096)
				for i := range 2 {
					if c.deadline != 0 && i > 0 {
						conn.SetReadDeadline(time.Now().Add(c.deadline))
					}
					_, err := conn.Read(b)
					read <- err
				}
			})
			p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
			if c.closed {
				if got := p.closes(); got != `1008 over the limit "sent"` {
					t.Errorf("%+v: %q", c, got)
				}
				p.send(masked(0x88, ""))
			}
			if err := <-read; err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			err, took := <-read, time.Since(begin)
			if c.closed != errors.Is(err, conn.ErrOver) || !c.closed && took != c.every || c.closed && took != 0 {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
			p.Close()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		g, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.Every((10*time.Second)), 1)), Over: Delay}},
		}, h.listen)
		p.send(masked(0x81, "a"))
		p.send(masked(0x81, "b"))
		synctest.Wait()
		begin := time.Now()
		for _, s := range g.all() {
			s.life.Cut()
		}
		<-h.done
		if h.err == nil || h.sums[Messages] != 1 || time.Since(begin) != 0 {
			t.Error(h.err, h.sums, time.Since(begin))
		}
	})
}

// Delayed sockets never get more than the policies have room for, and no less than they could:
// whatever is sent at once, however it is read, and with any mixture of limits.
func TestDelaysNeverExceed(t *testing.T) {
	message, empty, ping := string(masked(0x81, "hello")), string(masked(0x81, "")), string(masked(0x89, ""))
	for _, c := range []struct {
		name   string
		unit   Unit
		policy core.Policy
		sent   string
		size   int     // of reads
		want   []int64 // units at the end of each second
	}{
		{"many in a read", Messages, core.TokenBucket(core.PerSecond(2), 5), strings.Repeat(empty, 600), 4096, []int64{6, 8, 10, 12}},
		{"many in small reads", Messages, core.TokenBucket(core.PerSecond(2), 5), strings.Repeat(empty, 600), 3, []int64{6, 8, 10, 12}},
		{"more than could ever be admitted at once", Frames, core.SlidingLog(core.Rate{Events: 3, Per: 2 * time.Second}), strings.Repeat(empty, 600), 4096, []int64{3, 3, 6, 6, 9}},
		{"calls, not units", Messages, core.MinInterval(time.Second), strings.Repeat(empty, 600), 4096, []int64{1, 2, 3, 4}},
		{"refused ones count", Messages, core.SlidingLog(core.PerSecond(3)).CountDenied(), strings.Repeat(empty, 600), 4096, []int64{3, 6, 9, 12}},
		{"bytes", Bytes, core.TokenBucket(core.PerSecond(100), 10), strings.Repeat(message, 600), 4096, []int64{109, 209, 309}},
		{"empty messages", Bytes, core.TokenBucket(core.PerSecond(100), 10), strings.Repeat(empty, 600), 4096, []int64{109, 209, 309}},
		{"pings", Controls, core.TokenBucket(core.PerSecond(1), 1), strings.Repeat(ping, 600), 4096, []int64{1, 2, 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var in frames.Inspector
				var read atomic.Int64
				g, p := bubble(t, Config{Inbound: []Inbound{
					{Limiter: newLimiter(t, core.Unlimited()), Unit: Messages, Over: Delay},
					{Limiter: newLimiter(t, c.policy), Unit: c.unit, Over: Delay},
					{Limiter: newLimiter(t, core.TokenBucket(core.PerSecond(1000), 1000)), Unit: Messages, Over: Delay},
				}}, func(conn net.Conn) {
					defer conn.Close()
					b := make([]byte, c.size)
					for {
						n, err := conn.Read(b)
						if err != nil {
							return
						}
						var found frames.Found
						if !found.Walk(&in, b[:n], 0) {
							found.Go(b[:n], 0, make([]frames.Frame, len(b)))
						}
						in = found.After
						read.Add(found.Used[c.unit])
					}
				})
				go p.Write([]byte(c.sent))
				for second, want := range c.want {
					time.Sleep(time.Second - time.Nanosecond)
					synctest.Wait()
					if n := read.Load(); n > want || n < want-1 {
						t.Errorf("%d after %d s, not %d", n, second+1, want)
					}
					time.Sleep(time.Nanosecond)
				}
				for _, s := range g.all() {
					s.life.Cut()
				}
				p.Close()
			})
		})
	}
}

// Several limits delay the same bytes for no longer than one.
func TestDelaysDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		slow := func() Inbound {
			return Inbound{Limiter: newLimiter(t, core.TokenBucket(core.Every((10*time.Second)), 1)), Over: Delay}
		}
		_, p := bubble(t, Config{Inbound: []Inbound{slow(), slow(), slow()}}, h.listen)
		begin := time.Now()
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		p.Close()
		<-h.done
		if took := time.Since(begin); h.sums[Messages] != 2 || took != (10*time.Second) {
			t.Error(h.sums, took)
		}
	})
}

// A delay ends when the guard closes the socket, and the handler's read waits for the
// peer's answer. What was delayed is not read.
func TestDelaysHeedClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		g, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.Every((10*time.Second)), 1)), Over: Delay}},
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
		if took := time.Since(begin); h.sums[Messages] != 1 || took != 0 {
			t.Error(h.sums, took)
		}
	})
}

// A delayed socket is not idle.
func TestDelaysAreNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.Every((10*time.Second)), 1)), Over: Delay}},
			MaxIdle: (10 * time.Second) / 2,
		}, h.listen)
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		begin := time.Now()
		if got := p.closes(); !strings.HasPrefix(got, "1001 nothing was received") || time.Since(begin) != (10*time.Second)+(10*time.Second)/2 {
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
				if op, _, err := p.frame(); err != nil || op == 0x8 {
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

func (broken) Ask(context.Context, *store.Question) error {
	return core.ErrUnavailable
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
		Rules:   []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}},
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
		Rules:   []nethttp.Rule{{Slots: newSlots(t, memstore.New(memstore.Config{}), "ws", 1), Key: keyfuncs.Everyone()}},
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

// A client that sends too much before the handler hijacks gets a Close frame at once.
func TestTooMuchTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Inbound: []Inbound{{Limiter: newLimiter(t, core.SlidingLog(core.PerHour(2)))}}})
		message := string(masked(0x81, "hello"))
		client, server := net.Pipe()
		begin := time.Now()
		go g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer c.Close()
			if got, err := io.ReadAll(rw); string(got) != message+message || !errors.Is(err, conn.ErrOver) {
				t.Errorf("%q, %v", got, err)
			}
		})).ServeHTTP(&early{pipe{conn: server}, strings.Repeat(message, 3)}, upgradeRequest())
		p := &peer{t: t, Conn: client, in: bufio.NewReader(client)}
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
		{time.Hour, conn.CloseTimeout},
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
			Inbound: []Inbound{{Limiter: newLimiter(t, core.TokenBucket(core.Every((10*time.Second)), 1)), Over: Delay}},
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
