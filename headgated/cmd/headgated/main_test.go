package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const document = `limits:
  api: {default: free, plans: {free: {minute: sliding-log 2/minute}, gold: {minute: sliding-log 5/minute}}}
routes:
  - {path: /free, charge: []}
  - {path: "/v1/{tenant}", charge: [{limit: api, key: ["path:tenant", "header:X-Api-Key"], plan: "header:X-Plan"}]}
  - {path: /address, charge: [{limit: api, key: address}]}
`

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "headgated.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// command runs the command in an environment, and returns what it prints.
func command(t *testing.T, env map[string]string, args ...string) (code int, out, faults string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestCheck(t *testing.T) {
	good, bad := write(t, document), write(t, strings.Replace(document, "path: /free", "path: free", 1))
	if code, out, faults := command(t, nil, "check", good); code != 0 || out != good+": ok\n" || faults != "" {
		t.Errorf("%d %q %q", code, out, faults)
	}
	if code, out, faults := command(t, nil, "check", bad); code != 1 || out != "" || faults != bad+":4:12: routes[0].path: a path begins with a slash\n" {
		t.Errorf("%d %q %q", code, out, faults)
	}
	noted := write(t, strings.Replace(document, "{minute: sliding-log 5/minute}", "sliding-log 5/minute", 1))
	if code, out, faults := command(t, nil, "check", noted); code != 0 || out != noted+": ok\n" || !strings.HasPrefix(faults, noted+":2:") || !strings.HasSuffix(faults, " (a note)\n") {
		t.Errorf("%d %q %q", code, out, faults)
	}
	for _, wrong := range []string{
		strings.Replace(document, "5/minute}}}", "5/minute}}, overrides: [{key: 203.0.113.0/28, plan: gold}]}", 1),
		strings.Replace(document, "2/minute", "20000/minute", 1), // more than a log has
	} {
		name := write(t, wrong)
		if code, _, faults := command(t, nil, "check", name); code != 1 || !strings.HasPrefix(faults, name+":2:") {
			t.Errorf("%d %s", code, faults)
		}
	}
}

func TestExplain(t *testing.T) {
	name := write(t, document)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"GET", "/free"}, 0, "routes[0], line 4\n  it charges nothing\n"},
		{[]string{"POST", "https://a.example.com/v1/acme", "X-Api-Key=k1", "X-Plan=gold"}, 0,
			"routes[1], line 5\n  limit api, plan \"gold\", 1 units\n    key of path:tenant, header:X-Api-Key: \"4:acme,2:k1,\"\n    minute: sliding-log 5/minute\n"},
		{[]string{"GET", "/v1/acme"}, 1, "none: headgate: keyfuncs: absent: header X-Api-Key"},
		{[]string{"GET", "/address"}, 0, `key of address: "192.0.2.1"`},
		{[]string{"GET", "/other"}, 1, "no route matches"},
	} {
		code, out, faults := command(t, nil, append([]string{"explain", name}, test.args...)...)
		if code != test.code || !strings.Contains(out, test.want) || faults != "" {
			t.Errorf("%q: %d\n%s%s", test.args, code, out, faults)
		}
	}
	if code, out, _ := command(t, nil, "explain", "-from", "2001:db8::1", name, "GET", "/address"); code != 0 || !strings.Contains(out, `"2001:db8::/64"`) {
		t.Errorf("%d %s", code, out)
	}
}

