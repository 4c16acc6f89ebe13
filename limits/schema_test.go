package limits_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/internal/document"
)

func schema(t *testing.T) (root map[string]any) {
	t.Helper()
	text, err := os.ReadFile("limits.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	return root
}

// The schema has each field of a document, and no other: a document with another is refused.
func TestSchemaHasEachField(t *testing.T) {
	const fields = "$schema limits slots default plans overrides key prefix network plan policies from until note"
	root := schema(t)
	definition := func(name string) map[string]any { return root["definitions"].(map[string]any)[name].(map[string]any) }
	for what, at := range map[string]map[string]any{
		`{"FIELD": 1}`:                    root,
		`{"limits": {"a": {"FIELD": 1}}}`: definition("limit"),
		`{"slots": {"a": {"FIELD": 1}}}`:  definition("slots"),
		`{"limits": {"a": {"plans": {"a": "blocked"}, "overrides": [{"FIELD": 1}]}}}`: definition("limit")["properties"].(map[string]any)["overrides"].(map[string]any)["items"].(map[string]any),
		`{"slots": {"a": {"plans": {"a": 1}, "overrides": [{"FIELD": 1}]}}}`:          definition("slots")["properties"].(map[string]any)["overrides"].(map[string]any)["items"].(map[string]any),
	} {
		var known []string
		for _, field := range strings.Fields(fields) {
			_, err := document.Parse([]byte(strings.Replace(what, "FIELD", field, 1)))
			if !strings.Contains(err.Error(), "has no such field") {
				known = append(known, field)
			}
		}
		slices.Sort(known)
		if got := slices.Sorted(maps.Keys(at["properties"].(map[string]any))); !slices.Equal(got, known) {
			t.Errorf("%s: the fields are %q, those of the schema %q", what, known, got)
		}
	}
}

// The examples of the schema are policies, of each algorithm that counts.
func TestSchemaHasEachAlgorithm(t *testing.T) {
	policy := schema(t)["definitions"].(map[string]any)["policy"].(map[string]any)
	algorithms := make(map[string]bool)
	for _, example := range policy["examples"].([]any) {
		var p core.Policy
		if err := p.UnmarshalText([]byte(example.(string))); err != nil {
			t.Error(err)
		}
		word, _, _ := strings.Cut(example.(string), " ")
		algorithms[word] = true
	}
	_, pattern, _ := strings.Cut(policy["pattern"].(string), "(?:")
	pattern, _, _ = strings.Cut(pattern, ")")
	algorithms["unlimited"], algorithms["blocked"] = true, true
	if got := slices.Sorted(slices.Values(strings.Split(pattern, "|"))); !slices.Equal(got, slices.Sorted(maps.Keys(algorithms))) {
		t.Errorf("the algorithms of the schema are %q", got)
	}
	err := new(core.Policy).UnmarshalText([]byte("none 1/second"))
	_, known, _ := strings.Cut(err.Error(), "one of ")
	if words := strings.Split(known, ", "); !slices.Equal(slices.Sorted(slices.Values(words)), slices.Sorted(maps.Keys(algorithms))) {
		t.Errorf("the algorithms of the schema are %q, and policies have %q", pattern, words)
	}
	for _, word := range strings.Split(pattern, "|") {
		if err := new(core.Policy).UnmarshalText([]byte(word + " wrong")); err == nil || strings.Contains(err.Error(), "algorithm") {
			t.Errorf("%s: %v", word, err)
		}
	}
}
