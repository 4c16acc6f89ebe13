package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgated"
	"github.com/headgate/headgate/limits"
)

// A never is texts of which a part can never match, or which clash.
type never struct {
	document string   // empty: none
	files    []string // of a directory
	want     string   // what is said, with its place
	note     bool     // it is no fault
}

// route returns a document with a route for everything at its end.
func route(text string) string {
	return "limits: {api: {plans: {free: sliding-log 2/minute}}}\nroutes:\n  - {" + text + ", charge: []}\n  - {charge: [{limit: api, key: address}]}\n"
}

// after returns a document in which a second route stands behind one.
func after(first, second string) string {
	return "limits: {api: {plans: {free: sliding-log 2/minute}}}\nroutes:\n  - {" + first + "charge: []}\n  - {" + second +
		"charge: [{limit: api, key: address}]}\n  - {charge: []}\n"
}

// charge returns a document with one charge.
func charge(text string) string {
	return "limits: {api: {plans: {free: sliding-log 2/minute}}}\nslots: {open: {plans: {all: 1}}}\nroutes:\n  - {charge: [{" + text + "}]}\n"
}

// domain returns a configuration of one domain.
func domain(descriptors ...string) string {
	text := "domain: d\ndescriptors:\n"
	for _, descriptor := range descriptors {
		text += "- {" + descriptor + "}\n"
	}
	return text
}

const rate = ", rate_limit: {unit: day, requests_per_unit: 5}"

