package websocketmw

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
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
	const over = `1008 over the limit "sent"`
	for _, c := range []struct {
		name  string
		unit  frames.Unit
		limit int64
		sent  string
		want  int64 // units that the handler reads
		close string
	}{
		{"messages within the limit", frames.Messages, 5, five + pings, 5, ""},
		{"one too many", frames.Messages, 4, five, 4, over},
		{"a message is one, in however many pieces", frames.Messages, 1, pieces, 1, ""},
		{"bytes within", frames.Bytes, 25, five, 25, ""},
		{"bytes", frames.Bytes, 24, five, 24, over},
		{"bytes of empty messages", frames.Bytes, 3, strings.Repeat(string(masked(0x81, "")), 9), 3, over},
		{"more than the limit could ever admit at once", frames.Messages, 3, strings.Repeat(five, 100), 3, over},
		{"a gigabyte", frames.Bytes, 100, "\x82\xff\x00\x00\x00\x00\x40\x00\x00\x00mask" + strings.Repeat("x", 3000), 100, over},
		{"a frame that claims to be endless", frames.Bytes, 100, "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xffmask" + strings.Repeat("x", 101), 100, over},
	} {
		for _, size := range []int{1, len(c.sent)} {
			synctest.Test(t, func(t *testing.T) {
				var cause error
				config := of(c.unit, Inbound{Limiter: newLimiter(core.SlidingLog(c.limit, time.Hour))})
				config.OnClosed = func(_ *Socket, err error) { cause = err }
				g, p, h := hears(t, config)
				go func() {
					for piece := range slices.Chunk([]byte(c.sent), size) {
						p.Write(piece)
					}
					p.Write(masked(0x88, ""))
					if c.close == "" {
						p.Close()
					}
				}()
				if c.close != "" {
					if got := p.closes(); got != c.close {
						t.Errorf("%s: %q, not %q", c.name, got, c.close)
					}
					p.Close()
				}
				<-h.done
				synctest.Wait()
				if h.sums[c.unit] != c.want {
					t.Errorf("%s: the handler read %d, not %d", c.name, h.sums[c.unit], c.want)
				}
				if refused := c.close != ""; errors.Is(h.err, ErrFlood) != refused || refused && !errors.Is(h.err, net.ErrClosed) || errors.Is(cause, ErrFlood) != refused || g.open() != 0 {
					t.Errorf("%s: %v, cause %v, %d sockets", c.name, h.err, cause, g.open())
				}
			})
		}
	}
}

