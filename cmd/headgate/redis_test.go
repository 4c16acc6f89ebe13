package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/old/core/redisstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/limits/redisdoc"
	"github.com/headgate/headgate/internal/old/limits/yamldoc"
	"github.com/headgate/headgate/internal/redistest"
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
func aServer(t *testing.T, addr, instance string) (*limits.Book, *limits.Limit) {
	t.Helper()
	store, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{addr}}, redisstore.Config{Timeout: patient, Secret: []byte(secretText)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Client().Close() })
	source, err := redisdoc.New(store.Client(), redisdoc.Config{Instance: instance})
	if err != nil {
		t.Fatal(err)
	}
	book, err := limits.Open(t.Context(), store, true, source, limits.Config{Timeout: patient, Every: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	api, err := book.Limit("api")
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
		if args[0] == "push" {
			args = append(args, "-wait", patient.String())
		} else {
			args = append(args, "-secret-file", secret)
		}
		got, out, stderr := headgate(t, "user-43\n", args...)
		if got != code || !strings.Contains(out+stderr, want) {
			t.Errorf("%s: %d %s%s\nnot %d %s", args, got, out, stderr, code, want)
		}
		if args[0] != "push" && strings.Contains(out+stderr, "user-4") || strings.Contains(out+stderr, secretText) {
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
	does(2, "there is no document at {headgate-limits}: push one", "peek", "api", "user-42")
	does(0, "not pushed: version", "push", first, "-dry-run")
	does(0, "0 servers have it", "push", first)
	text, err := server.Do("HGET", redisdoc.DefaultKey, "document")
	if err != nil || !strings.Contains(text.(string), `{"key":"user-42","plan":"gold"}`) {
		t.Errorf("%v %v", text, err)
	}

	one, api := aServer(t, server.Addr(), "one")
	aServer(t, server.Addr(), "two")
	if l := api.For("free", "user-42").Policies()[0].Limit(); l != 100 {
		t.Errorf("the override's limit is %d", l)
	}
	for range 2 {
		if d, err := api.For("", "user-43").Allow(t.Context(), "user-43"); err != nil || !d.Allowed {
			t.Error(d, err)
		}
	}
	does(1, "log: sliding-log 2/36500d: 0 of 2 left, all in 36500.0 days", "peek", "api", "user-43")
	does(1, "; refused for 36500.0 days", "peek", "api", "-")
	does(0, "100 of 100 left", "peek", "api", "user-42")
	does(0, "\"remaining\": 100,", "peek", "api", "user-44", "-plan", "gold", "-json")
	does(2, `there is no "web"`, "peek", "web", "user-42")

	second := document("sliding-log 3/36500d")
	does(0, "limit \"api\": plan free, log: sliding-log 2/36500d -> sliding-log 3/36500d\n", "push", second)
	does(0, "version "+one.State().Version+": 2 servers have it", "push", second)
	does(0, "sliding-log 3/36500d: 1 of 3 left", "peek", "api", "user-43")
	does(1, "0 of 2 left", "peek", "api", "user-43", "-limits", first)

	third := document("token-bucket 1/day burst 4")
	third = strings.TrimSpace(third)
	does(2, "is not valid", "push", third) // gold has another algorithm
	lost := file(t, "lost.yaml", "limits:\n  api:\n    plans: {free: {log: token-bucket 1/day burst 4}}\n...\n")
	does(3, "not pushed: usage would be lost", "push", lost)
	does(1, "the server one has version "+one.State().Version+": ", "push", lost, "-lose-usage")
	does(1, "the server two stays with version", "doctor")
	does(0, "2 servers have it", "push", second, "-lose-usage")
	does(0, "no problem was found", "doctor")
	var report struct {
		Redis    []any
		Problems []string
		Servers  []struct{ Instance string }
	}
	if err := json.Unmarshal([]byte(does(0, "one", "doctor", "-json")), &report); err != nil || len(report.Redis) != 1 || len(report.Servers) != 2 || report.Problems == nil {
		t.Errorf("%v %+v", err, report)
	}

	does(0, "is forgotten", "reset", "api", "user-43")
	does(0, "3 of 3 left", "peek", "api", "user-43")

	if _, err := server.Do("CONFIG", "SET", "maxmemory", "100mb"); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"); err != nil {
		t.Fatal(err)
	}
	does(1, "evicts keys when its memory is full", "doctor")
	server.Kill()
	code, _, stderr := headgate(t, "", "doctor", "-redis", url, "-timeout", "1s")
	if code != 2 || !strings.Contains(stderr, "a server does not answer") {
		t.Errorf("%d %s", code, stderr)
	}
	for _, c := range [][2]string{{"", "name a server with -redis"}, {"http://user:hidden@x", "the URL has not the form redis://user:password@host:6379/0"}, {"redis://:hidden@[", "the URL has not the form"}} {
		code, _, stderr := headgate(t, "", "doctor", "-redis", c[0])
		if code != 2 || !strings.Contains(stderr, c[1]) || strings.Contains(stderr, "hidden") {
			t.Errorf("%s: %d %s", c[0], code, stderr)
		}
	}
}

// A key is reset under all plans, and by its override. A plan that is not there is an error.
func TestResetIsOfAllPlans(t *testing.T) {
	server := redistest.Start(t)
	name := file(t, "limits.yaml", `limits:
  api:
    default: free
    plans:
      free: {minute: sliding-log 5/36500d}
      gold: {minute: sliding-log 9/36500d, month: fixed-window 100/36500d}
    overrides:
      - {key: anna, policies: {own: fixed-window 7/36500d}}
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
	store, err := redisstore.Open(&redis.UniversalOptions{Addrs: []string{server.Addr()}}, redisstore.Config{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Client().Close() })
	book, err := limits.Open(t.Context(), store, false, limits.File(name), limits.Config{Decode: yamldoc.Decode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(book.Close)
	use := func(limit, plan, key string) {
		t.Helper()
		l, err := book.Limit(limit)
		if err == nil {
			_, err = l.For(plan, key).Allow(t.Context(), key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	use("api", "gold", "anna")
	use("api", "gold", "bert")
	use("other", "", "anna")
	run(0, "month: fixed-window 100/36500d: 99 of 100 left", "peek", "api", "anna", "-plan", "gold")
	run(2, `the limit has no plan "silver"`, "peek", "api", "anna", "-plan", "silver")
	run(2, `the limit has no plan "silver"`, "reset", "api", "anna", "-plan", "silver")
	run(0, `what the key has used of "api" is forgotten`, "reset", "api", "anna")
	run(0, "minute: sliding-log 9/36500d: 9 of 9 left", "peek", "api", "anna", "-plan", "gold")
	run(0, "month: fixed-window 100/36500d: 100 of 100 left", "peek", "api", "anna", "-plan", "gold")
	run(0, "own: fixed-window 7/36500d: 7 of 7 left", "peek", "api", "anna")
	run(0, "99 of 100 left", "peek", "api", "bert", "-plan", "gold")
	run(0, "4 of 5 left", "peek", "other", "anna")
}

// Each refusal says why, in JSON too.
func TestPushSaysWhy(t *testing.T) {
	server := redistest.Start(t)
	document := func(policy string) string {
		return file(t, "limits.yaml", "limits:\n  api: {plans: {free: {log: "+policy+"}}}\n...\n")
	}
	first, lost, large := document("sliding-log 2/minute"), document("fixed-window 2/minute"), document("sliding-log 16385/minute")
	push := func(code int, pushed bool, why, name string, args ...string) {
		t.Helper()
		args = append([]string{"push", name, "-json", "-redis", "redis://" + server.Addr(), "-timeout", patient.String()}, args...)
		got, out, stderr := headgate(t, "", args...)
		var result struct {
			Pushed *bool
			Why    string
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil || got != code || result.Pushed == nil || *result.Pushed != pushed || !strings.HasPrefix(result.Why, why) || why == "" && result.Why != "" {
			t.Errorf("%s: %v, %d %s%s\nnot %d, %t, %q", args, err, got, out, stderr, code, pushed, why)
		}
	}
	push(0, false, "version ", first, "-dry-run")
	push(0, true, "", first)
	push(3, false, "usage would be lost", lost)
	push(1, false, "servers would refuse it", large)
	push(1, false, "Redis has ", first, "-from", "none")
	server.Kill()
	code, out, stderr := headgate(t, "", "push", first, "-redis", "redis://"+server.Addr(), "-timeout", "1s")
	if code != 2 || strings.Contains(out+stderr, "secret") {
		t.Errorf("%d %s%s", code, out, stderr)
	}
}

// A push that nobody waits for ends.
func TestPushGivesUp(t *testing.T) {
	server := redistest.Start(t)
	name := file(t, "limits.yaml", "slots:\n  ws: {plans: {a: 1}}\n...\n")
	if _, err := server.Do("HSET", redisdoc.DefaultKey+":servers", "old", `{"instance": "old", "version": "x", "at": "`+time.Now().Format(time.RFC3339)+`"}`); err != nil {
		t.Fatal(err)
	}
	code, out, _ := headgate(t, "", "push", name, "-redis", "redis://"+server.Addr(), "-wait", "1ms")
	if code != 1 || !strings.Contains(out, "the server old has version x: it has not answered yet") {
		t.Errorf("%d %s", code, out)
	}
}
