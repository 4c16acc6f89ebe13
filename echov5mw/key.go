package echov5mw

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/keyfuncs"
)

// A Key returns the key that is charged from Echo's context, by the contract of
// [keyfuncs.Func]: never an empty key without an error, and [keyfuncs.ErrAbsent] if the
// context does not contain what is charged. It must be safe for concurrent use.
type Key func(*echo.Context) (string, error)

// Request charges the key that a function of package keyfuncs returns. Request panics if
// fn is nil.
func Request(fn keyfuncs.Func) Key {
	if fn == nil {
		panic("headgate: echov5mw: Request: the function is nil")
	}
	return func(c *echo.Context) (string, error) { return fn(c.Request()) }
}

// Route charges the pattern of the route, such as "/items/:id", for all methods together,
// for use within [All]. A request that matched no route has the pattern of the group with
// middleware that its path is in, such as "/api/*", if there is one. Otherwise it is
// [keyfuncs.ErrAbsent], and so gets the status 400 instead of 404, unless there is another
// key for it:
//
//	echov5mw.First(echov5mw.Route(), echov5mw.Request(keyfuncs.Everyone()))
//
// A request with a method that its route does not have (405) has the pattern of that
// group too, or else the pattern of the route.
func Route() Key {
	errAbsent := absent("route")
	return func(c *echo.Context) (string, error) { return present(c.Path(), errAbsent) }
}

// Param charges a parameter of the path, such as the id of "/items/:id", for use within
// [All]. One that is missing or empty is [keyfuncs.ErrAbsent].
//
// Warning: the client chooses the value. It identifies the item, not the client; a client
// with access to many items has a limit for each.
func Param(name string) Key {
	errAbsent := absent("path parameter " + strconv.Quote(name))
	return func(c *echo.Context) (string, error) { return present(c.Param(name), errAbsent) }
}

// Value charges a value that an earlier handler set with c.Set, such as the signed-in
// user. It must be of a string or integer type, whose text is the key, or a
// [fmt.Stringer]. A value that is missing, nil or an empty text is [keyfuncs.ErrAbsent];
// one of another type is [keyfuncs.ErrProgram].
func Value(name string) Key {
	thing := "context value " + strconv.Quote(name)
	errAbsent := absent(thing)
	textOf := keyfuncs.Context(valueKey{})
	return func(c *echo.Context) (string, error) {
		value := c.Get(name)
		if text, ok := value.(string); ok || value == nil {
			return present(text, errAbsent)
		}
		// Package keyfuncs knows which types have a text.
		ctx := context.WithValue(c.Request().Context(), valueKey{}, value)
		text, err := textOf(c.Request().WithContext(ctx))
		if err != nil {
			return "", fmt.Errorf("headgate: echov5mw: %s: %w", thing, err)
		}
		return text, nil
	}
}

type valueKey struct{}

// All charges the combination of the given keys, like [keyfuncs.All]:
//
//	echov5mw.All(echov5mw.Route(), echov5mw.Request(keyfuncs.RemoteAddr()))
//
// It panics if it is given no key or a nil one.
func All(keys ...Key) Key { return compose("All", keyfuncs.All, keys) }

// First charges the first of the given keys that the request has, like [keyfuncs.First]:
//
//	echov5mw.First(echov5mw.Value("user"), echov5mw.Request(keyfuncs.RemoteAddr()))
//
// It panics if it is given no key or a nil one.
func First(keys ...Key) Key { return compose("First", keyfuncs.First, keys) }

// compose calls package keyfuncs, so that keys have the same form everywhere. The
// functions that keyfuncs combines get only a request, so each combination has a field
// for Echo's context, and is used by one request at a time.
func compose(name string, how func(...keyfuncs.Func) keyfuncs.Func, keys []Key) Key {
	keys = members(name, keys)
	type combination struct {
		c   *echo.Context
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
	return func(c *echo.Context) (string, error) {
		one := pool.Get().(*combination)
		one.c = c
		key, err := one.key(c.Request())
		one.c = nil
		pool.Put(one)
		return key, err
	}
}

// perRule returns a copy of keys, of which there must be one for each rule.
func perRule(name string, rules int, keys []Key) []Key {
	if len(keys) != rules {
		panic(fmt.Sprintf("headgate: echov5mw: %s: the number of keys is %d, that of rules %d", name, len(keys), rules))
	}
	return members(name, keys)
}

// members returns a copy of keys, because the caller may change keys later.
func members(name string, keys []Key) []Key {
	if len(keys) == 0 {
		panic("headgate: echov5mw: " + name + ": no key")
	}
	for i, key := range keys {
		if key == nil {
			panic("headgate: echov5mw: " + name + ": key " + strconv.Itoa(i) + " is nil")
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
