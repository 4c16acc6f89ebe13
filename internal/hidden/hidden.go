// Package hidden keeps keys and secrets out of printed values.
//
// Package fmt calls no methods of values in unexported fields, but prints them by reflection. So a
// method that hides is enough for an exported field, and for nothing below another field. There, a
// secret must be a [Text]. For a pointer below another value, fmt prints the address. If the verb
// is none for pointers, such as %s, it prints the target instead, but nothing behind a second
// pointer.
package hidden

import (
	"fmt"
	"unsafe"
)

// Mark is printed in the place of hidden values.
const Mark = "(hidden)"

// A Text is a string that is printed as an address and a length, however deep it is in another
// value. It takes no allocation. The zero Text is empty. It is safe for concurrent use.
type Text struct {
	first  *byte
	length int
}

// Of returns the Text of a string.
func Of(s string) Text { return Text{unsafe.StringData(s), len(s)} }

// Reveal returns the string.
func (t Text) Reveal() string { return unsafe.String(t.first, t.length) }

// Print is for [fmt.Formatter]: it prints what stands for a value as the verb and the flags say.
// The type of what it prints has no Format method of its own.
func Print(s fmt.State, verb rune, v any) { _, _ = fmt.Fprintf(s, fmt.FormatString(s, verb), v) }
