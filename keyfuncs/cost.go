package keyfuncs

import (
	"errors"
	"net/http"
)

// CostIf is a Cost for a rule of package nethttp that is for requests to which f applies:
// it returns 1 for them, and 0 for those for which f gives [ErrAbsent]. Any other error
// costs 1 too, so that the rule takes part and its Key may refuse the request.
//
// CostIf panics if f is nil.
func CostIf(f Func) func(*http.Request) int64 {
	return costs("CostIf", f, 1, 0)
}

// CostUnless is a Cost for a rule of package nethttp that is for requests to which f
// does not apply: it returns 1 for those for which f gives [ErrAbsent], and for which it
// gives any other error, and 0 for those that have a key.
//
// CostUnless panics if f is nil.
func CostUnless(f Func) func(*http.Request) int64 {
	return costs("CostUnless", f, 0, 1)
}

func costs(name string, f Func, present, absent int64) func(*http.Request) int64 {
	if f == nil {
		panic("headgate: keyfuncs: " + name + ": the function is nil")
	}
	return func(r *http.Request) int64 {
		switch _, err := call(f, r); {
		case err == nil:
			return present
		case errors.Is(err, ErrAbsent):
			return absent
		default:
			return 1
		}
	}
}
