package echomw

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/keyfuncs"
)

// A Key returns the key that is charged from Echo's context, by the contract of
// [keyfuncs.Func]: never an empty key without an error, and [keyfuncs.ErrAbsent] if the
// context does not contain what is charged. It must be safe for concurrent use.
type Key = adapter.Key[echo.Context]

var framework = adapter.Framework[echo.Context]{ //nolint:gochecknoglobals // a constant
	Name:    "echomw",
	Request: echo.Context.Request,
}

// Context returns Echo's context of a request that a function of the Config of a guard of
// nethttp or inflight gets, such as [nethttp.Rule].Plan, Cost or Settle: what earlier
// middleware stored with c.Set is there. It returns nil for requests that did not pass this
// package, and in Key, for which there are [LimitBy] and [Value].
func Context(r *http.Request) echo.Context { return framework.Context(r) }

// Request charges the key that a function of package keyfuncs returns. Request panics if
// fn is nil.
func Request(fn keyfuncs.Func) Key { return framework.Key(fn) }

// Route charges the pattern of the route, such as "/items/:id", for all methods together,
// for use within [All]. A request that matched no route has the pattern of the group with
// middleware that its path is in, such as "/api/*", if there is one. Otherwise it is
// [keyfuncs.ErrAbsent], and so gets the status 400 instead of 404, unless there is another
// key for it:
//
//	echomw.First(echomw.Route(), echomw.Request(keyfuncs.Everyone()))
//
// A request with a method that its route does not have (405) has the pattern of that
// group too, or else the pattern of the route.
func Route() Key { return framework.Text("route", echo.Context.Path) }

// Param charges a parameter of the path, such as the id of "/items/:id", for use within
// [All]. One that is missing or empty is [keyfuncs.ErrAbsent].
//
// Warning: the client chooses the value. It identifies the item, not the client; a client
// with access to many items has a limit for each.
func Param(name string) Key {
	return framework.Text("path parameter "+strconv.Quote(name), func(c echo.Context) string { return c.Param(name) })
}

// Value charges a value that an earlier handler set with c.Set, such as the signed-in
// user. It must be of a string or integer type, whose text is the key, or a
// [fmt.Stringer]. A value that is missing, nil or an empty text is [keyfuncs.ErrAbsent];
// one of another type is [keyfuncs.ErrProgram].
func Value(name string) Key {
	return framework.Value("context value "+strconv.Quote(name), func(c echo.Context) any { return c.Get(name) })
}

// All charges the combination of the given keys, like [keyfuncs.All]:
//
//	echomw.All(echomw.Route(), echomw.Request(keyfuncs.RemoteAddr()))
//
// It panics if it is given no key or a nil one.
func All(keys ...Key) Key { return framework.All(keys...) }

// First charges the first of the given keys that the request has, like [keyfuncs.First]:
//
//	echomw.First(echomw.Value("user"), echomw.Request(keyfuncs.RemoteAddr()))
//
// It panics if it is given no key or a nil one.
func First(keys ...Key) Key { return framework.First(keys...) }
