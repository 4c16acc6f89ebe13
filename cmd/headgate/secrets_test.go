package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/internal/docstore"
	"github.com/headgate/headgate/internal/redistest"
)

// Whatever is wrong with a command line, no password and no secret in it or in the environment is
// printed.
func TestNoSecretIsPrinted(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	const canary = "canary"
	name := file(t, "limits.yaml", good)
	urls := []string{
		"redis://user:canary@127.0.0.1:1/0", "redis://canary@127.0.0.1:1", "redis://:canary@127.0.0.1:port", "redis://:ca nary/canary@127.0.0.1",
		"redis://user:1#canary@127.0.0.1:1", "redis://canary/x@127.0.0.1:1", "redis://canary?x@127.0.0.1:1", "redis://:%zzcanary@127.0.0.1",
		"http://:canary@127.0.0.1", "rediss://:canary", "unix://:canary@/nowhere", `redis://:"canary@127.0.0.1`, "redis://:x@canary@127.0.0.1:1",
	}
	lines := [][]string{
		{"-redis", "URL"}, {"-redis=URL"}, {"-help"}, {"-nothing"}, {"-redis"}, {"-timeout", "URL"}, {"-timeout=URL"}, {"-json=URL"}, {"-redis-password-file"},
		{"-wait", "URL"}, {"-dry-run=URL"}, {"-redis:URL"}, {"-URL"}, {"--URL=x"}, {"-=URL"}, {"---URL"}, {"URL"}, {"-document", "URL", "-redis", "redis://127.0.0.1:1"},
		{"-prefix", "{URL}", "-redis", "redis://127.0.0.1:1"}, {"-limits", "URL", "-redis", "URL"}, {"-secret-file", "URL"}, {"-secret-file", canary}, {"-secret-file=URL", "-redis", "URL"},
		{"-plan", "URL", "-redis", "URL"}, {"-from", "URL"}, {"-redis", "URL", "-timeout"}, {"a", "b", "c", "d"},
	}
	for _, url := range urls {
		for _, inEnvironment := range []bool{false, true} {
			for _, secret := range []string{canary, strings.Repeat(canary, 6)} { // too short, and long enough
				environment := ""
				if inEnvironment {
					environment = url
				}
				t.Setenv("HEADGATE_REDIS", environment)
				t.Setenv("HEADGATE_SECRET", secret)
				for _, c := range commands() {
					for _, line := range lines {
						for _, words := range [][]string{{name}, {"api", "key"}, {name, url}} {
							args := []string{c.name}
							for _, word := range line {
								args = append(args, strings.ReplaceAll(word, "URL", url))
							}
							args = append(append(args, words...), "-timeout", "20ms")
							code, out, stderr := headgate(t, "", args...)
							if strings.Contains(out+stderr, canary) {
								t.Fatalf("%q, HEADGATE_REDIS %q: %d %s%s", args, environment, code, out, stderr)
							}
						}
					}
				}
			}
		}
		if code, out, stderr := headgate(t, "", url); code != 2 || strings.Contains(out+stderr, canary) {
			t.Errorf("%s: %d %s%s", url, code, out, stderr)
		}
	}
}

// The password of a Redis that refuses it, or that is right, is not printed either.
func TestNoPasswordOfALiveRedisIsPrinted(t *testing.T) {
	const canary = "canary"
	server := redistest.Start(t)
	name := file(t, "limits.yaml", good)
	does := func(url string) {
		t.Helper()
		for _, args := range [][]string{{"push", name, "-wait", "1ms"}, {"push", name, "-json", "-dry-run"}, {"peek", "api", "key"}, {"reset", "api", "key"}, {"ping"}, {"ping", "-json"}, {"pull"}} {
			t.Setenv("HEADGATE_REDIS", url)
			code, out, stderr := headgate(t, "", args...)
			if strings.Contains(out+stderr, canary) || out+stderr == "" {
				t.Errorf("%s: %d %s%s", args, code, out, stderr)
			}
		}
	}
	does("redis://:canary@" + server.Addr())
	does("redis://user:canary@" + server.Addr())
	if _, err := server.Do("ACL", "SETUSER", "user", "on", ">canary", "~*", "&*", "+@all"); err != nil {
		t.Fatal(err)
	}
	does("redis://user:canary@" + server.Addr())
}

// hostile is what must not get to a terminal as it is.
const hostile = "a\x1b]0;b\x07\r\n\x9b31m\u009b31m\u202etxt\u2066\u200b\u2028\x00\xff\U000e0041\x7f"

// printable fails the test if a terminal would do more than print the text.
func printable(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s is not UTF-8: %.300q", what, text)
	}
	for i, r := range text {
		if r != '\n' && r != '\t' && !isSafe(r) {
			t.Errorf("%s prints %q at %d of %.300q", what, r, i, text)
			return
		}
	}
}

