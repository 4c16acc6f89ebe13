package websocketmw

import (
	"bufio"
	"bytes"
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
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/keyfuncs"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

func TestInboundCloses(t *testing.T) {
	five := strings.Repeat(string(masked(0x81, "hello")), 5)
	pieces := string(masked(0x01, "a")) + strings.Repeat(string(masked(0x00, "b")), 9)
	pings := strings.Repeat(string(masked(0x89, "ping")), 20)
	for _, c := range []struct {
		name  string
		unit  frames.Unit
		limit int64
		sent  string
		want  int64 // units that the handler reads
		close string
	}{
		{"messages within the limit", frames.Messages, 5, five + pings, 5, ""},
		{"one too many", frames.Messages, 4, five, 4, `1008 over the limit "sent"`},
		{"the first is too many", frames.Messages, 1, five, 1, `1008 over the limit "sent"`},
		{"a message is one, in however many pieces", frames.Messages, 1, pieces, 1, ""},
		{"bytes within", frames.Bytes, 25, five, 25, ""},
		{"bytes", frames.Bytes, 24, five, 24, `1008 over the limit "sent"`},
		{"bytes of empty messages", frames.Bytes, 3, strings.Repeat(string(masked(0x81, "")), 9), 3, `1008 over the limit "sent"`},
		{"more than the limit could ever admit at once", frames.Messages, 3, strings.Repeat(five, 100), 3, `1008 over the limit "sent"`},
		{"a frame that claims to be endless", frames.Bytes, 100, "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xffmask" + strings.Repeat("x", 101), 100, `1008 over the limit "sent"`},
	} {
		for _, together := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := heard{done: make(chan struct{})}
					var cause error
					config := of(c.unit, Inbound{Limiter: newLimiter(core.SlidingLog(c.limit, time.Hour))})
					if c.unit == frames.Controls {
						config = Config{}
					}
					config.OnClosed = func(_ *Socket, err error) { cause = err }
					g, p := bubble(t, config, h.listen)
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
					if refused := c.close != ""; errors.Is(h.err, ErrFlood) != refused || errors.Is(cause, ErrFlood) != refused || g.open() != 0 {
						t.Errorf("%v, cause %v, %d sockets", h.err, cause, g.open())
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
			{Bytes: []Inbound{{Limiter: newLimiter(core.Unlimited())}}},
		} {
			synctest.Test(t, func(t *testing.T) {
				var cause error
				config.OnClosed = func(_ *Socket, err error) { cause = err }
				h := heard{done: make(chan struct{})}
				begin := time.Now()
				_, p := bubble(t, config, h.listen)
				go p.Write([]byte(message + c.sent + message + string(masked(0x88, ""))))
				if got := p.closes(); got != c.want {
					t.Errorf("%q: %q, not %q", c.sent, got, c.want)
				}
				p.Close()
				<-h.done
				if h.sums != (frames.Tally{1, 5, 0}) || !errors.Is(h.err, ErrProtocol) || !errors.Is(h.err, net.ErrClosed) || time.Since(begin) != 0 {
					t.Errorf("%q: %v, %v", c.sent, h.sums, h.err)
				}
				if synctest.Wait(); !errors.Is(cause, ErrProtocol) || !strings.HasSuffix(cause.Error(), strings.TrimPrefix(c.want, "1002")) {
					t.Errorf("%q: %v", c.sent, cause)
				}
			})
		}
	}
}

// Control frames are limited in any case, and those that the server asked for are free.
func TestControlFrames(t *testing.T) {
	ping, pong := masked(0x89, ""), masked(0x8a, "")
	over := `1008 too many control frames`
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
			"beside a limit on messages", Config{Messages: []Inbound{{Limiter: newLimiter(core.SlidingLog(1, time.Hour))}}},
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
				for _, s := range g.oldestFirst() {
					s.end()
				}
				<-h.done
				// The answer to the last ping may be read before the guard knows that it was sent.
				if n := h.sums[frames.Controls]; c.pings == 0 && n != c.want {
					t.Errorf("the handler read %d", n)
				}
				if g := <-got; g != c.close {
					t.Errorf("%q, not %q", g, c.close)
				}
			})
		})
	}
}

