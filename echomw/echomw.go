package echomw

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/labstack/echo/v4"

	"github.com/headgate/headgate/nethttp"
)

// Limit returns a middleware that calls the next handler for requests that the guard
// admits, and returns an error for the others. It can be used for a server, a group or a
// route:
//
//	e.Use(echomw.Limit(guard))
//	e.POST("/login", login, echomw.Limit(logins))
//
// The error is an [*echo.HTTPError] with the status of the refusal, and its Internal is the
// verdict's Err, nil for a limit. With Echo's default error handler, which ignores it, the
// refusal has been written. For a handler of the application's, only the fields of the
// response are set, and the error's Message marshals to the problem document. If the
// guard's OnRefused writes the response, the error is nil.
//
// Limit panics if the guard is nil.
func Limit(guard *nethttp.Guard) echo.MiddlewareFunc {
	mustGuard(guard)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			var v nethttp.Verdict
			guard.CheckTo(&v, c.Request(), nil)
			return act(c, next, guard, &v)
		}
	}
}

// LimitBy is Limit with keys from Echo's context: the i-th key replaces the Key of the
// guard's i-th rule. There must be one for each rule; see [Request] for keys from the
// request. [nethttp.Rule].Key is required all the same, because the guard can be used
// without LimitBy; if it is not, [keyfuncs.RemoteAddr] will do.
//
// Middleware that sets charged values, such as authentication, must run before.
// LimitBy panics if the guard or a key is nil, or if the numbers of keys and rules differ.
func LimitBy(guard *nethttp.Guard, keys ...Key) echo.MiddlewareFunc {
	mustGuard(guard)
	keys = perRule("LimitBy", guard.Rules(), keys)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			var v nethttp.Verdict
			guard.CheckTo(&v, c.Request(), func(rule int) (string, error) { return keys[rule](c) })
			return act(c, next, guard, &v)
		}
	}
}

func mustGuard(guard *nethttp.Guard) {
	if guard == nil {
		panic("headgate: echomw: the guard is nil")
	}
}

// act carries the verdict out.
func act(c echo.Context, next echo.HandlerFunc, guard *nethttp.Guard, v *nethttp.Verdict) error {
	if keeps.Load() {
		if k, ok := keptIn(c); ok {
			*k = kept{*v, true}
		}
	}
	if v.Status() != 0 {
		return refuse(c, guard, v)
	}
	v.SetFields(c.Response().Header())
	if tracked, settle := v.Track(c.Request()); settle != nil {
		return serve(c, next, tracked, settle)
	}
	return next(c)
}

// serve runs the following handlers and settles the charge.
func serve(c echo.Context, next echo.HandlerFunc, tracked *http.Request, settle func(nethttp.Outcome)) (err error) {
	response := c.Response()
	w := &writer{ResponseWriter: response.Writer}
	response.Writer = w
	c.SetRequest(tracked)
	returned := false
	defer func() {
		o := nethttp.Outcome{Status: response.Status, Written: response.Size, Hijacked: w.hijacked}
		if !response.Committed && (err != nil || !returned) {
			o.Status = statusOf(err)
		}
		settle(o)
	}()
	err = next(c)
	returned = true
	return err
}

// statusOf is what Echo's error handler will answer; nil stands for a panic. Like
// that handler it does not look into errors of other types.
func statusOf(err error) int {
	he, ok := err.(*echo.HTTPError) //nolint:errorlint // see above
	if !ok {
		return http.StatusInternalServerError
	}
	if inner, ok := he.Internal.(*echo.HTTPError); ok { //nolint:errorlint // see above
		return inner.Code
	}
	return he.Code
}

// A writer records whether the connection was hijacked, which Echo's does not.
type writer struct {
	http.ResponseWriter

	hijacked bool
}

// Unwrap is for [http.ResponseController], by which Echo flushes.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = w.hijacked || err == nil
	return conn, rw, err
}

// verdictKey is the key of *kept in Echo's context.
const verdictKey = "github.com/headgate/headgate/echomw.Verdict"

// keeps reports whether Keep was ever called. Without it, every request would look for
// the kept verdict in the context in vain, which takes 10 to 40 ns; the context offers
// no cheaper place for it.
var keeps atomic.Bool //nolint:gochecknoglobals // it affects only the speed

// kept is where [Keep] keeps the last verdict.
type kept struct {
	verdict nethttp.Verdict
	given   bool
}

func keptIn(c echo.Context) (*kept, bool) {
	k, ok := c.Get(verdictKey).(*kept)
	return k, ok
}

// Keep returns a middleware that keeps the verdicts of the guards that run after
// it, for [Verdict]:
//
//	e.Use(echomw.Keep(), echomw.Limit(guard))
//
// Without it, verdicts are not kept, because that takes about 200 ns and 250 bytes a
// request, nearly as long as the limit itself.
func Keep() echo.MiddlewareFunc {
	keeps.Store(true)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set(verdictKey, new(kept))
			return next(c)
		}
	}
}

// Verdict returns the last verdict about the request, for handlers and for the
// application's HTTPErrorHandler. It returns false if no guard has checked the request,
// or if [Keep] did not run before the guard.
func Verdict(c echo.Context) (nethttp.Verdict, bool) {
	if k, ok := keptIn(c); ok {
		return k.verdict, k.given
	}
	return nethttp.Verdict{}, false
}
