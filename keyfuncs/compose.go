package keyfuncs

import (
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/headgate/headgate/internal/carried"
)

// errEmptyKey reports a Func from outside this package that broke its contract.
var errEmptyKey = errors.New("headgate: keyfuncs: a function returned an empty key without an error")

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
	fns = members("All", fns)
	return composed(fns, func(r *http.Request) (string, error) {
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
	})
}

// First charges the key of the first given function that does not return [ErrAbsent]. For example,
// First(Context(userKey{}), RemoteAddr()) charges the user, or the address of clients that are not
// signed in. Any other error is returned at once. So a client cannot choose the charged key by
// sending a malformed value. If all functions return ErrAbsent, the last error is returned.
//
// The key begins with the index of the function that returned it, such as "1:203.0.113.7". So a
// user named "203.0.113.7" cannot exhaust the limit of that address. Changing the order of the
// functions changes the keys.
//
// First is only as strict as its most generous function, because a client can omit or forge its
// fields.
//
// First panics if it is given no function or a nil one.
func First(fns ...Func) Func {
	fns = members("First", fns)
	return composed(fns, func(r *http.Request) (string, error) {
		var last error
		for i, fn := range fns {
			key, err := call(fn, r)
			if err == nil {
				return strconv.Itoa(i) + ":" + key, nil
			}
			if !errors.Is(err, ErrAbsent) {
				return "", err
			}
			last = err
		}
		return "", last
	})
}

// composed returns fn, which calls the others, marked as they are.
func composed(of []Func, fn Func) Func {
	switch {
	case slices.ContainsFunc(of, func(fn Func) bool { return carried.IsRequired(fn) }):
		return carried.Required(Func(func(r *http.Request) (string, error) { return fn(r) }))
	case !slices.ContainsFunc(of, func(fn Func) bool { return !carried.IsUnused(fn) }):
		return carried.Unused(Func(func(r *http.Request) (string, error) { return fn(r) }))
	}
	return fn
}

// members returns a copy of fns, because the caller may change fns later.
func members(name string, fns []Func) []Func {
	if len(fns) == 0 {
		panic("headgate: keyfuncs: " + name + ": no function")
	}
	for i, fn := range fns {
		if fn == nil {
			panic("headgate: keyfuncs: " + name + ": function " + strconv.Itoa(i) + " is nil")
		}
	}
	return slices.Clone(fns)
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
