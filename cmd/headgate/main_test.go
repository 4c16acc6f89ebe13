package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/memstore"
	"github.com/headgate/headgate/core/step"
	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/limits"
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
	if want := name + ":8:9: limits.api.overrides[0]: the override is over since 2020-01-01T00:00:00Z: remove it (a note)\n" + name + ": ok, version "; code != 0 || !strings.HasPrefix(out, want) {
		t.Errorf("%d %s", code, out)
	}
	network := file(t, "network.json", `{"slots": {"ws": {"plans": {"a": 1}, "overrides": [{"key": "203.0.113.0/28", "slots": 2}]}}}`)
	code, out, _ = headgate(t, "", "check", network)
	if want := network + ":1:52: slots.ws.overrides[0]: the key is a network"; code != 0 || !strings.HasPrefix(out, want) || strings.Contains(out, "203.0.113") {
		t.Errorf("%d %s", code, out)
	}
	bad := file(t, "bad.json", "{\"limits\": {\"api\": {\"plans\": {\"a\": \"sliding-log 6/mintue\",\n\"b\": 1}}}}")
	code, out, _ = headgate(t, "", "check", name, bad)
	for _, want := range []string{
		bad + ":1:49: limits.api.plans.a: \"sliding-log 6/mintue\": \"mintue\" is not a period",
		bad + ":2:6: limits.api.plans[1]: it is a number, not a policy",
		name + ": ok",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("%d %s\nhas not %s", code, out, want)
		}
	}
	code, out, _ = headgate(t, good, "check", "-json", "-")
	var results []struct {
		File, Version string
		Faults, Notes []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &results); err != nil || code != 0 || len(results[0].Version) != 12 || len(results[0].Notes) != 1 || results[0].Faults == nil {
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
		{"try " + name, 2, "name a log with -access-log"},
		{"try " + name + " -access-log " + name + ".log", 2, "no such file"},
		{"try " + name + " -limit web -access-log -", 2, `there is no "web" among the limits`},
		{"try " + name + " -access-log -", 2, "-: there is no request"},
		{"diff -secret-file " + name + ".not " + name + " " + name, 2, "no such file"},
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
	lost := file(t, "lost.yaml", strings.ReplaceAll(good, "sliding-log", "sliding-window"))
	bad := file(t, "bad.yaml", strings.Replace(good, "sliding-log", "sliding", 1))
	secret := file(t, "secret", "a secret of thirty-two bytes or more\n")
	if code, out, _ := headgate(t, "", "diff", old, old); code != 0 || !strings.HasPrefix(out, "no difference") {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ := headgate(t, "", "diff", old, raised)
	const want = `limit "api": plan free, minute: sliding-log 6/minute -> sliding-log 7/minute
limit "api": override of a key "10.0.0.8": new, plan gold (line 9)
limit "api": override of a key "10.0.0.9": gone, was plan gold (line 9)
`
	if code != 1 || out != want {
		t.Errorf("%d %s", code, out)
	}
	for _, args := range [][]string{{"diff", old, raised, "-secret-file", secret}, {"diff", old, raised, "-secret-file", secret, "-json"}} {
		if code, out, _ := headgate(t, "", args...); code != 1 || strings.Contains(out, "10.0.0") || !strings.Contains(out, "override of a key") {
			t.Errorf("%d %s", code, out)
		}
	}
	if code, out, _ := headgate(t, "", "diff", old, lost); code != 3 || !strings.Contains(out, "plan gold, what counts: minute (sliding-log) -> minute (sliding-window); usage is lost") {
		t.Errorf("%d %s", code, out)
	}
	if code, _, stderr := headgate(t, "", "diff", old, bad); code != 2 || !strings.Contains(stderr, bad+":5:22: limits.api.plans[0][0]") {
		t.Errorf("%d %s", code, stderr)
	}
}

// A log of ten thousand lines in the common format, with some that are broken, against an
// obvious count.
func TestTryTenThousandLines(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	at := time.Date(2026, 10, 10, 13, 55, 36, 0, time.UTC)
	var log bytes.Buffer
	admitted := make(map[string][]time.Time)
	refusedBy := make(map[string]int)
	requests, refused, broken := 0, 0, 0
	for requests+broken < 10_000 {
		at = at.Add(time.Duration(1+random.IntN(2)) * time.Second) // each second has one request at most
		if random.IntN(100) == 0 {
			broken++
			fmt.Fprintln(&log, [...]string{"", "-", "10.0.0.1 - - [yesterday] \"GET / HTTP/1.1\" 200 1", "{\"time\": 1}", "\x00\xff", "10.0.0.1 - - [10/Oct/2026:13:55:36 +0000] \"GET /"}[1+random.IntN(5)])
			continue
		}
		requests++
		key := fmt.Sprintf("10.0.0.%d", 1+min(random.IntN(40), random.IntN(40)))
		zone := time.FixedZone("", 3600*random.IntN(3))
		fmt.Fprintf(&log, "%s - anna [%s] \"GET /a?\\\"b HTTP/1.1\" 200 %d \"-\" \"Mozilla/5.0 (X11) \\\"x\\\"\"\n", key, at.In(zone).Format(commonTime), random.IntN(1000))
		most := 6
		if key == "10.0.0.9" {
			most = 60
		}
		inside := 0
		for _, then := range admitted[key] {
			if at.Sub(then) < time.Minute {
				inside++
			}
		}
		if inside < most {
			admitted[key] = append(admitted[key], at)
			continue
		}
		refused++
		refusedBy[key]++
	}
	text := strings.ReplaceAll(good, ", day: fixed-window 1000/day", "")
	text = strings.ReplaceAll(text, ", day: fixed-window 50000/day", "")
	document, other := file(t, "limits.yaml", text), file(t, "other.yaml", strings.ReplaceAll(text, "6/minute", "100000/minute"))
	plain := file(t, "access.log", log.String())
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(log.Bytes())
	_ = z.Close()
	for _, name := range []string{plain, file(t, "access.log.gz", packed.String())} {
		code, out, stderr := headgate(t, "", "try", document, other, "-access-log", name, "-json", "-top", "100")
		var got struct {
			Requests    int
			BrokenLines int `json:"broken_lines"`
			Broken      []string
			Trials      []struct {
				Admitted, Refused int
				Keys              int
				KeysRefused       int `json:"keys_refused"`
				Top               []tally
			}
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err, stderr)
		}
		one := got.Trials[0]
		if code != 0 || got.Requests != requests || got.BrokenLines != broken || len(got.Broken) != 5 {
			t.Errorf("%d: %d requests, %d broken lines, not %d and %d", code, got.Requests, got.BrokenLines, requests, broken)
		}
		if one.Refused != refused || one.Admitted != requests-refused || one.KeysRefused != len(refusedBy) || refused == 0 {
			t.Errorf("%+v, not %d refused of %d keys", one, refused, len(refusedBy))
		}
		for _, k := range one.Top {
			if k.Refused != refusedBy[k.Key] || k.Policies["minute"] != k.Refused {
				t.Errorf("%+v, not %d", k, refusedBy[k.Key])
			}
		}
		if got.Trials[1].Refused != 0 {
			t.Errorf("%d refused by the other", got.Trials[1].Refused)
		}
	}
	code, out, _ := headgate(t, "", "try", document, "-access-log", plain)
	if code != 1 || !strings.Contains(out, fmt.Sprintf("%d of 10000 lines are no requests and were left out: line ", broken)) || !strings.Contains(out, "10.0.0.1 ") {
		t.Errorf("%d %s", code, out)
	}
	secret := file(t, "secret", "a secret of thirty-two bytes or more")
	if _, out, _ := headgate(t, "", "try", document, "-access-log", plain, "-secret-file", secret); strings.Contains(out, "10.0.0.") || !strings.Contains(out, "hash:") {
		t.Error(out)
	}
}

