// Package redistest starts real Redis servers for tests: a single one, a Cluster, or a master and a
// replica watched by Sentinels. It also has a proxy that makes the network between them and a
// client fail.
//
// Servers listen on 127.0.0.1, on ports of their own. They keep their files in the test's temporary
// directory, and are killed when the test ends. On Linux they are also killed when the test's
// process dies, however it dies. When a test fails, the end of their logs is in its output.
//
// Without redis-server the test is skipped, unless HEADGATE_REQUIRE=1 is set:
// then it fails. HEADGATE_REDIS_SERVER names another binary to run: another version,
// or Valkey's.
//
// Methods that can fail the test are for its goroutine alone.
package redistest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	require = "HEADGATE_REQUIRE"
	program = "HEADGATE_REDIS_SERVER"
)

const missing = "redis-server is not installed: apt-get install redis-server, or brew install redis, " +
	"or name one in " + program

// binary returns the path of redis-server, or ends the test.
func binary(t testing.TB) string {
	t.Helper()
	if name := os.Getenv(program); name != "" {
		path, err := exec.LookPath(name)
		if err == nil {
			path, err = filepath.Abs(path) // servers run in directories of their own
		}
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		return path
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv(require) == "1" {
		t.Fatal(missing + "; " + require + "=1 forbids to skip this test")
	}
	t.Skip(missing)
	return ""
}

// patience bounds every wait. Nothing waits longer than it must; a busy machine
// needs the room.
const patience = 30 * time.Second

// wait repeats check until it returns no error.
func wait(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("redistest: %s: %v", what, err)
		}
		<-time.After(pause)
	}
}
