package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// requireClock is the variable under which a test that needs libfaketime must run.
const requireClock = "HEADGATE_REQUIRE"

// StartWithClock is [Start] for a server whose clock [Server.SetClock] sets. It needs
// libfaketime, on Linux: without it the test is skipped, unless HEADGATE_REQUIRE=1
// is set. Then it fails.
func StartWithClock(t testing.TB, lines ...string) *Server {
	t.Helper()
	library := faketime(t)
	return start(t, func(s *Server) {
		clock := s.clockFile()
		s.env = []string{
			"LD_PRELOAD=" + library + ":libc.so.6", // before jemalloc, which libfaketime cannot initialize with
			"FAKETIME_TIMESTAMP_FILE=" + clock,
			"FAKETIME_NO_CACHE=1", // the file is read at each call
			"FAKETIME_DONT_FAKE_MONOTONIC=1",
		}
		s.writeClock(0)
	}, lines...)
}

// faketime returns the path of the library, or ends the test.
func faketime(t testing.TB) string {
	t.Helper()
	const name = "libfaketimeMT.so.1"
	if runtime.GOOS != "linux" {
		t.Skip("the clock of a server can be set on Linux only")
	}
	for _, folder := range []string{"/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime"} {
		if found, _ := filepath.Glob(filepath.Join(folder, name)); len(found) > 0 {
			return found[0]
		}
	}
	const missing = "libfaketime is not installed: scripts/install faketime"
	if os.Getenv(requireClock) == "1" {
		t.Fatal(missing + "; " + requireClock + "=1 forbids to skip this test")
	}
	t.Skip(missing)
	return ""
}

func (s *Server) clockFile() string { return filepath.Join(s.dir, "clock") }

// writeClock replaces the file at once, as the server reads it at any time.
func (s *Server) writeClock(ahead time.Duration) {
	s.t.Helper()
	text := fmt.Sprintf("%+.6f\n", ahead.Seconds())
	err := os.WriteFile(s.clockFile()+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(s.clockFile()+".new", s.clockFile())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// SetClock sets the clock of a server that was started by [StartWithClock], so far ahead of
// this process's, or behind it. The server tells that time when SetClock returns.
func (s *Server) SetClock(ahead time.Duration) {
	s.t.Helper()
	s.writeClock(ahead)
	wait(s.t, "setting the clock", func() error {
		before := time.Now()
		told, err := s.time()
		if err != nil {
			return err
		}
		if told.Before(before.Add(ahead-time.Second)) || told.After(time.Now().Add(ahead+time.Second)) {
			return fmt.Errorf("the server tells %v, which should be %v ahead", told, ahead)
		}
		return nil
	})
}

// time returns what the server takes for the time.
func (s *Server) time() (time.Time, error) {
	reply, err := s.Do("TIME")
	if err != nil {
		return time.Time{}, err
	}
	words, _ := reply.([]any)
	if len(words) != 2 {
		return time.Time{}, fmt.Errorf("TIME: %v", reply)
	}
	seconds, err := strconv.ParseInt(fmt.Sprint(words[0]), 10, 64)
	return time.Unix(seconds, 0), err
}
