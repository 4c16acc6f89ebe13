package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/docstore"
	"github.com/headgate/headgate/internal/document"
	"github.com/headgate/headgate/internal/redistest"
	"github.com/headgate/headgate/limits"
	"github.com/headgate/headgate/limits/redisdoc"
)

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	redis.SetLogger(silent{})
	m.Run()
}

const secretText = "a secret of thirty-two bytes or more"

// patient is for tests in which Redis answers.
const patient = 20 * time.Second

// aServer is a server of the fleet.
func aServer(t *testing.T, addr string) (*limits.Book, *core.Limiter) {
	t.Helper()
	store, err := redisstore.Open("redis://"+addr, redisstore.Config{Timeout: patient, Secret: []byte(secretText)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	book, err := redisdoc.Open(t.Context(), store, store.Client(), documentKey, limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	api, err := book.Limiter("api")
	if err != nil {
		t.Fatal(err)
	}
	return book, api
}

// A document is pushed, changed, refused, and looked into, with servers that use it.
func TestRedisCommands(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://" + server.Addr()
	secret := file(t, "secret", secretText+"\n")
	does := func(code int, want string, args ...string) string {
		t.Helper()
		args = append(args, "-redis", url, "-timeout", patient.String())
		switch args[0] {
		case "push":
			args = append(args, "-wait", patient.String())
		case "pull":
		default:
			args = append(args, "-secret-file", secret)
		}
		got, out, stderr := headgate(t, "user-43\n", args...)
		if got != code || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: %d %s%s\nnot %d %s", args, got, out, stderr, code, want)
		}
		if !strings.HasPrefix(args[0], "pu") && strings.Contains(out+stderr, "user-4") || strings.Contains(out+stderr, secretText) {
			t.Errorf("%s: a key or the secret: %s%s", args[0], out, stderr)
		}
		return out
	}
	document := func(policy string) string {
		return file(t, "limits.yaml", `limits:
  api:
    default: free
    plans: {free: {log: `+policy+`}, gold: {log: sliding-log 100/36500d}}
    overrides:
      - {key: user-42, plan: gold}
...
`)
	}
	first := document("sliding-log 2/36500d")
	does(2, "there is no document: push one", "peek", "api", "user-42")
	does(2, "there is no document: push one", "pull")
	does(0, "not pushed: version", "push", first, "-dry-run")
	does(0, "0 servers have it", "push", first)
	does(0, "- {key: user-42, plan: gold}", "pull")
	does(1, "Redis has ", "push", first, "-from", "none")

	one, api := aServer(t, server.Addr())
	aServer(t, server.Addr())
	for range 2 {
		if d, err := api.Allow(t.Context(), "user-43"); err != nil || !d.Allowed {
			t.Error(d, err)
		}
	}
	does(1, "log: sliding-log 2/36500d: 0 of 2 left, all in 36500.0 days", "peek", "api", "user-43")
	does(1, "; refused for 36500.0 days", "peek", "api", "-")
	does(0, "100 of 100 left", "peek", "api", "user-42")
	does(0, "\"remaining\": 100,", "peek", "api", "user-44", "-plan", "gold", "-json")
	does(2, `has no limit "web"`, "peek", "web", "user-42")
	does(2, `the limit has no plan "silver"`, "peek", "api", "user-42", "-plan", "silver")

	second := document("sliding-log 3/36500d")
	does(0, "limit \"api\": plan free, log: sliding-log 2/36500d -> sliding-log 3/36500d\n", "push", second)
	does(0, "version "+one.State().Version+": 2 servers have it", "push", second)
	does(0, "sliding-log 3/36500d: 1 of 3 left", "peek", "api", "user-43")
	does(1, "0 of 2 left", "peek", "api", "user-43", "-limits", first)

	other := file(t, "other.yaml", "limits:\n  web: {plans: {free: sliding-log 1/hour}}\n...\n")
	does(2, "is not valid", "push", document("sliding-log 0/hour"))
	does(1, `has version `+one.State().Version+`, and refuses the document: line 1, column 1: the program uses a limit "api"`, "push", other)
	does(0, "limit \"web\": gone", "push", second)
	does(0, "starts fresh", "push", document("sliding-log 3/hour"))
	does(0, "2 servers have it", "push", second)

	does(0, "no problem was found", "ping")
	does(0, "is forgotten", "reset", "api", "user-43")
	does(0, "3 of 3 left", "peek", "api", "user-43")
	server.Kill()
	code, _, stderr := headgate(t, "", "ping", "-redis", url, "-timeout", "1s")
	if code != 2 || !strings.Contains(stderr, "the server does not answer") {
		t.Errorf("%d %s", code, stderr)
	}
	for _, c := range [][2]string{{"", "name a server with -redis"}, {"http://user:hidden@x", "the URL has not the form redis://user:password@host:6379/0"}, {"redis://:hidden@[", "the URL has not the form"}} {
		code, _, stderr := headgate(t, "", "ping", "-redis", c[0])
		if code != 2 || !strings.Contains(stderr, c[1]) || strings.Contains(stderr, "hidden") {
			t.Errorf("%s: %d %s", c[0], code, stderr)
		}
	}
}

// A key is reset under all plans, and by its override.
func TestResetIsOfAllPlans(t *testing.T) {
	server := redistest.Start(t)
	name := file(t, "limits.yaml", `limits:
  api:
    default: free
    plans:
      free: {minute: sliding-log 5/36500d}
      gold: {minute: sliding-log 9/36500d, month: fixed-window 100/36500d}
    overrides:
      - {key: anna, policies: {minute: sliding-log 5/36500d, own: fixed-window 7/36500d}}
  other: {plans: {all: sliding-log 5/36500d}}
...
`)
	run := func(code int, want string, args ...string) {
		t.Helper()
		args = append(args, "-redis", "redis://"+server.Addr(), "-timeout", patient.String(), "-limits", name)
		got, out, stderr := headgate(t, "", args...)
		if got != code || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: %d %s%s\nnot %d %s", args, got, out, stderr, code, want)
		}
	}
	store, err := redisstore.Open("redis://"+server.Addr(), redisstore.Config{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	book, err := limits.Open(t.Context(), store, limits.File(name), limits.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	use := func(limit, plan, key string) {
		t.Helper()
		l, err := book.Limiter(limit)
		if err == nil {
			_, err = l.Plan(plan).Allow(t.Context(), key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	use("api", "gold", "anna")
	use("api", "gold", "bert")
	use("other", "", "anna")
	run(0, "own: fixed-window 7/36500d: 6 of 7 left", "peek", "api", "anna", "-plan", "gold")
	run(0, `what the key has used of "api" is forgotten`, "reset", "api", "anna")
	run(0, "own: fixed-window 7/36500d: 7 of 7 left", "peek", "api", "anna")
	run(0, "minute: sliding-log 5/36500d: 5 of 5 left", "peek", "api", "anna")
	run(0, "99 of 100 left", "peek", "api", "bert", "-plan", "gold")
	run(0, "4 of 5 left", "peek", "other", "anna")
}

// A push that nobody waits for ends, and says who has refused it, and how many have not answered.
func TestPushGivesUp(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	documents := docstore.Location{Client: client, Key: documentKey}
	if err := documents.Tell(t.Context(), docstore.Server{ID: "old", Version: "x", Found: "x"}); err != nil {
		t.Fatal(err)
	}
	text := "slots:\n  ws: {plans: {a: 1}}\n...\n"
	refuses := docstore.Server{ID: "new", Version: "x", Found: document.Version([]byte(text)), Err: "it lacks a limit"}
	if err := documents.Tell(t.Context(), refuses); err != nil {
		t.Fatal(err)
	}
	name := file(t, "limits.yaml", text)
	code, out, _ := headgate(t, "", "push", name, "-redis", "redis://"+server.Addr(), "-wait", "1s")
	for _, want := range []string{
		"1 servers have not loaded the document", "the server new has version x, and refuses the document: it lacks a limit",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("%d %s", code, out)
		}
	}
	// A client that repeats a call whose answer was lost has not met somebody else.
	for replaces, want := range map[string]error{"other": nil, refuses.Found: nil} {
		if err := documents.Write(t.Context(), []byte(text), replaces); !errors.Is(err, want) {
			t.Errorf("in the place of %s: %v", replaces, err)
		}
	}
}

// A late is a context whose own timer is late: only its deadline says that it is over.
type late struct {
	context.Context

	deadline time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

// It says so, too, if Redis is silent when the time is over.
func TestAwaitGivesUpWhileRedisIsSilent(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	documents := docstore.Location{Client: client, Key: documentKey}
	if err := documents.Tell(t.Context(), docstore.Server{ID: "old", Version: "x", Found: "x"}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second/2, proxy.Hold)
	_, refusals, failure := documents.Await(late{t.Context(), time.Now().Add(time.Second)}, "y")
	err := errors.Join(refusals...)
	if failure != nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 servers have not loaded") {
		t.Error(err, failure)
	}
}

// What is in Redis and was not pushed is an error, and is not replaced.
func TestForeignValue(t *testing.T) {
	server := redistest.Start(t)
	if _, err := server.Do("SET", documentKey, "limits: {}"); err != nil {
		t.Fatal(err)
	}
	name := file(t, "good.yaml", good)
	for _, args := range [][]string{{"push", name}, {"pull"}, {"peek", "api", "k"}} {
		code, out, stderr := headgate(t, "", append(args, "-redis", "redis://"+server.Addr())...)
		if code != 2 || !strings.Contains(stderr, "the key has something that was not pushed") {
			t.Errorf("%s: %d %s%s", args[0], code, out, stderr)
		}
	}
	if text, err := server.Do("GET", documentKey); err != nil || text != "limits: {}" {
		t.Error(text, err)
	}
}

// A document that was changed by hand is told, and replaced.
func TestPushMendsWhatWasChangedByHand(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://" + server.Addr()
	name := file(t, "good.yaml", good)
	version := document.Version([]byte(good))
	byHand := func() {
		if _, err := server.Do("SET", documentKey, "headgate-limits 1 "+version+"\nlimits: {}\n...\n"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		flags string
		code  int
		want  string
	}{
		{"-dry-run", 0, "not pushed: version " + version + " in the place of " + version},
		{"-from none", 1, "not pushed: Redis has " + version + ", not none"},
		{"-from " + version, 0, "0 servers have it"},
		{"", 0, "0 servers have it"},
	} {
		byHand()
		code, out, stderr := headgate(t, "", append([]string{"push", name, "-redis", url}, strings.Fields(c.flags)...)...)
		if code != c.code || !strings.Contains(out, c.want) || !strings.Contains(stderr, "was changed by hand, and cannot be compared") {
			t.Errorf("%q: %d %s%s", c.flags, code, out, stderr)
		}
	}
	if code, out, stderr := headgate(t, "", "pull", "-redis", url); code != 0 || out != good {
		t.Errorf("%d %q %s", code, out, stderr)
	}
	byHand()
	for _, args := range [][]string{{"pull"}, {"peek", "api", "k"}} {
		code, _, stderr := headgate(t, "", append(args, "-redis", url)...)
		if code != 2 || !strings.Contains(stderr, "the document was changed by hand") {
			t.Errorf("%s: %d %s", args, code, stderr)
		}
	}
}

// A call to Redis that fails while servers are waited for is trouble, and no refusal of a server.
func TestPushCannotAskTheServers(t *testing.T) {
	server := redistest.Start(t)
	if _, err := server.Do("SET", documentKey+":servers", "x"); err != nil {
		t.Fatal(err)
	}
	code, out, stderr := headgate(t, "", "push", file(t, "good.yaml", good), "-redis", "redis://"+server.Addr())
	if code != 2 || !strings.Contains(stderr, "the document is pushed, but") || !strings.Contains(stderr, "WRONGTYPE") {
		t.Errorf("%d %s%s", code, out, stderr)
	}
}

// A fullDisk has no room.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// What is pulled is what was pushed, byte by byte; what does not arrive is no success.
func TestPullGivesTheBytesThatWerePushed(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://" + server.Addr()
	long := strings.Repeat("x", 3000)
	parts := []string{
		"# \u202e\u2066 who changes the direction of writing", "# tab\there", "# \u00e9", "# \u00a0\u200bend", "# https://user:secret@example.com/a?b=c",
		"# " + long, "$schema: https://example.com/limits.schema.json", "# \U0001f389 emoji", "#    blanks   ", "",
	}
	for i := range 50 {
		ending := "\n"
		if i%5 == 0 {
			ending = "\r\n"
		}
		first, second := parts[i%len(parts)], parts[i/len(parts)]
		if first == second && strings.HasPrefix(first, "$") {
			second = ""
		}
		text := strings.Join([]string{
			first, "limits:", fmt.Sprintf("  api: {plans: {all: sliding-log %d/hour}, overrides: [{key: '%s', policies: blocked, note: \"\\x07 a\u202eb\"}]}", 1+i, long[:i*60+1]),
			second, "...",
		}, ending)
		if i%2 == 0 {
			text += ending
		}
		code, out, stderr := headgate(t, text, "push", "-", "-redis", url)
		if code != 0 {
			t.Fatalf("document %d: %d %s%s", i, code, out, stderr)
		}
		code, out, stderr = headgate(t, "", "pull", "-redis", url)
		if code != 0 || out != text {
			t.Errorf("document %d: %d, %q\nis not %q %s", i, code, out, text, stderr)
		}
	}
	for _, args := range [][]string{{"pull", "-redis", url}, {"pull", "-json", "-redis", url}, {"version"}, {"ping", "-redis", url}} {
		var stderr strings.Builder
		code := run(t.Context(), args, strings.NewReader(""), fullDisk{}, &stderr)
		if code != exitTrouble || !strings.Contains(stderr.String(), "no space left on device") {
			t.Errorf("%v: %d %s", args, code, stderr.String())
		}
	}
}
