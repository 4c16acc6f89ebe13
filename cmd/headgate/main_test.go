package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// headgate runs a command line.
func headgate(t testing.TB, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(stdin), &out, &err)
	return code, out.String(), err.String()
}

// file writes a file of the test.
func file(t testing.TB, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const good = `limits:
  api:
    default: free
    plans:
      free: {minute: sliding-log 6/minute, day: fixed-window 1000/day}
      gold: {minute: sliding-log 60/minute, day: fixed-window 50000/day}
    overrides:
      - {key: user-42, plan: gold, until: 2020-01-01T00:00:00Z}
      - {key: 10.0.0.9, plan: gold}
...
`

func TestVersion(t *testing.T) {
	code, out, _ := headgate(t, "", "version")
	if fields := strings.Fields(out); code != 0 || len(fields) < 4 || fields[0] != "headgate" {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ = headgate(t, "", "version", "-json")
	var b build
	if err := json.Unmarshal([]byte(out), &b); code != 0 || err != nil || b.Version == "" || b.Go == "" || b.System == "" {
		t.Errorf("%d %v %s", code, err, out)
	}
	if code, _, _ := headgate(t, "", "version", "extra"); code != exitTrouble {
		t.Errorf("with an argument: %d", code)
	}
}

func TestCheck(t *testing.T) {
	name := file(t, "good.yaml", good)
	code, out, _ := headgate(t, "", "check", name)
	if want := name + ":8:9: the override is over since 2020-01-01T00:00:00Z: remove it (a warning)\n" + name + ": ok, version "; code != 0 || !strings.HasPrefix(out, want) {
		t.Errorf("%d %s", code, out)
	}
	network := file(t, "network.json", `{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "203.0.113.0/28", "slots": 2}]}}}`)
	code, out, _ = headgate(t, "", "check", network)
	if want := network + ":1:60: it is a network"; code != 1 || !strings.HasPrefix(out, want) || strings.Contains(out, "203.0.113") {
		t.Errorf("%d %s", code, out)
	}
	bad := file(t, "bad.json", "{\"limits\": {\"api\": {\"plans\": {\"a\": \"sliding-log 6/mintue\",\n\"b\": 1}}}}")
	code, out, _ = headgate(t, "", "check", name, bad)
	for _, want := range []string{
		bad + ":1:36: \"sliding-log 6/mintue\": \"mintue\" is not a period",
		bad + ":2:6: it is a number, not a policy",
		name + ": ok",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("%d %s\nhas not %s", code, out, want)
		}
	}
	code, out, _ = headgate(t, good, "check", "-json", "-")
	var results []struct {
		File, Version    string
		Faults, Warnings []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &results); err != nil || code != 0 || len(results[0].Version) != 12 || len(results[0].Warnings) != 1 || results[0].Faults == nil {
		t.Errorf("%d %v %s", code, err, out)
	}
	code, out, _ = headgate(t, good[:100], "check", "-", "-json")
	if err := json.Unmarshal([]byte(out), &results); err != nil || code != 1 || len(results[0].Faults) != 1 || results[0].Faults[0]["line"] != float64(5) {
		t.Errorf("%d %v %s", code, err, out)
	}
}

func TestCommandLines(t *testing.T) {
	name := file(t, "good.yaml", good)
	for _, c := range []struct {
		args string
		code int
		want string // on standard error
	}{
		{"", 2, "usage: headgate COMMAND"},
		{"help", 0, "usage: headgate COMMAND"},
		{"chek " + name, 2, "the first argument is no command"},
		{"check", 2, "arguments: 0 given, 1 to 1000 needed"},
		{"check -help", 0, "headgate check FILE...: says all that is wrong"},
		{"check -nothing " + name, 2, "argument 1 is no flag"},
		{"check " + name + ".not", 2, "no such file"},
		{"diff " + name, 2, "arguments: 1 given, 2 needed"},
		{"diff -- " + name + " -json", 2, "open -json:"},
		{"ping -redis redis://127.0.0.1:1 -secret-file " + name + ".not", 2, "no such file"},
	} {
		code, _, stderr := headgate(t, "", strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %s", c.args, code, stderr)
		}
	}
}

func TestDiff(t *testing.T) {
	old := file(t, "old.yaml", good)
	raised := file(t, "raised.yaml", strings.NewReplacer("6/minute", "7/minute", "10.0.0.9", "10.0.0.8").Replace(good))
	fresh := file(t, "fresh.yaml", strings.ReplaceAll(good, "sliding-log", "sliding-window"))
	bad := file(t, "bad.yaml", strings.Replace(good, "sliding-log", "sliding", 1))
	if code, out, _ := headgate(t, "", "diff", old, old); code != 0 || !strings.HasPrefix(out, "no difference") {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ := headgate(t, "", "diff", old, raised)
	const want = `limit "api": plan free, minute: sliding-log 6/minute -> sliding-log 7/minute
limit "api": override of a key (line 9): gone, was plan gold [10.0.0.9]
limit "api": override of a key (line 9): new, plan gold [10.0.0.8]
`
	if lines := strings.SplitAfter(out, "\n"); code != 1 || strings.Join(slices.Sorted(slices.Values(lines)), "") != strings.Join(slices.Sorted(slices.Values(strings.SplitAfter(want, "\n"))), "") {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := headgate(t, "", "diff", old, fresh); code != 1 || !strings.Contains(out, "plan gold, minute: sliding-log 60/minute -> sliding-window 60/minute; starts fresh") {
		t.Errorf("%d %s", code, out)
	}
	if code, _, stderr := headgate(t, "", "diff", old, bad); code != 2 || !strings.Contains(stderr, bad+":5:22: it does not begin with an algorithm") {
		t.Errorf("%d %s", code, stderr)
	}
}
