// Package fault wraps errors so that their texts begin with "headgate: " once, and has those of several packages.
package fault

import (
	"errors"
	"strings"
)

// Errors that several packages return, and package core exports.
var (
	ErrUnavailable = errors.New("headgate: the store is not available")
	ErrClosed      = errors.New("headgate: the slots are closed")
)

const prefix = "headgate: "

// Wrap returns an error about a thing that has failed, such as "limits". Its text is formatted when
// it is used, as clients can cause some errors as often as they like.
func Wrap(what string, err error) error { return &wrapped{what, err} }

type wrapped struct {
	what string
	err  error
}

func (w *wrapped) Error() string { return Text(w.what, w.err) }

func (w *wrapped) Unwrap() error { return w.err }

// Text returns the text of what Wrap returns.
func Text(what string, err error) string {
	inner := strings.TrimPrefix(err.Error(), prefix)
	inner = strings.TrimPrefix(inner, what+": ")
	return prefix + what + ": " + inner
}
