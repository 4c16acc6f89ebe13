package keyfuncs

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
)

// errEmptyKey reports a Func, not one of this package, that broke its contract.
var errEmptyKey = errors.New("headgate: keyfuncs: a function gave an empty key without an error")

// All charges the combination of what the given functions charge: requests share a
// limit if they agree in every one. All(Route(), RemoteAddr()) limits each client on
// each route. The first error, in order, is the result.
//
// The key is each member's key as a netstring (its length in bytes, a colon, the key,
// a comma), as "5:GET /,11:203.0.113.7,", so that no two combinations have the same
// key, whatever bytes they hold.
//
// All panics if it is given no function, or a nil one.
func All(fns ...Func) Func {
	fns = members("All", fns)
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

// First charges what the first of the given functions that applies charges:
// First(Context(userKey{}), RemoteAddr()) charges the user, and by address those
// who are not signed in. A function that returns [ErrAbsent] does not apply. Any
// other error is the result: a client must not choose who is charged by sending
// something malformed. If none applies, the error of the last is the result.
//
// The key begins with the position of the function that answered, as in
// "1:203.0.113.7", so that nobody can drain the limit of an address by taking the
// name "203.0.113.7". Changing the order of the functions changes the keys.
//
// First is as strict as its most generous member: what a client can leave out or
// make up, it will.
//
// First panics if it is given no function, or a nil one.
func First(fns ...Func) Func {
	fns = members("First", fns)
	return func(r *http.Request) (string, error) {
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
	}
}

// members returns a copy of fns, which the caller may change later.
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
