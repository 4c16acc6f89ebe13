package redistest_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/redistest"
)

func TestDo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "maxmemory 7mb")
	for _, c := range []struct {
		args []string
		want any
	}{
		{[]string{"PING"}, "PONG"},
		{[]string{"CONFIG", "GET", "maxmemory"}, []any{"maxmemory", "7340032"}},
		{[]string{"GET", "a"}, nil},
		{[]string{"SET", "a", "x\r\ny"}, "OK"},
		{[]string{"GET", "a"}, "x\r\ny"},
		{[]string{"INCRBY", "n", "-3"}, int64(-3)},
		{[]string{"MGET", "a", "none"}, []any{"x\r\ny", nil}},
		{[]string{"EVAL", "return {}", "0"}, []any{}},
	} {
		got, err := s.Do(c.args...)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got %#v, %v; want %#v", c.args, got, err, c.want)
		}
	}
	if got, err := s.Do("INCR", "a"); err == nil {
		t.Errorf("got %v instead of an error", got)
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	addr := s.Addr()
	set(t, s, "a", "1")
	if !s.Running() {
		t.Error("it does not run")
	}
	s.Kill()
	s.Kill() // does no harm
	if s.Running() {
		t.Error("it runs")
	}
	if _, err := s.Do("PING"); err == nil {
		t.Error("it answers")
	}
	s.Restart()
	if !s.Running() || s.Addr() != addr {
		t.Errorf("it does not run at %s", addr)
	}
	if got, err := s.Do("GET", "a"); got != nil || err != nil {
		t.Errorf("got %v, %v after the restart", got, err)
	}
	s.Restart() // also when it runs
}

func TestRestartWithData(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "appendonly yes", "appendfsync always")
	set(t, s, "a", "1")
	s.Restart()
	if got, err := s.Do("GET", "a"); got != "1" || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Pause()
	conn := dial(t, s.Addr())
	send(t, conn, "PING\r\n")
	wantSilence(t, conn)
	s.Resume()
	wantLine(t, conn, "+PONG")
}

func TestFlush(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	set(t, s, "a", "1")
	s.Flush()
	if got, err := s.Do("DBSIZE"); got != int64(0) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	set(t, s, "a", "1")
	if _, err := s.Do("INCR", "a"); err != nil {
		t.Fatal(err)
	}
	if n := s.Calls("set", "incr", "get"); n != 2 {
		t.Errorf("%d calls", n)
	}
	s.ResetStats()
	if n := s.Calls("set", "incr"); n != 0 {
		t.Errorf("%d calls after the reset", n)
	}
	before := s.CPU()
	if _, err := s.Do("EVAL", "for i = 1, 200000 do redis.sha1hex('') end", "0"); err != nil {
		t.Fatal(err)
	}
	stats := s.CommandStats()["eval"]
	if stats.Calls != 1 || stats.Failed != 0 || stats.Rejected != 0 || stats.Time <= 0 {
		t.Errorf("%+v", stats)
	}
	if used := s.CPU() - before; used <= 0 {
		t.Errorf("the server has used %v", used)
	}
	s.Do("EVAL", "error('as it should')", "0")
	s.Do("EVAL")
	if stats := s.CommandStats()["eval"]; stats.Failed != 1 || stats.Rejected != 1 {
		t.Errorf("%+v", stats)
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t), redistest.Start(t)
	both := redistest.Servers{a, b}
	if got := both.Addrs(); !slices.Equal(got, []string{a.Addr(), b.Addr()}) || a.Addr() == b.Addr() {
		t.Errorf("addresses %q", got)
	}
	if both.At(b.Addr()) != b || both.At("127.0.0.1:1") != nil {
		t.Error("At finds another")
	}
	set(t, a, "x", "1")
	set(t, b, "x", "1")
	if n := both.Calls("set"); n != 2 {
		t.Errorf("%d calls", n)
	}
	both.ResetStats()
	if n := both.Calls("set"); n != 0 {
		t.Errorf("%d calls after the reset", n)
	}
	a.Kill()
	if got := both.Running(); len(got) != 1 || got[0] != b {
		t.Errorf("running: %q", got.Addrs())
	}
}

func set(t *testing.T, s *redistest.Server, key, value string) {
	t.Helper()
	if _, err := s.Do("SET", key, value); err != nil {
		t.Fatal(err)
	}
}

// A client is a connection that a test reads and writes itself.
type client struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return client{conn, bufio.NewReader(conn)}
}

func send(t *testing.T, c client, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// wantSilence checks that nothing arrives for a while.
func wantSilence(t *testing.T, c client) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.in.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v instead of nothing", err)
	}
}

func wantLine(t *testing.T, c client, want string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, err := c.in.ReadString('\n')
	if err != nil || got != want+"\r\n" {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