// Logs of JSON lines, and fields of both formats.
func TestTryFields(t *testing.T) {
	document := file(t, "limits.json", `{"limits": {"api": {"default": "free", "plans": {"free": "sliding-log 1/hour", "gold": "sliding-log 2/hour"}}}}`)
	combined := `::1 - anna [10/Oct/2026:13:55:36 +0000] "GET /a?b=c HTTP/1.1" 200 - "-" "curl"
::1 - anna [10/Oct/2026:13:55:37 +0000] "POST /a HTTP/1.1" 200 5 "-" "curl" "more" 0.001
::1 - ben [10/Oct/2026:13:55:38 +0000] "GET /b HTTP/1.1" 200 5
`
	json1 := `{"time": "2026-10-10T13:55:36.5Z", "remote_addr": "a", "plan": "gold"}
{"time": "2026-10-10T13:55:36.6Z", "remote_addr": "a", "plan": "gold"}
{"time": "2026-10-10T13:55:36.7Z", "remote_addr": "b", "plan": "none"}
`
	json2 := `{"ts": 1760104536.25, "request": {"remote_ip": "a", "user": {"id": 7}}}
{"ts": 1760104537, "request": {"remote_ip": "b", "user": {"id": 7}}}
`
	for name, c := range map[string]struct {
		log, args string
		refused   string // admitted, refused
	}{
		"host":     {combined, "", "1 admitted, 2 refused"},
		"user":     {combined, "-key user", "2 admitted, 1 refused"},
		"path":     {combined, "-key path", "2 admitted, 1 refused"},
		"method":   {combined, "-key method", "2 admitted, 1 refused"},
		"plan":     {json1, "-plan plan", "3 admitted, 0 refused"},
		"no plan":  {json1, "", "2 admitted, 1 refused"},
		"seconds":  {json2, "", "2 admitted, 0 refused"},
		"nested":   {json2, "-key request.user.id", "1 admitted, 1 refused"},
		"time":     {strings.ReplaceAll(json2, `"ts"`, `"when"`), "-time when", "2 admitted, 0 refused"},
		"milli":    {`{"ts": 1760104536250, "ip": "a"}` + "\n" + `{"ts": 1760108136250, "ip": "a"}`, "", "2 admitted, 0 refused"},
		"nano":     {`{"ts": 1760104536250000000, "ip": "a"}` + "\n" + `{"ts": 1760104536250000001, "ip": "a"}`, "", "1 admitted, 1 refused"},
		"no field": {combined + json1, "-key nothing -time time", "-: there is no request"},
		"backward": {json1 + json1, "", "1 requests were earlier"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"try", document, "-access-log", "-"}, strings.Fields(c.args)...)
			_, out, stderr := headgate(t, c.log, args...)
			if !strings.Contains(out+stderr, c.refused) {
				t.Errorf("%s%s\nhas not %s", out, stderr, c.refused)
			}
		})
	}
}

