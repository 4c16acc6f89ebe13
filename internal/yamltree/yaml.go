package yamltree

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

const (
	MaxBytes  = 16 << 20 // of a text
	maxValues = 2 << 20  // in it, so that none takes gigabytes
	maxDepth  = 64       // of lists and maps in it
	end       = "..."    // the last line of YAML: a text that was cut off is a fault, and no shorter document
)

// whole adds a fault of the text as a whole, at a byte of it.
func (r *Reader) whole(text []byte, at int, format string, args ...any) {
	r.At(first.behind(text[:at]), format, args...)
}

// check finds what is wrong with a text, also without blanks at its end, before it is parsed. The order matters: a
// large text is told before anything looks at all of it, and only the first fault is told, since the others follow from
// it.
func (r *Reader) check(text, trimmed []byte, begin int) {
	switch {
	case len(text) > MaxBytes:
		r.whole(text, 0, "the document has %d bytes, more than %d", len(text), MaxBytes)
	case begin == len(text):
		r.whole(text, 0, "the document is empty: a file that is missing or being written is not a document without "+
			"limits")
	case bytes.HasPrefix(text, []byte("\xef\xbb\xbf")): // which the parser takes for a part of the first name
		r.whole(text, 0, "the document begins with a byte order mark: save it without")
	case !utf8.Valid(text):
		r.whole(text, notUTF8(text), "this is not UTF-8")
	case text[begin] == '[':
		r.whole(text, begin, "the document is a list, not a map")
	case !r.Unended && !ended(trimmed) && !inBraces(trimmed[begin:]):
		r.whole(text, len(trimmed), "the last line is not %q: the document was cut off, or that line is missing", end)
	case values(text) > maxValues:
		r.whole(text, 0, "the document has about %d values, more than %d", values(text), maxValues)
	}
}

// notUTF8 returns where a text is not UTF-8 for the first time.
func notUTF8(text []byte) (at int) {
	for {
		char, n := utf8.DecodeRune(text[at:])
		if char == utf8.RuneError && n == 1 {
			return at
		}
		at += n
	}
}

// inBraces reports whether a text is in braces, so that it cannot have been cut off.
func inBraces(text []byte) bool { return text[0] == '{' && text[len(text)-1] == '}' }

// invisible adds a fault for the first character of YAML that no editor shows: a control character, which the parser
// refuses without a place; a break of lines that only YAML knows; or a byte order mark, which the parser takes for the
// end of a line where one is across the border of its buffer.
func (r *Reader) invisible(text []byte) {
	at := bytes.IndexFunc(text, func(char rune) bool {
		isControl := unicode.IsControl(char) && !strings.ContainsRune("\t\n\r", char)
		return isControl || strings.ContainsRune("\u2028\u2029\ufeff", char)
	})
	if at >= 0 {
		char, _ := utf8.DecodeRune(text[at:])
		r.whole(text, at, `this is an invisible character: remove it, or write it in quotes as \u%04x`, char)
	}
}

// Load reads a text as the part of YAML that cannot be mistaken, or as JSON if it is that. It returns nil after a fault
// of the text as a whole.
func (r *Reader) Load(text []byte) *yaml.Node {
	trimmed := bytes.TrimRight(text, " \t\r\n")
	begin := begin(text)
	r.check(text, trimmed, begin)
	if len(r.Faults) > 0 {
		return nil
	}
	// YAML reads some texts of JSON otherwise than JSON does.
	if text[begin] == '{' && json.Valid(text) {
		root := r.loadJSON(text)
		r.plain(root, 0, func(n *yaml.Node) *yaml.Node { return n })
		return root
	}
	r.invisible(text)
	if len(r.Faults) > 0 {
		return nil
	}
	// The parser keeps all tokens of a document that is one map in braces, which may be the key of a map. So it is
	// made the value of one.
	line := 1 + bytes.Count(text[:begin], []byte("\n"))
	shift := 0
	if text[begin] == '{' {
		const outer = "document: "
		shift = len(outer)
		text = slices.Concat(text[:begin], []byte(outer), text[begin:])
	}
	at := func(n *yaml.Node) *yaml.Node {
		if n.Line == line {
			n.Column = max(n.Column-shift, 1)
		}
		return n
	}
	// A second document would be ignored in silence, so it is looked for.
	var root, second yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err == nil {
		err = loader.Load(&root)
	}
	if err == nil {
		err = loader.Load(&second)
	}
	switch {
	case err == nil:
		r.Fault(at(&second), "this is a second document: write one")
		return nil
	case !errors.Is(err, io.EOF) || len(root.Content) != 1:
		r.syntax(trimmed, err, shift, at)
		return nil
	}
	n := root.Content[0]
	if shift > 0 {
		n = n.Content[1]
	}
	if r.Anchors {
		r.expand(n)
	}
	r.plain(n, 0, at)
	return n
}