func nevers() map[string]never {
	return map[string]never{
		"an asterisk for one part":   {document: route("path: /v1/*/chat"), want: "3:12: other routers"},
		"an asterisk for the rest":   {document: route("path: /v1/*"), want: "write {name} for one part, or {name...}"},
		"two asterisks":              {document: route("path: /v1/**"), want: "{name...}"},
		"a colon":                    {document: route("path: '/v1/:tenant/chat'"), want: "{name}"},
		"angle brackets":             {document: route("path: /v1/<tenant>"), want: "{name}"},
		"a type in angle brackets":   {document: route("path: '/v1/<int:id>'"), want: "{name}"},
		"square brackets":            {document: route("path: '/v1/[tenant]'"), want: "{name}"},
		"the rest in brackets":       {document: route("path: '/v1/[...rest]'"), want: "{name...}"},
		"a dollar before a name":     {document: route("path: /v1/$tenant"), want: "{name}"},
		"a dollar at the end":        {document: route("path: /login$"), want: "no regular expression"},
		"a regular expression":       {document: route("path: '^/login'"), want: "no regular expression"},
		"a tilde":                    {document: route("path: '~ /login'"), want: "no regular expression"},
		"a pattern in braces":        {document: route("path: '/v1/{id:[0-9]+}'"), want: "written as {name}"},
		"an asterisk in braces":      {document: route("path: '/v1/{*rest}'"), want: "written as {name}"},
		"a question mark in braces":  {document: route("path: '/v1/{id?}'"), want: "a path has no query"},
		"braces within a part":       {document: route("path: '/v1/x{id}'"), want: "stands alone"},
		"more behind the rest":       {document: route("path: '/v1/{rest...}/x'"), want: "nothing follows"},
		"a URL":                      {document: route("path: 'https://a.example/v1'"), want: "write its path"},
		"a query":                    {document: route("path: '/v1?x=1'"), want: "write what is before the question mark"},
		"a fragment":                 {document: route("path: '/v1#x'"), want: "3:12: a path has no"},
		"an escape":                  {document: route("path: /v1/a%2fb"), want: "no empty parts, dots, parameters or escapes"},
		"parameters":                 {document: route("path: '/v1/a;b'"), want: "parameters"},
		"dots":                       {document: route("path: /v1/../x"), want: "dots"},
		"a double slash":             {document: route("path: //v1"), want: "empty parts"},
		"a slash at the end":         {document: route("path: /v1/"), want: "write {rest...} behind it"},
		"no slash":                   {document: route("path: v1"), want: "begins with a slash"},
		"a method in small letters":  {document: route("method: post"), want: "3:14: methods are in capital letters: write POST"},
		"a method that is none":      {document: route("method: [GET, PSOT]"), want: "3:20: it is not a method"},
		"any method":                 {document: route("method: ANY"), want: "leave method out for all"},
		"all methods":                {document: route("method: '*'"), want: "leave method out for all"},
		"two methods in a text":      {document: route("method: 'GET, POST'"), want: "write several as a list"},
		"methods with a bar":         {document: route("method: GET|POST"), want: "write several as a list"},
		"a host with a port":         {document: route("host: 'api.example.com:8443'"), want: "3:12: hosts are compared without a port: write api.example.com"},
		"a host with any port":       {document: route("host: 'localhost:*'"), want: "a * stands for no names"},
		"a host as a URL":            {document: route("host: 'https://api.example.com/v1'"), want: `write the name of its host, "api.example.com"`},
		"a host with a path":         {document: route("host: api.example.com/v1"), want: "write path"},
		"hosts with an asterisk":     {document: route("host: '*.example.com'"), want: "write a list of hosts"},
		"hosts with a dot":           {document: route("host: .example.com"), want: "write example.com, and each host below it"},
		"a dot behind a host":        {document: route("host: api.example.com."), want: "write api.example.com"},
		"two dots in a host":         {document: route("host: api..example.com"), want: "not the name of a host"},
		"two hosts in a text":        {document: route("host: 'a.example.com, b.example.com'"), want: "write several as a list"},
		"a host beyond ASCII":        {document: route("host: bücher.example"), want: "clients send the name in ASCII"},
		"an address in brackets":     {document: route("host: '[2001:db8::1]'"), want: "write 2001:db8::1"},
		"an address in another form": {document: route("host: '2001:DB8:0::1'"), want: "write 2001:db8::1"},
		"a route behind everything":  {document: after("", "path: /v1, "), want: "4:5: it never applies: routes[0], in line 3, is for all its requests"},
		"behind all paths":           {document: after("path: '/{rest...}', ", "method: POST, "), want: "4:5: it never applies"},
		"behind all of its paths":    {document: after("path: '/v1/{rest...}', ", "path: '/v1/{tenant}/chat', "), want: "write it before that one"},
		"behind any part":            {document: after("path: '/v1/{tenant}', ", "path: /v1/acme, "), want: "4:5: it never applies"},
		"behind its hosts":           {document: after("host: [a.example, B.example], ", "host: b.example, "), want: "4:5: it never applies"},
		"behind its methods":         {document: after("method: [GET, POST], ", "method: HEAD, "), want: "4:5: it never applies"},
		"the same route twice":       {document: after("path: /v1, ", "path: /v1, "), want: "4:5: it never applies"},
		"behind routes for its methods": {document: after("path: '/{rest...}', method: GET, charge: []}\n  - {path: /v1, method: [PUT, POST], ", "path: /v1, method: [POST, HEAD], "),
			want: "5:5: it never applies: routes[0], in line 3, and routes[1], in line 4, are together for all its requests, and the first route that matches counts: write it before them"},
		"no route for everything":  {document: "limits: {api: {plans: {free: sliding-log 2/minute}}}\nroutes:\n- {path: /v1, charge: []}\n", want: "3:3: no route is for everything", note: true},
		"a part that is not there": {document: charge("limit: api, key: 'path:tenant'"), want: "4:33: the path of the route has no part of that name"},
		"the host as a header":     {document: charge("limit: api, key: 'header:Host'"), want: "give each host a route"},
		"a plan as a text":         {document: charge("limit: api, key: address, plan: gold"), want: "header:NAME"},
		"slots for a limit":        {document: charge("limit: open, key: address"), want: "4:23: there is no such limit"},
		"a network with asterisks": {document: "trusted: ['10.*']\n" + charge("limit: api, key: address"), want: "1:11: "},
		"every proxy":              {document: "trusted: [0.0.0.0/0]\n" + charge("limit: api, key: address"), want: "1:11: "},

		"a domain in two files":          {files: []string{domain("key: a" + rate), domain("key: b" + rate)}, want: `b.yaml:1:1: the domain "d" is there twice: with -merge-domains`},
		"a file and the document":        {document: "rls: [{domain: d, descriptors: [{key: a" + rate + "}]}]", files: []string{domain("key: b" + rate)}, want: "a.yaml:1:1: the domain"},
		"a limit that no document has":   {files: []string{domain("key: a, headgate: {limit: api}")}, want: "a.yaml:3:30: there is no such limit"},
		"a limit that this one has not":  {document: route("path: /a"), files: []string{domain("key: a, headgate: {limit: other}")}, want: "a.yaml:3:30: there is no such limit"},
		"a descriptor twice":             {files: []string{domain("key: a, value: b"+rate, "key: a_b"+rate)}, want: "a.yaml:4:3: the descriptor is there twice"},
		"a wildcard behind another":      {files: []string{domain("key: a, value: '*'"+rate, "key: a, value: b*"+rate)}, want: "a.yaml:4:3: it never applies: a wildcard before it, in line 3", note: true},
		"an asterisk behind asterisks":   {files: []string{domain("key: a, value: '/*/b*'"+rate, "key: a, value: '/x/*/b'"+rate)}, want: "write it before that one", note: true},
		"a name that is not replaced":    {files: []string{domain("key: a, rate_limit: {unit: day, name: n, replaces: [{name: m}]}")}, want: "a.yaml:3:56: it replaces nothing", note: true},
		"a network of one address":       {files: []string{domain("key: remote_address, value: 10.0.0.0/8" + rate)}, want: "masked_remote_address", note: true},
		"a domain without descriptors":   {files: []string{"domain: d\n"}, want: "a.yaml:1:1: the domain has no descriptors", note: true},
		"shared without an asterisk":     {files: []string{domain("key: a, value: b, share_threshold: true" + rate)}, want: "a.yaml:3:3: share_threshold is for a key or a value with an asterisk"},
		"a unit of what has none":        {files: []string{domain("key: a, rate_limit: {unlimited: true, unit: day}")}, want: "what is unlimited has no unit"},
		"three files of which two clash": {files: []string{domain("key: a" + rate), "domain: e\ndescriptors: [{key: a" + rate + "}]\n", "domain: e\ndescriptors: [{key: b" + rate + "}]\n"}, want: "c.yaml:1:1: the domain"},
	}
}

