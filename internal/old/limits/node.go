package limits

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/hidden"
)

// The bounds of every document, which are checked before it is decoded or while it is.
const (
	// MaxBytes is the size of the largest document.
	MaxBytes = 16 << 20
	// MaxDepth is how deep lists and maps may be nested. Limits need 6; each level of the descriptors in a document of
	// package headgated needs 2.
	MaxDepth = 64
	// MaxNodes is the largest number of values in a document, keys included.
	MaxNodes = 2 << 20
)

// A Kind is the kind of a Node.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Map
)

// String returns the kind as errors name it.
func (k Kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "a map"}[k]
}

// A Node is a value of a document and where it stands.
type Node struct {
	Kind Kind

	// Line and Column are where the value begins, counted from 1. A column is a character.
	Line, Column int

	// Text is the text of a scalar: the characters of a string, or a number as it is
	// written.
	Text string `json:"-"`

	// Values are the elements of a List or the values of a Map, in order. Keys are the keys of a
	// Map, and strings.
	Keys, Values []Node
}

// Format implements [fmt.Formatter]: it prints the node without the texts, which may be keys.
func (n Node) Format(s fmt.State, verb rune) {
	type plain Node
	n.Text = hidden.Mark
	hidden.Print(s, verb, plain(n))
}

// Fields returns the values of a Map by their keys, which must be among the known ones. It is for a
// program whose document has limits among other things. Path says in faults where the map stands.
// It is a fault if the node is no map, or a key is unknown or there twice. The values of such keys
// are missing.
func (n *Node) Fields(path string, known ...string) (map[string]*Node, Faults) {
	fields, lines, faults := make(map[string]*Node, len(known)), make(map[string]int), Faults(nil)
	fault := func(at *Node, format string, args ...any) {
		faults = append(faults, &Fault{at.Line, at.Column, path, fmt.Errorf(format, args...)})
	}
	if n.Kind != Map {
		fault(n, "it is %v, not a map", n.Kind)
		return fields, faults
	}
	for i := range n.Keys {
		k := &n.Keys[i]
		switch line, twice := lines[k.Text]; {
		case twice:
			fault(k, "the name is there twice, here and in line %d", line)
		case k.Kind != String:
			fault(k, "a name is %v, not a string: quote it", k.Kind)
		case !slices.Contains(known, k.Text):
			fault(k, "unknown field: one of %s", strings.Join(known, ", "))
		default:
			fields[k.Text] = &n.Values[i]
		}
		lines[k.Text] = k.Line
	}
	return fields, faults
}
