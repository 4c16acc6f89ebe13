package redistest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/redistest"
)

// through starts a server and a proxy before it, and connects.
func through(t *testing.T) (*redistest.Server, *redistest.Proxy, client) {
	t.Helper()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	conn := dial(t, p.Addr())
	send(t, conn, "PING\r\n")
	wantLine(t, conn, "+PONG")
	return s, p, conn
}

func wantEnd(t *testing.T, c client) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if got, err := io.ReadAll(c.in); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %q, %v instead of the end", got, err)
	}
}

// waitFor waits until the server has executed a command so often.
func waitFor(t *testing.T, s *redistest.Server, command string, n int64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); s.Calls(command) != n; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d calls of %s, want %d", s.Calls(command), command, n)
		}
	}
}

// waitLossy waits until the proxy has dropped bytes of n connections.
func waitLossy(t *testing.T, p *redistest.Proxy, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); p.Lossy() != n; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the proxy has dropped bytes of %d connections, want %d", p.Lossy(), n)
		}
	}
}

func TestProxyPassesEverything(t *testing.T) {
	t.Parallel()
	s, _, conn := through(t)
	value := strings.Repeat("0123456789", 100_000)
	set(t, s, "a", value)
	for range 3 { // in one pipeline
		send(t, conn, "GET a\r\n")
	}
	for range 3 {
		wantLine(t, conn, "$1000000")
		wantLine(t, conn, value)
	}
	send(t, conn, "QUIT\r\n")
	wantLine(t, conn, "+OK")
	wantEnd(t, conn)
}

func TestProxyEndsWithTheServer(t *testing.T) {
	t.Parallel()
	s, p, conn := through(t)
	s.Kill()
	wantEnd(t, conn)
	wantEnd(t, dial(t, p.Addr())) // accepted, but the server is down
}

func TestCut(t *testing.T) {
	t.Parallel()
	_, p, conn := through(t)
	p.Cut()
	wantEnd(t, conn)
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		c.Close()
		t.Error("a connection was accepted")
	}
	p.Cut() // does no harm
	p.Heal()
	conn = dial(t, p.Addr())
	send(t, conn, "PING\r\n")
	wantLine(t, conn, "+PONG")
}

// Processes that are started have the listener for a moment.
func TestCutWhileProcessesStart(t *testing.T) {
	t.Parallel()
	_, p, _ := through(t)
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, os.Args[0], "-test.run", "^$").Run()
			}
		})
	}
	for range 300 {
		p.Cut()
		if c, err := net.Dial("tcp", p.Addr()); err == nil {
			c.Close()
			t.Fatal("a connection was accepted")
		}
		p.Heal()
	}
}

func TestCutMidReply(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "", 1: ":", 3: ":1\r", 4: ":1\r\n"} {
		s, p, conn := through(t)
		other := dial(t, p.Addr())
		p.CutMidReply(n)
		send(t, conn, "INCR a\r\n")
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		got, err := io.ReadAll(conn.in)
		if string(got) != want || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("cut after %d: got %q, %v", n, got, err)
		}
		if got, err := s.Do("GET", "a"); got != "1" || err != nil {
			t.Errorf("cut after %d: the server has %v, %v", n, got, err)
		}
		send(t, other, "INCR a\r\n")
		wantLine(t, other, ":2")
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	const delay = 100 * time.Millisecond
	_, p, conn := through(t)
	p.Delay(delay)
	start := time.Now()
	send(t, conn, "PING\r\nPING\r\n")
	wantLine(t, conn, "+PONG")
	wantLine(t, conn, "+PONG")
	if took := time.Since(start); took < delay {
		t.Errorf("the reply took %v", took)
	}
	p.Delay(time.Hour)
	send(t, conn, "PING\r\n")
	wantSilence(t, conn)
	p.Heal()
	wantLine(t, conn, "+PONG")
}

func TestBlackhole(t *testing.T) {
	t.Parallel()
	s, p, conn := through(t)
	p.Blackhole()
	later := dial(t, p.Addr())
	for _, c := range []client{conn, later} {
		send(t, c, "INCR a\r\n")
		wantSilence(t, c)
	}
	waitLossy(t, p, 2)
	p.Heal()
	wantEnd(t, conn)
	wantEnd(t, later)
	if n := s.Calls("incr"); n != 0 {
		t.Errorf("the server has executed %d requests", n)
	}
}

func TestDeafen(t *testing.T) {
	t.Parallel()
	s, p, conn := through(t)
	quiet := dial(t, p.Addr())
	p.Deafen()
	send(t, conn, "INCR a\r\n")
	wantSilence(t, conn)
	waitFor(t, s, "incr", 1)
	waitLossy(t, p, 1)
	p.Heal()
	wantEnd(t, conn)
	send(t, quiet, "PING\r\n") // it has lost nothing
	wantLine(t, quiet, "+PONG")
}

func TestHold(t *testing.T) {
	t.Parallel()
	s, p, conn := through(t)
	p.Hold()
	gone := dial(t, p.Addr())
	send(t, gone, "INCR b\r\n")
	gone.Close()
	send(t, conn, "INCR a\r\n")
	wantSilence(t, conn)
	if n := s.Calls("incr"); n != 0 {
		t.Errorf("the server has executed %d requests", n)
	}
	p.Heal()
	wantLine(t, conn, ":1")
	waitFor(t, s, "incr", 2)
}

// A once is a command that the client sends at most once.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// go-redis repeats a command when it does not know the outcome, unless the command
// says otherwise. What counts relies on the latter.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	plain := func(ctx context.Context) redis.Cmder { return redis.NewCmd(ctx, "INCR", "a") }
	marked := func(ctx context.Context) redis.Cmder { return once{redis.NewCmd(ctx, "INCR", "a")} }
	for name, c := range map[string]struct {
		command  func(context.Context) redis.Cmder
		pipeline bool
		want     int64
	}{
		"plain":              {plain, false, 2},
		"plain in pipeline":  {plain, true, 2},
		"marked":             {marked, false, 1},
		"marked in pipeline": {marked, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			r := redis.NewClient(&redis.Options{Addr: p.Addr()})
			defer r.Close()
			if err := r.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			p.CutMidReply(0)
			command := c.command(t.Context())
			var err error
			if c.pipeline {
				_, err = r.Pipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Process(t.Context(), command) })
			} else {
				err = r.Process(t.Context(), command)
			}
			if n := s.Calls("incr"); n != c.want || (err == nil) != (c.want > 1) {
				t.Errorf("executed %d times, want %d: %v", n, c.want, err)
			}
		})
	}
}