// Configurations of Envoy's rate limit service are checked and explained as documents are, and served.
func TestEnvoyConfig(t *testing.T) {
	name := write(t, frontRules)
	if code, out, faults := command(t, nil, "check", name); code != 0 || out != name+": ok\n" || faults != "" {
		t.Errorf("%d %q %q", code, out, faults)
	}
	bad := write(t, strings.Replace(frontRules, "unit: year", "unit: eon", 1))
	if code, _, faults := command(t, nil, "check", bad); code != 1 || !strings.HasPrefix(faults, bad+":3:27: descriptors[0].rate_limit: it has no unit") {
		t.Errorf("%d %q", code, faults)
	}
	if code, _, faults := command(t, nil, "-envoy-config", filepath.Dir(bad)); code != 1 || !strings.HasPrefix(faults, bad+":3:27: ") {
		t.Errorf("%d %q", code, faults)
	}
	if code, _, faults := command(t, nil, "-envoy-config", t.TempDir()); code != 2 || !strings.Contains(faults, "there is no file in") {
		t.Errorf("%d %q", code, faults)
	}
	inDocument := write(t, "limits: {api: {plans: {free: sliding-log 2/minute}}}\nrls: [{domain: front, descriptors: [{key: user, shadow_mode: true, headgate: {limit: api}}]}]")
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{name, "front", "user=anna"}, 0, "front.user, line 3\n  key \"anna\"\n    front.user: fixed-window 20/365d\n"},
		{[]string{name, "front", "user=anna", "more=x"}, 1, "no limit is for the descriptor"},
		{[]string{name, "back", "user=anna"}, 1, "there is no domain \"back\""},
		{[]string{inDocument, "front", "user=anna"}, 0, "front.user, line 2\n  shadow_mode\n  limit api\n  key \"anna\"\n    api: sliding-log 2/minute\n"},
	} {
		code, out, faults := command(t, nil, append([]string{"explain"}, test.args...)...)
		if code != test.code || !strings.Contains(out, test.want) || faults != "" {
			t.Errorf("%q: %d\n%s%s", test.args, code, out, faults)
		}
	}
	if code, _, faults := command(t, nil, "explain", name, "front", "user=anna", "/x"); code != 2 || !strings.Contains(faults, "key=value") {
		t.Errorf("%d %q", code, faults)
	}
	if code, _, faults := command(t, nil, "-charge", "some", "-config", name); code != 2 || !strings.Contains(faults, "-charge") {
		t.Errorf("%d %q", code, faults)
	}
}

// What is wrong with the command line is said without what it contains, which may be a secret.
func TestTrouble(t *testing.T) {
	name := write(t, document)
	t.Setenv("HOME", "")
	for _, test := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{nil, nil, "name a document with -config"},
		{nil, []string{"check"}, "too few or too many"},
		{nil, []string{"check", name, "geheim"}, "too few or too many"},
		{nil, []string{"serve", "geheim"}, "too few or too many"},
		{nil, []string{"explain", name, "GET"}, "too few or too many"},
		{nil, []string{"explain", name, "GE T", "/"}, "METHOD URL"},
		{nil, []string{"explain", name, "GET", "/", "geheim"}, "header=value"},
		{nil, []string{"check", name + "x"}, "no such file"},
		{nil, []string{"-geheim"}, "an argument is no flag"},
		{nil, []string{"-timeout", "geheim"}, "the value of -timeout is not valid"},
		{nil, []string{"-insecure=geheim"}, "the value of -insecure is not valid"},
		{nil, []string{"-config"}, "the value of -config is not valid"},
		{nil, []string{"-failure", "geheim", "-config", name}, "-failure is not valid"},
		{nil, []string{"-socket-mode", "geheim", "-config", name}, "-socket-mode is not valid"},
		{nil, []string{"-secret-file", "geheim", "-config", name}, "the file of -secret-file: no such file"},
		{nil, []string{"-secret-file", os.DevNull, "-config", name}, "is empty"},
		{nil, []string{"-redis", "redis://a:geheim@b:c", "-config", name}, "the URL has not the form"},
		{nil, []string{"-http", "0.0.0.0:0", "-config", name}, "say -insecure"},
		{map[string]string{"HEADGATED_SERVERS": "geheim"}, []string{"-config", name}, "HEADGATED_SERVERS is no value of -servers"},
	} {
		code, out, faults := command(t, test.env, test.args...)
		if code != 2 || out != "" || !strings.Contains(faults, test.want) || strings.Contains(faults, "geheim") || !strings.HasPrefix(faults, "headgated: ") {
			t.Errorf("%q: %d %q %q", test.args, code, out, faults)
		}
	}
}