func isSafe(r rune) bool { // stated otherwise than in visible
	return r >= ' ' && r < 0x7f || r > 0xa0 && (r < 0x200b || r > 0x200f) && (r < 0x2028 || r > 0x202e) && (r < 0x2060 || r > 0x206f) && r < 0xe0000
}

// onTerminal returns what a command prints on a terminal.
func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	words := append([]string{os.Args[0]}, args...)
	cmd := exec.Command("script", "-qec", strings.Join(words, " "), "/dev/null")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

// What servers and documents say is printed as what it is.
func TestHostileTextsAreVisible(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://" + server.Addr()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	documents := docstore.Location{Client: client, Key: documentKey}
	if err := documents.Tell(t.Context(), docstore.Server{ID: hostile, Version: hostile, Found: hostile, Err: hostile + strings.Repeat("long", 1000)}); err != nil {
		t.Fatal(err)
	}
	pushed := []byte(`{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "` + "\u202e\u009b" + `", "slots": 1, "note": "` + "\u202e\u009b" + `"}]}}}`)
	if err := documents.Write(t.Context(), pushed, ""); err != nil {
		t.Fatal(err)
	}
	name := file(t, "limits.yaml", "slots:\n  ws: {plans: {a: 1}}\n...\n")
	bad := file(t, "bad.yaml", "limits:\n  \"\\e\\u202e\": {plans: {\"\\e\": {\"\\e\": \"sliding-log 6/\\e\"}}}\n...\n")
	for _, args := range [][]string{
		{"pull", "-redis", url}, {"push", name, "-dry-run", "-redis", url}, {"push", name, "-wait", "1ms", "-redis", url},
		{"peek", hostile, hostile, "-redis", url}, {"reset", hostile, "k", "-redis", url}, {"peek", "api", "k", "-document", hostile, "-redis", url},
		{"check", bad}, {"check", hostile}, {"diff", bad, bad}, {"check", "-" + hostile}, {hostile},
	} {
		for _, args := range [][]string{args, append(args, "-json")} {
			_, out, stderr := headgate(t, "", args...)
			if args[0] == "pull" && args[len(args)-1] != "-json" { // it is the bytes that were pushed, but for a terminal
				if out != string(pushed) {
					t.Errorf("pull printed %q", out)
				}
				out = onTerminal(t, args...)
			}
			printable(t, args[0]+"'s output", out)
			printable(t, args[0]+"'s errors", stderr)
			if out+stderr == "" {
				t.Errorf("%q prints nothing", args)
			}
			for line := range strings.Lines(out) {
				if len(line) > 4*maxShown {
					t.Errorf("%q: a line of %d bytes", args, len(line))
				}
			}
		}
	}
}

// The escapes of JSON stand for what was there.
func TestVisibleJSON(t *testing.T) {
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	shown := visibleJSON(string(text))
	printable(t, "JSON", shown)
	var got string
	if err := json.Unmarshal([]byte(shown), &got); err != nil || got != strings.ToValidUTF8(hostile, "\ufffd") {
		t.Errorf("%q, %v", got, err)
	}
}

// No key is printed but those of overrides that change.
func TestNoKeyIsPrinted(t *testing.T) {
	const canary = "canary"
	server := redistest.Start(t)
	t.Setenv("HEADGATE_REDIS", "redis://"+server.Addr())
	document := func(name, canary, limit string) string {
		return file(t, name, `limits:
  api:
    plans: {free: sliding-log `+limit+`}
    overrides:
      - {key: `+canary+`, plan: blocked, until: 2020-01-01T00:00:00Z}
      - {prefix: "`+canary+`:", policies: unlimited}
...
`)
	}
	one, other := document("one.yaml", canary, "1/hour"), document("other.yaml", canary, "2/hour")
	bad := file(t, "bad.yaml", "limits:\n  api:\n    plans: {free: sliding-log 1/hour}\n    overrides:\n      - canary@example.org: gold\n...\n")
	for _, secret := range []string{secretText, ""} {
		t.Setenv("HEADGATE_SECRET", secret)
		for _, args := range [][]string{
			{"check", bad}, {"diff", bad, bad}, {"push", bad}, {"peek", "api", canary, "-limits", bad}, {"check", one}, {"diff", one, other}, {"push", one, "-dry-run"}, {"push", one},
			{"push", other}, {"peek", "api", canary}, {"peek", "web", canary}, {"reset", "api", canary}, {"peek", "api", "-"}, {"ping"},
		} {
			for _, args := range [][]string{args, append(args, "-json")} {
				code, out, stderr := headgate(t, "", args...)
				if strings.Contains(out+stderr, canary) || out+stderr == "" {
					t.Errorf("%q: %d %.500s%.500s", args, code, out, stderr)
				}
			}
		}
	}
}
