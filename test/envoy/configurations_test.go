package envoy_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	gostats "github.com/lyft/gostats"

	"github.com/headgate/headgate/headgated"
)

// load loads files as the reference does.
func load(merge bool, texts ...string) (c config.RateLimitConfig, err error) {
	defer func() {
		switch fault := recover().(type) { // so it tells what is wrong
		case nil:
		case config.RateLimitConfigError:
			err = fault
		default:
			panic(fault)
		}
	}()
	var files []config.RateLimitConfigToLoad
	for _, text := range texts {
		files = append(files, config.RateLimitConfigToLoad{ConfigYaml: config.ConfigFileContentToYaml("", text)})
	}
	counts := stats.NewStatManager(gostats.NewStore(gostats.NewNullSink(), false), settings.Settings{})
	return config.NewRateLimitConfigImpl(files, counts, merge), nil
}

// exceptions are configurations that only one takes, and why.
var exceptions = map[string]string{
	"domain: d\ndescriptors: [{key: k, value: 'a*b', share_threshold: true}]": "the reference of this version takes asterisks at the end only",
	"domain: d\ndescriptors: [{key: k, metadata: {a: b}}]":                    "the reference of this version does not know metadata",
	"domain: d\ncharge: each":  "charge is ours",
	"domain: d\nfailure: open": "failure is ours",
	"domain: d\ndescriptors: [{key: k, headgate: {policy: sliding-window 10/minute}}]": "headgate is ours",
	"domain: d\ndomain: d":      "a key that is there twice is a fault: one of them would not count",
	"domain: d\n---\ndomain: e": "the reference does not read a second document",
	"domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 08}}]":  "the reference takes no numbers with a fraction, and this for one",
	"domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1e3}}]": "the same",
	"domain: !!str d":   "tags are a fault",
	"domain: d\nkey: v": "the reference takes its keys anywhere, and does not read them there",
	"domain: d\ndescriptors: [{key: k, value: 1.5}]": "the reference takes no numbers with a fraction",
}

// Both services take and refuse the configurations in the repository of the reference alike, and others too.
func TestConfigurations(t *testing.T) {
	texts := []string{
		"", "{}", "domain: d", "domain: 7", "domain: d\ndescriptors: null", "domain: d\ndescriptors: {}", "domain: d\ndescriptors: [7]",
		"domain: d\ndescriptors: [{key: k, value: 7}]", "domain: d\ndescriptors: [{key: k, value: true}]", "domain: d\ndescriptors: [{key: k, value: null}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: null}]", "domain: d\ndescriptors: [{key: k, rate_limit: {}}]", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: Hour}}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: -1}}]", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 4294967296}}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: ten}}]", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: unknown}}]",
		"domain: d\ndescriptors: [{key: k, share_threshold: true}]", "domain: d\ndescriptors: [{key: 'k*', share_threshold: true}]",
		"domain: d\ndescriptors: [{key: k, value: a*b}]", "domain: d\ndescriptors: [{key: 'k*', value: v}]",
		"domain: d\ndescriptors: [{key: k, value: '*', share_threshold: true}]", "domain: d\ndescriptors: [{key: k_v}, {key: k, value: v}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, replaces: [{name: a}]}}]", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, replaces: [a]}}]",
		"domain: d\ndescriptors: [{key: k, shadow_mode: yes}]", "domain: d\ndescriptors: [{key: k, shadow_mode: 1}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unlimited: true, unit: fortnight}}]",
		"domain: d\nname: n\ndescriptors: [{key: k, name: n}]", "name: n\ndomain: d", "domain: d\nname: [n]", "domain: d\nnames: n",
		"domain: d\ndescriptors: [{key: k, rate_limit: &r {unit: hour}}, {key: l, rate_limit: *r}]", "domain: &d d\ndescriptors: [{key: *d}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: &r {unit: hour}}, {key: l, rate_limit: {<<: *r, name: n}}]",
		"domain: d\ndescriptors: [{key: k, rate_limit: &r {unit: hour}}, {key: l, rate_limit: {<<: *s}}]",
	}
	texts = append(texts, files(t)...)
	texts = slices.AppendSeq(texts, maps.Keys(exceptions))
	for _, text := range texts {
		_, theirs := load(false, text)
		_, ours := headgated.Check(headgated.Config{Document: func(context.Context) ([]byte, error) { return []byte(text), nil }})
		why := exceptions[text]
		if ((ours == nil) != (theirs == nil)) != (why != "") {
			t.Errorf("%s\nours: %v\ntheirs: %v\n%s", text, ours, theirs, why)
		}
	}
}

// Of a domain in two files both are taken only with -merge-domains.
func TestMerging(t *testing.T) {
	const a, b = "domain: d\ndescriptors: [{key: a}]", "domain: d\ndescriptors: [{key: b}]"
	for name, test := range map[string]struct {
		merge bool
		texts []string
	}{"two files": {false, []string{a, b}}, "merged": {true, []string{a, b}}, "a descriptor twice": {true, []string{a, a}}} {
		folder := t.TempDir()
		for i, text := range test.texts {
			must(t, os.WriteFile(filepath.Join(folder, string(rune('a'+i))), []byte(text), 0o600))
		}
		_, theirs := load(test.merge, test.texts...)
		s, ours := headgated.New(headgated.Config{EnvoyConfig: folder, MergeDomains: test.merge})
		if ours == nil {
			s.Close()
		}
		if (ours == nil) != (theirs == nil) {
			t.Errorf("%s: ours: %v, theirs: %v", name, ours, theirs)
		}
	}
}

// files returns the texts of all YAML in the repository of the reference: configurations, good and bad, and others.
func files(t *testing.T) (texts []string) {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit").Output()
	must(t, err)
	err = filepath.WalkDir(strings.TrimSpace(string(root)), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		texts = append(texts, string(text))
		return err
	})
	if must(t, err); len(texts) < 25 {
		t.Error(errors.New("some of its files were not found"), len(texts))
	}
	return texts
}
