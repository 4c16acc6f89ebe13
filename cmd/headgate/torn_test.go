package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/redistest"
)

// What is in Redis and was not pushed is told by doctor, and replaced by push; and a server that has
// not read the newest document is a problem.
func TestTornDocument(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	does := func(code int, want string, args ...string) {
		t.Helper()
		got, out, stderr := headgate(t, "", append(args, "-redis", "redis://"+server.Addr(), "-timeout", patient.String())...)
		if got != code || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: %d %s%s\nhas not %q", args[0], got, out, stderr, want)
		}
	}
	document := file(t, "good.yaml", good)
	for _, words := range []string{"HSET version x document y", "HSET version 7", "HSET document y", "HSET version 1 document {"} {
		server.Flush()
		command := strings.Fields(words)
		if _, err := server.Do(append([]string{command[0], redisdoc.DefaultKey}, command[1:]...)...); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(words, "{") {
			does(exitNo, "problem: headgate: redisdoc: what is in Redis was not pushed", "doctor")
		}
		does(exitOK, "0 servers have it", "push", document, "-wait", "0s")
		does(exitOK, "no problem was found", "doctor")
	}
	now, err := server.Do("TIME")
	if err != nil {
		t.Fatal(err)
	}
	var at int64
	if _, err := fmt.Sscan(fmt.Sprint(now.([]any)[0]), &at); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"instance": "web-1", "version": "old", "found": 1, "clock_offset": -11000000000, "at": %q}`, time.Unix(at, 0).Format(time.RFC3339))
	if _, err := server.Do("HSET", redisdoc.DefaultKey+":servers", "web-1", text); err != nil {
		t.Fatal(err)
	}
	does(exitNo, "the server web-1 has not read the newest limits, but has version old", "doctor")
	does(exitNo, "the clock of the server web-1 is 11s off from the clock of Redis", "doctor")
}
