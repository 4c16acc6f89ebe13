package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxShown is how much is printed of one value, in characters.
const maxShown = 1000

// inURL finds what may be the password of a URL: all up to the last @ that follows, and otherwise
// the rest of the word.
var inURL = regexp.MustCompile(`://(?:.*@|\S*)`)

// visible returns a text from outside, such as Redis, a document or the command line, as a
// terminal may get it: with escapes for what is no printable character, such as control
// characters, those that change the direction of writing, and bytes that are not UTF-8; not
// longer than maxShown; and without the password of a URL.
func visible(text string) string {
	text = inURL.ReplaceAllStringFunc(text, func(found string) string {
		if found == "://user:password@" { // of an error about the form
			return found
		}
		return "://..."
	})
	shown := 0 // characters, and not bytes, of which a part could be cut off
	for i := range text {
		if shown == maxShown {
			return escaped(text[:i], "") + "..."
		}
		shown++
	}
	return escaped(text, "")
}

// escaped returns a text with escapes for what is no printable character, but for those that are kept.
func escaped(text, kept string) string {
	var b strings.Builder
	// Not by range, which cannot tell bytes that are not UTF-8 from the character that stands for such bytes.
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case strconv.IsPrint(r) || strings.ContainsRune(kept, r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

// An output remembers whether all that was written to it has arrived: a document that a full disk has cut off is none.
type output struct {
	writer io.Writer
	err    error // the first
}

// Write implements [io.Writer]. The error is told at the end, by run: most texts go through Fprintf, where nobody reads
// it.
func (o *output) Write(text []byte) (int, error) {
	n, err := o.writer.Write(text)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// isTerminal reports whether people see it, and control characters may do harm.
func (o *output) isTerminal() bool {
	file, ok := o.writer.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// visibleJSON returns an encoded text of JSON with escapes for what is no printable character. It
// stands for the same.
func visibleJSON(text string) string {
	var b strings.Builder
	// What must be escaped is in strings only, where an escape stands for the same character. Line breaks are between
	// them: Indent has made those.
	for _, r := range text {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff: // JSON has escapes of 16 bits: two of them make one character
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// fprintf is fmt.Fprintf that makes texts visible. The format is a text of this program, and is not changed.
func fprintf(w io.Writer, format string, args []any) {
	// By their types, so that no call can forget it.
	shown := make([]any, len(args))
	for i, arg := range args {
		switch value := arg.(type) {
		case string:
			arg = visible(value)
		case error, fmt.Stringer:
			arg = visible(fmt.Sprint(value))
		}
		shown[i] = arg // numbers are as they are
	}
	fmt.Fprintf(w, format, shown...)
}
