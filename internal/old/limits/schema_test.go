package limits_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core"
	"github.com/headgate/headgate/internal/old/limits"
)

func schema(t *testing.T) (root map[string]any) {
	t.Helper()
	text, err := os.ReadFile("../../../limits/limits.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	return root
}

// Each field is in the schema: the error about another lists them.
func TestSchemaHasEachField(t *testing.T) {
	root := schema(t)
	for path, of := range map[string]string{
		`{"x": 1}`:                    "",
		`{"limits": {"a": {"x": 1}}}`: "limit",
		`{"slots": {"a": {"x": 1}}}`:  "slots",
		`{"limits": {"a": {"plans": {"a": "blocked"}, "overrides": [{"x": 1}]}}}`: "limit/overrides",
		`{"slots": {"a": {"plans": {"a": 1}, "overrides": [{"x": 1}]}}}`:          "slots/overrides",
	} {
		_, err := limits.Parse([]byte(path), nil)
		_, list, _ := strings.Cut(err.Error(), `unknown field: one of `)
		list, _, _ = strings.Cut(list, "\n")
		at := root
		if name, rest, _ := strings.Cut(of, "/"); name != "" {
			at = root["definitions"].(map[string]any)[name].(map[string]any)
			if rest != "" {
				at = at["properties"].(map[string]any)[rest].(map[string]any)["items"].(map[string]any)
			}
		}
		want := slices.Sorted(maps.Keys(at["properties"].(map[string]any)))
		got := slices.Sorted(slices.Values(strings.Split(list, ", ")))
		if !slices.Equal(got, want) {
			t.Errorf("%s: the fields are %q, those of the schema %q", path, got, want)
		}
	}
}

// Each algorithm is in the schema, and its examples are policies.
func TestSchemaHasEachAlgorithm(t *testing.T) {
	policy := schema(t)["definitions"].(map[string]any)["policy"].(map[string]any)
	_, err := limits.Parse([]byte(free(`"x"`)), nil)
	_, list, _ := strings.Cut(err.Error(), "an algorithm: one of ")
	words := slices.Sorted(slices.Values(strings.Split(list, ", ")))
	_, pattern, _ := strings.Cut(policy["pattern"].(string), "(?:")
	pattern, _, _ = strings.Cut(pattern, ")")
	if got := slices.Sorted(slices.Values(strings.Split(pattern, "|"))); !slices.Equal(got, words) {
		t.Errorf("the algorithms are %q, those of the schema %q", words, got)
	}
	for _, example := range policy["examples"].([]any) {
		var p core.Policy
		if err := p.UnmarshalText([]byte(example.(string))); err != nil {
			t.Error(err)
		}
	}
}