// syntax adds a fault for an error of the parser.
func (r *Reader) syntax(text []byte, err error, shift int, at func(*yaml.Node) *yaml.Node) {
	var e *yaml.LoadError
	if !errors.As(err, &e) || e.Mark.Line == 0 {
		r.whole(text, 0, "this is not YAML")
		return
	}
	place := at(&yaml.Node{Line: e.Mark.Line, Column: e.Mark.Column})
	switch {
	case e.Stage == "composer": // which repeats the name of an anchor
		r.Fault(place, "this is not YAML: an alias has no anchor")
	case e.Mark.Index-shift >= len(text):
		r.whole(text, len(text), "this is not YAML: %s", e.Message)
	default:
		r.Fault(place, "this is not YAML: %s", e.Message)
	}
}

// values counts what begins a value, or may.
func values(text []byte) (n int) {
	// The nodes that the parser makes take some hundred bytes for a value of two. So the values are counted before it
	// runs, from above: what is in strings and comments counts, too.
	for i, char := range text {
		switch char {
		case ',', '[', '{':
			n++
		case ':', '-', '?': // with a blank behind it; otherwise it is a part of a text
			if i+1 == len(text) || text[i+1] <= ' ' {
				n++
			}
		}
	}
	return n
}

// ended reports whether the last line that is no comment ends the document. It is found from behind, as comments and
// blanks may follow it. A # in a string is no matter: such a line is not the end.
func ended(text []byte) bool {
	for {
		lastBreak := bytes.LastIndexByte(text, '\n')
		line, _, _ := bytes.Cut(text[lastBreak+1:], []byte("#"))
		line = bytes.TrimRight(line, " \t\r")
		if len(line) > 0 || lastBreak < 0 {
			return string(line) == end
		}
		text = text[:lastBreak]
	}
}

// begin returns where a text begins, behind blank lines, comments and ---; or its length if there is nothing else. The
// editor's line "# yaml-language-server" is such a comment. A text of "..." alone is empty.
func begin(text []byte) (at int) {
	for line := range bytes.Lines(text) {
		content := bytes.TrimSpace(line)
		isMark := string(content) == "---" || string(content) == end
		if len(content) > 0 && content[0] != '#' && !isMark {
			return at + bytes.IndexByte(line, content[0])
		}
		at += len(line)
	}
	return at
}

// plain finds what plain documents do not have. A node that is none has no kind afterwards, and is no further fault.
// With Anchors it comes after expand, which leaves no anchor, alias or merge key.
func (r *Reader) plain(n *yaml.Node, depth int, at func(*yaml.Node) *yaml.Node) {
	at(n)
	switch {
	case n.Kind == yaml.AliasNode:
		r.Fault(n, "aliases are not allowed: write what it stands for")
		n.Kind = 0
	case n.Anchor != "":
		r.Fault(n, "anchors are not allowed")
	case n.Style&yaml.TaggedStyle != 0:
		r.Fault(n, "tags are not allowed")
	case n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value == "<<":
		r.Fault(n, "merge keys are not allowed")
	case depth == maxDepth && len(n.Content) > 0:
		r.Fault(n, "this is nested deeper than %d levels", depth)
		n.Kind = 0
		n.Content = nil
	}
	for _, node := range n.Content {
		r.plain(node, depth+1, at)
	}
}

// kinds are the names of tags, for people.
var kinds = map[string]string{
	"!!map": "a map", "!!seq": "a list", "!!str": "a string", "!!int": "a number", "!!float": "a number",
	"!!bool": "a boolean", "!!null": "null", "!!timestamp": "a time",
}

// Kind says what a node is, for people. What has another tag, as a merge key has, is called a string.
func Kind(n *yaml.Node) string { return cmp.Or(kinds[n.ShortTag()], "a string") }

