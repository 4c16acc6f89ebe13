package keyfuncs

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
)

// errEmptyKey reports a Func from outside this package that broke its contract.
var errEmptyKey = unusable("a function returned an empty key without an error")

// All charges the combination of the keys of the given functions: requests share a limit
// if all their keys are equal. All(Route(), RemoteAddr()) limits each client on each
// route. If functions return errors, the first one is returned.
//
// The combined key consists of the keys as netstrings: the length in bytes, a colon, the key, a
// comma. An example is "5:GET /,11:203.0.113.7,". So different combinations never have the same
// key, whatever bytes they contain.
//
// All panics if it is given no function or a nil one.
func All(fns ...Func) Func {
	fns = slices.Clone(fns) // the caller may change them later
	if len(fns) == 0 {
		panic("headgate: keyfuncs: All: no function")
	}
	for _, fn := range fns {
		require("All", fn)
	}
	return func(r *http.Request) (string, error) {
		var room [128]byte // most keys fit, and are then one allocation
		joined := room[:0]
		for _, fn := range fns {
			key, err := call(fn, r)
			if err != nil {
				return "", err
			}
			joined = strconv.AppendInt(joined, int64(len(key)), 10)
			joined = append(joined, ':')
			joined = append(joined, key...)
			joined = append(joined, ',')
		}
		return string(joined), nil
	}
}

// A Tagged is a function of [First], and the word that its keys begin with. Make one with [Tag].
type Tagged struct {
	name string
	f    Func
}

// Tag returns a function for [First], whose keys begin with the name and a colon.
//
// The name is a token (RFC 9110, section 5.6.2), such as a word of letters, digits and hyphens. So it has
// no colon. Tag panics if it is not, or if key is nil.
func Tag(name string, key Func) Tagged {
	if !isToken(name) {
		panic("headgate: keyfuncs: Tag: not a word without spaces and colons: " + strconv.Quote(name))
	}
	require("Tag", key)
	return Tagged{name, key}
}

// First charges the key of the first given function that does not return [ErrAbsent]:
//
//	keyfuncs.First(keyfuncs.Tag("user", keyfuncs.Context(userKey{})), keyfuncs.Tag("ip", keyfuncs.RemoteAddr()))
//
// charges the user, or the address of clients that are not signed in. The keys are "user:anna" and
// "ip:203.0.113.7". So a user who is named "203.0.113.7" cannot exhaust the limit of that address.
//
// Any other error than ErrAbsent is returned at once. So a client cannot choose the charged key by
// sending a malformed value. If all functions return ErrAbsent, the last error is returned.
//
// First is only as strict as its most generous function, because a client can omit or forge its
// fields.
//
// First panics if it is given no function, a zero Tagged, or a name twice.
func First(fs ...Tagged) Func {
	fs = slices.Clone(fs) // the caller may change them later
	if len(fs) == 0 {
		panic("headgate: keyfuncs: First: no function")
	}
	for i, tagged := range fs {
		if tagged.f == nil {
			panic("headgate: keyfuncs: First: a Tagged that is not from Tag")
		}
		if slices.ContainsFunc(fs[:i], func(other Tagged) bool { return other.name == tagged.name }) {
			panic("headgate: keyfuncs: First: the name " + strconv.Quote(tagged.name) + " twice")
		}
	}
	return func(r *http.Request) (string, error) {
		var last error
		for _, tagged := range fs {
			key, err := call(tagged.f, r)
			if err == nil {
				return tagged.name + ":" + key, nil
			}
			if !errors.Is(err, ErrAbsent) {
				return "", err
			}
			last = err
		}
		return "", last
	}
}

// Has returns a function that reports whether a request has the text that key returns. It is for the Skip of
// rules, as is [Lacks]:
//
//	{Limiter: newcomers, Key: address, Skip: keyfuncs.Has(student)} // a rule for all but students
//
// Both are false after any other error than [ErrAbsent]. So the rule applies, and its Key may refuse the
// request. Has panics if key is nil.
func Has(key Func) func(*http.Request) bool {
	require("Has", key)
	return func(r *http.Request) bool {
		_, err := call(key, r)
		return err == nil
	}
}

// Lacks returns a function that reports whether key returns [ErrAbsent] for a request: see [Has].
//
//	{Limiter: students, Key: student, Skip: keyfuncs.Lacks(student)} // a rule for students
//
// Lacks panics if key is nil.
func Lacks(key Func) func(*http.Request) bool {
	require("Lacks", key)
	return func(r *http.Request) bool {
		_, err := call(key, r)
		return errors.Is(err, ErrAbsent)
	}
}

func call(fn Func, r *http.Request) (string, error) {
	key, err := fn(r)
	if err != nil {
		return "", err
	}
	if key == "" {
		return "", errEmptyKey
	}
	return key, nil
}