// A read returns at most 64 KiB, which bounds the memory for its frames.
func TestReadsAreBounded(t *testing.T) {
	newGuard(t, Config{}).Handler(taken(func(c net.Conn) {
		defer c.Close()
		if n, err := c.Read(make([]byte, 1<<20)); n != 64<<10 || err != nil {
			t.Error(n, err)
		}
	})).ServeHTTP(newOnIdle(masked(0x82, strings.Repeat("x", 1<<20))), upgradeRequest())
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
		for _, config := range []Config{{}, of(frames.Bytes, Inbound{Limiter: newLimiter(core.Unlimited())})} {
			synctest.Test(t, func(t *testing.T) {
				var cause error
				config.OnClosed = func(_ *Socket, err error) { cause = err }
				begin := time.Now()
				_, p, h := hears(t, config)
				go p.Write([]byte(message + c.sent + message + string(masked(0x88, ""))))
				if got := p.closes(); got != c.want {
					t.Errorf("%q: %q, not %q", c.sent, got, c.want)
				}
				if strings.Contains(c.want, "length") { // otherwise its Close frame is found
					p.Close()
				}
				<-h.done
				if h.sums != (frames.Tally{1, 5, 0}) || !errors.Is(h.err, ErrProtocol) || !errors.Is(h.err, net.ErrClosed) || time.Since(begin) != 0 {
					t.Errorf("%q: %v, %v", c.sent, h.sums, h.err)
				}
				p.Close()
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
	const over, gap = "1008 too many control frames", time.Second / 20
	for _, c := range []struct {
		name  string
		pings int // of the server, which the client answers
		frame []byte
		sent  int // how often, and how far apart
		apart time.Duration
		want  int64
		close string
	}{
		{"a burst", 0, ping, 200, 0, 200, "error"},
		{"one too many", 0, ping, 201, 0, 200, over},
		{"many in a read", 0, bytes.Repeat(pong, 80), 3, 0, 200, over},
		{"the rate", 0, ping, 10_000, gap, 10_000, "error"},
		{"faster than the rate", 0, ping, 10_000, gap / 2, 399, over},
		{"answers", 1000, pong, 200, 0, 1200, "error"},
		{"more than answers", 1000, pong, 201, 0, 1200, over},
		{"a Close frame", 0, masked(0x88, ""), 1, 0, 0, "error"},
		{"Close frames", 0, masked(0x88, ""), 202, 0, 200, over},
	} {
		for _, config := range []Config{{}, of(frames.Messages, Inbound{Limiter: newLimiter(core.SlidingLog(1, time.Hour))})} {
			synctest.Test(t, func(t *testing.T) {
				h := &heard{done: make(chan struct{})}
				g, p := bubble(t, config, func(conn net.Conn) {
					conn.Write(bytes.Repeat([]byte{0x89, 0}, c.pings))
					h.listen(conn)
				})
				io.ReadFull(p.in, make([]byte, 2*c.pings))
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					p.Write(bytes.Repeat(pong, c.pings))
					time.Sleep(time.Minute) // which is no reason for a larger burst
					for i, err := 0, error(nil); i < c.sent && err == nil; i++ {
						_, err = p.Write(c.frame)
						time.Sleep(c.apart)
					}
					synctest.Wait()
					g.endAll()
				}()
				got := p.closes()
				p.Close()
				<-sent
				if <-h.done; got != c.close || h.sums[frames.Controls] != c.want {
					t.Errorf("%s: %q, the handler read %d", c.name, got, h.sums[frames.Controls])
				}
			})
		}
	}
}

// If the limiter would delay a read by more than ten seconds, or half of the time left to the read deadline, the socket is
// closed.
func TestDelaysAreBounded(t *testing.T) {
	read, both := net.Conn.SetReadDeadline, net.Conn.SetDeadline
	for _, c := range []struct {
		every, deadline time.Duration
		set             func(net.Conn, time.Time) error
		closed          bool
	}{
		{10 * time.Second, 0, nil, false},
		{10*time.Second + time.Microsecond, 0, nil, true},
		{10 * time.Second, 0, read, false},
		{10 * time.Second, time.Hour, read, false},
		{time.Hour, 9 * time.Hour, read, true},
		{4 * time.Second, 8 * time.Second, read, false},
		{4 * time.Second, 8*time.Second - 2, read, true},
		{4 * time.Second, 8*time.Second - 2, both, true},
		{time.Microsecond, -1, read, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin, errs := time.Now(), make(chan error, 2)
			_, p := bubble(t, of(frames.Messages, Inbound{Limiter: newLimiter(every(c.every)), Delay: true}), func(conn net.Conn) {
				defer conn.Close()
				b := make([]byte, 4096)
				for i := range 2 {
					if c.set != nil {
						c.set(conn, time.Time{}) // none
					}
					if c.deadline != 0 && i > 0 {
						c.set(conn, time.Now().Add(c.deadline))
					}
					_, err := conn.Read(b)
					errs <- err
				}
			})
			p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
			if c.closed {
				if got := p.closes(); got != `1008 over the limit "sent"` {
					t.Errorf("%+v: %q", c, got)
				}
				p.send(masked(0x88, ""))
			}
			if err := <-errs; err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			err, took := <-errs, time.Since(begin)
			if c.closed != errors.Is(err, ErrFlood) || !c.closed && took != c.every || c.closed && took != 0 {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
			p.Close()
		})
	}
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
					for i := 0; ; i++ {
						n, err := conn.Read(b[:max(1, c.size>>(i%12))])
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
				g.endAll()
				p.Close()
			})
		})
	}
}

