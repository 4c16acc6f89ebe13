package conn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/record"
	"github.com/headgate/headgate/websocketmw/internal/frames"
)

// An unaware owner does nothing.
type unaware struct{}

func (unaware) Happened(Event)                             {}
func (unaware) Opened()                                    {}
func (unaware) Ended()                                     {}
func (unaware) Within(ctx context.Context) context.Context { return ctx }

func newLife(t *testing.T, rules Rules) *Life {
	t.Helper()
	l := new(Life)
	rules.Bind(nil)
	l.Begin(t.Context(), &rules, unaware{}, nil)
	return l
}

const response101 = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

type silent struct{}

func (*silent) Header() http.Header         { return http.Header{} }
func (*silent) Write(b []byte) (int, error) { return len(b), nil }
func (*silent) WriteHeader(int)             {}

// keeping holds the status back until WriteHeaderNow, like Gin.
type keeping struct {
	http.ResponseWriter

	now bool
}

func (k *keeping) WriteHeaderNow() { k.now = true }

func TestWriteHeaderNow(t *testing.T) {
	k := &keeping{ResponseWriter: httptest.NewRecorder()}
	w := &upgradeWriter{Recorder: record.Recorder{ResponseWriter: k}, life: newLife(t, Rules{})}
	if w.WriteHeader(200); k.now || w.life.switched.Load() {
		t.Error("200 is not an upgrade")
	}
	k = &keeping{ResponseWriter: new(silent)}
	w.ResponseWriter = k
	if w.WriteHeader(101); !k.now || !w.life.switched.Load() {
		t.Error("the 101 was not sent")
	}
}

// A timer that fires while its socket ends does nothing, and the context of one that has ended has
// ended, too.
func TestLate(t *testing.T) {
	l := newLife(t, Rules{MaxAge: 1})
	l.End()
	l.tick()
	if _, _, closing := l.Closing(); closing {
		t.Error("it closes")
	}
	if l.Context().Err() == nil {
		t.Error("a socket that has ended has a context that has not")
	}
}

// failingWrites is a connection whose writes fail after some bytes.
type failingWrites struct {
	net.Conn

	left int
}

func (c *failingWrites) Write(p []byte) (int, error) {
	n := min(c.left, len(p))
	if c.left -= n; n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func (c *failingWrites) Close() error { return nil }

// A failed write returns how many of the library's bytes were written, without the fields
// that the guard inserted.
func TestWritesFail(t *testing.T) {
	own := http.Header{"Ratelimit": {`"ws";r=0`}}
	added := len("Ratelimit: \"ws\";r=0\r\n")
	for _, c := range []struct{ written, want int }{
		{0, 0}, {added, 0}, {added + 10, 10}, {added + len(response101) - 1, len(response101) - 1},
		{added + len(response101) + 1, len(response101) + 1},
	} {
		life := newLife(t, Rules{})
		conn, _ := around(&failingWrites{left: c.written}, life, own)
		if n, err := conn.Write([]byte(response101 + "\x81\x02hi")); n != c.want || !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%d bytes written: %d, %v", c.written, n, err)
		}
		conn.forget.Stop()
	}
	// The same while the guard wants to close.
	conn, _ := around(&failingWrites{left: 3}, newLife(t, Rules{}), nil)
	conn.reader.life.switched.Store(true)
	if _, err := conn.Write([]byte{0x81, 4}); err != nil {
		t.Fatal(err)
	}
	conn.wanted.Store(true)
	if n, err := conn.Write([]byte("text\x81\x02hi")); n != 1 || !errors.Is(err, io.ErrShortWrite) {
		t.Error(n, err)
	}
	conn.forget.Stop()
}

// Nothing is kept of what was sent.
func TestSenderKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		s := newSender(server, newLife(t, Rules{MaxUnsent: 10}))
		go func() {
			if n, err := s.write(make([]byte, 100_000), false); n != 100_000 || err != nil {
				t.Error(n, err)
			}
		}()
		if _, err := io.CopyN(io.Discard, client, 100_000); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if s.running || s.unsent != nil || s.sending != 0 {
			t.Errorf("%d bytes are kept", len(s.unsent))
		}
	})
}

// A Close frame that comes after a cut does not wait for the client.
func TestCloseFrameAfterCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe() // nothing is read
		defer client.Close()
		l := newLife(t, Rules{})
		c, _ := around(server, l, nil)
		c.forget.Stop()
		l.switched.Store(true)
		l.Cut() // before the connection is known
		begin := time.Now()
		c.sayClose()
		if d := time.Since(begin); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// A switching connection lets others write after every write.
type switching struct{ recorded }

func (c *switching) Write(p []byte) (int, error) {
	defer runtime.Gosched()
	return c.recorded.Write(p)
}

