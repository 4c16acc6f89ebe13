package limits

import (
	"fmt"
	"strings"
)

// A Fault is one mistake in a document, or a note about it. It never has the key of an override,
// nor a text that may be a key by a typing mistake. So it repeats the text of a policy only if it
// begins with an algorithm. It repeats the names of limits, plans and policies only if they look
// like names. In the Path, others have their index, counted from 0, as plans[2].
type Fault struct {
	Line, Column int    // counted from 1; 0 if there is no place. A column is a character
	Path         string // such as limits.api.plans.gold.minute; empty for the whole document
	Err          error  // the fault, and what to do instead
}

// Error returns the place and the fault.
func (f *Fault) Error() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", f.Line, f.Column)
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	return b.String() + f.Err.Error()
}

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }

// Faults are all mistakes in a document, in the order of their places. There are at most 100, and
// then one with their number.
type Faults []*Fault

// Error returns the faults, a line each.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults, for [errors.Is] and [errors.As].
func (fs Faults) Unwrap() []error {
	all := make([]error, len(fs))
	for i, f := range fs {
		all[i] = f
	}
	return all
}
