package document

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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

// A place is where something stands in a document.
type place struct{ line, column int32 }

func placeOf(n *yaml.Node) place { return place{int32(n.Line), int32(n.Column)} }

func (p place) fault(format string, args ...any) Fault {
	return Fault{int(p.line), int(p.column), fmt.Sprintf(format, args...)}
}

// A reader collects what is wrong.
type reader struct {
	part             bool // of a text with other fields
	faults, warnings Faults
}

func (r *reader) fault(n *yaml.Node, format string, args ...any) {
	r.faults = append(r.faults, placeOf(n).fault(format, args...))
}

func (r *reader) warn(n *yaml.Node, format string, args ...any) {
	r.warnings = append(r.warnings, placeOf(n).fault(format, args...))
}

// err returns the faults, or nil.
func (r *reader) err() error {
	fs := r.faults
	if len(fs) == 0 {
		return nil
	}
	slices.SortStableFunc(fs, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	if more := len(fs) - maxFaults; more > 0 {
		fs = append(fs[:maxFaults:maxFaults], Fault{fs[maxFaults].Line, fs[maxFaults].Column, fmt.Sprintf("and %d more faults", more)})
	}
	return fs
}
