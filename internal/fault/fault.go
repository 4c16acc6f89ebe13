// Package fault has texts of errors: some may be logged, as they have no key, and each begins with "headgate: " once.
package fault

import "strings"

// A Keyless is an error of a key function whose text has no key, so that it can be logged. Others may have one.
type Keyless struct {
	Text string
	Kind error // that it wraps, or nil
}

func (e *Keyless) Error() string { return e.Text }
func (e *Keyless) Unwrap() error { return e.Kind }

const prefix = "headgate: "

// Text returns the text of an error about a thing that has failed, such as "limits".
func Text(what string, err error) string {
	inner := strings.TrimPrefix(err.Error(), prefix)
	inner = strings.TrimPrefix(inner, what+": ")
	return prefix + what + ": " + inner
}