// Delayed messages all arrive, and no faster than the limit.
func TestInboundDelays(t *testing.T) {
	for _, c := range []struct {
		unit frames.Unit
		want time.Duration
	}{
		{frames.Messages, 9 * time.Second},
		{frames.Bytes, 49 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := heard{done: make(chan struct{})}
			_, p := bubble(t, of(c.unit, Inbound{Limiter: newLimiter(every(time.Second)), Delay: true}), h.listen)
			begin := time.Now()
			p.send([]byte(strings.Repeat(string(masked(0x81, "hello")), 10)))
			p.Close()
			<-h.done
			if took := time.Since(begin).Truncate(time.Second); h.sums[frames.Messages] != 10 || took != c.want {
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
				Messages: []Inbound{{Limiter: newLimiter(every(c.every)), Delay: true}},
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
			if c.closed != errors.Is(err, ErrFlood) || !c.closed && took != c.every || c.closed && took != 0 {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
			p.Close()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		g, p := bubble(t, Config{
			Messages: []Inbound{{Limiter: newLimiter(every(10 * time.Second)), Delay: true}},
		}, h.listen)
		p.send(masked(0x81, "a"))
		p.send(masked(0x81, "b"))
		synctest.Wait()
		begin := time.Now()
		for _, s := range g.oldestFirst() {
			s.end()
		}
		<-h.done
		if h.err == nil || h.sums[frames.Messages] != 1 || time.Since(begin) != 0 {
			t.Error(h.err, h.sums, time.Since(begin))
		}
	})
}

// Delayed sockets never get more than the policies have room for, and no less than they could:
// whatever is sent at once, however it is read, and with any mixture of limits.
func TestDelaysNeverExceed(t *testing.T) {
	message, empty := string(masked(0x81, "hello")), string(masked(0x81, ""))
	for _, c := range []struct {
		name   string
		unit   frames.Unit
		policy core.Policy
		sent   string
		size   int     // of reads
		want   []int64 // units at the end of each second
	}{
		{"many in a read", frames.Messages, core.TokenBucket(2, time.Second).Burst(5), strings.Repeat(empty, 600), 4096, []int64{6, 8, 10, 12}},
		{"many in small reads", frames.Messages, core.TokenBucket(2, time.Second).Burst(5), strings.Repeat(empty, 600), 3, []int64{6, 8, 10, 12}},
		{"calls, not units", frames.Messages, core.MinInterval(time.Second), strings.Repeat(empty, 600), 4096, []int64{1, 2, 3, 4}},
		{"refused ones count", frames.Messages, core.SlidingLog(3, time.Second).CountDenied(), strings.Repeat(empty, 600), 4096, []int64{3, 6, 9, 12}},
		{"bytes", frames.Bytes, core.TokenBucket(100, time.Second).Burst(10), strings.Repeat(message, 600), 4096, []int64{109, 209, 309}},
		{"empty messages", frames.Bytes, core.TokenBucket(100, time.Second).Burst(10), strings.Repeat(empty, 600), 4096, []int64{109, 209, 309}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var in frames.Inspector
				var read atomic.Int64
				config := of(c.unit, Inbound{Limiter: newLimiter(c.policy), Delay: true})
				config.Messages = append(append([]Inbound{{Limiter: newLimiter(core.Unlimited()), Delay: true}}, config.Messages...),
					Inbound{Limiter: newLimiter(core.TokenBucket(1000, time.Second)), Delay: true})
				g, p := bubble(t, config, func(conn net.Conn) {
					defer conn.Close()
					b := make([]byte, c.size)
					for {
						n, err := conn.Read(b)
						if err != nil {
							return
						}
						var found frames.List
						if !found.Walk(&in, b[:n], 0) {
							found.Continue(b[:n], 0, make([]frames.Frame, len(b)))
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
				for _, s := range g.oldestFirst() {
					s.end()
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
			return Inbound{Limiter: newLimiter(every(10 * time.Second)), Delay: true}
		}
		_, p := bubble(t, Config{Messages: []Inbound{slow(), slow(), slow()}}, h.listen)
		begin := time.Now()
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		p.Close()
		<-h.done
		if took := time.Since(begin); h.sums[frames.Messages] != 2 || took != (10*time.Second) {
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
			Messages: []Inbound{{Limiter: newLimiter(every(10 * time.Second)), Delay: true}},
		}, h.listen)
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		synctest.Wait()
		begin := time.Now()
		for _, s := range g.oldestFirst() {
			s.Close(1001, "bye")
		}
		if got := p.closes(); got != "1001 bye" {
			t.Error(got)
		}
		p.send(masked(0x88, "\x03\xe9"))
		p.Close()
		<-h.done
		if took := time.Since(begin); h.sums[frames.Messages] != 1 || took != 0 {
			t.Error(h.sums, took)
		}
	})
}

// A client that sends too much before the handler hijacks gets a Close frame at once.
func TestTooMuchTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Messages: []Inbound{{Limiter: newLimiter(core.SlidingLog(2, time.Hour))}}})
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
			if got, err := io.ReadAll(rw); string(got) != message+message || !errors.Is(err, ErrFlood) {
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
		_, p := bubble(t, Config{Messages: []Inbound{{Limiter: newLimiter(core.Blocked())}}}, h.listen)
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
			_, p := bubble(t, Config{Messages: []Inbound{{Limiter: newLimiter(core.Blocked())}}}, func(conn net.Conn) {
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
		second := core.NewLimiter(new(core.MemoryStore), "second", core.Blocked())
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{Messages: []Inbound{{Limiter: newLimiter(core.Blocked())}, {Limiter: second}}}, h.listen)
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
			Messages: []Inbound{{Limiter: newLimiter(every(10 * time.Second)), Delay: true}},
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

// A delayed socket is not idle.
func TestDelaysAreNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{
			Messages: []Inbound{{Limiter: newLimiter(every(10 * time.Second)), Delay: true}},
			MaxIdle:  5 * time.Second,
		}, h.listen)
		p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
		begin := time.Now()
		if got := p.closes(); !strings.HasPrefix(got, "1001 nothing was received") || time.Since(begin) != 15*time.Second {
			t.Error(got, time.Since(begin))
		}
		p.Close()
		<-h.done
	})
}

// There is no delay for what the limiter can never admit.
func TestDelayForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{Messages: []Inbound{{Limiter: newLimiter(core.Blocked()), Delay: true}}}, h.listen)
		begin := time.Now()
		go p.Write(masked(0x81, "hello"))
		if got := p.closes(); !strings.HasPrefix(got, "1008 ") || time.Since(begin) != 0 {
			t.Error(got, time.Since(begin))
		}
		p.Close()
		<-h.done
	})
}

