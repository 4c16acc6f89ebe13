package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/redistest"
)

// collide returns two names that no store over Redis can tell apart in a record.
func collide() (a, b string) {
	seen := make(map[uint64]string)
	for i := 0; ; i++ {
		b = fmt.Sprint("c", i)
		h := fnv.New64a()
		_, _ = h.Write([]byte(b))
		if other, ok := seen[h.Sum64()%(1<<26)]; ok {
			return other, b
		}
		seen[h.Sum64()%(1<<26)] = b
	}
}

// api is a document with one limit, api.
func api(policies, override string) string {
	return "limits:\n  api:\n    plans:\n      free: " + policies + "\n    overrides:\n      - {key: k, policies: " + override + "}\n...\n"
}

// What check says of a document, for servers of each kind.
func TestCheckForStores(t *testing.T) {
	a, b := collide()
	for name, c := range map[string]struct{ text, store, want string }{
		"an override that adds a policy": {api("{m: sliding-log 60/minute, d: fixed-window 9/day}", "{x: min-interval 1s}"), "redis", ""},
		"a long log":                     {api("sliding-log 20000/day", "sliding-log 60/day"), "redis", `:4:13: limits.api.plans.free: a SlidingLog stores each event, in Redis at most 16384`},
		"a long log, in memory":          {api("sliding-log 20000/day", "sliding-log 60/day"), "memory", ""},
		"a long log, in little memory":   {api("sliding-log 30000/day", "sliding-log 60/day"), "memory 1048576", `:4:13: limits.api.plans.free: policy "api" takes up to 240`},
		"a long log of an override":      {api("sliding-log 60/day", "sliding-log 20000/day"), "redis", `:6:9: limits.api.overrides[0]: a SlidingLog stores`},
		"two logs together":              {api("{m: sliding-log 9000/day}", "{x: sliding-log 9000/day}"), "redis", `:6:9: limits.api.overrides[0]: a SlidingLog stores each event, in Redis at most 16384 for all of a limiter's, not 18000`},
		"names together":                 {api("{"+a+": min-interval 1s}", "{"+b+": min-interval 1s}"), "redis", `:6:9: limits.api.overrides[0]: the names of policies`},
		"names together, in memory":      {api("{"+a+": min-interval 1s}", "{"+b+": min-interval 1s}"), "memory", ""},
		"divided by servers":             {api("min-interval 30000d", "min-interval 1d"), "redis 3", `:4:13: limits.api.plans.free: for FailLocal: `},
	} {
		t.Run(name, func(t *testing.T) {
			file := file(t, "limits.yaml", c.text)
			code, out, stderr := headgate(t, "", "check", file, "-store", c.store)
			if c.want == "" && code != 0 || c.want != "" && (code != 1 || !strings.Contains(out, file+c.want)) || strings.Contains(out, "Named") {
				t.Errorf("%d %s%s\nnot %s", code, out, stderr, c.want)
			}
		})
	}
	name := file(t, "limits.yaml", api("sliding-log 60/day", "sliding-log 60/day"))
	for _, store := range []string{"", "rediss", "memory x"} {
		if code, _, stderr := headgate(t, "", "check", name, "-store", store); code != 2 || !strings.Contains(stderr, "-store is redis, or memory") {
			t.Errorf("%q: %d %s", store, code, stderr)
		}
	}
	if code, _, stderr := headgate(t, "", "check", name, "-servers"); code != 2 || !strings.Contains(stderr, "name a server with -redis") {
		t.Errorf("%d %s", code, stderr)
	}
}

