package limits_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/limits"
)

const schemaFile = "limits.schema.json"

// bySchema returns what ajv says of documents by the schema. It is installed by make ajv.
func bySchema(t *testing.T, documents []string) [][]string {
	t.Helper()
	modules, err := filepath.Abs("../.bin/ajv/node_modules")
	if err == nil {
		_, err = os.Stat(filepath.Join(modules, "ajv"))
	}
	if _, missing := exec.LookPath("node"); missing != nil {
		err = missing
	}
	switch {
	case err != nil && os.Getenv("HEADGATE_REQUIRE_AJV") == "1":
		t.Fatalf("HEADGATE_REQUIRE_AJV: make ajv: %v", err)
	case err != nil:
		t.Skipf("make ajv installs what is missing: %v", err)
	}
	schema, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var stdin, stderr bytes.Buffer
	fmt.Fprintf(&stdin, `{"schema": %s, "documents": [%s]}`, schema, strings.Join(documents, ",\n"))
	cmd := exec.CommandContext(t.Context(), "node", "testdata/validate.js")
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	cmd.Stdin, cmd.Stderr = &stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var faults [][]string
	if err := json.Unmarshal(out, &faults); err != nil || len(faults) != len(documents) {
		t.Fatalf("%v: %d answers for %d documents", err, len(faults), len(documents))
	}
	return faults
}

// beyond are the faults that the schema cannot know, or does not.
var beyond = []*regexp.Regexp{
	// What is elsewhere in the document.
	regexp.MustCompile(`: there is no such plan$`),
	regexp.MustCompile(`: existing usage would be lost, as it counts otherwise`),
	regexp.MustCompile(`: none of the policies is named .*, so existing usage would be lost`),
	regexp.MustCompile(`: a limiter has 1 to 8 policies, not \d+$`), // with those of a plan
	regexp.MustCompile(`: the (key|prefix) has an override already`),
	regexp.MustCompile(`: the name is there twice`), // JSON has no such thing
	// Numbers that do not fit together.
	regexp.MustCompile(`a token bucket's rate must be at most 1,000,000 a second`),
	regexp.MustCompile(`a burst of \d+ at this rate cannot be counted exactly`),
	regexp.MustCompile(`a burst of \d+ is too small`),
	regexp.MustCompile(`a debt of \d+ at this rate cannot be counted exactly`),
	regexp.MustCompile(`a resolution of \d+ needs a period of as many microseconds`),
	// Spellings.
	regexp.MustCompile(`: it must be a whole number from 0 to 2\^53-1$`), // 1.0 and 1e3 are integers there
	regexp.MustCompile(`: it is not a time: `),                           // the 30th of February
	regexp.MustCompile(`: it is not after from$`),
	regexp.MustCompile(`the text of a policy has at most 256 bytes`), // characters, there
}

// known reports whether all faults of a document are beyond the schema.
func known(err error) bool {
	var faults limits.Faults
	return errors.As(err, &faults) && !slices.ContainsFunc(faults, func(f *limits.Fault) bool {
		return !slices.ContainsFunc(beyond, func(r *regexp.Regexp) bool { return r.MatchString(f.Error()) })
	})
}

