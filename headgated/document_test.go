package headgated

import (
	"errors"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/old/limits"
)

// valid is a document with all that there is.
const valid = `limits:
  api:
    default: free
    plans: {free: sliding-log 2/minute, gold: sliding-log 5/minute}
    overrides:
      - {key: acme, plan: gold}
  all: {plans: {all: fixed-window 100/day}}
trusted: [10.0.0.0/8, 192.0.2.7]
routes:
  - {host: api.example.com, method: [POST], path: "/v1/{tenant}/chat", charge: [{limit: api, key: ["path:tenant", bearer], units: 1, plan: "header:X-Plan"}]}
  - {path: /free, charge: []}
  - charge: [{limit: api, key: address}, {limit: all, key: everyone, units: 3}]
`

// read parses a document for a server in memory.
func read(text []byte) (*document, error) {
	return parse(text, false, new(core.MemoryStore).Backend(), rlsDefaults{charge: chargeAll})
}

func TestParse(t *testing.T) {
	for name, text := range map[string]string{
		"YAML":             valid,
		"YAML with an end": valid + "...\n",
		"JSON":             `{"limits": {"api": {"plans": {"free": "sliding-log 2/minute"}}}, "routes": [{"charge": [{"limit": "api", "key": "basic"}]}]}`,
		"only limits":      `limits: {api: {plans: {free: sliding-log 2/minute}}}`,
		"one for a list":   "limits: {api: {plans: {free: sliding-log 2/minute}}}\nroutes: [{host: [a, b], method: GET, path: /, charge: [{limit: api, key: method}]}]",
	} {
		if _, err := read([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The text is its source's, which may return the same slice again: it stays as it is.
func TestParseChangesNothing(t *testing.T) {
	text := append(make([]byte, 0, 10_000), valid+"\n  \n\t\n\n\n"...)
	whole := text[:cap(text)]
	before := string(whole)
	if _, err := read(text); err != nil || string(whole) != before {
		t.Errorf("%v, or the text has changed", err)
	}
}

// Every fault has its place. The mark ^ stands before what is at fault, and is taken out.
func TestFaults(t *testing.T) {
	route := func(text string) string {
		return "limits: {api: {plans: {free: sliding-log 2/minute}}}\nroutes:\n  - " + text
	}
	charge := func(text string) string { return route("{path: \"/a/{b}\", charge: [" + text + "]}") }
	for _, test := range []struct{ text, want string }{
		{"", "empty"},
		{"\n# nothing\n", "empty"},
		{"^[limits]", "it is a list, not a map"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\n^limit: {}", "unknown field: one of limits, trusted, routes"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\n^limits: {}", "twice"},
		{"^routes: []", "the document has no limits"},
		{"limits: ^[]", "limits is a list, not a map"},
		{"limits: {api: {plans: {free: ^sliding-log 2/minuet}}}", "minuet"},
		{"limits: {api: {plans: {free: ^60}}}", "not a policy"},
		{"limits: {^api: {}}", "it has no plans"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}, ^plan: {}}}", "no such field"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\ntrusted: ^10.0.0.0/8", "it is a string, not a list"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\ntrusted: [10.0.0.0/8, ^10.0.0.1/8]", "which would be 10.0.0.0/8"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\ntrusted: [^all]", "neither a network"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\ntrusted: [^0.0.0.0/0]", "every address"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\ntrusted: [^10]", "quote it"},
		{"limits: {api: {plans: {free: sliding-log 2/minute}}}\nroutes: ^{}", "it is a map, not a list"},
		{route("^GET /a"), "it is a string, not a map"},
		{route("^{path: /a}"), "it has no charge"},
		{route("{^paths: /a, charge: []}"), "unknown field: one of host, method, path, charge"},
		{route("{path: ^a, charge: []}"), "begins with a slash"},
		{route("{path: ^/a/, charge: []}"), "ends without a slash"},
		{route("{path: ^/a//b, charge: []}"), "empty parts"},
		{route("{path: ^/a/../b, charge: []}"), "dots"},
		{route("{path: ^/a%2fb, charge: []}"), "escapes"},
		{route("{path: ^\"/{a b}\", charge: []}"), "written as {name}"},
		{route("{path: ^\"/x{a}\", charge: []}"), "stands alone"},
		{route("{path: ^\"/{a}/{a}\", charge: []}"), "one name"},
		{route("{path: ^\"/{a...}/b\", charge: []}"), "nothing follows"},
		{route("{path: ^true, charge: []}"), "it is a boolean, not a string"},
		{route("{host: ^\"a b\", charge: []}"), "not the name of a host"},
		{route("{host: ^[], charge: []}"), "the list is empty"},
		{route("{method: [GET, ^post], charge: []}"), "not a method"},
		{route("{charge: ^{limit: api}}"), "it is a map, not a list"},
		{charge("^{key: address}"), "it has no limit"},
		{charge("^{limit: api}"), "it has no key"},
		{charge("{limit: ^apis, key: address}"), "no such limit"},
		{charge("{limit: api, key: ^adresse}"), "it is none of address"},
		{charge("{limit: api, key: [address, ^\"header:\"]}"), "a name is missing"},
		{charge("{limit: api, key: ^\"header:a b\"}"), "a name is missing"},
		{charge("{limit: api, key: ^header:host}"), "give each host a route"},
		{charge("{limit: api, key: ^path:c}"), "no part of that name"},
		{charge("{limit: api, key: ^address:v6}"), "it is none of address"},
		{charge("{limit: api, key: ^[]}"), "the list is empty"},
		{charge("{limit: api, key: ^\"\"}"), "it is empty"},
		{charge("{limit: api, key: address, units: ^-1}"), "from 0 to 2^53-1"},
		{charge("{limit: api, key: address, units: ^1.5}"), "whole number"},
		{charge("{limit: api, key: address, units: ^9007199254740992}"), "from 0 to 2^53-1"},
		{charge("{limit: api, key: address, units: ^\"1\"}"), "it is a string, not a number"},
		{charge("{limit: api, key: address, plan: ^gold}"), "header:NAME"},
		{charge("{limit: api, key: address, ^cost: 1}"), "unknown field: one of limit, key, units, plan"},
		{route("{charge: ^[" + strings.TrimSuffix(strings.Repeat("{limit: api, key: address}, ", 9), ", ") + "]}"), "more than 8"},
		{route("{charge: [{limit: api, key: ^&a address}]}"), "anchors"},
		{route("{charge: ["), "did not find expected"}, // where, the parser says as well as it can
	} {
		text, line, column := strings.Replace(test.text, "^", "", 1), 0, 0
		if before, _, marked := strings.Cut(test.text, "^"); marked {
			line = strings.Count(before, "\n") + 1
			column = len(before) - strings.LastIndex(before, "\n")
		}
		_, err := read([]byte(text))
		var faults limits.Faults
		if !errors.As(err, &faults) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if f := faults[0]; line > 0 && (f.Line != line || f.Column != column) || !strings.Contains(f.Err.Error(), test.want) {
			t.Errorf("%q:\n%v\nnot in line %d, column %d: %s", text, faults, line, column, test.want)
		}
	}
}
