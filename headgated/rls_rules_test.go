package headgated

import (
	"errors"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/redisstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/old/settle"
)

// readFiles reads configurations of domains, one after the other.
func readFiles(defaults rlsDefaults, texts ...string) (*document, error) {
	d := &document{domains: make(map[string]*domain)}
	var files []settle.File
	for i, text := range texts {
		files = append(files, settle.File{Name: string(rune('a'+i)) + ".yaml", Text: []byte(text)})
	}
	return d, d.addFiles(files, false, new(core.MemoryStore).Backend(), defaults)
}

// one is a domain with one descriptor, of these lines.
func one(lines ...string) string {
	return "domain: d\ndescriptors:\n- key: k\n  " + strings.Join(lines, "\n  ") + "\n"
}

// What the reference takes and refuses is taken and refused.
func TestRules(t *testing.T) {
	const rate = "rate_limit: {unit: day, requests_per_unit: 5}"
	for text, want := range map[string]string{
		"domain: d\n":               "",
		"domain: d\ndescriptors:\n": "",
		one(rate):                   "",
		one("value: 7", rate):       "", // a number for a text
		one("value: v", "descriptors:", "- {key: l}"):                                          "",
		one("rate_limit:", "  unit: Week", "  requests_per_unit: 0"):                           "",
		one("rate_limit: {unlimited: true}"):                                                   "",
		one("rate_limit: {name: n, unit: month, requests_per_unit: 1, replaces: [{name: o}]}"): "",
		one("value: v*", "share_threshold: true", "value_to_metric: true", "detailed_metric: true", "shadow_mode: true", "quota_mode: true", "metadata: {a: [b]}", rate): "",
		one("headgate: {policy: sliding-window 100/minute}"):   "",
		one("rate_limit: {name: n}", "headgate: {limit: api}"): "",
		"domain: d\ncharge: each\nfailure: closed\n":           "",
		"'''":                                    "a.yaml:",
		"descriptors:\n":                         "a.yaml:1:1: it has no domain",
		"domain: ''\n":                           "a.yaml:1:1: it has no domain",
		"0.25: d\n":                              "a.yaml:1:1: ",
		"domain: d\ndescriptors: [a]\n":          "a.yaml:2:15: descriptors[0]",
		"domain: d\ndescriptors: {}\n":           "it is a map, not a list",
		"domain: d\ndescriptors: [{value: v}]\n": "it has no key",
		"domain: d\ndescriptors: [{key: ''}]\n":  "it has no key",
		"domain: d\ndescriptors: [{key: k}, {key: k}]\n":                       "a.yaml:2:25: descriptors[1]: the descriptor is there twice",
		"domain: d\nchargee: all\n":                                            "unknown field",
		"domain: d\ncharge: some\n":                                            "it is none of all, each",
		"domain: d\nfailure: never\n":                                          "it is none of local, open, closed",
		one("ratelimit: {}"):                                                   "unknown field",
		one("rate_limit: {requestsperunit: 5}"):                                "unknown field",
		one("rate_limit: {unit: foo, requests_per_unit: 5}"):                   "it has no unit",
		one("rate_limit: {requests_per_unit: 5}"):                              "it has no unit",
		one("rate_limit: {unit: unknown, requests_per_unit: 5}"):               "it has no unit",
		one("rate_limit: {unit: day, requests_per_unit: -1}"):                  "whole number",
		one("rate_limit: {unit: day, requests_per_unit: 4294967296}"):          "2^32-1",
		one("rate_limit: {unlimited: true, unit: day}"):                        "what is unlimited has no unit",
		one("rate_limit: {name: n, unit: day, replaces: [{name: n}]}"):         "it is the name of this limit itself",
		one("rate_limit: {name: n, unit: day, replaces: [{name: }]}"):          "it has no name",
		one("rate_limit: {unit: day, requests_per_unit: 5}", "shadow_mode: 1"): "not true or false",
		one("share_threshold: true", rate):                                     "end in an asterisk",
		one("value: /api/*/items", rate):                                       "a.yaml:4:10: descriptors[0].value: an asterisk",
		one("value: '*/items'", "share_threshold: true", rate):                 "a.yaml:4:10: descriptors[0].value: an asterisk",
		one("value: v**", "headgate: {limit: api}"):                            "a.yaml:4:10: descriptors[0].value: an asterisk",
		one("value: v", "descriptors:", "- {key: l, value: a*b*}"):             "a.yaml:6:21: descriptors[0].descriptors[0].value: an asterisk",
		"domain: d\ndescriptors:\n- {key: k*l}\n":                              "a.yaml:3:9: descriptors[0].key: an asterisk",
		"domain: d\ndescriptors:\n- {key: k*, value: v}\n":                     "a.yaml:3:9: descriptors[0].key: an asterisk",
		"domain: d\ndescriptors:\n- {key: k*, value: '*'}\n":                   "a.yaml:3:9: descriptors[0].key: an asterisk",
		"domain: d\ndescriptors:\n- {key: '**'}\n":                             "a.yaml:3:9: descriptors[0].key: an asterisk",
		one("value: '*'", rate):                                                "",
		"domain: d\ndescriptors:\n- {key: '*'}\n- {key: k*, value: ''}\n":      "",
		one("headgate: {}"):                                                    "either a policy or a limit",
		one("headgate: {policy: often}"):                                       "headgate.policy",
		one(rate, "headgate: {policy: sliding-window 100/minute}"):             "remove these",
	} {
		_, err := readFiles(rlsDefaults{charge: chargeAll}, text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s%v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s%v, not %s", text, err, want)
		}
	}
}