// The sockets of a user share a limit on messages or bytes, and those without a Key do not.
func TestSharedLimits(t *testing.T) {
	for _, unit := range []frames.Unit{frames.Messages, frames.Bytes} {
		for want, key := range map[int64]keyfuncs.Func{6: nil, 3: keyfuncs.Everyone()} {
			synctest.Test(t, func(t *testing.T) {
				g := mustNew(t, of(unit, Inbound{Limiter: newLimiter(core.SlidingLog(3, time.Hour)), Key: key}))
				var peers [2]*peer
				var read [2]heard
				for i := range peers {
					read[i].done = make(chan struct{})
					peers[i] = pipeTo(t, g, read[i].listen)
				}
				for _, p := range peers {
					go p.Write([]byte(strings.Repeat(string(masked(0x81, "x")), 4)))
				}
				for i, p := range peers {
					if got := p.closes(); got != `1008 over the limit "sent"` {
						t.Error(got)
					}
					p.Close()
					<-read[i].done
				}
				if n := read[0].sums[unit] + read[1].sums[unit]; n != want {
					t.Errorf("%d were read, not %d", n, want)
				}
			})
		}
	}
}

// If the limiter has no answer, the socket is closed with 1013, or read on with Delay.
func TestInboundStoreAway(t *testing.T) {
	away, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Config{Failure: redisstore.FailClosed})
	if err != nil {
		t.Fatal(err)
	}
	defer away.Client().Close()
	for _, delay := range []bool{false, true} {
		causes := make(chan error, 1)
		h := heard{done: make(chan struct{})}
		_, p := bubble(t, Config{
			Messages: []Inbound{{Limiter: core.NewLimiter(away, "sent", core.SlidingLog(1, time.Hour)), Delay: delay}},
			OnClosed: func(_ *Socket, err error) { causes <- err },
		}, h.listen)
		two := append(masked(0x81, "hello"), masked(0x82, "hello")...)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = p.Write(two)
		}()
		if !delay {
			if got := p.closes(); got != "1013 try again later" {
				t.Error(got)
			}
		}
		<-sent
		p.Close()
		<-h.done
		if cause := <-causes; (cause == nil) != delay || !delay && (!errors.Is(cause, ErrFlood) || !errors.Is(cause, core.ErrUnavailable)) || (h.sums[frames.Messages] == 0) == delay {
			t.Errorf("delay %v: %v, read %v", delay, cause, h.sums)
		}
	}
}

type early struct {
	pipe

	sent string
}

func (e *early) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r := bufio.NewReader(io.MultiReader(strings.NewReader(e.sent), e.conn))
	_, _ = r.Peek(len(e.sent))
	return e.conn, bufio.NewReadWriter(r, bufio.NewWriter(e.conn)), nil
}

// of returns the Config of limits on a unit.
func of(unit frames.Unit, all ...Inbound) (c Config) {
	if unit == frames.Bytes {
		c.Bytes = all
	} else {
		c.Messages = all
	}
	return c
}
