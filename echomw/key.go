package echomw

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/keyfuncs"
)

// A Key derives from Echo's context the key that is charged, as a [keyfuncs.Func]
// does from a request, by the same rules: never an empty key without an error, and
// [keyfuncs.ErrAbsent] if the context does not have the thing.
type Key func(echo.Context) (string, error)

var errNoKey = errors.New("headgate: echomw: there are fewer keys than the guard has rules")

// Request charges what the function of package keyfuncs charges.
func Request(fn keyfuncs.Func) Key {
	if fn == nil {
		panic("headgate: echomw: Request: the function is nil")
	}
	return func(c echo.Context) (string, error) { return fn(c.Request()) }
}

// Route charges the pattern of the route, as "/items/:id", of all methods together,
// for use within [All]. A request that matched no route is [keyfuncs.ErrAbsent].
func Route() Key {
	errAbsent := absent("route")
	return func(c echo.Context) (string, error) { return present(c.Path(), errAbsent) }
}

// Param charges a parameter of the path, as the id of "/items/:id", for use within
// [All]. One that is missing or empty is [keyfuncs.ErrAbsent].
//
// Beware: the value is what the client wrote. It says which item is used and not who
// uses it; a client that may ask for any has a new limit for each.
func Param(name string) Key {
	errAbsent := absent("path parameter " + strconv.Quote(name))
	return func(c echo.Context) (string, error) { return present(c.Param(name), errAbsent) }
}

// Value charges what an earlier handler set with c.Set, such as the user that
// authentication found. The value may be of a string or integer type, whose text is
// charged, or a [fmt.Stringer]. One that is missing, nil or empty text is
// [keyfuncs.ErrAbsent]; one of another type is an error of the program.
func Value(name string) Key {
	thing := "context value " + strconv.Quote(name)
	errAbsent := absent(thing)
	textOf := keyfuncs.Context(valueKey{})
	return func(c echo.Context) (string, error) {
		value := c.Get(name)
		if text, ok := value.(string); ok || value == nil {
			return present(text, errAbsent)
		}
		// Package keyfuncs knows what has a text.
		ctx := context.WithValue(c.Request().Context(), valueKey{}, value)
		text, err := textOf(c.Request().WithContext(ctx))
		if err != nil {
			return "", fmt.Errorf("headgate: echomw: %s: %w", thing, err)
		}
		return text, nil
	}
}

type valueKey struct{}

// All charges the combination of the given keys, as [keyfuncs.All] does:
//
//	echomw.All(echomw.Route(), echomw.Request(keyfuncs.RemoteAddr()))
//
// It panics if it is given no key, or a nil one.
func All(keys ...Key) Key { return compose("All", keyfuncs.All, keys) }

// First charges the first of the given keys that the request has, as
// [keyfuncs.First] does:
//
//	echomw.First(echomw.Value("user"), echomw.Request(keyfuncs.RemoteAddr()))
//
// It panics if it is given no key, or a nil one.
func First(keys ...Key) Key { return compose("First", keyfuncs.First, keys) }

// compose has package keyfuncs do it, so that keys look the same everywhere. The
// functions that it combines get no more than a request, so each combination has
// a slot for Echo's context, and is used by one request at a time.
func compose(name string, how func(...keyfuncs.Func) keyfuncs.Func, keys []Key) Key {
	keys = members(name, keys)
	type combination struct {
		c   echo.Context
		key keyfuncs.Func
	}
	pool := sync.Pool{New: func() any {
		one := &combination{}
		fns := make([]keyfuncs.Func, len(keys))
		for i, key := range keys {
			fns[i] = func(*http.Request) (string, error) { return key(one.c) }
		}
		one.key = how(fns...)
		return one
	}}
	return func(c echo.Context) (string, error) {
		one := pool.Get().(*combination)
		one.c = c
		key, err := one.key(c.Request())
		one.c = nil
		pool.Put(one)
		return key, err
	}
}

// members returns a copy of keys, which the caller may change later.
func members(name string, keys []Key) []Key {
	if len(keys) == 0 {
		panic("headgate: echomw: " + name + ": no key")
	}
	for i, key := range keys {
		if key == nil {
			panic("headgate: echomw: " + name + ": key " + strconv.Itoa(i) + " is nil")
		}
	}
	return slices.Clone(keys)
}

func absent(thing string) error { return fmt.Errorf("%w: %s", keyfuncs.ErrAbsent, thing) }

func present(text string, errAbsent error) (string, error) {
	if text == "" {
		return "", errAbsent
	}
	return text, nil
}
