package yamltree_test

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/headgate/headgate/internal/yamltree"
)

// A text with anchors is the text that they stand for.
func TestAnchors(t *testing.T) {
	read := func(text string) (string, error) {
		reader := &yamltree.Reader{Unended: true, Anchors: true}
		root := reader.Load([]byte(text))
		if root == nil || len(reader.Faults) > 0 {
			return "", reader.Err()
		}
		written, err := yaml.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		return string(written), nil
	}
	for text, same := range map[string]string{
		"a: &x {b: 1}\nc: *x\n":                                     "a: {b: 1}\nc: {b: 1}\n",
		"a: &x [&y 1, *y]\nc: [*x, *y]\n":                           "a: [1, 1]\nc: [[1, 1], 1]\n",
		"a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}\n":                   "a: {b: 1, c: 2}\nd: {b: 3, c: 2}\n",
		"a: &x {b: 1}\nb: &y {b: 2, c: 3}\nd: {<<: [*x, *y], e: 4}": "a: {b: 1}\nb: {b: 2, c: 3}\nd: {e: 4, b: 1, c: 3}\n",
		"a: &x {b: 1}\nc: &z {<<: *x}\nd: {<<: *z}":                 "a: {b: 1}\nc: {b: 1}\nd: {b: 1}\n",
		"a: {'<<': 1}": "a: {'<<': 1}\n",
	} {
		got, err := read(text)
		want, _ := read(same)
		if err != nil || got != want {
			t.Errorf("%s%v\n%s", text, err, got)
		}
	}
	bomb := "a: &a [" + strings.Repeat("1, ", 200) + "1]\n"
	for _, name := range []string{"b", "c"} {
		before := string(name[0] - 1)
		bomb += name + ": &" + name + " [" + strings.Repeat("*"+before+", ", 200) + "*" + before + "]\n"
	}
	for text, want := range map[string]string{
		"a: &x [*x]\n":             "nested deeper than 64 levels",
		"a: &x {b: {c: *x}}\n":     "nested deeper than 64 levels",
		"a: *x\n":                  "an alias has no anchor",
		"a: {<<: 1}\n":             "line 1, column 9: what is merged is a map, or a list of maps",
		"a: &x [1]\nb: {<<: *x}\n": "line 1, column 8: what is merged is a map",
		bomb:                       "with what its aliases stand for, the document has more than",
	} {
		_, err := read(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s%v, not %s", text, err, want)
		}
	}
}
