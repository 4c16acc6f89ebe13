package yamltree

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// A jsonText is a valid text of JSON that is made into nodes, as RFC 8259 has it. YAML would take escapes of halves of
// a character for faults, and some characters in strings for the ends of lines.
type jsonText struct {
	reader  *Reader
	text    []byte
	decoder *json.Decoder

	place   Place
	counted int // bytes of the text before the place
}

// loadJSON returns the nodes of a valid text of JSON.
func (r *Reader) loadJSON(text []byte) *yaml.Node {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	j := &jsonText{reader: r, text: text, decoder: decoder, place: first}
	return j.value()
}

// value returns the node of the next value, and of all values in it. It calls itself for what is inside: package json
// finds no text valid that is nested deeper than 10,000 levels, and plain cuts off what is deeper than documents may
// be.
func (j *jsonText) value() *yaml.Node {
	node := j.next()
	begin := j.counted
	token, err := j.decoder.Token()
	if err != nil {
		j.reader.Fault(node, "this is not JSON")
		return node
	}
	node.Kind = yaml.ScalarNode
	switch value := token.(type) {
	case json.Delim:
		node.Kind = yaml.SequenceNode
		if value == '{' {
			node.Kind = yaml.MappingNode
		}
		for j.decoder.More() { // of a map, a name, and then its value
			node.Content = append(node.Content, j.value())
		}
		_, _ = j.decoder.Token() // its end
	case string:
		node.Tag = "!!str"
		node.Value = value
		node.Style = yaml.DoubleQuotedStyle
		// The token has U+FFFD in the place of such an escape, which may also have been written. So the bytes are
		// looked at.
		if HasHalfCharacter(j.text[begin:j.decoder.InputOffset()]) {
			j.reader.Fault(node, "this has half of a character: "+
				`an escape such as \ud83c needs the other half behind it`)
		}
	// The number stays a text, so that 2^53+1 and 1e400 are told as they are written, and not as a float64 has them.
	case json.Number:
		node.Tag = "!!int"
		node.Value = value.String()
		if strings.ContainsAny(node.Value, ".eE") {
			node.Tag = "!!float"
		}
	case bool:
		node.Tag = "!!bool"
		node.Value = strconv.FormatBool(value)
	default:
		node.Tag = "!!null"
		node.Value = "null"
	}
	return node
}

// next returns a node at the place of the next value. Lines and columns are counted on from the value before, so each
// byte is counted once.
func (j *jsonText) next() *yaml.Node {
	// The decoder is behind the value before, so blanks and what divides values are skipped.
	begin := int(j.decoder.InputOffset())
	for bytes.IndexByte([]byte(" \t\r\n,:"), j.text[begin]) >= 0 {
		begin++
	}
	j.place = j.place.behind(j.text[j.counted:begin])
	j.counted = begin
	return &yaml.Node{Line: int(j.place.Line), Column: int(j.place.Column)}
}

// escapes are those of JSON: two that are one character, one of half of a character, which is the group, or another.
var escapes = regexp.MustCompile(`\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)`)

// HasHalfCharacter reports whether a string, as JSON has written it, has an escape of half a character without the
// other half. Package json reads U+FFFD for each, so that two keys would become the same.
func HasHalfCharacter(written []byte) bool {
	found := escapes.FindAllSubmatch(written, -1)
	return slices.ContainsFunc(found, func(one [][]byte) bool { return one[1] != nil })
}