// With a cost, a request needs one unit, and what it has used counts afterwards.
func TestTryCost(t *testing.T) {
	document := file(t, "limits.json", `{"limits": {"tokens": {"plans": {"free": "token-bucket 10/hour burst 100 debt 1000"}}}}`)
	line := func(minute, tokens string) string {
		return `{"time": "2026-10-10T13:` + minute + `:00Z", "ip": "a", "usage": {"tokens": ` + tokens + "}}\n"
	}
	common := "::1 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 "
	for name, c := range map[string]struct{ log, field, want string }{
		"beyond the limit":   {line("00", "500") + line("01", "1") + line("02", "1"), "usage.tokens", "1 admitted, 2 refused (66.7 %); 1 of 1 keys refused\n500 units were used, 400 of them beyond the limit"},
		"within":             {line("00", "99") + line("01", "1") + line("02", "0"), "usage.tokens", "2 admitted, 1 refused (33.3 %); 1 of 1 keys refused\n100 units were used, 0 of them"},
		"nothing":            {line("00", "0") + line("01", "0"), "usage.tokens", "2 admitted, 0 refused (0.0 %); 0 of 1 keys refused\n0 units"},
		"bytes":              {common + "-\n" + common + "150\n" + common + "1\n", "bytes", "2 admitted, 1 refused (33.3 %); 1 of 1 keys refused\n150 units were used, 50 of them"},
		"text":               {line("00", `"70"`) + line("01", "70"), "usage.tokens", "2 admitted, 0 refused (0.0 %); 0 of 1 keys refused\n140 units"},
		"lines without cost": {line("00", "1") + line("01", "1.5") + line("02", "-1") + line("03", "null") + line("04", "9007199254740992"), "usage.tokens", "4 of 5 lines are no requests"},
		"no such field":      {common + "1\n", "tokens", `there is no field "tokens"`},
	} {
		_, out, stderr := headgate(t, c.log, "try", document, "-access-log", "-", "-cost", c.field)
		if !strings.Contains(out+stderr, c.want) {
			t.Errorf("%s: %s%s\nhas not %s", name, out, stderr, c.want)
		}
	}
	if _, out, _ := headgate(t, line("00", "500"), "try", document, "-access-log", "-", "-cost", "usage.tokens", "-json"); !strings.Contains(out, `"uncovered": 400`) {
		t.Error(out)
	}
}

// Requests of a whole second are spread over it.
func TestTryWithinASecond(t *testing.T) {
	document := file(t, "limits.json", `{"limits": {"api": {"plans": {"free": "min-interval 250ms"}}}}`)
	line := "::1 - - [10/Oct/2026:13:55:36 +0000] \"GET / HTTP/1.1\" 200 -\n"
	if _, out, _ := headgate(t, strings.Repeat(line, 4), "try", document, "-access-log", "-"); !strings.Contains(out, "4 admitted, 0 refused") {
		t.Error(out)
	}
	if _, out, _ := headgate(t, strings.Repeat(line, 8), "try", document, "-access-log", "-"); !strings.Contains(out, "4 admitted, 4 refused") {
		t.Error(out)
	}
}

