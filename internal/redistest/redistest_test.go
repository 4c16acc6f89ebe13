package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m, proctest.Funcs{"server": server})
}

// server starts a server that outlives this process, unless the kernel prevents it.
func server([]string) error {
	fmt.Fprintln(os.Stdout, Start(&recorder{dir: os.Args[1]}).Addr())
	select {}
}

// A recorder is a test that notes its end instead of ending.
type recorder struct {
	testing.TB

	dir            string
	failed         bool
	fatal, skipped string
	logs           strings.Builder
	later          []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return r.failed }
func (r *recorder) Cleanup(f func()) { r.later = append(r.later, f) }
func (r *recorder) TempDir() string  { return r.dir }

func (r *recorder) Logf(format string, args ...any) {
	fmt.Fprintf(&r.logs, format, args...)
}

func (r *recorder) Fatal(args ...any) {
	r.fatal, r.failed = fmt.Sprint(args...), true
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

func (r *recorder) Skip(args ...any) {
	r.skipped = fmt.Sprint(args...)
	runtime.Goexit()
}

// run runs a test to its end, its clean-up included.
func (r *recorder) run(test func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		test()
	}()
	<-done
	for _, f := range slices.Backward(r.later) {
		f()
	}
}

func TestWithoutRedis(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HEADGATE_REDIS_SERVER", "")
	for value, want := range map[string]func(*recorder) string{
		"":  func(r *recorder) string { return r.skipped },
		"0": func(r *recorder) string { return r.skipped },
		"1": func(r *recorder) string { return r.fatal },
	} {
		t.Setenv("HEADGATE_REQUIRE", value)
		r := recorder{dir: t.TempDir()}
		r.run(func() { Start(&r) })
		if !strings.Contains(want(&r), "apt-get install redis-server") {
			t.Errorf("HEADGATE_REQUIRE=%q: fatal %q, skipped %q", value, r.fatal, r.skipped)
		}
	}
}

func TestAnotherBinary(t *testing.T) {
	path := binary(t)
	link := filepath.Join(t.TempDir(), "valkey-server")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HEADGATE_REDIS_SERVER", link)
	if got := binary(t); got != link {
		t.Errorf("HEADGATE_REDIS_SERVER=%s: got %s", link, got)
	}
	t.Setenv("HEADGATE_REDIS_SERVER", "")
	t.Setenv("PATH", filepath.Dir(link))
	if got := binary(t); got != link {
		t.Errorf("where there is only Valkey: got %s", got)
	}
	t.Setenv("HEADGATE_REDIS_SERVER", link+"-missing")
	var r recorder
	r.run(func() { binary(&r) })
	if !strings.Contains(r.fatal, link+"-missing") {
		t.Errorf("got %q", r.fatal)
	}
}

func TestPortsAreReserved(t *testing.T) {
	var r recorder
	var port int
	r.run(func() {
		port = Port(&r)
		if !free(port) || free(port-1) {
			r.failed = true
		}
	})
	if r.failed || port == 0 {
		t.Errorf("port %d is taken, or its guard is free", port)
	}
	if !free(port - 1) {
		t.Errorf("the guard of port %d is taken after the test", port)
	}
}

func TestServersDieWithTheProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux sees to that")
	}
	binary(t)
	p := proctest.Start(t, "server", t.TempDir())
	addr := p.Line()
	if _, err := do(addr, "PING"); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	wait(t, "waiting for the server's end", func() error {
		if _, err := do(addr, "PING"); err == nil {
			return fmt.Errorf("the server at %s has outlived the process that started it", addr)
		}
		return nil
	})
}

func TestLogsOfFailedTests(t *testing.T) {
	binary(t)
	for _, failed := range []bool{false, true} {
		r := recorder{dir: t.TempDir()}
		r.run(func() {
			Start(&r)
			r.failed = failed
		})
		if got := strings.Contains(r.logs.String(), "Ready to accept connections"); got != failed {
			t.Errorf("failed: %v, logged %q", failed, r.logs.String())
		}
	}
}

func TestBadConfiguration(t *testing.T) {
	binary(t)
	r := recorder{dir: t.TempDir()}
	r.run(func() { Start(&r, "no-such-directive yes") })
	if r.fatal == "" || !strings.Contains(r.logs.String(), "no-such-directive") {
		t.Errorf("ended with %q, logged %q", r.fatal, r.logs.String())
	}
}