// The schema takes what is valid, and refuses what is not, as far as it can know.
func TestSchema(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has nothing for the race detector, whose runs are short")
	}
	// What the schema must refuse, lest the list of what it cannot know hide it.
	all := []string{
		"{}", "[]", "null", `{"limits": {}}`, `{"slots": {}}`, `{"limit": {}}`, `{"limits": {"api": {}}}`, `{"limits": {"api": {"plans": {}}}}`,
		`{"limits": {"": {"plans": {"a": "blocked"}}}}`,
		`{"limits": {"api": {"plans": {"a": "blocked", "b": "blocked"}}}}`, `{"limits": {"api": {"default": "a b", "plans": {"a": "blocked"}}}}`,
		`{"limits": {"api": {"plans": {"blocked": "blocked"}}}}`, `{"limits": {"api": {"plans": {"a b": "blocked"}}}}`, `{"slots": {"ws": {"plans": {"a": -1}}}}`,
		`{"slots": {"ws": {"plans": {"a": 1.5}}}}`, `{"slots": {"ws": {"plans": {"a": 9007199254740993}}}}`, `{"slots": {"ws": {"plans": {"a": 1}, "policies": "blocked"}}}`,
		free("60"), free("{}"), free(`"sliding 60/minute"`), free(`"token-bucket 10/second"`), free(`"sliding-log 5/hour from-first"`), free(`"sliding-window 5/hour resolution 1001"`),
		free(`"sliding-log 0/minute"`), free(`"sliding-log 60/mintue"`), free(`"token-bucket 1/second burst 0"`), free(`{"a":"b","b":"unlimited"}`),
		strings.Replace(everything, `"plan": "gold", "from"`, `"from"`, 1),
		strings.Replace(everything, `"from": "2026-01-01T`, `"from": "2026-13-01T`, 1),
		strings.Replace(everything, `"key": "user-42", "plan"`, `"key": 42, "plan"`, 1),
		strings.Replace(everything, `"key": "user-42", "plan"`, `"plan"`, 1),
		strings.Replace(everything, `"key": "user-42", "plan"`, `"key": "user-42", "prefix": "u", "plan"`, 1),
		strings.Replace(everything, `"note"`, `"notes"`, 1),
	}
	must := len(all)
	for _, text := range spellings() {
		all = append(all, free(text))
	}
	all = append(all, everything, document, ws(document), `{"limits": {}, "slots": {"ws": {"plans": {"a": 1}}}}`, `{"slots": {"ws": {"plans": {"a": 1, "b": 2}}}}`,
		`{"limits": {"api": {"default": "blocked", "plans": {"a": "blocked", "b": "blocked"}}}}`, `{"slots": {"ws": {"plans": {"a": 9007199254740991}}}}`)
	generate(t, func(_ *testing.T, g *generator) {
		text := g.document().text()
		all = append(all, text)
		for range 3 {
			all = append(all, g.mutated(text))
		}
	})
	var valid, refused, taken int
	for i, faults := range bySchema(t, all) {
		_, err := limits.Parse([]byte(all[i]), nil)
		switch {
		case err == nil && len(faults) > 0:
			t.Errorf("it is valid, and the schema says %q:\n%s", faults, all[i])
		case err == nil:
			valid++
		case len(faults) > 0:
			refused++
		case i >= must && known(err):
			taken++
		default:
			t.Errorf("the schema takes it:\n%v\n%s", err, all[i])
		}
	}
	t.Logf("%d are valid, the schema refuses %d, and cannot know of %d", valid, refused, taken)
	if valid < len(all)/20 || refused < len(all)/20 {
		t.Error("these are too few")
	}
}