func TestDomainInTwoFiles(t *testing.T) {
	a, b := one("value: a"), one("value: b")
	if _, err := readFiles(rlsDefaults{}, a, b); err == nil || !strings.HasPrefix(err.Error(), "b.yaml:1:1: ") {
		t.Error(err)
	}
	d, err := readFiles(rlsDefaults{merge: true}, a, b, "domain: d\ncharge: each\n")
	if err != nil || len(d.domains["d"].byText) != 2 || d.domains["d"].charge != chargeEach {
		t.Error(d.domains["d"], err)
	}
	for _, text := range []string{a, "domain: d\nfailure: closed\n"} { // the descriptor, or who decides, is there twice
		if _, err := readFiles(rlsDefaults{merge: true}, a, "domain: d\ncharge: each\n", text); err == nil || !strings.HasPrefix(err.Error(), "c.yaml:") {
			t.Error(err)
		}
	}
}

// A domain of the document and of a file is one of two files.
func TestDomainInDocumentAndFile(t *testing.T) {
	for text, want := range map[string]string{
		"domain: d\ncharge: each\n":      "a.yaml:1:1: the charge or the failure of this domain is said elsewhere too",
		one("value: a"):                  "a.yaml:3:3: descriptors[0]: the descriptor is there twice",
		one("value: b"):                  "",
		"domain: e\nfailure: closed\n":   "",
		"domain: d\ndescriptors: null\n": "",
	} {
		d, err := read([]byte("rls: [{domain: d, failure: closed, descriptors: [{key: k, value: a}]}]"))
		if err != nil {
			t.Fatal(err)
		}
		err = d.addFiles([]settle.File{{Name: "a.yaml", Text: []byte(text)}}, false, new(core.MemoryStore).Backend(), rlsDefaults{merge: true})
		if err == nil != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s%v", text, err)
		}
	}
}

// Descriptors may be nested thirty deep, and no deeper than documents may be.
func TestDeepDescriptors(t *testing.T) {
	deep := func(n int) string {
		return "domain: d\n" + strings.Repeat("descriptors: [{key: k, ", n) + "rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: a}]}" + strings.Repeat("}]", n) + "\n"
	}
	if _, err := readFiles(rlsDefaults{}, deep(30)); err != nil {
		t.Error(err)
	}
	if _, err := readFiles(rlsDefaults{}, deep(40)); err == nil || !strings.Contains(err.Error(), "nested deeper than 64 levels") {
		t.Error(err)
	}
}

