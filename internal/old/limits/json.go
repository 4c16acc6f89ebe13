package limits

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// DecodeJSON reads JSON (RFC 8259).
func DecodeJSON(text []byte) (Node, error) {
	p := parser{text: text, line: 1}
	n, err := p.document()
	if err != nil {
		return Node{}, &Fault{Line: p.line, Column: p.column(p.at), Err: err}
	}
	return n, nil
}

// A parser reads a text of JSON from front to back.
type parser struct {
	text  []byte
	at    int
	line  int
	start int // of the line
	extra int // bytes of the line, up to seen, that begin no character
	seen  int
	nodes int
}

// column returns the column of a byte of the line. A line is counted once, however many of
// its columns are asked for.
func (p *parser) column(at int) int {
	if p.seen < p.start {
		p.seen, p.extra = p.start, 0
	}
	for ; p.seen < at && p.seen < len(p.text); p.seen++ {
		if !utf8.RuneStart(p.text[p.seen]) {
			p.extra++
		}
	}
	return at - p.start - p.extra + 1
}

func (p *parser) document() (Node, error) {
	p.space()
	if p.at == len(p.text) {
		return Node{}, errors.New("the document is empty")
	}
	n, err := p.value(0)
	if err != nil {
		return n, err
	}
	p.space()
	if p.at < len(p.text) {
		return n, fmt.Errorf("there is %s after the end of the document", p.next())
	}
	return n, nil
}

// space skips white space.
func (p *parser) space() {
	for ; p.at < len(p.text); p.at++ {
		switch p.text[p.at] {
		case '\n':
			p.line++
			p.start = p.at + 1
		case ' ', '\t', '\r':
		default:
			return
		}
	}
}

// next describes the next character, for errors.
func (p *parser) next() string {
	if p.at >= len(p.text) {
		return "the end"
	}
	r, n := utf8.DecodeRune(p.text[p.at:])
	if r == utf8.RuneError && n <= 1 {
		return "a byte that is not UTF-8"
	}
	return strconv.QuoteRune(r)
}

// take skips the byte, if it is next.
func (p *parser) take(c byte) bool {
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (Node, error) {
	n := Node{Line: p.line, Column: p.column(p.at)}
	if p.nodes++; p.nodes > MaxNodes {
		return n, fmt.Errorf("there are more than %d values", MaxNodes)
	}
	if p.at == len(p.text) {
		return n, errors.New("the document ends before it is whole")
	}
	switch c := p.text[p.at]; {
	case c == '{' || c == '[':
		if depth == MaxDepth {
			return n, fmt.Errorf("it is nested deeper than %d levels", MaxDepth)
		}
		p.at++
		if c == '{' {
			n.Kind = Map
			return n, p.members(&n, '}', depth)
		}
		n.Kind = List
		return n, p.members(&n, ']', depth)
	case c == '"':
		return n, p.quoted(&n)
	case c == '-' || '0' <= c && c <= '9':
		return n, p.number(&n)
	}
	for i, word := range [...]string{"null", "true", "false"} {
		if bytes.HasPrefix(p.text[p.at:], []byte(word)) {
			n.Kind, n.Text = [...]Kind{Null, Bool, Bool}[i], word
			p.at += len(word)
			return n, nil
		}
	}
	return n, fmt.Errorf("%s begins no value of JSON", p.next())
}

// members reads the values of a list or a map, up to its end.
func (p *parser) members(n *Node, end byte, depth int) error {
	p.space()
	if p.take(end) {
		return nil
	}
	for {
		if n.Kind == Map {
			if p.at == len(p.text) {
				return errors.New("the document ends before it is whole")
			}
			if p.text[p.at] != '"' {
				return fmt.Errorf("a key in quotes is missing before %s", p.next())
			}
			k, err := p.value(depth)
			if err != nil {
				return err
			}
			n.Keys = append(n.Keys, k)
			if p.space(); !p.take(':') {
				return p.missing("':' after the key")
			}
			p.space()
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return err
		}
		n.Values = append(n.Values, v)
		p.space()
		if p.take(end) {
			return nil
		}
		if !p.take(',') {
			return p.missing("',' or '" + string(end) + "'")
		}
		p.space()
	}
}

func (p *parser) missing(what string) error {
	if p.at == len(p.text) {
		return errors.New("the document ends before it is whole")
	}
	return fmt.Errorf("%s is missing before %s", what, p.next())
}

// number reads a number and keeps it as it is written.
func (p *parser) number(n *Node) error {
	start := p.at
	digits := func() bool {
		from := p.at
		for p.at < len(p.text) && '0' <= p.text[p.at] && p.text[p.at] <= '9' {
			p.at++
		}
		return p.at > from
	}
	p.take('-')
	ok := p.take('0') || digits()
	if ok && p.take('.') {
		ok = digits()
	}
	if ok && (p.take('e') || p.take('E')) {
		_ = p.take('+') || p.take('-')
		ok = digits()
	}
	if !ok {
		return fmt.Errorf("a digit is missing before %s", p.next())
	}
	n.Kind, n.Text = Number, string(p.text[start:p.at])
	return nil
}

// quoted reads a string.
func (p *parser) quoted(n *Node) error {
	n.Kind = String
	p.at++
	from := p.at
	var b []byte // what precedes from, if there was an escape
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			s := p.text[from:p.at]
			p.at++
			if !utf8.Valid(s) {
				return errors.New("a string is not UTF-8")
			}
			if b == nil {
				n.Text = string(s)
			} else {
				n.Text = string(append(b, s...))
			}
			return nil
		case c < ' ':
			return fmt.Errorf("a string has %s: write an escape", p.next())
		case c == '\\':
			if !utf8.Valid(p.text[from:p.at]) {
				return errors.New("a string is not UTF-8")
			}
			b = append(b, p.text[from:p.at]...)
			r, err := p.escape()
			if err != nil {
				return err
			}
			b = utf8.AppendRune(b, r)
			from = p.at
		default:
			p.at++
		}
	}
	return errors.New("the document ends before it is whole")
}

// escape reads an escape of a string.
func (p *parser) escape() (rune, error) {
	if p.at+1 == len(p.text) {
		p.at++
		return 0, errors.New("the document ends before it is whole")
	}
	c := p.text[p.at+1]
	if c == 'u' {
		r, ok := p.unit()
		if ok && utf16.IsSurrogate(r) {
			low, isUnit := p.unit()
			r = utf16.DecodeRune(r, low)
			ok = isUnit && r != utf8.RuneError
		}
		if !ok {
			return 0, errors.New("a string has a \\u that is not followed by the four digits of a character, or of half a pair")
		}
		return r, nil
	}
	for i := range `"\/bfnrt` {
		if `"\/bfnrt`[i] == c {
			p.at += 2
			return rune("\"\\/\b\f\n\r\t"[i]), nil
		}
	}
	p.at++
	return 0, fmt.Errorf("a string has a backslash before %s", p.next())
}

// unit reads a \u and its four digits.
func (p *parser) unit() (rune, bool) {
	const length = len(`\u0000`)
	if len(p.text)-p.at < length || p.text[p.at] != '\\' || p.text[p.at+1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(p.text[p.at+2:p.at+length]), 16, 16)
	if err != nil {
		return 0, false
	}
	p.at += length
	return rune(r), true
}