// Names may have spaces beside their commas.
func TestNamesOfClients(t *testing.T) {
	o, _, err := parse([]string{"-tls-client-san", "proxy.internal, 10.0.0.7"}, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := o.config(); err != nil || strings.Join(c.TLS.ClientSAN, "|") != "proxy.internal|10.0.0.7" {
		t.Errorf("%q %v", c.TLS.ClientSAN, err)
	}
}

// A file of a domain may name a limit of the document, which explain does not have.
func TestExplainLimitOfTheDocument(t *testing.T) {
	name := write(t, "domain: front\ndescriptors:\n- {key: user, headgate: {limit: api}}\n")
	code, out, faults := command(t, nil, "explain", name, "front", "user=anna")
	if want := "front.user, line 3\n  limit api, of the document\n  key \"anna\"\n"; code != 0 || out != want {
		t.Errorf("%d %s%s", code, out, faults)
	}
}

// The help shows each flag, and no value of the environment.
func TestHelp(t *testing.T) {
	env := map[string]string{"HEADGATED_REDIS": "redis://a:geheim@b", "HEADGATED_SECRET_FILE": "geheim"}
	code, out, faults := command(t, env, "-help")
	if code != 0 || out != "" || strings.Contains(faults, "geheim") {
		t.Errorf("%d %q %s", code, out, faults)
	}
	for name := range strings.FieldsSeq("config http admin socket-mode tls-cert tls-key tls-client-ca tls-client-san insecure redis redis-prefix limits-redis secret-file timeout failure servers lease drain") {
		if !strings.Contains(faults, "\n  -"+name) {
			t.Errorf("-%s is missing", name)
		}
	}
}

// The one line on standard output is there when the doors are open, and the command ends with its context.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	var stderr bytes.Buffer
	done := make(chan int)
	go func() {
		env := map[string]string{"HEADGATED_CONFIG": write(t, document), "HEADGATED_ADMIN": "127.0.0.1:0", "HEADGATED_GRPC": "127.0.0.1:0", "HEADGATED_HTTP": "127.0.0.1:1"}
		code := run(ctx, []string{"-http", "127.0.0.1:0"}, func(name string) (string, bool) { value, ok := env[name]; return value, ok }, w, &stderr)
		w.Close()
		done <- code
	}()
	out := bufio.NewReader(r)
	line, _ := out.ReadString('\n')
	m := regexp.MustCompile(`^ready grpc=127\.0\.0\.1:[1-9]\d* http=(127\.0\.0\.1:[1-9]\d*) admin=(127\.0\.0\.1:[1-9]\d*)\n$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("%q\n%s", line, stderr.String())
	}
	for url, want := range map[string]int{"http://" + m[1] + "/v2": 404, "http://" + m[2] + "/readyz": 200} {
		if r, err := http.Get(url); err != nil || r.StatusCode != want {
			t.Errorf("%s: %v %v", url, r, err)
		}
	}
	rest := sync.OnceValue(func() string { text, _ := io.ReadAll(out); return string(text) })
	cancel()
	if text := rest(); text != "" {
		t.Errorf("more on standard output: %q", text)
	}
	if code := <-done; code != 0 {
		t.Errorf("%d\n%s", code, stderr.String())
	}
	if !strings.Contains(stderr.String(), "in the memory of this process") {
		t.Error(stderr.String())
	}
}

func TestServeFaults(t *testing.T) {
	name := write(t, "limits: {}\n")
	if code, out, faults := command(t, nil, "-config", name); code != 1 || out != "" || !strings.HasPrefix(faults, fmt.Sprintf("%s:1:1: the document has no limits", name)) {
		t.Errorf("%d %q %q", code, out, faults)
	}
}

// The example is valid, and what the page says of it is what the command prints.
func TestExample(t *testing.T) {
	const example = "../../example.yaml"
	if code, _, faults := command(t, nil, "check", example); code != 0 {
		t.Fatal(faults)
	}
	page, err := os.ReadFile(filepath.Join(repository, "docs/headgated.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "    $ headgated ")
	line, block, _ := strings.Cut(block, "\n")
	block, _, _ = strings.Cut(block, "\n\n")
	want := strings.ReplaceAll(strings.TrimPrefix(block, "    "), "\n    ", "\n") + "\n"
	if code, out, faults := command(t, nil, strings.Fields(strings.Replace(line, "example.yaml", example, 1))...); code != 0 || out != want {
		t.Errorf("%d %s%s\nthe page has\n%s", code, out, faults, want)
	}
}
