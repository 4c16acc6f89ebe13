package redisstore

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/redistest"
)

// What a key takes of Redis is as docs/redis.md says, give or take a half: allocators
// differ.
func TestMemoryOfKeys(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t)
	s := open(t, Config{Failure: FailClosed, RefusalTTL: -1}, server.Addr())
	minute := func(n int64) core.Rate { return core.Rate{Events: n, Per: time.Minute} }
	for _, test := range []struct {
		row      string
		policies []core.Policy
		calls    int
	}{
		{"`TokenBucket`", []core.Policy{core.TokenBucket(minute(60), 60)}, 1},
		{"`FixedWindow`", []core.Policy{core.FixedWindow(minute(60))}, 1},
		{"`SlidingWindow`", []core.Policy{core.SlidingWindow(minute(60))}, 1},
		{"`SlidingLog` with 1 entry", []core.Policy{core.SlidingLog(minute(60))}, 1},
		{"`SlidingLog` with 60 entries", []core.Policy{core.SlidingLog(minute(60))}, 60},
		{"`SlidingLog` with 1,000 entries", []core.Policy{core.SlidingLog(core.PerDay(1000))}, 1000},
		{"`MinInterval`", []core.Policy{core.MinInterval(time.Minute)}, 1},
		{"`TokenBucket` and `FixedWindow`", []core.Policy{core.TokenBucket(minute(60), 60).Named("b"), core.FixedWindow(minute(60)).Named("w")}, 1},
		{"two `TokenBucket`", []core.Policy{core.TokenBucket(minute(60), 60).Named("b"), core.TokenBucket(minute(30), 60).Named("c")}, 1},
	} {
		server.Flush()
		l := newLimiter(t, s, "api", test.policies...)
		admitted(t, l, "203.0.113.7", test.calls)
		name := s.cell(t, l, "203.0.113.7")
		used := number(t, server, "MEMORY", "USAGE", name, "SAMPLES", "0")
		value := number(t, server, "STRLEN", name)
		_, rest, _ := strings.Cut(string(text), "| "+test.row+" | ")
		var length, all int64
		if _, err := fmt.Sscanf(strings.ReplaceAll(rest, ",", ""), "%d | %d |", &length, &all); err != nil {
			t.Errorf("docs/redis.md does not say what %s takes: a value of %d bytes, %d in all", test.row, value, used)
		}
		if value != length || used > all+all/2 || used < all/2 {
			t.Errorf("%s: a value of %d bytes, %d in all; docs/redis.md says %d and %d", test.row, value, used, length, all)
		}
	}
}

// number sends a command that returns one.
func number(t *testing.T, server *redistest.Server, words ...string) int64 {
	t.Helper()
	reply, err := server.Do(words...)
	n, ok := reply.(int64)
	if err != nil || !ok {
		t.Fatalf("%v: %v, %v", words, reply, err)
	}
	return n
}
