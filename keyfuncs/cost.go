package keyfuncs

import (
	"errors"
	"net/http"

	"github.com/headgate/headgate/internal/carried"
)

// CostIf returns a Cost for a rule of package nethttp that applies to requests for which
// f has a key. It returns 1 for them, and 0 if f returns [ErrAbsent]. It also returns 1
// after any other error, so that the rule applies and its Key may refuse the request.
//
// CostIf panics if f is nil.
func CostIf(f Func) func(*http.Request) int64 {
	return costs("CostIf", f, 1, 0)
}

// CostUnless returns a Cost for a rule of package nethttp that applies to requests for
// which f has no key. It returns 1 if f returns [ErrAbsent] or any other error, and 0 if
// f returns a key.
//
// CostUnless panics if f is nil.
func CostUnless(f Func) func(*http.Request) int64 {
	return costs("CostUnless", f, 0, 1)
}

func costs(name string, f Func, present, absent int64) func(*http.Request) int64 {
	if f == nil {
		panic("headgate: keyfuncs: " + name + ": the function is nil")
	}
	cost := func(r *http.Request) int64 {
		switch _, err := call(f, r); {
		case err == nil:
			return present
		case errors.Is(err, ErrAbsent):
			return absent
		default:
			return 1
		}
	}
	if carried.IsUnused(f) {
		return carried.Unused(func(r *http.Request) int64 { return cost(r) })
	}
	return cost
}