// inMemory is a server with limits in memory, from the document in Redis.
func inMemory(t *testing.T, addr, instance string, limitNames ...string) *limits.Book {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	source, err := redisdoc.New(client, redisdoc.Config{Instance: instance})
	if err != nil {
		t.Fatal(err)
	}
	book, err := limits.Open(t.Context(), memstore.New(memstore.Config{}), false, source, limits.Config{Timeout: patient, Every: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	for _, name := range limitNames {
		if _, err := book.Limit(name); err != nil {
			t.Fatal(err)
		}
	}
	return book
}

// told waits until so many servers have told that they use that limit.
func told(t *testing.T, addr, name string, n int) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	defer client.Close()
	source, err := redisdoc.New(client, redisdoc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		servers, err := source.Servers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(slices.DeleteFunc(servers, func(s redisdoc.Server) bool { return !slices.Contains(s.Program.Limits, name) })) == n {
			return
		}
		runtime.Gosched()
	}
}

// What a server that is there would refuse is not published, and check says the same when it asks
// the servers.
func TestPushComparesWithTheServers(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://" + server.Addr()
	stored := func() string {
		t.Helper()
		text, err := server.Do("HGETALL", redisdoc.DefaultKey)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(text)
	}
	does := func(text string, code int, want string, args ...string) {
		t.Helper()
		name, before := file(t, "limits.yaml", text), stored()
		args = append(args, "-redis", url, "-timeout", patient.String())
		push := append([]string{"push", name, "-wait", patient.String()}, args...)
		check := append([]string{"check", name, "-servers"}, args...)
		for _, args := range [][]string{check, append(push, "-dry-run"), push} {
			got, out, stderr := headgate(t, "", args...)
			if got != code || !strings.Contains(out+stderr, want) {
				t.Errorf("%s: %d %s%s\nnot %d %s", args[0], got, out, stderr, code, want)
			}
		}
		if now := stored(); (now == before) != (code != 0) {
			t.Errorf("it was published: %t\n%s", now != before, text)
		}
	}
	const key, long = "sliding-log 60/day", "sliding-log 20000/day"
	does(api(long, key), 1, ":4:13: limits.api.plans.free: a SlidingLog stores")
	does(api(long, key), 0, "version ", "-store", "memory")
	one := inMemory(t, server.Addr(), "one", "api")
	told(t, server.Addr(), "api", 1)
	does(api(strings.Replace(long, "2", "3", 1), key), 0, "version ")
	for one.State().Err != nil {
		runtime.Gosched()
	}
	does("limits: {web: {plans: {free: unlimited}}}\n...\n", 1, `limits.yaml: limits: the server one: there is no "api" among the limits, which the program uses`)
	does(api(key, key)[:len(api(key, key))-4]+"slots: {ws: {plans: {a: 1}}}\n...\n", 1, ":7:9: slots.ws: the server one: Open was given no store for slots")
	one.Close()
	if _, err := server.Do("DEL", redisdoc.DefaultKey+":servers"); err != nil {
		t.Fatal(err)
	}
	does(api(key, key), 0, "version ")
	aServer(t, server.Addr(), "two")
	told(t, server.Addr(), "api", 1)
	does(api(long, key), 1, ":4:13: limits.api.plans.free: the server two: a SlidingLog stores")
	does(api("{m: sliding-log 60/day, x: min-interval 1s}", "{m: "+long+"}"), 1, ":6:9: limits.api.overrides[0]: the server two: a SlidingLog")
}

// Of two operators who push at once, each in the place of what they have seen, one is told. Nothing
// that was pushed is undone unseen.
func TestTwoOperators(t *testing.T) {
	server := redistest.Start(t)
	document := func(n int) string {
		return file(t, fmt.Sprint(n, ".yaml"), fmt.Sprintf("limits: {api: {plans: {free: sliding-log %d/minute}}}\n...\n", n))
	}
	version := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code, out, _ := headgate(t, string(text), "check", "-")
		_, version, found := strings.Cut(strings.TrimSpace(out), "version ")
		if code != 0 || !found {
			t.Fatal(code, out)
		}
		return version
	}
	push := func(name, from string) (int, string) {
		code, out, stderr := headgate(t, "", "push", name, "-from", from, "-redis", "redis://"+server.Addr(), "-timeout", patient.String())
		return code, out + stderr
	}
	first := document(1)
	if code, out := push(first, version(first)); code != 1 || !strings.Contains(out, "not pushed: Redis has none, not "+version(first)) {
		t.Errorf("%d %s", code, out)
	}
	if code, out := push(first, "none"); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	base := version(first)
	for round := range 20 {
		mine := []string{document(2*round + 2), document(2*round + 3)}
		codes, outs := make([]int, 2), make([]string, 2)
		var both sync.WaitGroup
		for i := range mine {
			both.Go(func() { codes[i], outs[i] = push(mine[i], base) })
		}
		both.Wait()
		if codes[0]+codes[1] != 1 {
			t.Fatalf("%d: %d", round, codes)
		}
		if loser := slices.Index(codes, 1); !strings.Contains(outs[loser], "somebody else has pushed") {
			t.Errorf("%s", outs[loser])
		}
		winner := mine[slices.Index(codes, 0)]
		base = version(winner)
		if code, out := push(winner, base); code != 0 {
			t.Errorf("what the first has pushed is undone: %s", out)
		}
	}
	code, out, _ := headgate(t, "", "push", document(99), "-dry-run", "-redis", "redis://"+server.Addr())
	if code != 0 || !strings.Contains(out, "to push it, give -from "+base) {
		t.Errorf("%d %s", code, out)
	}
}

// Without -from, what is pushed between the reading and the writing is not undone either.
func TestPushBetween(t *testing.T) {
	server := redistest.Start(t)
	name := file(t, "limits.yaml", "slots: {ws: {plans: {a: 1}}}\n...\n")
	args := []string{name, "-redis", "redis://" + server.Addr(), "-timeout", patient.String()}
	if code, out, stderr := headgate(t, "", append([]string{"push"}, args...)...); code != 0 {
		t.Fatal(code, out, stderr)
	}
	source, err := redisdoc.New(redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true}), redisdoc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := limits.Parse([]byte(`{"slots": {"ws": {"plans": {"a": 2}}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, version, err := source.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Push(t.Context(), d, version); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p := &publication{call: &call{stdout: &out}, source: source, document: d, replaces: version, result: make(map[string]any)}
	if code, err := p.publish(t.Context(), patient, patient); code != 1 || err != nil || !strings.Contains(out.String(), "not pushed: somebody else has pushed meanwhile") {
		t.Errorf("%d %v %s", code, err, out.String())
	}
}