// Concurrent writes do not interleave, as on any net.Conn, whatever the Rules.
func TestConcurrentWrites(t *testing.T) {
	const size = 3 * unsentPiece
	for name, rules := range map[string]Rules{
		"no limit":  {NoFollowing: true},
		"Timeout":   {NoFollowing: true, Timeout: time.Minute},
		"MaxUnsent": {NoFollowing: true, Timeout: time.Minute, MaxUnsent: 100 * size},
	} {
		t.Run(name, func(t *testing.T) {
			inner, l := new(switching), newLife(t, rules)
			c, _ := around(inner, l, nil)
			defer c.Close()
			l.switched.Store(true)
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					if n, err := c.Write(bytes.Repeat([]byte{byte(i)}, size)); n != size || err != nil {
						t.Error(n, err)
					}
				})
			}
			all.Wait()
			if c.slow.queues() {
				c.slow.mu.Lock()
				for c.slow.running {
					c.slow.changed.Wait()
				}
				c.slow.mu.Unlock()
			}
			for write := range slices.Chunk(inner.written, size) {
				if whole := bytes.Repeat(write[:1], size); !bytes.Equal(write, whole) {
					t.Fatal("a write has bytes of another")
				}
			}
		})
	}
}

// A connection that is closed in the background can be cut, although nobody else has it any more.
func TestCutOfForgottenThatSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe() // nothing is read
		defer client.Close()
		l := newLife(t, Rules{MaxUnsent: 1000})
		func() {
			c, _ := around(server, l, nil)
			c.begins()
			l.switched.Store(true)
			if _, err := c.Write([]byte("unsent")); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		for range 3 {
			runtime.GC()
		}
		l.Cut()
		synctest.Wait()
		if !l.Ended() {
			t.Error("it has not ended")
		}
	})
}

// A lingering connection takes its time to close, as TLS may.
type lingering struct {
	recorded

	gone chan struct{}
}

func (c *lingering) Close() error {
	<-c.gone
	return nil
}

// The runtime's cleanups do not wait for a connection that takes its time to close.
func TestForgottenDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, l := &lingering{gone: make(chan struct{})}, newLife(t, Rules{MaxUnsent: 1000})
		collected{l, newSender(inner, l)}.forgotten()
		synctest.Wait()
		if l.Ended() {
			t.Error("it has ended before its connection is closed")
		}
		close(inner.gone)
		synctest.Wait()
		if !l.Ended() {
			t.Error("it has not ended")
		}
	})
}

// A counting owner counts what happens.
type counting struct {
	unaware

	idle, ended atomic.Int64
}

func (c *counting) Happened(e Event) {
	if e.Kind == Idle {
		c.idle.Add(1)
	}
}

func (c *counting) Ended() { c.ended.Add(1) }

// A recorded connection keeps what is written. Nothing is read from it.
type recorded struct {
	net.Conn

	mu      sync.Mutex
	written []byte
}

func (c *recorded) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, p...)
	return len(p), nil
}

func (c *recorded) Close() error                     { return nil }
func (c *recorded) SetWriteDeadline(time.Time) error { return nil }

// Whoever closes first says why: a socket that is closed in many ways at the same time gets one Close
// frame, which is that of Closing, and ends once.
func TestCloseAgainstIdle(t *testing.T) {
	const silence = time.Minute
	for range 3000 {
		synctest.Test(t, func(t *testing.T) {
			o, l := new(counting), new(Life)
			rules := Rules{MaxIdle: silence, MaxAge: silence}
			rules.Bind(nil)
			l.Begin(t.Context(), &rules, o, nil)
			l.haste = 0
			l.serves(t.Context())
			inner := new(recorded)
			c, _ := around(inner, l, nil)
			c.begins()
			if _, err := c.Write([]byte(response101)); err != nil {
				t.Error(err)
			}
			for i := range 8 {
				go func() {
					time.Sleep(silence)
					l.Close(4000+i, "closed")
					<-l.beginning()
					time.Sleep(CloseTimeout) // nobody answers
					c.shut()
				}()
			}
			time.Sleep(silence)
			synctest.Wait()
			code, reason, closing := l.Closing()
			want := response101 + string(frames.Close(code, reason))
			if got := string(inner.written); !closing || got != want {
				t.Errorf("%q was written, not %q", got, want)
			}
			time.Sleep(CloseTimeout)
			synctest.Wait()
			if o.ended.Load() != 1 || o.idle.Load() > 1 {
				t.Errorf("ended %d times, idle %d times", o.ended.Load(), o.idle.Load())
			}
		})
	}
}

// Of many that close a socket at the same time, one does.
func TestOneCloses(t *testing.T) {
	for range 3000 {
		l := newLife(t, Rules{})
		c, _ := around(new(recorded), l, nil)
		c.begins()
		var ready, done sync.WaitGroup
		var closes atomic.Int64
		ready.Add(8)
		for i := range 8 {
			done.Go(func() {
				ready.Done()
				ready.Wait()
				if l.close(4000+i, "closed") != nil {
					closes.Add(1)
				}
			})
		}
		done.Wait()
		if closes.Load() != 1 {
			t.Fatalf("%d have closed it", closes.Load())
		}
		_ = c.Close()
	}
}