// What a log holds reaches a terminal only as text, and long lines are broken.
func TestTryHostileLog(t *testing.T) {
	document := file(t, "limits.json", `{"limits": {"api": {"plans": {"free": "blocked"}}}}`)
	log := "{\"ip\": \"\\u001b[2J" + strings.Repeat("k", 1000) + "\", \"ts\": 1760104536}\n" + strings.Repeat("x", 3<<20) + "\n{\"ip\": \"b\", \"ts\": 1760104536}"
	_, out, _ := headgate(t, log, "try", document, "-access-log", "-")
	if strings.ContainsAny(out, "\x1b") || len(out) > 2000 || !strings.Contains(out, "0 admitted, 2 refused") || !strings.Contains(out, "line 2: it is longer than 1048576 bytes") {
		t.Errorf("%q", out)
	}
}

// A replay decides as a store does at the times of the log.
func TestReplayIsAStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Config{})
		document := `{"limits": {"api": {"default": "a", "plans": {
			"a": {"log": "sliding-log 5/minute", "bucket": "token-bucket 1/10s burst 4", "window": "sliding-window 9/2m", "fixed": "fixed-window 40/10m count-denied", "first": "fixed-window 30/7m from-first"},
			"b": {"log": "sliding-log 9/90s", "bucket": "token-bucket 1/7s burst 6", "gap": "min-interval 1500ms"},
			"c": "unlimited", "d": "blocked"}}}}`
		limit := func(s core.Store) *limits.Limit {
			book, err := limits.Open(t.Context(), s, nil, limits.Bytes([]byte(document)), limits.Config{Every: 1000 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(book.Close)
			l, err := book.Limit("api")
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		actual, paper := limit(store), limit(anyStore{})
		r := replay{cells: make(map[cell][]step.Variant)}
		random := rand.New(rand.NewPCG(3, 4))
		refusals := 0
		for i := range 20_000 {
			time.Sleep(time.Duration(random.IntN(4_000_000)) * time.Microsecond)
			plan, key := [...]string{"a", "a", "a", "b", "c", "d"}[random.IntN(6)], [...]string{"x", "y"}[random.IntN(2)]
			mode, ask := step.Allow, actual.For(plan, key).Allow
			if random.IntN(2) == 0 {
				mode, ask = step.Peek, actual.For(plan, key).Peek
			}
			want, err := ask(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			policy, wait := r.decide(paper.For(plan, key), key, time.Now(), mode)
			if (policy == "") != want.Allowed || policy != "" && policy != want.Policy || wait != want.RetryAfter {
				t.Fatalf("request %d, plan %s: %q, %v, not %v", i, plan, policy, wait, want)
			}
			if used := random.Int64N(9); mode == step.Peek && policy == "" && used > 0 {
				_, want, err := actual.For(plan, key).Report(t.Context(), key, used)
				if got := r.report(paper.For(plan, key), key, used); err != nil || got != want {
					t.Fatalf("request %d, plan %s: %d of %d uncovered, not %d: %v", i, plan, got, used, want, err)
				}
			}
			if policy != "" {
				refusals++
			}
			if i%1000 == 0 {
				r.forget()
			}
		}
		if refusals < 1000 || refusals > 19_000 {
			t.Errorf("%d refusals", refusals)
		}
	})
}

// Whatever is in a log, reading it ends, and every line is counted.
func FuzzLog(f *testing.F) {
	f.Add([]byte("::1 - a [10/Oct/2026:13:55:36 +0000] \"GET /a HTTP/1.1\" 200 - \"-\" \"x\"\n{\"time\": 1, \"ip\": 2}\n\n"), "", "")
	f.Add([]byte("{\"a\": {\"b\": \"c\"}, \"@timestamp\": \"2026-10-10T13:55:36.5Z\"}\n"), "a.b", "a")
	f.Fuzz(func(t *testing.T, log []byte, key, plan string) {
		r := newLogReader()
		r.keyField, r.planField = key, plan
		requests := 0
		next := r.next("log", bytes.NewReader(log))
		q, ok, err := next()
		for ; ok && err == nil; q, ok, err = next() {
			requests++
			if q.key == "" {
				t.Error("an empty key")
			}
		}
		if err != nil || requests+r.broken != r.lines || r.lines > bytes.Count(log, []byte("\n"))+1 {
			t.Errorf("%v: %d requests and %d broken of %d lines", err, requests, r.broken, r.lines)
		}
	})
}