// spellings are policies at the bounds of what is one, and beyond.
func spellings() (all []string) {
	periods := []string{"", "0s", "1", "01s", "second", "seconds", "s", "ms", "us", "1.5s", "-1s", "ns", "1week"}
	for unit, most := range map[string]int64{"us": 1 << 52, "ms": (1 << 52) / 1000, "s": (1 << 52) / 1000_000, "m": (1 << 52) / 60_000_000, "h": (1 << 52) / 3600_000_000, "d": (1 << 52) / 86400_000_000} {
		periods = append(periods, fmt.Sprint(most, unit), fmt.Sprint(most+1, unit), fmt.Sprint(most*10, unit), "1"+unit, unit)
	}
	counts := []string{"", "0", "1", "01", "-1", "1.5", "1e3", "16384", "1048576", "1048577", "9007199254740991", "9007199254740992", "90071992547409910", "9999999999999999"}
	for _, p := range periods {
		all = append(all, "min-interval "+p, "fixed-window 5/"+p, "sliding-log 5/"+p, "token-bucket 5/second burst 100 leasable "+p)
	}
	for _, n := range counts {
		all = append(all, "fixed-window "+n+"/day", "sliding-log "+n+"/day", "token-bucket 1/second burst "+n, "token-bucket 1/second burst 5 debt "+n, "sliding-window "+n+"/day")
	}
	for _, k := range []string{"", "0", "1", "999", "1000", "1001", "01", "10000"} {
		all = append(all, "sliding-window 5/hour resolution "+k)
	}
	all = append(all, "unlimited", " blocked ", "unlimited 1", "fixed-window", "fixed-window 5", "fixed-window 5/day 5", "min-interval 1s 1s", "min-interval 5/day",
		"token-bucket 10/second", "token-bucket 1000/second burst 2000 leasable 500ms", "token-bucket 1000/second leasable 500ms burst 2000", "token-bucket 1000/second leasable 500ms",
		"token-bucket 1/second burst 5 burst 5", "token-bucket 1/second debt 5", "token-bucket 1/second debt 5 burst 5 debt 5", "token-bucket 100/second debt 5 leasable 10ms burst 500",
		"token-bucket 1/second burst debt 5", "token-bucket 1/second debt burst 5", "token-bucket 1/second leasable burst 5", "fixed-window 5/hour debt 5",
		"fixed-window 5/hour count-denied from-first", "fixed-window 5/hour"+strings.Repeat(" count-denied", 2), "fixed-window 5/hour from-first count-denied from-first",
		"sliding-log 5/hour from-first", "sliding-window 5/hour never-over count-denied resolution 5", "sliding-window 5/hour resolution 5 never-over resolution 5", "sliding-window 5/hour resolution",
		"sliding-log\t5/hour\n count-denied ", "sliding-log\u00855/hour", "sliding-log\u20035/hour\u00a0", "sliding-log 5 /hour", "Sliding-log 5/hour", "sliding-log 5/Hour", strings.Repeat(" ", 300)+"unlimited",
		strings.Repeat(" ", 240)+"sliding-log 5/h")
	for i, text := range all {
		quoted, err := json.Marshal(text)
		if err != nil {
			panic(err)
		}
		all[i] = string(quoted)
	}
	return append(all, "60", "null", "{}", "[]", `["sliding-log 60/minute"]`, `{"": "sliding-log 60/minute"}`, `{"a": "unlimited"}`, `{"a": "unlimited", "b": "sliding-log 60/minute"}`, `{"a": " blocked", "b": "blocked "}`,
		`{"a": {"b": "blocked"}}`, `{"ä": "sliding-log 60/minute"}`, `{"`+strings.Repeat("n", 65)+`": "sliding-log 60/minute"}`)
}

// mutated returns a text of JSON of which one value is another, or is elsewhere, or is gone.
func (g *generator) mutated(text string) string {
	var root any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		panic(err)
	}
	values := []any{nil, true, json.Number("0"), json.Number("7"), json.Number("1.5"), "", "free", "p0", "blocked", " unlimited ", "60/minute", "2026-12-01T00:00:00Z", "2026-13-01T00:00:00Z", "2026-12-01 00:00:00Z",
		"2026-12-01T3:04:05+01:00", "2026-02-30T00:00:00,5Z", map[string]any{}, []any{}, map[string]any{"plans": map[string]any{"a": "blocked"}}, map[string]any{"m": "sliding-log 5/hour"}}
	names := []string{"limits", "slots", "$schema", "default", "plans", "overrides", "plan", "policies", "from", "until", "note", "key", "prefix", "x", "blocked", "p0", "a b"}
	root = g.mutate(root, g.IntN(20), values, names)
	mutated, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return string(mutated)
}

// mutate changes the value that is as many values further on, roughly.
func (g *generator) mutate(v any, steps int, values []any, names []string) any {
	switch v := v.(type) {
	case map[string]any:
		if steps == 0 || len(v) == 0 {
			break
		}
		name := g.one(slices.Sorted(maps.Keys(v))...)
		switch g.IntN(8) {
		case 0:
			delete(v, name)
		case 1:
			v[g.one(names...)] = values[g.IntN(len(values))]
		case 2:
			v[g.one(names...)] = v[name]
			delete(v, name)
		default:
			v[name] = g.mutate(v[name], steps-1, values, names)
		}
		return v
	case []any:
		if steps == 0 || len(v) == 0 {
			break
		}
		i := g.IntN(len(v))
		v[i] = g.mutate(v[i], steps-1, values, names)
		return v
	}
	return values[g.IntN(len(values))]
}

// Each field is in the schema: the error about another lists them.
func TestSchemaHasEachField(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
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