// What can never match, and what clashes, is a fault or a note, in the words of what to write: to check, to check a directory,
// and at the start of the service alike.
func TestNever(t *testing.T) {
	for name, test := range nevers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var arguments, words, clashing []string
			config := headgated.Config{}
			if test.document != "" {
				file := write(t, test.document)
				words = append(words, file)
				arguments = append(arguments, "-config", file)
				config.Document = limits.File(file)
			}
			if test.files != nil {
				config.EnvoyConfig = t.TempDir()
				words = append(words, config.EnvoyConfig)
				arguments = append(arguments, "-envoy-config", config.EnvoyConfig)
			}
			for i, text := range test.files {
				file := filepath.Join(config.EnvoyConfig, string(rune('a'+i))+".yaml")
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if len(test.files) > 1 {
					clashing = append(clashing, file)
				}
			}
			for _, file := range clashing {
				if code, _, said := command(t, nil, "check", file); code != 0 {
					t.Errorf("alone: %d %q", code, said)
				}
			}
			code, _, said := command(t, nil, append([]string{"check"}, arguments...)...)
			if !strings.Contains(said, test.want) || (code == 0) != test.note || strings.Contains(said, " (a note)") != test.note {
				t.Errorf("check: %d %q, not %q", code, said, test.want)
			}
			if len(words) == 1 {
				codeAlone, _, alone := command(t, nil, "check", words[0])
				if codeAlone != code || alone != said {
					t.Errorf("check %s: %d %q", words[0], codeAlone, alone)
				}
			}
			if !test.note {
				if started, out, faults := command(t, nil, arguments...); started != 1 || out != "" || faults != said {
					t.Errorf("at the start: %d %q", started, faults)
				}
				return
			}
			var log bytes.Buffer
			config.Logger = slog.New(slog.NewTextHandler(&log, nil))
			server, err := headgated.New(config)
			if err != nil {
				t.Fatal(err)
			}
			server.Close()
			_, note, _ := strings.Cut(strings.TrimSuffix(said, " (a note)\n"), ": ")
			if !strings.Contains(log.String(), "a note about the document") || !strings.Contains(log.String(), note) {
				t.Errorf("at the start: %s", &log)
			}
		})
	}
}

// What is no mistake is none.
func TestNotNever(t *testing.T) {
	for _, document := range []string{
		route("path: '/v1/users:batch'"), route("path: /v1/a.b~c+d@e"), route("method: [GET, M-SEARCH, PROPFIND]"), route("host: [localhost, a_b.example, '2001:db8::1', 10.0.0.1]"),
		after("path: /v1, ", "path: '/v1/{a}', "), after("method: GET, ", "method: [HEAD, POST], "), after("host: a.example, ", "path: /v1, "), after("path: '/v1/{a}', ", "path: '/v1/{a...}', "),
		after("method: GET, charge: []}\n  - {method: [POST, PUT], ", "method: [GET, POST, PUT, PATCH], "), after("method: GET, charge: []}\n  - {method: POST, ", "path: /v1, "),
		after("path: /v1, method: GET, charge: []}\n  - {path: '/v1/{a}', method: POST, ", "path: /v1, method: [GET, POST], "),
		after("path: '/V1', ", "path: /v1, "), after("path: '/{a}/{b}', ", "path: '/{a...}', method: GET, "),
	} {
		if code, _, said := command(t, nil, "check", write(t, document)); code != 0 || said != "" {
			t.Errorf("%s%s", document, said)
		}
	}
}
