package limits_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/limits"
)

// A schema is as much of JSON Schema as the file uses.
type schema map[string]any

// fits reports whether a value fits a schema, of which root has the definitions.
func (root schema) fits(s schema, v any) bool {
	all := func(key string) (list []schema) {
		items, _ := s[key].([]any)
		for _, one := range items {
			list = append(list, one.(map[string]any))
		}
		return list
	}
	fits := func(one schema) bool { return root.fits(one, v) }
	if ref, ok := s["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/definitions/")
		return root.fits(root["definitions"].(map[string]any)[name].(map[string]any), v)
	}
	if list := all("anyOf"); list != nil && !slices.ContainsFunc(list, fits) {
		return false
	}
	for _, one := range all("allOf") {
		if !fits(one) {
			return false
		}
	}
	if list := all("oneOf"); list != nil && len(slices.DeleteFunc(list, func(one schema) bool { return !fits(one) })) != 1 {
		return false
	}
	if not, ok := s["not"].(map[string]any); ok && fits(not) {
		return false
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		return false
	}
	text, isText := v.(string)
	if pattern, ok := s["pattern"].(string); ok && isText && !regexp.MustCompile(pattern).MatchString(text) {
		return false
	}
	number, isNumber := v.(float64)
	list, isList := v.([]any)
	object, isObject := v.(map[string]any)
	switch s["type"] {
	case "string":
		least, _ := s["minLength"].(float64)
		return isText && len(text) >= int(least)
	case "integer":
		return isNumber && number == float64(int64(number)) && number >= s["minimum"].(float64) && number <= s["maximum"].(float64)
	case "array":
		return isList && !slices.ContainsFunc(list, func(one any) bool { return !root.fits(s["items"].(map[string]any), one) })
	case "object":
		if !isObject {
			return false
		}
	}
	if !isObject {
		return true
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := object[name.(string)]; !ok {
			return false
		}
	}
	least, _ := s["minProperties"].(float64)
	most, bounded := s["maxProperties"].(float64)
	if len(object) < int(least) || bounded && len(object) > int(most) {
		return false
	}
	properties, _ := s["properties"].(map[string]any)
	for name, one := range object {
		if names, ok := s["propertyNames"].(map[string]any); ok && !root.fits(names, name) {
			return false
		}
		if of, ok := properties[name].(map[string]any); ok {
			if !root.fits(of, one) {
				return false
			}
			continue
		}
		switch more := s["additionalProperties"].(type) {
		case bool:
			return more
		case map[string]any:
			if !root.fits(more, one) {
				return false
			}
		}
	}
	return true
}

// The schema takes what is valid, and refuses what is written wrongly. What needs more than the
// place, such as whether there is a plan of that name, it leaves to the program.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile("limits.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	fits := func(text string) bool {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err, text)
		}
		return root.fits(root, v)
	}
	for _, text := range []string{everything, document, free(`"token-bucket 10/second burst 5"`), free(`"fixed-window 5/hour count-denied from-first"`), ws(document)} {
		parse(t, text)
		if !fits(text) {
			t.Errorf("the schema refuses %s", text)
		}
	}
	for _, text := range []string{
		"{}", "[]", `{"limit": {}}`, `{"limits": {"api": {}}}`, `{"limits": {"api": {"plans": {}}}}`, free("60"), free(`{}`), free(`"sliding 60/minute"`), free(`"token-bucket 10/second"`), free(`"sliding-log 5/hour from-first"`),
		`{"limits": {"api": {"plans": {"blocked": "blocked"}}}}`, `{"limits": {"api": {"plans": {"a b": "blocked"}}}}`, `{"slots": {"ws": {"plans": {"a": -1}}}}`,
		`{"slots": {"ws": {"plans": {"a": 1.5}}}}`, `{"slots": {"ws": {"plans": {"a": 1}, "shadow": "blocked"}}}`,
		strings.Replace(everything, `"plan": "gold", "from"`, `"from"`, 1),
		strings.Replace(everything, `"key": "user-42", "plan"`, `"key": 42, "plan"`, 1),
		strings.Replace(everything, `"key": "user-42", "plan"`, `"plan"`, 1),
		strings.Replace(everything, `"key": "user-42", "plan"`, `"key": "user-42", "prefix": "u", "plan"`, 1),
		strings.Replace(everything, `"note"`, `"notes"`, 1),
		strings.Replace(everything, `"0011`, `"x011`, 1),
	} {
		if _, err := limits.Parse([]byte(text), nil); err == nil {
			t.Errorf("it is valid: %s", text)
		}
		if fits(text) {
			t.Errorf("the schema takes %s", text)
		}
	}
	// Each field is in the schema: the error about another lists them.
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
		at := map[string]any(root)
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
