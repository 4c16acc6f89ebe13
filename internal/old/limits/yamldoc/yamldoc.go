// Package yamldoc reads documents of headgated in the part of YAML that cannot be mistaken. The last line is
// "...", so that a document which was cut off is a fault, not a shorter document. There are no anchors, aliases, tags
// or merge keys, and no second document. Strings that YAML takes for a number, a boolean or null, also in old versions,
// are quoted. A document that begins with { is JSON.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/headgate/headgate/internal/old/limits"
)

// end is the last line of a document.
const end = "..."

// Decode reads YAML 1.2, and JSON.
func Decode(text []byte) (limits.Node, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return limits.DecodeJSON(text)
	}
	if err := check(text); err != nil {
		return limits.Node{}, err
	}
	root, err := parse(text)
	if err != nil {
		return limits.Node{}, err
	}
	c := converter{}
	n := c.node(root, 0)
	if len(c.faults) > 0 {
		return limits.Node{}, c.faults
	}
	return n, nil
}

// check looks for the end of the document, and for so many values that they would take too
// much memory.
func check(text []byte) error {
	values := 1
	for i, c := range text {
		switch c {
		case ',', '[', '{':
			values++
		case ':', '-', '?':
			if i+1 == len(text) || strings.IndexByte(" \t\r\n", text[i+1]) >= 0 {
				values++
			}
		}
	}
	if values > limits.MaxNodes {
		return &limits.Fault{Err: fmt.Errorf("there are more than %d values", limits.MaxNodes)}
	}
	lines := strings.Split(strings.TrimRight(string(text), " \t\r\n"), "\n")
	for i, line := range slices.Backward(lines) {
		switch {
		case isEnd(line):
			if !slices.ContainsFunc(lines[:i], func(s string) bool { return !empty(s) }) {
				return &limits.Fault{Err: errors.New("the document is empty: a file that is missing or being written is not a document without limits")}
			}
			return nil
		case empty(line):
		default:
			return &limits.Fault{Line: i + 1, Column: 1, Err: fmt.Errorf("the last line is not %q: the document ends before it is whole, or that line is missing", end)}
		}
	}
	return nil
}

// isEnd reports whether a line ends the document. A comment may follow.
func isEnd(line string) bool {
	rest, ok := strings.CutPrefix(line, end)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\r") && empty(rest))
}

// empty reports whether there is nothing but a comment in a line.
func empty(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || line[0] == '#'
}

// place finds the line in an error of package yaml.
var place = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// parse returns the only document. Package yaml resolves no alias for that.
func parse(text []byte) (root *yaml.Node, err error) {
	defer func() { // so that a fault of the parser is one of the document
		if v := recover(); v != nil {
			err = &limits.Fault{Err: errors.New("it is not YAML")}
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(text))
	var first, second yaml.Node
	err = d.Decode(&first)
	if err == nil {
		switch err = d.Decode(&second); {
		case err == nil:
			return nil, &limits.Fault{Line: second.Line, Column: second.Column, Err: errors.New("there is a second document: write one")}
		case errors.Is(err, io.EOF):
			err = nil
		}
	}
	if err != nil {
		if strings.Contains(err.Error(), "anchor") { // whose name package yaml repeats: it may be a key
			err = errors.New("aliases are not allowed: write what it stands for")
		}
		f := &limits.Fault{Err: errors.New(strings.TrimPrefix(err.Error(), "yaml: "))}
		if m := place.FindStringSubmatch(err.Error()); m != nil {
			f.Line, _ = strconv.Atoi(m[1])
			f.Column, f.Err = 1, errors.New(err.Error()[len(m[0]):])
			if strings.HasPrefix(f.Err.Error(), "did not find expected") {
				f.Line++ // the parser counts from 0, the scanner from 1
			}
		}
		return nil, f
	}
	if len(first.Content) != 1 {
		return nil, &limits.Fault{Err: errors.New("it is not YAML")}
	}
	return first.Content[0], nil
}

// A converter makes nodes of those of package yaml.
type converter struct {
	faults limits.Faults
}

// fault adds a fault, unless there are many.
func (c *converter) fault(y *yaml.Node, format string, args ...any) {
	if len(c.faults) < 100 {
		c.faults = append(c.faults, &limits.Fault{Line: y.Line, Column: y.Column, Err: fmt.Errorf(format, args...)})
	}
}

func (c *converter) node(y *yaml.Node, depth int) limits.Node {
	n := limits.Node{Line: y.Line, Column: y.Column}
	switch {
	case y.Kind == yaml.AliasNode:
		c.fault(y, "aliases are not allowed: write what it stands for")
		return n
	case y.Anchor != "":
		c.fault(y, "anchors are not allowed")
	case y.Style&yaml.TaggedStyle != 0:
		c.fault(y, "tags are not allowed")
	}
	if y.Kind == yaml.ScalarNode {
		scalar(y, &n)
		if n.Kind == limits.String && y.Style == 0 && n.Text == "<<" {
			c.fault(y, "merge keys are not allowed")
		}
		return n
	}
	if depth == limits.MaxDepth {
		c.fault(y, "it is nested deeper than %d levels", limits.MaxDepth)
		return n
	}
	if y.Kind == yaml.SequenceNode {
		n.Kind = limits.List
		for _, v := range y.Content {
			n.Values = append(n.Values, c.node(v, depth+1))
		}
		return n
	}
	n.Kind = limits.Map
	for i := 0; i+1 < len(y.Content); i += 2 {
		n.Keys = append(n.Keys, c.node(y.Content[i], depth+1))
		n.Values = append(n.Values, c.node(y.Content[i+1], depth+1))
	}
	return n
}

// words are booleans in YAML 1.1.
const words = " y n yes no on off "

// scalar sets what the node of a scalar is.
func scalar(y *yaml.Node, n *limits.Node) {
	n.Kind, n.Text = limits.String, y.Value
	switch {
	case y.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return
	case y.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		return
	}
	switch y.ShortTag() {
	case "!!int", "!!float":
		n.Kind = limits.Number
	case "!!bool":
		n.Kind = limits.Bool
	case "!!null":
		n.Kind = limits.Null
	default:
		if strings.Contains(words, " "+strings.ToLower(y.Value)+" ") {
			n.Kind = limits.Bool
		}
	}
}