// Is reports whether a node is a map, a list or a string as it should be. It is otherwise a fault of what it stands
// for, if it is there.
func (r *Reader) Is(n *yaml.Node, what, want string) bool {
	if n == nil || n.Kind == 0 {
		return false
	}
	got := Kind(n)
	if got == want {
		return true
	}
	hint := ""
	if want == "a string" && n.Kind == yaml.ScalarNode {
		hint = ": quote it"
	}
	r.Fault(n, "%s is %s, not %s%s", what, got, want, hint)
	return false
}

// Each calls a function for the names of a map and their values. A name that is there twice is a fault. The call is not
// made for it, nor for a name that is no string. A map that is missing or was at fault is an empty one.
func (r *Reader) Each(n *yaml.Node, what, name string, call func(name, value *yaml.Node)) {
	if !r.Is(n, what, "a map") {
		return
	}
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !r.Is(key, name, "a string") {
			continue
		}
		line := lines[key.Value]
		if line > 0 {
			r.Fault(key, "%s is there twice, here and in line %d", name, line)
			continue
		}
		lines[key.Value] = key.Line
		call(key, n.Content[i+1])
	}
}

// Fields returns the values of a map that has no other fields than these. A field that is missing is nil, which the
// other functions take for nothing.
func (r *Reader) Fields(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	fields := make(map[string]*yaml.Node, len(known))
	r.Each(n, what, "a field", func(name, value *yaml.Node) {
		if !slices.Contains(known, name.Value) {
			r.Fault(name, "%s has no such field: one of %s", what, strings.Join(known, ", "))
			return
		}
		fields[name.Value] = value
	})
	return fields
}

// Text returns a string, or "" after a fault.
func (r *Reader) Text(n *yaml.Node, what string) string {
	if !r.Is(n, what, "a string") {
		return ""
	}
	return n.Value
}

// Short returns a name in quotes, or its beginning.
func Short(name string) string {
	if len(name) > 64 {
		return fmt.Sprintf("%q...", name[:64])
	}
	return fmt.Sprintf("%q", name)
}

// expand puts what aliases stand for in their place, each with the place where it is written, and what maps are merged
// with into these maps. What is there already stays. A text in which that has too many values is at fault.
func (r *Reader) expand(n *yaml.Node) {
	left := maxValues
	r.expandWithin(n, 0, &left)
	if left < 0 {
		r.Fault(n, "with what its aliases stand for, the document has more than %d values", maxValues)
	}
}

// expandWithin expands a node that is so deep in others. What is deeper than documents may be is cut off, also if it
// has itself in it. A few lines of aliases of aliases stand for billions of values; left is how many may still come, in
// the whole text.
func (r *Reader) expandWithin(n *yaml.Node, depth int, left *int) {
	*left--
	if *left < 0 || depth > maxDepth {
		n.Kind = yaml.ScalarNode
		n.Content = nil
		return
	}
	if n.Kind == yaml.AliasNode {
		// The copy is of the node as it is written, so an alias in it is expanded in its turn.
		*n = *n.Alias
	}
	n.Anchor = ""
	n.Content = slices.Clone(n.Content)
	for i, inner := range n.Content {
		// Each alias gets nodes of its own: who walks down changes the kinds of those at fault, and their columns.
		one := *inner
		n.Content[i] = &one
		r.expandWithin(&one, depth+1, left)
	}
	if n.Kind == yaml.MappingNode {
		r.merge(n)
	}
}

// merge adds to a map what stands under its merge keys. It has been expanded, so what it is merged with has no merge
// keys any more.
func (r *Reader) merge(n *yaml.Node) {
	// What the map has itself goes before what it is merged with, and of that, what comes first.
	var own, merged []*yaml.Node
	has := make(map[string]bool) // keys
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		value := n.Content[i+1]
		switch {
		case key.Value != "<<" || key.Style != 0 || key.Kind != yaml.ScalarNode:
			own = append(own, key, value)
			has[key.Value] = true
		case value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		default:
			merged = append(merged, value)
		}
	}
	for _, from := range merged {
		if from.Kind != yaml.MappingNode {
			r.Fault(from, "what is merged is a map, or a list of maps")
			continue
		}
		for i := 0; i+1 < len(from.Content); i += 2 {
			key := from.Content[i]
			if !has[key.Value] {
				own = append(own, key, from.Content[i+1])
				has[key.Value] = true
			}
		}
	}
	n.Content = own
}
