package repotest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A test that sleeps is slow when it passes and wrong when the machine is busy.
// Inside a bubble a sleep takes no time. Code that ships never sleeps: it could not be
// cancelled.
func TestNobodySleeps(t *testing.T) {
	for _, s := range sources(t, true) {
		used := s.imports()
		_, std := used["testing/synctest"]
		_, ours := used[module+"/internal/bubble"]
		tests := s.test || s.dir() == "test/conformance/scenes" // which is what tests call
		if strings.HasPrefix(s.path, "examples/") || strings.HasPrefix(s.path, "test/programs/") || tests && (std || ours) {
			continue
		}
		for _, c := range s.calls("time", "Sleep") {
			t.Errorf("%s: time.Sleep: wait for the event itself, or use internal/bubble", s.position(c))
		}
	}
}

var (
	skip  = regexp.MustCompile(`\.Skip(f|Now)?\(`)
	short = regexp.MustCompile(`if testing\.Short\(\) \{\s+t\.Skip\((".*")?\)\s+\}`)
)

// A test that skips for want of redis-server must not do so under make test.
func TestRedisIsNotSkippedSilently(t *testing.T) {
	for _, s := range sources(t, true) {
		used := s.imports()
		_, server := used[module+"/internal/redistest"]
		_, client := used["github.com/redis/go-redis/v9"]
		if !server && !client && s.dir() != "internal/redistest" || s.dir() == "test/jobs" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(repository, s.path))
		if err != nil {
			t.Fatal(err)
		}
		if text = short.ReplaceAll(text, nil); skip.Match(text) && !bytes.Contains(text, []byte("HEADGATE_REQUIRE")) {
			t.Errorf("%s: under make test, a test that needs redis-server or its clock must fail, not skip", s.path)
		}
	}
}
