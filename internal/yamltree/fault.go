// Package yamltree reads texts as the part of YAML that cannot be mistaken, and collects what is wrong with them, each fault
// at its place.
package yamltree

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// A Fault is one mistake in a document, or a warning, at its place. Its text never has the key of an override, nor
// what may be one by a mistake of typing: servers log it.
type Fault struct {
	Line, Column int // counted from 1; a column is a character
	Text         string
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
	for i, f := range fs {
		lines[i] = f.String()
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

// A Reader collects what is wrong.
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
	if len(r.Faults) == 0 {
		return nil
	}
	return r.Sorted()
}

// Sorted returns the faults in the order of their places.
func (r *Reader) Sorted() Faults {
	fs := r.Faults
	slices.SortStableFunc(fs, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	if more := len(fs) - maxFaults; more > 0 {
		fs = append(fs[:maxFaults:maxFaults], Fault{fs[maxFaults].Line, fs[maxFaults].Column, fmt.Sprintf("and %d more faults", more)})
	}
	return fs
}
