package echov5mw

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v5"

	"github.com/headgate/headgate/adapter"
	"github.com/headgate/headgate/keyfuncs"
)

var framework = adapter.Framework[*echo.Context]{
	Name:    "echov5mw",
	Request: func(c *echo.Context) *http.Request { return c.Request() },
	Get:     func(c *echo.Context, name string) any { return c.Get(name) },
	Set:     func(c *echo.Context, name string, value any) { c.Set(name, value) },
}

// Key returns a key from Echo's context, for the rules of guards, by the contract of
// [keyfuncs.Func]. So get never returns an empty key without an error. It returns
// [keyfuncs.ErrAbsent] if the context lacks the charged value. It must be safe for concurrent use.
// Key panics if get is nil.
//
// Keys of this package can be combined with keys of package keyfuncs, and called by functions of
// your own. Requests carry the context for guards with such keys and functions, which takes two
// allocations. Without a middleware of this package a request has no such key. That is
// [keyfuncs.ErrProgram], and so a 500. A guard's own Handler panics if it finds such a key.
func Key(get func(*echo.Context) (string, error)) keyfuncs.Func { return framework.Key(get) }

// Value charges a value that an earlier handler set with c.Set, such as the signed-in user. It must
// be of a string or integer type, or a [fmt.Stringer]. Its text is the key. A value that is
// missing, nil or an empty text is [keyfuncs.ErrAbsent]. A value of another type is
// [keyfuncs.ErrProgram].
//
//	keyfuncs.First(echov5mw.Value("user"), keyfuncs.RemoteAddr())
func Value(name string) keyfuncs.Func { return framework.Value(name) }

// Route charges the pattern of the route, such as "/items/:id", for all methods together. It is for
// use within [keyfuncs.All]. A request that matched no route may be in a group with middleware.
// Then it has the pattern of the group, such as "/api/*". Otherwise it is [keyfuncs.ErrAbsent]. So
// it gets the status 400 instead of 404, unless there is another key for it:
//
//	keyfuncs.First(echov5mw.Route(), keyfuncs.Everyone())
//
// A request with a method that its route does not have (405) has that pattern too, or else the
// pattern of the route.
func Route() keyfuncs.Func {
	return framework.Text("route", func(c *echo.Context) string { return c.Path() })
}

// Param charges a parameter of the path, such as the id of "/items/:id", for use within
// [keyfuncs.All]. One that is missing or empty is [keyfuncs.ErrAbsent].
//
// Warning: the client chooses the value. It identifies the item, not the client; a client
// with access to many items has a limit for each.
func Param(name string) keyfuncs.Func {
	return framework.Text("path parameter "+strconv.Quote(name), func(c *echo.Context) string { return c.Param(name) })
}

// Context returns Echo's context of a request that a function of a guard's Config gets, such as
// [nethttp.Rule].Plan, Cost, Settle or Report: what earlier middleware stored with c.Set is there. It
// returns nil for requests that did not pass this package, and for all others when the guard
// is done with them. For a key, use [Key].
func Context(r *http.Request) *echo.Context { return framework.Context(r) }

// Request returns the request of c with c in its context, for functions of a guard that
// handlers call, such as [nethttp.Guard.Reset]. It must not be used after c.
func Request(c *echo.Context) *http.Request { return framework.With(c) }
