package yamltree

import (
	"errors"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
)

// An At is a value, and its place.
type At[T any] struct {
	Place

	Value T
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (a *At[T]) UnmarshalYAML(n *yaml.Node) error {
	a.Place = PlaceOf(n)
	return n.Load(&a.Value, yaml.WithKnownFields(true))
}

// Texts are a text, or a list of texts.
type Texts []At[string]

// UnmarshalYAML implements [yaml.Unmarshaler].
func (t *Texts) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.SequenceNode {
		return n.Load((*[]At[string])(t))
	}
	*t = make(Texts, 1)
	return n.Load(&(*t)[0])
}

// Decode decodes a node into a value. A struct has all the fields that there may be. What is wrong is in the reader, each
// fault at its place, without texts of the node.
func (r *Reader) Decode(n *yaml.Node, into any) {
	if n == nil || n.Kind == 0 {
		return
	}
	var all *yaml.LoadErrors
	if !errors.As(n.Load(into, yaml.WithKnownFields(true)), &all) {
		return
	}
	for _, e := range all.Errors {
		r.At(Place{int32(e.Mark.Line), int32(e.Mark.Column)}, "%s", meaning(e.Message))
	}
}

var construct = regexp.MustCompile("(?s)^cannot construct (!![a-z]+) (?:.* )?into (.+)$")

// meaning says what package yaml says, without the texts that it repeats.
func meaning(message string) string {
	m := construct.FindStringSubmatch(message)
	switch {
	case strings.HasPrefix(message, "field "):
		return "there is no such field here"
	case strings.HasPrefix(message, "mapping key"):
		return "this is there twice"
	case m == nil:
		return "this has another form than it must have"
	}
	is := kinds[m[1]]
	want, isScalar := map[string]string{"bool": "true or false", "string": "a string"}[m[2]]
	switch {
	case isScalar:
	case strings.HasPrefix(m[2], "[]"):
		want = "a list"
	case !strings.HasPrefix(strings.TrimPrefix(m[2], "u"), "int") || m[2] == "interface {}":
		want = "a map"
	case is == "a number":
		return "this is not a whole number of that size"
	default:
		want = "a whole number of that size"
	}
	return "this is " + is + ", not " + want
}
