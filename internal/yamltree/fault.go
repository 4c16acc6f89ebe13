// Package yamltree reads texts as the part of YAML that cannot be mistaken, and collects what is wrong with them, each
// fault at its place.
//
// A text goes this way:
//
//  1. check finds faults of the text as a whole: its size, its characters, its end (yaml.go).
//  2. What is JSON is made into nodes as RFC 8259 has it (json.go). All else is parsed as YAML.
//  3. Aliases and merge keys are expanded, or they are faults, as are tags and what is nested too deeply (plain).
//  4. Callers walk down the nodes with Each, Fields, Is and Text, and say what each should be. Or they have a node
//     decoded into a struct (Decode, in fault.go).
//
// An alias, and what is nested too deeply, gets the kind 0; a value that is missing is nil. The functions of a Reader
// say nothing of either. So a caller goes on after a fault, and each mistake is told once.
package yamltree

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// A Fault is one mistake in a document, or a warning, at its place. Its text never has the key of an override, nor
// what may be one by a mistake of typing: servers log it.
type Fault struct {
	Line   int    `json:"line"`
	Column int    `json:"column"` // both are counted from 1; a column is a character
	Text   string `json:"text"`
}

func (f Fault) String() string {
	return fmt.Sprintf("line %d, column %d: %s", f.Line, f.Column, f.Text)
}

// Faults are all mistakes in a document, in the order of their places.
type Faults []Fault

// maxFaults is how many are listed. The last then says how many there are.
const maxFaults = 100

// Error lists the faults, a line each.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, fault := range fs {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// A Place is where something stands in a document.
type Place struct{ Line, Column int32 }

// first is the place where a text begins.
var first = Place{1, 1}

// behind returns the place behind a text that begins at a place.
func (p Place) behind(text []byte) Place {
	lastBreak := bytes.LastIndexByte(text, '\n')
	if lastBreak >= 0 {
		p = Place{p.Line + int32(bytes.Count(text, []byte("\n"))), 1}
	}
	p.Column += int32(utf8.RuneCount(text[lastBreak+1:]))
	return p
}

// PlaceOf returns the place of a node.
func PlaceOf(n *yaml.Node) Place { return Place{int32(n.Line), int32(n.Column)} }

// Fault returns a fault there.
func (p Place) Fault(format string, args ...any) Fault {
	return Fault{int(p.Line), int(p.Column), fmt.Sprintf(format, args...)}
}

// A Reader collects what is wrong. Its zero value is ready, and reads strictly: the fields that are true permit more.
// It is for one text, and for one goroutine.
type Reader struct {
	Unended          bool // YAML need not end in "..."
	Anchors          bool // aliases and merge keys are what they stand for, and no faults
	Faults, Warnings Faults
}

// Fault adds a fault of a node, At one at a place, and Warn a warning.
func (r *Reader) Fault(n *yaml.Node, format string, args ...any) { r.At(PlaceOf(n), format, args...) }

// At is described with Fault.
func (r *Reader) At(at Place, format string, args ...any) {
	r.Faults = append(r.Faults, at.Fault(format, args...))
}

// Warn is described with Fault.
func (r *Reader) Warn(at Place, format string, args ...any) {
	r.Warnings = append(r.Warnings, at.Fault(format, args...))
}

// Err returns the faults, or nil.
func (r *Reader) Err() error {
	faults := r.Sorted()
	if len(faults) == 0 {
		return nil
	}
	return faults
}

// Sorted puts faults and warnings in the order of their places, and returns the faults.
func (r *Reader) Sorted() Faults {
	fs := r.Faults
	for _, all := range []Faults{fs, r.Warnings} {
		slices.SortStableFunc(all, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	}
	more := len(fs) - maxFaults
	if more > 0 {
		next := fs[maxFaults]
		next.Text = fmt.Sprintf("and %d more faults", more)
		fs = append(fs[:maxFaults:maxFaults], next)
	}
	return fs
}

// An At is a value, and its place. Fields of structs that are decoded have this type where what is found out later has
// to be told at its place: that a name is known, or is there twice.
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

// Decode decodes a node into a value. A struct has all the fields that there may be. What is wrong is in the reader,
// each fault at its place, without texts of the node. A number is taken for a string as it is written; who wants it
// quoted uses Text.
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
	// These are the texts of package yaml. One that it says otherwise one day has the last meaning.
	m := construct.FindStringSubmatch(message)
	switch {
	case strings.HasPrefix(message, "field "):
		return "there is no such field here"
	case strings.HasPrefix(message, "mapping key"):
		return "this is there twice"
	case m == nil:
		return "this has another form than it must have"
	}
	// The group 1 is the tag of what is there, and 2 the type of Go that it was to become. Structs of documents have
	// strings, booleans, whole numbers and lists; any other type is a struct or a map. The name "interface {}" begins
	// as "int" does.
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
