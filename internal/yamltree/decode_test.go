package yamltree_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/headgate/headgate/internal/yamltree"
)

func TestDecode(t *testing.T) {
	type inner struct {
		Name  string
		Units uint32
		Is    bool
		More  []yamltree.At[inner]
		Texts yamltree.Texts
	}
	const text = `name: [a]
units: -1
is: 1
more:
- {name: 7, is: yes, units: secret, other: secret}
- a
- {more: [{name: {}, name: b}], texts: [[c]]}
texts: {}
`
	r := &yamltree.Reader{Unended: true}
	var v inner
	r.Decode(r.Load([]byte(text)), &v)
	const want = `line 1, column 7: this is a list, not a string
line 2, column 8: this is not a whole number of that size
line 3, column 5: this is a number, not true or false
line 5, column 29: this is a string, not a whole number of that size
line 5, column 37: there is no such field here
line 6, column 3: this is a string, not a map
line 7, column 22: this is there twice
line 7, column 41: this is a list, not a string
line 8, column 8: this is a map, not a string`
	if err := r.Err(); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	r, v = new(yamltree.Reader), inner{}
	r.Decode(r.Load([]byte("more:\n- {name: 7, is: yes}\n...")), &v)
	if r.Err() != nil || v.More[0].Value.Name != "7" || !v.More[0].Value.Is || v.More[0].Line != 2 || v.More[0].Column != 3 {
		t.Errorf("%+v", v)
	}
}

// Each fault has the place that an editor shows, in YAML and in JSON; and what is JSON is read as that.
func TestPlaces(t *testing.T) {
	party := "\U0001f389"
	for _, test := range []struct{ name, text, want string }{
		{"a control character", "a:\n  b: \"\x01\"\n...", `line 2, column 7: this is an invisible character: remove it, or write it in quotes as \u0001`},
		{"in a comment", "# \x7f\na: 1\n...", `line 1, column 3: this is an invisible character: remove it, or write it in quotes as \u007f`},
		{"a byte order mark", "a: 1\n# \ufeff\n...", `line 2, column 3: this is an invisible character: remove it, or write it in quotes as \ufeff`},
		{"a separator of lines", "a: '\u2028'\nb: 1\n...", `line 1, column 5: this is an invisible character: remove it, or write it in quotes as \u2028`},
		{"its escape", "a: \"\\u2028\"\nb: 1\n...", `line 2, column 1: b`},
		{"in JSON", "{\"a\":\n \"\x1f\"}", `line 2, column 3: this is an invisible character: remove it, or write it in quotes as \u001f`},
		{"delete in JSON, which it allows", "{\"a\": \"\x7f\", \"b\": 1}", `line 1, column 12: b`},
		{"a separator in JSON", "{\"a\": \"\u2028\", \"b\": 1}", `line 1, column 12: b`},
		{"not YAML", "a: b\nc: [\n", "line 2, column 5: this is not YAML: did not find expected node content"},
		{"lines of JSON", "\n{\n \"a\": [1, true, null, 1.5],\n\t\"b\": 1}", "line 4, column 2: b"},
		{"escapes of JSON", `{"\ud83c\udf89": "\/", "b": 1}`, "line 1, column 24: b"},
		{"emoji", `{"` + party + `": 1, "b": 1}`, "line 1, column 10: b"},
		{"half of a character", `{"a": "\ud83c"}`, `line 1, column 7: this has half of a character: an escape such as \ud83c needs the other half behind it`},
		{"halves the wrong way around", `{"\udf89\ud83c": 1}`, `line 1, column 2: this has half of a character: an escape such as \ud83c needs the other half behind it`},
		{"half of a character behind what looks like an escape", `{"a": "\\ufffd\ud83c"}`, `line 1, column 7: this has half of a character: an escape such as \ud83c needs the other half behind it`},
		{"a replacement character", `{"a": "\ufffd` + "\ufffd" + `", "b": 1}`, "line 1, column 18: b"},
		{"twice", `{"a": 1, "b": {}, "a": 2}`, "line 1, column 10: b"},
		{"deep", strings.Repeat("[", 70) + strings.Repeat("]", 70), "line 1, column 1: the document is a list, not a map"},
		{"deep in a map", `{"a": ` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, "line 1, column 70: this is nested deeper than 64 levels"},
		{"deep in YAML", "a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70), "line 1, column 67: this is nested deeper than 64 levels"},
	} {
		r := &yamltree.Reader{Unended: true}
		root := r.Load([]byte(test.text))
		if root != nil && len(r.Faults) == 0 {
			r.Each(root, "the document", "a name", func(name, _ *yaml.Node) {
				if name.Value == "b" {
					r.Fault(name, "b")
				}
			})
		}
		got := "no fault"
		err := r.Err()
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), "\n")
		}
		if got != test.want {
			t.Errorf("%s: %s, not %s", test.name, got, test.want)
		}
	}
}
