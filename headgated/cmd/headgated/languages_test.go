package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest"
)

// What runs the clients of docs/languages.md: it charges until it is refused, and prints how often it was
// allowed, and what the answers to a charge that is refused, and to one that is not valid, say.
const (
	python = `
import sys
from limits import Limits
limits = Limits(sys.argv[1], int(sys.argv[2]), timeout=30)
allowed = 0
while limits.charge("api", "anna")["allowed"]:
    allowed += 1
print(allowed)
refused = limits.ask("/v1/charge", {"limit": "api", "key": "anna"}, {"limit": "all", "key": "anna"})
print(refused["allowed"], refused["retry_after_us"] > 0, [a["remaining"] for a in refused["answers"]], refused["violated-policies"])
print(limits.charge("api", "ben" + sys.argv[3], 5, plan="gold")["remaining"])
print(limits.ask("/v1/report", {"limit": "api", "key": "carl" + sys.argv[3], "units": 151})["uncovered"], limits.charge("api", "carl" + sys.argv[3], 0)["allowed"])
try:
    limits.charge("apis", "anna")
except ValueError as e:
    print(e)
`
	node = `
import { Limits } from './limits.mjs'
const [host, port, name] = process.argv.slice(2)
const limits = new Limits('http://' + host + ':' + port, 30000)
let allowed = 0
while ((await limits.charge('api', 'anna')).allowed) allowed++
console.log(allowed)
const refused = await limits.ask('/v1/charge', { limit: 'api', key: 'anna' }, { limit: 'all', key: 'anna' })
const word = (b) => b ? 'True' : 'False'
console.log(word(refused.allowed), word(refused.retry_after_us > 0), '[' + refused.answers.map(a => a.remaining).join(', ') + ']', "['" + refused['violated-policies'].join("', '") + "']")
console.log((await limits.charge('api', 'ben' + name, 5, { plan: 'gold' })).remaining)
console.log((await limits.ask('/v1/report', { limit: 'api', key: 'carl' + name, units: 151 })).uncovered, word((await limits.charge('api', 'carl' + name, 0)).allowed))
try {
  await limits.charge('apis', 'anna')
} catch (e) {
  console.log(e.message)
}
`
)

// interpreter returns the path of an interpreter, or skips the test.
func interpreter(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("HEADGATE_REQUIRE_RPC") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

// Programs in other languages, on two services over one Redis, get exactly the limit together.
func TestLanguages(t *testing.T) {
	interpreters := map[string]string{"python.py": interpreter(t, "python3"), "node.mjs": interpreter(t, "node")}
	redis, dir := redistest.Start(t), t.TempDir()
	for name, text := range map[string]string{
		"python.py": python, "limits.py": block(t, "docs/languages.md", "limits.py"),
		"node.mjs": node, "limits.mjs": block(t, "docs/languages.md", "limits.mjs"),
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	document := write(t, "limits:\n  api: {default: free, plans: {free: fixed-window 150/day, gold: fixed-window 900/365d}}\n  all: {plans: {all: fixed-window 7/365d}}\n")
	var services [2]*service
	for i := range services {
		services[i] = start(t, "-config", document, "-http", "127.0.0.1:0", "-redis", "redis://"+redis.Addr(), "-timeout", "10s", "-failure", "closed")
	}
	outputs := make([]bytes.Buffer, 4)
	commands := make([]*exec.Cmd, len(outputs))
	for i := range commands {
		name := []string{"python.py", "node.mjs"}[i%2]
		host, port, err := net.SplitHostPort(services[i/2].http)
		must(t, err)
		commands[i] = exec.CommandContext(t.Context(), interpreters[name], name, host, port, strconv.Itoa(i))
		commands[i].Dir, commands[i].Stdout, commands[i].Stderr = dir, &outputs[i], &outputs[i]
		must(t, commands[i].Start())
	}
	allowed := 0
	for i, c := range commands {
		if err := c.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, &outputs[i])
		}
		first, rest, _ := strings.Cut(outputs[i].String(), "\n")
		n, _ := strconv.Atoi(first)
		allowed += n
		if want := "False True [0, 7] ['api']\n895\n1 False\ncharges[0].limit: there is no such limit\n"; rest != want {
			t.Errorf("%q, want %q", rest, want)
		}
	}
	if allowed != 150 {
		t.Errorf("%d charges are allowed, not 150", allowed)
	}
}
