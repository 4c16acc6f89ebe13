package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headgate/headgate/internal/yamltree"
)

// A body is the JSON of a request, read once from front to back by who knows what comes. That is faster than package
// json, which would also take names in other case; names that are there twice, of which the last counts; and halves of
// characters, so that different keys become one. What is not valid is said with its place, and without any text of the
// request, because that has keys.
//
// The functions that read a value leave a fault behind, instead of returning an error each: the first counts, and
// nothing is read after it.
type body struct {
	text     []byte
	position int
	fault    string // the first; nothing is read after it
	place    string // of the fault, such as .charges[2].key
}

// decode reads the body of a request, of that many bytes at most, by a function.
func decode(w http.ResponseWriter, r *http.Request, maxBytes int64, read func(*body)) error {
	// Browsers send other types to any site without asking first, so the type keeps their pages out. Nearly all
	// programs send it without parameters, and then it need not be parsed.
	kind := r.Header.Get("Content-Type")
	if kind != "application/json" {
		kind, _, _ = mime.ParseMediaType(kind)
	}
	if kind != "application/json" {
		return &callError{http.StatusUnsupportedMediaType, "the Content-Type is not application/json"}
	}
	text, err := readAll(w, r, maxBytes)
	if err != nil {
		return err
	}
	return parse(text, read)
}

// readAll returns the body of a request.
func readAll(w http.ResponseWriter, r *http.Request, maxBytes int64) ([]byte, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		detail := fmt.Sprintf("the body has more than %d bytes", maxBytes)
		return nil, &callError{http.StatusRequestEntityTooLarge, detail}
	case err != nil:
		return nil, bad("the body does not arrive")
	}
	return text, nil
}

// parse reads a text by a function.
func parse(text []byte, read func(*body)) error {
	// What is not UTF-8 would be replaced by one character, so that different keys became one.
	if !utf8.Valid(text) {
		return bad("the body is not UTF-8")
	}
	asked := &body{text: text}
	read(asked)
	asked.peek() // behind white space, nothing may be left
	if asked.fault == "" && asked.position < len(text) {
		asked.fail("has something behind its end")
	}
	if asked.fault == "" {
		return nil
	}
	return bad(cmp.Or(strings.TrimPrefix(asked.place, "."), "the body") + " " + asked.fault)
}

// fail says what is not valid, unless something before was not.
func (b *body) fail(fault string) {
	if b.fault == "" {
		b.fault = fault
	}
}

// peek skips white space, and returns the byte that is next, or 0 at the end. A zero that is in the text is valid
// nowhere outside of a string, so nobody needs to tell the two apart.
func (b *body) peek() byte {
	for ; b.position < len(b.text); b.position++ {
		switch b.text[b.position] {
		case ' ', '\t', '\r', '\n':
		default:
			return b.text[b.position]
		}
	}
	return 0
}

// take skips a byte, if it is next.
func (b *body) take(wanted byte) bool {
	if b.peek() != wanted {
		return false
	}
	b.position++
	return true
}

// word skips a word, if it is next.
func (b *body) word(wanted string) bool {
	b.peek()
	if !bytes.HasPrefix(b.text[b.position:], []byte(wanted)) {
		return false
	}
	b.position += len(wanted)
	return true
}

// object yields the names of the members of an object, which has each once at most. Who ranges reads their values.
func (b *body) object(names ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var seen uint // a bit for each name
		for range b.items('{', '}', "is not an object") {
			// A name is compared without its escapes: one that is written in two ways is there twice.
			index := slices.Index(names, b.string())
			switch {
			case b.fault != "":
				return
			case index < 0:
				b.fail("has an unknown field: it may have " + strings.Join(names, ", "))
				return
			case seen>>index&1 == 1:
				b.fail("has " + names[index] + " twice")
				return
			case !b.take(':'):
				b.fail("has no colon after " + names[index])
				return
			}
			seen |= 1 << index
			// The places of a fault are put together from the inside out, so that a body without one needs none.
			if !yield(names[index]) {
				return
			}
			if b.fault != "" {
				b.place = "." + names[index] + b.place
			}
		}
	}
}

// list yields the indexes of the values of a list. Who ranges reads them.
func (b *body) list() iter.Seq[int] {
	return func(yield func(int) bool) {
		for index := range b.items('[', ']', "is not a list") {
			if !yield(index) {
				return
			}
			if b.fault != "" {
				b.place = "[" + strconv.Itoa(index) + "]" + b.place
			}
		}
	}
}

// items yields as often as there are items between two brackets. It ends after a fault, so that who ranges need not
// look for one.
func (b *body) items(begin, end byte, otherwise string) iter.Seq[int] {
	return func(yield func(int) bool) {
		if !b.take(begin) {
			b.fail(otherwise)
			return
		}
		if b.take(end) {
			return
		}
		for index := 0; yield(index) && b.fault == "" && !b.take(end); index++ {
			if !b.take(',') {
				b.fail("ends before it is whole, or has no comma between two values")
				return
			}
		}
	}
}

// string reads a string.
func (b *body) string() string {
	if !b.take('"') {
		b.fail("is not a string")
		return ""
	}
	// Whatever is behind a backslash belongs to it, also a quote. Whether it is an escape is seen later.
	begin := b.position
	escaped := false
	for ; b.position < len(b.text) && b.text[b.position] != '"'; b.position++ {
		if b.text[b.position] == '\\' {
			escaped = true
			b.position++
		}
	}
	if b.position >= len(b.text) {
		b.fail("ends before it is whole")
		return ""
	}
	b.position++
	// Most strings are what they look like. Package json knows the rest, but for halves of characters, which it
	// replaces.
	written := b.text[begin-1 : b.position]
	if !escaped && slices.IndexFunc(written, func(c byte) bool { return c < ' ' }) < 0 {
		return string(b.text[begin : b.position-1])
	}
	var value string
	err := json.Unmarshal(written, &value)
	if err != nil || yamltree.HasHalfCharacter(written) {
		b.fail("has an escape that is none, half a pair of them, or a control character that is not escaped")
	}
	return value
}

// whole reads a whole number, without a fraction or an exponent.
func (b *body) whole() int64 {
	b.peek()
	begin := b.position
	for b.position < len(b.text) && strings.IndexByte("0123456789+-.eE", b.text[b.position]) >= 0 {
		b.position++
	}
	written := string(b.text[begin:b.position])
	// A number that would be written in another way, such as 01, -0 or 1e3, is no unit, or is an error of the client.
	number, err := strconv.ParseInt(written, 10, 64)
	if err != nil || strconv.FormatInt(number, 10) != written {
		b.fail("is not a whole number of 64 bits")
	}
	return number
}

// boolean reads true or false.
func (b *body) boolean() bool {
	value := b.word("true")
	if !value && !b.word("false") {
		b.fail("is neither true nor false")
	}
	return value
}