// Several limits delay the same bytes for no longer than one. A delay ends when the guard closes the socket, what was delayed
// is not read, and the handler's read waits for the peer's answer. It ends at once with the connection, and is no silence.
func TestDelays(t *testing.T) {
	slow := func() Inbound { return Inbound{Limiter: newLimiter(every(10 * time.Second)), Delay: true} }
	nothing := func(*Guard) {}
	for name, c := range map[string]struct {
		limits         int
		before, during func(*Guard) // are called before the delay, and in it
		want           time.Duration
		messages       int64
		closes         string
	}{
		"limits do not add up": {3, nothing, nothing, 15 * time.Second, 2, "1001 nothing was received for too long"},
		"a delay is not idle":  {1, nothing, nothing, 15 * time.Second, 2, "1001 nothing was received for too long"},
		"closed before":        {1, func(g *Guard) { g.oldestFirst()[0].close(ErrShutdown, 1001, "bye") }, nothing, 0, 1, "1001 bye"},
		"closed":               {1, nothing, func(g *Guard) { g.closeEach(1001, "bye") }, 0, 1, "1001 bye"},
		"ended":                {1, nothing, (*Guard).endAll, 0, 1, "error"},
	} {
		synctest.Test(t, func(t *testing.T) {
			once := newLimiter(core.SlidingLog(3, time.Hour))
			config := of(frames.Messages, Inbound{Limiter: once, Key: keyfuncs.Everyone(), Delay: true})
			config.MaxIdle = 5 * time.Second
			for range c.limits {
				config.Messages = append(config.Messages, slow())
			}
			g, p, h := hears(t, config)
			begin := time.Now()
			synctest.Wait()
			c.before(g)
			p.send([]byte(strings.Repeat(string(masked(0x81, "a")), 2)))
			synctest.Wait()
			for _, s := range g.oldestFirst() {
				if d := s.delay(1); d != 10*time.Millisecond { // or reads would get a few bytes each
					t.Error(d)
				}
			}
			c.during(g)
			if got := p.closes(); got != c.closes || time.Since(begin) != c.want {
				t.Errorf("%s: %q after %v", name, got, time.Since(begin))
			}
			p.Write(masked(0x88, "\x03\xe9"))
			p.Close()
			if <-h.done; h.sums[frames.Messages] != c.messages || h.err == nil || time.Since(begin) != c.want {
				t.Errorf("%s: %v, %v after %v", name, h.sums, h.err, time.Since(begin))
			}
			if _, left, err := once.AllowAtMost(t.Context(), everyone, 9); left != 1 || err != nil {
				t.Errorf("%s: %d left, %v", name, left, err)
			}
		})
	}
}

// A client that sends too much before the handler hijacks gets a Close frame at once.
func TestTooMuchTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, of(frames.Messages, Inbound{Limiter: newLimiter(core.SlidingLog(2, time.Hour))}))
		message := string(masked(0x81, "hello"))
		begin := time.Now()
		p := dialPipe(t, g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rw := statusFirst(w)
			defer c.Close()
			if got, err := io.ReadAll(rw); string(got) != message+message || !errors.Is(err, ErrFlood) {
				t.Errorf("%q, %v", got, err)
			}
		})), upgradeRequest(), strings.Repeat(message, 3))
		p.upgraded()
		if got := p.closes(); !strings.HasPrefix(got, "1008 ") || time.Since(begin) != 0 {
			t.Error(got, time.Since(begin))
		}
		p.Close()
	})
}

// A socket over a limit is read until the peer answers, whatever the handler's read deadline: otherwise the peer might lose
// the Close frame. A peer that does not answer is cut off. One whose own Close frame came with the excess need not answer. Of
// two limits, the first is named; one that will never admit more does not delay.
func TestTooMuch(t *testing.T) {
	hello, blocked := masked(0x81, "hello"), Inbound{Limiter: newLimiter(core.Blocked())}
	second := Inbound{Limiter: core.NewLimiter(new(core.MemoryStore), "second", core.Blocked())}
	for name, c := range map[string]struct {
		limits        []Inbound
		sent          []byte
		answers, want time.Duration
	}{
		"answered":      {[]Inbound{blocked}, hello, 3 * time.Second, 3 * time.Second},
		"not answered":  {[]Inbound{blocked}, hello, time.Hour, closeTimeout},
		"closed":        {[]Inbound{blocked}, slices.Concat(hello, masked(0x88, "")), time.Hour, 0},
		"closed before": {[]Inbound{blocked}, slices.Concat(masked(0x88, ""), hello), time.Hour, 0},
		"two limits":    {[]Inbound{blocked, second}, hello, 0, 0},
		"for ever":      {[]Inbound{{Limiter: blocked.Limiter, Delay: true}}, hello, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := &heard{done: make(chan struct{})}
			begin := time.Now()
			_, p := bubble(t, Config{Messages: c.limits}, func(conn net.Conn) {
				conn.SetReadDeadline(begin.Add(time.Second))
				h.listen(conn)
			})
			go p.Write(c.sent)
			if got := p.closes(); got != `1008 over the limit "sent"` || time.Since(begin) != 0 {
				t.Errorf("%s: %q after %v", name, got, time.Since(begin))
			}
			answer := time.AfterFunc(c.answers, func() { p.Write(masked(0x88, "")) })
			if <-h.done; time.Since(begin) != c.want {
				t.Errorf("%s: %v, not %v", name, time.Since(begin), c.want)
			}
			answer.Stop()
			p.Close()
		})
	}
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
		_, p, h := hears(t, Config{
			Messages: []Inbound{{Limiter: core.NewLimiter(away, "sent", core.SlidingLog(1, time.Hour)), Delay: delay}},
			OnClosed: func(_ *Socket, err error) { causes <- err },
		})
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

// of returns the Config of limits on a unit.
func of(unit frames.Unit, all ...Inbound) (c Config) {
	if unit == frames.Bytes {
		c.Bytes = all
	} else {
		c.Messages = all
	}
	return c
}