func TestFailureThatCannotBeKept(t *testing.T) {
	_, err := readFiles(rlsDefaults{redis: true, fails: redisstore.FailClosed}, "domain: d\nfailure: local\n")
	var file *FileError
	if !errors.As(err, &file) || len(file.Faults) != 1 || file.Faults[0].Line != 2 || file.Faults[0].Path != wordFailure {
		t.Error(err)
	}
}

// What is at fault in the rls of a document has its place there.
func TestRulesOfDocument(t *testing.T) {
	_, err := read([]byte("limits: {api: {plans: {a: sliding-log 1/hour}}}\nrls:\n- domain: d\n  descriptors:\n  - {key: k, headgate: {limit: other}}\n  - {key: l, value: 1, rate_limit: {}}\n"))
	var faults limits.Faults
	if !errors.As(err, &faults) || len(faults) != 2 || faults[0].Line != 5 || faults[0].Path != "rls[0].descriptors[0].headgate.limit" || faults[1].Line != 6 {
		t.Error(err)
	}
}

func TestMatch(t *testing.T) {
	const rate = "rate_limit: {unit: day, requests_per_unit: 5}"
	d, err := readFiles(rlsDefaults{}, `domain: d
descriptors:
- {key: a, `+rate+`}
- {key: a, value: one, `+rate+`}
- {key: a, value: none}
- {key: a, value: w*, `+rate+`}
- {key: a, value: wide*, `+rate+`}
- {key: a, value: wine, `+rate+`}
- {key: s, value: x/*, share_threshold: true, `+rate+`, descriptors: [{key: t, value_to_metric: true, `+rate+`}]}
- {key: pre*, `+rate+`}
- {key: n, descriptors: [{key: o, value: p, `+rate+`}, {key: o, detailed_metric: true, `+rate+`}]}
- {key: m, value: v*, value_to_metric: true, `+rate+`}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ of, path, key, metric string }{
		{"a=x", "d.a", "x", "a"},
		{"a=", "d.a", "", "a"},
		{"a=one", "d.a_one", "one", "a_one"},
		{"a=none", "", "none", "a_none"},
		{"a=wide1", "d.a_w*", "wide1", "a_w*"}, // the first in the file
		{"a=wine", "d.a_wine", "wine", "a_wine"},
		{"s=x/1", "d.s_x/*", "x/*", "s_x/*"},
		{"s=x/2", "d.s_x/*", "x/*", "s_x/*"},
		{"s=y", "", "y", "s"},
		{"s=x/1 t=1", "d.s_x/*.t", "3:x/*,1:1,", "s_x/*.t_1"},
		{"prefix=1", "d.pre*", "6:prefix,1:1,", "pre*"},
		{"n=1", "", "1", "n"},
		{"n=1 o=p", "d.n.o_p", "1:1,1:p,", "n.o_p"},
		{"n=1 o=q", "d.n.o", "1:1,1:q,", "n_1.o_q"},
		{"n=1 o=q r=s", "", "1:1,1:q,1:s,", "n.o.r"},
		{"o=q", "", "q", "o"},
		{"m=v1", "d.m_v*", "v1", "m_v1"},
	} {
		var entries []entry
		for text := range strings.FieldsSeq(test.of) {
			key, value, _ := strings.Cut(text, "=")
			entries = append(entries, entry{key, value})
		}
		m := d.domains["d"].match(entries, true)
		path := ""
		if m.rule != nil {
			path = m.path
		}
		if path != test.path || m.key != test.key || strings.Join(m.keys, ".") != test.metric {
			t.Errorf("%s: %q %q %q", test.of, path, m.key, m.keys)
		}
	}
}
